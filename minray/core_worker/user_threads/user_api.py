"""The calls of user threads: submit, get, put, wait, cancel, why.

Ray: the methods of CoreWorker that python/ray/_raylet.pyx calls

A method here looks up and puts values in the memory store. It touches no other table of the core worker: everything else is
posted to the loop, in order. A thread that has to wait parks. While a task of a worker is parked, its CPUs are lent, and the
tasks queued behind it are given back unstarted.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import sys
from collections.abc import Callable, Sequence
from typing import Any

from minray import cloudpickle
from minray.common.config import FUNCTION_SIZE_ERROR_THRESHOLD
from minray.common.ids import PUT_INDEX, return_id
from minray.common.task_spec import RuntimeEnvInfo, SchedulingStrategy, TaskTemplate
from minray.core_worker.execution.actor_process import ActorProcess
from minray.core_worker.fetching.store_provider import Fetched
from minray.core_worker.ownership.memory_store import Waiter
from minray.core_worker.ownership.object_locator import Location
from minray.core_worker.records.large_object import LargeObject
from minray.core_worker.records.pending_task import ActorClient, FunctionExport, PendingTask, PreparedTemplate
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.user_calls import call_for
from minray.core_worker.user_threads.generator_reader import GeneratorReader
from minray.core_worker.user_threads.port import UserPort
from minray.core_worker.user_threads.timeouts import timed_out
from minray.errors.packed_exception import for_coroutines, unpack_exception
from minray.errors.tracebacks import hides_from_pytest
from minray.exceptions import GetTimeoutError, LocalRayletDiedError, RayError, RaySystemError
from minray.platform.base import Counters, Parker, PlatformError
from minray.protocol.base import Address, R, decode, encode
from minray.protocol.core_worker import RefInfo, TaskHeader
from minray.protocol.gcs import NODES, RESOURCES, NodeInfo, NodeResources
from minray.protocol.placement_group import PLACEMENT_GROUPS, PlacementGroupInfo
from minray.rpc.connection import PeerUnreachable
from minray.rpc.pubsub import read_table
from minray.values import serialization
from minray.values.object_ref import ObjectRef
from minray.values.serialization import Serialized

__tracebackhide__ = hides_from_pytest

COUNTS_REFERENCES = True
"""See ``common/package.py``: an interrupt waits until these frames have counted."""

logger = logging.getLogger(__name__)

EXPORTED = FunctionExport(b"", True)
"""Export of an actor's methods, which is done: they are exported with their class."""


class UserApi:
    """The calls of user threads into one core worker; safe in any thread except the loop's."""

    def __init__(self, port: UserPort) -> None:
        process = port.process
        self.port = port
        self.config = process.config
        self.placement_groups = port.placement_groups
        """The placement groups of this process; ``UserPort`` says which methods are safe in any thread."""
        self.mark = object()
        """Identifies this connection in remote functions, which may outlive it and must not keep it alive."""
        self._user_code = process.platform.user_code
        self.post = self._post = self._user_code.post
        self._context = port.context
        self._submission = port.submission
        self._submit = port.submission.submit
        self._on_put = port.objects.on_put
        self._executor = port.executor
        self._receiver = port.host.receiver
        self._fetcher = port.fetcher
        self._waiting = port.waiting
        self._call_sites = port.call_sites
        self._drop_ref = port.drop_ref
        self._objects = port.store.objects
        self._own = process.address
        self._inline_limit = process.config.system_config.max_direct_call_object_size
        self._function_count = 0
        self._generators = GeneratorReader(port, self.wait)

    # --- where this runs

    @property
    def job_id(self) -> bytes:
        """Id of this process's job; zeros in a worker that has not received a task yet."""
        return self._context.job_id

    @property
    def namespace(self) -> str:
        """The namespace used for names that are given without one."""
        return self._context.namespace

    @property
    def running(self) -> ReceivedTask | None:
        """The task or actor call that runs in the calling thread; None in a driver."""
        return self._executor.current

    @property
    def actor(self) -> ActorProcess | None:
        """The actor of this process; None if there is none."""
        return self._receiver.actor

    @property
    def actor_object(self) -> Any:
        """The instance of the user's class that the actor's methods are called on."""
        return self._executor.actor

    def definition(self, function_id: bytes) -> Any:
        """Return the function or class with this id, which has been fetched to run here."""
        return self.port.functions.load(function_id)

    def counters(self) -> tuple[Counters, int]:
        """Return the message counters of this process, and the number of tasks that it has submitted."""
        return self.port.process.platform.network.counters, self.port.tasks.submitted_count

    # --- tasks

    def prepare(self, template: TaskTemplate, export: FunctionExport) -> PreparedTemplate:
        """Prepare a remote function with its options for being called."""
        return PreparedTemplate(template, encode(TaskHeader(template, self._own)), export)

    def prepare_call(self, template: TaskTemplate, client: ActorClient) -> PreparedTemplate:
        """Prepare a method of an actor for being called."""
        return PreparedTemplate(template, encode(TaskHeader(template, self._own)), EXPORTED, client)

    def export(self, export: FunctionExport, function: Callable[..., Any]) -> None:
        """Pickle a definition and store it in the gcs; its tasks wait until it is stored (G15).

        Raises whatever pickling raises, and ValueError if the pickled definition is too large.
        """
        pickled = cloudpickle.dumps(function, 5)
        if len(pickled) > FUNCTION_SIZE_ERROR_THRESHOLD:
            name, size = getattr(function, "__qualname__", repr(function)), len(pickled) >> 20
            raise ValueError(
                f"remote function or class {name} is too large: {size} MiB of at most"
                f" {FUNCTION_SIZE_ERROR_THRESHOLD >> 20}. Does it use a large object of the program? Put that (minray.put)"
                " and give the function the reference"
            )
        self._post(self._submission.export, export, pickled)

    def base_environment(self) -> RuntimeEnvInfo:
        """Return the runtime environment that tasks submitted by this process inherit."""
        return self._context.environment

    def captured(self) -> SchedulingStrategy | None:
        """Return the placement group's strategy that child tasks inherit unless they name another; None if there is none."""
        strategy = self.placed()
        return strategy if strategy is not None and strategy.captures_children else None

    def placed(self) -> SchedulingStrategy | None:
        """Return the strategy that placed the running task, or the actor of this process; None in a driver."""
        actor = self._receiver.actor
        running = self._executor.current if actor is None else actor.constructor
        return None if running is None else running.header.template.shape.strategy

    def new_function_id(self) -> bytes:
        self._function_count += 1
        return self.config.worker_id[:12] + self._function_count.to_bytes(4, "big")

    def submit(
        self, prepared: PreparedTemplate, args: tuple[Any, ...], kwargs: dict[str, Any], handle_id: bytes = b""
    ) -> Any:
        """Submit a call; return its reference, a list of them, None for ``num_returns=0``, or a generator of references."""
        task, _held = self.make_task(prepared, args, kwargs, handle_id)
        task_id = task.task_id
        num_returns = prepared.template.num_returns
        if self._call_sites is not None:
            self._call_sites.note([return_id(task_id, index) for index in range(1, num_returns + 1)], "task call")
        self._post(self._submit, task)
        if prepared.template.is_streaming and not prepared.template.is_dynamic:
            return self._generators.new(task_id)
        if num_returns == 1:
            return ObjectRef(task_id + b"\0\0\0\1", self._own, self._drop_ref)
        if num_returns == 0:
            return None
        return [ObjectRef(return_id(task_id, index), self._own, self._drop_ref) for index in range(1, num_returns + 1)]

    def make_task(
        self, prepared: PreparedTemplate, args: tuple[Any, ...], kwargs: dict[str, Any], handle_id: bytes = b""
    ) -> tuple[PendingTask, Sequence[ObjectRef[Any]]]:
        """Make the task of a call, its arguments serialized.

        The second value holds the references in the arguments; the caller keeps them until the task is posted.
        """
        task_id = self._context.task_ids.next()
        retries = prepared.template.max_retries
        running = self._executor.current
        parent_id, depth = (running.task_id, running.depth + 1) if running is not None else (b"", 0)
        if not args and not kwargs:
            return PendingTask(task_id, prepared, b"", (), (), (), parent_id, depth, retries, handle_id), ()
        call = serialization.serialize_call(args, kwargs, self._inline_limit, self._put_serialized)
        value = call.value
        assert value is not None
        slots = tuple((ref._id, ref._owner) for ref in call.slots)
        nested = tuple(RefInfo(ref._id, ref._owner, b"") for ref in value.refs)
        buffers = tuple(map(bytes, value.buffers))
        task = PendingTask(task_id, prepared, value.data, slots, nested, buffers, parent_id, depth, retries, handle_id)
        return task, [*call.slots, *value.refs]

    def cancel(self, ref: ObjectRef[Any], force: bool, recursive: bool) -> None:
        self._post(self._submission.cancel, ref._id, ref._owner, force, recursive)

    # --- objects

    def put(self, value: Any) -> ObjectRef[Any]:
        return self._put_serialized(serialization.serialize(value))

    def _put_serialized(self, value: Serialized) -> ObjectRef[Any]:
        object_id = self._context.task_ids.next() + PUT_INDEX
        nested = [RefInfo(ref._id, ref._owner, b"") for ref in value.refs] if value.refs else ()
        if value.size() > self._inline_limit:
            place = self.port.provider.put(object_id, 0, value, self._own)
            stored = StoredObject(b"", (), False, nested, place)
        else:
            own = value.copied()
            stored = StoredObject(own.data, own.buffers, False, nested)
        if self._call_sites is not None:
            self._call_sites.note([object_id], "put object")
        self._objects[object_id] = stored
        self._post(self._on_put, object_id, stored)
        return ObjectRef(object_id, self._own, self._drop_ref)

    def get(self, refs: Sequence[ObjectRef[Any]], timeout_s: float | None) -> list[Any]:
        """Return the values in order; raise the first error that is known, or GetTimeoutError."""
        deadline = None if timeout_s is None else self._user_code.time() + timeout_s
        values = self._known(refs)
        left_s = timeout_s
        while None in values:  # a loop, because a value that has come may be lost before this thread goes on
            missing = [ref for ref, stored in zip(refs, values, strict=True) if stored is None]
            if left_s is not None and left_s < 0:
                raise timed_out(self, missing, timeout_s)
            self._wait(missing, len(missing), True, left_s)
            values = self._known(refs)
            left_s = None if deadline is None else deadline - self._user_code.time() or -1.0
        found = [stored for stored in values if stored is not None]
        if any(stored.place is not None for stored in found):
            found = self._reach(refs, found, timeout_s, deadline)
        return [self.value_of(stored, found) for stored in found]

    def _known(self, refs: Sequence[ObjectRef[Any]]) -> list[StoredObject | None]:
        """Look values up; if one is missing, raise the first error among the others."""
        values = [self._objects.get(ref._id) for ref in refs]
        if None in values:
            for stored in values:
                if stored is not None and stored.is_error:
                    self.value_of(stored, [known for known in values if known is not None])
        return values

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
                raise timed_out(self, [refs[index]], timeout_s)
            values[index].is_fetched = True
            values[index] = value
        return values

    def value_of(self, stored: StoredObject, beside: Sequence[StoredObject] = ()) -> Any:
        """Deserialize a value, or raise it if it is an error; the errors ``beside`` it count as seen then, too."""
        if stored.is_error:
            for error in (stored, *beside):
                error.note_seen()
            raise unpack_exception(bytes(stored.data))
        refs = self.port.objects.make_refs(stored) if stored.nested else []
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
        user_code, waiting = self._user_code, self._waiting
        parker = user_code.parker()
        running = self._executor.current
        waiter = Waiter(needed, stop_at_error, parker.release, _id_of(running))
        wanted = [(ref._id, ref._owner) for ref in refs]
        try:
            self._user_code.post_later(call_for, parker, waiting.begin, wanted, waiter, _held_up(running), elsewhere)
            self._park(parker, wanted or [(large.object_id, large.owner) for large in elsewhere], timeout_s)
        finally:
            self._user_code.post_later(waiting.end, [object_id for object_id, _ in wanted], waiter)

    def _park(self, parker: Parker, wanted: Sequence[tuple[bytes, Address]], timeout_s: float | None) -> None:
        warning_s = self.config.system_config.get_warning_s
        if warning_s <= 0 or (timeout_s is not None and timeout_s <= warning_s):
            parker.wait(timeout_s)
            return
        if not parker.wait(warning_s):
            self._user_code.collect_garbage()
            missing = next((one for one in wanted if one[0] not in self._objects), wanted[0])
            print(f"minray: still waiting after {warning_s:g} s: {self._explain(*missing)}", file=sys.stderr)
            parker.wait(None if timeout_s is None else timeout_s - warning_s)

    def free(self, refs: Sequence[ObjectRef[Any]], local_only: bool) -> None:
        """Free objects; return when their owners have freed them.

        With ``local_only``, return when this node has evicted the copies that it need not keep.
        """
        if local_only:
            self.run_on_loop(lambda: self.port.deletion.evict([ref._id for ref in refs]))
        else:
            self.run_on_loop(lambda: self.port.deletion.delete([(ref._id, ref._owner) for ref in refs]))

    def placement_group_ready(self, group_id: bytes, value: Any) -> ObjectRef[Any]:
        """Return a reference whose object gets this value as soon as the placement group is created."""
        object_id = self._context.task_ids.next() + PUT_INDEX
        own = serialization.serialize(value).copied()
        self._post(self.placement_groups.begin_ready, object_id, group_id, StoredObject(own.data, own.buffers, False, ()))
        return ObjectRef(object_id, self._own, self._drop_ref)

    # --- futures, explanations, calls to the loop

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

    def why(self, ref: ObjectRef[Any]) -> str:
        """Explain why a reference is not ready: the chain of reasons, joined with arrows."""
        return self._explain(ref._id, ref._owner)

    def _explain(self, object_id: bytes, owner: Address) -> str:
        lines: list[str] = self.run_on_loop(lambda: self.port.explainer.explain_in_time(object_id, owner))
        return " <- ".join(lines)

    def known_nodes(self) -> list[NodeInfo]:
        """Return all nodes that the gcs knows, dead ones too."""
        return self._read_channel(NODES, NodeInfo)

    def resource_reports(self) -> list[NodeResources]:
        """Return the latest resource report of each node."""
        return self._read_channel(RESOURCES, NodeResources)

    def known_placement_groups(self) -> list[PlacementGroupInfo]:
        """Return all placement groups that the gcs knows, recently removed ones too."""
        return self._read_channel(PLACEMENT_GROUPS, PlacementGroupInfo)

    def locations_of(self, refs: Sequence[ObjectRef[Any]], timeout_s: float | None) -> dict[bytes, Location]:
        """Return the locations of objects by object id, without those whose owners are dead or have freed them.

        Raises GetTimeoutError.
        """
        objects = [(ref._id, ref._owner) for ref in refs]

        async def locate() -> dict[bytes, Location]:
            try:
                async with asyncio.timeout(timeout_s):
                    return await self.port.locator.locate(objects)
            except TimeoutError:
                raise GetTimeoutError(timeout_s=timeout_s, reason="not all owners of the objects have answered") from None

        locations: dict[bytes, Location] = self.run_on_loop(locate)
        return locations

    def _read_channel(self, channel: str, record: type[R]) -> list[R]:
        async def ask() -> list[R]:
            return [decode(record, value) for value in await read_table(self.port.process.gcs, channel)]

        rows: list[R] = self.run_on_loop(ask)
        return rows

    def run_on_loop(self, make_coroutine: Callable[[], Any]) -> Any:
        """Run a coroutine on the core worker's loop and park for its result.

        Raises RaySystemError if the cluster does not answer, or answers with a failure.
        """
        parker = self._user_code.parker()
        outcome: list[Any] = []

        async def run() -> None:
            try:
                outcome.append((await make_coroutine(), None))
            except asyncio.CancelledError:
                outcome.append((None, LocalRayletDiedError(reason="this driver has left its cluster")))
            except PeerUnreachable as error:
                outcome.append((None, RaySystemError(reason=f"the cluster does not answer: {error}")))
            except PlatformError as error:
                outcome.append((None, RaySystemError(reason=f"the request to the cluster failed: {error}")))
            except Exception as error:
                outcome.append((None, error))
            parker.release()

        self._post(call_for, parker, lambda: self.port.process.begin(run(), "user_call"))
        parker.wait(None)
        result, error = outcome.pop()
        try:
            if error is not None:
                raise error
            return result
        finally:
            del error  # its traceback refers to this frame: the cycle would keep everything alive that the callers hold

    # --- hooks of ObjectRef

    def pickle_out_of_band(self, ref: ObjectRef[Any], *, pinned: bool) -> tuple[bytes, bytes]:
        if pinned:
            self._post(self.port.references.pin, ref._id)
        return ref._id, encode(ref._owner)

    def unpickle_out_of_band(self, object_id: bytes, owner: bytes) -> ObjectRef[Any]:
        address = decode(Address, owner)
        self._post(self.port.objects.on_ref_unpickled, object_id, address)
        return ObjectRef(object_id, address, self._drop_ref)

    def call_site_of(self, ref: ObjectRef[Any]) -> str:
        sites = self._call_sites
        return sites.of(ref._id) if sites is not None else ""


def _id_of(running: ReceivedTask | None) -> bytes:
    """Return the id of a running task; empty outside of tasks."""
    return b"" if running is None else running.task_id


def _held_up(running: ReceivedTask | None) -> ReceivedTask | None:
    """Return the task that lends its CPUs while its thread waits; None for an actor's call, which lends nothing."""
    return None if running is None or running.actor_id else running
