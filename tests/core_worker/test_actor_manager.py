"""The actors of one process: what it tells the gcs of those it has made, what it hears, and what its calls become.

``Creator`` is a core worker with an actor manager; what is asked of the gcs and of actors is in ``peers``, and what the
judge of tasks is told is in ``told``.
"""

from __future__ import annotations

import asyncio
import sys
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec
import pytest

from minray.common.ids import actor_of, job_of_actor, return_id
from minray.common.task_spec import ActorOptions
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.pending_task import FAILED, PUSHED, QUEUED, WAITING, ActorClient, CallStream, PendingTask
from minray.core_worker.submission.actor_clients import ActorClients
from minray.core_worker.submission.actor_manager import ASK_AGAIN_S, MAX_PATIENCE_S, ActorManager
from minray.core_worker.submission.death_certificates import error_of_actor
from minray.core_worker.submission.task_manager import TaskManager
from minray.errors.packed_exception import text_alone
from minray.exceptions import (
    ActorDiedError,
    ActorPlacementGroupRemoved,
    ActorUnavailableError,
    ActorUnschedulableError,
    OutOfMemoryError,
    RayError,
    RaySystemError,
    RuntimeEnvSetupError,
)
from minray.platform.base import RecordTooLarge, RemoteFailure
from minray.protocol import actor as protocol
from minray.protocol.actor import (
    ALIVE,
    DEAD,
    DEPENDENCIES_UNREADY,
    PENDING_CREATION,
    ActorInfo,
    ActorReply,
    CreateActor,
    DeathCause,
    EndActor,
    GetActor,
    PushActorTask,
    RegisterActor,
    RegisterActorReply,
)
from minray.protocol.base import DONE, Address, encode
from minray.protocol.core_worker import NOT_STARTED, OK, Argument, PushTaskReply, RefInfo, Rerun, Value
from minray.protocol.gcs import Poll, PollReply
from tests.core_worker.parts import OWN, address, id_of, packed, pending, prepare, submit
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.core_worker.process_record import process_record
from tests.rpc.fake_network import pass_time, run, turns

ACTOR_HOST, RAYLET = address("actor"), address("raylet")
NO_ENVIRONMENT = packed(RuntimeEnvSetupError(reason="the directory is gone"), "A.__init__")
ERROR = packed(ValueError("no"), "A")


class Creator:
    """See the head of this file."""

    def __init__(self) -> None:
        self.tasks, self.references = TaskManager(None), ReferenceCounter()
        self.peers = RecordingPeers()
        self.process = process_record(self.peers, address=address("creator"), user_code=self)
        self.told: list[Any] = []
        self.have_arguments = False
        """Whether calls that did not start have all their arguments."""
        self.waiting: list[PendingTask] = []
        """For their arguments."""
        self.held: list[PendingTask] = []
        """Constructors whose arguments are held."""
        self.freed_with: dict[bytes, list[bytes]] = {}
        """Objects that only a constructor's arguments keep, by its task."""
        borrowing: Any = self
        self.clients = ActorClients(self.references, borrowing)
        self.actors = ActorManager(self.process, self.tasks, self.references, self.clients, self, self)
        self.own = self.actors.creator

    def post(self, work: Callable[..., None], *arguments: Any) -> None:
        """From a user thread."""
        work(*arguments)

    # --- borrowing, the outcomes, and the way to the arguments

    def hold_arguments(self, task: PendingTask) -> None:
        self.held.append(task)
        self.tasks.add_task(task)

    def wait_for_arguments(self, task: PendingTask) -> None:
        self.tasks.move(task, WAITING)
        self.waiting.append(task)

    def finish_constructor(self, task: PendingTask, state: str) -> None:
        self.tasks.move(task, state)
        self.told.append((task, state))
        for handle in self.freed_with.pop(task.task_id, ()):
            self.own.on_freed([handle])

    def finish_with_error(self, task: PendingTask, error: RayError) -> None:
        self.told.append((task, error))

    def rerun(self, task: PendingTask) -> Rerun:
        return Rerun([1], 2, [3])

    def apply(self, effects: Effects) -> None:
        self.own.on_freed(effects.freed)

    def on_missing(self, object_ids: Sequence[bytes]) -> None:
        self.told.append(object_ids)

    def on_unstarted(self, tasks: list[PendingTask]) -> list[PendingTask]:
        self.told.append(tasks)
        return tasks if self.have_arguments else []

    def on_reply(self, task: PendingTask, reply: PushTaskReply, buffers: Any) -> None:
        self.told.append((task, reply))

    def discard_attempt(self, task: PendingTask, raylet: Address) -> None:
        self.told.append((task, raylet))

    def retry(self, task: PendingTask) -> None:
        self.told.append((task, "retry"))

    # --- what happens

    def create(self, detached: bool = False, registered: bool = False, max_restarts: int = 0) -> bytes:
        """A user thread calls a constructor; returns the actor's id."""
        task = pending(prepare("A", actor=ActorOptions()))
        actor_id = actor_of(task.task_id)
        info = ActorInfo(actor_id, "", "A", "", "", OWN, detached, max_restarts, 0, b"")
        if registered:
            self.references.add_owned(return_id(task.task_id, 1))
        self.own.create_actor(task, info, [], registered)
        return actor_id

    def ready(self, actor_id: bytes) -> None:
        """The constructor's arguments are there."""
        self.own.on_constructor_ready(self.constructor(actor_id))

    def known(self) -> list[bytes]:
        """Actors whose constructors have not ended."""
        return list(self.own._creations)

    def constructor(self, actor_id: bytes) -> PendingTask:
        return next(task for task in self.held if actor_of(task.task_id) == actor_id)

    def hear(self, actor_id: bytes, state: str, **fields: Any) -> None:
        values: dict[str, Any] = {"max_restarts": 0, "restarts": 0, **fields}
        self.actors.on_info(ActorInfo(actor_id, state, "A", "", "", OWN, False, handle=b"", **values))

    def dead(self, actor_id: bytes, kind: int = protocol.KILLED) -> None:
        self.hear(actor_id, DEAD, death=DeathCause(kind, "killed"))

    def asked(self, kind: type) -> list[Any]:
        return [asked.request for asked in self.peers.asked if isinstance(asked.request, kind)]

    def call(self, client: ActorClient) -> tuple[PendingTask, CallStream]:
        """One that is on its way to the actor."""
        task = submit(self.tasks, pending(prepare("A.f", client=client, max_retries=0)), QUEUED, PUSHED)
        stream = client.stream = CallStream(ACTOR_HOST, RAYLET, 0, 1)
        task.worker, task.sequence = stream, 1
        stream.in_flight[1] = task
        self.actors.push(stream, task, True)
        return task, stream


def tell(story: Any) -> None:
    async def whole() -> None:
        creator = Creator()
        await story(creator)
        creator.actors.close()
        await turns()

    run(whole)


# --- creating


@pytest.mark.parametrize("ready_first", [True, False])
def test_an_actor_is_created_when_it_is_registered_and_its_arguments_are_there(ready_first: bool) -> None:
    async def story(creator: Creator) -> None:
        actor_id = creator.create()
        assert creator.known() == [actor_id] and creator.waiting == creator.held
        registering = next(asked for asked in creator.peers.asked if isinstance(asked.request, RegisterActor))
        steps = [lambda: registering.answer(RegisterActorReply(None)), lambda: creator.ready(actor_id)]
        for step in reversed(steps) if ready_first else steps:
            assert creator.asked(CreateActor) == []
            step()
        (request,) = creator.asked(CreateActor)
        assert (request.actor_id, request.creation.task_id) == (actor_id, creator.held[0].task_id)
        assert creator.held[0].state is QUEUED

    tell(story)


def test_one_that_is_registered_already_is_not_registered_again() -> None:
    async def story(creator: Creator) -> None:
        creator.ready(creator.create(registered=True))
        assert creator.asked(RegisterActor) == [] and len(creator.asked(CreateActor)) == 1

    tell(story)


@pytest.mark.parametrize("refusal", ["its job has finished", ""])
def test_one_that_may_not_be_or_whose_name_is_taken_is_dead(refusal: str) -> None:
    async def story(creator: Creator) -> None:
        actor_id = creator.create()
        creator.ready(actor_id)
        other = ActorInfo(id_of("other"), ALIVE, "A", "name", "", OWN, False, 0, 0, b"")
        creator.peers.take(RegisterActor).answer(RegisterActorReply(None if refusal else other, refusal))
        info = creator.actors.info_of(actor_id)
        assert info is not None and info.death is not None
        assert (info.state, info.death.message) == (DEAD, refusal or "its name is taken")
        assert creator.told == [(creator.held[0], FAILED)] and creator.known() == creator.asked(CreateActor) == []

    tell(story)


def test_what_the_gcs_says_of_the_registration_of_a_dead_actor_means_nothing() -> None:
    async def story(creator: Creator) -> None:
        actor_id = creator.create()
        creator.ready(actor_id)
        registering = creator.peers.take(RegisterActor)
        creator.dead(actor_id)
        registering.answer(RegisterActorReply(None))
        creator.ready(actor_id)
        assert creator.asked(CreateActor) == [] and len(creator.told) == 1

    tell(story)


def test_without_a_cluster_an_actor_is_dead_from_the_start() -> None:
    async def story(creator: Creator) -> None:
        creator.process.is_exiting = True
        actor_id = creator.create()
        assert creator.told == [(creator.held[0], FAILED)] and creator.waiting == creator.asked(RegisterActor) == []
        assert creator.actors.info_of(actor_id).state == DEAD  # type: ignore[union-attr]

    tell(story)


def test_g12_an_actor_whose_argument_failed_will_never_be() -> None:
    async def story(creator: Creator) -> None:
        actor_id = creator.create(registered=True)
        creator.own.on_constructor_failed(creator.held[0], ERROR)
        (request,) = creator.asked(EndActor)
        assert (request.actor_id, request.cause.kind) == (actor_id, protocol.CREATION_TASK_FAILED)
        assert request.cause.error == text_alone(ERROR)
        assert creator.told == [(creator.held[0], FAILED)]
        creator.own.on_constructor_failed(creator.held[0], ERROR)
        assert len(creator.asked(EndActor)) == 1

    tell(story)


def test_an_actor_whose_constructor_is_too_large_to_be_sent_will_never_be() -> None:
    async def story(creator: Creator) -> None:
        creator.ready(creator.create(registered=True))
        creator.peers.take(CreateActor).fail(RecordTooLarge("too large"))
        (request,) = creator.asked(EndActor)
        assert request.cause.kind == protocol.CREATION_TASK_FAILED and "too large" in request.cause.message
        assert creator.told == [(creator.held[0], FAILED)]

    tell(story)


def test_what_the_gcs_must_hear_is_said_again_as_long_as_there_is_one() -> None:
    async def story(creator: Creator) -> None:
        creator.create()
        creator.peers.take(RegisterActor).fail(RemoteFailure("internal", "oops"))
        await pass_time(ASK_AGAIN_S + 0.1)
        creator.peers.take_all(Poll)
        creator.peers.take(RegisterActor).fail(unreachable())
        await pass_time(2 * ASK_AGAIN_S)
        assert creator.asked(RegisterActor) == [] and creator.told == []

    tell(story)


# --- how long a constructor's arguments are kept


def test_a_constructor_ends_when_it_cannot_be_called_again() -> None:
    async def story(creator: Creator) -> None:
        once, again = creator.create(registered=True), creator.create(registered=True, max_restarts=1)
        for actor_id, restarts in ((once, 0), (again, 1)):
            creator.ready(actor_id)
            creator.hear(actor_id, ALIVE, max_restarts=restarts)
        assert creator.told == [(creator.constructor(once), "FINISHED")] and creator.known() == [again]
        assert creator.constructor(again).state is PUSHED and creator.own.constructors() == [creator.held[1].task_id]
        creator.hear(again, ALIVE, max_restarts=1, restarts=1)
        creator.dead(again)
        assert creator.told[1:] == [(creator.constructor(again), "FINISHED")] and creator.known() == []
        never = creator.create(registered=True, max_restarts=1)
        creator.ready(never)
        creator.dead(never)
        assert creator.told[2:] == [(creator.constructor(never), FAILED)]

    tell(story)


def test_a_detached_actor_is_handed_over_when_the_gcs_knows_how_it_is_made_and_it_takes_nothing_of_ours() -> None:
    async def story(creator: Creator) -> None:
        bound = creator.create(registered=True, max_restarts=1)
        plain, inlined, takes_large, takes_nested, refers = (
            creator.create(detached=True, registered=True, max_restarts=1) for _ in range(5)
        )
        creator.constructor(inlined).arguments = [argument(b"value")]
        creator.constructor(takes_large).arguments = [argument(b"value"), argument(None)]
        creator.constructor(takes_nested).arguments = [argument(b"value", [RefInfo(b"r" * 28, OWN, b"")])]
        creator.constructor(refers).nested = (RefInfo(b"r" * 28, OWN, b""),)
        everything = (bound, plain, inlined, takes_large, takes_nested, refers)
        for actor_id in everything:
            creator.ready(actor_id)
            creator.hear(actor_id, DEPENDENCIES_UNREADY)
        assert creator.own.handed_over() == set()
        for actor_id in everything:
            creator.hear(actor_id, PENDING_CREATION)
        assert creator.own.handed_over() == {creator.constructor(each).task_id for each in (plain, inlined)}

    tell(story)


def argument(data: bytes | None, nested: Sequence[RefInfo] = ()) -> Argument:
    value = None if data is None else Value(data, nested=list(nested))
    return Argument(value, b"o" * 28, OWN)


def test_a_constructor_ends_once_although_only_its_arguments_kept_its_actor() -> None:
    async def story(creator: Creator) -> None:
        actor_id = creator.create(registered=True)
        task = creator.constructor(actor_id)
        creator.freed_with[task.task_id] = task.result_ids()
        creator.ready(actor_id)
        creator.hear(actor_id, ALIVE)
        assert creator.told == [(task, "FINISHED")] and len(creator.asked(EndActor)) == 1

    tell(story)


def test_what_is_heard_of_an_actor_before_its_constructor_is_ready_does_not_end_that() -> None:
    async def story(creator: Creator) -> None:
        actor_id = creator.create(registered=True)
        creator.hear(actor_id, ALIVE)
        assert creator.told == [] and creator.known() == [actor_id]

    tell(story)


def test_when_the_cluster_is_gone_constructors_end_as_tasks_do() -> None:
    async def story(creator: Creator) -> None:
        actor_id = creator.create(registered=True)
        creator.own.forget_constructors()
        creator.dead(actor_id)
        assert creator.told == creator.known() == []

    tell(story)


# --- the end of handles


def handle_of(creator: Creator, actor_id: bytes) -> bytes:
    return creator.constructor(actor_id).result_ids()[0]


def test_g24_when_there_is_no_handle_the_gcs_is_told_unless_it_knows_better() -> None:
    async def story(creator: Creator) -> None:
        unknown, alive, restartable, dead = (creator.create(registered=True, max_restarts=n) for n in (0, 0, 1, 0))
        for actor_id, restarts in ((alive, 0), (restartable, 1)):
            creator.ready(actor_id)
            creator.hear(actor_id, ALIVE, max_restarts=restarts)
        creator.dead(dead)
        assert creator.own.owns_living()
        for actor_id in (unknown, alive, restartable, dead):
            creator.told.clear()
            creator.own.on_freed([handle_of(creator, actor_id)])
            finished = [(creator.constructor(actor_id), "FINISHED")] if actor_id is restartable else []
            assert creator.told == finished, "what will not begin anew needs its arguments no more"
        ended = [request.actor_id for request in creator.asked(EndActor)]
        assert ended == [unknown, alive, restartable] and not creator.own.owns_living()
        creator.own.on_freed([handle_of(creator, alive)])
        assert len(creator.asked(EndActor)) == 3 and creator.known() == [unknown]

    tell(story)


@pytest.mark.parametrize("is_told", [True, False])
def test_an_owner_lets_the_constructor_go_of_an_actor_that_died_and_was_forgotten_between_two_polls(is_told: bool) -> None:
    """A poll says that it is gone; or it is no news for a subscriber that has never heard of it."""

    async def story(creator: Creator) -> None:
        actor_id = creator.create(registered=True)
        creator.actors.creator.on_freed([handle_of(creator, actor_id)])
        if is_told:
            creator.actors._on_change(actor_id, None)
        else:
            creator.peers.take(EndActor).answer(DONE)
            death = DeathCause(protocol.KILLED, "it died long ago")
            names = {"class_name": "A", "name": "", "namespace": ""}
            info = ActorInfo(actor_id, DEAD, **names, owner=OWN, detached=False, max_restarts=0, restarts=0, handle=b"")
            info = msgspec.structs.replace(info, death=death)
            creator.peers.take(GetActor).answer(ActorReply(info))
        assert creator.told == [(creator.constructor(actor_id), FAILED)] and creator.known() == []

    tell(story)


@pytest.mark.parametrize("count", [1, 2])
def test_g24_calls_keep_their_actor_until_the_last_of_them_has_ended(count: int) -> None:
    async def story(creator: Creator) -> None:
        actor_id = creator.create(registered=True)
        handle = handle_of(creator, actor_id)
        prepared = prepare("A.f", client=creator.actors.client(actor_id, OWN, True))
        calls = [pending(prepared) for _ in range(count)]
        for call in calls:
            call.handle_id = handle
            creator.clients.keep_handle(call)
        effects = Effects()
        creator.references.remove_local([handle], effects)
        assert effects.freed == []
        for call in calls:
            assert creator.asked(EndActor) == []
            creator.clients.let_go(call)
        assert len(creator.asked(EndActor)) == 1 and creator.references.reference_of(handle) is None

    tell(story)


def test_g26_a_detached_actor_outlives_its_handles() -> None:
    async def story(creator: Creator) -> None:
        actor_id = creator.create(detached=True, registered=True)
        creator.own.on_freed([handle_of(creator, actor_id)])
        assert creator.asked(EndActor) == [] and not creator.own.owns_living()

    tell(story)


def test_who_has_only_dead_actors_owns_none_that_live() -> None:
    async def story(creator: Creator) -> None:
        actor_id = creator.create(registered=True)
        assert creator.own.owns_living()
        creator.dead(actor_id)
        assert not creator.own.owns_living()

    tell(story)


# --- following


def follow(creator: Creator, name: str = "actor") -> ActorClient:
    return creator.actors.client(id_of(name), OWN, True)


def test_one_channel_tells_of_all_actors_of_a_job_and_one_client_serves_all_handles() -> None:
    async def story(creator: Creator) -> None:
        one = follow(creator)
        assert follow(creator) is one
        other = follow(creator, "other")
        await turns()
        polls = creator.peers.take_all(Poll)
        assert len(polls) == len({job_of_actor(id_of(name)) for name in ("actor", "other")})
        ids = one.actor_id, other.actor_id
        infos = [ActorInfo(actor_id, ALIVE, "A", "", "", OWN, False, 0, 0, b"", ACTOR_HOST) for actor_id in ids]
        polls[0].answer(PollReply(b"epoch", 1, True, [(info.actor_id, encode(info)) for info in infos]))
        await turns()
        assert one.state == ALIVE and (other.state == ALIVE) == (len(polls) == 1)
        assert creator.actors.info_of(id_of("actor")) == infos[0]

    tell(story)


def test_threads_that_make_handles_of_one_actor_at_once_have_one_client() -> None:
    """A weak dictionary's own ``setdefault`` would now and then give them two."""
    nothing: Any = None
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as threads:
            for _ in range(300):
                clients, together = ActorClients(ReferenceCounter(), nothing), threading.Barrier(4)

                def find(clients: ActorClients = clients, together: threading.Barrier = together) -> tuple[Any, bool]:
                    together.wait(10)
                    return clients.get_or_make(id_of("actor"), OWN, True)

                found = [one.result() for one in [threads.submit(find) for _ in range(4)]]
                assert len({id(client) for client, _ in found}) == sum(is_new for _, is_new in found) == 1
    finally:
        sys.setswitchinterval(interval)


def test_a_new_client_knows_what_was_heard_before() -> None:
    async def story(creator: Creator) -> None:
        first = follow(creator)
        creator.dead(id_of("actor"))
        assert first.state == DEAD
        del first
        again = follow(creator)
        assert again.state == DEAD
        await pass_time(2 * ASK_AGAIN_S)
        assert creator.asked(GetActor) == []

    tell(story)


def test_an_actor_that_the_gcs_does_not_tell_of_is_asked_about_until_it_is_known() -> None:
    async def story(creator: Creator) -> None:
        client = follow(creator)
        for _ in range(2):
            await pass_time(ASK_AGAIN_S + 0.1)
            creator.peers.take_all(Poll)
            creator.peers.take(GetActor).answer(ActorReply(None))
        await pass_time(ASK_AGAIN_S + 0.1)
        info = ActorInfo(id_of("actor"), DEAD, "A", "", "", OWN, False, 0, 0, b"", death=DeathCause(protocol.KILLED, "gone"))
        creator.peers.take_all(Poll)
        creator.peers.take(GetActor).answer(ActorReply(info))
        await pass_time(2 * ASK_AGAIN_S)
        assert client.state == DEAD and creator.asked(GetActor) == []
        assert creator.actors.info_of(id_of("actor")) is None  # The channel never removes what it does not publish.

    tell(story)


@pytest.mark.parametrize("what", ["dropped", "exiting", "known"])
def test_nobody_asks_about_an_actor_whom_that_helps_no_more(what: str) -> None:
    async def story(creator: Creator) -> None:
        client: ActorClient | None = follow(creator)
        if what == "dropped":
            client = None
        elif what == "exiting":
            creator.process.is_exiting = True
        else:
            creator.hear(id_of("actor"), ALIVE, address=ACTOR_HOST)
        await pass_time(2 * ASK_AGAIN_S)
        assert creator.asked(GetActor) == [] and (client is None) == (what == "dropped")

    tell(story)


def test_an_actor_that_the_gcs_has_forgotten_is_asked_about_unless_it_was_dead() -> None:
    async def story(creator: Creator) -> None:
        living, dead = follow(creator, "living"), follow(creator, "dead")
        creator.hear(id_of("living"), ALIVE, address=ACTOR_HOST)
        creator.dead(id_of("dead"))
        for client in (living, dead):
            creator.actors._on_change(client.actor_id, None)
            assert creator.actors.info_of(client.actor_id) is None
        creator.actors._on_change(id_of("nobody's"), None)
        assert [request.actor_id for request in creator.asked(GetActor)] == [id_of("living")]

    tell(story)


# --- calls


def test_a_push_says_which_call_of_which_stream_it_is_and_only_a_repeated_one_what_is_lost() -> None:
    async def story(creator: Creator) -> None:
        task, stream = creator.call(follow(creator))
        task.attempt = 1
        creator.actors.push(stream, task, False)
        first, again = creator.asked(PushActorTask)
        assert (first.task_id, first.stream, first.sequence, first.in_order) == (task.task_id, 1, 1, True)
        assert (first.rerun, again.rerun, again.in_order) == (None, Rerun([1], 2, [3]), False)

    tell(story)


def test_an_answer_counts_once_and_only_for_the_stream_that_the_call_is_in() -> None:
    async def story(creator: Creator) -> None:
        client = follow(creator)
        task, stream = creator.call(client)
        stale, moved = creator.call(client)
        moved_to = CallStream(ACTOR_HOST, RAYLET, 1, 2)
        stale.worker = moved_to
        answers = creator.peers.take_all(PushActorTask)
        reply = PushTaskReply(OK, (), 5)
        answers[0].answer(reply)
        answers[1].answer(reply)
        assert creator.told == [(task, reply)] and stream.in_flight == {} and stale in moved.in_flight.values()
        answers[0].answer(reply)
        assert len(creator.told) == 1

    tell(story)


def test_a_call_that_did_not_start_for_its_arguments_is_made_again() -> None:
    async def story(creator: Creator) -> None:
        task, _ = creator.call(follow(creator))
        creator.peers.take_all(PushActorTask)[0].answer(PushTaskReply(NOT_STARTED, (), 0, missing=(b"x",)))
        assert creator.told == [(b"x",), [task]]

    tell(story)


def test_a_call_that_did_not_start_and_has_its_arguments_is_pushed_again_at_once() -> None:
    async def story(creator: Creator) -> None:
        creator.have_arguments = True
        task, _ = creator.call(follow(creator))
        creator.peers.take_all(PushActorTask)[0].answer(PushTaskReply(NOT_STARTED, (), 0))
        (again,) = creator.asked(PushActorTask)
        assert (again.task_id, task.state) == (task.task_id, PUSHED)

    tell(story)


def test_a_call_that_is_too_large_fails_alone_and_one_that_cannot_be_sent_loses_the_connection() -> None:
    async def story(creator: Creator) -> None:
        client = follow(creator)
        creator.hear(client.actor_id, ALIVE, address=ACTOR_HOST)
        large, stream = creator.call(client)
        creator.peers.take_all(PushActorTask)[0].fail(RecordTooLarge("too large"))
        ((task, error),) = creator.told
        assert task is large and isinstance(error, RaySystemError) and stream.in_flight == {}
        assert client.stream is stream
        lost, stream = creator.call(client)
        creator.peers.take_all(PushActorTask)[0].fail(unreachable())
        assert client.stream is None and lost in client.lost
        creator.told.clear()
        await pass_time(2 * MAX_PATIENCE_S)
        ((task, error),) = [each for each in creator.told if each[1] is not RAYLET]
        assert task is lost and isinstance(error, ActorUnavailableError)

    tell(story)


def test_what_a_lost_call_has_made_is_discarded_where_that_was() -> None:
    async def story(creator: Creator) -> None:
        task, stream = creator.call(follow(creator))
        creator.actors.discard_attempt(task, stream)
        creator.actors.discard_attempt(task, CallStream(ACTOR_HOST, None, 0, 1))
        assert creator.told == [(task, RAYLET)]

    tell(story)


@pytest.mark.parametrize(
    ("kind", "error", "expected", "text"),
    [
        (protocol.ACTOR_UNSCHEDULABLE, b"", ActorUnschedulableError, "because"),
        (protocol.GROUP_REMOVED, b"", ActorPlacementGroupRemoved, "because"),
        (protocol.RUNTIME_ENV_FAILED, b"", RuntimeEnvSetupError, "because"),
        (protocol.RUNTIME_ENV_FAILED, NO_ENVIRONMENT, RuntimeEnvSetupError, "the directory is gone"),
        (protocol.CREATION_TASK_FAILED, ERROR, ActorDiedError, "ValueError: no"),
        (protocol.CREATION_TASK_FAILED, b"", ActorDiedError, "because"),
        (protocol.KILLED, b"", ActorDiedError, "because"),
        (protocol.OUT_OF_MEMORY, b"", OutOfMemoryError, "because"),
    ],
)
def test_a_call_of_a_dead_actor_says_why_it_is_dead(kind: int, error: bytes, expected: type, text: str) -> None:
    found = error_of_actor(id_of("actor"), DeathCause(kind, "because", error))
    assert type(found) is expected and text in str(found)
    if isinstance(found, ActorDiedError):
        assert found.actor_init_failed == (kind == protocol.CREATION_TASK_FAILED)


def test_each_kind_of_death_has_its_own_name() -> None:
    kinds = {name: getattr(protocol, name) for name in protocol.KINDS_OF_DEATH}
    assert list(kinds.values()) == list(range(len(kinds)))


def test_after_the_end_of_the_process_the_gcs_is_not_followed() -> None:
    async def story(creator: Creator) -> None:
        client = follow(creator)
        await turns()
        assert len(creator.asked(Poll)) == 1 and client.state == ""
        creator.actors.close()
        await turns()
        assert [task for task in asyncio.all_tasks() if task.get_name().startswith("follow(")] == []

    tell(story)


def test_the_gcs_is_told_of_an_actor_only_once_if_it_answers() -> None:
    async def story(creator: Creator) -> None:
        actor_id = creator.create(registered=True)
        creator.ready(actor_id)
        creator.peers.take_all(CreateActor)[0].answer(DONE)
        await pass_time(2 * ASK_AGAIN_S)
        assert creator.asked(CreateActor) == []

    tell(story)


def test_g31_an_actor_for_which_nobody_has_waited_is_ended_at_the_gcs_whether_that_knows_it_or_not() -> None:
    async def story(creator: Creator) -> None:
        creator.own.abandon(id_of("actor"))
        (request,) = creator.asked(EndActor)
        assert request == EndActor(id_of("actor"), DeathCause(protocol.OUT_OF_SCOPE, "its creator did not wait for it"))

    tell(story)
