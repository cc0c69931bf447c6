"""docs/actor_restarts.md, row by row: what becomes of an actor's calls when it ends, by cause, restarts and retries."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import minray
from minray.api import calls as worker
from minray.core_worker.user_threads.actor_api import ActorApi
from tests.simulation.judge import judged, outcome_of, printed
from tests.simulation.roles import Cluster

PAGE = Path(__file__).parents[2] / "docs" / "actor_restarts.md"
ONE: list[dict[str, Any]] = [{"num_cpus": 2, "resources": {"actor": 1}}]
THREE: list[dict[str, Any]] = [{"num_cpus": 2}, *[{"num_cpus": 1, "resources": {"actor": 1}}] * 2]
SETTLE_S = 40.0
STRIKE_S, ARGUMENT_S, LONG_S = 3.0, 10.0, 6.0
"""When the cause strikes; when the late argument comes; how long the running call takes."""
CALLS = ("running", "queued", "not sent")
NOTHING = "-"


@minray.remote
class Subject:
    def __init__(self, fails: bool = False) -> None:
        if fails:
            raise ValueError("cannot be made")

    def work(self, name: str, seconds: float = 0.0, argument: Any = None) -> str:
        print(name)
        time.sleep(seconds)
        return "value"

    def itself(self) -> Any:
        """A handle that does not keep it alive."""
        return minray.get_runtime_context().current_actor

    def leave(self, name: str, seconds: float) -> None:
        print(name)
        time.sleep(seconds)
        minray.actor.exit_actor()


@minray.remote(num_cpus=0)
def argument(seconds: float) -> None:
    time.sleep(seconds)


@minray.remote(max_retries=0, num_cpus=0)
def make(options: dict[str, Any]) -> None:
    """Own the actor: the process of this task does, as long as it lives."""
    handles.append(Subject.options(**options).remote())


handles: list[Any] = []
"""A module's globals are shared by all simulated processes."""


def rows() -> list[tuple[str, int, int, dict[str, str]]]:
    """Cause, restarts and retries, and what the page says for them."""
    found = []
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
    heads = [cell.strip() for cell in lines[0].strip("|").split("|")]
    for line in lines[2:]:
        row = dict(zip(heads, (cell.strip() for cell in line.strip("|").split("|")), strict=True))
        for restarts in (0, 1) if row["max_restarts"] == "any" else (int(row["max_restarts"]),):
            for retries in (0, 1) if row["max_task_retries"] == "any" else (int(row["max_task_retries"]),):
                found.append((row["cause"], restarts, retries, row))
    return found


def name_of(value: Any) -> str | None:
    return value.replace(" ", "-").replace(",", "") if isinstance(value, str) else None


def test_the_page_has_every_cause_with_every_number_of_restarts_and_retries() -> None:
    keys = [row[:3] for row in rows()]
    assert len(set(keys)) == len(keys) == 8 * 4


@pytest.mark.parametrize(("cause", "restarts", "retries", "row"), rows(), ids=name_of)
def test_g24_g25_g29_g34_g36_g37_calls_end_as_the_page_says(
    cause: str, restarts: int, retries: int, row: dict[str, str]
) -> None:
    options = {
        "max_restarts": restarts,
        "max_task_retries": retries,
        "resources": {"actor": 1},
        "num_cpus": 0,
        "name": "subject",
        "namespace": "tests",
    }
    nodes = THREE if cause == "node loss" else ONE
    (outcomes, state), cluster = judged(lambda: play(cause, options), striking(cause), nodes=nodes, settle_s=SETTLE_S)
    found = {call: f"{printed(cluster).count(call)}, {outcome}" for call, outcome in zip(CALLS, outcomes, strict=True)}
    found["actor"] = state
    assert found == {what: found[what] if row[what] == NOTHING else row[what] for what in found}


def play(cause: str, options: dict[str, Any]) -> tuple[list[Any], str]:
    """Three calls, the cause, their outcomes, and the actor's state."""
    if cause == "owner death":
        minray.get(make.remote(options))
        actor = minray.get_actor("subject", "tests")
    elif cause == "out of scope":
        handles.append(Subject.options(**options).remote())
        actor = minray.get(handles[0].itself.remote())
    else:
        actor = Subject.options(**options).remote(cause == "constructor raises")
    running = actor.leave.remote("running", LONG_S) if cause == "exit_actor" else actor.work.remote("running", LONG_S)
    refs = [running, actor.work.remote("queued"), actor.work.remote("not sent", 0.0, argument.remote(ARGUMENT_S))]
    time.sleep(STRIKE_S)
    if cause in ("kill", "kill, restart allowed"):
        minray.kill(actor, no_restart=cause == "kill")
    elif cause == "out of scope":
        handles.clear()
    outcomes = [outcome_of(ref) for ref in refs]
    info = ActorApi(worker.current_api()).get_info(actor._actor_id, actor._minray_owner)
    assert info is not None
    handles.clear()
    return outcomes, info.state


def striking(cause: str) -> Callable[[Cluster], None] | None:
    """Give the fault that strikes the actor, if the cause is one."""

    return {
        "worker crash": lambda cluster: cluster.after(STRIKE_S).actor().kill(),
        "node loss": lambda cluster: cluster.after(STRIKE_S).node_of_actor().kill_raylet(),
        "owner death": lambda cluster: cluster.after(STRIKE_S).owner_of_actor().kill(),
    }.get(cause)


FINISHED = [row for row in rows() if row[3]["finished"] != NOTHING]


@pytest.mark.parametrize(("cause", "restarts", "retries", "row"), FINISHED, ids=name_of)
def test_g36_g37_g39a_a_finished_call_whose_answer_is_lost_ends_as_the_page_says(
    cause: str, restarts: int, retries: int, row: dict[str, str]
) -> None:
    def body() -> Any:
        actor = Subject.options(max_restarts=restarts, max_task_retries=retries).remote()
        return outcome_of(actor.work.remote("finished"))

    result, cluster = judged(body, lambda cluster: cluster.when("PushActorTask reply").of("worker").kill())
    assert f"{printed(cluster).count('finished')}, {result}" == row["finished"]
