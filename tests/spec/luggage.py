"""Runtime environments with packages: ``Luggage``, in which a task has a working directory and modules beside it.

``Environments`` has variables only. Here a driver uploads two packages, as ``init`` does with local directories. One is the
task's working directory, and the other holds modules. The task and its child say in which directory they are. An actor with
the modules alone stays where its job is.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import minray
from minray.api.calls import current_api
from minray.common.package_uri import package_name, uri_of
from minray.node.packages import Package, PackedEnvironment
from tests.spec.stories import Look, Story, also_in_tasks, look_at

if TYPE_CHECKING:
    from tests.spec.model import Losses


class Luggage(Story, frozen=True):
    """A task whose environment has two packages."""

    max_retries: int = 3

    def tell(self) -> list[Look]:
        archives = [f"{part} of {self.name}".encode() for part in ("directory", "modules")]
        directory, modules = map(package_name, archives)
        packages = [Package(uri_of(package_name(archive)), archive) for archive in archives]
        held = PackedEnvironment({}, packages).upload(current_api())
        both = {"working_dir": uri_of(directory), "py_modules": [uri_of(modules)]}
        options = {"num_cpus": 0, "max_retries": self.max_retries}
        looks = [
            look_at(say_directory.options(runtime_env=both, **options).remote(1)),
            look_at(Traveller.options(num_cpus=0, runtime_env=both).remote().say_directory.remote()),
        ]
        del held
        return [(kind, shown.count(directory) if kind == "value" else shown) for kind, shown in looks]

    def wanted(self) -> list[Any]:
        return [2, 1]

    def errors(self, losses: Losses) -> set[str]:
        lost = losses.of_any_task(0) | losses.of_any_actor(0)
        return also_in_tasks(lost)


def _directory() -> str:
    return os.path.basename(os.getcwd())


@minray.remote
def say_directory(children: int) -> list[str]:
    """Say the working directory here, and that of a child, which inherits it."""
    if not children:
        return [_directory()]
    return [_directory(), *minray.get(say_directory.options(num_cpus=0).remote(children - 1))]


@minray.remote
class Traveller:
    """An actor with an environment."""

    def say_directory(self) -> list[str]:
        return [_directory()]
