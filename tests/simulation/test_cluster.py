"""Programs of tasks, unchanged, on simulated clusters: results, errors, node death, faults; and the same run twice."""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import time
from typing import Any

import pytest

import minray
from minray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    RayTaskError,
    TaskCancelledError,
    TaskUnschedulableError,
    WorkerCrashedError,
)
from minray.protocol.gcs import NODES
from minray.rpc import pubsub
from minray.simulation import Deadlock, FaultPlan, SimCluster, SimulationFailed, run
from minray.simulation.__main__ import program as demonstration
from minray.simulation.__main__ import simulate
from minray.simulation.faults import LOUD
from minray.simulation.loop import SimLoop
from minray.simulation.trace import first_difference
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.seeds import seeds


@minray.remote
def double(x: int) -> int:
    return 2 * x


@minray.remote
def slow_double(x: int, seconds: float) -> int:
    time.sleep(seconds)
    return 2 * x


@minray.remote
def where(*_: Any) -> str:
    time.sleep(1)
    return minray.get_runtime_context().get_node_id()


@pytest.mark.parametrize("nodes", [1, 2, 3, 4, 5])
def test_a_program_of_tasks_runs_unchanged(nodes: int) -> None:
    @minray.remote
    def tree(depth: int) -> int:
        return 1 if depth == 0 else sum(minray.get([tree.remote(depth - 1) for _ in range(2)]))

    def program() -> list[Any]:
        with pytest.raises(RayTaskError, match="ZeroDivisionError"):
            minray.get(minray.remote(lambda: 1 / 0).remote())
        ready, rest = minray.wait([double.remote(i) for i in range(5)], num_returns=5)
        assert rest == []
        return [minray.get(double.remote(double.remote(minray.put(5)))), minray.get(tree.remote(4)), minray.get(ready)]

    assert run(program, nodes=nodes) == [20, 16, [0, 2, 4, 6, 8]]


@pytest.mark.parametrize("nodes", [[], [2], [{"cpus": 1}]])
def test_nodes_that_make_no_sense_are_refused_before_anything_runs(nodes: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"at least one node|nodes are a number, or a list|a node has no cpus"):
        SimCluster(nodes)


@pytest.mark.parametrize("deaf_to", ["", NODES])
def test_what_the_gcs_tells_may_come_in_any_number_of_parts(deaf_to: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each reply to a poll holds one entry, and channels break. ``deaf_to``: a node only knows what it asks for itself."""
    apply = pubsub.Subscription._apply
    monkeypatch.setattr(
        pubsub.Subscription, "_apply", lambda self, reply: None if self._channel == deaf_to else apply(self, reply)
    )

    def program() -> bool:
        node_ids = [node["NodeID"] for node in minray.nodes()]
        there = [where.options(scheduling_strategy=NodeAffinitySchedulingStrategy(each, False)) for each in node_ids]
        with pytest.raises(TaskUnschedulableError):
            minray.get(where.options(scheduling_strategy=NodeAffinitySchedulingStrategy("ab" * 16, False)).remote())
        return len(node_ids) == 4 and minray.get([each.remote() for each in there]) == node_ids

    for seed in range(3):
        with SimCluster(4, seed, FaultPlan.quiet(), system_config={"publisher_max_reply_bytes": 1}) as cluster:
            assert cluster.run(program)
            cluster.settle()


def test_a_program_may_call_init_and_shutdown() -> None:
    def program() -> int:
        with minray.init(num_cpus=4) as context:
            assert minray.is_initialized() and context["address"] == "simulated"
            return minray.get(double.remote(2))

    assert run(program) == 4
    assert not minray.is_initialized()


def test_time_is_virtual_in_programs_and_tasks() -> None:
    def program() -> float:
        before = time.monotonic()
        with pytest.raises(GetTimeoutError):
            minray.get(slow_double.remote(1, 7200), timeout=60)
        assert minray.get(slow_double.remote(1, 1800)) == 2
        return time.monotonic() - before

    began = time.monotonic()
    with SimCluster() as cluster:
        assert 1860 <= cluster.run(program, limit_s=4000) < 1870
    assert time.monotonic() - began < 30


def test_work_spreads_over_the_nodes() -> None:
    assert len(set(run(lambda: minray.get([where.remote() for _ in range(12)]), nodes=3))) == 3


def test_several_drivers_have_jobs_of_their_own() -> None:
    def program() -> tuple[str, int]:
        return minray.get_runtime_context().get_job_id(), minray.get(double.remote(21))

    with SimCluster([{"num_cpus": 2}] * 2) as cluster:
        drivers = [cluster.start_driver(program, f"driver/{i}", node) for i, node in enumerate(("head", "n1"))]
        outcomes = [cluster.wait_for(driver) for driver in drivers]
    assert len({job for job, _ in outcomes}) == 2 and [value for _, value in outcomes] == [42, 42]


def test_references_can_be_awaited() -> None:
    async def main() -> list[int]:
        return await asyncio.gather(double.remote(1), slow_double.remote(2, 5))

    def program() -> list[int]:
        assert double.remote(4).future().result() == 8
        return asyncio.run(main())

    assert run(program) == [2, 4]


def test_what_the_program_raises_comes_out_with_the_story() -> None:
    def program() -> None:
        raise LookupError("mine")

    with pytest.raises(LookupError, match="mine") as caught:
        run(program)
    (note,) = caught.value.__notes__
    assert note.startswith("seed 7;") and "driver/0" in note


def test_a_task_that_kills_its_worker_is_retried_then_fails() -> None:
    @minray.remote(max_retries=2)
    def crash() -> None:
        print("attempt")
        os._exit(3)

    def program() -> None:
        with pytest.raises(WorkerCrashedError, match="exited with code 3"):
            minray.get(crash.remote())

    with SimCluster(show_output=False) as cluster:
        cluster.run(program)
        cluster.settle()
    assert len([event for event in cluster.trace.events if event.details == ("stdout", "attempt")]) == 3


def test_cancelling_interrupts_a_sleeping_task() -> None:
    def program() -> float:
        ref = slow_double.remote(1, 10_000)
        time.sleep(1)
        minray.cancel(ref)
        with pytest.raises(TaskCancelledError):
            minray.get(ref)
        return time.monotonic()

    run(program)


def test_output_of_tasks_reaches_the_driver(capsys: pytest.CaptureFixture[str]) -> None:
    @minray.remote
    def speak() -> None:
        print("hello from a task")

    run(lambda: minray.get(speak.remote()))
    out = capsys.readouterr().out
    assert "speak pid=" in out and out.endswith(") hello from a task\n")


def test_the_death_of_a_node_does_not_stop_the_work() -> None:
    with SimCluster([{"num_cpus": 2}] * 3) as cluster:
        driver = cluster.start_driver(lambda: minray.get([slow_double.remote(i, 20) for i in range(6)]))
        cluster.wait_until(lambda: len(cluster.workers("n1")) >= 2)
        cluster.world.loop.run_until_complete(asyncio.sleep(5))
        cluster.world.lose_node("n1")
        assert cluster.wait_for(driver) == [0, 2, 4, 6, 8, 10]


def test_a_task_bound_to_a_dead_node_says_so() -> None:
    def program() -> None:
        with pytest.raises(NodeDiedError):
            minray.get(slow_double.options(resources={"there": 1}, max_retries=0).remote(1, 100))

    with SimCluster([{"num_cpus": 1}, {"num_cpus": 1, "resources": {"there": 1}}]) as cluster:
        driver = cluster.start_driver(program)
        cluster.wait_until(lambda: len(cluster.workers("n1")) >= 1)
        cluster.world.loop.run_until_complete(asyncio.sleep(10))
        cluster.kill("raylet/n1")
        cluster.wait_for(driver)


def test_the_gcs_restarts_with_its_disk_while_work_goes_on() -> None:
    with SimCluster([{"num_cpus": 2}] * 2, storage="gcs.db") as cluster:
        driver = cluster.start_driver(lambda: minray.get([slow_double.remote(i, 10) for i in range(8)]))
        cluster.world.loop.run_until_complete(asyncio.sleep(5))
        cluster.kill("gcs")
        cluster.world.loop.run_until_complete(asyncio.sleep(3))
        cluster.start_gcs()
        assert cluster.wait_for(driver) == [2 * i for i in range(8)]
        assert cluster.run(lambda: minray.get(double.remote(3))) == 6


def test_a_partition_is_survived() -> None:
    with SimCluster([{"num_cpus": 2}] * 3) as cluster:
        driver = cluster.start_driver(lambda: minray.get([slow_double.remote(i, 2) for i in range(12)]))
        cluster.world.loop.run_until_complete(asyncio.sleep(1))
        for other in ("head", "n2"):
            cluster.world.wire.cut("n1", other, 90)
        assert cluster.wait_for(driver) == [2 * i for i in range(12)]
        cluster.settle()


@pytest.mark.parametrize("seed", seeds(6))
def test_the_same_seed_gives_the_same_run(seed: int) -> None:
    (one, outcome), (other, same) = (simulate(seed, 1 + seed % 5, "swarm", show_output=False) for _ in range(2))
    assert first_difference(one.trace, other.trace) == ""
    assert (one.trace.digest(), outcome) == (other.trace.digest(), same)


def test_classes_that_are_pickled_by_value_do_not_tell_the_first_run_from_the_next() -> None:
    """cloudpickle draws a name for such a class when it first sees it, and remembers that for as long as the interpreter."""
    local = type("Local", (), {"value": 3})

    def program() -> tuple[int, bytes]:
        return minray.get(minray.remote(lambda: local.value).remote()), os.urandom(4)

    assert run(program, nodes=1) == run(program, nodes=1)


def test_the_recorded_answers_replay_a_run() -> None:
    first, outcome = simulate(5, 3, "swarm", show_output=False)
    assert any(key[0] in LOUD for key in first.oracle.answers)
    with SimCluster([{"num_cpus": 2}] * 3, 5, overrides=first.oracle.answers, show_output=False) as again:
        assert repr(again.run(demonstration)) == outcome
        again.settle()
    assert first_difference(first.trace, again.trace) == ""


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(20))
def test_tasks_survive_swarms_of_faults(seed: int) -> None:
    def program() -> list[int]:
        return minray.get([slow_double.options(max_retries=-1).remote(i, 0.5 * (i % 3)) for i in range(15)])

    plan = FaultPlan.swarm(seed, targets=("worker/", "raylet/n"), budget=3)
    assert run(program, nodes=3, seed=seed, faults=plan) == [2 * i for i in range(15)]


def test_what_the_overrides_say_and_did_not_strike_is_known() -> None:
    late, nobody, no_answer = (("long_delay", "driver/0>raylet/head", "RequestWorkerLease", n) for n in (1, 99, 2))
    overrides = {late: 1, nobody: 1, no_answer: 99, ("crash",): 0}
    with SimCluster(overrides=overrides, show_output=False) as cluster:
        assert cluster.missed == {late: 1, nobody: 1, no_answer: 99}
        cluster.run(lambda: minray.get(double.remote(minray.get(slow_double.remote(1, 100)))))
        assert cluster.missed == {nobody: 1, no_answer: 99}
    with SimCluster(faults=FaultPlan.quiet()) as drawn:
        assert drawn.missed == {}


def test_every_task_on_the_loop_has_a_name() -> None:
    with SimCluster([{"num_cpus": 2}] * 2, show_output=False) as cluster:
        cluster.run(demonstration)
        ours = {"SimCluster.wait_until.<locals>.wait", "sleep"}
        assert set(cluster.world.loop.unnamed_tasks) <= ours


def test_an_exception_inside_the_system_fails_the_run() -> None:
    with pytest.raises(SimulationFailed, match="raylet/head.*ZeroDivisionError"), SimCluster() as cluster:
        cluster.processes["raylet/head"].call_soon(lambda: 1 / 0)
        assert cluster.run(lambda: minray.get(double.remote(1))) == 2


def test_a_program_that_waits_in_vain_is_told_what_waits() -> None:
    def program() -> None:
        minray.get(double.options(num_cpus=100).remote(1))

    with pytest.raises(Deadlock, match=r"driver/0 +user thread +test_cluster.py"), SimCluster(show_output=False) as cluster:
        cluster.run(program, limit_s=60)


def test_nothing_is_left_of_a_world() -> None:
    run(lambda: minray.get(double.remote(1)))
    loops = [found for found in gc.get_objects() if isinstance(found, SimLoop)]
    before, loops, threads = len(loops), [], len(sys._current_frames())
    for _ in range(3):
        run(lambda: minray.get(double.remote(1)))
    gc.collect()
    assert len([found for found in gc.get_objects() if isinstance(found, SimLoop)]) <= before
    assert len(sys._current_frames()) == threads


@pytest.mark.slow
def test_the_digest_does_not_depend_on_hash_seeds() -> None:
    digests = []
    for hash_seed in ("1", "2"):
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-m", "minray.simulation", "--digest"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=100)
        digests.append(done.stdout)
        assert done.stderr == ""
    assert digests[0] == digests[1] and len(digests[0].split()) == 1


def test_the_command_line_shows_a_story() -> None:
    command = [sys.executable, "-m", "minray.simulation", "--seed", "3", "--faults", "swarm", "--rows", "10"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    assert "result  {'sum': 1141" in done.stdout and "digest" in done.stdout.splitlines()[-1]
