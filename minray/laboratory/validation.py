"""Runs a workload on a real cluster of this machine and simulated, and sets both beside each other.

Ray: has no counterpart

    measured = run_for_real(workload, setup)
    rows = compared(measured, simulate(workload, setup, seed))

A new real cluster has as many nodes as the simulated one, each with processes of its own, on this machine. Tasks sleep, and
so a node may have more CPUs than the machine. An existing cluster, perhaps of several machines, is taken by its address; the
setup must describe it. Makespans are those that the driver sees. Bytes are those that the nodes count
themselves (the metrics ``object_manager_bytes`` and ``spill_manager_bytes_total``).

Rules
  * The workload is run as it is: nothing is shrunk, no node fails, and none is faster than another.
  * Of an existing cluster only what was counted meanwhile counts. Nobody else should use it.
  * A difference is relative to the real run.

Left out: shaped links. Nodes of a new cluster talk over unix sockets, as fast as the machine's memory.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

import minray
from minray.api.calls import ask_cluster
from minray.cluster_utils import Cluster
from minray.laboratory import program
from minray.laboratory.experiment import RunRecord, check
from minray.laboratory.report import summarise
from minray.laboratory.setup import Setup
from minray.laboratory.workload import TraceError, Workload
from minray.observability.state_reader import ClusterFigures

TIMEOUT_S = 30.0
"""Seconds within which all nodes must tell their counters."""
CLOSE = 0.1
"""Relative difference up to which both runs count as equal."""
NOISE_BYTES = 100_000
"""Bytes of values below which a difference does not matter."""


class Measured(msgspec.Struct, frozen=True):
    """The figures of a real run."""

    makespan_s: float
    moved_bytes: int
    spilled_bytes: int


class ValidationRow(msgspec.Struct, frozen=True):
    """One figure of both runs."""

    figure: str
    real: float
    simulated: float
    difference: float
    """Relative to the real run."""
    is_close: bool


def run_for_real(workload: Workload, setup: Setup, address: str | None = None) -> Measured:
    """Run a workload on the cluster at ``address``, or on a new one of this machine, which then ends. Raises TraceError."""
    check(workload, setup)
    if setup.shrink != 1 or workload.failures:
        raise TraceError("a real run has whole values and no failures of nodes; leave out --shrink and --failures")
    if any(machine.speed != 1 for machine in setup.machines):
        raise TraceError("nodes of a real run are as fast as they are; leave out the speeds in --machines")
    if setup.plan:
        raise TraceError("a real run has no plan, because a plan needs the speeds of nodes; leave out --plan")
    values_s = dict.fromkeys((task.id for task in workload.tasks), 0.0)
    with _connected(address) if address else _cluster(setup):
        if setup.warm:
            program.warm_up(setup.whole_cpus())
        before = _counters()
        makespan_s = program.drive(workload, values_s, 1, lambda task, now_s: None, lambda task, result: None)
        moved_bytes, spilled_bytes = (now - then for now, then in zip(_counters(), before, strict=True))
    return Measured(makespan_s, moved_bytes=moved_bytes, spilled_bytes=spilled_bytes)


@contextmanager
def _connected(address: str) -> Iterator[None]:
    """Make this process a driver of a cluster."""
    minray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield
    finally:
        minray.shutdown()


@contextmanager
def _cluster(setup: Setup) -> Iterator[None]:
    """Start the nodes of a setup on this machine, and make this process a driver."""
    head, *others = setup.described()
    cluster = Cluster(initialize_head=True, head_node_args={**head, "_system_config": setup.system_config})
    try:
        for node in others:
            cluster.add_node(**node)
        assert cluster.address is not None
        with _connected(cluster.address):
            yield
    finally:
        cluster.shutdown()


def _counters() -> tuple[int, int]:
    """Return the bytes that all nodes of the cluster have received from others and spilled so far."""
    figures = ask_cluster(lambda reader: reader.figures(TIMEOUT_S), "its bytes are not counted")
    moved = _total(figures, "object_manager_bytes", "Received")
    return moved, _total(figures, "spill_manager_bytes_total", "Spilled")


def _total(figures: ClusterFigures, name: str, kind: str) -> int:
    """Return the sum of a counter of all nodes."""
    values = (value for node in figures.of_nodes for value in node.values)
    return int(sum(value.value for value in values if value.name == name and value.labels.get("Type") == kind))


def compared(measured: Measured, record: RunRecord) -> list[ValidationRow]:
    """Return the figures of a real run beside those of a simulated one."""
    bytes_of = summarise(record)["bytes"]
    pairs = [
        ("makespan_s", measured.makespan_s, record.makespan_s),
        ("moved_bytes", measured.moved_bytes, bytes_of["moved"]),
        ("spilled_bytes", measured.spilled_bytes, bytes_of["spilled"]),
    ]
    return [_row(*pair) for pair in pairs]


def _row(figure: str, real: float, simulated: float) -> ValidationRow:
    difference = (simulated - real) / real if real else (0.0 if not simulated else float("inf"))
    is_noise = figure.endswith("_bytes") and abs(simulated - real) < NOISE_BYTES
    return ValidationRow(figure, real, simulated, difference=difference, is_close=is_noise or abs(difference) <= CLOSE)


def validation_lines(rows: list[ValidationRow], shown: Callable[[float], str] = "{:,.3f}".format) -> list[str]:
    """Return the comparison for a terminal."""
    lines = [f"{'':<16}{'real':>18}{'simulated':>18}{'difference':>12}"]
    for row in rows:
        verdict = "" if row.is_close else f"   not within {CLOSE:.0%}"
        lines.append(f"{row.figure:<16}{shown(row.real):>18}{shown(row.simulated):>18}{row.difference:>+12.1%}{verdict}")
    return lines
