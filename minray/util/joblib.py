"""joblib, and with it scikit-learn, on the cluster: ``register_minray()``, ``joblib.parallel_config(backend="minray")``.

Ray: python/ray/util/joblib/

Programs written for Ray call ``register_ray()`` and name the backend "ray"; it is the same one. ``n_jobs=-1`` is the number
of CPUs of the cluster. Large arguments (the arrays of a grid search) are put into the object store once for all calls of
one ``Parallel`` that take them, and are read there without a copy.
"""

from __future__ import annotations

import copy
import queue
import sys
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from joblib import register_parallel_backend
from joblib.parallel import AutoBatchingMixin, ParallelBackendBase

import minray as ray
from minray.api.calls import connect
from minray.util.crew import Crew, cluster_cpus

CALLBACKS_TIMEOUT_S = 5.0
LARGE_BYTES = 100 * 1024
"""What is larger is put into the store once; smaller values travel with each call."""


class MinrayBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """Runs the batches of one ``Parallel`` at a time."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    def __init__(self, ray_remote_args: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """``ray_remote_args``: options of the workers' actors."""
        super().__init__(**kwargs)
        self._remote_args = ray_remote_args
        self._crew: Crew | None = None
        self._refs: dict[int, tuple[weakref.ref[Any], Any]] = {}
        """What was put for this call of the ``Parallel``, by ``id``, for as long as the original lives. Before the next call
        the program may change it."""

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """How many workers ``n_jobs`` means; negative numbers count down from the number of CPUs of the cluster."""
        if n_jobs == 0:
            raise ValueError("n_jobs must not be 0: it is the number of workers, or -1 for all CPUs")
        if n_jobs is None:
            return 1
        if n_jobs > 0:
            return n_jobs
        connect()
        return max(1, cluster_cpus() + 1 + n_jobs)

    def configure(
        self, n_jobs: int = 1, parallel: Any = None, ray_remote_args: dict[str, Any] | None = None, **_: Any
    ) -> int:
        self.parallel = parallel
        self._n_jobs = self.effective_n_jobs(n_jobs)
        self._remote_args = ray_remote_args or self._remote_args
        self._begin()
        return self._n_jobs

    def _begin(self) -> None:
        threads = self.inner_max_num_threads
        initializer = None if threads is None else _limit_threads
        self._crew = Crew(self._n_jobs, initializer, (threads,) if initializer else (), remote_args=self._remote_args)
        self._callbacks = _Callbacks()

    def start_call(self) -> None:
        self._refs.clear()
        # joblib (1.6) leaves there what a call that was given up has not dispatched yet, and would take it for this one's.
        self.parallel._ready_batches = queue.Queue()

    def submit(self, func: Any, callback: Callable[[Future[Any]], object] | None = None) -> Future[Any]:
        """``func`` is a batch of calls."""
        assert self._crew is not None, "configured"
        batch, refs = self._lighten(func)
        future = self._crew.submit(_run, batch, *refs)
        if callback is not None:
            future.add_done_callback(partial(self._callbacks.call, callback))
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """A call has raised: the others are not wanted any more."""
        self._dismiss(Crew.kill)
        if ensure_ready:
            self._begin()

    def terminate(self) -> None:
        self._dismiss(Crew.close)
        self.reset_batch_stats()

    def _dismiss(self, end: Callable[[Crew], None]) -> None:
        """The crew, if there is one, when no callback runs any more: one that does may still submit to it."""
        if self._crew is not None:
            self._callbacks.end()
            end(self._crew)
        self._crew = None
        self._refs.clear()

    def _lighten(self, batch: Any) -> tuple[Any, list[Any]]:
        """The batch with ``_Large`` in the places of its large arguments, and references to these."""
        refs: list[Any] = []

        def light(value: Any) -> Any:
            ref = self._reference_to(value) if _size(value) > LARGE_BYTES else None
            if ref is None:
                return value
            if ref not in refs:
                refs.append(ref)
            return _Large(refs.index(ref))

        lightened = copy.copy(batch)
        lightened.items = [
            (function, tuple(map(light, args)), {name: light(value) for name, value in kwargs.items()})
            for function, args, kwargs in batch.items
        ]
        return lightened, refs

    def _reference_to(self, value: Any) -> Any:
        """None for what cannot be recognised when it comes again."""
        key = id(value)
        if key not in self._refs:
            try:
                original = weakref.ref(value, lambda _: self._refs.pop(key, None))
            except TypeError:
                return None
            self._refs[key] = original, ray.put(value)
        return self._refs[key][1]


class _Callbacks:
    """Tell joblib of the results of one crew.

    A crew that is killed fails what is left a little later, when the next call of the same ``Parallel`` may have begun: that
    would be made to fail, or its batches be dispatched by callbacks of the old one. So there is an end of callbacks.
    """

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._running = 0
        self.are_over = False

    def call(self, callback: Callable[[Future[Any]], object], future: Future[Any]) -> None:
        with self._changed:
            if self.are_over:
                return
            self._running += 1
        try:
            callback(future)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def end(self) -> None:
        """Those that run just now are waited for, and there are no other ones."""
        with self._changed:
            self.are_over = True
            self._changed.wait_for(lambda: not self._running, CALLBACKS_TIMEOUT_S)


class _Large:
    """Stands for a large argument."""

    def __init__(self, index: int) -> None:
        self.index = index


def _size(value: Any) -> int:
    """About; of an array that is a view, of what it shows. Nothing is known of what fails when it is asked."""
    try:
        size = getattr(value, "nbytes", 0)
        return max(size if isinstance(size, int) else 0, sys.getsizeof(value, 0))
    except Exception:
        return 0


def _run(batch: Any, *large: Any) -> Any:
    """In the worker."""

    def full(value: Any) -> Any:
        return large[value.index] if isinstance(value, _Large) else value

    batch.items = [
        (function, tuple(map(full, args)), {name: full(value) for name, value in kwargs.items()})
        for function, args, kwargs in batch.items
    ]
    return batch()


def _limit_threads(threads: int) -> None:
    from threadpoolctl import threadpool_limits

    threadpool_limits(threads)


def register_minray() -> None:
    """Make the backend known to joblib as "minray"."""
    register_parallel_backend("minray", MinrayBackend)


def register_ray() -> None:
    """Make it known as "ray", for programs that are written for Ray."""
    register_parallel_backend("ray", MinrayBackend)
