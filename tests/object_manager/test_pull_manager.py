"""Bundles begin whole, in the order of what they are for, within the memory that there is; one always does (G87)."""

from __future__ import annotations

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from minray.object_manager.pull_manager import PullManager
from minray.object_store.question import Order
from minray.protocol.object_store import GET, TASK_ARGUMENTS, WAIT

NUMBERS = iter(range(1_000_000))


class Node:
    """A pull manager on a node with some memory, and which pulls have begun."""

    def __init__(self, capacity: int = 100) -> None:
        self.free = capacity
        self.pulls = PullManager(lambda size: size <= self.free)
        self.begun: list[str] = []

    def want(self, purpose: int, **sizes: int | None) -> None:
        """A bundle of objects by name, with the sizes that their owners tell at once (None: later)."""
        order = Order(purpose, next(NUMBERS))
        for name in sizes:
            self.pulls.want(name.encode(), order)
        for name, size in sizes.items():
            if size is not None:
                self.tell(name, size)

    def tell(self, name: str, size: int) -> None:
        self.pulls.request(name.encode(), size, lambda: self.begun.append(name))

    def give_room(self, name: str, size: int) -> None:
        self.free -= size
        self.pulls.on_room(name.encode())

    def end(self, name: str, frees: int = 0) -> None:
        """End a fetch: the object is here, and no reader keeps it."""
        self.free += frees
        self.pulls.on_end(name.encode())


@pytest.fixture
def node() -> Node:
    return Node()


def test_g87_what_fits_begins_at_once(node: Node) -> None:
    node.want(TASK_ARGUMENTS, a=30, b=30)
    node.want(TASK_ARGUMENTS, c=40)
    assert node.begun == ["a", "b", "c"]


def test_g87_a_bundle_begins_whole_or_not_at_all(node: Node) -> None:
    node.want(GET, a=60)
    node.want(GET, b=30, c=30)
    assert node.begun == ["a"]
    node.end("a")
    assert node.begun == ["a", "b", "c"]


def test_g87_nothing_of_a_bundle_begins_before_all_sizes_are_known(node: Node) -> None:
    node.want(GET, a=10, b=None)
    assert node.begun == []
    node.want(TASK_ARGUMENTS, c=10)
    node.tell("b", 10)
    assert node.begun == ["c", "a", "b"]


def test_g87_an_object_that_cannot_come_does_not_hold_up_its_bundle(node: Node) -> None:
    node.want(GET, a=10, b=None)
    node.end("b")
    assert node.begun == ["a"]


def test_g87_get_goes_before_wait_and_wait_before_arguments(node: Node) -> None:
    node.want(TASK_ARGUMENTS, first=100)
    node.want(TASK_ARGUMENTS, argument=60)
    node.want(WAIT, waited=60)
    node.want(GET, gotten=60)
    for name in ("first", "gotten", "waited", "argument"):
        assert node.begun[-1] == name
        node.end(name)


def test_g87_one_bundle_is_always_under_way(node: Node) -> None:
    node.free = 0
    node.want(TASK_ARGUMENTS, huge=500)
    node.want(GET, small=1)
    assert node.begun == ["huge"]
    node.end("huge")
    assert node.begun == ["huge", "small"]


def test_g87_bytes_with_memory_are_not_counted_twice(node: Node) -> None:
    node.want(GET, a=60)
    node.give_room("a", 60)
    node.want(GET, b=40)
    assert node.begun == ["a", "b"]


def test_g87_an_object_of_two_bundles_begins_with_the_first_of_them(node: Node) -> None:
    node.want(GET, a=90)
    node.want(TASK_ARGUMENTS, shared=20, b=70)
    assert node.begun == ["a"]
    order = Order(GET, next(NUMBERS))
    node.pulls.want(b"shared", order)
    assert node.begun == ["a"]
    node.end("a")
    assert node.begun == ["a", "shared", "b"]


def test_g87_what_shares_an_object_with_a_bundle_that_has_begun_does_not_wait_until_it_is_here(node: Node) -> None:
    """The last size that the second bundle waits for is that of an object which begins through the first one."""
    node.want(GET, a=50, shared=10)
    node.pulls.stall(b"shared")
    node.want(TASK_ARGUMENTS, shared=None, b=40)
    node.want(TASK_ARGUMENTS, c=30)
    assert node.begun == ["a", "shared", "c"]
    node.pulls.on_end(b"c")
    node.tell("shared", 10)
    assert node.begun == ["a", "shared", "c", "shared", "b"]


def test_g87_a_bundle_of_what_others_wait_for_is_not_held_up_by_its_own_beginning(node: Node) -> None:
    node.want(GET, a=90)
    node.want(GET, b=150)
    order = Order(GET, next(NUMBERS))
    node.pulls.want(b"a", order)
    node.pulls.want(b"b", order)
    node.end("a")
    assert node.begun == ["a", "b"]


def test_g87_a_fetch_that_asks_again_for_room_keeps_its_turn(node: Node) -> None:
    node.want(GET, a=60)
    node.give_room("a", 60)
    node.free += 60
    node.tell("a", 80)
    assert node.begun == ["a", "a"]
    node.want(GET, b=30)
    assert node.begun == ["a", "a"]
    node.end("a")
    assert node.begun == ["a", "a", "b"]


def test_g87_who_wants_what_waits_sees_that_memory_has_become_free(node: Node) -> None:
    node.want(GET, a=90)
    node.want(GET, b=50)
    node.free -= 90
    assert node.begun == ["a"]
    node.free += 90
    node.pulls.on_room(b"a")
    node.pulls.want(b"b", Order(WAIT, next(NUMBERS)))
    assert node.begun == ["a", "b"]


class PullsMachine(RuleBasedStateMachine):
    """Any bundles over a few objects: what has begun fits or is alone, what waits may not begin, and nothing is left."""

    def __init__(self) -> None:
        super().__init__()
        self.node = Node()
        self.sizes: dict[str, int] = {}
        """Sizes of objects whose owners have told them."""
        self.coming: dict[str, None] = {}
        """All that somebody wants."""
        self.rooms: dict[str, int] = {}
        self.asked: list[tuple[Order, str]] = []
        """Orders that may be given once more."""

    @rule(purpose=st.sampled_from([GET, WAIT, TASK_ARGUMENTS]), names=st.sets(st.sampled_from("abcdef"), min_size=1))
    def want(self, purpose: int, names: set[str]) -> None:
        order = Order(purpose, next(NUMBERS))
        for name in sorted(names):
            self.coming[name] = None
            self.asked.append((order, name))
            self.node.pulls.want(name.encode(), order)

    @precondition(lambda self: self.asked)
    @rule(data=st.data())
    def want_again(self, data: st.DataObject) -> None:
        order, name = data.draw(st.sampled_from(self.asked))
        self.node.pulls.want(name.encode(), order)

    @precondition(lambda self: self.coming)
    @rule(data=st.data())
    def stall(self, data: st.DataObject) -> None:
        """Stall a fetch: the object was lost, and is being made again."""
        name = data.draw(st.sampled_from(sorted(self.coming)))
        self.sizes.pop(name, None)
        self.node.begun[:] = [other for other in self.node.begun if other != name]
        self.node.free += self.rooms.pop(name, 0)
        self.node.pulls.stall(name.encode())

    @precondition(lambda self: set(self.coming) - set(self.sizes))
    @rule(data=st.data(), size=st.integers(1, 150))
    def tell(self, data: st.DataObject, size: int) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.coming) - set(self.sizes))))
        self.sizes[name] = size
        self.node.tell(name, size)

    @precondition(lambda self: set(self.node.begun) - set(self.rooms))
    @rule(data=st.data())
    def give_room(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(set(self.node.begun) - set(self.rooms))))
        self.rooms[name] = self.sizes[name]
        self.node.give_room(name, self.sizes[name])

    @precondition(lambda self: self.coming)
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.coming)))
        del self.coming[name]
        self.asked = [asked for asked in self.asked if asked[1] != name]
        self.sizes.pop(name, None)
        begun = self.node.begun
        begun[:] = [other for other in begun if other != name]
        self.node.end(name, self.rooms.pop(name, 0))

    @invariant()
    def nothing_begins_twice(self) -> None:
        assert len(set(self.node.begun)) == len(self.node.begun)

    @invariant()
    def one_is_under_way(self) -> None:
        if self.coming and set(self.coming) == set(self.sizes):
            assert self.node.begun

    @invariant()
    def counts_agree(self) -> None:
        due = [name for name in self.node.begun if name not in self.rooms]
        assert self.node.pulls.due_bytes == sum(self.sizes[name] for name in due)
        bundles = self.node.pulls._bundles.values()
        assert self.node.pulls._begun_count == sum(bundle.is_under_way() for bundle in bundles)
        assert all(0 <= bundle.unknown <= len(bundle.objects) for bundle in bundles)

    def teardown(self) -> None:
        for name in list(self.coming):
            self.node.end(name)
        assert not len(self.node.pulls) and not self.node.pulls._bundles
        assert self.node.pulls._begun_count == 0


TestPullsMachine = PullsMachine.TestCase


def test_g67_a_bundle_that_waits_for_something_to_be_made_again_keeps_nobody_waiting(node: Node) -> None:
    """Not even where there is no room: the other bundle may be what it takes to make it."""
    node.want(GET, a=60, b=30)
    node.give_room("a", 60)
    node.give_room("b", 30)
    node.end("b")
    node.want(TASK_ARGUMENTS, c=50)
    assert node.begun == ["a", "b"]
    node.pulls.stall(b"a")
    assert node.begun == ["a", "b", "c"]
    node.want(TASK_ARGUMENTS, d=50)
    assert node.begun == ["a", "b", "c"]
    node.end("c")
    assert node.begun == ["a", "b", "c", "d"]
    node.tell("a", 60)
    assert node.begun == ["a", "b", "c", "d", "a"]


def test_g67_who_wants_what_is_being_made_again_waits_until_its_size_is_told_again(node: Node) -> None:
    node.want(GET, a=10)
    node.pulls.stall(b"a")
    node.want(GET, a=None, b=10)
    assert node.begun == ["a"]
    node.pulls.stall(b"a")
    node.tell("a", 20)
    assert node.begun == ["a", "a", "b"], "there is room for both"
    node.end("a")
    node.end("b")
    assert len(node.pulls) == 0 and node.pulls._begun_count == 0
