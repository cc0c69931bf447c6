"""A run is told as a conversation: what was asked for, and all faults, one line an event."""

from __future__ import annotations

import time

import minray
from minray.simulation import SimCluster

CRASH = ("crash", "worker/8d7ee3af", "user_code", 2)


def program() -> None:
    @minray.remote
    def work() -> None:
        print("work " + "x" * 100)
        time.sleep(1)

    minray.get(work.remote())


def told(*words: str) -> list[str]:
    with SimCluster(nodes=1, seed=1, overrides={CRASH: 1}, show_output=False) as cluster:
        cluster.run(program)
        return cluster.trace.conversation(*words).splitlines()


def test_messages_and_their_answers_are_told_where_they_arrive() -> None:
    asked, *_, answered = told("PushTask")
    assert asked.endswith("worker/8d7ee3af  PushTask <- driver/0")
    assert "driver/0         PushTask reply <- worker/" in answered


def test_faults_are_always_told() -> None:
    assert [line.split(maxsplit=1)[1] for line in told()] == ["worker/8d7ee3af  !! crash before step 2 of user_code"]


def test_states_lives_and_what_workers_print_are_told_if_asked_for() -> None:
    assert any(line.endswith("new -> PENDING_ARGS_AVAIL") for line in told("task"))
    assert "worker/8d7ee3af  ends" in "\n".join(told("life"))
    begin, *_ = told("output")
    assert begin.endswith("xxx ...") and "worker/8d7ee3af  stdout work" in begin
