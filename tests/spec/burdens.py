"""Errors that are too large for the body of a message: ``Burdens``, several of which are fetched together.

A large value lies in an object store, so what travels in a message is small. An error never lies there. Its bytes travel
beside the message, with those of the other errors in the same message. So each reader has to find its own among them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import minray
from minray.exceptions import RayTaskError
from tests.spec.stories import Look, Story, also_in_tasks, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses

SIZE = 120_000
"""Characters of an error: more than a message carries of one value in its body."""


class Burdens(Story, frozen=True):
    """Errors of tasks that another task reads, all at once."""

    count: int = 3
    max_retries: int = 3

    def tell(self) -> list[Look]:
        options = {"num_cpus": 0, "max_retries": self.max_retries}
        refs = [groan.options(**options).remote(number) for number in range(self.count)]
        minray.wait(refs, num_returns=len(refs))
        return [look_at(hear.options(**options).remote(refs))]

    def wanted(self) -> list[Any]:
        return [[[number, SIZE] for number in range(self.count)]]

    def errors(self, losses: Losses) -> set[str]:
        lost = losses.of_any_task(0)
        return also_in_tasks(lost)


@minray.remote
def groan(number: int) -> None:
    raise ValueError(number, "o" * SIZE)


@minray.remote
def hear(refs: list[Any]) -> list[list[int]]:
    """Say which error each reference holds, and how long it is; all are asked for before the first is looked at."""
    minray.wait(refs, num_returns=len(refs))
    return [_heard(ref) for ref in refs]


def _heard(ref: Any) -> list[int]:
    try:
        minray.get(ref)
    except RayTaskError as error:
        number, text = error.cause.args
        return [number, len(text)]
    return []
