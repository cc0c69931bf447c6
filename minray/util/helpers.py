"""Results as they come: ``as_completed`` over references, ``map_unordered`` over the arguments of a task.

Ray: python/ray/util/helpers.py

Use the public API alone, so that the same file runs on Ray. Both hand results over in portions (``chunk_size``): waiting
for each alone costs a question per result. What is given to ``wait`` besides goes through ``kwargs`` (``timeout``: of one
portion, which is smaller then; ``fetch_local``).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from minray.api.calls import get, wait

DEFAULT_CHUNK_SIZE = 10
DEFAULT_BACKPRESSURE_SIZE = 100


def as_completed(
    refs: Sequence[Any], *, chunk_size: int = DEFAULT_CHUNK_SIZE, yield_obj_refs: bool = False, **kwargs: Any
) -> Iterator[Any]:
    """The values of these references, or with ``yield_obj_refs`` the references, those that are ready first.

    Within a portion the order is that of ``refs``. Raises what a task has raised when its value is reached, and ValueError
    for a ``chunk_size`` below 1.
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
    """The results of ``fn.remote(item)`` for all items, those that are ready first.

    At most ``backpressure_size`` results have been asked for and not handed over (None: no limit); items are taken from the
    iterable as late as that allows, and portions are not larger than that. Raises ValueError if it is below 1.
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
    """A portion, and the references that are left."""
    ready, rest = wait(pending, num_returns=min(chunk_size, len(pending)), **kwargs)
    return (ready if yield_obj_refs else get(ready)), rest
