"""How a value lies in the arena: any pieces come back, where they are well aligned, and damage is noticed."""

from __future__ import annotations

import struct
import weakref
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.object_store import layout
from minray.object_store.allocator import ALIGNMENT
from minray.platform.storage.copier import copy_in_parts

pieces_of_any_size = st.lists(st.binary(max_size=200), max_size=12)


def written(pieces: list[bytes], around: int = 0) -> bytearray:
    """Bytes that ``write`` leaves. Memory of others around them must not change."""
    size = layout.stored_size([len(piece) for piece in pieces])
    arena = bytearray(b"\xaa" * (size + 2 * around))
    layout.write(memoryview(arena)[around : around + size], pieces, copy_in_parts)
    assert arena[:around] == arena[around + size :] == b"\xaa" * around
    return arena[around : around + size]


@given(pieces_of_any_size)
def test_any_pieces_come_back(pieces: list[bytes]) -> None:
    stored = written(pieces, around=64)
    assert [bytes(piece) for piece in layout.read(memoryview(stored))] == pieces


@given(pieces_of_any_size)
def test_pieces_begin_at_multiples_of_the_alignment_and_are_not_copied(pieces: list[bytes]) -> None:
    stored = written(pieces)
    for piece in layout.read(memoryview(stored).toreadonly()):
        assert piece.readonly
        if piece:
            assert (_address(piece) - _address(memoryview(stored))) % ALIGNMENT == 0


def _address(view: memoryview) -> int:
    import numpy as np

    return int(np.frombuffer(view, np.uint8).ctypes.data)


def test_no_pieces_and_empty_ones() -> None:
    for pieces in ([], [b""], [b"", b"", b"x", b""]):
        assert layout.read(memoryview(written(pieces))) == pieces


def test_pieces_may_be_views_of_anything_contiguous() -> None:
    import numpy as np

    numbers = np.arange(6, dtype=np.int32).reshape(2, 3)
    target = bytearray(layout.stored_size([24]))
    layout.write(memoryview(target), [memoryview(numbers)], copy_in_parts)
    assert layout.read(memoryview(target)) == [numbers.tobytes()]


@given(pieces_of_any_size.filter(bool), st.data())
def test_what_is_cut_short_is_damaged(pieces: list[bytes], data: st.DataObject) -> None:
    stored = written(pieces)
    cut = memoryview(stored)[: data.draw(st.integers(0, len(stored) - 1))]
    with pytest.raises(ValueError, match="damaged"):
        layout.read(cut)


@given(st.binary(max_size=300), st.integers(0, 300))
def test_no_bytes_make_it_read_beyond_its_memory(noise: bytes, around: int) -> None:
    """Noise, which may have a head by chance: it is refused, or all pieces lie inside."""
    arena = memoryview(bytes(around) + noise + bytes(around))
    source = arena[around : around + len(noise)]
    try:
        pieces = layout.read(source)
    except ValueError:
        return
    count = struct.unpack_from("<I", source)[0]
    sizes = struct.unpack_from(f"<{count}Q", source, 4)
    assert [len(piece) for piece in pieces] == list(sizes)


@pytest.mark.parametrize(
    "head",
    [
        struct.pack("<I", 0xFFFFFFFF),
        struct.pack("<IQ", 1, 0xFFFFFFFFFFFFFFFF),
        struct.pack("<I9Q", 9, *[1 << 63] * 9),
        struct.pack("<IQ", 1, 89),
    ],
)
def test_heads_that_promise_too_much(head: bytes) -> None:
    with pytest.raises(ValueError, match="damaged"):
        layout.read(memoryview(head.ljust(152, b"\0")))


# --- views that tell when they go


class Reader:
    """Hands out views, and hears of their end."""

    def __init__(self) -> None:
        self.gone: list[str] = []

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        callback(*args)

    def on_gone(self, name: str) -> None:
        self.gone.append(name)


def test_g61_it_is_told_once_that_a_view_and_all_that_were_made_of_it_have_gone() -> None:
    reader = Reader()
    view = layout.lasting_view(b"0123456789", 2, 5, reader.post, reader.on_gone, "a view")
    part = view[1:3]
    assert (bytes(view), bytes(part), view.readonly) == (b"23456", b"34", True)
    del view
    assert reader.gone == []
    del part
    assert reader.gone == ["a view"]


def test_g61_a_view_keeps_no_reader_and_may_outlive_it() -> None:
    reader = Reader()
    known = weakref.ref(reader)
    view = layout.lasting_view(b"0123456789", 2, 5, reader.post, reader.on_gone, "a view")
    del reader
    assert known() is None and bytes(view) == b"23456"
    del view
