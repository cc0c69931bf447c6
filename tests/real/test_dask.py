"""Dask's graphs on a cluster. The same tests run on Ray (``make dask-on-ray``), so they use the public API alone."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import io
import operator
import os
import pickle
import signal
import struct
import threading
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import dask.bag as db
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.callbacks import Callback
from dask.order import order
from dask.task_spec import Task
from dask.utils_test import GetFunctionTestMixin

import minray as ray
from minray.util.dask import (
    ProgressBarCallback,
    RayDaskCallback,
    disable_dask_on_ray,
    enable_dask_on_ray,
    futures_of,
    ray_dask_get,
    ray_dask_get_sync,
    ray_dask_persist,
    wait,
)
from tests.helpers import wait_for_condition, without_garbage_collection
from tests.real.support import ON_RAY, left_in_driver

pytestmark = pytest.mark.usefixtures("cluster")

INIT = {"num_cpus": 2, "resources": {"special": 1}, "object_store_memory": 80 << 20}
STORE_BYTES = 80 << 20


class TestGet(GetFunctionTestMixin):
    """Dask's own tests of a scheduler."""

    get = staticmethod(ray_dask_get)


def note(path: Path, line: Any) -> Any:
    """Leave a line in a file that many processes write."""
    with path.open("a") as file:
        file.write(f"{line}\n")
    return line


def lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def here(*_: Any) -> int:
    return os.getpid()


def fail(*_: Any) -> None:
    raise ZeroDivisionError("on purpose")


def die(*_: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# -- collections --


def test_delayed_values_are_computed_by_workers() -> None:
    pids = dask.compute(*[dask.delayed(here, pure=False)(n) for n in range(8)], scheduler=ray_dask_get)
    assert os.getpid() not in pids
    total = dask.delayed(sum)([dask.delayed(operator.mul)(n, n) for n in range(10)])
    assert total.compute(scheduler=ray_dask_get) == 285


def test_functions_of_this_place_reach_the_workers() -> None:
    offset = 7
    assert dask.delayed(lambda x: x + offset)(1).compute(scheduler=ray_dask_get) == 8


def test_arrays() -> None:
    given = np.arange(64.0).reshape(8, 8)
    array = da.from_array(given, chunks=3)
    with enable_dask_on_ray():
        np.testing.assert_array_equal((array + array.T)[::2].rechunk((2, 8)).compute(), (given + given.T)[::2])
        assert array.std().compute() == pytest.approx(given.std())
        rolled = array.map_overlap(lambda block: block * 2, depth=1, boundary=0)
        np.testing.assert_array_equal(rolled.compute(), given * 2)


def test_dataframes() -> None:
    given = pd.DataFrame({"a": np.arange(60) % 7, "b": np.arange(60.0), "c": list("xyz") * 20})
    frame = dd.from_pandas(given, npartitions=4)
    with enable_dask_on_ray():
        pd.testing.assert_series_equal(frame.groupby("a").b.mean().compute().sort_index(), given.groupby("a").b.mean())
        assert frame.set_index("b").a.compute().tolist() == given.a.tolist()
        merged = frame.merge(dd.from_pandas(given.assign(d=1), npartitions=2), on="b").compute()
        assert len(merged) == 60 and merged.d.sum() == 60


def test_bags() -> None:
    bag = db.from_sequence(range(50), npartitions=5)
    assert bag.map(lambda x: x % 3).frequencies().compute(scheduler=ray_dask_get) == [(0, 17), (1, 17), (2, 16)]


def test_several_collections_at_once() -> None:
    array, value = da.ones(4, chunks=2), dask.delayed(abs)(-2)
    assert dask.compute(array.sum(), {"value": value}, 3, scheduler=ray_dask_get) == (4.0, {"value": 2}, 3)


def test_a_shuffle_gives_the_same_with_and_without_splits() -> None:
    given = pd.DataFrame({"a": np.arange(200)[::-1], "b": range(200)})
    for optimised in (True, False):
        with enable_dask_on_ray(use_shuffle_optimization=optimised):
            computed = dd.from_pandas(given, npartitions=5).shuffle("a").compute()
        pd.testing.assert_frame_equal(computed.sort_index(), given)


def test_a_task_may_write_into_what_it_was_given() -> None:
    def write(block: Any) -> Any:
        block[0] = -1
        return block

    array = da.ones(100_000, chunks=50_000).persist(scheduler=ray_dask_get)
    assert array.map_blocks(write).min().compute(scheduler=ray_dask_get) == -1
    assert array.min().compute(scheduler=ray_dask_get) == 1


WAYS_TO_WRITE: dict[str, Any] = {
    "assign": lambda a: a.__setitem__(0, 1.0),
    "sort": lambda a: a.sort(),
    "swap bytes": lambda a: a.byteswap(inplace=True),
    "iterate": lambda a: np.nditer(a, op_flags=[["readwrite"]]),
    "dot": lambda a: np.dot(np.eye(8), np.arange(8.0), out=a),
    "einsum": lambda a: np.einsum("ij,j->i", np.eye(8), np.arange(8.0), out=a),
    "take": lambda a: np.take(np.arange(8.0), np.arange(8), out=a),
    "random": lambda a: np.random.default_rng(0).random(out=a),
    "shuffle": lambda a: np.random.default_rng(0).shuffle(a),
    "resize": lambda a: a.resize(20, refcheck=False),
    "flag": lambda a: a.setflags(write=True),
    "memory": lambda a: memoryview(a).__setitem__(0, 1.0),
    "read into": lambda a: io.BytesIO(b"12345678").readinto(a),
    "pack into": lambda a: struct.pack_into("d", a, 0, 1.0),
    "ctypes": lambda a: ctypes.c_char.from_buffer(a),
}


def test_in_whatever_way_a_task_writes_it_gets_copies() -> None:
    write: dict[str, Any] = {name: (lambda a, how=how: bool([how(a)]), "given") for name, how in WAYS_TO_WRITE.items()}
    assert ray_dask_get({"given": (np.zeros, 8), **write}, list(write)) == (True,) * len(write)


def test_a_task_with_an_error_of_its_own_runs_once(tmp_path: Path) -> None:
    def refuse(path: Path) -> None:
        with path.open("a") as file:
            file.write("run ")
        raise ValueError("the file system is read-only")

    with pytest.raises(ValueError, match="file system"):
        dask.delayed(refuse)(tmp_path / "runs").compute(scheduler=ray_dask_get)
    assert (tmp_path / "runs").read_text() == "run "


def test_references_among_the_arguments_stand_for_their_values() -> None:
    ref = ray.put([1, 2, 3])
    assert dask.delayed(sum)(ref).compute(scheduler=ray_dask_get) == 6
    assert ray_dask_get({"a": ref, "b": (sum, "a")}, "b") == 6


def test_a_large_argument_of_many_tasks_is_put_once(monkeypatch: pytest.MonkeyPatch) -> None:
    large, puts, put = np.ones(100_000), [], ray.put
    monkeypatch.setattr(ray, "put", lambda value: puts.append(value) or put(value))  # type: ignore[func-returns-value]
    dsk = {n: Task(n, operator.getitem, large, n) for n in range(10)}
    assert ray_dask_get(dsk, list(range(10))) == (1.0,) * 10
    assert [value is large for value in puts] == [True]


def test_tasks_may_compute_on_the_same_scheduler() -> None:
    def within(n: int) -> Any:
        return dask.delayed(operator.add)(n, 1).compute(scheduler=ray_dask_get)

    assert dask.compute(*[dask.delayed(within)(n) for n in range(4)], scheduler=ray_dask_get) == (1, 2, 3, 4)


# -- the scheduler of Dask's configuration --


def test_it_is_enabled_within_a_block_or_for_good() -> None:
    value = dask.delayed(here, pure=False)()
    with enable_dask_on_ray(shuffle="disk"):
        assert dask.config.get("scheduler") is ray_dask_get and dask.config.get("dataframe.shuffle.method") == "disk"
        assert value.compute() != os.getpid()
    assert value.compute() == os.getpid()
    with dask.config.set({}):
        enable_dask_on_ray()
        assert value.compute() != os.getpid()
        disable_dask_on_ray()
        assert value.compute() == os.getpid()


def test_one_task_at_a_time(tmp_path: Path) -> None:
    journal, under_way = tmp_path / "journal", []
    dsk = {f"a{n}": (note, journal, n) for n in range(5)} | {f"b{n}": (operator.add, f"a{n}", 100) for n in range(5)}
    with Callback(pretask=lambda key, dsk, state: under_way.append(len(state["running"]))):
        assert ray_dask_get_sync(dsk, [f"b{n}" for n in range(5)]) == (100, 101, 102, 103, 104)
    assert sorted(lines(journal)) == list("01234") and set(under_way) <= {1, 2}


@pytest.mark.parametrize("limit", [1, 3])
def test_a_limited_number_of_tasks_is_under_way(limit: int) -> None:
    under_way = []
    with Callback(pretask=lambda key, dsk, state: under_way.append(len(state["running"]))):
        ray_dask_get({f"x{n}": (abs, n) for n in range(30)}, [f"x{n}" for n in range(30)], num_workers=limit)
    assert max(under_way) == limit and len(under_way) == 30


def test_tasks_that_wait_for_others_are_submitted_without_waiting() -> None:
    dsk = {"x0": (abs, -1), **{f"x{n}": (operator.add, f"x{n - 1}", 1) for n in range(1, 30)}}
    finished_before: list[int] = []
    with Callback(pretask=lambda key, dsk, state: finished_before.append(len(state["finished"]))):
        assert ray_dask_get(dsk, "x29", num_workers=2) == 30
    assert finished_before == [0] * 30  # the whole chain was submitted before any of its links was done


# -- options --


def test_options_reach_the_tasks() -> None:
    def assigned() -> Any:
        return ray.get_runtime_context().get_assigned_resources().get("special", 0)

    with dask.annotate(ray_remote_args={"resources": {"special": 1}}):
        annotated = dask.delayed(assigned, pure=False)()
    plain = dask.delayed(assigned, pure=False)()
    assert dask.compute(annotated, plain, scheduler=ray_dask_get, optimize_graph=False) == (1, 0)
    assert plain.compute(scheduler=ray_dask_get, ray_remote_args={"resources": {"special": 0.5}}) == 0.5


def test_retries_of_tasks_that_raise(tmp_path: Path) -> None:
    def second_time(path: Path) -> int:
        note(path, "tried")
        if len(lines(path)) < 2:
            raise OSError("not yet")
        return len(lines(path))

    value = dask.delayed(second_time)(tmp_path / "journal")
    options = {"max_retries": 2, "retry_exceptions": True}
    assert value.compute(scheduler=ray_dask_get, ray_remote_args=options) == 2


# -- persist --


def counted(journal: Path, block: Any) -> Any:
    note(journal, "ran")
    return block


def test_a_persisted_array_is_computed_once_and_computed_on(tmp_path: Path) -> None:
    journal = tmp_path / "journal"
    with enable_dask_on_ray():
        counting = da.ones(6, chunks=2).map_blocks(lambda block: counted(journal, block), dtype=float, meta=np.ones(0))
        array = counting.persist()
        done, not_done = wait(array)
        assert len(done) == 3 and not not_done and len(lines(journal)) == 3
        assert array.sum().compute() == 6 and (array + 1)[::2].rechunk(3).sum().compute() == 6
        assert len(lines(journal)) == 3
        assert (array + 1).persist().max().compute() == 2
    assert futures_of(array)[0].done() and futures_of(array)[0].result().tolist() == [1, 1]
    assert futures_of(da.ones(2)) == [] and wait(da.ones(2)) == ([], [])


def test_all_collections_can_be_persisted() -> None:
    with enable_dask_on_ray():
        bag = db.from_sequence(range(10), npartitions=2).map(lambda x: x + 1).persist()
        frame = dd.from_pandas(pd.DataFrame({"a": range(10), "b": [0, 1] * 5}), npartitions=3).persist()
        value, data = dask.persist(dask.delayed(abs)(-3), dask.delayed(5))
        assert len(futures_of(bag)) == 2 and len(futures_of(frame)) == 3 and len(futures_of(value, data)) == 2
        assert bag.sum().compute() == 55
        assert frame.groupby("b").a.sum().compute().tolist() == [20, 25]
        assert frame.set_index("a").b.sum().compute() == 5
        assert (value + data).compute() == 8
    assert ray_dask_persist(dask.delayed(abs)(-3))[0].compute(scheduler=ray_dask_get) == 3


def test_persisting_does_not_wait(tmp_path: Path) -> None:
    def waiting(path: Path) -> int:
        while not path.exists():
            threading.Event().wait(0.01)
        return 1

    path = tmp_path / "go"
    (value,) = dask.persist(dask.delayed(waiting)(path), scheduler=ray_dask_get)
    try:
        assert not futures_of(value)[0].done() and len(wait(value, timeout=0).not_done) == 1
    finally:
        path.touch()
    assert value.compute(scheduler=ray_dask_get) == 1


def test_persisted_values_live_as_long_as_a_collection_needs_them() -> None:
    array = da.ones(10, chunks=5).persist(scheduler=ray_dask_get)
    total = array.sum()
    del array
    gc.collect()
    assert total.compute(scheduler=ray_dask_get) == 10
    # that nothing is left when the last one is gone is checked after every test of this file


def test_a_future_is_an_argument_like_a_collection() -> None:
    (future, _) = futures_of(da.ones(4, chunks=2).persist(scheduler=ray_dask_get))
    assert da.from_delayed(future, (2,), float).sum().compute(scheduler=ray_dask_get) == 2
    assert ray_dask_get({"a": Task("a", sum, future)}, "a") == 2


def test_another_scheduler_says_that_it_does_not_have_persisted_values() -> None:
    value = dask.delayed(abs)(-1).persist(scheduler=ray_dask_get)
    with pytest.raises(ValueError, match="Missing dependency abs-.*-future-"):
        (value + 1).compute(scheduler="sync")


def test_a_persisted_failure_is_raised_when_it_is_used() -> None:
    value = dask.delayed(fail)(dask_key_name="culprit").persist(scheduler=ray_dask_get)
    assert len(wait(value).done) == 1
    with pytest.raises(ZeroDivisionError, match="on purpose\nthe Dask key 'culprit' has failed"):
        futures_of(value)[0].result()
    with pytest.raises(ZeroDivisionError, match="on purpose"):
        (value + 1).compute(scheduler=ray_dask_get)


@pytest.mark.parametrize("optimizes", [True, False])
def test_a_persisted_failure_is_named_not_what_needs_it(optimizes: bool) -> None:
    def last(block: Any, block_info: Any = None) -> Any:
        return fail() if block_info[0]["chunk-location"] == (2,) else block

    persisted = dask.delayed(fail)(dask_key_name="bad").persist(scheduler=ray_dask_get)
    good = dask.delayed(abs)(-1, dask_key_name="good").persist(scheduler=ray_dask_get)
    user = dask.delayed(max)(good, persisted, dask_key_name="user")
    array = da.ones(6, chunks=2).map_blocks(last, name="bad", meta=np.ones(0)).persist(scheduler=ray_dask_get)
    culprits = [(persisted, "'bad'"), (user, "'bad'"), (array, "('bad', 2)")]
    if not ON_RAY:  # which ends the program now and then when a task is cancelled while it fails as its argument did
        culprits += [(user + 1, "'bad'"), (array + 1, "('bad', 2)"), ((array + 1).sum(), "('bad', 2)")]
    for value, key in culprits:
        with pytest.raises(ZeroDivisionError) as caught:
            value.compute(scheduler=ray_dask_get, optimize_graph=optimizes)
        assert caught.value.__notes__ == [f"the Dask key {key} has failed"]
    failing = dask.delayed(operator.truediv)(good, 0, dask_key_name="failing")
    with pytest.raises(ZeroDivisionError, match="the Dask key 'failing' has failed"):
        failing.compute(scheduler=ray_dask_get, optimize_graph=optimizes)


def test_a_persisted_task_that_kills_its_worker_is_named_not_what_needs_it() -> None:
    value = dask.delayed(die)(dask_key_name="bad").persist(scheduler=ray_dask_get, ray_remote_args={"max_retries": 0})
    with pytest.raises(ray.exceptions.WorkerCrashedError, match="the Dask key 'bad' has failed"):
        dask.delayed(abs)(value, dask_key_name="good").compute(scheduler=ray_dask_get)


# -- callbacks --


def test_dasks_callbacks_see_every_task() -> None:
    seen: dict[str, list[Any]] = {"start": [], "state": [], "pre": [], "post": [], "finish": []}
    callback = Callback(
        start=lambda dsk: seen["start"].append(set(dsk)),
        start_state=lambda dsk, state: seen["state"].append(set(state["waiting"])),
        pretask=lambda key, dsk, state: seen["pre"].append(key),
        posttask=lambda key, result, dsk, state, worker: seen["post"].append((key, ray.get(result), worker != os.getpid())),
        finish=lambda dsk, state, failed: seen["finish"].append((len(state["finished"]), failed)),
    )
    with callback:
        assert ray_dask_get({"a": 1, "b": (operator.add, "a", 1), "c": (operator.mul, "b", 5)}, "c") == 10
    assert seen["start"] == [{"a", "b", "c"}] and seen["state"] == [{"b", "c"}]
    assert seen["pre"] == ["b", "c"] and seen["post"] == [("b", 2, True), ("c", 10, True)]
    assert seen["finish"] == [(2, False)]
    with callback, pytest.raises(ZeroDivisionError):
        ray_dask_get({"b": (fail, 1)}, "b")
    assert seen["finish"][-1] == (0, True)


def test_the_progress_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with ProgressBarCallback(dt=0.01):
        da.ones(10, chunks=1).sum().compute(scheduler=ray_dask_get)
    assert "100% Completed" in capsys.readouterr().out


class Hooks(RayDaskCallback):
    """All hooks; those in workers write to a file."""

    def __init__(self, journal: Path) -> None:
        self.journal, self.told = journal, []  # type: ignore[var-annotated]

    def _ray_presubmit(self, task: Any, key: Any, deps: Any) -> Any:
        self.told.append(("presubmit", key, sorted(deps)))
        return 100 if key == "replaced" else None

    def _ray_postsubmit(self, task: Any, key: Any, deps: Any, object_ref: Any) -> None:
        self.told.append(("postsubmit", key, isinstance(object_ref, ray.ObjectRef)))

    def _ray_pretask(self, key: Any, object_refs: Any) -> str:
        note(self.journal, f"before {key}: {object_refs}")
        return f"state of {key}"

    def _ray_posttask(self, key: Any, result: Any, pre_state: Any) -> None:
        note(self.journal, f"after {key}: {result}, {pre_state}")

    def _ray_postsubmit_all(self, object_refs: Any, dsk: Any) -> None:
        self.told.append(("all", len(object_refs), sorted(dsk)))

    def _ray_finish(self, result: Any) -> None:
        self.told.append(("finish", result))


def test_hooks_of_dask_on_ray(tmp_path: Path) -> None:
    hooks = Hooks(tmp_path / "journal")
    dsk = {"replaced": (abs, -1), "sum": (operator.add, "replaced", 1)}
    with hooks:
        assert ray_dask_get(dsk, "sum") == 101
    assert hooks.told == [
        ("presubmit", "replaced", []),
        ("presubmit", "sum", ["replaced"]),
        ("postsubmit", "sum", True),
        ("all", 1, ["replaced", "sum"]),
        ("finish", 101),
    ]
    assert lines(hooks.journal) == ["before sum: [100]", "after sum: 101, state of sum"]
    assert ray_dask_get(dsk, "sum") == 2  # outside of the block nobody listens
    assert ray_dask_get(dsk, "sum", ray_callbacks=[hooks]) == 101
    with pytest.raises(TypeError, match="RayDaskCallbacks, not int"):
        ray_dask_get(dsk, "sum", ray_callbacks=[5])


def test_hooks_in_workers_are_told_the_values_that_a_task_depends_on(tmp_path: Path) -> None:
    hooks = Hooks(tmp_path / "journal")
    one = dask.delayed(abs)(-1, dask_key_name="one")
    two = dask.delayed(dict)(a=5, b=one, dask_key_name="two")
    both = dask.delayed(list)([one, two], dask_key_name="both")
    with hooks:
        assert both.compute(scheduler=ray_dask_get, optimize_graph=False) == [1, {"a": 5, "b": 1}]
    told = [line for line in lines(hooks.journal) if line.startswith("before")]
    assert told[:2] == ["before one: []", "before two: [1]"]
    assert told[2] in ("before both: [1, {'a': 5, 'b': 1}]", "before both: [{'a': 5, 'b': 1}, 1]")


@pytest.mark.parametrize("is_given", [False, True])
def test_hooks_are_told_of_what_is_persisted(is_given: bool, tmp_path: Path) -> None:
    hooks, told = Hooks(tmp_path / "journal"), []  # type: ignore[var-annotated]
    array = da.ones(2, chunks=2)
    dask_callback = Callback(pretask=lambda key, *_: told.append("pretask"), finish=lambda *_: told.append("finish"))
    with dask_callback, contextlib.nullcontext() if is_given else hooks:
        options = {"ray_callbacks": [hooks]} if is_given else {}
        persisted = array.persist(scheduler=ray_dask_get, **options)
    assert [name for name, *_ in hooks.told] == ["presubmit", "postsubmit", "all", "finish"]
    assert told == ["pretask", "finish"] and persisted.sum().compute(scheduler=ray_dask_get) == 2
    assert hooks.told[-1][1] == (tuple(future.ref for future in futures_of(persisted)),)


@pytest.mark.parametrize(("number", "error"), [(0, ValueError), (-1, ValueError), ("two", TypeError), (True, TypeError)])
def test_a_number_of_workers_that_makes_no_sense(number: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="num_workers must be"):
        dask.compute(dask.delayed(abs)(-1), scheduler=ray_dask_get, num_workers=number)


def test_the_number_of_workers_may_be_configured() -> None:
    running: list[int] = []
    with dask.config.set(num_workers=1), Callback(pretask=lambda key, dsk, state: running.append(len(state["running"]))):
        dask.compute([dask.delayed(abs)(-number) for number in range(4)], scheduler=ray_dask_get)
    assert running == [1, 1, 1, 1]


def test_a_persisted_collection_keeps_its_values_wherever_it_goes() -> None:
    array = da.arange(10, chunks=5).persist(scheduler=ray_dask_get)
    copies = [pickle.loads(pickle.dumps(array)), ray.get(ray.put(array))]
    refs = [future.ref for future in futures_of(array)]
    assert all([future.ref for future in futures_of(copy)] == refs for copy in copies)
    del array, refs

    @ray.remote
    def total(collection: Any) -> Any:
        return collection.sum().compute(scheduler=ray_dask_get)

    assert ray.get([total.remote(copy) for copy in copies]) == [45, 45]
    assert [(copy + 1).sum().compute(scheduler=ray_dask_get) for copy in copies] == [55, 55]


def test_hooks_may_be_functions_and_are_registered_for_good() -> None:
    told: list[Any] = []
    callback = RayDaskCallback(ray_finish=told.append)
    callback.register()
    try:
        ray_dask_get({"a": (abs, -1)}, ["a"])
    finally:
        callback.unregister()
    ray_dask_get({"a": (abs, -2)}, ["a"])
    assert told == [(1,)]


# -- what goes wrong --


def test_an_exception_is_the_one_that_the_task_raised_with_its_key() -> None:
    dsk = {("load", 1): (fail, 1), "b": (abs, ("load", 1)), "c": (max, "b", ("load", 1)), "d": (abs, -1)}
    with pytest.raises(ZeroDivisionError, match=r"on purpose\nthe Dask key \('load', 1\) has failed") as caught:
        ray_dask_get(dsk, ["c", "d"])
    assert type(caught.value) is ZeroDivisionError and caught.value.args == ("on purpose",)


def test_a_failure_keeps_nothing_that_was_computed() -> None:
    """Without a garbage collection: its traceback used to be in a cycle with the frame that had raised it."""

    def compute() -> None:
        with contextlib.suppress(ZeroDivisionError):
            ray_dask_get({"a": (abs, -1), "b": (fail, "a")}, "b")

    with without_garbage_collection():
        before = set(left_in_driver())
        compute()
        wait_for_condition(lambda: before.issuperset(left_in_driver()))


def test_the_first_failure_is_raised_although_others_follow() -> None:
    dsk = {f"good{n}": (abs, -n) for n in range(20)}
    dsk |= {"bad": (fail, "good7"), "end": (max, ["bad", *(f"good{n}" for n in range(20))])}
    with pytest.raises(ZeroDivisionError, match="the Dask key 'bad' has failed"):
        ray_dask_get(dsk, "end")


def test_after_a_failure_nothing_more_is_submitted(tmp_path: Path) -> None:
    dsk = {f"x{n}": (note, tmp_path / "journal", n) for n in range(20)}
    first = min(order(dsk), key=order(dsk).__getitem__)
    with pytest.raises(ZeroDivisionError, match=f"the Dask key '{first}' has failed"):
        ray_dask_get_sync({**dsk, first: (fail, 1)}, list(dsk))
    assert lines(tmp_path / "journal") == []


def test_a_failure_takes_back_what_still_runs(tmp_path: Path) -> None:
    started, stopped = tmp_path / "started", tmp_path / "stopped"

    def endless() -> None:
        try:
            started.touch()
            while True:
                threading.Event().wait(0.01)
        finally:
            stopped.touch()

    def fail_later() -> None:
        while not started.exists():
            threading.Event().wait(0.01)
        fail()

    with pytest.raises(ZeroDivisionError):
        dask.compute(dask.delayed(endless)(), dask.delayed(fail_later)(), scheduler=ray_dask_get)
    for _ in range(3000):
        if stopped.exists():
            break
        threading.Event().wait(0.01)
    assert stopped.exists()


@pytest.mark.parametrize("dsk", [{"a": (id, threading.Lock()), "b": (abs, "a")}, {"a": threading.Lock(), "b": (id, "a")}])
def test_what_cannot_be_sent_is_named(dsk: Any) -> None:
    with pytest.raises(TypeError, match=r"(?s)pickle.*lock.*the Dask key 'a' cannot be sent to a worker"):
        ray_dask_get(dsk, "b")


def test_a_result_that_cannot_be_sent_is_named() -> None:
    with pytest.raises(TypeError, match=r"(?s)pickle.*lock.*the Dask key 'a' has failed"):
        ray_dask_get({"a": Task("a", threading.Lock), "b": (id, "a")}, "b")


def test_a_task_that_kills_its_worker_is_named() -> None:
    with pytest.raises(ray.exceptions.WorkerCrashedError, match="the Dask key 'a' has failed"):
        ray_dask_get({"a": (die, 1), "b": (abs, "a")}, "b", ray_remote_args={"max_retries": 0})


def test_a_result_larger_than_the_store_goes_through_the_disk() -> None:
    assert ray_dask_get({"a": (np.ones, STORE_BYTES + 1, np.uint8), "b": (len, "a")}, "b") == STORE_BYTES + 1


def test_results_that_do_not_fit_together_go_through_the_disk() -> None:
    array = da.ones(20 << 20, chunks=1 << 20) + 1  # 160 MiB in a store of 80
    with enable_dask_on_ray():
        persisted = array.persist()
        assert persisted.sum().compute() == 2 * (20 << 20)


def test_an_interrupt_takes_the_tasks_back(tmp_path: Path) -> None:
    path = tmp_path / "never"

    def waiting() -> None:
        while not path.exists():
            threading.Event().wait(0.01)

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), contextlib.ExitStack() as stack:
        stack.enter_context(RayDaskCallback(ray_postsubmit_all=interrupt))
        dask.delayed(waiting)().compute(scheduler=ray_dask_get)
    assert dask.delayed(abs)(-1).compute(scheduler=ray_dask_get, ray_remote_args={"num_cpus": 2}) == 1


def test_of_what_was_taken_back_nothing_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path, journal, before = tmp_path / "never", tmp_path / "journal", set(left_in_driver())

    def waiting(*_: Any) -> None:
        note(journal, "runs")
        while not path.exists():
            threading.Event().wait(0.01)

    def interrupt(*_: Any) -> None:
        wait_for_condition(lambda: len(lines(journal)) == 2)
        raise KeyboardInterrupt

    dsk = {f"x{n}": (waiting, n) for n in range(3)}
    dsk |= {f"y{n}": (waiting, f"x{n}") for n in range(3)} | {"end": (waiting, [f"y{n}" for n in range(3)])}
    with pytest.raises(KeyboardInterrupt), RayDaskCallback(ray_postsubmit_all=interrupt):
        ray_dask_get(dsk, "end")
    wait_for_condition(lambda: before.issuperset(left_in_driver()))
    assert "unhandled error" not in caplog.text
