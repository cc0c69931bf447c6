"""joblib and scikit-learn on the cluster."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest

from minray.exceptions import ActorDiedError
from tests.helpers import wait_for_condition
from tests.real.support import Files

joblib = pytest.importorskip("joblib")
pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.filterwarnings("ignore:.*still being processed")]


@pytest.fixture
def backend(cluster: object) -> Iterator[None]:
    from minray.util.joblib import register_minray

    register_minray()
    with joblib.parallel_config(backend="minray", n_jobs=-1):
        yield


def reciprocal(number: int) -> float:
    return 1 / number


def test_calls_run_in_as_many_workers_as_there_are_cpus(backend: None) -> None:
    pids = joblib.Parallel()(joblib.delayed(os.getpid)() for _ in range(20))
    assert os.getpid() not in pids and 1 <= len(set(pids)) <= 2
    assert joblib.Parallel(n_jobs=2)(joblib.delayed(abs)(-number) for number in range(50)) == list(range(50))
    assert joblib.effective_n_jobs(-1) == 2 and joblib.effective_n_jobs(3) == 3 and joblib.effective_n_jobs(-2) == 1


def test_an_exception_ends_the_call_and_the_next_one_goes_on(backend: None) -> None:
    with joblib.Parallel() as parallel:
        with pytest.raises(ZeroDivisionError):
            parallel(joblib.delayed(reciprocal)(number) for number in [1, 0, 1, 1])
        assert parallel(joblib.delayed(reciprocal)(number) for number in [1, 2]) == [1, 0.5]


def test_what_an_aborted_call_has_left_is_not_told(backend: None, files: Files) -> None:
    from minray.util.joblib import MinrayBackend

    told: list[Future[Any]] = []
    workers = MinrayBackend()
    workers.configure(n_jobs=1)
    nested = joblib.parallel.SequentialBackend(nesting_level=1), None
    left = workers.submit(joblib.parallel.BatchedCalls([joblib.delayed(files.signal("never").wait)()], nested), told.append)
    crew = workers._crew
    assert crew is not None
    workers.abort_everything()
    with pytest.raises(ActorDiedError, match="The actor is dead: the workers were terminated before"):
        left.result(timeout=10)
    crew.join()
    assert told == [], "its thread has ended, and calls nobody back any more"
    next_one = workers.submit(joblib.parallel.BatchedCalls([joblib.delayed(abs)(-1)], nested), told.append)
    assert next_one.result(timeout=10) == [1]
    wait_for_condition(lambda: bool(told))
    assert told == [next_one]
    workers.terminate()


def test_what_an_aborted_call_has_left_is_not_told_when_the_next_one_has_begun(backend: None, files: Files) -> None:
    from minray.util.joblib import MinrayBackend

    told: list[Future[Any]] = []
    workers = MinrayBackend()
    workers.configure(n_jobs=1)
    nested = joblib.parallel.SequentialBackend(nesting_level=1), None
    workers.submit(joblib.parallel.BatchedCalls([joblib.delayed(files.signal("never").wait)()], nested), told.append)
    crew, go_on = workers._crew, threading.Event()
    assert crew is not None
    crew._foreman.events.put(lambda _: go_on.wait() and None)
    workers.abort_everything(ensure_ready=False)
    workers.terminate()
    workers.configure(n_jobs=1)
    go_on.set()
    crew.join()
    workers.terminate()
    assert told == []


@pytest.mark.parametrize("returned", ["list", "generator"])
def test_a_parallel_may_be_used_again_after_each_of_its_ends(backend: None, files: Files, returned: str) -> None:
    parallel = joblib.Parallel(n_jobs=2, return_as=returned)
    endless = files.signal("never").wait

    def goes_on() -> bool:
        return list(parallel(joblib.delayed(abs)(-number) for number in range(10))) == list(range(10))

    with pytest.raises(ZeroDivisionError):
        list(parallel([joblib.delayed(reciprocal)(0), *[joblib.delayed(endless)()] * 3]))
    assert goes_on()
    parallel.timeout = 0.1
    with pytest.raises(multiprocessing.TimeoutError):
        list(parallel(joblib.delayed(endless)() for _ in range(4)))
    parallel.timeout = None
    assert goes_on()
    if returned == "generator":
        results = parallel([joblib.delayed(abs)(-1), *[joblib.delayed(endless)()] * 3])
        assert next(results) == 1
        results.close()
        assert goes_on()


def test_what_a_call_that_was_given_up_had_not_dispatched_is_forgotten(backend: None, files: Files) -> None:
    """By joblib it is not: two tasks are cut from the iterable when the first one is done, and one of them dispatched."""
    parallel = joblib.Parallel(n_jobs=2, return_as="generator")
    results = parallel([joblib.delayed(abs)(-1), *[joblib.delayed(files.signal("never").wait)()] * 5])
    assert next(results) == 1
    wait_for_condition(lambda: parallel._ready_batches.qsize() == 1)
    results.close()
    assert list(parallel(joblib.delayed(abs)(-number) for number in range(10))) == list(range(10))


def test_results_come_as_a_generator_and_late_ones_time_out(backend: None, files: Files) -> None:
    results = joblib.Parallel(return_as="generator_unordered")(joblib.delayed(abs)(-number) for number in range(10))
    assert sorted(results) == list(range(10))
    with pytest.raises(multiprocessing.TimeoutError):
        joblib.Parallel(timeout=0.1)(joblib.delayed(files.signal("never").wait)() for _ in range(2))


def test_calls_may_be_parallel_themselves(backend: None) -> None:
    def inner(number: int) -> list[int]:
        return list(joblib.Parallel(n_jobs=2)(joblib.delayed(pow)(number, power) for power in range(3)))

    assert joblib.Parallel()(joblib.delayed(inner)(number) for number in (2, 3)) == [[1, 2, 4], [1, 3, 9]]


def test_a_large_argument_is_put_once(backend: None, monkeypatch: pytest.MonkeyPatch) -> None:
    import minray

    puts: list[Any] = []
    put = minray.put
    monkeypatch.setattr(minray, "put", lambda value: puts.append(value.nbytes) or put(value))
    array = np.ones(100_000)
    calls = [joblib.delayed(lambda values, scale, of: (values.sum() * scale, values is of))(array, scale, of=array)
             for scale in range(6)]  # fmt: skip
    assert joblib.Parallel()(calls) == [(100_000.0 * scale, True) for scale in range(6)]
    assert puts == [800_000]


class Immeasurable:
    @property
    def nbytes(self) -> int:
        raise RuntimeError("nobody knows")


def test_an_argument_that_does_not_tell_its_size_is_passed_by_value(backend: None) -> None:
    assert joblib.Parallel()([joblib.delayed(type)(Immeasurable())]) == [Immeasurable]


def test_a_large_argument_that_was_changed_between_two_calls_is_put_again(backend: None) -> None:
    array = np.zeros(100_000)
    with joblib.Parallel() as parallel:
        for step in range(1, 4):
            array += 1
            assert parallel(joblib.delayed(np.max)(array) for _ in range(3)) == [step] * 3


def test_a_grid_search_of_scikit_learn(backend: None) -> None:
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_iris
    from sklearn.model_selection import GridSearchCV
    from sklearn.tree import DecisionTreeClassifier

    values, labels = load_iris(return_X_y=True)
    search = GridSearchCV(DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2, 3]}, cv=3).fit(values, labels)
    with joblib.parallel_config(backend="sequential"):
        alone = GridSearchCV(DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2, 3]}, cv=3).fit(values, labels)
    assert search.best_params_ == alone.best_params_ and search.best_score_ == alone.best_score_


def test_no_workers_make_no_sense(backend: None) -> None:
    with pytest.raises(ValueError, match="n_jobs must not be 0"):
        joblib.Parallel(n_jobs=0)(joblib.delayed(abs)(1) for _ in range(2))


def test_programs_for_ray_find_the_backend_under_rays_name(backend: None) -> None:
    from minray.util.joblib import register_ray

    register_ray()
    with joblib.parallel_config(backend="ray", n_jobs=2, ray_remote_args={"num_cpus": 0}):
        assert os.getpid() not in joblib.Parallel()(joblib.delayed(os.getpid)() for _ in range(2))


def test_a_call_that_is_given_up_is_over_before_the_next_one_begins(backend: None) -> None:
    """joblib's own callbacks would take what is dispatched then for their own."""
    from joblib.parallel import BatchedCalls

    from minray.util.joblib import MinrayBackend

    order: list[str] = []
    begun = threading.Event()
    minray_backend = MinrayBackend()
    minray_backend.configure(1)

    def callback(_: object) -> None:
        begun.set()
        wait_for_condition(lambda: minray_backend._callbacks.are_over)
        order.append("callback")

    minray_backend.submit(BatchedCalls([(abs, (-1,), {})], (minray_backend, 1)), callback)
    assert begun.wait(30)
    minray_backend.abort_everything(ensure_ready=False)
    order.append("given up")
    minray_backend.terminate()
    assert order == ["callback", "given up"]
