"""Random messages of every kind that minray's processes understand: as they should be, and spoiled.

A record is drawn from the types of its fields. A spoiled message is one that no process may understand: its bytes were
changed until the real decoder refuses them, so that no attack can hit upon a true message and do what it says.
"""

from __future__ import annotations

import random
import types
import typing
from collections.abc import Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints

import msgspec

from minray.common.decoding import MALFORMED
from minray.core_worker.service import CoreWorkerService
from minray.gcs.server import GCS_SERVICES
from minray.protocol.base import Request, decoder, encode
from minray.raylet.raylet import RAYLET_SERVICES
from minray.rpc.service import _understood_by

MESSAGES: dict[str, type[Request[Any]]] = {
    name: request for service in (*GCS_SERVICES, *RAYLET_SERVICES, CoreWorkerService)
    for name, request in _understood_by(service).items()
}  # fmt: skip
HARMLESS = [name for name in MESSAGES if name.startswith(("Get", "KvGet", "KvKeys", "CheckAlive", "Poll"))]
"""Messages that only ask. Who knows the token may send the others, and they would do what they say."""
NUMBERS = (0, 1, -1, 255, 2**31, 2**63 - 1, -(2**63), 2**64 - 1)
FLOATS = (0.0, -1.0, 1e308, float("inf"), float("nan"), 0.01)
DEPTH = 200_000


def draw(kind: Any, chance: random.Random, depth: int = 0) -> Any:
    """A random value of a type."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is typing.Annotated:
        return draw(arguments[0], chance, depth)
    if origin in (Union, types.UnionType):
        return draw(chance.choice(arguments), chance, depth)
    if origin in (list, tuple, typing.get_origin(typing.Sequence[int])):
        kinds = [one for one in arguments if one is not Ellipsis]
        if origin is tuple and Ellipsis not in arguments:
            return tuple(draw(one, chance, depth + 1) for one in kinds)
        count = chance.choice((0, 1, 3)) if depth < 3 else 0
        return [draw(kinds[0] if kinds else int, chance, depth + 1) for _ in range(count)]
    if origin is dict:
        count = chance.choice((0, 1, 2))
        return {draw(arguments[0], chance, 9): draw(arguments[1], chance, depth + 1) for _ in range(count)}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return draw_record(kind, chance, depth + 1)
    return draw_plain(kind, chance)


def draw_plain(kind: Any, chance: random.Random) -> Any:
    if kind is bytes:
        return chance.choice((b"", chance.randbytes(16), chance.randbytes(28), chance.randbytes(200)))
    if kind is str:
        return chance.choice(("", "attack", "a:b/c", "\x00", "ö" * 300, "NODES", "nodes"))
    if kind is bool:
        return chance.random() < 0.5
    if kind is int:
        return chance.choice(NUMBERS)
    if kind is float:
        return chance.choice(FLOATS)
    return None


def draw_record(kind: type[msgspec.Struct], chance: random.Random, depth: int = 0) -> Any:
    hints = get_type_hints(kind)
    return kind(**{name: draw(hints[name], chance, depth) for name in kind.__struct_fields__})


def true_message(name: str, chance: random.Random) -> bytes:
    """A message as a peer of ours might send it, with fields that mean nothing."""
    return encode(draw_record(MESSAGES[name], chance))


def spoiled_message(name: str, chance: random.Random) -> bytes:
    """A message of that name that its decoder refuses."""
    for payload in _spoiled(true_message(name, chance), chance):
        try:
            decoder(MESSAGES[name]).decode(payload)
        except MALFORMED:
            return payload
    raise AssertionError("the last of them is always refused")


def _spoiled(payload: bytes, chance: random.Random) -> Iterator[bytes]:
    for _ in range(4):
        kind = chance.randrange(6)
        changed = bytearray(payload)
        if kind == 0:
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        elif kind == 1:
            del changed[chance.randrange(len(changed)) :]
        elif kind == 2:
            changed += chance.randbytes(chance.randrange(1, 50))
        elif kind == 3:
            changed = bytearray(b"\x91" * chance.choice((5, 2000, DEPTH)) + b"\xc0")
        elif kind == 4:
            changed = bytearray(b"\xdc\x00\x20" + b"\xc0" * 31 + b"\x81\xa0" * 3000 + b"\xc0")
        else:
            changed = bytearray(chance.randbytes(chance.choice((0, 1, 30, 3000))))
        yield bytes(changed)
    yield b"\xc1"
