"""Results in the order in which they are ready: ``as_completed`` for references, ``map_unordered`` for a task's arguments.

Ray: python/ray/util/helpers.py

This file uses the public API alone, so that it also runs on Ray. Both functions fetch results in portions of ``chunk_size``,
since waiting for each result alone would cost a call of ``wait`` per result. ``kwargs`` are passed to ``wait``: ``timeout``
(seconds for one portion, which may then be smaller) and ``fetch_local``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from minray.api.calls import get, wait

__all__ = ["as_completed", "map_unordered"]

DEFAULT_CHUNK_SIZE = 10
DEFAULT_BACKPRESSURE_SIZE = 100


def as_completed(
    refs: Sequence[Any], *, chunk_size: int = DEFAULT_CHUNK_SIZE, yield_obj_refs: bool = False, **kwargs: Any
) -> Iterator[Any]:
    """Return an iterator over the values of references, in the order in which they are ready.

    With ``yield_obj_refs`` it returns the references instead. Within a portion of ``chunk_size`` the order is that of
    ``refs``. The exception of a task is raised when its portion is reached. Raises ValueError for a ``chunk_size`` below 1.
    """
    _check(chunk_size, kwargs)
    return _drain(list(refs), chunk_size, yield_obj_refs, kwargs)


def map_unordered(
    fn: Any,
    items: Iterable[Any],
    *,
    backpressure_size: int | None = DEFAULT_BACKPRESSURE_SIZE,
    chunk_size: int = DEFAULT_CHUNK_SIZE,
    yield_obj_refs: bool = False,
    **kwargs: Any,
) -> Iterator[Any]:
    """Return an iterator over the results of ``fn.remote(item)`` for all items, in the order in which they are ready.

    At most ``backpressure_size`` tasks are submitted whose results were not returned yet (None: no limit). Items are taken
    from the iterable as late as that allows, and a portion is not larger than that. With ``yield_obj_refs`` the iterator
    returns references instead of values. Raises ValueError if ``backpressure_size`` or ``chunk_size`` is below 1.
    """
    _check(chunk_size, kwargs)
    if backpressure_size is not None and backpressure_size < 1:
        raise ValueError(f"backpressure_size must be at least 1, not {backpressure_size}")
    return _map(fn, iter(items), backpressure_size, chunk_size, yield_obj_refs, kwargs)


def _check(chunk_size: int, kwargs: dict[str, Any]) -> None:
    if chunk_size < 1:
        raise ValueError(f"chunk_size must be at least 1, not {chunk_size}")
    if "num_returns" in kwargs:
        raise ValueError("num_returns does not go together with chunk_size, which means the same here")


def _drain(pending: list[Any], chunk_size: int, yield_obj_refs: bool, kwargs: dict[str, Any]) -> Iterator[Any]:
    while pending:
        portion, pending = _next_portion(pending, chunk_size, yield_obj_refs, kwargs)
        yield from portion


def _map(
    fn: Any, items: Iterator[Any], limit: int | None, chunk_size: int, yield_obj_refs: bool, kwargs: dict[str, Any]
) -> Iterator[Any]:
    pending: list[Any] = []
    while True:
        room = None if limit is None else limit - len(pending)
        pending += [fn.remote(item) for item in islice(items, room)]
        if not pending:
            return
        portion, pending = _next_portion(pending, chunk_size, yield_obj_refs, kwargs)
        yield from portion


def _next_portion(
    pending: list[Any], chunk_size: int, yield_obj_refs: bool, kwargs: dict[str, Any]
) -> tuple[list[Any], list[Any]]:
    """Wait for a portion; return its values (or references) and the references that are left."""
    ready, rest = wait(pending, num_returns=min(chunk_size, len(pending)), **kwargs)
    return (ready if yield_obj_refs else get(ready)), rest
