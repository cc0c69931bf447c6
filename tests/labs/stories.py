"""The stories of lab 10: runs with bugs of the zoo planted, and what is right to say of each.

Hidden from students: an archive has the pages, and hashes of the answers. Two functions may be right: if a mistake in
another function gives the same page, nobody can tell them apart.

The event of an answer is the first that the same run does not have with the right code. A simulated run follows from its
seed. So all events before that are the same in both runs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from labs.stories import Answer, key_of
from minray.simulation.page import write_page
from minray.simulation.trace import Trace
from tests.spec.scenario import Scenario
from tests.spec.trial import run
from tests.zoo.bugs import BUGS, Bug
from tests.zoo.in_a_page import readable
from tests.zoo.transplant import Mutation, planted


@dataclass(frozen=True)
class Story:
    """One story."""

    bug: str
    """A bug of the zoo, planted into the run of its witness."""
    guarantee: str
    function: str
    twins: tuple[Mutation, ...] = ()
    """Mistakes in other functions, which are right answers, too: each in place of the bug gives the same page."""

    @property
    def functions(self) -> tuple[str, ...]:
        return self.function, *(twin.symbol for twin in self.twins)


STORIES = [
    Story("ray-62093", "L3", "LeaseBroker.on_worker_exit"),
    Story("ray-42942", "G106", "LeaseBroker.on_group_removed"),
    Story("ray-55469", "S2", "LeaseBroker.give_back"),
    Story(
        "ray-24359-actor",
        "L1",
        "ActorTaskReceiver._cancel",
        (
            Mutation(
                "minray.core_worker.execution.task_intake",
                "TaskIntake.cancel_unstarted",
                "self.answer_error(task, CANCELLED, self.pack(task, error))",
                """
                task.calls = ()
                self.answer_error(task, CANCELLED, self.pack(task, error))
                """,
            ),
        ),
    ),
    Story(
        "ray-18552",
        "L2",
        "ReferenceCounter.lend",
        (
            Mutation(
                "minray.core_worker.ownership.reference_counter",
                "ReferenceCounter.take_back",
                "remember(self._spent, ticket, None)",
                "pass",
            ),
        ),
    ),
]
"""The stories, from plain to hard."""


def write_stories(folder: Path, stories: Sequence[Story]) -> list[Answer]:
    """Write the page and the program of each story, and return the answers."""
    return [_write(folder, key_of(number), story) for number, story in enumerate(stories, 1)]


def _write(folder: Path, name: str, story: Story) -> Answer:
    bug = bug_of(story)
    scenario = Scenario.from_json(bug.witness.read_text())
    right = run(scenario).trace
    with planted(bug.mutations):
        wrong = run(scenario).trace
    nodes = len(scenario.world.nodes)
    cluster = f"a cluster of {nodes} node{'s' * (nodes > 1)}"
    head = f"{name.replace('-', ' ').capitalize()}: {cluster}, in which one function is wrong."
    write_page(wrong, folder / f"{name}.html", head)
    (folder / f"{name}-program.json").write_text(readable(scenario) + "\n")
    return Answer(story.guarantee, first_wrong_event(right, wrong), story.functions)


def bug_of(story: Story) -> Bug:
    return next(bug for bug in BUGS if bug.name == story.bug)


def first_wrong_event(right: Trace, wrong: Trace) -> int:
    """Return the number of the first event that only the wrong run has, as a page counts: from 1."""
    return next(_differences(right, wrong))


def _differences(right: Trace, wrong: Trace) -> Iterator[int]:
    pairs = zip(right.events, wrong.events, strict=False)
    return (number for number, (one, other) in enumerate(pairs, 1) if one != other)
