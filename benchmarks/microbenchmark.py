"""Ray's own microbenchmark (``minray.cli.microbenchmark``) on minray and Ray, with minray's targets."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.document import Sample, Size, Target
from benchmarks.systems import connected
from minray.cli.microbenchmark import NEEDED, rate, rows

NAME = "microbenchmark"

TARGETS = {
    "single client get calls": 10,
    "single client put calls": 20,
    "multi client put calls": 20,
    "single client put gigabytes": 3,
    "multi client put gigabytes": 1,
    "single client tasks and get batch": 25,
    "single client get object containing 10k refs": 3,
    "single client wait 1k refs": 10,
    "single client tasks sync": 10,
    "single client tasks async": 25,
    "multi client tasks async": 20,
    "1:1 actor calls sync": 6,
    "1:1 actor calls async": 10,
    "1:1 actor calls concurrent": 5,
    "1:n actor calls async": 10,
    "n:n actor calls async": 8,
    "n:n actor calls with arg async": 10,
    "1:1 async-actor calls sync": 8,
    "1:1 async-actor calls async": 10,
    "1:1 async-actor calls with args async": 10,
    "1:n async-actor calls async": 10,
    "n:n async-actor calls async": 10,
    "placement group create/removal": 5,
}
"""Target of each row: minray's speed as a multiple of Ray's, at least."""
QUICKLY = {
    "single client get calls",
    "single client put calls",
    "single client put gigabytes",
    "single client tasks sync",
    "single client tasks async",
    "1:1 actor calls sync",
    "1:1 actor calls async",
    "1:1 async-actor calls sync",
    "1:1 async-actor calls async",
    "placement group create/removal",
}
"""Rows that a quick run measures."""


def targets() -> dict[str, Target]:
    return {row: Target(ratio=ratio) for row, ratio in TARGETS.items()}


def measure(system: str, size: Size) -> Iterator[Sample]:
    round_s = size.pick(2.0, 0.2, 0.0)
    with connected(system, resources=NEEDED) as ray:
        for name, multiplier, call in rows(ray, size.pick(1, 0.1, 0.001)):
            if size is Size.QUICK and name not in QUICKLY:
                continue
            rate(call, round_s / 2)
            for _ in range(size.pick(1, 2, 1)):
                yield Sample(NAME, name, multiplier * rate(call, round_s))
