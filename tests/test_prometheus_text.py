"""Metrics of many processes, as Prometheus reads them."""

from __future__ import annotations

import math
from typing import Any

import pytest

from minray.observability.prometheus_text import prometheus_text
from minray.observability.state_reader import ClusterMetrics
from minray.protocol.state import MetricFamily, MetricSample, ProcessMetrics
from tests.util.exposition import parse

JOB = b"job1"


def family(name: str, kind: str, *samples: MetricSample, description: str = "", boundaries: Any = ()) -> MetricFamily:
    return MetricFamily(name, kind, description, list(boundaries), list(samples))


def sample(value: float, counts: Any = (), **tags: str) -> MetricSample:
    return MetricSample(tags, value, list(counts))


def text(*processes: tuple[bytes, list[MetricFamily]]) -> str:
    told = [ProcessMetrics("10.0.0.1", worker_id, JOB, families) for worker_id, families in processes]
    return prometheus_text(ClusterMetrics(told, []))


def test_a_value_says_whose_it_is() -> None:
    counter = family("pages", "counter", sample(2.5, site="a"), description="Pages.")
    assert text((b"w", [counter])) == (
        "# HELP ray_pages_total Pages.\n"
        "# TYPE ray_pages_total counter\n"
        f'ray_pages_total{{Component="core_worker",JobId="{JOB.hex()}",NodeAddress="10.0.0.1",WorkerId="{b"w".hex()}",site="a"}}'
        " 2.5\n"
    )


def test_nothing_was_measured() -> None:
    assert text() == text((b"w", [])) == ""


def test_the_same_name_in_several_processes_is_one_family() -> None:
    gauge = family("height", "gauge", sample(1))
    found = parse(text((b"w2", [gauge]), (b"w1", [family("a", "gauge", sample(7)), gauge])))
    assert list(found) == ["ray_a", "ray_height"] and len(found["ray_height"].samples) == 2
    assert found["ray_height"].value("ray_height", WorkerId=b"w2".hex()) == 1.0


@pytest.mark.parametrize("name", ["a", "a_total"])
def test_a_counter_ends_with_total(name: str) -> None:
    assert list(parse(text((b"w", [family(name, "counter", sample(1))])))) == ["ray_a_total"]


def test_buckets_add_up() -> None:
    seen = family("time", "histogram", sample(12.5, [1, 0, 2], site="a"), sample(0, [0, 0, 0]), boundaries=[1, 2.5])
    found = parse(text((b"w", [seen])))["ray_time"]
    assert [found.value("ray_time_bucket", le=bound, site="a") for bound in ("1.0", "2.5", "+Inf")] == [1, 1, 3]
    assert found.value("ray_time_sum", site="a") == 12.5 and found.value("ray_time_count", site="a") == 3


def test_a_name_that_means_something_else_elsewhere_is_left_out_there() -> None:
    gauge, histogram = family("x", "gauge", sample(1)), family("x", "histogram", sample(1, [1, 0]), boundaries=[1])
    found = text((b"w1", [gauge]), (b"w2", [histogram]))
    assert f"# ray_x is a histogram in worker {b'w2'.hex()}, which is left out\n" in found
    assert len(parse(found)["ray_x"].samples) == 1


def test_texts_are_escaped_and_labels_are_names() -> None:
    odd = 'a "b" \\n\n{c="d"}, \u00e9'
    tagged = sample(1, **{"a-b": odd, "1": "", "": "e"})
    found = parse(text((b"w", [family("x", "gauge", tagged, description=odd)])))["ray_x"]
    ((_, labels),) = found.samples
    assert dict(labels).items() >= {"a_b": odd, "_1": ""}.items() and found.help == odd


@pytest.mark.parametrize("value", [0.0, 1e300, -5e-324, math.inf, -math.inf, 1 / 3])
def test_numbers_are_those_that_were_recorded(value: float) -> None:
    found = parse(text((b"w", [family("x", "gauge", sample(value))])))["ray_x"]
    assert list(found.samples.values()) == [value]


def test_what_does_not_fit_into_an_answer_is_counted() -> None:
    told = [ProcessMetrics("10.0.0.1", worker_id, JOB, [], left_out=3) for worker_id in (b"w1", b"w2")]
    found = prometheus_text(ClusterMetrics(told, []))
    assert found == "# 6 values are left out, because their processes have too many\n" and parse(found) == {}


def test_what_is_no_number_is_told_too() -> None:
    assert text((b"w", [family("x", "gauge", sample(math.nan))])).endswith("} NaN\n")


@pytest.mark.parametrize("key", ["WorkerId", "le", "__name__", "SessionName"])
def test_a_tag_cannot_take_the_name_of_one_of_our_labels(key: str) -> None:
    found = parse(text((b"w", [family("x", "gauge", sample(1, **{key: "mine"}))])))["ray_x"]
    assert found.value("ray_x", **{f"exported_{key}": "mine"}, WorkerId=b"w".hex(), Component="core_worker") == 1


def test_no_series_stands_twice_though_tags_become_equal() -> None:
    found = text((b"w", [family("x", "counter", sample(1, **{"a-b": "1"}), sample(2, **{"a.b": "1"}))]))
    assert list(parse(found)["ray_x_total"].samples.values()) == [1.0]
    assert "# 1 values of ray_x_total are left out: their labels are those of others\n" in found


def test_a_name_that_belongs_to_the_system_or_to_a_histogram_is_left_out() -> None:
    histogram = family("x", "histogram", sample(1, [1, 0]), boundaries=[1])
    found = text((b"w", [family("tasks", "gauge", sample(1)), family("x_count", "gauge", sample(1)), histogram]))
    assert list(parse(found)) == ["ray_x"]
    assert "# ray_tasks is left out: the name belongs to another metric\n" in found
    assert "# ray_x_count is left out: the name belongs to another metric\n" in found
