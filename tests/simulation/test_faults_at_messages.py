"""Processes are struck before they send or receive a message, if the oracle aims there."""

from __future__ import annotations

import minray
from minray.simulation import FaultPlan, SimCluster
from minray.simulation.faults import Key
from minray.simulation.loop import TICKS_PER_SECOND
from minray.simulation.trace import OUTPUT, RECEIVE, SEND, Trace


@minray.remote
def speak() -> int:
    print("begun")
    return 5


def told(plan: FaultPlan, overrides: dict[Key, int] | None = None) -> tuple[list[Key], Trace]:
    """Run one task; return the faults that struck, and the trace."""
    with SimCluster(seed=3, faults=plan, overrides=overrides, show_output=False) as cluster:
        assert cluster.run(lambda: minray.get(speak.remote())) == 5
    return list(cluster.oracle.answers), cluster.trace


def who(trace: Trace, kind: str, word: str) -> list[str]:
    return [event.process for event in trace.events if event.kind == kind and word in event.details]


def bodies_begun(trace: Trace) -> int:
    return len(who(trace, OUTPUT, "begun"))


def test_only_a_plan_that_aims_at_messages_strikes_before_a_task_has_arrived() -> None:
    crash = {"crash": 1.0}
    [at_a_step], _ = told(FaultPlan(crash, budget=1))
    [at_a_message], trace = told(FaultPlan(crash, budget=1, at_messages=True))
    assert at_a_step[2:] == ("prepare_environment", 1) and at_a_message[2:] == ("receive PushTask", 1)
    assert at_a_message[1] not in who(trace, RECEIVE, "PushTask")


def test_who_crashes_before_it_sends_has_done_everything_else() -> None:
    [(_, victim, *_)], _ = told(FaultPlan({"crash": 1.0}, budget=1, at_messages=True))
    place = ("crash", victim, "send PushTask reply", 1)
    struck, trace = told(FaultPlan(), {place: 1})
    assert struck == [place] and bodies_begun(trace) == 2
    assert victim not in who(trace, SEND, "PushTask reply")


def test_a_stall_at_a_message_holds_it() -> None:
    [(_, worker, *_)], _ = told(FaultPlan({"crash": 1.0}, budget=1, at_messages=True))
    place = ("long_stall", worker, "receive PushTask", 1)
    struck, trace = told(FaultPlan(), {place: 1})
    times = {event.kind: event.ticks for event in trace.events if "PushTask" in event.details}
    assert struck == [place] and times[RECEIVE] - times[SEND] >= TICKS_PER_SECOND
    assert bodies_begun(trace) == 1
