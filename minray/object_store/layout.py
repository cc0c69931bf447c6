"""Layout of a value in the arena: a list of piece sizes, the pickle stream, then its buffers, each aligned.

Ray: python/ray/includes/serialization.pxi (MessagePackSerializedObject, Pickle5Writer)

    u32 n, then n times u64: the sizes of the pieces
    the pieces, each at a multiple of ``ALIGNMENT`` from the beginning

The first piece is the pickle stream. A stored object describes itself, so that it can be sent or written to a file as it is.
"""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from minray.object_store.allocator import ALIGNMENT
from minray.object_store.exporter import exporter_of
from minray.platform.base import Buffer

_COUNT = struct.Struct("<I")


def stored_size(sizes: Sequence[int]) -> int:
    """Return the number of bytes that pieces of these sizes take in the arena."""
    return _places(sizes)[1]


def write(target: memoryview, pieces: Sequence[memoryview | bytes], copy: Callable[[memoryview, Buffer], None]) -> None:
    """Copy the pieces into ``target``, which has ``stored_size`` bytes. ``copy`` copies one piece (``Memory.copy``)."""
    sizes = [memoryview(piece).nbytes for piece in pieces]
    for piece, size, start in zip(pieces, sizes, begin(target, sizes), strict=True):
        if size:
            copy(target[start : start + size], piece)


def begin(target: memoryview, sizes: Sequence[int]) -> list[int]:
    """Write the list of sizes into ``target``; return where each piece begins, for a caller that copies them itself."""
    _COUNT.pack_into(target, 0, len(sizes))
    struct.pack_into(f"<{len(sizes)}Q", target, _COUNT.size, *sizes)
    return _places(sizes)[0]


def read(source: memoryview) -> list[memoryview]:
    """Return the pieces of a stored value as views, without a copy. Raises ValueError if the bytes are no value."""
    try:
        (count,) = _COUNT.unpack_from(source)
        sizes = struct.unpack_from(f"<{count}Q", source, _COUNT.size)
    except struct.error as error:
        raise ValueError(f"an object of {len(source)} bytes in the store is damaged: {error}") from None
    starts, end = _places(sizes)
    if end > len(source):
        raise ValueError(f"an object in the store is damaged: it has {len(source)} bytes, but its header says {end}")
    return [source[start : start + size] for start, size in zip(starts, sizes, strict=True)]


def lasting_view(
    data: Buffer, start: int, size: int, post: Callable[..., None], on_gone: Callable[..., None], *args: Any
) -> memoryview:
    """Return a part of ``data``; call ``post(on_gone, *args)`` when it and every view made of it are gone (G61).

    The call may come in any thread. ``post`` and ``on_gone`` are methods that are referenced weakly: a view must not keep
    their objects alive, because it may outlive them, or be held by them.
    """
    exporter = exporter_of(data, start, size)
    weakref.finalize(exporter, _post, weakref.WeakMethod(post), weakref.WeakMethod(on_gone), args).atexit = False
    return memoryview(exporter)


def _post(post: weakref.WeakMethod[Any], on_gone: weakref.WeakMethod[Any], args: tuple[Any, ...]) -> None:
    poster, method = post(), on_gone()
    if poster is not None and method is not None:
        poster(method, *args)


def _places(sizes: Sequence[int]) -> tuple[list[int], int]:
    """Return the offset of each piece, and the end of the last one."""
    starts: list[int] = []
    end = _COUNT.size + 8 * len(sizes)
    for size in sizes:
        starts.append(end + -end % ALIGNMENT)
        end = starts[-1] + size
    return starts, end
