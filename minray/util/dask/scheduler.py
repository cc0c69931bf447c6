"""The scheduler that Dask calls: ``compute`` and ``persist`` on a cluster.

Ray: python/ray/util/dask/scheduler.py

For Dask a scheduler is a callable that takes a graph and keys. If it has a method ``persist``, Dask asks that for futures
instead of values. ``minray_dask_get_sync`` runs one task at a time, in Dask's order, for debugging.

Left out: Dask's annotations ``workers``, ``priority``, ``retries`` and ``allow_other_workers`` are for dask.distributed and
have no effect here. ``ray_remote_args`` takes the corresponding options of ``@remote``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import dask
from dask.base import collections_to_expr
from dask.callbacks import local_callbacks
from dask.core import flatten

import minray as ray

from .callbacks import Listeners, local_ray_callbacks
from .futures import Future
from .graph import Graph, prepare
from .submission import UNLIMITED, GraphSubmission

SPLIT_RESULTS = "minray.split-results"
"""Key of Dask's configuration: whether tasks are merged with those that take their results apart."""

FUSE = "optimization.fuse.active"
"""Key of Dask's configuration: whether chains of tasks are merged. Dask does not merge those of dataframes unless it is
True; here they are merged unless it is False."""


class DaskScheduler:
    """A scheduler to pass to Dask as ``scheduler=``. Instances differ in ``limit`` only."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        """Number of tasks that may be runnable at a time; None: ``submission`` adapts it to the speed of the tasks."""

    def __call__(
        self,
        dsk: Any,
        keys: Any,
        *,
        ray_remote_args: Mapping[str, Any] | None = None,
        ray_callbacks: Iterable[Any] | None = None,
        num_workers: int | None = None,
        **_: Any,
    ) -> Any:
        """Compute the values of ``keys`` and return them in the same nesting. Dask passes the options of ``compute``.

        ``ray_remote_args`` are options for every task. ``ray_callbacks`` are RayDaskCallbacks. ``num_workers`` is the number
        of tasks that may run at a time. Options of Dask's other schedulers are ignored. An exception of a task is raised
        with a note that names its key.
        """
        with local_callbacks() as dask_callbacks, local_ray_callbacks(ray_callbacks) as active:
            listeners = Listeners(dask_callbacks, active)
            values = _compute(dsk, keys, ray_remote_args or {}, listeners, self._most_at_a_time(num_workers))
            result = _nested(keys, values)
            listeners.got(result)
        return result

    def persist(
        self,
        collections: Iterable[Any],
        optimize_graph: bool = True,
        *,
        ray_remote_args: Mapping[str, Any] | None = None,
        ray_callbacks: Iterable[Any] | None = None,
        **_: Any,
    ) -> list[Any]:
        """Submit all tasks of the collections at once; return the collections with futures in place of these tasks.

        Dask calls this from ``persist``. The values live as long as a collection that has their futures. ``persist`` waits
        only for the submission. So for callbacks the computation ends with the submission, and Dask's ``posttask`` is not
        called.
        """
        collections = list(collections)
        expression = collections_to_expr(collections, optimize_graph).optimize()
        keys = [list(flatten(group)) for group in expression.__dask_keys__()]
        with local_callbacks() as dask_callbacks, local_ray_callbacks(ray_callbacks) as active:
            listeners = Listeners(dask_callbacks, active)
            futures = _submit(expression, [key for group in keys for key in group], ray_remote_args or {}, listeners)
            listeners.got(tuple(tuple(futures[key].ref for key in group) for group in keys))
        persisted = []
        for collection, group in zip(collections, keys, strict=True):
            rebuild, state = collection.__dask_postpersist__()
            persisted.append(rebuild({key: futures[key] for key in group}, *state))
        return persisted

    def _most_at_a_time(self, num_workers: int | None) -> int | None:
        most = num_workers if num_workers is not None else self._limit or dask.config.get("num_workers", None)
        if most is not None and (not isinstance(most, int) or isinstance(most, bool)):
            raise TypeError(f"num_workers must be an int, not {type(most).__name__}")
        if most is not None and most < 1:
            raise ValueError(f"num_workers must be at least 1, but is {most}")
        return most

    def __repr__(self) -> str:
        return "<Dask on minray>" if self._limit is None else f"<Dask on minray, {self._limit} tasks at a time>"


minray_dask_get = DaskScheduler()
minray_dask_get_sync = DaskScheduler(limit=1)


def enable_dask_on_minray(shuffle: str | None = "tasks", use_shuffle_optimization: bool = True) -> dask.config.set:
    """Make minray Dask's scheduler, for good or as a context manager.

    ``shuffle`` is the method by which dataframes are shuffled: "tasks" works on several nodes, "disk" on one.
    ``use_shuffle_optimization`` merges tasks with those that only take items of their results.
    """
    return dask.config.set(
        {"scheduler": minray_dask_get, "dataframe.shuffle.method": shuffle, SPLIT_RESULTS: use_shuffle_optimization}
    )


def disable_dask_on_minray() -> dask.config.set:
    """Undo ``enable_dask_on_minray``."""
    return dask.config.set({"scheduler": None, "dataframe.shuffle.method": None, SPLIT_RESULTS: True})


def minray_dask_persist(*collections: Any, **options: Any) -> Any:
    """Call ``dask.persist`` with minray's scheduler, whatever scheduler Dask is configured to use."""
    return dask.persist(*collections, scheduler=minray_dask_get, **options)


def _compute(dsk: Any, keys: Any, remote_args: Mapping[str, Any], listeners: Listeners, limit: int | None) -> dict[Any, Any]:
    """Return the values of all wanted keys."""
    graph = _prepared(dsk, keys, remote_args, listeners)
    del dsk
    _connect()
    submission = GraphSubmission(graph, listeners, limit)
    done = False
    try:
        listeners.begin(graph)
        submission.submit_all()
        listeners.submitted_all([submission.results[key] for key in graph.wanted], graph)
        submission.wait_all()
        values = submission.fetch(graph.wanted)
        done = True
        return values
    finally:
        if not done:
            submission.cancel()
        listeners.end(not done)


def _prepared(dsk: Any, keys: Any, remote_args: Mapping[str, Any], listeners: Listeners) -> Graph:
    """Make a graph, in which tasks are merged unless somebody listens to each of them, or Dask is configured otherwise."""
    may_split = not listeners and dask.config.get(SPLIT_RESULTS, True)
    may_chain = not listeners and dask.config.get(FUSE, None) is not False
    return prepare(dsk, keys, remote_args, may_split=may_split, may_chain=may_chain)


def _submit(dsk: Any, keys: list[Any], remote_args: Mapping[str, Any], listeners: Listeners) -> dict[Any, Future]:
    """Submit the tasks of these keys and return their futures."""
    graph = _prepared(dsk, keys, remote_args, listeners)
    _connect()
    submission = GraphSubmission(graph, listeners, UNLIMITED)
    done = False
    try:
        listeners.begin(graph)
        submission.submit_all()
        results = {key: submission.results[key] for key in keys}
        listeners.submitted_all(list(results.values()), graph)
        done = True
    finally:
        listeners.end(not done)
    return {
        key: Future(key, value if isinstance(value, ray.ObjectRef) else ray.put(value)) for key, value in results.items()
    }


def _connect() -> None:
    if not ray.is_initialized():
        ray.init()


def _nested(keys: Any, values: Mapping[Any, Any]) -> Any:
    return tuple(_nested(key, values) for key in keys) if isinstance(keys, list) else values[keys]
