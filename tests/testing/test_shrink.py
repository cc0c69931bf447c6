"""The shrinker of faults, on failures that are functions of the faults."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from minray.simulation.faults import Key
from minray.testing.shrink import Answers, FaultShrinker, Shape, describe_fault, leave_out, shape


class Playing(FaultShrinker):
    """Shrinks a failure that a predicate over the keys decides."""

    def __init__(self, faults: Answers, fails: Callable[[set[Key]], bool], points: Iterable[Key] = ()) -> None:
        self._faults = faults
        self._fails = fails
        self._points = points
        self.tries: list[Answers] = []

    @property
    def faults(self) -> Answers:
        return self._faults

    def take_faults(self, faults: Answers) -> bool:
        self.tries.append(faults)
        is_failure = self._fails({key for key, _ in faults})
        if is_failure:
            self._faults = faults
        return is_failure

    def points_of(self, kinds: Iterable[str]) -> dict[Shape, list[Key]]:
        points: dict[Shape, list[Key]] = {}
        wanted = set(kinds)
        for key in self._points:
            if key[0] in wanted:
                points.setdefault(shape(key), []).append(key)
        return points

    def is_over(self) -> bool:
        return len(self.tries) > 1000


def quiet(count: int) -> Answers:
    return tuple((("delay", f"worker/{number}>gcs", "Poll", number), 1) for number in range(count))


CRASH: Key = ("crash", "worker/aa", "user_code", 3)
LOSS: Key = ("node_loss", "worker/bb", "user_code", 1)


def test_a_loud_fault_that_is_enough_is_found_at_once() -> None:
    shrinker = Playing((*quiet(300), (CRASH, 1), (LOSS, 1)), lambda keys: CRASH in keys)
    shrinker.shrink_faults()
    assert shrinker.faults == ((CRASH, 1),) and len(shrinker.tries) < 10


def test_two_faults_that_need_each_other_stay() -> None:
    late = quiet(300)[123]
    shrinker = Playing((*quiet(300), (CRASH, 1), (LOSS, 1)), lambda keys: {CRASH, late[0]} <= keys)
    shrinker.shrink_faults()
    assert set(shrinker.faults) == {late, (CRASH, 1)}


def test_a_crash_that_quiet_faults_have_shifted_is_tried_at_other_points() -> None:
    """Without the delays the third step never comes; the second one is the same place in the program."""
    there: Key = ("crash", "worker/aa", "user_code", 2)
    points = [("crash", "worker/aa", "user_code", number) for number in (1, 2)]
    shrinker = Playing((*quiet(300), (CRASH, 1)), lambda keys: there in keys or len(keys) == 301, points)
    shrinker.shrink_faults()
    assert shrinker.faults == ((there, 1),) and len(shrinker.tries) < 10


def test_many_quiet_faults_go_in_groups() -> None:
    needed = {key for key, _ in quiet(400)[100:103]}
    shrinker = Playing(quiet(400), lambda keys: needed <= keys)
    shrinker.shrink_faults()
    assert {key for key, _ in shrinker.faults} == needed and len(shrinker.tries) < 100


@pytest.mark.parametrize("faults", [(), quiet(1), quiet(7)])
def test_a_failure_without_need_of_faults_has_none(faults: Answers) -> None:
    shrinker = Playing(faults, lambda keys: True)
    shrinker.shrink_faults()
    assert shrinker.faults == ()


def test_equal_failures_are_shrunk_by_equal_tries() -> None:
    tries = []
    for _ in range(2):
        shrinker = Playing((*quiet(300), (CRASH, 1)), lambda keys: CRASH in keys and len(keys) > 3)
        shrinker.shrink_faults()
        tries.append(shrinker.tries)
    assert tries[0] == tries[1]


def test_a_coarse_pass_stops_before_single_items() -> None:
    sizes: list[int] = []

    def refuse(kept: list[int]) -> bool:
        sizes.append(160 - len(kept))
        return False

    leave_out(list(range(160)), refuse, coarse=True)
    assert min(sizes) == 10 and max(sizes) == 160


def test_a_fault_is_described_by_its_key() -> None:
    assert describe_fault(("crash", "worker/1f3c", "user_code", 2)) == "crash at worker/1f3c user_code 2"
