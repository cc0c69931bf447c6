"""Metric families in Prometheus's text format, written without any library.

Ray: python/ray/_private/telemetry/open_telemetry_metric_recorder.py, and the Prometheus exporter that it uses

The functions are pure. As in Ray, names begin with ``ray_`` and those of counters end with ``_total``, so that dashboards
made for Ray find them. Where a server answers Prometheus, ``prometheus_exposition`` writes the same families.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from minray.observability.metric_definitions import full_names
from minray.observability.metric_families import Family, Labels, families_of_programs, joined, number
from minray.observability.state_reader import ClusterMetrics


def prometheus_text(found: ClusterMetrics) -> str:
    """Return what programs have recorded, sorted by name, as text; "" if no program has metrics."""
    lines = text_of(joined(families_of_programs(found), full_names()))
    if left_out := found.left_out + sum(process.left_out for process in found.processes):
        lines += f"# {left_out} values are left out, because their processes have too many\n"
    return lines


def text_of(families: Iterable[Family]) -> str:
    """Return families as text."""
    return "".join(f"{line}\n" for family in families for line in _lines(family))


def _lines(family: Family) -> Iterator[str]:
    if family.samples:
        if family.description:
            yield f"# HELP {family.name} {_escaped(family.description)}"
        yield f"# TYPE {family.name} {family.kind}"
    yield from (f"# {note}" for note in family.notes)
    for suffix, labels, value in family.samples:
        yield f"{family.name}{suffix}{_labels(labels)} {number(value)}"


def _labels(labels: Labels) -> str:
    return "{" + ",".join(f'{key}="{_escaped(value, quotes=True)}"' for key, value in sorted(labels.items())) + "}"


def _escaped(text: str, quotes: bool = False) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quotes else text
