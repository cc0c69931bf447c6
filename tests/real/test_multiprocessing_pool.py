"""A pool over the cluster does what programs expect of ``multiprocessing.Pool``, and ends where that one waits for ever."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import os
import pickle
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest

from minray.exceptions import ActorDiedError
from minray.util.multiprocessing import Pool, TimeoutError
from minray.util.state import list_actors
from tests.helpers import wait_for_condition, without_garbage_collection
from tests.real.support import Files, Signal, is_alive, run_driver

pytestmark = pytest.mark.usefixtures("cluster")


@pytest.fixture
def pool(cluster: object) -> Iterator[Pool]:
    with Pool(2) as made:
        yield made
    made.join()


def square(number: int, wait: float = 0) -> int:
    return number * number


def fail(number: int) -> int:
    raise KeyError(number)


def wait_for(signal: Signal, result: object = None) -> object:
    signal.wait()
    return result


def reciprocal(number: int) -> float:
    return 1 / number


def pid(_: object = None) -> int:
    return os.getpid()


# -- apply and map


def test_apply(pool: Pool) -> None:
    assert pool.apply(square, (5,)) == 25 and pool.apply(square, [6], {"wait": 1}) == 36
    assert pool.apply(square, (7,), kwargs={"wait": 1}) == 49 and pool.apply(square, None, {"number": 8}) == 64
    assert pool.apply_async(square, kwargs={"number": 9}).get() == 81 and pool.apply(pid, None) != os.getpid()
    with pytest.raises(KeyError):
        pool.apply(fail, (1,))


class Made:
    """A result that somebody may keep alive."""


def make(_: object) -> Made:
    return Made()


def test_a_result_goes_with_the_last_reference(pool: Pool) -> None:
    with without_garbage_collection():
        (made,) = pool.map(make, [1])
        gone = weakref.ref(made)
        del made
        wait_for_condition(lambda: gone() is None)
        failed = pool.apply_async(reciprocal, (0,))
        gone = weakref.ref(failed)
        with contextlib.suppress(ZeroDivisionError):
            failed.get()
        del failed
        wait_for_condition(lambda: gone() is None)


@pytest.mark.parametrize("chunksize", [None, 1, 20, 1000])
def test_map_and_starmap_keep_the_order(pool: Pool, chunksize: int | None) -> None:
    squares = [number * number for number in range(100)]
    assert pool.map(square, range(100), chunksize) == squares
    assert pool.map_async(square, iter(range(100)), chunksize).get() == squares
    assert pool.starmap(divmod, zip(range(10), [3] * 10, strict=True), chunksize) == [divmod(n, 3) for n in range(10)]
    assert pool.starmap_async(square, [(2, 0)], chunksize).get() == [4]


def test_nothing_to_map(pool: Pool) -> None:
    assert pool.map(square, []) == pool.starmap(square, []) == [] == list(pool.imap(square, []))
    assert pool.map_async(square, []).ready()


def test_an_error_of_a_map_is_raised_when_all_is_done(pool: Pool, files: Files) -> None:
    result = pool.map_async(lambda signal: fail(1) if signal is None else wait_for(signal), [None, files.signal()], 1)
    assert not result.ready()
    files.signal().set()
    with pytest.raises(KeyError):
        result.get()
    assert not result.successful()


# -- results


def test_a_result_that_is_not_there_yet(pool: Pool, files: Files) -> None:
    result = pool.apply_async(wait_for, (files.signal(), 7))
    with pytest.raises(multiprocessing.TimeoutError):
        result.get(timeout=0.01)
    with pytest.raises(TimeoutError):
        result.get(0)
    assert not result.ready()
    with pytest.raises(ValueError, match="not ready yet"):
        result.successful()
    result.wait(0.01)
    files.signal().set()
    assert result.get(timeout=30) == 7 and result.ready() and result.successful()


def test_callbacks_have_run_when_the_result_is_there(pool: Pool) -> None:
    results: list[Any] = []
    errors: list[BaseException] = []
    pool.apply_async(square, (3,), callback=results.append, error_callback=errors.append).get()
    pool.map_async(square, range(3), 1, results.append, errors.append).get()
    pool.starmap_async(square, [(4,)], callback=results.append).get()
    assert (results, errors) == ([9, [0, 1, 4], [16]], [])
    failing = pool.apply_async(fail, (3,), callback=results.append, error_callback=errors.append)
    failing.wait()
    assert len(results) == 3 and isinstance(errors[0], KeyError) and not failing.successful()


def test_a_callback_that_raises_is_logged_and_harms_nobody(pool: Pool, caplog: pytest.LogCaptureFixture) -> None:
    assert pool.apply_async(square, (3,), callback=fail).get() == 9
    assert "a callback of a pool has raised" in caplog.text
    caplog.clear()
    assert pool.apply(square, (4,)) == 16


@pytest.mark.parametrize("ending", [SystemExit, KeyboardInterrupt])
def test_a_callback_that_exits_ends_nothing(
    pool: Pool, ending: type[BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    def leave(_: object) -> None:
        raise ending(3)

    assert pool.apply_async(square, (3,), callback=leave).get(timeout=30) == 9
    with pytest.raises(KeyError):
        pool.apply_async(fail, (3,), error_callback=leave).get(timeout=30)
    assert pool.map_async(square, range(3)).get(timeout=30) == [0, 1, 4]
    assert caplog.text.count(f"{ending.__name__}: 3") == 2
    caplog.clear()  # What was raised leads to references.


# -- imap


def test_imap_keeps_the_order_and_imap_unordered_the_items(pool: Pool) -> None:
    for chunksize in (1, 7):
        assert list(pool.imap(square, range(30), chunksize)) == [number * number for number in range(30)]
        assert sorted(pool.imap_unordered(square, range(30), chunksize)) == [number * number for number in range(30)]


def test_imap_waits_for_the_next_one_and_imap_unordered_for_any(pool: Pool, files: Files) -> None:
    signals = [files.signal("first"), files.signal("second")]
    signals[1].set()
    unordered = pool.imap_unordered(wait_for_and_name, signals)
    assert unordered.next() == "second"
    ordered = pool.imap(wait_for_and_name, signals)
    with pytest.raises(TimeoutError):
        ordered.next(timeout=0.01)
    signals[0].set()
    assert [*ordered, *unordered] == ["first", "second", "first"]


def wait_for_and_name(signal: Signal) -> str:
    signal.wait()
    return os.path.basename(signal.path).partition(".")[0]


def test_imap_goes_on_after_an_error(pool: Pool) -> None:
    results = pool.imap(reciprocal, [1, 0, 2])
    assert next(results) == 1
    with pytest.raises(ZeroDivisionError):
        next(results)
    assert list(results) == [0.5]


@pytest.mark.parametrize("chunksize", [1, 3])
def test_imap_keeps_no_result_that_it_has_handed_over(pool: Pool, chunksize: int) -> None:
    with without_garbage_collection():
        for method in (pool.imap, pool.imap_unordered):
            for made in method(make, range(6), chunksize):
                gone = weakref.ref(made)
                del made
                wait_for_condition(lambda gone=gone: gone() is None)


def test_what_the_iterable_raises_is_raised_in_its_place(pool: Pool) -> None:
    def numbers() -> Iterator[int]:
        yield 2
        raise KeyError("no more")

    results = pool.imap(square, numbers())
    assert next(results) == 4
    with pytest.raises(KeyError, match="no more"):
        next(results)
    with pytest.raises(StopIteration):
        next(results)
    with pytest.raises(KeyError, match="no more"):
        pool.map(square, numbers())


def test_imap_reads_an_endless_iterable_only_so_far_ahead(pool: Pool, files: Files) -> None:
    read = itertools.count()
    results = pool.imap(lambda number: wait_for(files.signal("go"), number), read)
    files.signal("go").set()
    assert list(itertools.islice(results, 10)) == list(range(10))
    pool.terminate()
    with pytest.raises((ActorDiedError, RuntimeError), match="terminated|shut down"):
        for _ in results:
            pass


def test_an_iterable_may_wait_for_earlier_results(pool: Pool) -> None:
    arrived = threading.Semaphore(1)

    def numbers() -> Iterator[int]:
        for number in range(5):
            arrived.acquire()
            yield number

    found = []
    for result in pool.imap(square, numbers()):
        found.append(result)
        arrived.release()
    assert found == [0, 1, 4, 9, 16]


def test_chunks_have_a_size(pool: Pool) -> None:
    for method in (pool.map, pool.imap, pool.imap_unordered):
        with pytest.raises(ValueError, match="chunksize must be at least 1"):
            method(square, [1], 0)


# -- workers


def test_workers_are_initialized_and_replaced_after_so_many_tasks() -> None:
    def initialize(value: str) -> None:
        os.environ["INITIALIZED"] = value

    with Pool(1, initialize, ["yes"], maxtasksperchild=2) as pool:
        assert pool.map(lambda name: os.environ[name], ["INITIALIZED"] * 5, 1) == ["yes"] * 5
        pids = pool.map(pid, range(5), 1)
    assert max(pids.count(one) for one in pids) == 2 and len(set(pids)) == 3


def test_by_default_there_is_a_worker_for_each_cpu() -> None:
    with Pool() as pool:
        assert len(set(pool.map(pid, range(40), 1))) <= 2


def test_a_dead_worker_fails_its_task_and_is_replaced(pool: Pool) -> None:
    with pytest.raises(ActorDiedError, match="exit code 3"):
        pool.apply(os._exit, (3,))
    assert pool.map(square, range(5), 1) == [0, 1, 4, 9, 16]


def test_a_pool_is_made_when_its_initializers_have_run(files: Files) -> None:
    journal = files.journal()
    with Pool(3, lambda: journal.note(os.getpid())) as pool:
        assert len(set(journal.lines())) == 3
        assert set(pool.map(pid, range(9), 1)) <= set(map(int, journal.lines()))
    pool.join()


def test_an_initializer_that_raises_fails_the_pool(files: Files) -> None:
    with pytest.raises(ActorDiedError, match="KeyError: 7"):
        Pool(2, fail, (7,))
    wait_for_condition(lambda: all(actor.state == "DEAD" for actor in list_actors()))


def test_an_initializer_that_raises_later_fails_the_task(files: Files) -> None:
    journal = files.journal()

    def initialize() -> None:
        if journal.note() > 1:
            raise KeyError(7)

    with Pool(1, initialize, maxtasksperchild=1) as pool:
        assert pool.apply(square, (2,)) == 4
        with pytest.raises(ActorDiedError, match="KeyError: 7"):
            pool.apply(square, (1,))


def test_numbers_that_make_no_sense() -> None:
    for arguments in ({"processes": 0}, {"processes": 1.5}, {"maxtasksperchild": 0}):
        with pytest.raises(ValueError, match="must be a positive int"):
            Pool(**arguments)  # type: ignore[arg-type]


# -- the end


def test_the_workers_of_a_closed_pool_end_when_imap_has_fed_them() -> None:
    go_on = threading.Event()

    def numbers() -> Iterator[int]:
        yield 1
        go_on.wait(30)
        yield 2

    pool = Pool(1)
    results = pool.imap(square, numbers())
    assert next(results) == 1
    pool.close()
    go_on.set()
    assert list(results) == [4]
    wait_for_condition(lambda: all(actor.state == "DEAD" for actor in list_actors()))
    pool.join()


def test_a_closed_pool_finishes_and_takes_no_more(pool: Pool, files: Files) -> None:
    with pytest.raises(ValueError, match="still running"):
        pool.join()
    held, lazy = pool.apply_async(wait_for, (files.signal(), 7)), pool.imap(square, range(100))
    pool.close()
    for submit in (pool.apply_async, pool.map_async, pool.imap):
        with pytest.raises(ValueError, match="not running"):
            submit(square, (1,))  # type: ignore[operator]
    files.signal().set()
    pool.join()
    assert held.ready() and held.get() == 7 and len(list(lazy)) == 100


def test_terminate_ends_what_runs_and_what_waits(files: Files) -> None:
    with Pool(1) as pool:
        own = pool.apply(pid)
        results = [pool.apply_async(wait_for, (files.signal("never"),)) for _ in range(2)]
    pool.join()
    for result in results:
        with pytest.raises(ActorDiedError, match="terminated"):
            result.get(timeout=30)
    wait_for_condition(lambda: not is_alive(own))
    with pytest.raises(ValueError, match="not running"), pool:
        pass


def test_a_pool_that_nobody_has_ended_ends_with_its_program_and_finishes_nothing() -> None:
    """As in the standard library: a user who has interrupted a map gets the prompt back."""
    program = """
        from minray.util.multiprocessing import Pool
        ray.init(num_cpus=1)
        pool = Pool(1)
        results = pool.map_async(__import__("time").sleep, [600] * 3, 1)
        assert pool.imap(abs, [-1] * 3)
    """
    ended = run_driver(program, timeout_s=30)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr


def test_a_pool_whose_worker_is_not_there_yet_starts_no_cluster_when_the_program_leaves_its_own() -> None:
    ended = run_driver(
        """
        import time
        from minray.util.multiprocessing import Pool
        ray.init(num_cpus=1, logging_level="ERROR")
        pool = Pool(2, ray_remote_args={"num_cpus": 1})
        calls = [pool.apply_async(time.sleep, (1000,)) for _ in range(4)]
        while not ray.available_resources().get("CPU", 0) < 1:
            pass
        ray.shutdown()
        for call in calls:
            try:
                call.get(60)
            except Exception as error:
                print(type(error).__name__ != "TimeoutError")
        pool.close()
        pool.join()
        print(ray.is_initialized())
        """,
        timeout_s=60,
    )
    assert (ended.stdout, ended.returncode) == ("True\n" * 4 + "False\n", 0), ended.stderr


def test_a_pool_starts_no_cluster_when_the_program_leaves_its_own_while_a_worker_is_made() -> None:
    ended = run_driver(
        """
        from minray.util.multiprocessing import Pool
        ray.init(num_cpus=1, logging_level="ERROR")
        pool = Pool(1)
        foreman = pool._crew._foreman
        make = foreman._make_actor

        def leave_and_make():
            ray.shutdown()
            return make()

        foreman._make_actor = leave_and_make
        call = pool.apply_async(abs, (-1,))
        try:
            call.get(60)
        except Exception as error:
            print(type(error).__name__ != "TimeoutError")
        print(ray.is_initialized())
        """,
        timeout_s=60,
    )
    assert (ended.stdout, ended.returncode) == ("True\nFalse\n", 0), ended.stderr


@pytest.mark.parametrize("moment", ["run", "__ray_ready__", "kill"])
def test_a_pool_starts_no_cluster_when_the_program_leaves_its_own_while_a_worker_is_used(moment: str) -> None:
    ended = run_driver(
        f"""
        import os
        import minray.util.crew as crew
        from minray.util.multiprocessing import Pool
        ray.init(num_cpus=1, logging_level="ERROR")
        pool = Pool(1)
        assert pool.apply(abs, (-1,)) == 1
        [worker] = pool._crew._foreman._workers

        class Leaving:
            def __init__(self, actor):
                self.actor = actor

            def __getattr__(self, method):
                if method == {moment!r}:
                    ray.shutdown()
                return getattr(self.actor, method)

        def leave_and_kill(actor):
            ray.shutdown()
            kill(actor.actor)

        kill, crew.kill = crew.kill, leave_and_kill
        worker.actor = Leaving(worker.actor)
        if {moment!r} == "kill":
            pool.terminate()
        else:
            try:
                pool.apply_async(os._exit, (1,)).get(60)
            except Exception as error:
                assert type(error).__name__ != "TimeoutError"
            pool.close()
        pool.join()
        print(ray.is_initialized())
        """,
        timeout_s=60,
    )
    assert (ended.stdout, ended.returncode) == ("False\n", 0), ended.stderr


def test_a_pool_is_not_pickled(pool: Pool) -> None:
    with pytest.raises(NotImplementedError, match="cannot be passed to another process"):
        pickle.dumps(pool)
