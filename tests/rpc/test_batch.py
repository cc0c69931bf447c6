"""News in groups: nothing is lost, repeated or reordered, and one message at a time is on its way to each receiver."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.common.bounds import BOUNDS
from minray.platform.base import RemoteFailure
from minray.protocol.base import DONE, Address
from minray.protocol.object_store import ReleasePins
from minray.rpc.batch import Batch, Batches
from tests.core_worker.parts import address
from tests.core_worker.peers import RecordingPeers, unreachable

HERE, THERE = address("here"), address("there")


class Scene:
    """Batches, and all that they have sent."""

    def __init__(self) -> None:
        self.peers = RecordingPeers()
        self.batches: Batches[bytes] = Batches(self.send, ReleasePins)

    def send(self, to: Address, request: Any, on_answer: Callable[..., None]) -> None:
        self.peers.to(to).send(request, on_answer)

    def said(self) -> list[tuple[Address | None, list[bytes]]]:
        """Requests on their way: address and pins."""
        return [(asked.address, asked.request.pins) for asked in self.peers.asked]

    def answer(self) -> None:
        self.peers.asked.pop(0).answer(DONE)


def test_the_first_leaves_at_once_and_the_others_together() -> None:
    scene = Scene()
    for item in (b"1", b"2", b"3"):
        scene.batches.add(HERE, [item])
    assert scene.said() == [(HERE, [b"1"])]
    scene.answer()
    assert scene.said() == [(HERE, [b"2", b"3"])]
    scene.answer()
    assert scene.said() == [] and len(scene.batches) == 0
    scene.batches.add(HERE, [b"4"])
    assert scene.said() == [(HERE, [b"4"])]


def test_receivers_do_not_wait_for_each_other() -> None:
    scene = Scene()
    scene.batches.add(HERE, [b"1"])
    scene.batches.add(THERE, [b"2"])
    scene.batches.add(HERE, [b"3"])
    assert scene.said() == [(HERE, [b"1"]), (THERE, [b"2"])]
    assert len(scene.batches) == 2


def test_a_message_has_room_for_so_many() -> None:
    scene = Scene()
    items = [b"%d" % number for number in range(2 * BOUNDS.max_items_per_batch + 1)]
    scene.batches.add(HERE, items)
    said: list[bytes] = []
    while scene.peers.asked:
        ((_, group),) = scene.said()
        assert len(group) <= BOUNDS.max_items_per_batch
        said += group
        scene.answer()
    assert said == items


@pytest.mark.parametrize("error", [unreachable(), RemoteFailure("internal", "oops")])
def test_who_cannot_hear_is_forgotten_with_what_waits_for_it(error: Any) -> None:
    scene = Scene()
    scene.batches.add(HERE, [b"1"])
    scene.batches.add(HERE, [b"2"])
    scene.peers.asked.pop(0).fail(error)
    assert scene.said() == [] and len(scene.batches) == 0
    scene.batches.add(HERE, [b"3"])
    assert scene.said() == [(HERE, [b"3"])]


def test_nothing_to_say_is_not_said() -> None:
    scene = Scene()
    scene.batches.add(HERE, [])
    assert scene.said() == [] and len(scene.batches) == 0


def test_something_may_be_added_while_the_last_answer_is_heard() -> None:
    peers = RecordingPeers()
    added: list[bytes] = []

    def on_idle() -> None:
        if not added:
            added.append(b"more")
            batch.add(added)

    batch: Batch[bytes] = Batch(peers.local.send, ReleasePins, on_idle)
    batch.add([b"1"])
    peers.take().answer(DONE)
    asked = peers.take()
    assert asked.request.pins == [b"more"]
    asked.answer(DONE)
    assert peers.asked == []


@given(st.lists(st.tuples(st.sampled_from([HERE, THERE]), st.integers(0, 3)) | st.none(), max_size=40))
def test_everything_is_said_once_and_in_order(steps: list[tuple[Address, int] | None]) -> None:
    """None: the oldest message is answered."""
    scene = Scene()
    expected: dict[Address | None, list[bytes]] = {HERE: [], THERE: []}
    heard: dict[Address | None, list[bytes]] = {HERE: [], THERE: []}

    def answer() -> None:
        to, group = scene.said()[0]
        heard[to] += group
        scene.answer()

    for number, step in enumerate(steps):
        if step is not None:
            items = [b"%d.%d" % (number, index) for index in range(step[1])]
            scene.batches.add(step[0], items)
            expected[step[0]] += items
        elif scene.peers.asked:
            answer()
        receivers = [to for to, _ in scene.said()]
        assert len(receivers) == len(set(receivers)) == len(scene.batches)
    while scene.peers.asked:
        answer()
    assert heard == expected and len(scene.batches) == 0
