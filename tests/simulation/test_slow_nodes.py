"""On a slow node each step of every process takes time, as long as there are faults."""

from __future__ import annotations

import time

import minray
from minray.simulation import FaultPlan, SimCluster
from minray.simulation.faults import SLOW_NODE, SLOW_STEPS_S, Key
from minray.simulation.trace import FAULT, Trace, first_difference

SLOWEST = len(SLOW_STEPS_S) - 1
STEPS = 5
"""Least number of steps that a task takes on its node."""
NODES = [{"num_cpus": 0}, {"resources": {"n1": 1}}, {"resources": {"n2": 1}}]


@minray.remote
def answer() -> int:
    return 5


class Run:
    """A task on n1 and then one on n2: how many virtual seconds each takes, and with ``heals`` once more without faults."""

    def __init__(self, plan: FaultPlan | None = None, overrides: dict[Key, int] | None = None, heals: bool = False) -> None:
        self.seconds: list[float] = []

        def body() -> None:
            for node in ("n1", "n2"):
                begun = time.monotonic()
                assert minray.get(answer.options(resources={node: 1}).remote()) == 5
                self.seconds.append(time.monotonic() - begun)

        with SimCluster(nodes=NODES, seed=3, faults=plan, overrides=overrides) as cluster:
            cluster.run(body)
            if heals:
                cluster.oracle.heal()
                cluster.run(body)
        self.trace: Trace = cluster.trace
        self.struck = dict(cluster.oracle.answers)

    def told(self) -> list[str]:
        """Faults in the trace."""
        return [" ".join(event.details) for event in self.trace.events if event.kind == FAULT]


def test_all_that_a_slow_node_does_takes_longer_and_nothing_elsewhere() -> None:
    run = Run(overrides={(SLOW_NODE, "n1"): SLOWEST})
    slow_s, other_s = run.seconds
    assert slow_s >= STEPS * SLOW_STEPS_S[SLOWEST] > 10 * other_s
    assert run.told() == ["slow node: 0.01 s for each step n1"]


def test_a_node_that_has_healed_is_as_fast_as_others() -> None:
    _, _, healed_s, other_s = Run(overrides={(SLOW_NODE, "n1"): SLOWEST}, heals=True).seconds
    assert healed_s < 2 * other_s


def test_a_plan_with_slow_nodes_is_the_same_run_when_its_answers_are_replayed() -> None:
    drawn = Run(FaultPlan({SLOW_NODE: 1.0, "stall": 0.1}))
    assert {key for key in drawn.struck if key[0] == SLOW_NODE} == {(SLOW_NODE, node) for node in ("head", "n1", "n2")}
    replayed = Run(overrides=drawn.struck)
    assert first_difference(drawn.trace, replayed.trace) == ""
