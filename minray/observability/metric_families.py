"""Metric families: all values of one name in the form in which Prometheus reads them, before they are written out.

Ray: python/ray/_private/metrics_agent.py (which turns values of all processes into families of prometheus_client)

Two writers take families: ``prometheus_text`` needs no library, ``prometheus_exposition`` uses ``prometheus_client``. This
file makes families of the values that programs have recorded, and joins families so that the format's rules hold.

Rules
  * A name is one family of one kind. If processes disagree, the first one decides; a note says what is left out.
  * No series stands twice, and no family takes a name that belongs to the series of a histogram or to the system.
  * Names of labels that say where a value comes from belong to minray. A tag of a program with such a name gets the
    prefix ``exported_``, as in Prometheus's own collisions. So does ``le``, and what begins with two underscores.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from minray.observability.metric_definitions import BUCKET, COUNT, ENDINGS, PREFIX, SUM
from minray.observability.state_reader import ClusterMetrics
from minray.protocol.state import COUNTER, HISTOGRAM, MetricFamily, MetricSample, ProcessMetrics

COMPONENT = "core_worker"
"""Value of the label ``Component`` in Ray for drivers and workers."""
OURS = {
    "Component", "IsHeadNode", "JobId", "NodeAddress", "NodeId", "RayNodeType", "SessionName", "Version", "WorkerId", "ip",
}  # fmt: skip
"""Names of labels that say where a value comes from."""

Labels = dict[str, str]


class Sample(NamedTuple):
    """One value: a line of the format."""

    suffix: str
    """Ending of the series' name; empty but for a histogram."""
    labels: Labels
    value: float


class Family(NamedTuple):
    """All values of one name."""

    name: str
    """Name of the series, with ``_total`` if it is a counter."""
    kind: str
    description: str
    samples: list[Sample]
    notes: list[str]
    """Sentences that say which values are left out of this family."""

    def names(self) -> list[str]:
        """Return the names of the series."""
        return [self.name + ending for ending in ENDINGS] if self.kind == HISTOGRAM else [self.name]


def joined(families: Iterable[Family], reserved: set[str] | None = None) -> list[Family]:
    """Return families by name, without series that stand twice, and without those that would take another's name.

    Names in ``reserved`` belong to others.
    """
    found: list[Family] = []
    ordered = sorted(families, key=lambda family: family.name)
    taken = {name for family in ordered if family.kind == HISTOGRAM for name in family.names()} | (reserved or set())
    for family in ordered:
        if family.name in taken or (reserved and reserved & {*family.names()}):
            note = f"{family.name} is left out: the name belongs to another metric"
            found.append(family._replace(samples=[], notes=[note]))
        else:
            found.append(_without_repeats(family))
    return found


def _without_repeats(family: Family) -> Family:
    kept: dict[tuple[str, tuple[tuple[str, str], ...]], Sample] = {}
    for sample in family.samples:
        kept.setdefault((sample.suffix, tuple(sorted(sample.labels.items()))), sample)
    left_out = len(family.samples) - len(kept)
    if not left_out:
        return family
    note = f"{left_out} values of {family.name} are left out: their labels are those of others"
    return family._replace(samples=list(kept.values()), notes=[*family.notes, note])


def families_of_programs(found: ClusterMetrics, common: Labels | None = None) -> list[Family]:
    """Return what programs have recorded, each value with the labels of its process and those in ``common``."""
    by_name: dict[str, list[tuple[ProcessMetrics, MetricFamily]]] = {}
    for process in sorted(found.processes, key=lambda process: process.worker_id):
        for family in process.families:
            by_name.setdefault(full_name(family), []).append((process, family))
    return [_family(name, parts, common or {}) for name, parts in by_name.items()]


def full_name(family: MetricFamily) -> str:
    total = "_total" if family.kind == COUNTER and not family.name.endswith("_total") else ""
    return f"{PREFIX}{family.name}{total}"


def labels_of(process: ProcessMetrics, common: Labels) -> Labels:
    """Return the labels of a driver or worker."""
    job, worker = process.job_id.hex(), process.worker_id.hex()
    return {"Component": COMPONENT, "JobId": job, "NodeAddress": process.node_ip, "WorkerId": worker, **common}


def _family(name: str, parts: Sequence[tuple[ProcessMetrics, MetricFamily]], common: Labels) -> Family:
    """Join the values of one name. In this format they must be of one kind."""
    first = parts[0][1]
    description = next((family.description for _, family in parts if family.description), "")
    samples: list[Sample] = []
    notes: list[str] = []
    for process, family in parts:
        if family.kind != first.kind:
            notes.append(f"{name} is a {family.kind} in worker {process.worker_id.hex()}, which is left out")
            continue
        own = labels_of(process, common)
        for sample in family.samples:
            samples += _samples(family, sample, own)
    return Family(name, first.kind, description, samples=samples, notes=notes)


def _samples(family: MetricFamily, sample: MetricSample, own: Labels) -> Iterator[Sample]:
    labels = {_label_name(key): value for key, value in sample.tags.items()} | own
    if family.kind != HISTOGRAM:
        yield Sample("", labels, sample.value)
        return
    seen = 0
    for boundary, count in zip([*family.boundaries, math.inf], sample.counts, strict=True):
        seen += count
        yield Sample(BUCKET, labels | {"le": number(boundary)}, float(seen))
    yield Sample(SUM, labels, sample.value)
    yield Sample(COUNT, labels, float(seen))


def _label_name(key: str) -> str:
    """Return a valid name for a label: only letters, digits and underscores, and no digit at its beginning."""
    name = re.sub("[^a-zA-Z0-9_]", "_", key)
    name = name if name and not name[0].isdigit() else f"_{name}"
    return f"exported_{name}" if name in OURS or name == "le" or name.startswith("__") else name


def number(value: float) -> str:
    """Write a number as the format has it."""
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))
