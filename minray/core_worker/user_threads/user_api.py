"""The calls of user threads that wait for nothing: submit, put, cancel. ``reader`` has those that wait.

Ray: the methods of CoreWorker that python/ray/_raylet.pyx calls

A method here puts values into the memory store. It touches no other table of the core worker: everything else is posted to
the loop, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from minray import cloudpickle
from minray.common.config import FUNCTION_SIZE_ERROR_THRESHOLD
from minray.common.ids import PUT_INDEX, return_id
from minray.common.task_spec import RuntimeEnvInfo, SchedulingStrategy, TaskTemplate
from minray.core_worker.execution.actor_process import ActorProcess
from minray.core_worker.records.pending_task import ActorClient, FunctionExport, PendingTask, PreparedTemplate
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.user_threads.generator_reader import GeneratorReader
from minray.core_worker.user_threads.object_reader import ObjectReader
from minray.core_worker.user_threads.port import UserPort
from minray.errors.tracebacks import hides_from_pytest
from minray.platform.base import Counters
from minray.protocol.base import Address, decode, encode
from minray.protocol.core_worker import RefInfo, TaskHeader
from minray.values import serialization
from minray.values.object_ref import ObjectRef
from minray.values.serialization import Serialized

__tracebackhide__ = hides_from_pytest

COUNTS_REFERENCES = True
"""See ``common/package.py``: an interrupt waits until these frames have counted."""

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
        self.reader = ObjectReader(port)
        """Reads values, and waits for them."""
        self.future_of = self.reader.future_of
        """A hook of ObjectRef, like those at the end of this class."""
        self.run_on_loop = port.run_on_loop
        self.post = self._post = process.platform.user_code.post
        self._context = port.context
        self._submission = port.submission
        self._submit = port.submission.submit
        self._export = port.execution.functions.export
        self._on_exported = port.submission.on_exported
        self._on_put = port.objects.on_put
        self._executor = port.execution.executor
        self._receiver = port.execution.actor_receiver
        self._call_sites = port.call_sites
        self._drop_ref = port.drop_ref
        self._objects = port.store.objects
        self._own = process.address
        self._inline_limit = process.config.system_config.max_direct_call_object_size
        self._function_count = 0
        self._generators = GeneratorReader(port, self.reader.wait)

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
        return self.port.execution.functions.load(function_id)

    def counters(self) -> tuple[Counters, int]:
        """Return the message counters of this process, and the number of tasks that it has submitted."""
        return self.port.process.platform.network.counters, self.port.submission.tasks.submitted_count

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
        self._post(self._export, self._context.job_id, export.function_id, pickled, partial(self._on_exported, export))

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
        self._post(self._submission.cancel_task, ref._id, ref._owner, force, recursive)

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

    def placement_group_ready(self, group_id: bytes, value: Any) -> ObjectRef[Any]:
        """Return a reference whose object gets this value as soon as the placement group is created."""
        object_id = self._context.task_ids.next() + PUT_INDEX
        own = serialization.serialize(value).copied()
        self._post(self.placement_groups.begin_ready, object_id, group_id, StoredObject(own.data, own.buffers, False, ()))
        return ObjectRef(object_id, self._own, self._drop_ref)

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
