"""The count of requests and of the time until their answers, by method."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

import pytest

from minray.common.clock import Clock
from minray.platform.base import Buffer, Incoming, PlatformError, RemoteFailure
from minray.rpc import request_meter
from minray.rpc.request_meter import BOUNDARIES_MS, RequestMeter
from tests.rpc.fake_network import FakeIncoming

Answer = tuple[PlatformError | None, bytes]
Figures = dict[tuple[str, str, str], float]


def message(method: str, answers: list[Answer] | None = None) -> FakeIncoming:
    """A message whose answers go to a list."""

    def on_reply(error: PlatformError | None, payload: bytes, buffers: Sequence[Buffer]) -> None:
        if answers is not None:
            answers.append((error, payload))

    return FakeIncoming(method, b"", (), b"peer", on_reply)


def figures(meter: RequestMeter) -> Figures:
    """Values by name, method and bucket."""
    found = {}
    for value in meter.values():
        name = value.name.removeprefix("grpc_server_req_") + value.suffix
        found[name, value.labels["Method"], value.labels.get("le", "")] = value.value
    return found


@pytest.fixture
def milliseconds(monkeypatch: pytest.MonkeyPatch) -> Callable[[list[float]], None]:
    """Sets the times that the clock tells."""

    def set_times(times: list[float]) -> None:
        told: Iterator[float] = iter(times)
        monkeypatch.setattr(Clock, "perf_counter_ns", staticmethod(lambda: int(next(told) * 1e6)))

    return set_times


def test_requests_are_counted_by_method_and_by_their_end(milliseconds: Any) -> None:
    milliseconds([0.0, 5.0, 5.0, 25.0, 30.0, 30.05, 40.0])
    waiting: list[Incoming] = []
    meter = RequestMeter()
    endings: list[Callable[[Incoming], object]] = [
        lambda incoming: incoming.reply(b"yes"),
        lambda incoming: incoming.fail(RemoteFailure("internal", "no")),
        lambda incoming: incoming.reply(b""),
        waiting.append,
    ]
    answers: list[Answer] = []
    for method, end in zip(["Ask", "Ask", "Tell", "Tell"], endings, strict=True):
        meter.counting(end)(message(method, answers))
    found = figures(meter)
    assert [found[f"{kind}_total", "Ask", ""] for kind in ("new", "handling", "finished")] == [2, 2, 2]
    assert [found[f"{kind}_total", "Ask", ""] for kind in ("succeeded", "failed")] == [1, 1]
    assert [found[f"{kind}_total", "Tell", ""] for kind in ("new", "finished")] == [2, 1]
    buckets = [found["process_time_ms_bucket", "Ask", str(boundary)] for boundary in BOUNDARIES_MS]
    assert buckets == [0, 0, 1, 2, 2, 2] and found["process_time_ms_bucket", "Ask", "+Inf"] == 2
    assert (found["process_time_ms_sum", "Ask", ""], found["process_time_ms_count", "Ask", ""]) == (25, 2)
    assert found["process_time_ms_bucket", "Tell", "0.1"] == 1
    assert [payload for _, payload in answers] == [b"yes", b"", b""] and isinstance(answers[1][0], RemoteFailure)


def test_a_second_answer_does_not_count() -> None:
    meter = RequestMeter()

    def answer_twice(incoming: Incoming) -> None:
        incoming.reply(b"")
        incoming.fail(RemoteFailure("internal", "a second answer"))

    meter.counting(answer_twice)(message("Ask"))
    assert figures(meter)["finished_total", "Ask", ""] == figures(meter)["succeeded_total", "Ask", ""] == 1


def test_peers_cannot_fill_the_memory_with_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_meter, "MOST_METHODS", 3)
    meter, numbers = RequestMeter(), count()
    for _ in range(10):
        meter.counting(lambda incoming: None)(message(f"Guess{next(numbers)}"))
    found = {method: value for (name, method, _), value in figures(meter).items() if name == "new_total"}
    assert found == {"Guess0": 1, "Guess1": 1, "Guess2": 1, "": 7}
