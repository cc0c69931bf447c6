"""Answers with many bytes, which later ones overtake: ``Overtaken``.

The buffers of a message take a while to arrive, and messages behind it may come first. Results of programs are so small
that no answer has ever been overtaken. Here some calls return a dozen arrays that are just small enough for an answer. Their
caller hears of later calls before.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import minray
from tests.spec.filled import filled
from tests.spec.stories import Look, Story, also_in_tasks, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses

SIZE, ARRAYS = 95_000, 12
"""Bytes of an array, and the number of arrays of a heavy answer: more than a MiB, beyond which others overtake."""
CALLS, IN_TASK, TASKS = "calls", "calls of a task", "tasks"
MANNERS = (CALLS, IN_TASK, TASKS)


class Overtaken(Story, frozen=True):
    """Some calls of an actor, or tasks, every third of which has a heavy answer."""

    count: int = 7
    manner: str = CALLS
    max_retries: int = 3

    def tell(self) -> list[Look]:
        if self.manner == TASKS:
            run = give.options(max_retries=self.max_retries)
            looks = [_seen(number, run.remote(number, 1)) for number in range(3)]
            return looks + _seen_all(run, self.count)
        giver = Giver.remote()
        if self.manner == IN_TASK:
            return [look_at(call_all.options(max_retries=self.max_retries).remote(giver, self.count))]
        return _seen_all(giver.give, self.count)

    def wanted(self) -> list[Any]:
        shown = [[number, _results(number)] for number in range(self.count)]
        if self.manner == TASKS:
            return [*([number, 1] for number in range(3)), *shown]
        return [shown] if self.manner == IN_TASK else shown

    def errors(self, losses: Losses) -> set[str]:
        lost = losses.of_any_actor(0) | losses.of_any_task(self.max_retries)
        return also_in_tasks(lost)


def _results(number: int) -> int:
    return ARRAYS if number % 3 == 1 else 1


def _refs_of(run: Any, count: int) -> list[Any]:
    return [run.options(num_returns=_results(number)).remote(number, _results(number)) for number in range(count)]


def _seen_all(run: Any, count: int) -> list[Look]:
    return [_seen(number, refs) for number, refs in enumerate(_refs_of(run, count))]


def _seen(number: int, refs: Any) -> Look:
    """Say how many arrays have come that are what they should be."""
    looks = [look_at(ref) for ref in (refs if isinstance(refs, list) else [refs])]
    failed = [look for look in looks if look[0] == "error"]
    return failed[0] if failed else ("value", _shown(number, [shown for _, shown in looks]))


def _shown(number: int, arrays: list[Any]) -> list[int]:
    return [number, sum(array.tobytes() == bytes([number]) * SIZE for array in arrays)]


def _made(number: int, results: int) -> Any:
    arrays = [filled(SIZE, number) for _ in range(results)]
    return arrays if results > 1 else arrays[0]


@minray.remote(num_cpus=0)
class Giver:
    """Gives arrays."""

    def give(self, number: int, results: int) -> Any:
        return _made(number, results)


@minray.remote(num_cpus=0)
def call_all(giver: Any, count: int) -> list[Any]:
    """Make the calls in a task, and say what has come."""
    refs = _refs_of(giver.give, count)
    return [_shown(number, minray.get(one if isinstance(one, list) else [one])) for number, one in enumerate(refs)]


@minray.remote
def give(number: int, results: int) -> Any:
    return _made(number, results)
