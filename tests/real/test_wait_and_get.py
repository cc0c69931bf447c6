"""``get``, ``wait``, ``await`` and futures: time limits, order, threads, loops (G7-G9)."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any

import pytest

import minray as ray
from minray.exceptions import GetTimeoutError, RayError, RaySystemError
from tests.real.support import Files, core, echo, hold

pytestmark = pytest.mark.usefixtures("cluster")


@ray.remote
def fail() -> None:
    raise ValueError("no")


def start_slow(files: Files) -> Any:
    """A task that runs until the test ends."""
    started = files.signal("slow started")
    reference = hold.remote(started, files.signal("slow release"), "slow")
    started.wait()
    return reference


# --- G7


def test_g7_get_raises_get_timeout_error_when_the_time_is_over(files: Files) -> None:
    slow = start_slow(files)
    before = time.monotonic()
    with pytest.raises(GetTimeoutError) as caught:
        ray.get(slow, timeout=0.2)
    assert 0.2 <= time.monotonic() - before < 2
    assert isinstance(caught.value, TimeoutError) and isinstance(caught.value, RayError)


def test_g7_a_timeout_of_zero_polls(files: Files) -> None:
    slow = start_slow(files)
    ready = echo.remote(1)
    ray.wait([ready])
    assert ray.get(ready, timeout=0) == 1
    before = time.monotonic()
    with pytest.raises(GetTimeoutError):
        ray.get([ready, slow], timeout=0)
    assert time.monotonic() - before < 1


def test_g7_a_value_that_comes_in_time_is_returned(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    task = hold.remote(started, release, "in time")
    with pytest.raises(GetTimeoutError):
        ray.get(task, timeout=0.01)
    release.set()
    assert ray.get(task, timeout=30) == "in time"


def test_g7_time_outs_in_tasks(files: Files) -> None:
    slow = start_slow(files)

    @ray.remote
    def look(refs: list[Any]) -> str:
        try:
            return str(ray.get(refs[0], timeout=0.05))
        except GetTimeoutError:
            return "timed out"

    assert ray.get(look.remote([slow])) == "timed out"


# --- G8, G9


def test_parameters_have_rays_names() -> None:
    ref = ray.put(value=1)
    assert ray.wait(ray_waitables=[ref]) == ([ref], []) and ray.get(object_refs=ref) == 1
    ray.cancel(ray_waitable=echo.remote(1))
    actor = ray.remote(num_cpus=0)(type("Actor", (), {})).options(name="of a name").remote()
    assert ray.get_actor(name="of a name") == actor
    ray.kill(actor=actor)


def test_g8_wait_splits_in_input_order(files: Files) -> None:
    slow = start_slow(files)
    refs = [echo.remote(number) for number in range(5)]
    ray.get(refs)
    mixed = [refs[3], slow, refs[0], refs[4]]
    assert ray.wait(mixed, num_returns=3) == ([refs[3], refs[0], refs[4]], [slow])
    assert ray.wait(mixed, num_returns=2) == ([refs[3], refs[0]], [slow, refs[4]])
    assert ray.wait(mixed, num_returns=1) == ([refs[3]], [slow, refs[0], refs[4]])


def test_g8_without_a_timeout_exactly_num_returns_are_ready(files: Files) -> None:
    slow = start_slow(files)
    refs = [slow] + [echo.remote(number) for number in range(20)]
    for count in (1, 7, 20):
        ready, rest = ray.wait(refs, num_returns=count)
        assert len(ready) == count and len(rest) == 21 - count
        assert [reference for reference in refs if reference in set(ready)] == ready
        assert [reference for reference in refs if reference in set(rest)] == rest


def test_g8_with_a_timeout_fewer_may_be_ready(files: Files) -> None:
    slow = start_slow(files)
    ready_one = echo.remote(1)
    ray.get(ready_one)
    before = time.monotonic()
    assert ray.wait([slow, ready_one], num_returns=2, timeout=0.1) == ([ready_one], [slow])
    assert 0.1 <= time.monotonic() - before < 2
    assert ray.wait([slow], timeout=0) == ([], [slow])


def test_g8_wait_needs_no_more_than_it_asks_for(files: Files) -> None:
    release = files.signal("release")
    waiting = [hold.remote(files.signal(f"started {number}"), release, number) for number in range(2)]
    quick = echo.remote("quick")
    assert ray.wait([*waiting, ray.put("put")], num_returns=1)[0] != []
    release.set()
    ready, rest = ray.wait([*waiting, quick], num_returns=3)
    assert (ready, rest) == ([*waiting, quick], [])


def test_g8_errors_and_cancelled_tasks_are_ready(files: Files) -> None:
    slow = start_slow(files)
    failed, cancelled = fail.remote(), hold.options(resources={"none": 1}).remote(None, None)
    ray.cancel(cancelled)
    assert ray.wait([slow, failed, cancelled], num_returns=2) == ([failed, cancelled], [slow])


def test_g8_argument_errors_are_rays(files: Files) -> None:
    slow = start_slow(files)
    for wrong in (slow, (slow,), {slow}, None):
        with pytest.raises(TypeError):
            ray.wait(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        ray.wait([slow, 1])  # type: ignore[list-item]
    for arguments in ({"num_returns": 0}, {"num_returns": -1}, {"num_returns": 2}, {"timeout": -1}):
        with pytest.raises(ValueError):
            ray.wait([slow], **arguments)
    with pytest.raises(ValueError, match="unique|twice|duplicate"):
        ray.wait([slow, slow], num_returns=1)
    for number in ("one", True, 1.0):
        with pytest.raises(TypeError):
            ray.wait([slow], num_returns=number)  # type: ignore[arg-type]
    assert ray.wait([]) == ([], [])


@pytest.mark.parametrize(("timeout", "error"), [("1", TypeError), (True, TypeError), (float("nan"), ValueError)])
def test_a_timeout_is_a_number_of_seconds(files: Files, timeout: Any, error: type[Exception]) -> None:
    slow = start_slow(files)
    with pytest.raises(error, match="timeout"):
        ray.get(slow, timeout=timeout)
    with pytest.raises(error, match="timeout"):
        ray.wait([slow], timeout=timeout)
    assert ray.get(ray.put(1), timeout=float("inf")) == 1


def test_g9_what_is_ready_is_here() -> None:
    refs = [echo.remote(number) for number in range(10)]
    ready, _ = ray.wait(refs, num_returns=10)
    before = ray.get_runtime_context().rpc_counters()["requests"]
    assert ray.get(ready, timeout=0) == list(range(10))
    assert ray.get_runtime_context().rpc_counters()["requests"] == before


def test_g9_a_borrowed_reference_that_is_ready_is_here(files: Files) -> None:
    slow = start_slow(files)

    @ray.remote
    def look(refs: list[Any]) -> Any:
        ready, rest = ray.wait(refs, num_returns=2)
        return ray.get(ready, timeout=0), len(rest)

    assert ray.get(look.remote([echo.remote("a"), slow, ray.put("b")])) == (["a", "b"], 1)


def test_g8_a_borrowed_reference_is_ready_without_being_fetched(files: Files) -> None:
    slow = start_slow(files)

    @ray.remote
    def look(refs: list[Any]) -> int:
        return len(ray.wait(refs, num_returns=1, fetch_local=False)[0])

    assert ray.get(look.remote([slow, echo.remote("a")])) == 1


def test_a_loop_of_waits_over_a_reference_that_never_comes_does_not_pile_up(files: Files) -> None:
    slow = start_slow(files)
    for number in range(300):
        ready, _ = ray.wait([slow, echo.remote(number)])
        assert len(ready) == 1 and ready[0] != slow
    assert sum(map(len, core().store._waiters.values())) < 50


def test_a_thousand_references_are_waited_for_one_by_one() -> None:
    rest = [echo.remote(number) for number in range(1000)]
    values = []
    while rest:
        ready, rest = ray.wait(rest)
        values += ray.get(ready)
    assert sorted(values) == list(range(1000))


# --- wrong arguments of get and put


@pytest.mark.parametrize("wrong", [1, None, "reference", ({"a": 1},), {1: 2}])
def test_get_of_anything_but_references_is_a_value_error(wrong: object) -> None:
    with pytest.raises(ValueError):
        ray.get(wrong)  # type: ignore[call-overload]
    with pytest.raises(ValueError):
        ray.get([ray.put(1), wrong])  # type: ignore[list-item]


def test_put_of_a_reference_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        ray.put(ray.put(1))


# --- threads, futures, loops


def test_many_threads_submit_and_get_at_once() -> None:
    outcomes: dict[int, Any] = {}

    def work(number: int) -> None:
        refs = [echo.remote((number, index)) for index in range(50)]
        ready, _ = ray.wait(refs, num_returns=25)
        outcomes[number] = len(ready), ray.get(refs), ray.get(ray.put(number))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert outcomes == {number: (25, [(number, index) for index in range(50)], number) for number in range(20)}


def test_threads_of_a_task_may_submit_and_get() -> None:
    @ray.remote
    def work() -> list[Any]:
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            return list(pool.map(lambda number: ray.get(echo.remote(number)), range(8)))

    assert ray.get(work.remote()) == list(range(8))


def test_a_reference_is_awaited_in_any_loop(files: Files) -> None:
    slow = start_slow(files)

    async def main() -> Any:
        one, many = await echo.remote(1), await asyncio.gather(*[echo.remote(number) for number in range(10)])
        with pytest.raises(ValueError, match="no"):
            await fail.remote()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(slow.as_future(), 0.05)
        first, _ = await asyncio.wait(
            [asyncio.ensure_future(reference.as_future()) for reference in (slow, echo.remote("first"))],
            return_when=asyncio.FIRST_COMPLETED,
        )
        return one, many, {future.result() for future in first}

    assert asyncio.run(main()) == (1, list(range(10)), {"first"})


def test_get_inside_a_running_loop_blocks_it_and_works() -> None:
    async def main() -> Any:
        return ray.get([echo.remote(1), ray.put(2)]), ray.wait([echo.remote(3)])[1]

    assert asyncio.run(main()) == ([1, 2], [])


def test_a_task_may_run_a_loop() -> None:
    @ray.remote
    def work() -> Any:
        async def main() -> Any:
            return await asyncio.gather(*[echo.remote(number) for number in range(5)])

        return asyncio.run(main())

    assert ray.get(work.remote()) == list(range(5))


def test_futures_give_values_and_errors(files: Files) -> None:
    slow = start_slow(files)
    future, failed, never = echo.remote(1).future(), fail.remote().future(), slow.future()
    assert isinstance(future, concurrent.futures.Future) and future.result(30) == 1
    with pytest.raises(ValueError, match="no"):
        failed.result(30)
    assert not never.done() and ray.put(2).future().result(30) == 2
    done, _ = concurrent.futures.wait([never, future], return_when=concurrent.futures.FIRST_COMPLETED)
    assert done == {future}


def test_a_future_that_is_cancelled_cancels_nothing_else(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    task = hold.remote(started, release, "value")
    future = task.future()
    assert future.cancel()
    release.set()
    assert ray.get(task) == "value"


def test_a_future_keeps_its_object() -> None:
    futures = [echo.remote(number).future() for number in range(20)]
    assert [future.result(30) for future in futures] == list(range(20))


# --- bugs of ours


@pytest.mark.parametrize(
    ("part", "method", "ask"),
    [
        ("waiting", "begin_wait", lambda slow: ray.get(slow)),
        ("waiting", "begin_wait", lambda slow: ray.wait([slow])),
        ("waiting", "begin_wait", lambda slow: slow.future().result(30)),
        ("waiting", "begin_wait", lambda slow: asyncio.run(awaited(slow))),
        ("provider._client", "create", lambda _: ray.put(b"." * 1_000_000)),
        ("provider", "fetch", lambda _: ray.get(ray.put(b"." * 1_000_000))),
        ("submission", "hold_arguments", lambda _: ray.get(echo.remote(1))),
        ("submission", "hold_arguments", lambda _: ray.get(next(count.remote()))),
    ],
)
def test_a_caller_that_waits_is_told_of_a_bug_of_minray(
    part: str,
    method: str,
    ask: Callable[[object], object],
    files: Files,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A caller that waits for another value does not hear of it."""

    def fail(*_args: object) -> None:
        raise AssertionError("a bug")

    beside = echo.remote("beside").future()
    ray.get(echo.remote(1))  # The loop has heard of the other one.
    slow = start_slow(files)
    with monkeypatch.context() as broken:
        broken.setattr(attrgetter(part)(core()), method, fail)
        with pytest.raises(RaySystemError, match="minray itself has failed: AssertionError: a bug"):
            ask(slow)
    assert beside.result(30) == "beside" and ray.get(echo.remote(1)) == 1
    assert "a bug" in caplog.text
    caplog.clear()  # What has been logged keeps the frames that it has passed.


async def awaited(reference: Any) -> Any:
    return await reference


@ray.remote
def count() -> Iterator[int]:
    yield 1
