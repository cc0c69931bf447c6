"""Many small arrays in one message: six encodings by the size of an array, as in Dask's PR #8318.

A message is a list of arrays ("shards") of 2 MiB together, or one array if that is larger. It goes from one network object
to another and back, by TCP; both are on one loop, as in that pull request. The measured time is that of the whole round
trip: from arrays to bytes, over the connection, to arrays, and back.

    arrays           each array is a value of its own: a stream and a buffer for each
    opaque arrays    one pickle stream, each array's memory is a separate buffer
    bytes            one pickle stream with all arrays in it
    list of bytes    each array is a pickle stream with its memory in it, sent as a buffer
    opaque bytes     those streams, pickled again into one
    minray           one pickle stream; small buffers share one buffer, large ones are separate

Copies are the greatest number of copies of the arrays' bytes in memory on one way. The sender's snapshot and the received
message do not count, since every encoding needs them. ``tracemalloc`` counts copies, and the network counts frames. The
encodings take the place of systems here, and take turns within one process.
"""

from __future__ import annotations

import asyncio
import pickle
import statistics
import time
import tracemalloc
from collections.abc import Callable, Coroutine, Iterator, Sequence
from random import Random
from typing import Any, NamedTuple

import numpy as np

from benchmarks.document import MINRAY, Document, Part, Sample, Size, Table
from minray.platform.base import Counters, Incoming
from minray.platform.process.host import RealHost
from minray.platform.transport.sockets import StreamNetwork
from minray.values import serialization

TOTAL_BYTES = 2 << 20
SHARD_BYTES = tuple(1 << power for power in range(11, 23))
"""Sizes of an array in bytes: 2 KiB to 4 MiB."""
TOKEN, ANSWERER, ASKER = b"benchmark", b"A" * 16, b"B" * 16

Arrays = list[Any]


class Encoding(NamedTuple):
    """An encoding of arrays in a message."""

    encode: Callable[[Arrays], tuple[bytes, Sequence[Any]]]
    """Function from arrays to a message's payload and its separate buffers."""
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
    """Return the greatest number of copies in memory, without the sender's snapshot and the received message."""
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
    """Two networks on this loop; the second one sends the arrays back."""

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
    """The results of one encoding at one size."""

    encoding: str
    shard_bytes: int
    milliseconds: float
    copies: int
    frames: int
    read_only: bool


async def measure(rounds: int, sizes: Sequence[int] = SHARD_BYTES) -> list[Row]:
    """Measure all encodings at all sizes, in turn within each round; times are medians of the rounds."""
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
                Random(number).shuffle(order)  # so that an encoding does not always find the same one's memory
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


NAME, COPIES, FRAMES = "small buffers", "copies of small buffers", "frames of small buffers"


def samples(system: str, size: Size) -> Iterator[Sample]:
    """Yield the samples of all encodings, each as a system of its own."""
    sizes = size.pick(SHARD_BYTES, SHARD_BYTES[::3], SHARD_BYTES[-1:])
    for _ in range(size.pick(1, 2, 1)):
        for row in _run(measure(size.pick(31, 7, 1), sizes)):
            kibibytes = row.shard_bytes / 1024
            yield Sample(NAME, "2 MiB there and back", row.milliseconds, kibibytes, row.encoding)
            yield Sample(COPIES, "one way", row.copies, kibibytes, row.encoding)
            yield Sample(FRAMES, "one way", row.frames, kibibytes, row.encoding)


def _run(rows: Coroutine[Any, Any, list[Row]]) -> list[Row]:
    try:
        import uvloop
    except ImportError:
        return asyncio.run(rows)
    return uvloop.run(rows)


DOCUMENT = Document(
    "Speed up network transfer for small buffers (Dask, pull request 8318)",
    "crusaderky, 2023: a message of 2 MiB, or one array, between two ends on one event loop, by TCP",
    parts=(Part(NAME, (MINRAY,), samples, {Size.FULL: 15, Size.QUICK: 5, Size.TINY: 3}),),
    tables=(
        Table(
            NAME,
            "A message of many arrays, by the size of one",
            "ms",
            axis="KiB",
            original="From 64 to 128 KiB on, encodings that do not copy are fastest; below, one stream with all in it.",
        ),
        Table(
            COPIES,
            "Copies of the arrays' bytes, one way",
            "",
            axis="KiB",
            original="Arrays 0, opaque arrays 0, bytes 2, list of bytes 3, opaque bytes 4 (the sender's snapshot included).",
        ),
        Table(
            FRAMES,
            "Frames, one way",
            "",
            axis="KiB",
            original="Of arrays of 2 KiB: 802 buffers for arrays, opaque arrays and list of bytes, 2 otherwise.",
        ),
    ),
)
