"""Detached actors at the end of a program: they are still there, answer, and go when they are killed (G26).

When all drivers are through, one says farewell to them: it finds each by its name, has it answer a call, kills it, and looks
for it again. So a run has nothing left in the end, and what was left meanwhile is known: a detached actor that lives
has a worker and a lease at one node, and its maker, if he lives, keeps its constructor as long as it may have to run again.
"""

from __future__ import annotations

import minray
from minray.exceptions import RayError
from tests.spec.actors import NAMESPACE
from tests.spec.programs import Program
from tests.spec.stage import Record


class Farewell(Record, frozen=True):
    """What has become of one of them."""

    name: str
    was_found: bool = False
    error: str = ""
    """What its answer was; empty: that it is there."""
    was_found_again: bool = False
    """When it had been killed."""


def detached_names(program: Program) -> list[str]:
    """Of all detached actors that it may make."""
    return sorted({create.called for create in program.actors() if create.detached})


def say_farewell(name: str) -> Farewell:
    """In any driver, when those of the program are through."""
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
