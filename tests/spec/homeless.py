"""Tasks and actors that no node can hold: ``Homeless``, whose owner gives them up while they wait.

All other tasks and actors of programs can run on the head. These ask for a resource that no node has, so they wait at a
raylet or at the gcs, and both report what they lack. The driver waits for each in vain, with a time-out, and then cancels
the task and the generator, and kills the actor or drops its last handle. Nothing of them may stay, and the name of the
actor is free again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import minray
from minray.exceptions import GetTimeoutError
from tests.spec.stories import Look, Story, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses

NOTHING = "unicorn"
"""A resource that no node has."""
LATE, GIVEN_UP, FREE = "late", "given up", "free"
CANCELLED, KILLED = "TaskCancelledError", "ActorDiedError"


class Homeless(Story, frozen=True):
    """A task, a generator and an actor that wait for a node until they are given up."""

    seconds: float = 0.05
    """Virtual seconds for which the driver waits for each."""
    kills: bool = True
    """Whether the actor is killed; else its last handle is dropped."""
    force: bool = False
    """Whether the cancellation is forced."""

    def tell(self) -> list[Look]:
        held = minray.put(self.name)
        task = ask_for_nothing.options(resources={NOTHING: 1}).remote(held)
        generator = count_nothing.options(resources={NOTHING: 1}).remote(held)
        called = f"homeless {self.name} {minray.get_runtime_context().get_job_id()}"
        actor = Nobody.options(name=called, resources={NOTHING: 1}, max_restarts=-1).remote(held)
        nameless = Nobody.options(resources={NOTHING: 1}).remote(task)
        call = actor.answer.remote() if self.kills else None
        del held, nameless
        looks = [self._wait(task), self._wait(call) if self.kills else ("value", LATE)]
        time.sleep(self.seconds)
        minray.cancel(task, force=self.force)
        minray.cancel(generator, force=self.force)
        if self.kills:
            minray.kill(actor)
        del generator, actor
        looks.append(_given_up(look_at(task), CANCELLED))
        looks.append(_given_up(look_at(call), KILLED) if self.kills else ("value", GIVEN_UP))
        return [*looks, self._name_again(called)]

    def _wait(self, ref: Any) -> Look:
        """Wait for it in two ways, of which one ends earlier."""
        future = ref.future()
        ready, _ = minray.wait([ref], timeout=self.seconds)
        kind, shown = look_at(ref, self.seconds)
        future.cancel()
        is_late = not ready and shown == GetTimeoutError.__name__
        return ("value", LATE) if is_late else (kind, shown)

    def _name_again(self, called: str) -> Look:
        """Wait until the name is free, and say so."""
        for _ in range(200):
            try:
                minray.get_actor(called)
            except ValueError:
                return "value", FREE
            time.sleep(0.5)
        return "value", "taken"

    def wanted(self) -> list[Any]:
        return [LATE, LATE, GIVEN_UP, GIVEN_UP, FREE]

    def errors(self, losses: Losses) -> set[str]:
        return losses.of_any_task(0) | losses.of_any_actor(0)

    def events(self) -> set[str]:
        return {"used", "dropped", "cancelled"}

    def busy_s(self) -> float:
        return 5 * self.seconds + 100.0


def _given_up(look: Look, error: str) -> Look:
    return ("value", GIVEN_UP) if look == ("error", error) else look


@minray.remote(num_cpus=0, max_retries=3)
def ask_for_nothing(value: str) -> str:
    return value


@minray.remote(num_cpus=0)
def count_nothing(value: str) -> Iterator[str]:
    yield value


@minray.remote(num_cpus=0)
class Nobody:
    """An actor that is never made."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def answer(self) -> Any:
        return self._value
