"""Rare features of scenarios, by name: what a program has, and the conditions of its world.

A bug may need two of them at once. ``conjunctions.py`` draws pairs on purpose, and counts the pairs that campaigns meet.

Rules
  * A feature is read off the scenario alone. A fault counts as met only if it has struck (``STRIKING``).
  * Most worlds are made for one kind of loud faults. ``RIVALS`` cannot be in one world, so their pairs do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations

from tests.spec.abandoned import Abandon
from tests.spec.actors import Create, ExitActor, Find, Kill
from tests.spec.frees import Free
from tests.spec.groups import Group, Remove
from tests.spec.programs import (
    Await,
    Call,
    Cancel,
    Exit,
    Generate,
    Leave,
    Operation,
    Peek,
    Program,
    Put,
    RaiseAtFirst,
    ReadOn,
    Return,
    Submit,
)
from tests.spec.scenario import Scenario, World

Pair = tuple[str, str]


def _has(test: Callable[[Operation], object]) -> Callable[[Program], bool]:
    return lambda program: any(test(operation) for operation in program.walk())


def _reuses_a_name(program: Program) -> bool:
    """Whether some name is asked for several times, and its actor is ended or dropped in between."""
    asked = Counter(create.called for create in program.actors() if create.called)
    return max(asked.values(), default=0) > 1


def _is_spent(operation: Operation) -> bool:
    """Whether a task or call uses up its only retry by raising."""
    return isinstance(operation, Submit) and isinstance(operation.body.end, RaiseAtFirst) and operation.max_retries == 1


OF_PROGRAMS: Mapping[str, Callable[[Program], bool]] = {
    "a name reused": _reuses_a_name,
    "a name looked up": _has(lambda one: isinstance(one, Find)),
    "a detached actor": _has(lambda one: isinstance(one, Create) and one.detached),
    "an async actor": _has(lambda one: isinstance(one, Create) and one.is_async),
    "a concurrency group": _has(lambda one: isinstance(one, Create) and one.has_group),
    "calls in any order": _has(lambda one: isinstance(one, Create) and one.is_unordered),
    "few pending calls": _has(lambda one: isinstance(one, Create) and one.max_pending_calls > 0),
    "an actor that takes a while to end": _has(lambda one: isinstance(one, Create) and one.parting_s > 0),
    "an actor in a placement group": _has(lambda one: isinstance(one, Create) and one.group),
    "an actor that ends itself": _has(lambda one: isinstance(one, Call) and isinstance(one.body.end, ExitActor)),
    "an actor that is asked to end": _has(lambda one: isinstance(one, Kill) and one.is_asked),
    "a placement group with a name": _has(lambda one: isinstance(one, Group) and one.called),
    "a placement group removed": _has(lambda one: isinstance(one, Remove)),
    "a generator read on": _has(lambda one: isinstance(one, ReadOn)),
    "a generator of an actor": _has(lambda one: isinstance(one, Generate) and one.actor),
    "back-pressure": _has(lambda one: isinstance(one, Generate | Abandon) and one.most_unread > 0),
    "a generator dropped": _has(lambda one: isinstance(one, Abandon)),
    "a forced cancellation": _has(lambda one: isinstance(one, Cancel) and one.force),
    "a value freed by hand": _has(lambda one: isinstance(one, Free) and not one.local_only),
    "several returns": _has(lambda one: isinstance(one, Submit) and one.returns > 1),
    "a worker's last task": _has(lambda one: isinstance(one, Submit) and (one.is_last or isinstance(one.body.end, Exit))),
    "an environment": _has(lambda one: isinstance(one, Submit) and one.mark),
    "a task bound to a node": _has(lambda one: isinstance(one, Submit) and one.node >= 0 and not one.is_soft),
    "a part of a GPU": _has(lambda one: isinstance(one, Submit) and 0 < one.gpus < 1),
    "whole GPUs": _has(lambda one: isinstance(one, Submit) and one.gpus >= 1),
    "a retry used up": _has(_is_spent),
    "an array": _has(lambda one: _padding(one) > 0),
    "a wait given up": _has(lambda one: isinstance(one, Peek) or (isinstance(one, Await) and one.timeout is not None)),
    "a driver that leaves": lambda program: any(isinstance(driver.end, Leave | Exit) for driver in program.drivers),
}  # fmt: skip
"""Name of a feature -> whether a program has it."""


def _padding(operation: Operation) -> int:
    if isinstance(operation, Put):
        return operation.padding
    end = operation.body.end if isinstance(operation, Submit | Call) else None
    return end.padding if isinstance(end, Return) else 0


def _has_fault(*kinds: str) -> Callable[[World], bool]:
    return lambda world: not world.rates.keys().isdisjoint(kinds)


OF_WORLDS: Mapping[str, Callable[[World], bool]] = {
    "the gcs restarted": lambda world: "crash" in world.rates and "gcs" in world.targets and world.durable,
    "a worker crashed": lambda world: "crash" in world.rates and "worker/" in world.targets,
    "a node lost": lambda world: _has_fault("node_loss", "last_words")(world) or any(move.dies for move in world.moves),
    "a node draining": lambda world: any(move.leaves for move in world.moves),
    "a kill for memory": _has_fault("memory"),
    "a failed start": _has_fault("spawn"),
    "a rift": _has_fault("rift"),
    "a late message": _has_fault("long_delay"),
    "a dead process's message": _has_fault("posthumous", "last_words"),
    "a repeated message": _has_fault("duplicate"),
    "a slow node": _has_fault("slow_node"),
    "a switch of threads": _has_fault("switch"),
    "values in stores": lambda world: world.inline_limit > 0,
    "spilled": lambda world: world.store_bytes > 0,
    "a slow disk": _has_fault("slow_disk", "disk_busy"),
    "little lineage": lambda world: world.lineage_bytes > 0,
    "a pause before retries": lambda world: world.retry_pause_ms > 0,
    "a driver on another node": lambda world: any(world.homes),
    "small bounds": lambda world: len(world.bounds) > 0,
}
"""Name of a condition -> whether a world has it."""

STRIKING: Mapping[str, tuple[str, ...]] = {
    "the gcs restarted": ("crash",),
    "a worker crashed": ("crash",),
    "a kill for memory": ("memory",),
    "a failed start": ("spawn",),
    "a rift": ("rift",),
    "a late message": ("long_delay",),
    "a dead process's message": ("posthumous", "last_words"),
    "a repeated message": ("duplicate",),
    "a slow node": ("slow_node",),
    "a switch of threads": ("switch",),
    "a slow disk": ("slow_disk", "disk_busy"),
}
"""Condition -> the kinds of faults of which one has to strike before it counts as met."""
RIVALS = (
    "the gcs restarted", "a worker crashed", "a node lost", "a kill for memory", "a failed start", "a rift",
    "a late message", "a dead process's message",
)  # fmt: skip
"""Conditions that need loud faults of their own."""
FEATURES = (*OF_PROGRAMS, *OF_WORLDS)
PAIRS: tuple[Pair, ...] = tuple(
    pair for pair in combinations(FEATURES, 2) if not (pair[0] in RIVALS and pair[1] in RIVALS)
)  # fmt: skip
"""All pairs of features that one scenario may have."""


def features_of(scenario: Scenario) -> list[str]:
    """Names of the features that a scenario has."""
    program = [name for name, has in OF_PROGRAMS.items() if has(scenario.program)]
    return program + [name for name, has in OF_WORLDS.items() if has(scenario.world)]


def met_features(scenario: Scenario, kinds: Iterable[str]) -> list[str]:
    """Names of the features that a run has met, in which faults of these kinds have struck."""
    struck = set(kinds)
    return [name for name in features_of(scenario) if name not in STRIKING or not struck.isdisjoint(STRIKING[name])]


def pairs_of(names: Iterable[str]) -> set[Pair]:
    """All pairs of these features that count."""
    return KNOWN.intersection(combinations(sorted(names, key=FEATURES.index), 2))


KNOWN = frozenset(PAIRS)
