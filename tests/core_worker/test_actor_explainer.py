"""Why an actor is not there, or its call not answered: what the caller knows, what the gcs says, and what its process does.

``Caller`` has a real table of tasks, and is an actor's process too; gcs, raylets and other processes are the test.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from minray.common.ids import actor_of, creation_task_of, return_id, short, short_actor
from minray.common.task_spec import ActorOptions
from minray.core_worker.introspection.actor_explainer import MAX_NAMED, ActorExplainer, is_of_actor
from minray.core_worker.introspection.explainer import Explainer
from minray.core_worker.records.pending_task import (
    PUSHED,
    QUEUED,
    WAITING,
    ActorClient,
    CallStream,
    PendingTask,
)
from minray.core_worker.records.received_task import ReceivedTask
from minray.core_worker.submission.task_manager import TaskManager
from minray.protocol.actor import (
    ALIVE,
    DEAD,
    DEPENDENCIES_UNREADY,
    OUT_OF_SCOPE,
    PENDING_CREATION,
    RESTARTING,
    ActorExplanation,
    ActorInfo,
    DeathCause,
    ExplainActor,
    ExplainCall,
)
from minray.protocol.core_worker import Explanation
from tests.core_worker.parts import OWN, address, id_of, object_id, pending, prepare, received, submit, template
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.core_worker.process_record import process_record
from tests.rpc.fake_network import in_virtual_time, turns

OWNER, HOME, RAYLET = address("owner-of-the-actor"), address("home"), address("raylet")
ACTOR, GROUP = id_of("actor"), id_of("group")
INFO = ActorInfo(ACTOR, ALIVE, "A", "", "", OWNER, False, 3, 0, b"", HOME, pid=5)
ALIVE_TEXT = f"actor {short_actor(ACTOR)} (A), which lives in pid=5, node {short(HOME.node_id)}"


class Group:
    """Plays ``PlacementGroups``, of which there is one."""

    says = "about its group", True

    async def explain(self, group_id: bytes) -> tuple[str, bool]:
        assert group_id == GROUP
        return self.says


class Caller:
    """See the head of this file."""

    def __init__(self) -> None:
        self.peers = RecordingPeers()
        self.process = process_record(self.peers)
        self.tasks = TaskManager(None)
        tables: Any = self
        self.ask = Explainer(
            process=self.process,
            references=tables,
            store=tables,
            tasks=self.tasks,
            resolver=tables,
            submitter=tables,
            actors=tables,
            placement_groups=tables,
            actor_receiver=tables,
        ).ask
        self.client = ActorClient(ACTOR, OWNER, True)
        self.group = Group()
        self.raylet_says = "waits for CPU"
        self.actor, self.actor_id = tables, ACTOR
        self.calls: list[ReceivedTask] = []
        """Calls of the actor that lives here."""
        groups: Any = self.group
        self.actors = ActorExplainer(self, self.process.gcs, self.tasks, tables, groups, tables)

    def unanswered(self) -> list[ReceivedTask]:
        return self.calls

    async def explain(self, object_id: bytes, owner: Any, hops: int = 0) -> list[str]:
        assert (object_id, owner) == (return_id(creation_task_of(ACTOR, OWNER.worker_id), 1), OWNER)
        return [f"about its constructor, {hops} hops from here"]

    async def explain_task(self, task: PendingTask, hops: int) -> list[str]:
        return [f"about {task.prepared.template.name}, {hops} hops from here"]

    async def explain_wait(self, task_id: bytes, hops: int) -> list[str]:
        return [f"about what {short(task_id)} waits for, {hops} hops from here"]

    async def ask_raylet(self, address: Any, lease_id: bytes) -> str:
        assert (address, lease_id) == (RAYLET, id_of("lease"))
        return self.raylet_says

    # --- what happens

    def call(self, *steps: str, name: str = "A.f") -> PendingTask:
        task = submit(self.tasks, pending(prepare(name, method="f", client=self.client)), *steps)
        if PUSHED in steps:
            task.worker = self.client.stream
        else:
            self.client.queue.append(task)
        return task

    def connect(self) -> None:
        self.client.info = INFO
        self.client.stream = CallStream(HOME, RAYLET, 0, 1)

    async def why_call(self, task: PendingTask, *answers: Any) -> list[str]:
        return await self._answered(self.actors.explain_call(task, 1), *answers)

    async def why(self, *answers: Any) -> list[str]:
        return await self._answered(self.actors.explain_actor(ACTOR, OWNER, 1), *answers)

    async def _answered(self, question: Any, *answers: Any) -> list[str]:
        """These are what others say, in their order; an exception is that they cannot be reached."""
        asking = asyncio.get_running_loop().create_task(question)
        for answer in answers:
            await turns()
            (asked,) = self.peers.asked
            self.peers.asked.clear()
            self.last = asked
            if isinstance(answer, Exception):
                asked.fail(answer)  # type: ignore[arg-type]
            else:
                asked.answer(answer)
        said: list[str] = await asking
        assert self.peers.asked == []
        return said

    def here(self, call: bytes = b"", actor: bytes = ACTOR) -> str:
        text, _ = self.actors._look_here(ExplainCall(actor, call, 0, 1))
        return text


def known(state: str, **fields: Any) -> ActorExplanation:
    more = {name: fields.pop(name) for name in ("text", "raylet", "lease_id", "group_id") if name in fields}
    address = {} if state == ALIVE else {"address": None, "pid": 0}
    return ActorExplanation(msgspec.structs.replace(INFO, state=state, **address, **fields), **more)


def line_of(call: PendingTask) -> str:
    return f"call {call.prepared.template.name} ({short(call.task_id)})"


# --- actors


@in_virtual_time
async def test_of_a_living_actor_its_process_says_what_it_does() -> None:
    caller = Caller()
    assert await caller.why(known(ALIVE), Explanation(["A.f runs"])) == [ALIVE_TEXT, "A.f runs"]
    assert (caller.last.address, caller.last.request) == (HOME, ExplainCall(ACTOR, b"", 0, 2))
    said = await caller.why(known(ALIVE, name="clerk"), unreachable())
    assert said[0].startswith(f"actor {short_actor(ACTOR)} (A 'clerk'), which lives") and "does not answer: " in said[1]


@in_virtual_time
async def test_the_gcs_may_not_know_an_actor_yet_or_be_gone() -> None:
    caller = Caller()
    assert await caller.why(ActorExplanation(None)) == [f"actor {short_actor(ACTOR)} is not known to the gcs yet"]
    assert caller.last.request == ExplainActor(ACTOR, OWNER)
    (said,) = await caller.why(unreachable())
    assert said.startswith(f"actor {short_actor(ACTOR)}: the gcs cannot be reached: ")


@in_virtual_time
async def test_an_actor_whose_constructor_waits_for_arguments_is_its_owners_affair() -> None:
    said = await Caller().why(known(DEPENDENCIES_UNREADY))
    assert said == [
        f"actor {short_actor(ACTOR)} (A), which is being created",
        "about its constructor, 2 hops from here",
    ]


@in_virtual_time
@pytest.mark.parametrize(
    ("group", "text", "expected"),
    [
        (None, "waits for CPU", ["its lease waits for CPU"]),
        (None, "", []),
        (True, "waits for CPU", ["its lease waits for CPU"]),
        (False, "waits for CPU", ["about its group"]),
    ],
)
async def test_one_that_waits_for_a_worker_may_wait_for_its_group_first(
    group: bool | None, text: str, expected: list[str]
) -> None:
    caller = Caller()
    caller.group.says, caller.raylet_says = ("about its group", bool(group)), text
    group_id = b"" if group is None else GROUP
    said = await caller.why(known(PENDING_CREATION, raylet=RAYLET, lease_id=id_of("lease"), group_id=group_id))
    assert said[1:] == expected


@in_virtual_time
async def test_what_the_gcs_knows_itself_it_says_if_there_is_anything() -> None:
    caller = Caller()
    assert (await caller.why(known(PENDING_CREATION, text="it needs a GPU")))[1:] == ["it needs a GPU"]
    assert (await caller.why(known(PENDING_CREATION)))[1:] == []


@in_virtual_time
async def test_of_a_death_its_cause_is_told_and_whether_the_actor_begins_anew() -> None:
    caller = Caller()
    cause = DeathCause(OUT_OF_SCOPE, "nobody has a handle")
    of = f"actor {short_actor(ACTOR)} (A), which is"
    assert await caller.why(known(DEAD, death=cause)) == [f"{of} dead: nobody has a handle"]
    again = [known(RESTARTING, death=cause, restarts=2, max_restarts=most) for most in (3, -1)]
    assert await caller.why(again[0]) == [f"{of} being restarted (restart 2 of 3): nobody has a handle"]
    assert await caller.why(again[1]) == [f"{of} being restarted (restart 2): nobody has a handle"]


# --- calls


@in_virtual_time
async def test_a_call_that_was_sent_is_explained_by_the_actors_process() -> None:
    caller = Caller()
    caller.connect()
    call = caller.call(QUEUED, PUSHED)
    call.attempt = 2
    said = await caller.why_call(call, Explanation(["it runs", "it waits for 1 object"]))
    assert said == [f"{line_of(call)} was sent to {ALIVE_TEXT}", "it runs", "it waits for 1 object"]
    assert (caller.last.address, caller.last.request) == (HOME, ExplainCall(ACTOR, call.task_id, 2, 2))
    said = await caller.why_call(call, unreachable())
    assert said[1].startswith("it does not answer: ")


@in_virtual_time
async def test_of_one_whose_connection_is_lost_the_gcs_says_what_became_of_the_actor() -> None:
    caller = Caller()
    caller.connect()
    call = caller.call(QUEUED, PUSHED)
    call.worker = None
    said = await caller.why_call(call, known(RESTARTING))
    assert said[0] == f"{line_of(call)} was sent to an actor that cannot be reached any more; it may have run"
    assert "being restarted" in said[1]


@in_virtual_time
async def test_a_call_waits_for_its_actor() -> None:
    caller = Caller()
    call = caller.call(QUEUED)
    said = await caller.why_call(call, known(PENDING_CREATION))
    assert said[0] == f"{line_of(call)} waits for its actor" and "being created" in said[1]


@in_virtual_time
async def test_a_call_waits_for_those_before_it_that_have_not_ended() -> None:
    caller = Caller()
    caller.connect()
    over, first, second, asked, behind = [caller.call(WAITING, QUEUED, name=f"A.{name}") for name in "abcde"]
    del caller.tasks.tasks[over.task_id]
    assert await caller.why_call(asked) == [
        f"{line_of(asked)} waits behind 2 calls of this process, for they are taken in order; the first:",
        "about A.b, 2 hops from here",
    ]
    assert "waits behind 1 call of" in (await caller.why_call(second))[0]
    assert await caller.why_call(first) == [f"{line_of(first)} is about to be sent"]
    assert "waits behind 3 calls" in (await caller.why_call(behind))[0]


@in_virtual_time
async def test_a_constructor_whose_arguments_are_there_is_the_gcs_affair() -> None:
    caller = Caller()
    task = pending(prepare("A.__init__", actor=ActorOptions()))
    caller.tasks.move(task, WAITING)
    assert not is_of_actor(task)
    caller.tasks.move(task, QUEUED)
    assert is_of_actor(task)
    assert await caller.why_call(task) == [
        f"constructor A.__init__ ({short(task.task_id)}) is on its way to the gcs,"
        f" which creates actor {short_actor(actor_of(task.task_id))}"
    ]


# --- the actor's own process


def a_call(name: str, runs: bool = False) -> ReceivedTask:
    task = received(template(f"A.{name}", method=name), task_id=id_of(name), attempt=0)
    if runs:
        task.claim()
    return task


def test_what_an_actor_does_altogether() -> None:
    caller = Caller()
    assert caller.here() == "no call runs"
    caller.calls = [a_call("a", True)]
    assert caller.here() == "A.a runs"
    caller.calls += [a_call("b", True), a_call("c")]
    assert caller.here() == "A.a, A.b run, 1 call waits"
    caller.calls += [a_call(name, True) for name in "def"] + [a_call("g")]
    assert MAX_NAMED == 3 and caller.here() == "A.a, A.b, A.d and 2 more run, 2 calls wait"


def test_what_an_actor_does_with_one_call() -> None:
    caller = Caller()
    caller.calls = [a_call("a", True), a_call("b"), a_call("c"), a_call("d"), a_call("e", True)]
    caller.calls[1].fetching = [(object_id("x"), OWN), (object_id("y"), OWN)]
    assert caller.here(id_of("a")) == "it runs"
    bringing = f"{short(object_id('x'))}, {short(object_id('y'))}"
    assert caller.here(id_of("b")) == f"its arguments are being brought to the actor's node: {bringing}"
    assert caller.here(id_of("c")) == "it waits for its turn: A.a, A.e run, 1 call waits before it"
    assert caller.here(id_of("d")) == "it waits for its turn: A.a, A.e run, 2 calls wait before it"
    assert caller.here(id_of("z")) == "the call has not arrived, or its answer is on its way"


@in_virtual_time
async def test_what_the_call_that_runs_waits_for_goes_on_with_the_chain() -> None:
    caller = Caller()
    caller.calls = [a_call("a", True), a_call("b")]
    waits = f"about what {short(id_of('a'))} waits for, 4 hops from here"
    for call, text in [(b"", "A.a runs, 1 call waits"), (id_of("a"), "it runs"), (id_of("b"), None)]:
        said = await caller.actors.explain_here(ExplainCall(ACTOR, call, 0, 4))
        assert said == [text or "it waits for its turn: A.a runs, 0 calls wait before it", waits]
    caller.calls.append(a_call("c", True))
    assert len(await caller.actors.explain_here(ExplainCall(ACTOR, b"", 0, 4))) == 1, "which of them matters?"


def test_where_an_actor_lives_no_more() -> None:
    caller = Caller()
    assert caller.here(actor=id_of("another")) == "it does not live there any more"
    caller.actor = None
    assert caller.here() == "it does not live there any more"
