"""Arguments of leases: when a node fetches and pins them, and that no pin outlives its lease.

``Scene`` has a pretended store, in which objects come when the test says so (``answer``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from minray.object_store.question import Question
from minray.protocol.base import Address
from minray.protocol.object_store import NO_ROOM, NOT_HERE, PINNED, Pinned, Wanted
from minray.protocol.raylet import Dependency
from minray.raylet.lease_arguments import MOST_PATIENCE_S, PATIENCE_S, LeaseArguments
from tests.rpc.fake_network import pass_time, run, turns

OWNER = Address(b"owner", b"node", "sim:owner")
LIMIT = 100.0


class Scene:
    """See the head of this file; it is the store and its table too."""

    def __init__(self) -> None:
        self.table = self
        self.objects: set[bytes] = set()
        self.pins: list[bytes] = []
        self.questions: list[Question] = []
        self.here: list[bytes] = []
        """Leases whose arguments have come."""
        self.runs_at_once = False
        """Whether a lease is given resources as soon as its arguments have come."""
        self.advances = 0
        myself: Any = self
        self.arguments = LeaseArguments(lambda: myself, LIMIT, lambda lease_id: True, self.on_here, self.advance)

    def on_here(self, lease_id: bytes) -> None:
        self.here.append(lease_id)
        if self.runs_at_once:
            self.arguments.pin(lease_id)

    def advance(self) -> None:
        self.advances += 1
        self.arguments.begin_pulls()

    # --- the store

    def find(self, object_id: bytes) -> bytes | None:
        return object_id if object_id in self.objects else None

    def is_sealed(self, entry: bytes) -> bool:
        return True

    def pin(self, entry: bytes, name: bytes, client: bytes) -> None:
        self.pins.append(name)

    def unpin(self, names: list[bytes]) -> None:
        asked = {one.pin for question in self.questions for one in question.wanted}
        assert not asked & {*names}, "more may be pinned for a question that is open"
        self.pins = [name for name in self.pins if name not in names]

    def pin_together(
        self,
        client: bytes,
        wanted: list[Wanted],
        purpose: int,
        on_answer: Callable[[list[Pinned]], None],
        on_one: Callable[[], None],
    ) -> Question:
        order: Any = purpose
        self.questions.append(Question(client, wanted, order, on_answer, on_one))
        return self.questions[-1]

    def give_up(self, question: Question) -> None:
        self.questions.remove(question)
        question.answer()

    # --- what happens

    def want(self, lease_id: bytes, **sizes: int) -> None:
        """A lease is asked for, and its arguments are to come; they have these names and sizes."""
        self.arguments.add_lease(lease_id, [Dependency(name.encode(), OWNER, size) for name, size in sizes.items()], 0)
        assert not self.arguments.fetch(lease_id)
        self.arguments.begin_pulls()

    async def answer(self, *statuses: int) -> None:
        """The oldest question."""
        question = self.questions.pop(0)
        for index, (one, status) in enumerate(zip(question.wanted, statuses, strict=True)):
            if status == PINNED:
                self.objects.add(one.object_id)
                self.pins.append(one.pin)
            question.set(index, Pinned(status))
        await turns(2)


def test_arguments_are_pinned_from_their_arrival_to_the_end_of_the_lease() -> None:
    async def story() -> None:
        scene = Scene()
        scene.want(b"lease", x=10, y=10)
        assert [one.object_id for one in scene.questions[0].wanted] == [b"x", b"y"] and scene.here == []
        await scene.answer(PINNED, PINNED)
        assert scene.here == [b"lease"] and len(scene.pins) == 2
        scene.arguments.pin(b"lease")
        assert not scene.arguments.give_way() and len(scene.pins) == 2
        scene.arguments.end_lease(b"lease")
        assert scene.pins == [] and len(scene.arguments.manager) == 0

    run(story)


def test_what_came_for_a_lease_without_resources_gives_way_and_is_pinned_when_it_has_them() -> None:
    async def story() -> None:
        scene = Scene()
        scene.want(b"lease", x=10)
        await scene.answer(PINNED)
        assert len(scene.pins) == 1, "it is kept for the lease as long as nobody needs the memory"
        assert scene.arguments.give_way() and scene.pins == [] and not scene.arguments.give_way()
        assert scene.arguments.fetch(b"lease")
        scene.arguments.pin(b"lease")
        assert not scene.arguments.give_way() and len(scene.pins) == 1
        scene.arguments.end_lease(b"lease")
        assert scene.pins == []

    run(story)


@pytest.mark.parametrize("status", [PINNED, NO_ROOM])
def test_arguments_of_a_lease_that_runs_at_once_stay_pinned_however_they_came(status: int) -> None:
    async def story() -> None:
        scene = Scene()
        scene.want(b"other", z=10)
        await scene.answer(PINNED)
        scene.arguments.manager.on_allocated(b"other")
        scene.want(b"lease", x=10, y=10)
        scene.runs_at_once = True
        scene.objects.add(b"y")  # brought by somebody else
        await scene.answer(PINNED, status)
        assert len(scene.pins) == 3 and scene.arguments.give_way() and len(scene.pins) == 2, "what came for the other goes"
        scene.arguments.end_lease(b"lease")
        assert scene.pins == []

    run(story)


def test_l2_a_request_that_ends_while_its_arguments_come_leaves_no_pin_and_no_timer() -> None:
    async def story() -> None:
        scene = Scene()
        scene.want(b"lease", x=10, y=10)
        question = scene.questions[0]
        scene.pins.append(question.wanted[0].pin)
        question.set(0, Pinned(PINNED))
        scene.arguments.end_lease(b"lease")
        await pass_time(2 * PATIENCE_S)
        assert scene.pins == [] and scene.here == [] and scene.questions == [] and scene.advances == 0

    run(story)


def test_an_answer_that_comes_with_the_end_of_the_lease_is_nobody_s() -> None:
    async def story() -> None:
        scene = Scene()
        scene.want(b"lease", x=10)
        question = scene.questions[0]
        question.set(0, Pinned(PINNED))
        scene.arguments.end_lease(b"lease")
        scene.want(b"lease", x=10)
        await turns()
        assert scene.here == [], "that was the answer for the request before"

    run(story)


def test_a_lease_fetches_again_what_has_gone_meanwhile() -> None:
    async def story() -> None:
        scene = Scene()
        scene.want(b"lease", x=10)
        await scene.answer(PINNED)
        scene.arguments.give_way()
        scene.objects.clear()
        assert scene.arguments.missing(b"lease") == [b"x"] and not scene.arguments.fetch(b"lease")
        scene.arguments.begin_pulls()
        await scene.answer(PINNED)
        assert scene.here == [b"lease", b"lease"]
        scene.arguments.end_lease(b"lease")
        assert scene.pins == []

    run(story)


def test_l2_what_was_pinned_before_another_argument_found_no_room_is_pinned_once() -> None:
    async def story() -> None:
        scene = Scene()
        scene.want(b"runs", z=10)
        await scene.answer(PINNED)
        scene.arguments.manager.on_allocated(b"runs")
        scene.arguments.pin(b"runs")
        scene.want(b"lease", x=10, y=10)
        await scene.answer(PINNED, NO_ROOM)
        assert len(scene.pins) == 2 and not scene.arguments.fetch(b"lease")
        scene.arguments.begin_pulls()
        await scene.answer(PINNED, PINNED)
        assert len(scene.pins) == 3
        scene.arguments.end_lease(b"lease")
        assert len(scene.pins) == 1

    run(story)


def test_what_came_for_a_lease_that_takes_too_long_may_go() -> None:
    async def story() -> None:
        scene = Scene()
        scene.want(b"lease", x=10)
        await scene.answer(PINNED)
        await pass_time(PATIENCE_S + 0.01)
        assert scene.pins == [] and scene.advances == 1 and not scene.arguments.give_way()
        scene.arguments.end_lease(b"lease")

    run(story)


def test_what_cannot_be_brought_is_excused() -> None:
    async def story() -> None:
        scene = Scene()
        scene.want(b"lease", x=10, y=10)
        await scene.answer(NOT_HERE, PINNED)
        assert scene.here == [b"lease"] and scene.arguments.missing(b"lease") == [] and scene.arguments.fetch(b"lease")

    run(story)


def test_what_has_no_room_is_excused_only_when_nothing_runs_that_would_make_some() -> None:
    async def story() -> None:
        scene = Scene()
        scene.want(b"runs", x=10)
        await scene.answer(PINNED)
        scene.arguments.manager.on_allocated(b"runs")
        scene.arguments.pin(b"runs")
        scene.want(b"lease", y=10)
        await scene.answer(NO_ROOM)
        assert not scene.arguments.fetch(b"lease")
        scene.arguments.end_lease(b"runs")
        scene.arguments.begin_pulls()
        await scene.answer(NO_ROOM)
        assert scene.arguments.fetch(b"lease")

    run(story)


def test_others_keep_back_for_a_lease_that_is_ahead_until_it_takes_too_long() -> None:
    async def story() -> None:
        scene = Scene()
        scene.want(b"first", x=80)
        scene.want(b"second", y=80)
        assert len(scene.questions) == 1
        await pass_time(PATIENCE_S + 0.01)
        assert scene.advances == 1
        assert [one.object_id for one in scene.questions[1].wanted] == [b"y"]

    run(story)


@pytest.mark.parametrize(
    ("pauses_s", "patience_s"), [((0.1,), PATIENCE_S), ((4.0,), 8.0), ((4.0, 0.1), 7.2), ((900.0,), MOST_PATIENCE_S)]
)
def test_patience_is_twice_the_longest_time_from_turn_to_turn_lately(pauses_s: tuple[float, ...], patience_s: float) -> None:
    async def story() -> None:
        scene = Scene()
        for number, pause_s in enumerate((1.0, *pauses_s)):
            await pass_time(pause_s)
            scene.want(b"%d" % number, **{f"x{number}": 1})
            await scene.answer(PINNED)
            scene.arguments.pin(b"%d" % number)
        scene.want(b"late", y=1)
        await pass_time(patience_s - 0.5)
        assert scene.advances == 0
        await pass_time(1.0)
        assert scene.advances == 1

    run(story)


def test_others_keep_back_as_long_as_arguments_keep_coming() -> None:
    async def story() -> None:
        scene = Scene()
        names = [f"x{number}" for number in range(4)]
        scene.want(b"first", **dict.fromkeys(names, 20))
        scene.want(b"second", y=80)
        question = scene.questions[0]
        for index in range(3):
            await pass_time(0.9 * PATIENCE_S)
            question.set(index, Pinned(PINNED))
        await pass_time(0.9 * PATIENCE_S)
        assert scene.advances == 0 and len(scene.questions) == 1
        await pass_time(0.2 * PATIENCE_S)
        assert scene.advances == 1 and len(scene.questions) == 2

    run(story)


def test_closing_leaves_no_timer() -> None:
    async def story() -> None:
        scene = Scene()
        scene.want(b"lease", x=10)
        scene.arguments.close()
        await pass_time(2 * PATIENCE_S)
        assert scene.advances == 0

    run(story)


def test_a_lease_without_large_arguments_costs_nothing() -> None:
    async def story() -> None:
        scene = Scene()
        scene.arguments.add_lease(b"lease", [], 0)
        assert scene.arguments.fetch(b"lease") and len(scene.arguments.manager) == 0
        scene.arguments.pin(b"lease")
        scene.arguments.end_lease(b"lease")
        assert scene.pins == [] and scene.arguments._pins == {}

    run(story)
