"""``why`` of tasks that wait for what they take: the chain ends at what is really missing."""

from __future__ import annotations

import re
import time
from typing import Any

import minray
from minray.simulation import SimCluster


@minray.remote
def slow(seconds: float, *needed: Any) -> float:
    time.sleep(seconds)
    return seconds


def test_a_task_whose_argument_is_late() -> None:
    def program() -> str:
        ref = slow.remote(0, slow.remote(50), slow.remote(60))
        time.sleep(2)
        return minray.why(ref)

    with SimCluster() as cluster:
        assert re.search(r"^task slow .* waits for 2 arguments <- task slow .* runs on worker", cluster.run(program))


def test_a_task_whose_function_is_on_its_way_to_the_gcs() -> None:
    def program() -> str:
        cluster.world.loop.call_soon_threadsafe(cluster.world.loop.stall, cluster.processes["gcs"], 5.0)
        time.sleep(0.1)
        ref = minray.remote(lambda: "new").remote()
        time.sleep(1)
        return minray.why(ref)

    with SimCluster() as cluster:
        said = cluster.run(program)
    assert said.endswith("waits for its function, which is being exported to the gcs")


@minray.remote
def parent(seconds: float) -> float:
    return float(minray.get(slow.options(resources={"rare": 1}).remote(seconds)))


@minray.remote
class Parent:
    def __init__(self, seconds: float | None = None) -> None:
        if seconds is not None:
            self.ask(seconds)

    def ask(self, seconds: float) -> float:
        return float(minray.get(slow.options(resources={"rare": 1}).remote(seconds)))

    async def ask_async(self, refs: list[minray.ObjectRef[float]]) -> float:
        return await refs[0]


def test_a_task_or_a_call_that_waits_for_its_child() -> None:
    """Where a program stands still: the chain goes through whatever waits in ``get``."""

    def program() -> list[str]:
        child = slow.options(resources={"rare": 1}).remote(0)
        refs = [parent.remote(0), Parent.remote().ask.remote(0), Parent.remote().ask_async.remote([child])]
        refs.append(Parent.remote(0).ask.remote(0))
        time.sleep(2)
        return [minray.why(ref) for ref in refs]

    with SimCluster([{"num_cpus": 5}]) as cluster:
        for said in cluster.run(program):
            assert re.search(r"runs.* <- it waits for 1 object <- task slow .* no node has rare$", said)


@minray.remote
class Caller:
    def call_me(self) -> None:
        minray.get(minray.get_runtime_context().current_actor.ready.remote())

    def call(self, other: Any, me: Any) -> None:
        if other is not None:
            minray.get(other.call.remote(me, None) if me is not None else other.call.remote(None, None))

    def ready(self) -> None: ...


def test_calls_that_wait_for_each_other_are_told_once() -> None:
    def program() -> list[str]:
        alone, one, other = [Caller.remote() for _ in range(3)]
        refs = [alone.call_me.remote(), one.call.remote(other, one)]
        time.sleep(2)
        return [minray.why(ref) for ref in [*refs, alone]]

    with SimCluster([{"num_cpus": 4}]) as cluster:
        for said in cluster.run(program):
            assert re.search(r"(call \S+ \(\S+\)).* <- \1 again: they wait for each other, and none will go on$", said)
            assert said.count(" <- ") < 12
