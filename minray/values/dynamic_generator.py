"""The value of a task with ``num_returns="dynamic"``: references to all that its generator has yielded.

Ray: DynamicObjectRefGenerator in python/ray/_private/object_ref_generator.py, docs "Generators" (before "Ray Generators")

``get`` of such a task's reference waits until the task has ended. Ray calls this way deprecated: a streaming generator gives
each reference as soon as its value exists.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Generic, TypeVar

from minray.values.object_ref import ObjectRef

T = TypeVar("T", covariant=True)


class DynamicObjectRefGenerator(Generic[T]):
    """References to what a generator has yielded, in its order. Iterating takes them out; another ``get`` has all again."""

    def __init__(self, refs: Iterable[ObjectRef[T]]) -> None:
        self._refs = deque(refs)

    def __iter__(self) -> Iterator[ObjectRef[T]]:
        while self._refs:
            yield self._refs.popleft()

    def __len__(self) -> int:
        return len(self._refs)
