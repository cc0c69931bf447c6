"""Futures: a persisted collection holds them in place of its values, each with a reference.

Ray: python/ray/util/dask/__init__.py (there the references themselves stand in the graph, and ``dask.persist`` is patched)

Dask recognizes futures by ``__dask_future__`` and ``key``, and replaces one by its key as soon as it examines a graph.
Therefore the key itself carries the reference. Dask may copy it into an alias, a fused task or a set of dependencies: the
value lives as long as any graph contains the key, without a separate table. That also holds for pickled graphs. Tasks of the
scheduler are the exception: they receive the values of their dependencies, and the keys are plain strings there.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Container, Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple

from dask.base import collections_to_expr, unpack_collections
from dask.task_spec import TaskRef

import minray as ray

_numbers = itertools.count()
_given: ContextVar[Container[Any]] = ContextVar("minray_given", default=())


@contextlib.contextmanager
def given(keys: Container[Any]) -> Iterator[None]:
    """Pickle these keys as plain strings while the context is open, since their values are sent as arguments."""
    token = _given.set(keys)
    try:
        yield
    finally:
        _given.reset(token)


class FutureKey(str):
    """The key of a future: a unique string that carries the reference to the value."""

    ref: Any
    task_key: Any
    """The key of the task that makes the value."""

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (str, (str(self),)) if self in _given.get() else (_key, (str(self), self.ref, self.task_key))


def _key(text: str, ref: Any, task_key: Any) -> FutureKey:
    key = FutureKey(text)
    key.ref, key.task_key = ref, task_key
    return key


class Future(TaskRef):  # type: ignore[misc]
    """One value of a persisted collection, computed or still being computed."""

    __slots__ = ()
    __dask_future__ = True

    def __init__(self, key: Any, ref: Any) -> None:
        super().__init__(_key(f"{key}-future-{next(_numbers)}-{ref.hex()}", ref, key))

    @property
    def ref(self) -> Any:
        return self.key.ref

    def result(self, timeout: float | None = None) -> Any:
        """Return the value, or raise the exception of its task. Waits at most ``timeout`` seconds (None: for ever), then
        raises GetTimeoutError."""
        return value_of(self.key.task_key, self.ref, timeout)

    def done(self) -> bool:
        """Whether the value is ready, or its task has failed."""
        return bool(ray.wait([self.ref], timeout=0, fetch_local=False)[0])

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return (TaskRef if self.key in _given.get() else _future), (self.key,)

    def __dask_tokenize__(self) -> tuple[str, str]:
        return "Future", str(self.key)

    def __repr__(self) -> str:
        return f"<Future {self.key}>"


def _future(key: FutureKey) -> Future:
    future = Future.__new__(Future)
    TaskRef.__init__(future, key)
    return future


class Waited(NamedTuple):
    """The result of ``wait``."""

    done: list[Future]
    not_done: list[Future]


def futures_of(*collections: Any) -> list[Future]:
    """Return the futures in persisted collections; a collection that was not persisted has none."""
    found, _ = unpack_collections(*collections)
    return list({future.key: future for collection in found for future in _futures_in(collection)}.values())


def _futures_in(collection: Any) -> Iterator[Future]:
    for node in dict(collections_to_expr(collection, optimize_graph=False).__dask_graph__()).values():
        if isinstance(node, Future):
            yield node


def wait(*collections: Any, timeout: float | None = None) -> Waited:
    """Wait until persisted collections are computed, at most ``timeout`` seconds (None: for ever). A failed value counts as
    done."""
    futures = futures_of(*collections)
    if not futures:
        return Waited([], [])
    refs = [future.ref for future in futures]
    ready = set(ray.wait(refs, num_returns=len(refs), timeout=timeout, fetch_local=False)[0])
    return Waited([f for f in futures if f.ref in ready], [f for f in futures if f.ref not in ready])


def value_of(key: Any, ref: Any, timeout: float | None = None) -> Any:
    """Return the value of a key. If its task has raised, raise that exception with a note that names the key."""
    try:
        return ray.get(ref, timeout=timeout)
    except Exception as raised:
        error = raised
    cause = getattr(error, "cause", None)
    if isinstance(error, ray.exceptions.RayTaskError) and cause is not None:
        if cause.__traceback__ is None and cause.__cause__ is None:
            cause.__cause__ = error
        error = cause
    if not isinstance(error, ray.exceptions.GetTimeoutError):
        error.add_note(f"the Dask key {key!r} has failed")
    try:
        raise error
    finally:
        # An error's traceback refers to this frame, which would keep the error and all objects of the frames below.
        del error, cause
