"""Why a reference is not ready: the chain, link by link, as one process tells it.

``Process`` has real tables of values and tasks; its neighbours are the test, and what they say is quoted.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minray.common.bundles import ANY_BUNDLE
from minray.common.ids import actor_of, return_id, short, short_actor, task_of
from minray.common.task_spec import ActorOptions, LabelSelector, LeaseShape, RuntimeEnvInfo, SchedulingStrategy
from minray.core_worker.introspection.explainer import ANSWER_S, MAX_HOPS, PATIENCE_S, Explainer
from minray.core_worker.ownership.memory_store import MemoryStore, Waiter
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.leased_worker import LeasedWorker, WorkerRequest
from minray.core_worker.records.pending_task import PUSHED, QUEUED, WAITING, PendingTask
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.task_manager import TaskManager
from minray.protocol.actor import CREATION_TASK_FAILED, DEAD, ActorInfo, DeathCause
from minray.protocol.base import Address
from minray.protocol.core_worker import Explain, ExplainRun, Explanation
from minray.protocol.object_store import Place
from minray.protocol.raylet import ExplainLease, LeaseExplanation
from tests.core_worker.parts import (
    JOB,
    OWN,
    WORKER,
    address,
    id_of,
    leased,
    object_id,
    pending,
    prepare,
    request_for,
    stored,
    submit,
)  # fmt: skip
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.core_worker.process_record import process_record
from tests.rpc.fake_network import in_virtual_time, pass_time, turns

OTHER, RAYLET = address("other"), address("raylet-2")
A, B = object_id("a"), object_id("b")
GROUP = id_of("group")


class Process:
    """See the head of this file."""

    def __init__(self) -> None:
        self.store, self.tasks, self.references = MemoryStore(), TaskManager(None), ReferenceCounter()
        self.peers = RecordingPeers()
        self.infos: dict[bytes, ActorInfo] = {}
        """Actor id -> the information that the process has about the actor."""
        self.missing: dict[bytes, list[bytes]] = {}
        self.requests: dict[bytes, WorkerRequest] = {}
        self.workers: list[LeasedWorker] = []
        self.ready_groups: dict[bytes, bytes] = {}
        """Objects that are ready when a group is, and that."""
        self.group = "the group waits for room", False
        tables: Any = self
        self.explainer = Explainer(
            process=process_record(self.peers),
            references=self.references,
            store=self.store,
            tasks=self.tasks,
            resolver=tables,
            submitter=tables,
            actors=tables,
            placement_groups=tables,
            actor_receiver=tables,
        )

    # --- what it is made of

    def missing_of(self, task: PendingTask) -> list[bytes]:
        return self.missing.get(task.task_id, [])

    def request_of(self, task: PendingTask) -> WorkerRequest | None:
        return self.requests.get(task.task_id)

    def leased_workers(self) -> list[LeasedWorker]:
        return self.workers

    def info_of(self, actor_id: bytes) -> ActorInfo | None:
        return self.infos.get(actor_id)

    def group_awaited_by(self, key: bytes) -> bytes | None:
        return self.ready_groups.get(key)

    async def explain(self, group_id: bytes) -> tuple[str, bool]:
        assert group_id == GROUP
        return self.group

    # --- what it has submitted

    def waits(self, name: str, *arguments: bytes, owner: Address = OWN) -> PendingTask:
        """For all of these, which are references or an id of a function."""
        slots = tuple((key, owner) for key in arguments if len(key) == len(A))
        task = submit(self.tasks, pending(prepare(name), slots), WAITING)
        self.missing[task.task_id] = list(arguments)
        return task

    def queued(self, name: str = "f", asks: Address | None = None, is_asking: bool = True, **options: Any) -> PendingTask:
        task = submit(self.tasks, pending(prepare(name, **options)), QUEUED)
        if is_asking:
            self.requests[task.task_id] = request_for(asks)
        return task

    def pushed(self, *names: str) -> list[PendingTask]:
        """To one worker, which has answered some before."""
        worker = leased(granted_at=asyncio.get_running_loop().time())
        tasks = [submit(self.tasks, pending(prepare(name)), QUEUED, PUSHED) for name in names]
        for sequence, task in enumerate(tasks, 4):
            task.worker, task.sequence = worker, sequence
            worker.in_flight[sequence] = task
        self.workers.append(worker)
        return tasks

    # --- what it says

    async def why(self, what: PendingTask | bytes, owner: Address | None = OWN) -> list[str]:
        return await self.explainer.explain(what if isinstance(what, bytes) else result_of(what), owner)

    def asking(self, what: PendingTask | bytes, owner: Address | None = OWN) -> asyncio.Task[list[str]]:
        return asyncio.get_running_loop().create_task(self.why(what, owner))


def result_of(task: PendingTask) -> bytes:
    return return_id(task.task_id, 1)


def name_of(task: PendingTask) -> str:
    return f"task {task.prepared.template.name} ({short(task.task_id)})"


# --- objects


@in_virtual_time
async def test_what_is_here_is_ready() -> None:
    process = Process()
    process.store.put(A, stored(b"value"))
    process.store.put(B, stored(b"error", is_error=True))
    for owner in (OWN, OTHER, None):
        assert await process.why(A, owner) == [f"{short(A)} is ready"]
        assert await process.why(B, owner) == [f"{short(B)} is ready (it is an error)"]
    assert process.peers.asked == []


@in_virtual_time
async def test_of_a_large_value_of_another_process_only_that_knows_whether_it_is_still_there() -> None:
    process = Process()
    process.store.put(A, StoredObject(b"", (), False, (), Place(0, 1000, RAYLET)))
    assert await process.why(A) == [f"{short(A)} is ready"]
    asking = process.asking(A, OTHER)
    await turns()
    asked = process.peers.take(Explain)
    assert (asked.address, asked.request) == (OTHER, Explain(A, 1))
    asked.answer(Explanation(["it was lost", "and so on"]))
    assert await asking == ["it was lost", "and so on"]


@in_virtual_time
async def test_an_owner_who_is_gone_is_the_end_of_the_chain() -> None:
    process = Process()
    asking = process.asking(A, OTHER)
    await turns()
    process.peers.take(Explain).fail(unreachable())
    (said,) = await asking
    assert said.startswith(f"{short(A)}: its owner, worker {short(OTHER.worker_id)}, cannot be reached: ")


@in_virtual_time
async def test_what_no_task_makes_was_freed_or_never_was() -> None:
    assert await Process().why(A) == [f"{short(A)}: no task makes it any more (it was freed, or never existed)"]


@in_virtual_time
async def test_of_a_constructor_that_has_ended_is_known_what_became_of_its_actor() -> None:
    """The gcs is still being told that an argument has failed."""
    process = Process()
    actor_id = actor_of(task_of(A))
    death = DeathCause(CREATION_TASK_FAILED, "an argument failed")
    process.infos[actor_id] = ActorInfo(actor_id, DEAD, "Counter", "", "", OWN, False, 0, 0, b"", death=death)
    assert await process.why(A) == [f"actor {short_actor(actor_id)} (Counter), which is dead: an argument failed"]


@in_virtual_time
async def test_what_stands_for_a_placement_group_is_ready_with_that() -> None:
    process = Process()
    process.ready_groups[A] = GROUP
    assert await process.why(A) == [f"{short(A)} is ready when its placement group is", "the group waits for room"]


# --- tasks that wait


@in_virtual_time
async def test_a_chain_of_tasks_ends_at_what_is_really_missing() -> None:
    process = Process()
    (first,) = process.pushed("first")
    second = process.waits("second", result_of(first), A)
    third = process.waits("third", result_of(second))
    asking = process.asking(third)
    await turns()
    asked = process.peers.take(ExplainRun)
    assert (asked.address, asked.request) == (WORKER, ExplainRun(first.task_id, 3))
    asked.answer(Explanation(["it waits for what another process has"]))
    said = await asking
    assert said[:2] == [f"{name_of(third)} waits for 1 argument", f"{name_of(second)} waits for 2 arguments"]
    assert said[2].startswith(f"{name_of(first)} runs") and said[3:] == ["it waits for what another process has"]


@in_virtual_time
async def test_the_owner_of_an_argument_goes_on_with_the_chain() -> None:
    process = Process()
    task = process.waits("f", A, owner=OTHER)
    asking = process.asking(task)
    await turns()
    asked = process.peers.take(Explain)
    assert (asked.address, asked.request) == (OTHER, Explain(A, 2))
    asked.answer(Explanation(["it runs there"]))
    assert await asking == [f"{name_of(task)} waits for 1 argument", "it runs there"]


@in_virtual_time
async def test_a_function_may_be_on_its_way_to_the_gcs() -> None:
    process = Process()
    task = process.waits("f", id_of("function"))
    assert await process.why(task) == [f"{name_of(task)} waits for its function, which is being exported to the gcs"]
    both = process.waits("g", id_of("function"), A)
    assert (await process.why(both))[0] == f"{name_of(both)} waits for 1 argument"


@in_virtual_time
async def test_a_task_that_waits_for_nothing_pauses_before_it_is_made_again() -> None:
    process = Process()
    task = process.waits("f")
    task.attempt = 2
    assert await process.why(task) == [f"{name_of(task)} is retried after a pause (attempt 2)"]


@in_virtual_time
async def test_it_is_said_that_a_result_was_lost_and_is_being_made_again() -> None:
    process = Process()
    (task,) = process.pushed("f")
    task.needs = ()
    said = await process.why(task)
    assert said[0] == f"{short(result_of(task))} was lost and is being made again" and "runs on worker" in said[1]


@in_virtual_time
async def test_a_chain_is_not_followed_for_ever() -> None:
    process = Process()
    task = process.waits("f", A)
    process.missing[task.task_id] = [result_of(task)]
    task.slots = ((result_of(task), OWN),)
    said = await process.why(task)
    assert len(said) == MAX_HOPS + 1 and said[-1] == "..."
    assert await process.explainer.explain(A, OTHER, MAX_HOPS) == ["..."] and process.peers.asked == []
    assert await process.explainer.explain_task(task, MAX_HOPS) == ["..."]


# --- tasks that need a worker


def shape_in(strategy: SchedulingStrategy, *hard: Any) -> LeaseShape:
    return LeaseShape((("CPU", 20_000),), strategy, RuntimeEnvInfo(), JOB, LabelSelector(hard))


NEEDS = [
    (shape_in(SchedulingStrategy()), "{CPU: 2}"),
    (shape_in(SchedulingStrategy(), ("zone", "in", ("a", "b"))), "{CPU: 2} on a node with labels {zone: in(a,b)}"),
    (
        shape_in(SchedulingStrategy(group_id=GROUP, bundle_index=ANY_BUNDLE)),
        "{CPU: 2} in any bundle of its placement group",
    ),
    (shape_in(SchedulingStrategy(group_id=GROUP, bundle_index=3)), "{CPU: 2} in bundle 3 of its placement group"),
]


@in_virtual_time
@pytest.mark.parametrize(("needs", "text"), NEEDS)
async def test_it_is_said_what_a_task_needs(needs: LeaseShape, text: str) -> None:
    process = Process()
    task = process.queued(is_asking=False, shape=needs)
    assert (await process.why(task))[0] == f"{name_of(task)} waits for a worker: needs {text}"


@in_virtual_time
@pytest.mark.parametrize("is_there", [False, True])
async def test_what_waits_for_its_placement_group_asks_no_raylet(is_there: bool) -> None:
    process = Process()
    process.group = "about its group", is_there
    task = process.queued(shape=NEEDS[2][0])
    asking = process.asking(task)
    await turns()
    for asked in process.peers.take_all(ExplainLease):
        asked.answer(LeaseExplanation("waits for CPU"))
    assert (await asking)[1:] == ["about its group", "waits for CPU"][: 1 + is_there]


@in_virtual_time
@pytest.mark.parametrize("raylet", [None, RAYLET])
async def test_the_raylet_that_was_asked_says_what_a_task_waits_for(raylet: Address | None) -> None:
    process = Process()
    task = process.queued(asks=raylet)
    asking = process.asking(task)
    await turns()
    asked = process.peers.take(ExplainLease)
    assert (asked.address, asked.request) == (raylet, ExplainLease(id_of("lease")))
    asked.answer(LeaseExplanation("waits for CPU"))
    assert await asking == [f"{name_of(task)} waits for a worker: needs {{CPU: 1}}", "waits for CPU"]


@in_virtual_time
async def test_a_raylet_may_have_nothing_to_say_or_be_gone() -> None:
    process = Process()
    task = process.queued()
    first, second = process.asking(task), process.asking(task)
    await turns()
    silent, gone = process.peers.take_all(ExplainLease)
    silent.answer(LeaseExplanation(""))
    gone.fail(unreachable())
    assert len(await first) == 1
    assert (await second)[1].startswith("its raylet cannot be reached: ")


@in_virtual_time
async def test_a_task_that_asks_nobody_waits_for_workers_that_are_busy_if_there_are_any() -> None:
    process = Process()
    task = process.queued(is_asking=False)
    assert len(await process.why(task)) == 1
    process.pushed("g", "h")
    process.pushed()
    assert (await process.why(task))[1:] == ["it waits for one of 1 leased workers, which are busy"]


# --- tasks that are with a worker


@in_virtual_time
async def test_one_runs_and_others_are_queued_behind_it() -> None:
    process = Process()
    tasks = process.pushed("f", "g", "h")
    await pass_time(2.5)
    place = f"on worker pid=5, node {short(WORKER.node_id)}"
    assert [(await process.why(task))[0] for task in tasks] == [
        f"{name_of(tasks[0])} runs {place}, for 2.5 s",
        f"{name_of(tasks[1])} is queued behind 1 other task {place}",
        f"{name_of(tasks[2])} is queued behind 2 other tasks {place}",
    ]


@in_virtual_time
async def test_a_worker_that_is_too_busy_or_gone_does_not_hide_what_is_known() -> None:
    process = Process()
    (task,) = process.pushed("f")
    asking = process.asking(task)
    await pass_time(ANSWER_S + 0.1)
    said = await asking
    assert said[0].startswith(f"{name_of(task)} runs") and said[1:] == [f"it has not answered for {ANSWER_S:g} s"]
    process.peers.asked.clear()
    asking = process.asking(task)
    await turns()
    process.peers.take(ExplainRun).fail(unreachable())
    assert (await asking)[1:] == ["it does not answer: nobody listens there"]


@in_virtual_time
async def test_what_a_running_task_waits_for_is_explained_where_it_runs() -> None:
    worker = Process()
    running, child = id_of("running"), worker.queued("child", is_asking=False)
    assert await worker.explainer.explain_wait(running, 1) == []
    waiter = Waiter(2, False, lambda: None, running)
    worker.store.wait([result_of(child), B], waiter)
    worker.store.wait([A], Waiter(1, False, lambda: None, id_of("another")))
    said = await worker.explainer.explain_wait(running, 1)
    assert said == ["it waits for 2 objects", f"{name_of(child)} waits for a worker: needs {{CPU: 1}}"]
    worker.store.stop_waiting([result_of(child), B], waiter)
    assert await worker.explainer.explain_wait(running, 1) == []
    worker.references.add_submitted([A], [OTHER])
    asking = asyncio.get_running_loop().create_task(worker.explainer.explain_wait(id_of("another"), 4))
    await turns()
    asked = worker.peers.take(Explain)
    assert (asked.address, asked.request) == (OTHER, Explain(A, 5))
    asked.answer(Explanation(["it is ready soon"]))
    assert await asking == ["it waits for 1 object", "it is ready soon"]


@in_virtual_time
async def test_how_one_ended_whose_worker_is_lost_is_being_found_out() -> None:
    process = Process()
    (task,) = process.pushed("f")
    task.worker = None
    assert await process.why(task) == [
        f"{name_of(task)} was sent to a worker that cannot be reached any more; how that ended is being found out"
    ]


# --- actors


@in_virtual_time
@pytest.mark.parametrize("state", [WAITING, QUEUED])
async def test_calls_and_constructors_whose_arguments_are_there_are_explained_elsewhere(
    state: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = Process()
    explained: list[tuple[bytes, int]] = []

    async def explain_call(task: PendingTask, hops: int) -> list[str]:
        explained.append((task.task_id, hops))
        return ["about a constructor"]

    monkeypatch.setattr(process.explainer.actors, "explain_call", explain_call)
    task = process.waits("A.__init__", A)
    task.prepared = prepare("A.__init__", actor=ActorOptions())
    if state is WAITING:
        assert "waits for 1 argument" in (await process.why(task))[0] and explained == []
    else:
        process.tasks.move(task, QUEUED)
        assert await process.why(task) == ["about a constructor"] and explained == [(task.task_id, 0)]


# --- people


@in_virtual_time
async def test_people_do_not_wait_for_a_process_that_does_not_answer() -> None:
    process = Process()
    asking = asyncio.get_running_loop().create_task(process.explainer.explain_in_time(A, OTHER))
    await pass_time(PATIENCE_S - 0.1)
    assert not asking.done()
    await pass_time(0.2)
    assert await asking == [f"{short(A)} is not ready; a process on the way to the reason did not answer in time"]
