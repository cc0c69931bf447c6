"""Cost of a message of many arrays, by their size: minray's encoding beside the others of its benchmark."""

from __future__ import annotations

import asyncio

from benchmarks.small_buffers import ENCODINGS, TOTAL_BYTES, measure
from minray.values.serialization import SHELF_BELOW

SIZES = (SHELF_BELOW // 4, SHELF_BELOW // 2, SHELF_BELOW, 8 * SHELF_BELOW, 128 * SHELF_BELOW, 2 * TOTAL_BYTES)


def test_no_encoding_makes_fewer_copies_and_none_of_those_fewer_frames() -> None:
    rows = asyncio.run(measure(1, SIZES))
    for size in SIZES:
        costs = {row.encoding: (row.copies, row.frames) for row in rows if row.shard_bytes == size}
        assert costs.keys() == ENCODINGS.keys()
        assert costs["minray"] == min(costs.values()) and costs["minray"][0] == 0


def test_small_arrays_travel_in_three_frames_whatever_their_number() -> None:
    """The message, and 2 MiB in chunks of 1 MiB."""
    rows = asyncio.run(measure(1, SIZES[:2]))
    assert [row.frames for row in rows if row.encoding == "minray"] == [3, 3]


def test_g13_arrays_come_back_read_only_at_every_size() -> None:
    rows = asyncio.run(measure(1, SIZES))
    assert all(row.read_only for row in rows if row.encoding == "minray")
    assert not any(row.read_only for row in rows if row.encoding == "bytes")
