"""Callbacks for the progress of a graph: Dask's own, and those that Dask-on-Ray adds.

Ray: python/ray/util/dask/callbacks.py (names and arguments are Ray's)

Dask's own callbacks run in the driver: ``pretask`` when a task is submitted, ``posttask`` when it has finished. The result
that they see is a reference. So ``dask.diagnostics`` works, and its ``ProgressBar`` is the progress bar here too. Four of
Ray's six hooks run in the driver, around submission. ``ray_pretask`` and ``ray_posttask`` run in the worker, around the
task, and must be picklable.

Callbacks see each key of a graph. So with callbacks, tasks are not merged with those that take their results apart.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

from dask.callbacks import Callback, unpack_callbacks
from dask.diagnostics import ProgressBar
from dask.task_spec import DataNode

from .graph import Graph
from .shipping import TaskHooks, places_of_dependencies

HOOKS = ("ray_presubmit", "ray_postsubmit", "ray_pretask", "ray_posttask", "ray_postsubmit_all", "ray_finish")


class RayCallback(NamedTuple):
    """The hooks of one callback; None for a hook that it does not have."""

    ray_presubmit: Any
    """``(task, key, deps)``; if it returns anything but None, that is the result, and no task is submitted."""
    ray_postsubmit: Any
    """``(task, key, deps, object_ref)``, after submission."""
    ray_pretask: Any
    """``(key, object_refs)``, in the worker; ``object_refs`` are the values that the task depends on. Its result is passed
    to ``ray_posttask``."""
    ray_posttask: Any
    """``(key, result, pre_state)``, in the worker."""
    ray_postsubmit_all: Any
    """``(object_refs, dsk)``, after all tasks are submitted."""
    ray_finish: Any
    """``(result)``, when the computation has ended."""


class RayCallbacks(NamedTuple):
    """The hooks of several callbacks."""

    ray_presubmit_cbs: Any
    ray_postsubmit_cbs: Any
    ray_pretask_cbs: Any
    ray_posttask_cbs: Any
    ray_postsubmit_all_cbs: Any
    ray_finish_cbs: Any


class RayDaskCallback(Callback):  # type: ignore[misc]
    """A Dask callback with the hooks of ``RayCallback``: keyword arguments, or methods with ``_`` before the name.

    Use it like any callback: ``with callback: ...``, or ``register`` and ``unregister``.
    """

    ray_active: ClassVar[set[RayCallback]] = set()
    """The active callbacks, which the next computation uses."""

    def __init__(self, **hooks: Any) -> None:
        for name in HOOKS:
            if hook := hooks.pop(name, None):
                setattr(self, f"_{name}", hook)
        super().__init__(**hooks)

    @property
    def _ray_callback(self) -> RayCallback:
        return RayCallback(*(getattr(self, f"_{name}", None) for name in HOOKS))

    def __enter__(self) -> RayDaskCallback:
        self._entered = self._ray_callback
        RayDaskCallback.ray_active.add(self._entered)
        super().__enter__()
        return self

    def __exit__(self, *exception: Any) -> None:
        super().__exit__(*exception)
        RayDaskCallback.ray_active.discard(self._entered)

    def register(self) -> None:
        RayDaskCallback.ray_active.add(self._ray_callback)
        super().register()

    def unregister(self) -> None:
        RayDaskCallback.ray_active.remove(self._ray_callback)
        super().unregister()


class ProgressBarCallback(RayDaskCallback, ProgressBar):  # type: ignore[misc]
    """Dask's progress bar, under the name that it has in Dask-on-Ray."""

    def __init__(self, **options: Any) -> None:
        ProgressBar.__init__(self, **options)


@contextlib.contextmanager
def local_ray_callbacks(callbacks: Any = None) -> Iterator[Any]:
    """Yield the given callbacks, or else the active ones. A computation within this one does not see active ones."""
    if callbacks is not None:
        yield callbacks
        return
    active, RayDaskCallback.ray_active = RayDaskCallback.ray_active, set()
    try:
        yield active
    finally:
        RayDaskCallback.ray_active = active


def unpack_ray_callbacks(callbacks: Any) -> RayCallbacks:
    """Return the hooks of several callbacks by kind. Missing hooks are left out, except ``ray_pretask`` and
    ``ray_posttask``: they come in pairs, so a missing one is None."""
    kinds = list(zip(*map(_hooks_of, callbacks or ()), strict=True)) or [()] * len(HOOKS)
    in_worker = ("ray_pretask", "ray_posttask")
    return RayCallbacks(
        *([hook for hook in kind if hook or name in in_worker] for name, kind in zip(HOOKS, kinds, strict=True))
    )


def _hooks_of(callback: Any) -> RayCallback:
    if isinstance(callback, RayDaskCallback):
        return callback._ray_callback
    if isinstance(callback, RayCallback):
        return callback
    raise TypeError(f"ray_callbacks takes RayDaskCallbacks, not {type(callback).__name__}")


class Listeners:
    """All callbacks of one computation."""

    def __init__(self, dask_callbacks: Any, ray_callbacks: Any) -> None:
        self._dask = tuple(dask_callbacks or ())
        _, self._start_state, self._pretask, self._posttask, _ = unpack_callbacks(self._dask)
        self._ray = unpack_ray_callbacks(ray_callbacks)
        self._started: list[Any] = []
        """Dask's callbacks whose ``start`` has been called, so that their ``finish`` must be called too."""
        self._dsk: dict[Any, Any] = {}
        self._state: dict[str, Any] = {}

    def __bool__(self) -> bool:
        return bool(self._dask) or any(self._ray)

    def begin(self, graph: Graph) -> None:
        if not self._dask:
            return
        self._dsk = graph.nodes
        for callback in self._dask:
            if callback[0]:
                callback[0](self._dsk)
            self._started.append(callback)
        self._state = _state_of(graph)
        for start_state in self._start_state:
            start_state(self._dsk, self._state)

    def before_submission(self, node: Any, key: Any, results: dict[Any, Any]) -> Any:
        """Return the first result that a ``ray_presubmit`` hook gives in place of the task's; None if there is none."""
        if self._ray.ray_presubmit_cbs:
            deps = {dependency: results[dependency] for dependency in node.dependencies}
            for hook in self._ray.ray_presubmit_cbs:
                if (result := hook(node, key, deps)) is not None:
                    return result
        return None

    def in_worker(self, node: Any, key: Any) -> TaskHooks | None:
        before, after = self._ray.ray_pretask_cbs, self._ray.ray_posttask_cbs
        return TaskHooks(key, places_of_dependencies(node), before, after) if any(before) or any(after) else None

    def submitted(self, node: Any, key: Any, results: dict[Any, Any], ref: Any) -> None:
        if self._dask:
            self._state["waiting"].pop(key, None)
            self._state["running"].add(key)
            self._state["cache"][key] = ref
            for pretask in self._pretask:
                pretask(key, self._dsk, self._state)
        if self._ray.ray_postsubmit_cbs:
            deps = {dependency: results[dependency] for dependency in node.dependencies}
            for hook in self._ray.ray_postsubmit_cbs:
                hook(node, key, deps, ref)

    def finished(self, key: Any, pid: int) -> None:
        if not self._dask:
            return
        self._state["running"].discard(key)
        self._state["finished"].add(key)
        ref = self._state["cache"].pop(key)
        for posttask in self._posttask:
            posttask(key, ref, self._dsk, self._state, pid)

    def submitted_all(self, refs: list[Any], graph: Graph) -> None:
        for hook in self._ray.ray_postsubmit_all_cbs:
            hook(refs, graph.nodes)

    def end(self, failed: bool) -> None:
        for *_, finish in self._started:
            if finish:
                finish(self._dsk, self._state, failed)

    def got(self, result: Any) -> None:
        for hook in self._ray.ray_finish_cbs:
            hook(result)


def _state_of(graph: Graph) -> dict[str, Any]:
    """Return the state that Dask's own schedulers show to callbacks; what has no meaning here stays empty."""
    dependencies = {key: set(node.dependencies) for key, node in graph.nodes.items()}
    data = {key: node.value for key, node in graph.nodes.items() if isinstance(node, DataNode)}
    return {
        "dependencies": dependencies,
        "waiting": {key: wanted for key, wanted in dependencies.items() if key not in data},
        "ready": [],
        "running": set(),
        "finished": set(),
        "released": set(),
        "cache": data,
    }
