"""Where the copies of an owner's objects are: G59, G66, and news that come late or from the dead."""

from __future__ import annotations

from typing import Any

import pytest

from minray.common.bounds import BOUNDS
from minray.core_worker.ownership.object_directory import ObjectDirectory
from minray.protocol.base import DONE, Address
from minray.protocol.core_worker import KNOWN, LOST, LocationChange
from minray.protocol.object_store import Copy, FreeObjects, Place, PromoteObjects
from minray.rpc.patient_caller import PatientCaller
from tests.core_worker.parts import address, object_id
from tests.core_worker.peers import RecordingPeers

A, B = object_id("a"), object_id("b")


def raylet(name: str) -> Address:
    there = address(name)
    return Address(there.node_id, there.node_id, there.endpoint)


ONE, TWO, THREE, FOUR = map(raylet, ("one", "two", "three", "four"))


class Scene:
    """A directory, what it tells raylets, and what it has lost."""

    def __init__(self, *names: bytes) -> None:
        """The first copies of these objects are on node one, and are attempt 1."""
        self.peers = RecordingPeers()
        peers: Any = self.peers
        self.lost: list[bytes] = []
        self.updates = 0
        self.directory = ObjectDirectory(PatientCaller(peers, peers.local), self.lost.extend, BOUNDS.max_items_per_batch)
        for name in names:
            self.directory.add_location(name, Place(1, 1000, ONE))

    def hears(self, there: Address, is_here: bool = True, key: bytes = A, attempt: int = 1) -> None:
        self.updates += 1
        self.directory.on_update(there, self.updates, [LocationChange(key, attempt, is_here)])

    def places(self, key: bytes = A) -> list[Address]:
        known = self.directory.locations(key)
        assert known.status == (KNOWN if known.raylets else LOST)
        return known.raylets

    def told(self) -> list[tuple[str, Address | None, list[Copy]]]:
        """All that was said since the last look, in order; every message is answered."""
        words = {FreeObjects: "free", PromoteObjects: "promote"}
        said = []
        while self.peers.asked:
            asked = self.peers.asked.pop(0)
            said.append((words[type(asked.request)], asked.address, asked.request.copies))
            asked.answer(DONE)
        return said


def test_the_first_copy_comes_first_and_others_in_the_order_of_their_news() -> None:
    scene = Scene(A)
    for there in (THREE, TWO, THREE, ONE):
        scene.hears(there)
    assert scene.places() == [ONE, THREE, TWO]
    known = scene.directory.locations(A)
    assert (known.attempt, known.size) == (1, 1000)
    assert scene.told() == []


def test_g59_all_nodes_that_have_a_copy_hear_that_it_is_freed() -> None:
    scene = Scene(A, B)
    scene.hears(TWO)
    scene.directory.free([A])
    assert scene.told() == [("free", ONE, [Copy(A, 1)]), ("free", TWO, [Copy(A, 1)])]
    assert scene.places() == [] and scene.places(B) == [ONE] and len(scene.directory) == 1
    scene.directory.free([A])
    assert scene.told() == []


def test_g59_frees_for_one_node_share_a_message() -> None:
    names = [object_id(str(number)) for number in range(100)]
    scene = Scene(*names)
    for name in names:
        scene.directory.free([name])
    groups = [copies for _, _, copies in scene.told()]
    assert len(groups) == 2 and [copy.object_id for group in groups for copy in group] == names


def test_g59_a_node_that_tells_of_a_copy_too_late_hears_that_it_is_not_needed() -> None:
    scene = Scene(A)
    scene.directory.free([A])
    scene.told()
    scene.hears(TWO)
    assert scene.told() == [("free", TWO, [Copy(A, 1)])]
    scene.hears(TWO, is_here=False)
    assert scene.told() == [] and len(scene.directory) == 0


@pytest.mark.parametrize("attempt", [0, 2])
def test_copies_of_other_attempts_are_neither_known_nor_missed(attempt: int) -> None:
    scene = Scene(A)
    scene.hears(TWO, attempt=attempt)
    assert scene.places() == [ONE] and scene.told() == [("free", TWO, [Copy(A, attempt)])]
    scene.hears(ONE, is_here=False, attempt=attempt)
    assert scene.places() == [ONE] and scene.lost == []


def test_an_evicted_copy_is_not_offered() -> None:
    scene = Scene(A)
    scene.hears(TWO)
    scene.hears(TWO, is_here=False)
    assert scene.places() == [ONE] and scene.told() == [] and scene.lost == []


@pytest.mark.parametrize("dies", [True, False])
def test_g66_another_copy_takes_the_place_of_the_first_one(dies: bool) -> None:
    scene = Scene(A, B)
    scene.hears(TWO)
    scene.hears(THREE)
    if dies:
        scene.directory.on_node_death(ONE.node_id)
    else:
        scene.hears(ONE, is_here=False)
    assert scene.told() == [("promote", TWO, [Copy(A, 1)])]
    assert scene.places() == [TWO, THREE] and scene.lost == ([B] if dies else [])
    scene.directory.on_node_death(TWO.node_id)
    assert scene.told() == [("promote", THREE, [Copy(A, 1)])]
    scene.directory.on_node_death(THREE.node_id)
    assert scene.told() == [] and A in scene.lost and len(scene.directory) == (0 if dies else 1)


def test_g112_news_that_arrive_once_more_after_later_ones_change_nothing() -> None:
    scene = Scene(A)
    scene.hears(TWO)
    scene.hears(TWO, is_here=False)
    scene.hears(TWO)
    scene.directory.on_update(TWO, 2, [LocationChange(A, 1, False)])
    assert scene.places() == [ONE, TWO]
    scene.directory.free([A])
    assert [to for _, to, _ in scene.told()] == [ONE, TWO]


def test_g66_no_copy_is_promoted_when_one_of_the_others_goes() -> None:
    scene = Scene(A)
    scene.hears(TWO)
    scene.directory.on_node_death(TWO.node_id)
    scene.hears(THREE)
    scene.hears(THREE, is_here=False)
    assert scene.told() == [] and scene.places() == [ONE]


def test_an_object_without_copies_is_lost_once() -> None:
    scene = Scene(A)
    for _ in range(2):
        scene.hears(ONE, is_here=False)
        scene.directory.on_node_death(ONE.node_id)
    assert scene.lost == [A] and scene.places() == [] and len(scene.directory) == 0
    scene.directory.free([A])
    assert scene.told() == []


def test_the_dead_tell_nothing_and_are_told_nothing() -> None:
    scene = Scene(A)
    scene.directory.on_node_death(TWO.node_id)
    scene.hears(TWO)
    assert scene.places() == [ONE]
    scene.directory.on_node_death(ONE.node_id)
    scene.hears(ONE)
    assert scene.places() == [] and scene.told() == [] and scene.lost == [A]


def test_a_result_from_a_node_that_is_dead_already_is_lost() -> None:
    scene = Scene()
    scene.directory.on_node_death(ONE.node_id)
    scene.directory.add_location(A, Place(1, 1000, ONE))
    assert scene.lost == [A] and scene.places() == [] and len(scene.directory) == 0


def test_what_an_attempt_has_made_is_taken_back_where_it_ran() -> None:
    scene = Scene(A)
    scene.directory.discard_copies([A, B], 0, TWO)
    scene.directory.discard_copies([], 0, TWO)
    assert scene.told() == [("free", TWO, [Copy(A, 0), Copy(B, 0)])] and scene.places() == [ONE]
    scene.directory.on_node_death(TWO.node_id)
    scene.directory.discard_copies([A], 0, TWO)
    assert scene.told() == []


def test_g67_what_is_lost_together_is_told_together_after_all_of_it_is_forgotten() -> None:
    """A callback about one lost object looks at others, too. None of them may seem to be on the dead node."""
    scene = Scene(A, B)
    seen: list[tuple[list[bytes], int]] = []
    scene.directory._on_lost = lambda lost: seen.append((lost, len(scene.directory)))
    scene.directory.on_node_death(ONE.node_id)
    assert seen == [([A, B], 0)]


def test_g59_a_free_does_not_hurt_what_a_later_attempt_will_make_there() -> None:
    scene = Scene(A)
    scene.directory.free([A])
    assert scene.told() == [("free", ONE, [Copy(A, 1)])]
    scene.directory.add_location(A, Place(2, 1000, ONE))
    scene.hears(TWO, attempt=1)
    assert scene.places() == [ONE] and scene.told() == [("free", TWO, [Copy(A, 1)])]


# --- those that are receiving a copy


def asks(scene: Scene, receiver: Address, number: int = 1) -> tuple[list[Address], int]:
    """Which receivers before it are named to one that asks, and its turn."""
    known = scene.directory.locations(A, receiver, number)
    return known.receivers, known.turn


def test_receivers_have_their_turns_and_are_told_of_those_before_them() -> None:
    scene = Scene(A)
    assert [asks(scene, there) for there in (TWO, THREE, TWO)] == [([], 1), ([TWO], 2), ([], 1)]
    assert scene.directory.locations(A).receivers == []


def test_who_has_its_copy_is_not_receiving_any_more() -> None:
    scene = Scene(A)
    asks(scene, TWO)
    scene.hears(TWO)
    assert asks(scene, THREE) == ([], 2) and scene.places() == [ONE, TWO]


@pytest.mark.parametrize("gives_up", [True, False])
def test_who_gives_up_or_dies_is_not_receiving_any_more(gives_up: bool) -> None:
    scene = Scene(A)
    asks(scene, TWO)
    if gives_up:
        scene.hears(TWO, is_here=False)
    else:
        scene.directory.on_node_death(TWO.node_id)
    assert asks(scene, THREE) == ([], 2)


def test_a_late_question_of_one_that_is_through_or_dead_makes_it_no_receiver() -> None:
    scene = Scene(A)
    scene.directory.on_update(TWO, 1, [LocationChange(A, 1, False, number=5)])
    scene.directory.on_node_death(THREE.node_id)
    late, dead, new = asks(scene, TWO, 5), asks(scene, THREE, 1), asks(scene, TWO, 6)
    assert [late, dead, new] == [([], 1), ([], 2), ([], 3)]
    assert asks(scene, FOUR) == ([TWO], 4)


def test_g112_a_question_answered_while_there_was_no_copy_makes_no_receiver_when_it_comes_again() -> None:
    scene = Scene(A)
    scene.hears(ONE, is_here=False)
    assert scene.directory.locations(A, TWO, 7).status == LOST
    scene.directory.add_location(A, Place(2, 1000, ONE))
    assert scene.directory.locations(A, TWO, 7).turn
    assert not scene.directory.locations(A, THREE, 1).receivers
    assert scene.directory.locations(A, TWO, 8).turn
    assert scene.directory.locations(A, FOUR, 1).receivers == [THREE, TWO]


def test_what_is_known_of_questions_goes_with_the_object() -> None:
    scene = Scene()
    assert scene.directory.locations(A, TWO, 7).status == LOST
    assert list(scene.directory._over) == [A]
    scene.directory.free([A])
    assert not scene.directory._over


def test_while_somebody_receives_it_an_object_is_not_lost() -> None:
    scene = Scene(A)
    asks(scene, TWO)
    scene.directory.on_node_death(ONE.node_id)
    assert scene.lost == []
    scene.directory.on_node_death(TWO.node_id)
    assert scene.lost == [A]
