"""Tracebacks that users see of their own mistakes: their lines, and at most the entrance to minray."""

from __future__ import annotations

import signal
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any, NoReturn

import pytest

import minray as ray
from minray.errors.tracebacks import hides_from_pytest, is_runtime
from minray.exceptions import GetTimeoutError, RayTaskError
from tests.helpers import wait_for_condition
from tests.real.support import Files, hold

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def fail() -> NoReturn:
    raise KeyError("lost")


@ray.remote
class Shop:
    def sell(self) -> NoReturn:
        raise KeyError("lost")


def frames_of_minray(error: BaseException) -> list[str]:
    return [frame.name for frame in traceback.extract_tb(error.__traceback__) if is_runtime(frame.filename)]


@pytest.mark.parametrize("makes_list", [False, True], ids=["one", "list"])
def test_the_error_of_a_task_passes_one_frame_of_minray(makes_list: bool) -> None:
    ref = fail.remote()
    with pytest.raises(RayTaskError) as raised:
        ray.get([ref] if makes_list else ref)
    assert frames_of_minray(raised.value) == ["get"]


def test_the_error_of_a_timeout_passes_one_frame_of_minray(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    ref = hold.remote(started, release)
    with pytest.raises(GetTimeoutError) as raised:
        ray.get(ref, timeout=0)
    assert frames_of_minray(raised.value) == ["get"]


@pytest.mark.parametrize("wait", [ray.get, lambda ref: ray.wait([ref])], ids=["get", "wait"])
def test_an_interrupt_of_a_wait_passes_one_frame_of_minray(files: Files, wait: Callable[[Any], Any]) -> None:
    ref = hold.remote(files.signal("started"), files.signal("release"))
    main = threading.get_ident()

    def is_waiting() -> bool:
        return any(entry.name == "_wait" for entry in traceback.extract_stack(sys._current_frames()[main]))

    def interrupt() -> None:
        wait_for_condition(is_waiting)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt) as raised:
        wait(ref)
    thread.join()
    assert len(frames_of_minray(raised.value)) == 1


MISTAKES: dict[str, Callable[[], Any]] = {
    "get of a number": lambda: ray.get(5),  # type: ignore[call-overload]
    "wait for a reference": lambda: ray.wait(fail.remote()),  # type: ignore[arg-type]
    "direct call": lambda: fail(),
    "unknown option": lambda: fail.options(nope=1),
    "wrong option": lambda: fail.options(num_cpus="many"),
    "too many arguments": lambda: fail.remote(1, 2),
    "too many arguments of a constructor": lambda: Shop.remote(1),
    "too many arguments of a method": lambda: Shop.remote().sell.remote(1),
    "no such method": lambda: Shop.remote().buy.remote(),
    "no such actor": lambda: ray.get_actor("nobody"),
    "a task's error": lambda: ray.get(fail.remote()),
    "a method's error": lambda: ray.get(Shop.remote().sell.remote()),
}


@pytest.mark.parametrize("mistake", MISTAKES.values(), ids=MISTAKES)
def test_pytest_shows_no_frame_of_minray(mistake: Callable[[], Any]) -> None:
    with pytest.raises(Exception) as raised:
        mistake()
    shown = raised.traceback.filter(raised)
    assert [entry.name for entry in shown if is_runtime(str(entry.path))] == []
    assert shown[-1].path == raised.traceback[0].path


def test_pytest_shows_the_frames_of_an_assertion_that_fails_in_minray() -> None:
    with pytest.raises(AssertionError) as raised:
        raise AssertionError
    assert not hides_from_pytest(raised)
