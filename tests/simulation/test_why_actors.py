"""``why`` of actors and their calls: the chain ends at what is really missing."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

import pytest

import minray
from minray.simulation import SimCluster, run
from minray.util import PlacementGroupSchedulingStrategy, placement_group


@minray.remote
class Worker:
    def __init__(self, *needed: Any, seconds: float = 0) -> None:
        time.sleep(seconds)

    def work(self, seconds: float = 0, *needed: Any) -> int:
        time.sleep(seconds)
        return os.getpid()

    def die(self) -> None:
        os._exit(3)


@minray.remote
def slow(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


def told(body: Callable[[], Any], nodes: Any = 1) -> str:
    """Return the answer of ``why`` about the first thing that the body returns, two seconds later."""

    def program() -> str:
        things = body()
        time.sleep(2)
        return minray.why(things[0])

    return run(program, nodes=nodes)


@pytest.mark.parametrize("of_a_call", [False, True])
def test_a_resource_that_no_node_has(of_a_call: bool) -> None:
    def body() -> Any:
        actor = Worker.options(num_gpus=1).remote()
        return [actor.work.remote() if of_a_call else actor]

    said = told(body)
    assert "(Worker), which is being created <- it needs {CPU: 1, GPU: 1}; no node has GPU" in said
    assert said.startswith("call Worker.work") == of_a_call


def test_a_resource_that_others_hold() -> None:
    def body() -> Any:
        return [Worker.options(num_cpus=1).remote() for _ in range(3)][::-1]

    said = told(body)
    assert "being created <- its lease waits for CPU on node head: 2 of 2 in use by an actor (pid 1004), an actor (" in said


def test_a_constructor_that_runs() -> None:
    said = told(lambda: [Worker.remote(seconds=50).work.remote()])
    assert re.search(r"waits for its actor <- .* created <- its constructor runs on worker pid=\d+, node \w+$", said)


def test_a_constructor_that_waits_for_an_argument() -> None:
    said = told(lambda: [Worker.remote(slow.remote(50))])
    assert re.search(r"being created <- constructor Worker.__init__ .*waits for 1 argument <- task slow .* runs on", said)


def test_a_call_that_runs_and_one_behind_it() -> None:
    def body() -> Any:
        actor = Worker.remote()
        refs = [actor.work.remote(50), actor.work.remote(), actor.work.remote()]
        return refs[0], refs[2], actor

    def program() -> list[str]:
        first, last, actor = body()
        time.sleep(2)
        return [minray.why(thing) for thing in (first, last, actor)]

    first, last, actor = run(program, nodes=1)
    assert re.search(r"call Worker.work .* was sent to actor .* which lives in pid=\d+, node \w+ <- it runs$", first)
    assert last.endswith("it waits for its turn: Worker.work runs, 1 call waits before it")
    assert actor.endswith("<- Worker.work runs, 2 calls wait")


def test_a_call_behind_one_whose_argument_is_late() -> None:
    def body() -> Any:
        actor = Worker.remote()
        actor.work.remote(0, slow.remote(50))
        return [actor.work.remote() for _ in range(3)][::-1]

    assert re.search(
        r"waits behind 3 calls of this process, for they are taken in order; the first:"
        r" <- call Worker.work .* waits for 1 argument <- task slow .* runs",
        told(body),
    )


def test_idle_and_dead_actors_and_such_as_begin_anew() -> None:
    def program() -> list[str]:
        idle, dead = Worker.remote(), Worker.options(name="x").remote()
        again = Worker.options(max_restarts=3).remote(seconds=9)
        minray.get([actor.work.remote() for actor in (idle, dead, again)])
        minray.kill(dead)
        again.die.remote()
        time.sleep(2)
        return [minray.why(actor) for actor in (idle, dead, again)]

    idle, dead, again = run(program, nodes=2)
    assert idle.endswith("<- no call runs")
    assert dead.endswith("(Worker 'x'), which is dead: it was killed by minray.kill")
    assert re.search(r"restarted \(restart 1 of 3\): its worker \(.*\) died: exit code 3 <- its constructor runs on", again)


def test_another_process_asks_too() -> None:
    @minray.remote
    def ask(actors: list[Any]) -> str:
        return minray.why(actors[0])

    def program() -> str:
        actor = Worker.remote(slow.remote(50))
        return minray.get(ask.remote([actor]))

    assert re.search(r"constructor Worker.__init__ .* waits for 1 argument <- task slow", run(program, nodes=2))


def test_a_call_that_waits_for_room_in_its_concurrency_group() -> None:
    def body() -> Any:
        actor = Worker.options(max_concurrency=2).remote()
        return [actor.work.remote(50) for _ in range(4)][::-1]

    assert told(body).endswith("it waits for its turn: Worker.work, Worker.work run, 1 call waits before it")


def test_a_call_to_a_node_that_cannot_be_reached() -> None:
    """The caller is cut off from the actor's node, which the gcs believes to be alive."""
    nodes = [{"num_cpus": 2}, {"num_cpus": 2, "resources": {"there": 1}}]
    with SimCluster(nodes) as cluster:
        said: list[str] = []

        def program() -> None:
            actor = Worker.options(resources={"there": 1}).remote()
            minray.get(actor.work.remote())
            cluster.world.wire.cut("head", "n1", 60)
            ref = actor.work.remote()
            time.sleep(2)
            said.append(minray.why(ref))

        cluster.run(program)
    assert said[0].endswith("<- it has not answered for 2 s")


def test_an_actor_whose_placement_group_has_no_place() -> None:
    def body() -> Any:
        group = placement_group([{"CPU": 1, "GPU": 1}])
        return [Worker.options(num_cpus=1, scheduling_strategy=PlacementGroupSchedulingStrategy(group)).remote()]

    assert re.search(r"being created <- placement group .* is PENDING, 0 of its 1 bundles have a place: .*GPU", told(body))
