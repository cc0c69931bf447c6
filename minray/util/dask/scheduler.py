"""The scheduler that Dask calls: ``compute`` and ``persist`` on a cluster.

Ray: python/ray/util/dask/scheduler.py

For Dask a scheduler is something to call with a graph and keys; one that has a ``persist`` is asked for futures instead of
values. ``get_sync`` runs one task at a time, in Dask's order, for whoever looks for a mistake.

What is missing: Dask's annotations ``workers``, ``priority``, ``retries`` and ``allow_other_workers`` are for
dask.distributed and mean nothing here; ``ray_remote_args`` says the same in the words of ``@remote``.
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
from .graph import prepare
from .submission import UNLIMITED, Submission

SPLIT_RESULTS = "minray.split-results"
"""In Dask's configuration: whether tasks are merged with those that take their results apart."""


class DaskScheduler:
    """Pass it to Dask as ``scheduler=``. All instances are alike but for ``limit``."""

    def __init__(self, limit: int | None = None) -> None:
        self._limit = limit
        """How many tasks may run or be about to; None: as many as are good."""

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
        """The values of ``keys``, nested like these. Dask calls this with what ``compute`` was given.

        ``ray_remote_args`` are options for every task, ``ray_callbacks`` RayDaskCallbacks, ``num_workers`` how many tasks
        may run at a time. What other schedulers of Dask understand is ignored, as they do. Raises what a task has raised,
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
        """The same collections with futures in the place of what is to be computed; their tasks are submitted, all at once.

        Dask calls this from ``persist``. The values live as long as a collection, or another one made of it, does.
        Callbacks hear of the submission; that is all that ``persist`` waits for, so the end comes with it, and Dask's
        ``posttask`` does not come.
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
    """Make this Dask's scheduler, for good or as a context manager.

    ``shuffle`` is how dataframes are shuffled: "tasks" works on several nodes, "disk" on one. ``use_shuffle_optimization``
    lets a task whose result is only taken apart return its pieces.
    """
    return dask.config.set(
        {"scheduler": minray_dask_get, "dataframe.shuffle.method": shuffle, SPLIT_RESULTS: use_shuffle_optimization}
    )


def disable_dask_on_minray() -> dask.config.set:
    """Undo ``enable_dask_on_minray``."""
    return dask.config.set({"scheduler": None, "dataframe.shuffle.method": None, SPLIT_RESULTS: True})


def minray_dask_persist(*collections: Any, **options: Any) -> Any:
    """``dask.persist`` on a cluster, whatever scheduler Dask is set to."""
    return dask.persist(*collections, scheduler=minray_dask_get, **options)


def _compute(dsk: Any, keys: Any, remote_args: Mapping[str, Any], listeners: Listeners, limit: int | None) -> dict[Any, Any]:
    """The values of all wanted keys."""
    graph = prepare(dsk, keys, remote_args, may_split=not listeners and dask.config.get(SPLIT_RESULTS, True))
    del dsk
    _connect()
    submission = Submission(graph, listeners, limit)
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


def _submit(dsk: Any, keys: list[Any], remote_args: Mapping[str, Any], listeners: Listeners) -> dict[Any, Future]:
    """Futures of all these keys, whose tasks are submitted."""
    graph = prepare(dsk, keys, remote_args, may_split=not listeners and dask.config.get(SPLIT_RESULTS, True))
    _connect()
    submission = Submission(graph, listeners, UNLIMITED)
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
