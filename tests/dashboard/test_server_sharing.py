"""Answers that all visitors share, news for pages, and the lines about visitors: without a cluster, in virtual order."""

from __future__ import annotations

import asyncio
import logging

import pytest

from minray.common.complaints import PAUSE_S, Complaints
from minray.dashboard.history import SAMPLES, series_of
from minray.dashboard.news import Subscriber
from minray.dashboard.shared_answers import KEPT_S, SharedAnswers
from tests.helpers import turn


class Cluster:
    """A cluster that answers when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.gate = asyncio.Event()
        self.error: Exception | None = None

    async def answer(self) -> int:
        self.asked += 1
        number = self.asked
        await self.gate.wait()
        if self.error is not None:
            raise self.error
        return number


def test_ten_visitors_cost_the_cluster_as_much_as_one() -> None:
    async def story() -> None:
        cluster, shared = Cluster(), SharedAnswers()
        visitors = [asyncio.create_task(shared.get("tasks", cluster.answer)) for _ in range(10)]
        await turn()
        cluster.gate.set()
        assert [kept.value for kept in await asyncio.gather(*visitors)] == [1] * 10
        assert (await shared.get("tasks", cluster.answer)).value == 1, "kept for a second"
        assert cluster.asked == shared.questions == 1

    asyncio.run(story())


def test_a_stale_answer_is_asked_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        cluster, shared = Cluster(), SharedAnswers()
        cluster.gate.set()
        loop = asyncio.get_running_loop()
        first = await shared.get("tasks", cluster.answer)
        real = loop.time
        monkeypatch.setattr(loop, "time", lambda: real() + KEPT_S + 0.5)
        second = await shared.get("tasks", cluster.answer)
        assert (first.value, second.value) == (1, 2) and first.number != second.number

    asyncio.run(story())


def test_an_error_is_shared_and_kept_too() -> None:
    async def story() -> None:
        cluster, shared = Cluster(), SharedAnswers()
        cluster.error = TimeoutError("silent")
        cluster.gate.set()
        for _ in range(3):
            with pytest.raises(TimeoutError, match="silent"):
                await shared.get("tasks", cluster.answer)
        assert cluster.asked == 1

    asyncio.run(story())


def test_a_visitor_who_goes_does_not_end_the_question_of_others() -> None:
    async def story() -> None:
        cluster, shared = Cluster(), SharedAnswers()
        goes = asyncio.create_task(shared.get("tasks", cluster.answer))
        stays = asyncio.create_task(shared.get("tasks", cluster.answer))
        await turn()
        goes.cancel()
        await turn()
        cluster.gate.set()
        assert (await stays).value == 1 and cluster.asked == 1

    asyncio.run(story())


def test_a_page_that_never_reads_keeps_one_entry_for_each_table() -> None:
    subscriber = Subscriber(frozenset({"tasks", "actors"}))
    for _ in range(100_000):
        subscriber.note({"tasks", "actors", "nodes"}, False)
    assert subscriber.changed == {"tasks", "actors"}


def test_a_page_is_told_once_of_several_changes() -> None:
    async def story() -> None:
        subscriber = Subscriber(frozenset({"tasks"}))
        subscriber.note({"nodes"}, False)
        assert await subscriber.wait_news(0) is None, "a table that it does not show"
        subscriber.note({"tasks"}, False)
        subscriber.note({"tasks"}, True)
        assert await subscriber.wait_news(1) == ["tasks"]
        assert await subscriber.wait_news(0) is None

    asyncio.run(story())


def test_a_thousand_cases_of_a_kind_are_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    now = 0.0
    complaints = Complaints(lambda: now)
    with caplog.at_level(logging.WARNING, "minray"):
        for _ in range(1000):
            complaints.note("token", "refused\n\x1b[31mforged line")
        now = PAUSE_S
        complaints.note("token", "refused")
    first, second = [record.getMessage() for record in caplog.records]
    assert first == r"refused\n\x1b[31mforged line", "nothing of a visitor acts on the terminal"
    assert second == "refused (999 such cases more since the last line)"


def test_a_sample_of_a_silent_cluster_is_a_gap() -> None:
    assert series_of({"is_connected": False}, {}) == {}
    assert SAMPLES == 120


def test_a_sample_has_what_is_used() -> None:
    summary = {
        "is_connected": True, "resources_total": {"CPU": 4.0}, "resources_available": {"CPU": 1.0}, "nodes_alive": 1,
        "store_used": 5, "store_total": 10, "spilled_bytes": 0, "workers": 3, "waiting": 2, "jobs_running": 1,
        "silent": ["x"],
    }  # fmt: skip
    series = series_of(summary, {b"n": {"node_cpu_utilization": 30.0}, b"m": {"node_cpu_utilization": 50.0}})
    assert series["cpu_percent"] == 40.0
    assert (series["cpus_used"], series["cpus_total"], series["silent"]) == (3.0, 4.0, 1)
