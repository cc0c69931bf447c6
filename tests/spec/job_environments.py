"""Setup hooks of jobs, which every worker of a job calls before its first task: ``Hooked``, and ``Spoiled``, which fail.

The driver of a ``Spoiled`` tells nothing else, because no task of its job runs. Its hook raises, or ends the process. A
raylet that has lost several workers of one job in that way gives up.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.stories import Look, Story, also_in_tasks, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses
    from tests.spec.programs import Body

MARK = "SPEC_HOOKED"
"""Environment variable that the hook sets in each worker."""
GIVEN_UP_S = 120.0
"""Virtual seconds after which a raylet gives up to start workers that end in their hook."""


class Hooked(Story, frozen=True):
    """A task, its child, and an actor, in workers that have called the hook once."""

    max_retries: int = 3
    by_name: bool = False
    """Whether the job has the hook by its name."""

    def tell(self) -> list[Look]:
        task = marks.options(num_cpus=0, max_retries=self.max_retries).remote(1)
        return [look_at(task), look_at(Marked.options(num_cpus=0).remote().mark.remote())]

    def wanted(self) -> list[Any]:
        return [["x", "x"], "x"]

    def errors(self, losses: Losses) -> set[str]:
        inner = losses.of_any_task(0) | losses.of_any_actor(0)
        return also_in_tasks(inner)


class Spoiled(Story, frozen=True):
    """Tasks and an actor in a job whose setup hook fails."""

    exits: bool = False
    """Whether the hook ends its process; it raises otherwise."""
    max_retries: int = 3
    tasks: int = 2

    def tell(self) -> list[Look]:
        tasks = [marks.options(num_cpus=0, max_retries=self.max_retries).remote(0) for _ in range(self.tasks)]
        return [*map(look_at, tasks), look_at(Marked.options(num_cpus=0).remote().mark.remote())]

    def wanted(self) -> list[Any]:
        return [None] * (self.tasks + 1)

    def errors(self, losses: Losses) -> set[str]:
        own = {"TaskUnschedulableError", "ActorUnschedulableError"} if self.exits else {"RuntimeEnvSetupError"}
        own |= {"WorkerCrashedError", "ActorDiedError"} if self.exits else set()
        return own | losses.of_any_task(0) | losses.of_any_actor(0)

    def busy_s(self) -> float:
        return GIVEN_UP_S if self.exits else 0.0


def hook_of(driver: Body) -> Any:
    """Return the setup hook of a driver; None if it tells no such story."""
    for one in driver.operations:
        if isinstance(one, Hooked):
            return f"{__name__}.{prepare.__name__}" if one.by_name else prepare
        if isinstance(one, Spoiled):
            return leave if one.exits else refuse
    return None


def prepare() -> None:
    os.environ[MARK] = os.environ.get(MARK, "") + "x"


def refuse() -> None:
    raise ValueError("this hook always fails")


def leave() -> None:
    os._exit(3)


@minray.remote
def marks(children: int) -> list[str]:
    """Say the mark here, and that of a child."""
    own = [os.environ.get(MARK, "")]
    return own if not children else own + minray.get(marks.options(num_cpus=0).remote(children - 1))


@minray.remote
class Marked:
    """An actor that looks at its environment."""

    def mark(self) -> str:
        return os.environ.get(MARK, "")
