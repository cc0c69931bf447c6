"""A strict reader of Prometheus's text format (version 0.0.4), after the rules of its documentation.

Whatever the format forbids is an AssertionError: a family in two places or of two types, a series twice, a histogram whose
buckets do not add up.
"""

from __future__ import annotations

import re
from typing import NamedTuple

NAME = "[a-zA-Z_:][a-zA-Z0-9_:]*"
LABEL = r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"'
SAMPLE = re.compile(rf"({NAME})(?:\{{({LABEL}(?:,{LABEL})*)?\}})? (\S+)")
HELP = re.compile(rf"# HELP ({NAME}) ((?:[^\\\n]|\\[\\n])*)")
TYPE = re.compile(rf"# TYPE ({NAME}) (counter|gauge|histogram)")
NUMBER = re.compile(r"NaN|[+-]Inf|[+-]?[0-9]+(\.[0-9]+)?(e[+-]?[0-9]+)?")

Labels = frozenset[tuple[str, str]]


class Family(NamedTuple):
    kind: str
    help: str
    samples: dict[tuple[str, Labels], float]
    """By the name in the line, and its labels."""

    def value(self, name: str, **labels: str) -> float:
        """Value of the only sample with this name and with these labels, among others."""
        (found,) = [value for (known, has), value in self.samples.items() if known == name and labels.items() <= has]
        return found


def parse(text: str) -> dict[str, Family]:
    """The families by name."""
    assert text == "" or text.endswith("\n")
    families: dict[str, Family] = {}
    descriptions: dict[str, str] = {}
    current = ""
    for line in text.splitlines():
        if known := HELP.fullmatch(line):
            assert known[1] not in descriptions and known[1] not in families, line
            descriptions[known[1]] = unescaped(known[2])
        elif known := TYPE.fullmatch(line):
            assert known[1] not in families, line
            current = known[1]
            families[current] = Family(known[2], descriptions.get(current, ""), {})
        elif not line.startswith("# "):
            add(families[current], current, line)
    for name, family in families.items():
        assert family.samples, name
        if family.kind == "histogram":
            check_buckets(name, family)
    return families


def add(family: Family, family_name: str, line: str) -> None:
    known = SAMPLE.fullmatch(line)
    assert known, line
    suffixes = ("_bucket", "_sum", "_count") if family.kind == "histogram" else ("",)
    assert known[1] in [family_name + suffix for suffix in suffixes], line
    labels = [(name, unescaped(value)) for name, value in re.findall(LABEL, known[2] or "")]
    assert len(dict(labels)) == len(labels), line
    key = known[1], frozenset(labels)
    assert key not in family.samples and NUMBER.fullmatch(known[known.lastindex or 0]), line
    family.samples[key] = float(known[known.lastindex or 0])


def check_buckets(name: str, family: Family) -> None:
    series: dict[Labels, list[tuple[float, float]]] = {}
    for (sample, labels), value in family.samples.items():
        if sample == f"{name}_bucket":
            (bound,) = [text for key, text in labels if key == "le"]
            series.setdefault(labels - {("le", bound)}, []).append((float(bound), value))
    for labels, buckets in series.items():
        assert buckets == sorted(buckets) and [value for _, value in buckets] == sorted(value for _, value in buckets), name
        assert buckets[-1] == (float("inf"), family.samples[f"{name}_count", labels]), name
        assert (f"{name}_sum", labels) in family.samples, name
    assert len(family.samples) == sum(len(buckets) + 2 for buckets in series.values()), name


def unescaped(text: str) -> str:
    return re.sub(r"\\(.)", lambda found: "\n" if found[1] == "n" else found[1], text)
