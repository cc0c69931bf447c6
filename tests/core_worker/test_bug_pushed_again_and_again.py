"""Quick tasks used to be sent to the first worker all at once, and then back and forth between it and an idle one.

A thousand tasks cost up to five thousand pushes on a busy machine. Now a worker is sent a bounded number of them, and
what is queued there is asked back only if it does not answer for a while (but then also when no other worker is idle).
"""

from __future__ import annotations

from tests.core_worker.parts import prepare
from tests.core_worker.test_normal_task_submitter import Scene


def test_a_worker_is_not_sent_more_than_it_can_do_in_a_while() -> None:
    scene = Scene()
    scene.submit(prepare(mean_us=0.0), count=1000)
    assert len(scene.grant().in_flight) == len(scene.grant().in_flight) == 200


def test_tasks_are_left_with_a_worker_that_answers() -> None:
    scene = Scene()
    scene.submit(prepare("slow"), count=2)
    busy, idle = scene.grant(), scene.grant()
    scene.submit(prepare(mean_us=100.0), count=40)
    scene.finish(busy)
    scene.finish(idle)
    assert [len(busy.in_flight), len(idle.in_flight)] == [40, 0]
    for _ in range(20):
        scene.wait(0.004)
        scene.finish(busy)
    assert scene.asked.reclaimed == [] and scene.returned() == []
    scene.wait(0.02)
    assert scene.asked.reclaimed == [busy]


def test_tasks_behind_a_stuck_one_are_fetched_although_no_worker_is_idle() -> None:
    scene = Scene()
    scene.submit(prepare(mean_us=100.0), count=10)
    stuck = scene.grant()
    assert len(stuck.in_flight) == 10
    scene.wait(0.05)
    assert scene.asked.reclaimed == []
    scene.wait(0.1)
    assert scene.asked.reclaimed == [stuck]
    behind = scene.give_back(stuck)
    assert list(scene.grant().in_flight.values()) == behind
