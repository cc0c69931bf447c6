"""Runtime environments of tasks and actors: ``Environments``, which are inherited, extended, and cannot be set up.

A task has a variable, its child inherits it and adds one of its own, and the child's child changes the first one. An actor
has a variable, which its child task inherits. A task and an actor ask for a directory that no node has. Both fail with the
reason, and leave no worker and no lease.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import minray
from tests.spec.stage import Outcome
from tests.spec.stories import Look, Story, also_in_tasks, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading

ONE, TWO = "SPEC_ONE", "SPEC_TWO"
"""Environment variables."""
IMPOSSIBLE: tuple[dict[str, Any], ...] = (
    {"working_dir": "gcs://nobody_has_this.zip"},
    {"working_dir": "local:///nowhere"},
    {"py_modules": ["local:///nowhere"]},
)
"""Environments that cannot be set up."""
REFUSED = "RuntimeEnvSetupError"


class Environments(Story, frozen=True):
    """Environments that are inherited, and one that cannot be set up."""

    impossible: int = 0
    """The one of ``IMPOSSIBLE`` that is asked for."""
    max_retries: int = 3

    def tell(self) -> list[Look]:
        failing, one = IMPOSSIBLE[self.impossible], {"env_vars": {ONE: self.name}}
        task = look_around.options(num_cpus=0, runtime_env=failing).remote([])
        actor = Looker.options(num_cpus=0, runtime_env=failing).remote().look.remote([])
        children = [{"env_vars": {TWO: "child"}}, {"env_vars": {ONE: "grandchild"}}]
        inherited = look_around.options(num_cpus=0, runtime_env=one, max_retries=self.max_retries).remote(children)
        of_actor = Looker.options(num_cpus=0, runtime_env=one).remote().look.remote(children[:1])
        return [look_at(ref) for ref in (task, actor, inherited, of_actor)]

    def wanted(self) -> list[Any]:
        own, child = [self.name, ""], [self.name, "child"]
        return [REFUSED, REFUSED, [own, child, ["grandchild", "child"]], [own, child]]

    def errors(self, losses: Losses) -> set[str]:
        inner = losses.of_any_task(0) | losses.of_any_actor(0)
        return also_in_tasks(inner)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        """Expect the reason where an environment cannot be set up."""
        looks = [("value", REFUSED) if look[1] == REFUSED and n < 2 else look for n, look in enumerate(outcome["looks"])]
        yield from super().check(reading, outcome | {"looks": looks})


def _around() -> list[str]:
    return [os.environ.get(ONE, ""), os.environ.get(TWO, "")]


@minray.remote
def look_around(children: list[Any]) -> list[list[str]]:
    """Say the variables here, and those of a child with the first of these environments, whose child has the next."""
    if not children:
        return [_around()]
    return [_around(), *minray.get(look_around.options(num_cpus=0, runtime_env=children[0]).remote(children[1:]))]


@minray.remote
class Looker:
    """An actor with an environment."""

    def look(self, children: list[Any]) -> list[list[str]]:
        return [_around(), *minray.get(look_around.options(num_cpus=0, runtime_env=children[0]).remote(children[1:]))]
