"""An executor over the cluster does what programs expect of those of ``concurrent.futures``."""

from __future__ import annotations

import concurrent.futures
import gc
import os
import sys
import threading
import weakref
from concurrent.futures import FIRST_COMPLETED, FIRST_EXCEPTION, Future, as_completed, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

import dask
import dask.base
import numpy as np
import pytest

import minray
from minray.exceptions import ActorDiedError
from minray.util import Executor
from minray.util.state import list_actors
from tests.helpers import wait_for_condition, without_garbage_collection
from tests.real.conftest import CPUS
from tests.real.support import Files, Signal, hold, is_alive, run_driver

pytestmark = pytest.mark.usefixtures("cluster")


def release_later(started: Signal, release: Signal, result: object = None) -> object:
    started.set()
    release.wait()
    return result


def fail(number: int) -> int:
    raise KeyError(number)


def divide(numerator: int, denominator: int) -> float:
    return numerator / denominator


class Blocked:
    """An executor of one worker, which is busy until released."""

    def __init__(self, files: Files) -> None:
        self.executor = Executor(1)
        self.started, self.release = files.signal("started"), files.signal("release")
        self.running = self.executor.submit(release_later, self.started, self.release, "released")
        self.started.wait()


@pytest.fixture
def blocked(files: Files) -> Blocked:
    return Blocked(files)


# -- submit


def test_a_call_runs_in_another_process_with_its_arguments() -> None:
    with Executor(2) as executor:
        assert executor.submit(divide, 6, denominator=3).result() == 2
        assert executor.submit(os.getpid).result() != os.getpid()
        captured = 10
        assert executor.submit(lambda x: x + captured, 1).result() == 11
        names: Any = executor.submit(lambda **names: names, fn=1, self=2, function=3)
        assert names.result() == {"fn": 1, "self": 2, "function": 3}


def test_calls_run_beside_each_other_in_as_many_processes_as_there_are_workers(files: Files) -> None:
    with Executor(2) as executor:
        signals = [files.signal(f"{number}") for number in range(2)]
        crossed = [executor.submit(release_later, signals[0], signals[1]), executor.submit(release_later, *signals[::-1])]
        wait(crossed)
        assert len(set(executor.map(lambda _: os.getpid(), range(20)))) <= 2


def test_by_default_there_is_a_worker_for_each_cpu(files: Files) -> None:
    with Executor() as executor:
        started = [files.signal(f"{number}") for number in range(3)]
        futures = [executor.submit(release_later, signal, files.signal("go")) for signal in started]
        for signal in started[:2]:
            signal.wait()
        assert not futures[2].running() and [future.running() for future in futures[:2]] == [True, True]
        files.signal("go").set()


@pytest.mark.parametrize(("asked", "number"), [(None, CPUS), (CPUS + 3, CPUS + 3)])
def test_dask_gives_each_worker_a_task(asked: int | None, number: int) -> None:
    """Dask reads the number where the standard library's executors have it; else it takes that of this machine's CPUs."""
    with Executor(asked) as executor:
        assert dask.base.get_scheduler(scheduler=executor).args[1] == number


def test_a_reference_among_the_arguments_arrives_as_its_value() -> None:
    with Executor(1) as executor:
        assert executor.submit(divide, minray.put(8), denominator=minray.put(2)).result() == 4


@pytest.mark.parametrize("number", [0, -1])
def test_numbers_that_make_no_sense(number: int) -> None:
    with pytest.raises(ValueError, match="max_workers must be greater than 0"):
        Executor(number)
    with pytest.raises(ValueError, match="max_tasks_per_child must be greater than 0"):
        Executor(max_tasks_per_child=number)
    with Executor(1) as executor, pytest.raises(ValueError, match="chunksize must be greater than 0"):
        executor.map(abs, [1], chunksize=number)
    not_callable: Any = 3
    with pytest.raises(TypeError, match="initializer must be callable"):
        Executor(initializer=not_callable)


def test_numbers_that_are_no_integers() -> None:
    one_and_a_half: Any = 1.5
    for name in ("max_workers", "max_tasks_per_child"):
        with pytest.raises(TypeError, match=f"{name} must be an integer, but is 1.5"):
            Executor(**{name: one_and_a_half})
    with Executor(1) as executor, pytest.raises(TypeError, match="chunksize must be an integer"):
        executor.map(abs, [1], chunksize=one_and_a_half)
    assert list(Executor(np.int64(1)).map(abs, [-1])) == [1]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_a_generator_is_no_result(count: int) -> None:
    with Executor(1) as executor, pytest.raises(TypeError, match="cannot pickle 'generator' object"):
        executor.submit(lambda: (number for number in range(count))).result()


def test_a_callback_that_exits_ends_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    def leave(_: object) -> None:
        raise SystemExit(3)

    with Executor(1) as executor:
        for leaving in (executor.submit(divide, 6, 2), executor.submit(divide, 6, 0)):
            leaving.add_done_callback(leave)
        assert executor.submit(divide, 8, 2).result(timeout=30) == 4
    assert caplog.text.count("SystemExit: 3") == 2
    caplog.clear()  # What was raised leads to references.


# -- exceptions


def test_an_exception_is_the_one_that_was_raised() -> None:
    with Executor(1) as executor:
        error = executor.submit(fail, 3).exception()
        assert type(error) is KeyError and error.args == (3,)
        assert error.__traceback__ is not None  # it leads to the remote frames
        assert executor.submit(abs, -1).result() == 1


def test_a_call_that_exits_has_raised_system_exit() -> None:
    with Executor(1) as executor:
        pid = executor.submit(os.getpid).result()
        error = executor.submit(sys.exit, 3).exception()
        assert isinstance(error, SystemExit) and error.code == 3
        assert executor.submit(os.getpid).result() == pid


def test_arguments_and_results_that_cannot_be_pickled_fail_their_call_alone() -> None:
    with Executor(1) as executor:
        assert isinstance(executor.submit(abs, threading.Lock()).exception(), TypeError)
        assert isinstance(executor.submit(threading.Lock).exception(), TypeError)
        assert executor.submit(abs, -1).result() == 1


class Exits:
    def __reduce__(self) -> Any:
        sys.exit(3)


def test_arguments_that_exit_when_they_are_pickled_fail_their_call_alone() -> None:
    with Executor(1) as executor:
        error = executor.submit(abs, Exits()).exception(timeout=30)
        assert isinstance(error, SystemExit) and error.code == 3
        assert executor.submit(abs, -1).result(timeout=30) == 1


def test_the_death_of_another_actor_is_not_that_of_a_worker() -> None:
    @minray.remote
    class Other:
        def work(self) -> None: ...

    other = Other.remote()
    minray.get(other.work.remote())
    minray.kill(other)
    with Executor(1) as executor:
        assert isinstance(executor.submit(minray.get, [other.work.remote()]).exception(), ActorDiedError)
        assert isinstance(executor.submit(abs, other.work.remote()).exception(), ActorDiedError)
        assert executor.submit(abs, -1).result() == 1


def test_a_workers_death_breaks_the_executor(files: Files) -> None:
    with Executor(2) as executor:
        other = executor.submit(release_later, files.signal("started"), files.signal("never"))
        files.signal("started").wait()
        dying = executor.submit(os._exit, 3)
        waiting = executor.submit(abs, -1)
        for future in (dying, other, waiting):
            error = future.exception()
            assert isinstance(error, BrokenProcessPool) and "exit code 3" in str(error)
        with pytest.raises(concurrent.futures.BrokenExecutor, match="exit code 3"):
            executor.submit(abs, -1)


def test_workers_that_may_restart_do_not_break_it(files: Files) -> None:
    journal = files.journal()

    def die_once() -> int:
        return journal.note() if journal.lines() else os._exit(journal.note())

    with Executor(1, remote_args={"max_restarts": 1, "max_task_retries": 1}) as executor:
        assert executor.submit(die_once).result() == 2


# -- initializers


def test_each_worker_is_initialized_once_before_its_first_call(files: Files) -> None:
    journal = files.journal()

    def initialize(value: str) -> None:
        os.environ["INITIALIZED"] = value
        journal.note(os.getpid())

    with Executor(2, initializer=initialize, initargs=("yes",)) as executor:
        assert set(executor.map(lambda _: os.environ["INITIALIZED"], range(10))) == {"yes"}
    assert len(journal.lines()) == len(set(journal.lines())) <= 2


def test_an_initializer_that_raises_breaks_the_executor() -> None:
    with Executor(2, initializer=fail, initargs=(7,)) as executor:
        futures = [executor.submit(abs, -1) for _ in range(3)]
        for future in futures:
            with pytest.raises(BrokenProcessPool, match="KeyError: 7"):
                future.result()
        with pytest.raises(BrokenProcessPool):
            executor.submit(abs, -1)


def test_a_worker_ends_after_so_many_calls() -> None:
    with Executor(1, max_tasks_per_child=2) as executor:
        pids = list(executor.map(lambda _: os.getpid(), range(5)))
    assert [pids.count(pid) for pid in dict.fromkeys(pids)] == [2, 2, 1]


# -- map


def test_map_keeps_the_order_whatever_the_chunks() -> None:
    with Executor(2) as executor:
        for chunksize in (1, 3, 100):
            results = executor.map(divide, range(10), range(1, 100), chunksize=chunksize)
            assert list(results) == [number / (number + 1) for number in range(10)]
        assert list(executor.map(abs, [])) == []


def test_map_raises_where_the_result_would_be() -> None:
    with Executor(2) as executor:
        results = executor.map(divide, [1, 1, 1], [1, 0, 1])
        assert next(results) == 1
        with pytest.raises(ZeroDivisionError):
            next(results)
        with pytest.raises(StopIteration):
            next(results)


def test_map_times_out(blocked: Blocked) -> None:
    results = blocked.executor.map(abs, [1], timeout=0.01)
    with pytest.raises(TimeoutError):
        next(results)
    blocked.release.set()
    blocked.executor.shutdown()


def test_what_map_returns_can_be_closed() -> None:
    with Executor(1) as executor:
        results = executor.map(abs, [-1, -2, -3])
        assert next(results) == 1
        results.close()  # type: ignore[attr-defined]
        assert list(results) == []


def test_a_map_that_is_given_up_cancels_what_waits(blocked: Blocked) -> None:
    arguments = [Kept() for _ in range(3)]
    gone = [weakref.ref(argument) for argument in arguments]
    results = blocked.executor.map(id, arguments)
    del arguments, results
    blocked.release.set()
    blocked.executor.shutdown()
    gc.collect()
    assert [argument() for argument in gone] == [None] * 3


class Kept:
    """An object that somebody may keep alive."""


def make(_: object) -> Kept:
    return Kept()


@pytest.mark.parametrize("chunksize", [1, 3])
def test_map_keeps_no_result_that_it_has_handed_over(chunksize: int) -> None:
    with without_garbage_collection(), Executor(1) as executor:
        results = executor.map(make, range(6), chunksize=chunksize)
        for made in results:
            gone = weakref.ref(made)
            del made
            wait_for_condition(lambda gone=gone: gone() is None)


# -- futures


def test_what_waits_can_be_cancelled_and_what_runs_cannot(blocked: Blocked) -> None:
    waiting = [blocked.executor.submit(abs, -1) for _ in range(2)]
    assert blocked.running.running() and not blocked.running.cancel()
    assert not waiting[0].running() and waiting[0].cancel() and waiting[0].cancelled()
    blocked.release.set()
    assert blocked.running.result() == "released" and waiting[1].result() == 1
    with pytest.raises(concurrent.futures.CancelledError):
        waiting[0].result()
    blocked.executor.shutdown()


def test_a_worker_for_which_there_is_no_room_keeps_no_call_waiting() -> None:
    with Executor(CPUS + 1, remote_args={"num_cpus": 1}) as executor:
        assert list(executor.map(abs, range(-20, 0))) == list(range(20, 0, -1))


def test_a_call_for_which_no_worker_has_room_can_be_cancelled_and_shutdown_does_not_wait_for_the_worker() -> None:
    with Executor(1, remote_args={"num_cpus": CPUS + 1}) as executor:
        futures = [executor.submit(abs, -1) for _ in range(2)]
        futures[0].cancel()
        assert wait(futures, timeout=30, return_when=FIRST_COMPLETED).done == {futures[0]}
        assert futures[1].cancel()
    assert all(future.cancelled() for future in futures)
    wait_for_condition(lambda: all(actor.state == "DEAD" for actor in list_actors()))


def test_a_result_that_is_late_times_out(blocked: Blocked) -> None:
    with pytest.raises(TimeoutError):
        blocked.running.result(timeout=0.01)
    with pytest.raises(TimeoutError):
        blocked.running.exception(timeout=0.01)
    blocked.release.set()
    assert blocked.running.result(timeout=30) == "released"
    blocked.executor.shutdown()


def test_callbacks_are_called_once_also_after_the_end() -> None:
    called: list[Future[int]] = []
    with Executor(1) as executor:
        future = executor.submit(abs, -1)
        future.add_done_callback(called.append)
        future.result()
    future.add_done_callback(called.append)
    assert called == [future, future]


def test_wait_and_as_completed(files: Files) -> None:
    with Executor(2) as executor:
        held = executor.submit(release_later, files.signal("started"), files.signal("go"), "held")
        quick = executor.submit(abs, -1)
        assert wait([held, quick], return_when=FIRST_COMPLETED).done == {quick}
        failing = executor.submit(fail, 1)
        assert wait([held, failing], return_when=FIRST_EXCEPTION).not_done == {held}
        assert wait([held], timeout=0.01).not_done == {held}
        order = as_completed([held, quick, failing])
        assert {next(order), next(order)} == {quick, failing}
        files.signal("go").set()
        assert next(order) is held
        with pytest.raises(StopIteration):
            next(order)


# -- the end


def test_shutdown_waits_for_all_and_takes_no_more(blocked: Blocked) -> None:
    waiting = blocked.executor.submit(abs, -1)
    blocked.executor.shutdown(wait=False)
    with pytest.raises(RuntimeError, match="shut down"):
        blocked.executor.submit(abs, -1)
    assert not waiting.done()
    blocked.release.set()
    blocked.executor.shutdown()
    assert blocked.running.done() and waiting.done() and waiting.result() == 1
    blocked.executor.shutdown()


def test_shutdown_may_cancel_what_waits(blocked: Blocked) -> None:
    waiting = [blocked.executor.submit(abs, -1) for _ in range(3)]
    blocked.executor.shutdown(wait=False, cancel_futures=True)
    assert wait(waiting, timeout=30).done == set(waiting) and all(future.cancelled() for future in waiting)
    blocked.release.set()
    assert blocked.running.result() == "released"
    blocked.executor.shutdown()


def test_the_workers_end_with_their_executor() -> None:
    with Executor(2) as executor:
        pids = set(executor.map(lambda _: os.getpid(), range(4)))
    wait_for_condition(lambda: not any(is_alive(pid) for pid in pids))


def test_an_executor_that_nobody_refers_to_finishes_its_work_and_ends(blocked: Blocked) -> None:
    waiting = blocked.executor.submit(os.getpid)
    del blocked.executor
    gc.collect()
    blocked.release.set()
    pid = waiting.result()
    wait_for_condition(lambda: not is_alive(pid))


def test_an_executor_that_has_ended_is_not_kept_by_its_own_thread() -> None:
    with without_garbage_collection():
        executor = Executor(1)
        gone = weakref.ref(executor._crew._foreman)
        executor.shutdown()
        del executor
        wait_for_condition(lambda: gone() is None)


def test_tasks_run_beside_an_executor_and_inside_it() -> None:
    def inside() -> int:
        return sum(minray.get([minray.remote(abs).remote(-number) for number in range(4)]))

    with Executor(2) as executor:
        futures = [executor.submit(inside) for _ in range(4)]
        assert minray.get(minray.remote(abs).remote(-1)) == 1
        assert [future.result() for future in futures] == [6] * 4


def test_an_executor_inside_a_task() -> None:
    @minray.remote
    def square(numbers: list[int]) -> list[int]:
        with Executor(1) as executor:
            return list(executor.map(lambda number: number * number, numbers))

    assert minray.get(square.remote([1, 2, 3])) == [1, 4, 9]


def test_without_a_cluster_it_starts_one_and_what_was_submitted_is_done_when_the_program_ends() -> None:
    done = run_driver(
        """
        from minray.util import Executor
        executor = Executor(1)
        for number in range(3):
            executor.submit(abs, number).add_done_callback(lambda future: print(future.result(), flush=True))
        """
    )
    assert (done.returncode, done.stdout) == (0, "0\n1\n2\n"), done.stderr


def test_when_the_cluster_ends_first_nobody_waits_for_ever() -> None:
    done = run_driver(
        """
        import time
        from minray.util import Executor
        ray.init(num_cpus=1, logging_level="ERROR")
        with Executor() as executor:
            running, waiting = executor.submit(time.sleep, 1000), executor.submit(abs, 1)
            while not running.running():
                pass
            ray.shutdown()
            print(type(running.exception()).__name__, type(waiting.exception()).__name__)
        """
    )
    assert done.returncode == 0 and len(done.stdout.split()) == 2, done.stderr


def test_a_task_that_holds_all_cpus_does_not_keep_workers_from_their_calls(files: Files) -> None:
    with Executor(1) as executor:
        executor.submit(abs, 1).result()
        held = [hold.remote(files.signal(f"{number}"), files.signal("go")) for number in range(2)]
        for number in range(2):
            files.signal(f"{number}").wait()
        assert executor.submit(abs, -1).result() == 1
        files.signal("go").set()
        minray.get(held)
