"""Metrics that a process has counted, set and observed."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from minray.core_worker.introspection import metric_registry
from minray.core_worker.introspection.metric_registry import MetricDefinition, MetricRegistry
from minray.protocol.state import MetricFamily, MetricSample

COUNTED, SET = MetricDefinition("counter", "counted", "It is."), MetricDefinition("gauge", "set", "")
SEEN = MetricDefinition("histogram", "seen", "", (1.0, 5.0))


def samples(kept: MetricRegistry) -> list[MetricSample]:
    return [sample for family in kept.families()[0] for sample in family.samples]


def test_counters_add_up_and_gauges_are_what_was_last() -> None:
    kept = MetricRegistry()
    for value in (1.0, 2.5):
        kept.record(COUNTED, {}, value)
        kept.record(SET, {}, value)
    assert kept.families() == (
        [
            MetricFamily("counted", "counter", "It is.", [], [MetricSample({}, 3.5, [])]),
            MetricFamily("set", "gauge", "", [], [MetricSample({}, 2.5, [])]),
        ],
        0,
    )


def test_a_value_is_in_the_first_bucket_that_it_does_not_exceed() -> None:
    kept = MetricRegistry()
    for value in (-1.0, 1.0, 1.1, 5.0, 5.1, 100.0):
        kept.record(SEEN, {}, value)
    assert samples(kept) == [MetricSample({}, pytest.approx(111.2), [2, 2, 2])]  # type: ignore[arg-type]


def test_values_with_other_tags_are_others() -> None:
    kept = MetricRegistry()
    for tags in ({"a": "1", "b": "2"}, {"b": "2", "a": "1"}, {"a": "1"}):
        kept.record(COUNTED, tags, 1.0)
    assert samples(kept) == [MetricSample({"a": "1", "b": "2"}, 2.0, []), MetricSample({"a": "1"}, 1.0, [])]


@pytest.mark.parametrize(
    ("other", "fits"),
    [
        (MetricDefinition("histogram", "seen", "in other words", (1, 5)), True),
        (MetricDefinition("gauge", "seen", ""), False),
        (MetricDefinition("histogram", "seen", "", (1.0, 6.0)), False),
        (MetricDefinition("gauge", "another", ""), True),
    ],
)
def test_a_name_is_what_it_was_first(other: MetricDefinition, fits: bool) -> None:
    kept = MetricRegistry()
    kept.record(SEEN, {}, 1.0)
    assert kept.fits(other) == fits
    kept.record(other, {"which": "other"}, 1.0)
    assert ({"which": "other"} in [one.tags for one in samples(kept)]) == fits


def test_of_very_many_values_some_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metric_registry, "MOST_SERIES", 3)
    kept = MetricRegistry()
    for number in range(5):
        kept.record(COUNTED, {"number": str(number)}, 1.0)
    kept.record(SET, {}, 1.0)
    assert len(samples(kept)) == 3 and kept.families()[1] == 3


def test_threads_lose_nothing() -> None:
    kept = MetricRegistry()

    def count() -> None:
        for _ in range(5000):
            kept.record(COUNTED, {}, 1.0)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [one.value for one in samples(kept)] == [20_000.0]


@pytest.mark.parametrize("where", ["MetricSample", "_Series"])
def test_a_destructor_may_record_at_any_moment(monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """As the collector calls them: in the thread that records or tells, wherever that has come to."""
    kept = MetricRegistry()
    made: Any = getattr(metric_registry, where)

    def interrupted(*arguments: Any) -> Any:
        monkeypatch.setattr(metric_registry, where, made)
        kept.record(COUNTED, {}, 1.0)
        kept.record(COUNTED, {"by": "a destructor"}, 1.0)
        kept.record(SET, {}, 1.0)
        return made(*arguments)

    monkeypatch.setattr(metric_registry, where, interrupted)
    kept.record(COUNTED, {}, 1.0)
    kept.families()
    assert [one.value for one in samples(kept)] == [2.0, 1.0, 1.0]


def test_the_next_value_is_announced_once() -> None:
    kept, told = MetricRegistry(), list[str]()
    kept.call_on_change(lambda: told.append("changed"))
    kept.record(COUNTED, {}, 1.0)
    kept.record(COUNTED, {}, 1.0)
    assert told == ["changed"]


def test_gauges_can_be_left_out_and_the_number_is_bounded() -> None:
    kept = MetricRegistry()
    for number in range(3):
        kept.record(SET, {"by": str(number)}, 1.0)
        kept.record(COUNTED, {"by": str(number)}, 1.0)
    families, left_out = kept.families(2, with_gauges=False)
    assert [(family.name, len(family.samples)) for family in families] == [("counted", 2)] and left_out == 1
