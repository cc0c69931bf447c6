"""Gathers the items of tasks with ``num_returns="dynamic"`` in one value: the value of the task's reference.

Ray: the dynamic returns of TaskManager::CompletePendingTask in src/ray/core_worker/task_manager.cc

Such a task streams its items like any generator, so attempts, lost items and their reconstruction are those of streams. No
user reads the stream. When the task has ended, its value refers to all items, and the stream is dropped. The value is made
here, at the owner, and so is never lost.

If the body raises, its error is the last item. The error of the system, or of a cancelled task, is the value itself.
"""

from __future__ import annotations

from typing import Any

from minray.common.ids import item_id, return_id
from minray.core_worker.records.pending_task import PendingTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.generators import Generators
from minray.errors.packed_exception import is_raised_by_body
from minray.protocol.base import Address
from minray.protocol.core_worker import RefInfo
from minray.values import serialization
from minray.values.dynamic_generator import DynamicObjectRefGenerator
from minray.values.object_ref import ObjectRef


class AllGenerators(Generators):
    """Generators that are read item by item, and those whose items come in one value."""

    def __init__(self, own: Address, *parts: Any) -> None:
        """Gather for the process at the address ``own``; ``parts`` are those of ``Generators``."""
        super().__init__(*parts)
        self._own = own

    def on_ended(self, task: PendingTask, value: StoredObject | None) -> StoredObject | None:
        is_first = task.prepared.template.is_dynamic and self.streams.is_open(task.task_id)
        value = super().on_ended(task, value)
        if not is_first or value is None:
            return value
        if not value.is_error:
            self._gather(task)
            value = None
        elif is_raised_by_body(bytes(value.data)) and not task.cancelled:
            value.unseen -= 1  # the task's own reference has no error
            self._gather(task)
            value = None
        self.on_dropped(task.task_id)
        return value

    def _gather(self, task: PendingTask) -> None:
        """Store the value that refers to all items of a stream that has ended."""
        assert task.stream is not None and task.stream.end is not None
        refs: list[ObjectRef[Any]] = [
            ObjectRef(item_id(task.task_id, number), self._own, None) for number in range(1, task.stream.end + 1)
        ]
        made = serialization.serialize(DynamicObjectRefGenerator(refs))
        nested = [RefInfo(ref._id, ref._owner, b"") for ref in made.refs]
        self._objects.on_result(return_id(task.task_id, 1), StoredObject(made.data, (), False, nested))
