"""Messages about metrics of the system itself, and about values of programs that outlive their process.

Ray: src/ray/protobuf/reporter.proto (ReportMetrics), src/ray/observability/metrics.h

Ray's processes send all their values to an agent of their node. Here they are asked, as for all other state. Each process
knows its own figures under Ray's names, without ``ray_``; ``observability/metric_definitions`` says what each name means.
"""

from __future__ import annotations

from minray.protocol.base import Done, Record, Request
from minray.protocol.state import ProcessMetrics, SystemValue


class NodeMetrics(Record, frozen=True):
    """Figures of a raylet about its node, its store and its scheduling."""

    node_id: bytes
    values: list[SystemValue]


class GetNodeMetrics(Request[NodeMetrics], frozen=True):
    """Asks a raylet for its figures. The answer may take a quarter second, over which the use of CPUs is measured."""


class GcsMetrics(Record, frozen=True):
    """Figures of the gcs about its own process and its tables."""

    values: list[SystemValue]


class GetGcsMetrics(Request[GcsMetrics], frozen=True):
    """Asks the gcs for its figures."""


class ReportMetrics(Request[Done], frozen=True):
    """From a worker to its raylet: its counters and histograms so far, which the node keeps when the worker has ended."""

    number: int
    """Number that grows with each report; an older report is ignored."""
    metrics: ProcessMetrics


class EndedMetrics(Record, frozen=True):
    """The last values of processes that cannot be asked any more."""

    processes: list[ProcessMetrics]
    left_out: int = 0
    """Number of values that the node could not keep, because there were too many."""


class GetEndedMetrics(Request[EndedMetrics], frozen=True):
    """Asks a raylet for the kept values of all workers but those in ``told``, which the reader has from themselves."""

    told: list[bytes]
    """Worker ids."""
