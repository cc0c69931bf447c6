"""Many small arrays in one message: six encodings by the size of an array, as in Dask's PR #8318.

    python -m benchmarks.small_buffers [--rounds N]

A message is a list of arrays ("shards") of 2 MiB together, or one array if that is larger. It goes from one process's
network to another's and back, as it was; both live on one loop and talk by TCP, as in that pull request. What is
measured is the whole way: from arrays to bytes, over the wire, to arrays, and the same back.

    arrays           each array is a value of its own: a stream and a buffer for each
    opaque arrays    one pickle stream, each array's memory is a buffer of its own
    bytes            one pickle stream with all in it
    list of bytes    each array is a pickle stream with all in it, sent as a buffer
    opaque bytes     those streams, pickled again into one
    minray           one pickle stream; small buffers share one, large ones are on their own

Copies are those of the arrays' bytes that are in memory at once on one way, beyond the sender's snapshot and what the
receiver was sent, which every encoding needs; ``tracemalloc`` counts them. Frames are counted by the network. The last line
names the encodings whose arrays come back writable, which G13 forbids.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import pickle
import statistics
import sys
import time
import tracemalloc
from collections.abc import Callable, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np

from minray import serialization
from minray.platform.base import Counters, Incoming
from minray.platform.host import RealHost
from minray.platform.sockets import StreamNetwork

TOTAL_BYTES = 2 << 20
SHARD_BYTES = tuple(1 << power for power in range(11, 23))
"""2 KiB to 4 MiB."""
TOKEN, ANSWERER, ASKER = b"benchmark", b"A" * 16, b"B" * 16

Arrays = list[Any]


class Encoding(NamedTuple):
    """A way to send arrays."""

    encode: Callable[[Arrays], tuple[bytes, Sequence[Any]]]
    """To a message's payload and the buffers beside it."""
    decode: Callable[[bytes, Sequence[Any]], Arrays]


def _snapshots(buffers: Sequence[pickle.PickleBuffer]) -> list[bytes]:
    return [bytes(buffer.raw()) for buffer in buffers]


def encode_arrays(arrays: Arrays) -> tuple[bytes, list[bytes]]:
    buffers: list[pickle.PickleBuffer] = []
    streams = [pickle.dumps(array, 5, buffer_callback=buffers.append) for array in arrays]
    return pickle.dumps(streams, 5), _snapshots(buffers)


def decode_arrays(payload: bytes, buffers: Sequence[Any]) -> Arrays:
    return [pickle.loads(stream, buffers=[buffer]) for stream, buffer in zip(pickle.loads(payload), buffers, strict=True)]


def encode_opaque(arrays: Arrays) -> tuple[bytes, list[bytes]]:
    buffers: list[pickle.PickleBuffer] = []
    stream = pickle.dumps(arrays, 5, buffer_callback=buffers.append)
    return stream, _snapshots(buffers)


def decode_opaque(payload: bytes, buffers: Sequence[Any]) -> Arrays:
    arrays: Arrays = pickle.loads(payload, buffers=buffers)
    return arrays


def encode_streams(arrays: Arrays) -> tuple[bytes, list[bytes]]:
    return b"", [pickle.dumps(array, 5) for array in arrays]


def encode_twice(arrays: Arrays) -> tuple[bytes, list[bytes]]:
    return b"", [pickle.dumps([pickle.dumps(array, 5) for array in arrays], 5)]


def decode_twice(payload: bytes, buffers: Sequence[Any]) -> Arrays:
    return [pickle.loads(stream) for stream in pickle.loads(buffers[0])]


def encode_minray(arrays: Arrays) -> tuple[bytes, list[bytes]]:
    value = serialization.serialize(arrays).copied()
    return value.data, value.buffers


def decode_minray(payload: bytes, buffers: Sequence[Any]) -> Arrays:
    arrays: Arrays = serialization.deserialize(payload, buffers, [])
    return arrays


ENCODINGS = {
    "arrays": Encoding(encode_arrays, decode_arrays),
    "opaque arrays": Encoding(encode_opaque, decode_opaque),
    "bytes": Encoding(lambda arrays: (b"", [pickle.dumps(arrays, 5)]), lambda payload, buffers: pickle.loads(buffers[0])),
    "list of bytes": Encoding(encode_streams, lambda payload, buffers: [pickle.loads(buffer) for buffer in buffers]),
    "opaque bytes": Encoding(encode_twice, decode_twice),
    "minray": Encoding(encode_minray, decode_minray),
}


def message_of(shard_bytes: int) -> Arrays:
    return [np.full(shard_bytes, number % 256, np.uint8) for number in range(max(1, TOTAL_BYTES // shard_bytes))]


def copies_of(encoding: Encoding, arrays: Arrays) -> int:
    """How often the arrays' bytes are in memory at most, beyond the sender's snapshot and what the receiver was sent."""
    total = sum(array.nbytes for array in arrays)
    tracemalloc.start()
    try:
        payload, buffers = encoding.encode(arrays)
        encoding_peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.reset_peak()
        held = tracemalloc.get_traced_memory()[0]
        encoding.decode(payload, buffers)
        decoding_peak = tracemalloc.get_traced_memory()[1] - held
    finally:
        tracemalloc.stop()
    return round(encoding_peak / total) - 1 + round(decoding_peak / total)


class Exchange:
    """Two networks on this loop, the second of which sends arrays back."""

    async def open(self) -> None:
        host = RealHost()
        self.asking, self._answering = StreamNetwork(TOKEN, host), StreamNetwork(TOKEN, host)
        self._listener = await self._answering.listen("tcp:127.0.0.1:0", ANSWERER, self._on_incoming)
        self._channel = await self.asking.connect(self._listener.endpoint, ANSWERER, ASKER, lambda: None)

    async def close(self) -> None:
        self._channel.close()
        await self._listener.close()

    def _on_incoming(self, incoming: Incoming) -> None:
        encoding = ENCODINGS[incoming.method]
        incoming.reply(*encoding.encode(encoding.decode(incoming.payload, incoming.buffers)))

    async def round_trip(self, name: str, arrays: Arrays) -> Arrays:
        encoding = ENCODINGS[name]
        answered: asyncio.Future[Arrays] = asyncio.get_running_loop().create_future()

        def on_reply(error: Exception | None, payload: bytes, buffers: Sequence[Any]) -> None:
            if error is not None:
                answered.set_exception(error)
            else:
                answered.set_result(encoding.decode(payload, buffers))

        payload, buffers = encoding.encode(arrays)
        self._channel.call(name, payload, buffers, on_reply)
        return await answered

    def counters(self) -> Counters:
        return self.asking.counters


class Row(NamedTuple):
    """One encoding at one size."""

    encoding: str
    shard_bytes: int
    milliseconds: float
    copies: int
    frames: int
    read_only: bool


async def measure(rounds: int, sizes: Sequence[int] = SHARD_BYTES) -> list[Row]:
    """All encodings at all sizes, in turn within each round; the time is the median of the rounds."""
    exchange = Exchange()
    await exchange.open()
    try:
        rows = []
        for size in sizes:
            arrays = message_of(size)
            times: dict[str, list[float]] = {name: [] for name in ENCODINGS}
            frames: dict[str, int] = {}
            read_only: dict[str, bool] = {}
            order = list(ENCODINGS)
            for number in range(rounds):
                Random(number).shuffle(order)  # what one leaves behind in memory is not always the same one's to find
                for name in order:
                    before, begun = exchange.counters().frames, time.perf_counter()
                    back = await exchange.round_trip(name, arrays)
                    times[name].append(1000 * (time.perf_counter() - begun))
                    frames[name] = exchange.counters().frames - before
                    read_only[name] = not any(array.flags.writeable for array in back)
            rows += [
                Row(name, size, statistics.median(times[name]), copies_of(encoding, arrays), frames[name], read_only[name])
                for name, encoding in ENCODINGS.items()
            ]
        return rows
    finally:
        await exchange.close()


def report(rows: Sequence[Row]) -> str:
    """Milliseconds of a round trip, then copies and frames of one way."""
    by = {(row.encoding, row.shard_bytes): row for row in rows}
    sizes = sorted({row.shard_bytes for row in rows})
    lines = [f"{'array':>10}" + "".join(f"{name:>16}" for name in ENCODINGS)]
    for size in sizes:
        lines.append(f"{size // 1024:>6} KiB" + "".join(f"{by[name, size].milliseconds:>13.2f} ms" for name in ENCODINGS))
    lines.append("copies + frames")
    for size in sizes:
        cells = (f"{by[name, size].copies} + {by[name, size].frames}" for name in ENCODINGS)
        lines.append(f"{size // 1024:>6} KiB" + "".join(f"{cell:>16}" for cell in cells))
    writable = [name for name in ENCODINGS if not all(by[name, size].read_only for size in sizes)]
    lines.append(f"arrays come back writable: {', '.join(writable)}")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.small_buffers")
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", action="store_true", help="rows instead of a table")
    options = parser.parse_args()
    try:
        import uvloop
    except ImportError:
        rows = asyncio.run(measure(options.rounds))
    else:
        rows = uvloop.run(measure(options.rounds))
    print(json.dumps([row._asdict() for row in rows]) if options.json else report(rows))


if __name__ == "__main__":
    sys.exit(main())
