"""Answers for lab 10: the right ones, and those of students who look at the wrong place."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from labs.stories import Answer, key_of
from tests.labs.stories import STORIES, write_stories

Answers = list[Answer]


@functools.cache
def _answers() -> tuple[Answer, ...]:
    with TemporaryDirectory(prefix="minray-labs-") as folder:
        return tuple(write_stories(Path(folder), STORIES))


def right_answers() -> Answers:
    return list(_answers())


def filled_in(answers: Sequence[Answer]) -> str:
    """Return the file of a student who gives these answers."""
    tables = [
        f'[{key_of(number)}]\nguarantee = "{answer.guarantee}"\nevent = {answer.event}\nfunction = "{answer.functions[0]}"\n'
        for number, answer in enumerate(answers, 1)
    ]
    return "\n".join(tables)


def _each(change: Callable[[Answer], Answer]) -> Callable[[Answers], Answers]:
    return lambda answers: [change(answer) for answer in answers]


WRONG_ANSWERS: dict[str, Callable[[Answers], Answers]] = {
    "where it hurts is where it is wrong": _each(
        lambda answer: dataclasses.replace(answer, event=answer.event + 100, functions=("LeaseClient.on_worker_lost",))
    ),
    "the handler of the message is wrong": _each(
        lambda answer: dataclasses.replace(answer, guarantee="L2", functions=("Raylet.handle_ReturnWorkerLease",))
    ),
    "the fault is the mistake": _each(lambda answer: dataclasses.replace(answer, guarantee="G16", event=answer.event - 12)),
    "one story is like the next": lambda answers: [answers[0]] * len(answers),
}
"""Student's thought -> what becomes of the right answers."""
