"""Setup hooks of jobs: ``Hooked``, whose driver has one, which every worker of its job calls before its first task.

Left out: a hook that fails, because no task of its job would run.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.stories import Look, Story, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses
    from tests.spec.programs import Body

MARK = "SPEC_HOOKED"
"""Environment variable that the hook sets in each worker."""


class Hooked(Story, frozen=True):
    """A task, its child, and an actor, in workers that have called the hook once."""

    max_retries: int = 3

    def tell(self) -> list[Look]:
        task = marks.options(num_cpus=0, max_retries=self.max_retries).remote(1)
        return [look_at(task), look_at(Marked.options(num_cpus=0).remote().mark.remote())]

    def wanted(self) -> list[Any]:
        return [["x", "x"], "x"]

    def errors(self, losses: Losses) -> set[str]:
        inner = losses.of_any_task(0) | losses.of_any_actor(0)
        return inner | {f"RayTaskError({error})" for error in inner if not error.startswith("RayTaskError(")}


def hook_of(driver: Body) -> Any:
    """Return the setup hook of a driver; None if it tells no such story."""
    return prepare if any(isinstance(one, Hooked) for one in driver.operations) else None


def prepare() -> None:
    os.environ[MARK] = os.environ.get(MARK, "") + "x"


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
