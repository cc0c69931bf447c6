"""Which leases may run, by their arguments: what is here, what is pinned, and how much memory that may take (G86)."""

from __future__ import annotations

import pytest

from minray.raylet.lease_dependency_manager import LeaseDependencyManager

LIMIT = 70


class Scene:
    """A manager, and the sizes of what is on its node."""

    def __init__(self, **here: int) -> None:
        """Names and sizes."""
        self.here = {name.encode(): size for name, size in here.items()}
        self.lacking: list[bytes] = []
        """Leases for which there are no resources."""
        self.manager = LeaseDependencyManager(LIMIT, self.here.__contains__, lambda lease: lease not in self.lacking)

    def add(self, lease: str, *names: str, depth: int = 0) -> None:
        self.manager.add_lease(lease.encode(), {name.encode(): self.here.get(name.encode(), 1) for name in names}, depth)

    def want(self, **leases: int) -> None:
        """Leases with one argument each, which has the lease's name and this size, and is not here."""
        for lease, size in leases.items():
            self.manager.add_lease(lease.encode(), {lease.encode(): size}, 0)
            self.manager.want(lease.encode())

    def begin(self) -> str:
        return b"".join(self.manager.begin_pulls()).decode()

    def run(self, *leases: str) -> str:
        """Give resources to those of these that may run, in this order, and return them."""
        ran = ""
        for lease in leases:
            if self.manager.may_run(lease.encode()):
                self.manager.on_allocated(lease.encode())
                ran += lease
        return ran

    def end(self, lease: str) -> None:
        self.manager.end_lease(lease.encode())

    def block(self, lease: str, is_blocked: bool = True) -> None:
        self.manager.set_blocked(lease.encode(), is_blocked)


def test_g86_arguments_of_running_leases_take_a_part_of_the_store() -> None:
    scene = Scene(a=30, b=40, c=1)
    for lease, name in zip("ABC", "abc", strict=True):
        scene.add(lease, name)
    assert scene.run("A", "B", "C") == "AB"
    assert scene.manager.pinned_bytes == LIMIT
    scene.end("A")
    assert scene.run("C") == "C" and scene.manager.pinned_bytes == 41
    scene.end("B")
    scene.end("C")
    assert scene.manager.pinned_bytes == 0 and not len(scene.manager)


def test_g86_what_nobody_uses_any_more_counts_again_when_it_is_used_again() -> None:
    scene = Scene(a=70, b=1)
    for lease, name in zip("ABC", "aab", strict=True):
        scene.add(lease, name)
    assert scene.run("A") == "A"
    scene.end("A")
    assert scene.run("B", "C") == "B" and scene.manager.pinned_bytes == 70


def test_g86_one_lease_may_always_run() -> None:
    scene = Scene(a=100, b=100)
    scene.add("A", "a")
    scene.add("B", "b")
    assert scene.run("A", "B") == "A"
    scene.end("A")
    assert scene.run("B") == "B"


def test_g86_when_all_that_run_are_blocked_one_more_may_run() -> None:
    """The blocked ones may wait for it."""
    scene = Scene(a=60, b=60, c=60)
    for lease, name in zip("ABC", "abc", strict=True):
        scene.add(lease, name)
    assert scene.run("A", "B") == "A"
    scene.block("A")
    assert scene.run("B", "C") == "B"
    scene.block("B")
    scene.block("A", False)
    assert scene.run("C") == ""
    scene.end("A")
    assert scene.run("C") == "C"


def test_g86_children_run_before_other_parents() -> None:
    """Two parents take more memory than there is, and none would be left for their children."""
    scene = Scene(a=40, b=40, c=40)
    for lease, name in zip("ABC", "abc", strict=True):
        scene.add(lease, name, depth=int(lease == "C"))
    assert scene.run("A", "B") == "A"
    scene.block("A")
    assert scene.run("B", "C") == "C"
    scene.block("C")
    assert scene.run("B") == "B"


def test_g86_nobody_keeps_back_for_children_without_resources() -> None:
    """A may hold what C needs, and wait for B."""
    scene = Scene(a=60, b=60, c=60)
    for depth, (lease, name) in enumerate(zip("ABC", "abc", strict=True)):
        scene.add(lease, name, depth=depth)
    assert scene.run("A") == "A"
    scene.block("A")
    assert scene.run("B") == ""
    scene.lacking.append(b"C")
    assert scene.run("B") == "B"


def test_g86_others_keep_back_for_children_that_are_fetched_for() -> None:
    scene = Scene(a=60, b=60)
    for depth, (lease, name) in enumerate(zip("ABC", "abc", strict=True)):
        scene.add(lease, name, depth=depth)
    assert scene.run("A", "C") == "A"
    scene.manager.want(b"C")
    scene.block("A")
    assert scene.begin() == "C" and scene.run("B") == ""
    scene.here[b"c"] = 60
    assert scene.run("B", "C") == "C"


def test_g86_what_is_fetched_for_children_without_resources_keeps_nobody_from_being_fetched_for() -> None:
    scene = Scene()
    for lease, depth in ("A", 2), ("B", 1), ("C", 0):
        scene.manager.add_lease(lease.encode(), {lease.encode(): 60}, depth)
        scene.manager.want(lease.encode())
    scene.lacking += [b"A", b"C"]
    assert scene.begin() == "AB", "C has none either"


def test_an_object_of_several_leases_counts_once() -> None:
    scene = Scene(a=70, b=1)
    for lease in "ABC":
        scene.add(lease, "a")
    scene.add("D", "a", "b")
    assert scene.run("A", "B", "C", "D") == "ABC"
    assert scene.manager.pinned_bytes == 70
    scene.end("A")
    scene.end("B")
    assert scene.manager.pinned_bytes == 70
    scene.end("C")
    assert scene.manager.pinned_bytes == 0 and scene.run("D") == "D"


@pytest.mark.parametrize("first", "AB")
def test_what_leases_give_different_sizes_counts_as_the_first_says(first: str) -> None:
    scene = Scene(a=10)
    scene.add("A", "a")
    scene.here[b"a"] = 30
    scene.add("B", "a")
    last = {"A": "B", "B": "A"}[first]
    assert scene.run(first, last) == first + last
    counted_bytes = scene.manager.pinned_bytes
    scene.end(first)
    assert scene.manager.pinned_bytes == counted_bytes == {"A": 10, "B": 30}[first]
    scene.end(last)
    assert scene.manager.pinned_bytes == 0


def test_what_is_not_here_must_be_fetched_first() -> None:
    scene = Scene(a=1)
    scene.add("A", "a", "b")
    assert scene.run("A") == "" and scene.manager.take_missing() == [b"A"] and scene.manager.take_missing() == []
    scene.here[b"b"] = 1
    assert scene.run("A") == "A" and scene.manager.take_missing() == []


def test_a_lease_that_has_ended_misses_nothing() -> None:
    scene = Scene()
    scene.add("A", "a")
    assert scene.run("A") == ""
    scene.end("A")
    assert scene.manager.take_missing() == []


def test_what_is_fetched_keeps_within_the_limit_too() -> None:
    scene = Scene(a=30)
    scene.add("A", "a")
    assert scene.run("A") == "A"
    scene.want(B=40, C=1, D=50)
    assert scene.begin() == "B"
    assert scene.begin() == ""
    scene.end("A")
    assert scene.begin() == "C"
    scene.end("B")
    assert scene.begin() == "D"


def test_what_is_ahead_counts_until_it_runs_or_is_late() -> None:
    scene = Scene()
    scene.want(A=40, B=40, C=40)
    assert scene.begin() == "A"
    scene.here[b"A"] = 40
    assert scene.begin() == "" and scene.run("A") == "A" and scene.begin() == ""
    scene.end("A")
    assert scene.begin() == "B"
    scene.manager.on_late(b"B")
    assert scene.begin() == "C"
    scene.manager.on_late(b"A")


def test_one_is_always_fetched() -> None:
    scene = Scene()
    scene.want(A=1000, B=1)
    assert scene.begin() == "A"
    scene.manager.end_lease(b"A")
    assert scene.begin() == "B"


def test_what_will_never_come_is_excused() -> None:
    scene = Scene(a=1)
    scene.add("A", "a", "b")
    scene.manager.excuse(b"A", b"b")
    assert scene.run("A") == "A" and scene.manager.pinned_bytes == 1
    scene.end("A")
    assert scene.manager.pinned_bytes == 0


def test_leases_without_large_arguments_are_nothing_to_it() -> None:
    scene = Scene()
    scene.block("A")
    scene.end("A")
    assert scene.manager.needed(b"A") == [] and not len(scene.manager)


def test_a_lease_whose_argument_has_gone_again_does_not_stand_in_its_own_way() -> None:
    scene = Scene()
    scene.want(A=50)
    assert scene.begin() == "A"
    scene.manager.want(b"A")
    assert scene.begin() == "A"


def test_g86_what_runs_and_is_blocked_keeps_nobody_back() -> None:
    """The blocked one may wait for the one that is to be fetched now."""
    scene = Scene()
    scene.want(A=60)
    assert scene.begin() == "A"
    scene.here[b"A"] = 60
    assert scene.run("A") == "A"
    scene.block("A")
    scene.want(B=60)
    assert scene.begin() == "B"


def test_g86_a_lease_that_ends_while_it_is_blocked_leaves_nothing_behind() -> None:
    scene = Scene(a=100, b=100)
    scene.add("A", "a")
    assert scene.run("A") == "A"
    scene.block("A")
    scene.end("A")
    scene.add("B", "b")
    assert scene.run("B") == "B"


def test_a_lease_that_ends_before_its_turn_is_not_fetched_for() -> None:
    scene = Scene()
    scene.want(A=60, B=60)
    assert scene.begin() == "A"
    scene.end("B")
    scene.end("A")
    assert scene.begin() == "" and not len(scene.manager)


def test_g86_what_several_leases_wait_for_counts_once_while_it_is_fetched() -> None:
    scene = Scene()
    for lease, sizes in ("A", {b"shared": 40}), ("B", {b"shared": 40, b"b": 20}), ("C", {b"c": 20}), ("D", {b"d": 10}):
        scene.manager.add_lease(lease.encode(), sizes, 0)
        scene.manager.want(lease.encode())
    assert scene.begin() == "ABD", "60 bytes and 10 more are the limit"
    scene.here |= {b"shared": 40, b"b": 20}
    assert scene.run("A", "B") == "AB" and scene.begin() == ""
    scene.end("A")
    assert scene.begin() == "", "B still has what they share"
    scene.end("B")
    assert scene.begin() == "C"
