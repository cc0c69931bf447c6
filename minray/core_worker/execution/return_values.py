"""Turns the value that user code returned into the call's results: none, one, several, or the items of a generator.

Ray: store_task_outputs in python/ray/_raylet.pyx

This runs in the threads that run user code. Either all results are kept or none, with one exception, which is Ray's: a
generator with ``num_returns=k`` fills its returns as it yields, and when it raises, the items yielded so far stay. If it
yields too many items, or raises when all returns are filled, nothing stays: otherwise no reference would be left for its
error.
"""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from minray.common.bounds import BOUNDS
from minray.common.config import TASK_RPC_INLINED_BYTES_LIMIT
from minray.common.ids import return_id
from minray.core_worker.fetching.results import UNWANTED, ResultKeeper, check_references
from minray.core_worker.records.received_task import Result
from minray.core_worker.records.stored_object import StoredObject
from minray.platform.base import Parker, UserCode
from minray.values import serialization
from minray.values.serialization import Serialized

if TYPE_CHECKING:
    from minray.core_worker.records.received_task import ReceivedTask


class BrokenOff(Exception):
    """Raised when a generator that fills several return values has raised, or has yielded too few."""

    def __init__(self, results: list[Result], error: Exception) -> None:
        super().__init__()
        self.results = results
        self.error = error


class ReturnValues:
    """Stores the return values of the calls that run in one process."""

    def __init__(
        self, results: ResultKeeper, user_code: UserCode, most_references: int = BOUNDS.max_references_per_answer
    ) -> None:
        self._results = results
        self._user_code = user_code
        self._most_references = most_references

    def keep(self, task: ReceivedTask, result: Any) -> list[Result]:
        """Serialize and store the value that a call returned, and return one ``Result`` per return value.

        Raises ValueError if the value does not match ``num_returns``, BrokenOff, and the errors of pickling and storing.
        The value that a constructor returns is dropped: its reference stands for the actor.
        """
        template = task.header.template
        if template.actor is not None:
            return []
        if template.is_streaming:  # Its items are its results. In a store, nobody would free its own value.
            own = serialization.serialize(None).copied()
            return [Result(StoredObject(own.data, own.buffers, False, ()), [], own.size())]
        if inspect.isgenerator(result):
            return self._fill(task, result)
        if template.num_returns == 1:
            return self._keep(task, [serialization.serialize(result)])
        if template.num_returns == 0:
            return []
        several = self.exactly(result, template.num_returns, template.name)
        return self._keep(task, [serialization.serialize(value) for value in several])

    @staticmethod
    def exactly(result: Any, count: int, name: str) -> list[Any]:
        """Return the ``count`` values of an iterable; raise ValueError if there are more or fewer.

        The iterable may be endless: at most ``count + 1`` values are looked at.
        """
        try:
            values = list(itertools.islice(result, count + 1))
        except TypeError:
            raise ValueError(
                f"task {name} has num_returns={count}, but returned one object of type {type(result).__name__}"
            ) from None
        if len(values) != count:
            found = len(result) if hasattr(result, "__len__") else len(values) if len(values) < count else "more"
            raise ValueError(f"task {name} has num_returns={count}, but returned {found} objects")
        return values

    def discard(self, task: ReceivedTask, results: list[Result]) -> None:
        """Delete the results that were stored, and the one that was being stored; return when the store knows it.

        Results that the owner has from an earlier attempt are left alone: the store would drop its copies of them, and this
        attempt does not make them again.
        """
        parkers: list[Parker] = []
        for index in range(1, len(results) + 2):
            if index not in task.rerun.unwanted:
                parkers.append(self._user_code.parker())
                self._results.discard_result(return_id(task.task_id, index), task.attempt, parkers[-1].release)
        for parker in parkers:
            parker.wait(None)

    def _keep(self, task: ReceivedTask, values: list[Serialized]) -> list[Result]:
        results: list[Result] = []
        room = TASK_RPC_INLINED_BYTES_LIMIT
        try:
            for value in values:
                room -= self._keep_next(task, value, results, room)
        except BaseException:
            self.discard(task, results)
            raise
        return results

    def _keep_next(self, task: ReceivedTask, value: Serialized, results: list[Result], room: int) -> int:
        """Store the next return value; return how many of its bytes go into the answer, which has ``room`` bytes left."""
        index = len(results) + 1
        if index in task.rerun.unwanted:
            results.append(UNWANTED)
        else:
            if value.refs:
                count = len(value.refs) + sum(len(result.refs) for result in results)
                check_references(count, self._most_references)
            object_id = return_id(task.task_id, index)
            results.append(self._results.keep_result(object_id, task.attempt, value, task.header.owner, room))
        return results[-1].inlined

    def _fill(self, task: ReceivedTask, generator: Iterator[Any]) -> list[Result]:
        name, count = task.header.template.name, task.header.template.num_returns
        results: list[Result] = []
        room = TASK_RPC_INLINED_BYTES_LIMIT
        try:
            for value in itertools.islice(generator, count):
                room -= self._keep_next(task, serialization.serialize(value), results, room)
            if len(results) < count:
                raise ValueError(f"task {name} has num_returns={count}, but yielded {len(results)} objects")
        except Exception as error:
            raise BrokenOff(results, error) from None
        except BaseException:
            self.discard(task, results)
            raise
        try:
            if next(generator, generator) is not generator:
                raise ValueError(f"task {name} has num_returns={count}, but yielded more objects")
        except BaseException:
            self.discard(task, results)
            raise
        return results
