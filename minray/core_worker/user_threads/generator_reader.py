"""The calls of user threads about generators: wait for the next item, take it, drop the rest.

Ray: ObjectRefGenerator's calls into CoreWorker::TryReadObjectRefStream and PeekObjectRefStream

An item's object id is known before the item exists. Hence a thread that waits for the next item waits for that object, and
parks as in any ``get``. Behind the last item the memory store has ``END_OF_STREAM``. A thread takes an item by making the
``ObjectRef`` for the reference that the stream has held until now, and posts that it did. No interrupt is raised in this
file (see ``platform.threads.main_thread``), so that no item is half taken.
"""

from __future__ import annotations

import concurrent.futures
from collections.abc import Callable
from typing import Any

from minray.common.ids import item_id, return_id
from minray.core_worker.submission.generators import END_OF_STREAM
from minray.core_worker.user_threads.port import UserPort
from minray.errors.tracebacks import hides_from_pytest
from minray.values.object_ref import ObjectRef
from minray.values.object_ref_generator import ObjectRefGenerator

__tracebackhide__ = hides_from_pytest

COUNTS_REFERENCES = True
"""See ``common/package.py``: an interrupt waits until these frames have counted."""


class GeneratorReader:
    """Reads the generators of one process; implements ``object_ref_generator.ItemReader``."""

    def __init__(self, port: UserPort, wait: Callable[[list[ObjectRef[Any]], int, float | None, bool], Any]) -> None:
        """Make the reader of one process; ``wait`` is ``ObjectReader.wait``."""
        self._wait = wait
        self._own = port.process.address
        self._drop_ref = port.drop_ref
        self._objects = port.store.objects
        self._waiting = port.waiting
        self._generators = port.submission.generators
        self._call_sites = port.call_sites
        self._user_code = port.process.platform.user_code
        self._post = self._user_code.post
        self._post_later = self._user_code.post_later

    def new(self, task_id: bytes) -> ObjectRefGenerator[Any]:
        completed: ObjectRef[None] = ObjectRef(return_id(task_id, 1), self._own, self._drop_ref)
        return ObjectRefGenerator(completed, self)

    def peek(self, task_id: bytes, number: int) -> ObjectRef[Any]:
        return ObjectRef(item_id(task_id, number), self._own, None)

    def wait_for(self, task_id: bytes, number: int) -> None:
        if item_id(task_id, number) not in self._objects:
            self._wait([self.peek(task_id, number)], 1, None, False)

    def future_of(self, task_id: bytes, number: int) -> concurrent.futures.Future[None]:
        object_id = item_id(task_id, number)
        if object_id in self._objects:  # if this driver has left its cluster, all ``user_code`` futures have failed
            here = concurrent.futures.Future[None]()
            here.set_result(None)
            return here
        known = self._user_code.future()

        def on_known() -> None:
            if known.set_running_or_notify_cancel():
                known.set_result(None)

        # A cancelled future stops waiting: its generator may be dropped next, and then the item never comes.
        self._waiting.follow(known, object_id, self._own, on_known)
        return known

    def is_here(self, task_id: bytes, number: int) -> bool:
        stored = self._objects.get(item_id(task_id, number))
        return stored is not None and stored is not END_OF_STREAM and not self._waiting.must_fetch(stored)

    def is_end(self, task_id: bytes, number: int) -> bool:
        return self._objects.get(item_id(task_id, number)) is END_OF_STREAM

    def take_next(self, generator: ObjectRefGenerator[Any]) -> ObjectRef[Any] | None:
        task_id, number = generator._next()
        if self.is_end(task_id, number):
            return None
        object_id = item_id(task_id, number)
        if self._call_sites is not None:
            self._call_sites.note([object_id], "generator item")
        generator._read = number
        self._post(self._generators.on_read, task_id, number)
        return ObjectRef(object_id, self._own, self._drop_ref)

    def drop(self, task_id: bytes) -> None:
        self._post_later(self._generators.on_dropped, task_id)
