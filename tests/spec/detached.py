"""Detached actors at the end of a program: they still live, answer, and end when they are killed (G26).

When all drivers are through, another driver says farewell to these actors. It finds each by its name, has it answer a call,
kills it, and looks for it again. So nothing is left at the end of a run. Before that, a detached actor that lives has a
worker and a lease at one node. Its maker, if that lives, keeps the constructor's arguments as long as the actor may restart.
"""

from __future__ import annotations

import minray
from minray.exceptions import RayError
from tests.spec.actors import NAMESPACE
from tests.spec.programs import Program
from tests.spec.stage import Record


class Farewell(Record, frozen=True):
    """Result of saying farewell to one detached actor."""

    name: str
    was_found: bool = False
    error: str = ""
    """Name of the error that its call raised; empty: none."""
    was_found_again: bool = False
    """Whether its name found it after it had been killed."""


def detached_names(program: Program) -> list[str]:
    """Names of all detached actors that the program may make."""
    return sorted({create.called for create in program.actors() if create.detached})


def say_farewell(name: str) -> Farewell:
    """Find, call and kill a detached actor, in any driver, when the drivers of the program are through."""
    try:
        handle = minray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return Farewell(name)
    error = ""
    try:
        minray.get(handle.__ray_ready__.options(max_task_retries=-1).remote())
    except RayError as raised:
        error = type(raised).__name__
    minray.kill(handle)
    try:
        minray.get_actor(name, namespace=NAMESPACE)
    except ValueError:
        return Farewell(name, True, error)
    return Farewell(name, True, error, True)
