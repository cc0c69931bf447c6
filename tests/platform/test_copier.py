"""Copies of large values: all bytes arrive with any number of threads, and an interrupt leaves no thread that writes."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from minray.platform.storage import copier
from minray.platform.storage.copier import PAGE_BYTES, PART_BYTES, Copier, copy_in_parts


def numbers(size: int) -> Any:
    return np.random.default_rng(0).integers(0, 255, size, np.uint8)


@pytest.mark.parametrize("parts", [0, 1, 2, 3, 7])
@pytest.mark.parametrize("size", [1, PAGE_BYTES, 10 * PAGE_BYTES - 1, 10 * PAGE_BYTES + 1, 1_000_003])
def test_all_bytes_arrive_in_any_number_of_parts(parts: int, size: int) -> None:
    source, target = numbers(size), np.full(size + 2, 255, np.uint8)
    copy_in_parts(target[1:-1].data, source.data, parts)
    assert np.array_equal(target[1:-1], source) and target[0] == target[-1] == 255


def test_the_source_may_be_of_any_type() -> None:
    source = np.arange(600.0).reshape(20, 30)
    target = np.empty(source.nbytes, np.uint8)
    copy_in_parts(target.data, source.data, 2)
    assert target.tobytes() == source.tobytes()


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of parts in which values are copied."""
    made: list[int] = []
    monkeypatch.setattr(copier, "copy_in_parts", lambda target, source, parts: made.append(parts))
    return made


def copied(copier: Copier, parts: list[int], size: int) -> int:
    """Return in how many parts a value of this size is copied. None of its pages are touched."""
    memory = np.empty(size, np.uint8).data
    copier.copy(memory, memory)
    return parts[-1]


def test_small_values_and_those_of_small_machines_are_copied_by_one_thread(
    parts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(copier, "runnable_threads", lambda: 1)
    assert copied(Copier(threads=4), parts, 2 * PART_BYTES - 1) == 1
    assert copied(Copier(cores=2), parts, 8 * PART_BYTES) == 1
    assert copied(Copier(cores=3), parts, 8 * PART_BYTES) == 1


@pytest.mark.parametrize(
    ("cores", "running", "threads"), [(4, 1, 2), (16, 1, 8), (16, 13, 4), (16, 40, 1), (64, 1, 8), (64, 0, 1)]
)
def test_a_large_value_is_copied_with_the_cores_that_are_free(
    parts: list[int], monkeypatch: pytest.MonkeyPatch, cores: int, running: int, threads: int
) -> None:
    """0 running: the system does not say."""
    monkeypatch.setattr(copier, "runnable_threads", lambda: running)
    assert copied(Copier(cores=cores), parts, 16 * PART_BYTES) == threads


def test_the_number_of_threads_may_be_given_but_each_has_a_part_that_is_worth_it(parts: list[int]) -> None:
    assert copied(Copier(threads=3), parts, 16 * PART_BYTES) == 3
    assert copied(Copier(threads=99), parts, 5 * PART_BYTES) == 5


def test_without_further_threads_the_calling_one_copies_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    source, target = numbers(100_000), np.zeros(100_000, np.uint8)
    copy_in_parts(target.data, source.data, 4)
    assert np.array_equal(target, source)


def test_an_interrupt_waits_for_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interrupted ``put`` gives its memory back, and another value may get it: no thread may write there any more."""
    is_interrupted = threading.Event()
    copyto = np.copyto
    ended = []

    def copy(target: Any, source: Any) -> None:
        if threading.current_thread() is threading.main_thread():
            is_interrupted.set()
            raise KeyboardInterrupt
        is_interrupted.wait()
        copyto(target, source)
        ended.append(target)

    monkeypatch.setattr(np, "copyto", copy)
    with pytest.raises(KeyboardInterrupt):
        copy_in_parts(np.zeros(100_000, np.uint8).data, numbers(100_000).data, 4)
    assert len(ended) == 3
