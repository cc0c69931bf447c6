"""The watch over running clusters: planted bugs that no value shows, and deaths that it must not take for bugs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import minray
from minray.common.ids import return_id
from minray.core_worker.execution.outgoing_stream import OutgoingStream
from minray.core_worker.ownership.borrowing import Borrowing
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.pending_task import PUSHED
from minray.core_worker.submission.actor_task_submitter import ActorTaskSubmitter
from minray.core_worker.submission.outcomes import TaskOutcomes
from minray.core_worker.submission.task_manager import TaskManager
from minray.gcs.kv_manager import KvManager
from minray.gcs.server import GcsServer
from minray.in_rays_place.names.experimental import internal_kv
from minray.object_manager.push_manager import PushManager
from minray.object_store.object_table import ObjectTable
from minray.object_store.store import ObjectStore
from minray.protocol import actor as protocol
from minray.raylet.lease_broker import LeaseBroker
from minray.raylet.worker_pool import WorkerPool
from minray.simulation import SimCluster
from minray.simulation.cluster import GCS
from minray.util.placement_group import placement_group, remove_placement_group
from minray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.simulation import invariants
from tests.simulation.holders import Holders
from tests.simulation.interference import kill_sender
from tests.simulation.invariants import Broken, Watch
from tests.simulation.judge import judged, outcome_of


@minray.remote(max_retries=0)
def hold(refs: list[Any], seconds: float) -> None:
    time.sleep(seconds)


@minray.remote(max_retries=0)
def hold_in_child(refs: list[Any]) -> None:
    hold.remote(refs, 1.0)


@minray.remote(max_retries=0)
def hold_in_child_and_wait(refs: list[Any]) -> None:
    minray.get(hold.remote(refs, 5.0))


@minray.remote
def make() -> list[Any]:
    return [minray.put("made")]


def watched(
    body: Callable[[], Any], strike: Callable[[SimCluster], None] | None = None, nodes: Any = 2, **options: Any
) -> list[Watch]:
    """Run a body; the watch that saw it."""
    watches: list[Watch] = []

    def watch(cluster: SimCluster) -> Watch:
        watches.append(Watch(cluster))
        return watches[0]

    judged(body, strike, nodes=nodes, watch=watch, **options)
    return watches


def leave_with_a_child() -> None:
    minray.get(hold_in_child.remote([minray.put("mine")]))
    time.sleep(2)


def test_s7_a_child_that_outlives_its_parent_keeps_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    assert watched(leave_with_a_child)[0].holders.looks > 0
    monkeypatch.setattr(ReferenceCounter, "keep_after_task", lambda *_: [])
    with pytest.raises(AssertionError, match=r"S7: driver/\d+ frees \S+, and worker/\w+ holds it"):
        watched(leave_with_a_child)


def test_s7_one_borrower_s_ticket_says_nothing_of_another_s(monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> None:
        ref = minray.put("mine")
        minray.get([hold_in_child.remote([ref]), hold.remote([ref], 0.1)])
        minray.get(hold_in_child.remote([ref]))
        del ref
        time.sleep(2)

    def take_back_all(self: Any, object_id: bytes, tickets: Any, effects: Any) -> None:
        reference = self._references.get(object_id)
        if reference is not None:
            reference.lent = None
            self._maybe_free(object_id, reference, effects)

    watched(body)
    monkeypatch.setattr(ReferenceCounter, "take_back", take_back_all)
    with pytest.raises(AssertionError, match=r"S7: driver/\d+ frees \S+, and worker/\w+ holds it: .* 1 tickets"):
        watched(body)


def test_s7_an_answer_on_its_way_carries_its_references(monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> None:
        outcome_of(outcome_of(make.remote())[0])

    watched(body)
    monkeypatch.setattr(Borrowing, "lend_as_owner", lambda *_: None)
    with pytest.raises(AssertionError, match=r"S7: worker/\w+ frees \S+, and PushTask reply from worker/\w+ to driver/\d+"):
        watched(body)


def test_s7_what_the_dead_have_lost_is_no_problem() -> None:
    def body() -> str:
        ref = hold_in_child_and_wait.remote([minray.put("mine")])
        return str(outcome_of(ref))

    def strike(cluster: SimCluster) -> None:
        def parent_waits() -> bool:
            return any(core.store.awaited() for name, core in cluster.cores.items() if name.startswith("worker/"))

        cluster.wait_until(parent_waits)
        parent = next(name for name, core in cluster.cores.items() if core.store.awaited() and name.startswith("worker/"))
        cluster.kill(parent)

    assert watched(body, strike)[0].holders.looks > 0


def hold_answer_and_kill(cluster: SimCluster) -> None:
    """The first answer of an actor comes a second after its death, and so after the gcs has told of its restart."""
    kill_sender(cluster, "PushActorTask reply", 1, late_s=1.0)


def call_again() -> None:
    assert minray.get(Echo.options(max_restarts=1, max_task_retries=1).remote().say.remote("here")) == "here"
    time.sleep(2)


def test_s3_no_answer_of_an_incarnation_counts_when_the_next_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    watched(call_again, hold_answer_and_kill)
    lose = ActorTaskSubmitter._lose

    def lose_and_still_listen(self: Any, client: Any, connection: Any) -> None:
        lose(self, client, connection)
        for task in connection.in_flight.values():
            task.worker = connection

    monkeypatch.setattr(ActorTaskSubmitter, "_lose", lose_and_still_listen)
    monkeypatch.setattr(ActorTaskSubmitter, "_decide_lost", lambda *_: None)
    with pytest.raises(AssertionError, match=r"S3: incarnation 0 answers .* accepted after its restart number 1"):
        watched(call_again, hold_answer_and_kill)


@minray.remote(_generator_backpressure_num_objects=2)
def count() -> Iterator[int]:
    yield from range(6)


def read_slowly() -> None:
    for ref in count.remote():
        time.sleep(0.1)
        minray.get(ref)


def test_g91_no_more_items_are_unread_than_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    watched(read_slowly)
    monkeypatch.setattr(OutgoingStream, "is_held_up", lambda _: False)
    with pytest.raises(AssertionError, match=r"G91: task \S+ yields number 4 when 1 are read, and may be 2 ahead"):
        watched(read_slowly)


def cancel_what_waits() -> None:
    first, second = hold.remote([], 0.2), hold.remote([], 0.2)
    minray.cancel(second)
    assert outcome_of(first) is None
    outcome_of(second)


def test_g40_what_was_cancelled_before_it_was_pushed_is_never_pushed(monkeypatch: pytest.MonkeyPatch) -> None:
    cancel = TaskOutcomes.cancel_task

    def cancel_pushed(self: Any, task: Any, force: bool, recursive: bool) -> None:
        if task.state is PUSHED:
            cancel(self, task, force, recursive)

    watched(cancel_what_waits)
    monkeypatch.setattr(TaskOutcomes, "cancel_task", cancel_pushed)
    with pytest.raises(AssertionError, match=r"G40: driver/\d+ pushes attempt 0 of task \S+, which was cancelled"):
        watched(cancel_what_waits)


def kill_the_first_two_that_run(cluster: SimCluster) -> None:
    for _ in range(2):
        cluster.wait_until(lambda: bool(_busy(cluster)))
        cluster.kill(_busy(cluster)[0])


def _busy(cluster: SimCluster) -> list[str]:
    """The workers that run a task."""
    alive = [worker.name for worker in cluster.workers() if worker.name in cluster.cores]
    return [name for name in alive if cluster.cores[name].execution.executor.current]


def test_s4_no_attempt_is_made_without_a_retry(monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> str:
        return str(outcome_of(hold.options(max_retries=1).remote([], 0.2)))

    watched(body, kill_the_first_two_that_run)

    def try_again(self: Any, task: Any, preempted: bool = False) -> bool:
        task.attempt += 1
        return True

    monkeypatch.setattr(TaskManager, "begin_retry", try_again)
    with pytest.raises(AssertionError, match=r"S4: driver/\d+ pushes attempt 2 of task \S+, which has 1 retries"):
        watched(body, kill_the_first_two_that_run)


def test_g19_a_cancelled_task_is_not_retried(monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> None:
        ref = hold.options(max_retries=3).remote([], 0.2)
        time.sleep(0.1)
        minray.cancel(ref, force=True)
        outcome_of(ref)

    def try_again(self: Any, task: Any, worker: Any, failure: Any, *, is_preempted: bool) -> None:
        task.attempt += 1
        self.retry(task)

    watched(body)
    monkeypatch.setattr(TaskOutcomes, "on_died", try_again)
    with pytest.raises(AssertionError, match=r"G19: driver/\d+ pushes attempt 1 of task \S+, which was cancelled"):
        watched(body)


def test_l5_a_storm_of_messages_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invariants, "MOST_MESSAGES", 50)
    with pytest.raises(Broken, match="L5: 50 messages"):
        watched(leave_with_a_child)


LARGE = {"max_direct_call_object_size": 10}


@minray.remote
def doubled(data: bytes) -> bytes:
    return data * 2


@minray.remote
def hold_and_fill(data: bytes) -> None:
    filling = [minray.put(bytes(1000)) for _ in range(5)]
    assert len(filling) == 5 and len(data) == 1000


def pass_large_values() -> None:
    ref = minray.put(bytes(1000))
    spread = [doubled.options(scheduling_strategy=strategy).remote(ref) for strategy in (on_second_node(), "SPREAD") * 3]
    assert [len(value) for value in minray.get(spread)] == [2000] * 6


def on_second_node() -> minray.util.NodeAffinitySchedulingStrategy:
    return minray.util.NodeAffinitySchedulingStrategy(minray.nodes()[1]["NodeID"], soft=False)


def fill_where_one_reads() -> None:
    there = on_second_node()
    minray.get(hold_and_fill.options(scheduling_strategy=there).remote(minray.put(bytes(1000))))


def object_watch(body: Callable[[], None], store_bytes: int) -> Watch:
    nodes = [{"num_cpus": 2}, {"num_cpus": 2, "object_store_memory": store_bytes}]
    return watched(body, nodes=nodes, system_config=LARGE)[0]


def test_s5_copies_are_equal_and_do_not_change(monkeypatch: pytest.MonkeyPatch) -> None:
    assert object_watch(pass_large_values, 1 << 20).objects.seals > 6
    view = ObjectStore.view

    def scratched(store: ObjectStore, entry: Any) -> memoryview:
        memory = view(store, entry)
        if not entry.is_primary:
            memory[len(memory) // 2] ^= 1
        return memory

    monkeypatch.setattr(ObjectStore, "view", scratched)
    with pytest.raises(AssertionError, match=r"S5: n1 seals a copy of \S+ that differs from another one"):
        object_watch(pass_large_values, 1 << 20)


def test_s6_what_is_in_use_is_not_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    object_watch(fill_where_one_reads, 3900)
    pin = ObjectTable.pin

    def forgetful(table: ObjectTable, entry: Any, name: bytes, client: bytes) -> bool:
        done = pin(table, entry, name, client)
        if not entry.is_primary:
            table._spare[entry.object_id] = None
        return done

    monkeypatch.setattr(ObjectTable, "pin", forgetful)
    with pytest.raises(AssertionError, match=r"S6: n1 evicts \S+, which must stay"):
        object_watch(fill_where_one_reads, 3900)


# --- what has ended


@minray.remote
class Echo:
    def say(self, word: str) -> str:
        return word


def make_and_kill() -> None:
    actor = Echo.remote()
    minray.get(actor.say.remote("here"))
    minray.kill(actor)
    time.sleep(1)


@pytest.mark.parametrize(
    ("kind", "why"), [(protocol.OWNER_DIED, "its owner, who lives"), (protocol.JOB_FINISHED, "its job, which is not over")]
)
def test_g25_an_actor_has_ended_for_a_true_reason(monkeypatch: pytest.MonkeyPatch, kind: int, why: str) -> None:
    watched(make_and_kill)
    monkeypatch.setattr(protocol, "KILLED", kind)
    with pytest.raises(AssertionError, match=f"G25: the gcs says that actor Echo .* has ended with {why}"):
        watched(make_and_kill)


def test_g106_nothing_goes_on_in_a_group_that_was_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    def body() -> None:
        group = placement_group([{"CPU": 1}])
        strategy = PlacementGroupSchedulingStrategy(group)
        actor = Echo.options(num_cpus=1, scheduling_strategy=strategy).remote()
        minray.get(actor.say.remote("here"))
        remove_placement_group(group)
        time.sleep(1)
        minray.get(make.remote())

    watched(body)
    monkeypatch.setattr(LeaseBroker, "_reclaim_where", lambda *_: None)
    with pytest.raises(AssertionError, match=r"G106: lease \S+ goes on in placement group \w+, which is removed"):
        watched(body)


@pytest.mark.parametrize(
    ("owner", "method", "left"),
    [
        (WorkerPool, "_is_orphan", r"raylet/\w+: a worker of job \w+, which is over"),
        (GcsServer, "_drop_values", "gcs: 1 values of jobs that are over"),
        (PushManager, "on_sent", r"raylet/\w+: [1-9]\d* bytes that are being sent"),
    ],
)
def test_l2_what_nobody_asks_for_is_missed_when_all_is_over(
    monkeypatch: pytest.MonkeyPatch, owner: type, method: str, left: str
) -> None:
    """Leftovers have no effect that a program could see: a process, a value, a sum that is wrong for ever."""

    def body() -> None:
        refs = [fill.options(scheduling_strategy="SPREAD").remote() for _ in range(4)]
        assert [len(minray.get(ref)) for ref in refs] == [1_000_000] * 4

    watched(body)
    monkeypatch.setattr(owner, method, lambda *_: None)
    with pytest.raises(AssertionError, match=left):
        watched(body)


@minray.remote
def fill() -> bytes:
    return bytes(1_000_000)


class Remembered:
    """A task that is remembered for two results."""

    def __init__(self, task_id: bytes) -> None:
        self.results = {return_id(task_id, 1), return_id(task_id, 2)}


class Lineage:
    """Remembers one task."""

    def __init__(self, task_id: bytes, keeps: bool) -> None:
        self._tasks = {task_id: Remembered(task_id)}
        self._keeps = keeps

    def on_forgotten(self, object_id: bytes, _effects: Any) -> None:
        (remembered,) = self._tasks.values()
        remembered.results.discard(object_id)
        if not self._keeps or not remembered.results:
            self._tasks.clear()


@pytest.mark.parametrize("keeps", [True, False])
def test_a_task_is_remembered_for_each_of_its_results(keeps: bool) -> None:
    said: list[str] = []
    task_id = b"t" * 24
    lineage = Lineage(task_id, keeps)
    Holders(said.append, dict)._watch_lineage("driver", lineage)
    lineage.on_forgotten(return_id(task_id, 1), None)
    assert bool(said) != keeps
    if keeps:
        lineage.on_forgotten(return_id(task_id, 2), None)
        assert not said


@pytest.mark.parametrize("is_asked", [True, False])
def test_s9_a_value_may_be_missing_after_a_restart_only_if_its_removal_was_asked_for(
    is_asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def body() -> None:
        internal_kv._internal_kv_put(b"key", b"value", namespace="room")
        time.sleep(2)
        if is_asked:
            internal_kv._internal_kv_del(b"key", namespace="room")

    def restart(cluster: SimCluster) -> None:
        cluster.kill(GCS)
        cluster.start_gcs()

    if not is_asked:
        monkeypatch.setattr(KvManager, "load", lambda *_: None)
    with SimCluster([{"num_cpus": 1}], storage="gcs.db") as cluster:
        watch = Watch(cluster)
        driver = cluster.start_driver(body)
        cluster.world.loop.world.call_later(1.0, restart, cluster)
        cluster.wait_for(driver)
        watch.look_at_gcs()
        missing = [problem for problem in watch.problems if problem.startswith("S9: the gcs knows value internal_kv:room")]
        assert len(missing) == (not is_asked)
