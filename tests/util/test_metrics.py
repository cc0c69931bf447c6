"""Counters, gauges and histograms as programs make them: what they take, and what they are where they were sent."""

from __future__ import annotations

import pickle
from collections.abc import Generator
from typing import Any

import pytest

from minray import cloudpickle
from minray.core_worker.introspection.metric_registry import MetricRegistry, of_context, registry
from minray.util.metrics import Counter, Gauge, Histogram, metrics_text


@pytest.fixture(autouse=True)
def fresh() -> Generator[None, None, None]:
    """Values of this test's own."""
    token = of_context.set(MetricRegistry())
    yield
    of_context.reset(token)


def recorded() -> dict[str, list[tuple[dict[str, str], float, list[int]]]]:
    """The values of each name."""
    families, _ = registry().families()
    return {family.name: [(one.tags, one.value, one.counts) for one in family.samples] for family in families}


def test_a_counter_counts() -> None:
    counter = Counter("c")
    counter.inc()
    counter.inc(2)
    counter.inc(0.5)
    assert recorded() == {"c": [({}, 3.5, [])]}


def test_a_gauge_is_set_and_none_changes_nothing() -> None:
    gauge = Gauge("g")
    gauge.set(None)
    assert recorded() == {}
    gauge.set(3)
    gauge.set(-1.5)
    gauge.set(None)
    assert recorded() == {"g": [({}, -1.5, [])]}


def test_a_histogram_sorts_values() -> None:
    histogram = Histogram("h", boundaries=[1, 10])
    for value in (0.5, 10, 11):
        histogram.observe(value)
    assert recorded() == {"h": [({}, 21.5, [1, 1, 1])]}


def test_tags_of_a_call_come_before_the_default_ones() -> None:
    counter = Counter("c", tag_keys=("a", "b"))
    assert counter.set_default_tags({"a": "1"}) is counter
    counter.inc(tags={"b": "2"})
    counter.inc(tags={"a": "3", "b": "4"})
    assert recorded()["c"] == [({"a": "1", "b": "2"}, 1.0, []), ({"a": "3", "b": "4"}, 1.0, [])]


def test_metrics_say_what_they_are() -> None:
    known = {"name": "n", "description": "d", "tag_keys": ("a",), "default_tags": {"a": "1"}}
    assert Counter("n", "d", ("a",)).set_default_tags({"a": "1"}).info == known
    histogram = Histogram("n", "d", [1.0], ("a",)).set_default_tags({"a": "1"})
    assert histogram.info == {**known, "boundaries": [1.0]} and histogram.boundaries == [1.0]
    assert Gauge("n").info == {"name": "n", "description": "", "tag_keys": (), "default_tags": {}}


@pytest.mark.parametrize("dumps", [pickle.dumps, cloudpickle.dumps])
@pytest.mark.parametrize(
    "metric",
    [
        Counter("c", "d", ("a",)).set_default_tags({"a": "1"}),
        Gauge("g", "d", ("a",)),
        Histogram("h", "d", boundaries=[1.0, 2.0], tag_keys=("a",)).set_default_tags({"a": "1"}),
    ],
    ids=lambda metric: type(metric).__name__,
)
def test_a_metric_that_was_sent_is_the_same(metric: Any, dumps: Any) -> None:
    copy = pickle.loads(dumps(metric))
    assert type(copy) is type(metric) and copy.info == metric.info


def test_metrics_of_the_same_name_are_one() -> None:
    first, second = Counter("c"), Counter("c")
    first.inc()
    second.inc()
    pickle.loads(pickle.dumps(first)).inc()
    assert recorded() == {"c": [({}, 3.0, [])]}


@pytest.mark.parametrize("name", ["1a", "a b", "a-b", "\u00e9"])
def test_what_prometheus_does_not_know_as_a_name_is_discarded(name: str) -> None:
    with pytest.warns(UserWarning, match="is discarded: names have letters"):
        counter = Counter(name)
    counter.inc()
    assert recorded() == {} and counter.info["name"] == name


@pytest.mark.parametrize("make", [lambda: Gauge("h"), lambda: Histogram("h", boundaries=[2.0])])
def test_a_name_that_is_something_else_already_is_discarded(make: Any) -> None:
    Histogram("h", boundaries=[1.0]).observe(5)
    with pytest.warns(UserWarning, match="the metric 'h' is discarded: this process has another kind of metric"):
        metric = make()
    getattr(metric, "set", None) and metric.set(1)
    assert recorded() == {"h": [({}, 5.0, [0, 1])]}


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: Counter(""), ValueError, "must not be empty"),
        (lambda: Counter(5), TypeError, "name must be a string, not int"),  # type: ignore[arg-type]
        (lambda: Counter("a", 5), TypeError, "description must be a string, not int"),  # type: ignore[arg-type]
        (lambda: Counter("a", tag_keys=["x"]), TypeError, "tag_keys must be a tuple, not list"),  # type: ignore[arg-type]
        (lambda: Counter("a", tag_keys=(1,)), TypeError, "tag keys must be strings, not int"),  # type: ignore[arg-type]
        (lambda: Counter("a").set_default_tags({"b": "1"}), ValueError, "'b' is not one of the tag keys"),
        (lambda: Counter("a", tag_keys=("b",)).set_default_tags({"b": 1}), TypeError, "that of 'b' is an int"),  # type: ignore[dict-item]
        (lambda: Counter("a").inc("1"), TypeError, "value must be an int or a float, not str"),  # type: ignore[arg-type]
        (lambda: Counter("a").inc(0), ValueError, "value must be positive, not 0"),
        (lambda: Counter("a").inc(-1), ValueError, "value must be positive, not -1"),
        (lambda: Counter("a", tag_keys=("x", "y")).inc(tags={"y": "1"}), ValueError, "no value for the tag keys x$"),
        (lambda: Counter("a").inc(tags={"x": 1}), TypeError, "that of 'x' is an int"),  # type: ignore[dict-item]
        (lambda: Counter("a").inc(tags={1: "x"}), TypeError, "tag keys must be strings, not int"),  # type: ignore[dict-item]
        (lambda: Counter("a").inc(tags={"x": "\udc80"}), ValueError, "value of tag 'x' cannot be encoded as UTF-8"),
        (lambda: Counter("a", "\udc80"), ValueError, "description cannot be encoded as UTF-8"),
        (lambda: Gauge("a").set("1"), TypeError, "value must be"),  # type: ignore[arg-type]
        (lambda: Histogram("a"), ValueError, "boundaries are needed"),
        (lambda: Histogram("a", boundaries=[]), ValueError, "boundaries are needed"),
        (lambda: Histogram("a", boundaries=[0.0, 1.0]), ValueError, "at index 0"),
        (lambda: Histogram("a", boundaries=[1.0, float("inf")]), ValueError, "at index 1"),
        (lambda: Histogram("a", boundaries=[2.0, 1.0]), ValueError, "must increase"),
        (lambda: Histogram("a", boundaries=[1.0]).observe(None), TypeError, "value must be"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments_raise_and_record_nothing(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        make()
    assert recorded() == {}


def test_without_a_cluster_there_is_no_text() -> None:
    Counter("c").inc()
    with pytest.raises(RuntimeError, match="not connected to a cluster"):
        metrics_text()
