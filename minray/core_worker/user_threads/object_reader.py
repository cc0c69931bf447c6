"""The reads of user threads: get, wait, futures, why.

Ray: CoreWorker::Get, Wait and GetAsync in src/ray/core_worker/core_worker.h, as python/ray/_raylet.pyx calls them

A thread looks values up in the memory store. If one is missing it parks: it posts a waiter to the loop and sleeps until the
loop releases it. While a task of a worker is parked, its CPUs are lent, and the tasks queued behind it are given back
unstarted.

When the time of a ``get`` is up, the error names the references that are not ready, and what they wait for: the cause that
``why`` tells. Other processes may have to be asked for it, and a caller with a timeout does not want to wait much longer. So
the explanation gets a fraction of the timeout; a ``get`` that does not wait at all gets none.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import sys
from collections.abc import Sequence
from typing import Any

from minray.core_worker.fetching.store_provider import Fetched
from minray.core_worker.ownership.memory_store import Waiter
from minray.core_worker.records.large_object import LargeObject
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.user_calls import call_for
from minray.core_worker.user_threads.port import UserPort
from minray.errors.packed_exception import for_coroutines, unpack_exception
from minray.errors.tracebacks import hides_from_pytest
from minray.exceptions import GetTimeoutError, RayError
from minray.platform.base import Parker
from minray.protocol.base import Address
from minray.values import serialization
from minray.values.object_ref import ObjectRef

__tracebackhide__ = hides_from_pytest

COUNTS_REFERENCES = True
"""See ``common/package.py``: an interrupt waits until these frames have counted."""

logger = logging.getLogger(__name__)

MOST_NAMED = 3
"""Most references that the error of a timeout names; it counts the others."""
PATIENCE = 0.1
"""Part of the timeout that the explanation in this error may take."""
MOST_PATIENCE_S = 0.5
"""Most seconds that this explanation may take."""


class ObjectReader:
    """Reads values for the user threads of one process, and waits for them; safe in any thread except the loop's."""

    def __init__(self, port: UserPort) -> None:
        self._port = port
        self._user_code = port.process.platform.user_code
        self._warning_s = port.process.config.system_config.get_warning_s
        self._executor = port.execution.executor
        self._fetcher = port.fetcher
        self._waiting = port.waiting
        self._make_refs = port.objects.make_refs
        self._objects = port.store.objects

    def get(self, refs: Sequence[ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        """Return the values in order; raise the first error that is known, or GetTimeoutError."""
        deadline = None if timeout_s is None else self._user_code.time() + timeout_s
        values = self._known(refs)
        left_s = timeout_s
        while None in values:  # a loop, because a value that has come may be lost before this thread goes on
            missing = [ref for ref, stored in zip(refs, values, strict=True) if stored is None]
            if left_s is not None and left_s < 0:
                raise self._timed_out(missing, timeout_s)
            self._wait(missing, len(missing), True, left_s)
            values = self._known(refs)
            left_s = None if deadline is None else deadline - self._user_code.time() or -1.0
        found = [stored for stored in values if stored is not None]
        if any(stored.place is not None for stored in found):
            self._raise_first_error(found)
            found = self._reach(refs, found, timeout_s, deadline)
        return [self.value_of(stored, found) for stored in found]

    def _known(self, refs: Sequence[ObjectRef[Any]]) -> list[StoredObject | None]:
        """Look values up; if one is missing, raise the first error among the others."""
        values = [self._objects.get(ref._id) for ref in refs]
        if None in values:
            self._raise_first_error([stored for stored in values if stored is not None])
        return values

    def _raise_first_error(self, known: Sequence[StoredObject]) -> None:
        if error := next((stored for stored in known if stored.is_error), None):
            self.value_of(error, known)

    def _reach(
        self, refs: Sequence[ObjectRef[Any]], values: list[StoredObject], timeout_s: float | None, deadline: float | None
    ) -> list[StoredObject]:
        """Bring values of the object store to this node, and pin them. Raises GetTimeoutError."""
        large = [index for index, stored in enumerate(values) if stored.place is not None]
        wanted = [LargeObject.known(refs[index]._id, refs[index]._owner, values[index]) for index in large]
        left_s = None if deadline is None else max(0.0, deadline - self._user_code.time())
        found = self._fetcher.get(wanted, left_s, _held_up(self._executor.current))
        for index, value in zip(large, found, strict=True):
            if value is None:
                raise self._timed_out([refs[index]], timeout_s)
            values[index].is_fetched = True
            values[index] = value
        return values

    def value_of(self, stored: StoredObject, beside: Sequence[StoredObject] = ()) -> Any:
        """Deserialize a value, or raise it if it is an error; the errors ``beside`` it count as seen then, too."""
        if stored.is_error:
            for error in (stored, *beside):
                error.note_seen()
            raise unpack_exception(bytes(stored.data))
        refs = self._make_refs(stored) if stored.nested else []
        return serialization.deserialize(stored.data, stored.buffers, refs)

    def wait(
        self, refs: list[ObjectRef[Any]], num_returns: int, timeout_s: float | None, fetch_local: bool = True
    ) -> tuple[list[ObjectRef[Any]], list[ObjectRef[Any]]]:
        """Wait for references; return the ready ones (at most ``num_returns``) and the rest, in input order (G8, G9)."""
        if len({ref._id for ref in refs}) != len(refs):
            raise ValueError("wait takes each reference once, but the list has duplicates")
        deadline = None if timeout_s is None else self._user_code.time() + timeout_s
        chosen, missing, elsewhere = self._sort_out(refs, num_returns, fetch_local)
        while len(chosen) < num_returns and (timeout_s is None or timeout_s >= 0):
            self._wait(missing, num_returns - len(chosen), False, timeout_s, elsewhere)
            chosen, missing, elsewhere = self._sort_out(refs, num_returns, fetch_local)
            if deadline is not None:
                timeout_s = deadline - self._user_code.time() or -1.0
        if len(chosen) == 1:
            rest = refs.copy()
            return [rest.pop(chosen[0])], rest
        ready = set(chosen)
        return [refs[index] for index in chosen], [ref for index, ref in enumerate(refs) if index not in ready]

    def _sort_out(
        self, refs: list[ObjectRef[Any]], most: int, fetch_local: bool
    ) -> tuple[list[int], list[ObjectRef[Any]], list[LargeObject]]:
        """Return the indices of the first ``most`` ready references, the references without a value, and those elsewhere.

        The last two are complete only if fewer than ``most`` are ready. One look decides about each reference, because a
        value may come at any moment: a reference is either ready or waited for, never both.
        """
        objects = self._objects
        chosen: list[int] = []
        missing: list[ObjectRef[Any]] = []
        elsewhere: list[LargeObject] = []
        for index, ref in enumerate(refs):
            stored = objects.get(ref._id)
            if stored is None:
                missing.append(ref)
            elif fetch_local and stored.place is not None and self._waiting.must_fetch(stored):
                elsewhere.append(LargeObject.known(ref._id, ref._owner, stored))
            else:
                chosen.append(index)
                if len(chosen) == most:
                    break
        return chosen, missing, elsewhere

    def _wait(
        self,
        refs: Sequence[ObjectRef[Any]],
        needed: int,
        stop_at_error: bool,
        timeout_s: float | None,
        elsewhere: Sequence[LargeObject] = (),
    ) -> None:
        """Park until ``needed`` of these values have come, or the time is up.

        ``refs`` have no value in this process; the values ``elsewhere`` are on other nodes.
        """
        user_code, running = self._user_code, self._executor.current
        parker = user_code.parker()
        waiter = Waiter(needed, stop_at_error, parker.release, _id_of(running))
        wanted = [(ref._id, ref._owner) for ref in refs]
        try:
            user_code.post_later(call_for, parker, self._waiting.begin_wait, wanted, waiter, _held_up(running), elsewhere)
            self._park(parker, wanted or [(large.object_id, large.owner) for large in elsewhere], timeout_s)
        finally:
            user_code.post_later(self._waiting.end_wait, [object_id for object_id, _ in wanted], waiter)

    def _park(self, parker: Parker, wanted: Sequence[tuple[bytes, Address]], timeout_s: float | None) -> None:
        warning_s, time = self._warning_s, self._user_code.time
        until = None if timeout_s is None else time() + timeout_s
        if warning_s <= 0 or (timeout_s is not None and timeout_s <= warning_s):
            parker.wait(timeout_s)
        elif not parker.wait(warning_s):
            self._user_code.collect_garbage()
            missing = next((one for one in wanted if one[0] not in self._objects), wanted[0])
            cause = self._explain(*missing, None if until is None else until - time()) or "nobody says in time what for"
            print(f"minray: still waiting after {warning_s:g} s: {cause}", file=sys.stderr)
            parker.wait(None if until is None else max(0.0, until - time()))

    def future_of(self, ref: ObjectRef[Any]) -> concurrent.futures.Future[Any]:
        """Return a future that the loop completes when the value is here; for ``await`` and ``ObjectRef.future``."""
        here = self._objects.get(ref._id)
        if here is not None and here.place is None:  # when this driver leaves, all ``user_code`` futures fail
            return self._finish(concurrent.futures.Future(), here)
        result = self._user_code.future()

        def on_known() -> None:
            stored = self._objects[ref._id]
            if stored.place is None:
                self._finish(result, stored)
            else:
                self._fetcher.fetch([LargeObject.known(ref._id, ref._owner, stored)], on_fetched)

        def on_fetched(values: list[Fetched], _held: ObjectRef[Any] = ref) -> None:
            """Finish the future. ``_held`` keeps the reference while the value is fetched; the caller may drop it."""
            known = self._objects.get(ref._id)
            if known is not None:
                known.is_fetched = True
            self._finish(result, self._fetcher.as_stored(values[0]))

        self._waiting.follow(result, ref._id, ref._owner, on_known, _id_of(self._executor.current))
        return result

    def _finish(self, result: concurrent.futures.Future[Any], stored: StoredObject) -> concurrent.futures.Future[Any]:
        """Complete a future with the value or its error, unless it was cancelled."""
        if result.set_running_or_notify_cancel():
            value, error = self._outcome(stored)
            try:
                if error is None:
                    result.set_result(value)
                else:
                    result.set_exception(error)
            except BaseException:  # a SystemExit of a user's callback would end the loop, or leave other threads waiting
                logger.warning("a callback of a future raised an exception", exc_info=True)
        return result

    def _outcome(self, stored: StoredObject) -> tuple[Any, BaseException | None]:
        """Return the value, or the error that it raises.

        The error's traceback is dropped: an error inside a future must not refer to a frame that refers to the future.
        """
        try:
            return self.value_of(stored), None
        except RayError as error:
            return None, for_coroutines(error).with_traceback(None)
        except BaseException as error:
            return None, error

    def _timed_out(self, missing: Sequence[ObjectRef[Any]], timeout_s: float | None) -> GetTimeoutError:
        """Make the error for references that are not ready; ask why the first of them is not."""
        named = ", ".join(ref.hex() for ref in missing[:MOST_NAMED])
        others = f" and {len(missing) - MOST_NAMED} more" if len(missing) > MOST_NAMED else ""
        patience_s = min(MOST_PATIENCE_S, PATIENCE * (timeout_s or 0))
        cause = ""
        if patience_s > 0:
            try:
                cause = self._explain(missing[0]._id, missing[0]._owner, patience_s)
            except RayError:
                pass  # the cluster is gone, and the error is about the timeout all the same
        return GetTimeoutError(timeout_s=timeout_s, reason=f"not ready: {named}{others}{cause and f'; {cause}'}")

    def why(self, ref: ObjectRef[Any]) -> str:
        """Explain why a reference is not ready: the chain of reasons, joined with arrows."""
        return self._explain(ref._id, ref._owner, None)

    def _explain(self, object_id: bytes, owner: Address, patience_s: float | None) -> str:
        """Return the explanation; empty if it takes longer than ``patience_s``."""

        async def explain() -> str:
            try:
                async with asyncio.timeout(patience_s):
                    return " <- ".join(await self._port.explainer.explain_in_time(object_id, owner))
            except TimeoutError:
                return ""

        text: str = self._port.run_on_loop(explain)
        return text


def _id_of(running: ReceivedTask | None) -> bytes:
    """Return the id of a running task; empty outside of tasks."""
    return b"" if running is None else running.task_id


def _held_up(running: ReceivedTask | None) -> ReceivedTask | None:
    """Return the task that lends its CPUs while its thread waits; None for an actor's call, which lends nothing."""
    return None if running is None or running.actor_id else running
