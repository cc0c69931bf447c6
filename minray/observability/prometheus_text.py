"""Metrics in Prometheus's text format: all values of all processes, each with labels that name its process.

Ray: python/ray/_private/telemetry/open_telemetry_metric_recorder.py, and the Prometheus exporter that it uses

The functions are pure: they turn the answers (``ClusterMetrics``) into lines. As in Ray, names begin with ``ray_`` and those
of counters end with ``_total``, so that dashboards made for Ray find them.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence

from minray.observability.state_reader import ClusterMetrics
from minray.protocol.state import COUNTER, HISTOGRAM, MetricFamily, MetricSample, ProcessMetrics

PREFIX = "ray_"
COMPONENT = "core_worker"
"""Value of the label ``Component`` in Ray for drivers and workers."""


def prometheus_text(found: ClusterMetrics) -> str:
    """Return the families of metrics, sorted by name, as text; "" if no program has metrics."""
    families: dict[str, list[tuple[ProcessMetrics, MetricFamily]]] = {}
    for process in sorted(found.processes, key=lambda process: process.worker_id):
        for family in process.families:
            families.setdefault(full_name(family), []).append((process, family))
    lines = [line for name in sorted(families) for line in _family(name, families[name])]
    if left_out := sum(process.left_out for process in found.processes):
        lines.append(f"# {left_out} values are left out, because their processes have too many")
    return "".join(f"{line}\n" for line in lines)


def full_name(family: MetricFamily) -> str:
    total = "_total" if family.kind == COUNTER and not family.name.endswith("_total") else ""
    return f"{PREFIX}{family.name}{total}"


def _family(name: str, parts: Sequence[tuple[ProcessMetrics, MetricFamily]]) -> Iterator[str]:
    """Yield the lines of the metrics with one name. In this format they must be of one kind.

    If processes disagree, the first one decides. Metrics of another kind are left out, and a comment says so.
    """
    first = parts[0][1]
    description = next((family.description for _, family in parts if family.description), "")
    if description:
        yield f"# HELP {name} {_escaped(description)}"
    yield f"# TYPE {name} {first.kind}"
    for process, family in parts:
        if family.kind != first.kind:
            yield f"# {name} is a {family.kind} in worker {process.worker_id.hex()}, which is left out"
            continue
        own = {"Component": COMPONENT, "JobId": process.job_id.hex(), "NodeAddress": process.node_ip}
        for sample in family.samples:
            yield from _sample(name, family, sample, {**own, "WorkerId": process.worker_id.hex()})


def _sample(name: str, family: MetricFamily, sample: MetricSample, own: dict[str, str]) -> Iterator[str]:
    tags = own | {_label_name(key): value for key, value in sample.tags.items()}
    if family.kind != HISTOGRAM:
        yield f"{name}{_labels(tags)} {_number(sample.value)}"
        return
    seen = 0
    for boundary, count in zip([*family.boundaries, math.inf], sample.counts, strict=True):
        seen += count
        yield f"{name}_bucket{_labels(tags | {'le': _number(boundary)})} {_number(seen)}"
    yield f"{name}_sum{_labels(tags)} {_number(sample.value)}"
    yield f"{name}_count{_labels(tags)} {_number(seen)}"


def _labels(tags: dict[str, str]) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value, quotes=True)}"' for key, value in sorted(tags.items())) + "}"


def _label_name(key: str) -> str:
    """Return a valid name for a label: only letters, digits and underscores, and no digit at its beginning."""
    name = re.sub("[^a-zA-Z0-9_]", "_", key)
    return name if name and not name[0].isdigit() else f"_{name}"


def _escaped(text: str, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return "NaN" if math.isnan(value) else repr(float(value))
