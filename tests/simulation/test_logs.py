"""``list_logs`` and ``get_log`` of a simulated cluster: whose lines are whose, on which node, and what dead nodes leave."""

from __future__ import annotations

import asyncio
import itertools
import os
from typing import Any

import pytest

import minray
from minray.simulation import FaultPlan, SimCluster
from minray.util.state import get_log, list_logs, list_nodes
from minray.util.state.exception import RayStateApiException


@minray.remote
def speak(number: int) -> str:
    print(f"speak {number}")
    task_id: str = minray.get_runtime_context().get_task_id()
    print(f"{number} of {task_id}")
    return task_id


@minray.remote(max_retries=0)
def die() -> None:
    print("it is not over")
    os._exit(3)


@minray.remote(max_restarts=1, max_task_retries=0)
class Choir:
    def __init__(self) -> None:
        print("we begin")

    async def sing(self, number: int) -> str:
        print(f"begins {number}")
        await asyncio.sleep(1)
        print(f"ends {number}")
        task_id: str = minray.get_runtime_context().get_task_id()
        return task_id

    async def leave(self) -> None:
        print("it is over")
        os._exit(1)


def log(**where: Any) -> list[str]:
    return [line.rstrip("\n") for line in get_log(**where)]


@pytest.mark.parametrize("seed", range(3))
def test_lines_of_tasks_and_calls_are_found_on_their_nodes(seed: int) -> None:
    """Also while messages are late, arrive twice, or connections break."""
    with SimCluster([{"num_cpus": 2}] * 2, seed=seed, faults=FaultPlan.quiet(), show_output=False) as cluster:

        def body() -> None:
            task_ids = minray.get([speak.remote(number) for number in range(6)])
            choir = Choir.remote()
            calls = minray.get([choir.sing.remote(number) for number in range(3)])
            dying = die.remote()
            minray.wait([dying])
            for number, task_id in enumerate(task_ids):
                assert log(task_id=task_id) == [f"speak {number}", f"{number} of {task_id}"]
                assert log(task_id=task_id, tail=1) == [f"{number} of {task_id}"]
            for number, task_id in enumerate(calls):
                assert log(task_id=task_id) == [f"begins {number}", f"ends {number}"], "calls that overlap are told apart"
            sung = log(actor_id=choir._actor_id.hex())
            assert sung[0] == "we begin" and len(sung) == 7 and not any("speak" in line for line in sung)
            assert log(task_id=dying.task_id().hex()) == ["it is not over"], "nobody else knows which worker has run it"

        cluster.run(body)
        cluster.settle()


def test_an_actors_last_words_are_found_after_its_restart_and_its_end() -> None:
    with SimCluster([{"num_cpus": 2}], show_output=False) as cluster:

        def body() -> None:
            choir = Choir.remote()
            actor_id = choir._actor_id.hex()
            for _ in range(2):
                minray.get(choir.sing.remote(0))
                minray.wait([choir.leave.remote()])
                assert log(actor_id=actor_id)[-1] in ("it is over", "we begin")
            assert log(actor_id=actor_id)[-2:] == ["ends 0", "it is over"], "its last incarnation's"

        cluster.run(body)
        cluster.settle()


def test_a_follower_sees_what_is_printed_later() -> None:
    with SimCluster([{"num_cpus": 2}], show_output=False) as cluster:

        def body() -> None:
            choir = Choir.remote()
            first = choir.sing.remote(0)
            minray.get(first)
            lines = get_log(actor_id=choir._actor_id.hex(), follow=True, tail=1)
            assert next(lines) == "ends 0\n"
            later = choir.sing.remote(1)
            assert list(itertools.islice(lines, 2)) == ["begins 1\n", "ends 1\n"]
            minray.get(later)

        cluster.run(body)
        cluster.settle()


def test_a_dead_node_is_named_with_the_place_of_its_logs() -> None:
    with SimCluster([{"num_cpus": 1}, {"num_cpus": 1, "resources": {"there": 1}}], show_output=False) as cluster:

        def body() -> None:
            task_id = minray.get(speak.options(resources={"there": 1}).remote(0))
            (there,) = [node for node in list_nodes() if "there" in node.resources_total]
            assert [*list_logs(node_id=there.node_id[:8])] == ["worker_out"]
            assert list_logs(node_ip=there.node_ip) == list_logs(node_id=there.node_id)
            cluster.kill(f"raylet/{there.node_name}")
            asked: list[dict[str, Any]] = [{"node_id": there.node_id, "filename": "x"}, {"task_id": task_id}]
            for where in asked:
                with pytest.raises(RayStateApiException, match=rf"node {there.node_name} \(.*Its log files were in"):
                    log(**where)

        cluster.run(body)
        cluster.settle()


def test_wrong_arguments_are_refused_at_once() -> None:
    with SimCluster([{"num_cpus": 1}], show_output=False) as cluster:

        def body() -> None:
            for wrong, words in [
                ({}, "give one of filename, actor_id, task_id and pid"),
                ({"filename": "x", "pid": 3}, "give one of"),
                ({"filename": "x", "suffix": "log"}, '"out" or "err"'),
                ({"filename": "x", "tail": -2}, "tail must be"),
                ({"task_id": "nonsense"}, "is no id"),
                ({"submission_id": "raysubmit_1"}, "no submitted jobs"),
                ({"filename": "x", "address": "1.2.3.4:5"}, "cluster of this process"),
            ]:
                with pytest.raises(ValueError, match=words):
                    list(get_log(**wrong))
            with pytest.raises(LookupError):
                get_log(filename="x", encoding="klingon")
            for missing, words in [
                ({"filename": "../token"}, "no log file of the living nodes is called '../token'"),
                ({"filename": "none*"}, "no log file of the living nodes is called 'none"),
                ({"pid": 1}, "no worker that is called process 1"),
                ({"task_id": "00" * 24}, "no worker is known that has run it"),
                ({"actor_id": "00" * 16}, "no worker is known"),
                ({"filename": "x", "node_id": "ff"}, "no node has an id that begins with ff"),
                ({"filename": "x", "node_ip": "9.9.9.9"}, "no node has the address 9.9.9.9"),
            ]:
                with pytest.raises(RayStateApiException, match=words):
                    list(get_log(**missing))

        cluster.run(body)
        cluster.settle()
