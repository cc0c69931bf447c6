"""A joblib backend, also for scikit-learn: ``register_minray()``, then ``joblib.parallel_config(backend="minray")``.

Ray: python/ray/util/joblib/

Programs written for Ray call ``register_ray()`` and name the backend "ray", which is the same backend. ``n_jobs=-1`` is the
number of CPUs of the cluster. Large arguments (the arrays of a grid search) are put into the object store once for all calls
of one ``Parallel`` that take them. Workers read them there without a copy.
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

__all__ = ["register_minray", "register_ray"]

CALLBACKS_TIMEOUT_S = 5.0
LARGE_BYTES = 100 * 1024
"""Arguments larger than this many bytes are put into the object store once; smaller ones travel with each call."""


class MinrayBackend(AutoBatchingMixin, ParallelBackendBase):  # type: ignore[misc]
    """The joblib backend; an instance serves one ``Parallel`` at a time."""

    supports_retrieve_callback = True
    supports_inner_max_num_threads = True
    default_n_jobs = -1

    def __init__(self, ray_remote_args: dict[str, Any] | None = None, **kwargs: Any) -> None:
        """``ray_remote_args``: options of the workers' actors."""
        super().__init__(**kwargs)
        self._remote_args = ray_remote_args
        self._crew: Crew | None = None
        self._refs: dict[int, tuple[weakref.ref[Any], Any]] = {}
        """Arguments that were put for this call of the ``Parallel``: by ``id``, (weak reference, object reference).

        An entry is removed when the argument is freed, and before the next call, since the program may change it until then.
        """

    def effective_n_jobs(self, n_jobs: int | None) -> int:
        """Return the number of workers for ``n_jobs``. -1 is the number of CPUs of the cluster, -2 one less, and so on."""
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
        # joblib (1.6) leaves undispatched batches of an aborted call there, and would take them for batches of this call.
        self.parallel._ready_batches = queue.Queue()

    def submit(self, func: Any, callback: Callable[[Future[Any]], object] | None = None) -> Future[Any]:
        """Submit a batch of calls, ``func``."""
        assert self._crew is not None, "configured"
        batch, refs = self._lighten(func)
        future = self._crew.submit(_run, batch, *refs)
        if callback is not None:
            future.add_done_callback(partial(self._callbacks.call, callback))
        return future

    def retrieve_result_callback(self, out: Future[Any]) -> Any:
        return out.result()

    def abort_everything(self, ensure_ready: bool = True) -> None:
        """End all calls, because one has raised; with ``ensure_ready`` begin with new workers."""
        self._dismiss(Crew.kill)
        if ensure_ready:
            self._begin()

    def terminate(self) -> None:
        self._dismiss(Crew.close)
        self.reset_batch_stats()

    def _dismiss(self, end: Callable[[Crew], None]) -> None:
        """End the crew, if there is one, after running callbacks have returned: these may still submit to it."""
        if self._crew is not None:
            self._callbacks.end()
            end(self._crew)
        self._crew = None
        self._refs.clear()

    def _lighten(self, batch: Any) -> tuple[Any, list[Any]]:
        """Return the batch with ``_Large`` in place of its large arguments, and the references to these arguments."""
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
        """Put a value, unless it was put for this call, and return its reference; None for a value without weak
        references."""
        key = id(value)
        if key not in self._refs:
            try:
                original = weakref.ref(value, lambda _: self._refs.pop(key, None))
            except TypeError:
                return None
            self._refs[key] = original, ray.put(value)
        return self._refs[key][1]


class _Callbacks:
    """Passes the results of one crew to joblib's callbacks, until ``end``.

    A killed crew fails its remaining calls a little later. The next call of the same ``Parallel`` may have begun by then.
    Callbacks of the old call would make the new one fail, or dispatch its batches. So ``end`` stops callbacks.
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
        """Call no more callbacks, and wait until running ones have returned, at most ``CALLBACKS_TIMEOUT_S``."""
        with self._changed:
            self.are_over = True
            self._changed.wait_for(lambda: not self._running, CALLBACKS_TIMEOUT_S)


class _Large:
    """Stands for a large argument in a batch; ``index`` is that of its reference."""

    def __init__(self, index: int) -> None:
        self.index = index


def _size(value: Any) -> int:
    """Return a value's size in bytes, roughly; for an array that is a view, the size of the view. 0 if it is unknown."""
    try:
        size = getattr(value, "nbytes", 0)
        return max(size if isinstance(size, int) else 0, sys.getsizeof(value, 0))
    except Exception:
        return 0


def _run(batch: Any, *large: Any) -> Any:
    """Run a batch, in the worker, with its large arguments in their places."""

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
    """Make the backend known to joblib as "ray", for programs written for Ray."""
    register_parallel_backend("ray", MinrayBackend)
