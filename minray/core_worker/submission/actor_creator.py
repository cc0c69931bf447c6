"""The creator's side of the actors that a process makes: their registration, their constructors, and their last handles.

Ray: src/ray/core_worker/actor_management/actor_creator.h

A handle holds a reference to an object that stands for the actor. The object has no value; its owner is the creator. Hence
handles are counted like other references, in all processes and in calls on their way. When the object is freed, no handle is
left to call the actor with (G24).

The task of a constructor never leaves this process as a task. It lends its arguments to the gcs until the constructor cannot
be called again: the actor is dead, or it lives and is not restarted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from minray.common.ids import actor_of, job_of_actor, return_id
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.pending_task import FAILED, FINISHED, PUSHED, QUEUED, WAITING, PendingTask
from minray.core_worker.submission.task_manager import TaskManager
from minray.errors.packed_exception import text_alone
from minray.platform.base import PlatformError, RecordTooLarge
from minray.protocol.actor import (
    ALIVE,
    CREATION_TASK_FAILED,
    DEAD,
    DEPENDENCIES_UNREADY,
    JOB_FINISHED,
    KILLED,
    OUT_OF_SCOPE,
    ActorCreation,
    ActorInfo,
    ActorReply,
    CreateActor,
    DeathCause,
    EndActor,
    GetActor,
    RegisterActor,
    RegisterActorReply,
)
from minray.protocol.base import Done


class _Creation:
    """An actor that this process has created, until its constructor cannot be called again."""

    __slots__ = ("task", "info", "placement", "registered", "ready")

    def __init__(self, task: PendingTask, info: ActorInfo, placement: list[tuple[str, int]], registered: bool) -> None:
        self.task = task
        """The constructor's task; it keeps its arguments as long as the constructor may be called again."""
        self.info = info
        self.placement = placement
        self.registered = registered
        """Whether the gcs knows the actor."""
        self.ready = False
        """Whether the constructor's arguments exist."""


class Preparation(Protocol):
    """Prepares a constructor's task until its arguments exist."""

    def hold_arguments(self, task: PendingTask) -> None:
        """Hold the objects that a new task refers to, and enter the task in the table of tasks."""

    def wait_for_arguments(self, task: PendingTask) -> None:
        """Wait for a constructor's arguments; ``on_constructor_ready`` or ``on_constructor_failed`` follows."""


class ConstructorOutcomes(Protocol):
    """Ends the tasks of constructors."""

    def finish_constructor(self, task: PendingTask, state: str) -> None:
        """End the task of a constructor that will not be called again."""


class KnownActors(Protocol):
    """Port to the newest records of all actors that this process knows."""

    def follow_job(self, job_id: bytes) -> None:
        """Follow the gcs's channel of a job's actors from now on."""

    def info_of(self, actor_id: bytes) -> ActorInfo | None: ...

    def on_info(self, info: ActorInfo) -> None:
        """Take note of a record."""

    def on_answer(self, info: ActorInfo) -> None:
        """Take note of a record that the gcs was asked for, and may not publish."""


class ActorCreator:
    """Creates the actors of one process, and ends those without handles."""

    def __init__(
        self,
        process: Process,
        tasks: TaskManager,
        references: ReferenceCounter,
        outcomes: ConstructorOutcomes,
        preparation: Preparation,
        actors: KnownActors,
    ) -> None:
        self._process = process
        self._tasks = tasks
        self._references = references
        self._outcomes = outcomes
        self._preparation = preparation
        self._actors = actors
        self._creations: dict[bytes, _Creation] = {}
        """Actors of this process whose constructors may still be called, by actor id."""
        self._handles: dict[bytes, bytes] = {}
        """Ids of own actors that end with their last handle, by the id of the object that stands for the actor."""

    # --- creating

    def create_actor(self, task: PendingTask, info: ActorInfo, placement: list[tuple[str, int]], registered: bool) -> None:
        """Create an actor whose constructor a user thread has called.

        ``registered``: the gcs knows the actor already, and its handle is counted.
        """
        handle_id = return_id(task.task_id, 1)
        if not registered:
            self._references.add_owned(handle_id)
        if not info.detached:
            self._handles[handle_id] = info.actor_id
        self._creations[info.actor_id] = _Creation(task, info, placement, registered)
        self._preparation.hold_arguments(task)
        self._actors.follow_job(job_of_actor(info.actor_id))
        if self._process.is_exiting:
            self._tasks.move(task, WAITING)
            self._on_own_dead(info.actor_id, DeathCause(JOB_FINISHED, "the cluster is gone"))
            return
        if not registered:
            self._process.patient.ask_gcs(RegisterActor(info), partial(self._on_registered, info.actor_id))
        self._preparation.wait_for_arguments(task)

    def abandon(self, actor_id: bytes) -> None:
        """End an actor whose creator did not wait until it was registered, and so has no handle of it."""
        self._end(actor_id, DeathCause(OUT_OF_SCOPE, "its creator did not wait for it"))

    def _on_registered(self, actor_id: bytes, reply: RegisterActorReply) -> None:
        creation = self._creations.get(actor_id)
        if creation is None:
            return
        if reply.refused or reply.existing is not None:
            self._on_own_dead(actor_id, DeathCause(JOB_FINISHED, reply.refused or "its name is taken"))
            return
        creation.registered = True
        self._maybe_create(creation)

    def on_constructor_ready(self, task: PendingTask) -> None:
        """Create the actor, whose constructor's arguments exist now, unless its registration is still awaited."""
        creation = self._creations.get(actor_of(task.task_id))
        if creation is not None:
            self._tasks.move(task, QUEUED)
            creation.ready = True
            self._maybe_create(creation)

    def _maybe_create(self, creation: _Creation) -> None:
        if not (creation.ready and creation.registered):
            return
        task = creation.task
        template = task.prepared.template
        record = ActorCreation(
            task_id=task.task_id,
            shape=template.shape,
            placement=creation.placement,
            header=task.prepared.header,
            args=task.args,
            arguments=task.arguments,
            nested=task.nested,
            inline_buffers=task.inline_buffers,
        )

        def on_answer(_reply: Done | None, error: PlatformError | None, _buffers: Sequence[Any]) -> None:
            if isinstance(error, RecordTooLarge):
                self._give_up(creation.info.actor_id, DeathCause(CREATION_TASK_FAILED, f"its constructor: {error}"))

        self._process.patient.send_to_gcs(CreateActor(creation.info.actor_id, record), on_answer)

    def on_constructor_failed(self, task: PendingTask, error: bytes) -> None:
        """End an actor that cannot be created because an argument of its constructor is an error."""
        cause = DeathCause(CREATION_TASK_FAILED, "an argument of its constructor failed", text_alone(error))
        self._give_up(actor_of(task.task_id), cause)

    def _give_up(self, actor_id: bytes, cause: DeathCause) -> None:
        """End an actor that will never exist."""
        if actor_id not in self._creations:
            return  # the cluster is gone, and the constructors were forgotten
        self._end(actor_id, cause)
        self._on_own_dead(actor_id, cause)

    # --- ending

    def on_freed(self, object_ids: Iterable[bytes]) -> None:
        """End the actors for which these freed objects stood, if any: no handles of them are left."""
        if self._handles:
            for object_id in object_ids:
                actor_id = self._handles.pop(object_id, None)
                if actor_id is not None:
                    self._on_without_handles(actor_id)

    def _on_without_handles(self, actor_id: bytes) -> None:
        info = self._actors.info_of(actor_id)
        if info is None or info.state != DEAD:
            self._end(actor_id, DeathCause(OUT_OF_SCOPE, "there is no handle of it any more"))
        if info is not None and info.state == ALIVE and actor_id in self._creations:
            # The actor is not restarted, so nothing needs the arguments of its constructor any more.
            self._outcomes.finish_constructor(self._creations.pop(actor_id).task, FINISHED)

    def on_info(self, info: ActorInfo) -> None:
        """Take note of a record of an actor of ours; end the constructor's task once it cannot be called again."""
        creation = self._creations.get(info.actor_id)
        if creation is None:
            return
        task = creation.task
        if info.state == DEAD:
            del self._creations[info.actor_id]
            self._outcomes.finish_constructor(task, FINISHED if task.state is PUSHED else FAILED)
        elif info.state == ALIVE and task.state is QUEUED:
            self._tasks.move(task, PUSHED)  # the task stays PUSHED as long as the constructor may be called again
            if info.max_restarts == 0:
                del self._creations[info.actor_id]
                self._outcomes.finish_constructor(task, FINISHED)

    def on_forgotten(self, actor_id: bytes) -> None:
        """Take note that the gcs has forgotten an actor; its owner may not have heard of its death before."""
        if actor_id in self._creations:
            self._on_own_dead(actor_id, DeathCause(KILLED, "it died long ago"))

    def _on_own_dead(self, actor_id: bytes, cause: DeathCause) -> None:
        """Take note of a death that the gcs has not reported yet."""
        info = self._creations[actor_id].info
        self._actors.on_info(ActorInfo.of_dead(actor_id, info.owner, cause, info.class_name))

    def _end(self, actor_id: bytes, cause: DeathCause) -> None:
        def on_answer(_: Done) -> None:
            if actor_id in self._creations and self._actors.info_of(actor_id) is None:  # Perhaps the gcs has forgotten it.
                self._process.patient.ask_gcs(GetActor(actor_id, self._process.address), on_reply)

        def on_reply(reply: ActorReply) -> None:
            if reply.actor is not None:
                self._actors.on_answer(reply.actor)

        self._process.patient.ask_gcs(EndActor(actor_id, cause), on_answer)

    # --- account

    def forget_constructors(self) -> None:
        """Forget all constructors because the cluster is gone: they end like other tasks, whatever becomes of the actors."""
        self._creations.clear()

    def constructors(self) -> list[bytes]:
        """Return the ids of constructor tasks that have not ended because their actor may have to be created again."""
        return [creation.task.task_id for creation in self._creations.values()]

    def handed_over(self) -> set[bytes]:
        """Return the ids of constructor tasks that the gcs can have run again without this process."""
        return {
            creation.task.task_id
            for actor_id, creation in self._creations.items()
            if creation.info.detached
            and creation.task.carries_all()
            and (info := self._actors.info_of(actor_id)) is not None
            and info.state != DEPENDENCIES_UNREADY
        }

    def owns_living(self) -> bool:
        """Whether living actors end when this process does."""
        return any(info is None or info.state != DEAD for info in map(self._actors.info_of, self._handles.values()))
