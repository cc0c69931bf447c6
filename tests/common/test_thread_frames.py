"""The frames of the other threads, and that looking at them keeps nothing alive."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator

import pytest

from minray.common.thread_frames import frames_of_other_threads


class Value:
    """A value that a weak reference can refer to, as it cannot to a list."""


@pytest.fixture
def no_collection() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def test_another_thread_has_its_innermost_frame_and_the_caller_has_none() -> None:
    arrived, go = threading.Event(), threading.Event()

    def block() -> None:
        arrived.set()
        go.wait()

    thread = threading.Thread(target=block)
    thread.start()
    assert arrived.wait(30)
    frames = frames_of_other_threads()
    own, frame, functions = threading.get_ident(), frames.pop(thread.ident or 0), []
    go.set()
    thread.join()
    while frame is not None:
        functions.append(frame.f_code)
        frame = frame.f_back
    assert own not in frames and block.__code__ in functions


def test_the_variables_of_one_that_looks_are_freed_when_it_returns(no_collection: None) -> None:
    def look() -> weakref.ref[Value]:
        value, frames = Value(), frames_of_other_threads()
        assert isinstance(frames, dict)
        return weakref.ref(value)

    assert look()() is None


def test_the_variables_of_a_thread_that_was_looked_at_are_freed_when_it_returns(no_collection: None) -> None:
    arrived, go, seen = threading.Event(), threading.Event(), []

    def block() -> None:
        value = Value()
        seen.append(weakref.ref(value))
        arrived.set()
        go.wait()

    thread = threading.Thread(target=block)
    thread.start()
    assert arrived.wait(30)

    def look() -> None:
        frames = frames_of_other_threads()
        go.set()
        thread.join()
        assert frames

    look()
    assert seen[0]() is None
