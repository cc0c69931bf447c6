"""Small experiments for the tests of the laboratory."""

from __future__ import annotations

from typing import Any

from minray.laboratory.experiment import RunRecord, simulate
from minray.laboratory.generator import Load, generate
from minray.laboratory.setup import Setup
from minray.laboratory.workload import NodeFailure, TraceActor, TraceTask, Workload, checked


def load(text: str, seed: int = 0) -> Workload:
    return generate(Load.parse(text), seed)


def workload(
    *tasks: TraceTask, failures: tuple[NodeFailure, ...] = (), actors: tuple[TraceActor, ...] = ()
) -> Workload:
    return checked(Workload("test", tasks, failures, actors=actors), "test")


def run(workload: Workload, seed: int = 0, **setup: Any) -> RunRecord:
    """Simulate on two nodes with two CPUs, unless the setup says otherwise."""
    return simulate(workload, Setup(**{"nodes": 2, "cpus": 2.0, **setup}), seed)
