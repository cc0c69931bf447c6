"""The reference counters of several processes at once: nothing is freed too early, nothing is kept for ever.

S7: an owner frees an object only if no process holds, borrows or carries a reference to it (checked at every step by
``Cluster``). L2: when all references are dropped and all messages have arrived, every table is empty.
"""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from tests.core_worker.processes import Cluster, Process, Ref, Task

ANY = st.integers(0, 59)
"""An index into whatever there is (60 has many divisors)."""
FEW = st.lists(ANY, max_size=2)


def pick(things: list[Any], index: int) -> Any:
    """Index 0 means the newest."""
    return things[-1 - index % len(things)]


def pick_some(refs: list[Ref], indices: list[int]) -> list[Ref]:
    return [pick(refs, index) for index in indices] if refs else []


class Together(RuleBasedStateMachine):
    """Users of four processes do what they like, and the network delivers when and how often it likes."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = Cluster("abcd")

    def holders(self) -> list[Process]:
        return [process for process in self.cluster.living() if process.refs]

    def running(self) -> list[Task]:
        return [task for process in self.cluster.living() for task in process.tasks if not task.ended]

    def with_frames(self) -> list[Task]:
        return [task for task in self.running() if task.frame]

    @initialize()
    def begin(self) -> None:
        """One object, and one that contains it."""
        first = self.cluster.processes[0]
        first.put([first.put([])])

    @rule(where=ANY, inside=FEW)
    def put(self, where: int, inside: list[int]) -> None:
        process = pick(self.cluster.living(), where)
        process.put(pick_some(process.refs, inside))

    @precondition(lambda self: self.holders())
    @rule(where=ANY, which=ANY)
    def drop(self, where: int, which: int) -> None:
        process = pick(self.holders(), where)
        process.drop_ref(process.refs.pop(which % len(process.refs)))

    @precondition(lambda self: self.holders())
    @rule(where=ANY, which=ANY)
    def get(self, where: int, which: int) -> None:
        process = pick(self.holders(), where)
        process.get(pick(process.refs, which))

    @precondition(lambda self: self.holders())
    @rule(where=ANY, to=ANY, nested=FEW, at_top_level=FEW)
    def submit(self, where: int, to: int, nested: list[int], at_top_level: list[int]) -> None:
        process = pick(self.holders(), where)
        worker = pick([other for other in self.cluster.living() if other is not process], to)
        process.submit(worker, pick_some(process.refs, nested), pick_some(process.refs, at_top_level))

    @precondition(lambda self: self.running())
    @rule(which=ANY, returned=FEW, kept=FEW)
    def finish(self, which: int, returned: list[int], kept: list[int]) -> None:
        task = pick(self.running(), which)
        task.worker.finish(task, pick_some(task.frame, returned), pick_some(task.frame, kept))

    @precondition(lambda self: self.cluster.pushed())
    @rule(which=ANY)
    def give_up(self, which: int) -> None:
        task = pick(self.cluster.pushed(), which)
        task.owner.give_up(task)

    @precondition(lambda self: self.holders())
    @rule(where=ANY, which=ANY)
    def delete(self, where: int, which: int) -> None:
        process = pick(self.holders(), where)
        object_id, owner = pick(process.refs, which)
        if self.cluster.at(owner).alive:
            self.cluster.at(owner).delete(object_id)

    @precondition(lambda self: self.with_frames())
    @rule(which=ANY, where=ANY)
    def look_into_argument(self, which: int, where: int) -> None:
        task = pick(self.with_frames(), which)
        task.worker.get(pick(task.frame, where))

    @precondition(lambda self: self.with_frames())
    @rule(which=ANY, where=ANY)
    def put_argument_into_value(self, which: int, where: int) -> None:
        task = pick(self.with_frames(), which)
        ref = pick(task.frame, where)
        task.frame.remove(ref)
        task.frame.append(task.worker.put([ref]))
        task.worker.drop_ref(ref)
        task.worker.refs.pop()

    @precondition(lambda self: self.with_frames())
    @rule(which=ANY, to=ANY, nested=FEW)
    def submit_argument(self, which: int, to: int, nested: list[int]) -> None:
        task = pick(self.with_frames(), which)
        worker = pick([other for other in self.cluster.living() if other is not task.worker], to)
        task.worker.submit(worker, pick_some(task.frame, nested), [])

    @precondition(lambda self: self.cluster.busy_links())
    @rule(which=ANY, how_many=st.integers(1, 3))
    def deliver(self, which: int, how_many: int) -> None:
        link = pick(self.cluster.busy_links(), which)
        for _ in range(min(how_many, len(self.cluster.links[link]))):
            self.cluster.deliver(link)

    @precondition(lambda self: self.cluster.busy_links())
    @rule(which=ANY)
    def break_channel(self, which: int) -> None:
        self.cluster.deliver(pick(self.cluster.busy_links(), which), reply_is_lost=True)

    @rule()
    def let_time_pass(self) -> None:
        while links := self.cluster.busy_links():
            self.cluster.deliver(links[0])

    @precondition(lambda self: self.cluster.late)
    @rule(which=ANY)
    def repeat(self, which: int) -> None:
        self.cluster.repeat(which % len(self.cluster.late))

    @rule(which=ANY)
    def kill(self, which: int) -> None:
        process = pick(self.cluster.living(), which)
        if len(self.cluster.living()) - len(self.cluster.doomed_with(process)) > 1:
            self.cluster.kill(process)

    def teardown(self) -> None:
        cluster = self.cluster
        cluster.settle()
        cluster.drop_everything()
        cluster.settle()
        while cluster.late:
            cluster.repeat(0)
        cluster.settle()
        for process in cluster.living():
            left = {object_id.hex(): reference for object_id, reference in process.counter.items()}
            assert not left and not process.values, f"L2: {process.name} keeps {left}"


Together.TestCase.settings = settings(max_examples=200, stateful_step_count=50)
pytestmark = pytest.mark.slow
TestTogether = Together.TestCase
