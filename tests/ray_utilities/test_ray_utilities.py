"""Ray's own utilities, unmodified, do on minray what Ray's documentation says of them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import ray
import ray.util.actor_pool
import ray.util.joblib
import ray.util.multiprocessing.pool
import ray.util.queue

import minray

pytestmark = pytest.mark.filterwarnings("ignore:Dask configuration key 'shuffle':FutureWarning")


def test_the_utilities_are_rays_and_the_core_is_minray() -> None:
    assert ray is minray and ray.util.ActorPool is not ray.util.actor_pool.ActorPool
    for module in (ray.util.actor_pool, ray.util.queue, ray.util.multiprocessing.pool, ray.util.joblib):
        assert "site-packages/ray/util" in str(module.__file__)
    assert Path(minray.__file__).parent.name == "minray"


# -- ActorPool


@ray.remote
class Doubler:
    def double(self, number: int) -> int:
        return 2 * number

    def pid(self, _: object) -> int:
        return os.getpid()


@pytest.fixture
def actors() -> Any:
    return ray.util.actor_pool.ActorPool([Doubler.remote() for _ in range(2)])


def test_actor_pool(actors: Any) -> None:
    assert list(actors.map(lambda actor, number: actor.double.remote(number), range(6))) == list(range(0, 12, 2))
    assert sorted(actors.map_unordered(lambda actor, number: actor.double.remote(number), range(6))) == list(range(0, 12, 2))
    assert len(set(actors.map(lambda actor, item: actor.pid.remote(item), range(6)))) == 2
    actors.submit(lambda actor, number: actor.double.remote(number), 4)
    assert actors.has_next() and actors.has_free() and actors.get_next(timeout=30) == 8 and not actors.has_next()
    with pytest.raises(StopIteration):
        actors.get_next()
    idle = actors.pop_idle()
    assert idle is not None
    actors.push(idle)
    with pytest.raises(ValueError):
        actors.push(idle)


# -- Queue


@ray.remote(num_cpus=0)
def put_all(queue: Any, items: list[int]) -> None:
    for item in items:
        queue.put(item)


def test_queue() -> None:
    queue = ray.util.queue.Queue(maxsize=3)
    ref = put_all.remote(queue, list(range(20)))
    assert [queue.get(timeout=30) for _ in range(20)] == list(range(20))
    ray.get(ref)
    queue.put_nowait_batch([1, 2, 3])
    assert queue.full() and queue.qsize() == len(queue) == 3
    with pytest.raises(ray.util.queue.Full):
        queue.put(4, timeout=0.01)
    assert queue.get_nowait_batch(3) == [1, 2, 3] and queue.empty()
    with pytest.raises(ray.util.queue.Empty):
        queue.get_nowait()
    queue.shutdown()


# -- multiprocessing.Pool


def square(number: int) -> int:
    return number * number


def fail(number: int) -> int:
    raise KeyError(number)


def test_pool() -> None:
    with ray.util.multiprocessing.Pool(processes=2) as pool:
        assert pool.map(square, range(20)) == [number * number for number in range(20)]
        assert pool.starmap(divmod, [(7, 2), (9, 4)]) == [(3, 1), (2, 1)]
        assert list(pool.imap(square, range(10), chunksize=3)) == [number * number for number in range(10)]
        assert sorted(pool.imap_unordered(square, range(10))) == [number * number for number in range(10)]
        assert pool.apply(square, (5,)) == 25
        found: list[Any] = []
        result = pool.apply_async(square, (6,), callback=found.append)
        assert result.get(timeout=30) == 36 and result.successful()
        with pytest.raises(KeyError):
            pool.apply(fail, (1,))
    pool.join()
    assert found == [36]


# -- joblib


def test_joblib() -> None:
    joblib = pytest.importorskip("joblib")
    ray.util.joblib.register_ray()
    with joblib.parallel_backend("ray", n_jobs=2):
        assert joblib.Parallel()(joblib.delayed(square)(number) for number in range(10)) == [n * n for n in range(10)]
        with pytest.raises(KeyError):
            joblib.Parallel()(joblib.delayed(fail)(number) for number in range(3))


def test_a_grid_search_of_scikit_learn() -> None:
    joblib = pytest.importorskip("joblib")
    pytest.importorskip("sklearn")
    from sklearn.datasets import load_iris
    from sklearn.model_selection import GridSearchCV
    from sklearn.tree import DecisionTreeClassifier

    ray.util.joblib.register_ray()
    values, labels = load_iris(return_X_y=True)
    with joblib.parallel_backend("ray", n_jobs=2):
        search = GridSearchCV(DecisionTreeClassifier(random_state=0), {"max_depth": [1, 2, 3]}, cv=3).fit(values, labels)
    assert search.best_score_ > 0.9


# -- Dask


@pytest.fixture
def dask() -> Any:
    module = pytest.importorskip("dask")
    import ray.util.dask

    with ray.util.dask.enable_dask_on_ray():
        yield module


def test_dask_delayed(dask: Any) -> None:
    inc, add = dask.delayed(lambda x: x + 1), dask.delayed(lambda *values: sum(values))
    assert add(*[inc(number) for number in range(10)]).compute() == 55
    pids = dask.compute(*[dask.delayed(lambda _: os.getpid())(number) for number in range(4)])
    assert os.getpid() not in pids
    with pytest.raises(ZeroDivisionError):
        dask.delayed(lambda: 1 / 0)().compute()


def test_dask_array(dask: Any) -> None:
    import dask.array as da

    x = da.ones((300, 300), chunks=(100, 100))
    assert float((x + x.T).sum().compute()) == 180_000
    assert float(x.rechunk((50, 300)).std().compute()) == 0


def test_dask_dataframe(dask: Any) -> None:
    dd, pandas = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    frame = pandas.DataFrame({"key": [number % 3 for number in range(90)], "value": range(90)})
    parts = dd.from_pandas(frame, npartitions=4)
    assert parts.groupby("key").value.sum().compute().to_dict() == frame.groupby("key").value.sum().to_dict()
    assert list(parts.set_index("value").compute().index) == list(range(90))


def test_dask_persist_and_callbacks(dask: Any) -> None:
    import dask.array as da
    from ray.util.dask import RayDaskCallback, ray_dask_get

    class Count(RayDaskCallback):
        submitted = 0

        def _ray_postsubmit(self, task: object, key: object, deps: object, object_ref: object) -> None:
            Count.submitted += 1

    with Count():
        assert ray_dask_get({"a": 1, "b": (square, "a"), "c": (sum, ["a", "b"])}, "c") == 2
    assert Count.submitted >= 2
    persisted = dask.persist(da.ones(10, chunks=5))[0]
    assert all(isinstance(ref, ray.ObjectRef) for ref in persisted.dask.values())
    assert float(persisted.sum().compute()) == 10
