"""Values of a node's workers that outlive them: which are told to whom, and how many there may be."""

from __future__ import annotations

from typing import Any

from minray.protocol.metrics import ReportMetrics
from minray.protocol.state import MetricFamily, MetricSample, ProcessMetrics, SystemValue
from minray.raylet.kept_metrics import KeptMetrics

NODE, JOB, OTHER_JOB = b"node", b"job1", b"job2"


def counter(value: float, name: str = "pages", **tags: str) -> MetricFamily:
    return MetricFamily(name, "counter", "", [], [MetricSample(tags, value, [])])


def histogram(value: float, *counts: int, boundaries: Any = (1.0,)) -> MetricFamily:
    return MetricFamily("took", "histogram", "", list(boundaries), [MetricSample({}, value, list(counts))])


def report(worker: bytes, *families: MetricFamily, number: int = 1, job_id: bytes = JOB, ended: int = 0) -> ReportMetrics:
    system = [SystemValue("tasks", float(ended), {"State": "FINISHED"})] if ended else []
    return ReportMetrics(number, ProcessMetrics("10.0.0.1", worker, job_id, list(families), system=system))


def told(kept: KeptMetrics, *but: bytes) -> dict[bytes, list[tuple[str, float]]]:
    return {
        process.worker_id: [(family.name, sample.value) for family in process.families for sample in family.samples]
        for process in kept.ended(list(but)).processes
    }


def kept_by(most_series: int = 100, most_bytes: int = 100_000, over: list[bytes] | None = None) -> KeptMetrics:
    return KeptMetrics(NODE, lambda job_id: job_id in (over or []), most_series, most_bytes)


def test_the_last_report_counts_until_the_job_is_over() -> None:
    kept = kept_by()
    kept.on_report(report(b"w", counter(1)), is_living=True)
    kept.on_report(report(b"w", counter(3), number=2), is_living=True)
    kept.on_report(report(b"other", counter(7), job_id=OTHER_JOB), is_living=True)
    kept.on_exit(b"w")
    assert told(kept) == {b"w": [("pages", 3)], b"other": [("pages", 7)]}
    kept.on_job_finished(JOB)
    assert told(kept) == {b"other": [("pages", 7)]} and kept.series == 1


def test_a_reader_gets_only_what_it_has_not_heard_from_the_workers_themselves() -> None:
    kept = kept_by()
    for worker in (b"v", b"w"):
        kept.on_report(report(worker, counter(1)), is_living=True)
    assert told(kept, b"w") == {b"v": [("pages", 1)]} and told(kept, b"v", b"w") == {}


def test_an_old_or_repeated_report_changes_nothing() -> None:
    kept = kept_by()
    kept.on_report(report(b"w", counter(3), number=2), is_living=True)
    for number in (1, 2):
        kept.on_report(report(b"w", counter(1), number=number), is_living=True)
    kept.on_exit(b"w")
    kept.on_report(report(b"w", counter(2), number=2), is_living=False)
    assert told(kept) == {b"w": [("pages", 3)]}


def test_the_last_report_may_arrive_after_the_end_was_seen() -> None:
    kept = kept_by()
    kept.on_report(report(b"w", counter(1)), is_living=True)
    kept.on_exit(b"w")
    kept.on_report(report(b"w", counter(4), number=2), is_living=False)
    kept.on_report(report(b"v", counter(5)), is_living=False)
    assert told(kept) == {b"w": [("pages", 4)], b"v": [("pages", 5)]}


def test_a_report_of_a_job_that_is_over_is_not_kept() -> None:
    kept = kept_by(over=[JOB])
    kept.on_report(report(b"w", counter(1)), is_living=False)
    assert told(kept) == {} and kept.series == 0


def test_values_of_the_workers_that_ended_first_are_added_up_when_there_are_too_many() -> None:
    kept = kept_by(most_series=8)
    for worker in (b"1", b"2", b"3", b"4"):
        kept.on_report(report(worker, counter(1), histogram(2, 0, 1), ended=5), is_living=True)
        kept.on_exit(worker)
    assert told(kept) == {b"4": [("pages", 1), ("took", 2)], NODE: [("pages", 3), ("took", 6)]}
    processes = kept.ended([]).processes
    assert sum(value.value for process in processes for value in process.system) == 20
    assert kept.series <= 8
    for worker in (b"1", b"2"):
        kept.on_report(report(worker, counter(1), number=9), is_living=False)
    assert sum(value for values in told(kept).values() for name, value in values if name == "pages") == 4


def test_a_metric_that_means_something_else_in_another_worker_is_not_added() -> None:
    kept = kept_by(most_series=4)
    kept.on_report(report(b"1", counter(1), histogram(1, 1, 0)), is_living=False)
    kept.on_report(report(b"2", counter(1), histogram(1, 1, 0, 0, boundaries=(1.0, 2.0))), is_living=False)
    kept.on_report(report(b"3", counter(1)), is_living=False)
    (summed,) = [process for process in kept.ended([]).processes if process.worker_id == NODE]
    assert summed.left_out == 1 and [family.boundaries for family in summed.families] == [[], [1.0]]


def test_a_report_that_does_not_fit_is_counted_and_does_no_harm() -> None:
    kept = kept_by(most_bytes=1000)
    kept.on_report(report(b"w", counter(1)), is_living=True)
    for number in (1, 2):
        kept.on_report(report(b"large", counter(1, site="x" * 2000), number=number), is_living=True)
    assert told(kept) == {b"w": [("pages", 1)]} and kept.ended([]).left_out == 1
    assert kept.ended([b"large"]).left_out == 0, "the reader has them from the worker itself"
    kept.on_report(report(b"large", counter(1), number=3), is_living=True)
    assert kept.ended([]).left_out == 0 and len(told(kept)) == 2
    kept.on_job_finished(JOB)
    assert (kept.series, kept.size, kept.ended([]).processes) == (0, 0, [])
