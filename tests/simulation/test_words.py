"""The words of ``roles``: each does what it says, to the role it names, at the moment it names."""

from __future__ import annotations

import time
from typing import Any

import pytest

import minray
from minray.simulation.trace import FAULT
from tests.simulation.judge import judged, outcome_of, printed
from tests.simulation.roles import Cluster, kept


@minray.remote(max_retries=0)
def work(seconds: float) -> str:
    print("work")
    time.sleep(seconds)
    return "done"


def run_one(sentence: Any, seconds: float = 5.0, **options: Any) -> tuple[str, Cluster]:
    return judged(lambda: str(outcome_of(work.remote(seconds))), sentence, **options)


@pytest.mark.parametrize(
    ("sentence", "outcome"),
    [
        (lambda cluster: cluster.after(1).worker_of("work").kill(), "WorkerCrashedError"),
        (lambda cluster: cluster.when("PushTask reply").of("worker").kill(), "WorkerCrashedError"),
        (lambda cluster: cluster.when("PushTask reply").of("driver").kill(), "done"),
        (lambda cluster: cluster.when("PushTask").then.later(1).worker_of("work").kill(), "WorkerCrashedError"),
        (lambda cluster: cluster.when("PushTask").to("raylet").then.worker_of("work").kill(), "done"),
        (lambda cluster: cluster.when("PushTask reply").then.sender.kill(), "WorkerCrashedError"),
        (lambda cluster: cluster.when("PushTask reply").number(2).sender.kill(), "done"),
        (lambda cluster: cluster.when("PushTask").lose_with_channel(), "done"),
        (lambda cluster: cluster.until_leased("head").wait(1).worker_of("work").kill(), "WorkerCrashedError"),
    ],
)
def test_a_sentence_strikes_its_role_at_its_moment(sentence: Any, outcome: str) -> None:
    assert run_one(sentence, nodes=1)[0] == outcome


def test_two_sentences_about_one_message_are_both_obeyed() -> None:
    seen: list[str] = []

    def strike(cluster: Cluster) -> None:
        cluster.when("PushTask").delay(20)
        cluster.when("PushTask").note(seen)

    def body() -> float:
        began = time.monotonic()
        minray.get(work.remote(1))
        return time.monotonic() - began

    assert judged(body, strike, nodes=1)[0] > 20 and seen == ["PushTask"]


def test_a_body_tells_when_to_strike() -> None:
    def body() -> str:
        ref = work.remote(10)
        time.sleep(2)
        kept["go"] = True
        return str(outcome_of(ref))

    assert judged(body, lambda cluster: cluster.told("go").worker_of("work").kill(), nodes=1)[0] == "WorkerCrashedError"
    assert "go" not in kept


def test_an_isolated_node_is_cut_from_all_others() -> None:
    _, cluster = run_one(lambda cluster: cluster.after(1).node("n2").isolate(1), nodes=3)
    cuts = [event.details for event in cluster.trace.events if event.kind == FAULT and event.process == "wire"]
    assert cuts == [("cut", "n2", "head"), ("cut", "n2", "n1")] and printed(cluster) == ["work"]


def test_a_switch_that_no_node_has_is_a_mistake_of_the_test() -> None:
    with pytest.raises(AssertionError, match="a simulated node has no disk_flat"):
        run_one(lambda cluster: cluster.node("head").set(disk_flat=True))
