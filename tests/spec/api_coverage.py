"""Coverage of the API: which words of it the programs of a campaign have said, and what befell what they made.

A word is an option of tasks, actors, methods or placement groups, or a function with one of its parameters. A cell is a word
with an event in the life of the thing that was made with that word. It is made, used, dropped, or obtained again. Its owner
dies, a node is lost, or the gcs restarts. It is cancelled or retried. An actor is killed or restarted instead.

Rules
  * The words come from the tables of the package (``words_of_the_package``), so a new option is a new row by itself.
  * A word counts when a program says it. ``Listener`` stands before the functions and classes of the API while a scenario
    runs, and notes which operation says which words. No table here says which operation says what.
  * A thing is called like the operation that makes it. The text of the program tells most events of its life; the trace
    tells retries; the faults that struck tell the rest. A ``Story``, which makes and drops its things itself, tells
    theirs.
  * ``EXCLUDED`` lists the cells that are not asked for, with a reason each. An entry that excludes nothing, or a cell
    that programs reach, is a mistake (``mistakes``).

Weak points
  * A task must name a function of the API through its module (``minray.get``). Else it is pickled with the listener.
  * A node's loss, the gcs's restart and a dead worker befall all things of a run, not those that were there.
  * The wrapper of a function is a frame more in tracebacks, so a trace may differ from the same run without
    ``--coverage``.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, NoReturn
from unittest import mock

import minray
from minray.actor import ActorClass
from minray.api.actor_handle import ActorMethod
from minray.api.actor_options import ACTOR_CHECKS, METHOD_CHECKS, METHOD_OPTIONS, methods_of
from minray.api.placement_group import VALID_PLACEMENT_GROUP_STRATEGIES, placement_group
from minray.api.task_options import BACKPRESSURE, CHECKS
from minray.remote_function import RemoteFunction
from minray.simulation.cluster import GCS
from minray.simulation.faults import LOUD
from minray.simulation.trace import OUTPUT, Event
from minray.values.object_ref_generator import ObjectRefGenerator
from tests.spec.actors import Create, ExitActor, Kill
from tests.spec.fates import walk
from tests.spec.groups import Remove
from tests.spec.losses import losses_of
from tests.spec.programs import Cancel, Drop, Exit, Generate, Leave, Operation, Program, ReadOn
from tests.spec.scenario import Scenario
from tests.spec.stage import BORN, RUN, Stage
from tests.spec.stories import Story
from tests.spec.verdict import Verdict

MADE, USED, DROPPED, AGAIN = "made", "used", "dropped", "obtained again"
ORPHANED, LOST, RESTARTED = "owner dead", "node lost", "gcs restarted"
CANCELLED, RETRIED = "cancelled", "retried"
EVENTS = (MADE, USED, DROPPED, AGAIN, ORPHANED, LOST, RESTARTED, CANCELLED, RETRIED)
OF_CALLS = (USED, ORPHANED, LOST, RESTARTED)
"""Events that befall a function: it is called, by a process that dies, or in a run in which a node or the gcs does."""
LIVES: Mapping[str, tuple[str, ...]] = {
    "task": EVENTS,
    "actor": EVENTS,
    "method": EVENTS,
    "group": EVENTS[:-2],
    "minray": OF_CALLS,
    "util": OF_CALLS,
    "generator": OF_CALLS,
}
"""Kind of words -> the events of their things."""
BEGIN = re.compile(rf'\["({RUN}|{BORN})", "(?P<name>[^"]*)"')
"""The line with which a task, a call or an actor begins."""
ELSEWHERE = ""
"""The operation of what is said between operations: by the ends of tasks, and by a ``Story`` in its tasks."""
Word = tuple[str, str]
"""The kind, and the word: ``("task", "num_cpus")``, ``("minray", "wait fetch_local")``."""
Cell = tuple[str, str, str]
"""The kind, the word, and the event."""
TOUCHES: Mapping[type, str] = {Cancel: CANCELLED, Kill: CANCELLED, Drop: DROPPED, Remove: DROPPED, ReadOn: AGAIN}
"""Kind of operation -> what it does to what it names, if it does not just use that."""
DECORATORS = ("remote", "method")
"""Functions that are no words: they ask no cluster, and their options are words of tasks, actors and methods."""
UNSAID: Mapping[str, Any] = {
    "max_restarts": 0, "max_task_retries": 0, "max_concurrency": 1, "max_pending_calls": -1, BACKPRESSURE: -1,
    "scheduling_strategy": "DEFAULT", "num_returns": 1,
}  # fmt: skip
"""Option -> the value that says no more than its absence."""
EXCLUDED: Mapping[tuple[str, str, str], str] = {
    ("group", "lifetime", ""): "a driver that a fault kills cannot remove a detached group, and nothing else does",
    ("util", "placement_group lifetime", ""): "as for the option of groups: nothing would remove a detached one",
    ("minray", "init", ""): "the simulation and the real tier start and connect drivers themselves",
    ("minray", "shutdown", ""): "a driver that leaves is disconnected by its tier",
    ("minray", "is_initialized", ""): "it asks the driver about itself, no cluster",
    ("minray", "timeline", ""): "it writes a file, which the simulation does not simulate",
    ("util", "Executor", ""): "it has a thread in the driver, which the simulation refuses",
    ("util", "register_serializer", ""): "it changes the process, and all simulated processes share one",
    ("util", "deregister_serializer", ""): "it changes the process, and all simulated processes share one",
    ("util", "log_once", ""): "it asks the process about itself, no cluster",
    ("util", "inspect_serializability", ""): "it serializes a value in the process, and asks no cluster",
}
"""Cells that are not asked for -> why. An empty event stands for all. An excluded function has no rows of parameters."""


def words_of_the_package() -> list[Word]:
    """All words, in the order of the package's tables."""
    words = [("task", name) for name in CHECKS] + [("actor", name) for name in ACTOR_CHECKS]
    words += [("method", name) for name in METHOD_CHECKS]
    words += [("group", strategy) for strategy in sorted(VALID_PLACEMENT_GROUP_STRATEGIES)]
    words += [("group", name) for name in _options_of(placement_group) if name != "strategy"]
    for kind, module in (("minray", minray), ("util", minray.util)):
        for name, thing in _callables(module):
            options = [] if (kind, name, "") in EXCLUDED else _options_of(thing)
            words += [(kind, name), *((kind, f"{name} {option}") for option in options)]
    return words + [("generator", name) for name, _ in _methods_of_generators()]


def all_cells() -> list[Cell]:
    return [(kind, word, event) for kind, word in words_of_the_package() for event in LIVES[kind]]


def excluded() -> dict[Cell, str]:
    """All cells that are excluded, each with its reason."""
    return {cell: reason for entry, reason in EXCLUDED.items() for cell in all_cells() if _is_of(cell, entry)}


def mistakes(reached: Mapping[Cell, int]) -> list[str]:
    """Entries of ``EXCLUDED`` that exclude no cell, or exclude one that programs reach; and cells that are in no table."""
    cells = all_cells()
    found = [f"{entry} excludes no cell" for entry in EXCLUDED if not any(_is_of(cell, entry) for cell in cells)]
    found += [f"{cell} is excluded, and programs reach it" for cell in excluded() if reached.get(cell)]
    return found + [f"{cell} is no cell" for cell in reached if cell not in cells]


def _is_of(cell: Cell, entry: tuple[str, str, str]) -> bool:
    kind, word, event = entry
    return cell[:2] == (kind, word) and event in ("", cell[2])


def _callables(module: Any) -> Iterator[tuple[str, Any]]:
    """Functions of a module, and its classes if programs make instances of them."""
    for name in module.__all__:
        thing = getattr(module, name)
        is_made = inspect.isclass(thing) and module is not minray
        if (inspect.isfunction(thing) and name not in DECORATORS) or is_made:
            yield name, thing


def _options_of(thing: Any) -> list[str]:
    """Parameters of a function or constructor that have defaults."""
    return [name for name, one in inspect.signature(thing).parameters.items() if one.default is not inspect.Parameter.empty]


def _said(options: Mapping[str, Any]) -> list[str]:
    """Options with a value that says something. False says something only of ``enable_task_events``."""

    def says(name: str, value: Any) -> bool:
        is_empty = value is None or value in ("", {}) or (value is False and name != "enable_task_events")
        return not is_empty and value != UNSAID.get(name)

    return [name for name, value in options.items() if says(name, value)]


def _methods_of_generators() -> list[tuple[str, Any]]:
    """Methods of a generator but those that refuse to work."""
    methods = [(name, one) for name, one in vars(ObjectRefGenerator).items() if inspect.isfunction(one) and name[0] != "_"]
    return [(name, one) for name, one in methods if inspect.get_annotations(one).get("return") not in (NoReturn, "NoReturn")]


# --- Hearing


class Listener:
    """Notes which operation says which words, while it listens."""

    def __init__(self) -> None:
        self.said: dict[str, set[Word]] = {}
        """Operation -> the words that it has said."""
        self._present = threading.local()

    def hear(self, kind: str, words: Iterator[str] | list[str]) -> None:
        name = getattr(self._present, "operation", ELSEWHERE)
        self.said.setdefault(name, set()).update((kind, word) for word in words)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Stand before the API, in all modules that programs are made of."""
        with ExitStack() as stack:
            for holder, name, before in self._places():
                stack.enter_context(mock.patch.object(holder, name, before))
            yield

    def _places(self) -> Iterator[tuple[Any, str, Any]]:
        """Each holder of a word, the word's attribute, and what stands before it meanwhile."""
        yield Stage, "_outcome_of", self._noting_the_operation(Stage._outcome_of)
        yield RemoteFunction, "remote", self._before_options("task", RemoteFunction.remote)
        yield ActorClass, "_make", self._before_options("actor", ActorClass._make)
        yield ActorMethod, "options", self._before_method(ActorMethod.options)
        for name, function in _methods_of_generators():
            yield ObjectRefGenerator, name, self._before("generator", name, function)
        words = {placement_group: self._before_group(placement_group)}
        for kind, module in (("minray", minray), ("util", minray.util)):
            for name, thing in _callables(module):
                if inspect.isclass(thing):
                    yield thing, "__init__", self._before(kind, name, thing.__init__)
                else:
                    words.setdefault(thing, self._before(kind, name, thing))
        spoken = ("tests.spec.", "minray.util", "minray.actor")
        for module in [one for name, one in sys.modules.items() if name == "minray" or name.startswith(spoken)]:
            for name, thing in list(vars(module).items()):
                if inspect.isfunction(thing) and thing in words:
                    yield module, name, words[thing]

    def _noting_the_operation(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def notes(stage: Stage, operation: Operation) -> Any:
            before, self._present.operation = getattr(self._present, "operation", ELSEWHERE), operation.name
            try:
                return function(stage, operation)
            finally:
                self._present.operation = before

        return notes

    def _before(self, kind: str, word: str, function: Callable[..., Any]) -> Callable[..., Any]:
        options, signature = _options_of(function), inspect.signature(function)

        @functools.wraps(function)
        def says(*args: Any, **kwargs: Any) -> Any:
            given = signature.bind(*args, **kwargs).arguments if options else {}
            defaults = {name: signature.parameters[name].default for name in options}
            self.hear(
                kind, [word, *(f"{word} {name}" for name in options if given.get(name, defaults[name]) != defaults[name])]
            )
            return function(*args, **kwargs)

        return says

    def _before_group(self, function: Callable[..., Any]) -> Callable[..., Any]:
        says, signature = self._before("util", "placement_group", function), inspect.signature(function)

        @functools.wraps(function)
        def says_strategy(*args: Any, **kwargs: Any) -> Any:
            bound = signature.bind(*args, **kwargs)
            named = [name for name in _options_of(function) if bound.arguments.get(name) and name != "strategy"]
            self.hear("group", [str(bound.arguments.get("strategy", "PACK")), *named])
            return says(*args, **kwargs)

        return says_strategy

    def _before_options(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def says(thing: Any, *args: Any, **kwargs: Any) -> Any:
            self.hear(kind, _said(thing._options))
            for method in methods_of(thing._class).values() if kind == "actor" else ():
                self.hear("method", _said(getattr(method, METHOD_OPTIONS, {})))
            return function(thing, *args, **kwargs)

        return says

    def _before_method(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def says(method: ActorMethod, **options: Any) -> Any:
            self.hear("method", _said(options))
            return function(method, **options)

        return says


# --- Lives


def lives_of(scenario: Scenario, verdict: Verdict) -> dict[str, set[str]]:
    """Operation -> the events that have befallen what it makes."""
    program = scenario.program
    befallen = _befallen(scenario, verdict)
    lives = {operation.name: {MADE} | _told_by_the_text(operation, program) for operation in program.walk()}
    for operation in program.walk():
        for event, name in _touched(operation):
            thing = name if name in lives else name.rpartition(".")[0]
            if thing in lives:
                lives[thing].add(event)
    runs = Counter(_begun(verdict.trace.events))
    again = {name.partition("#")[0] for name, count in runs.items() if count > 1}
    for name, events in lives.items():
        events |= befallen | ({RETRIED} if name in again else set())
    for name in _orphans(scenario, verdict):
        lives[name].add(ORPHANED)
    return lives | {ELSEWHERE: {MADE, USED} | befallen}


def _told_by_the_text(operation: Operation, program: Program) -> set[str]:
    """Events that an operation itself brings about, or others that say the name of its actor or group."""
    if isinstance(operation, Story):
        return operation.events()
    if isinstance(operation, Generate):
        events = {USED} if operation.read else set()
        return events | ({CANCELLED} if operation.cancel else set()) | ({DROPPED} if not operation.rest else set())
    called = getattr(operation, "called", "")
    others = [one for one in program.walk() if called and getattr(one, "called", "") == called and one is not operation]
    is_shown = any(not isinstance(one, Create) or one.get_if_exists for one in others)
    return {AGAIN} if is_shown else {USED} if not getattr(operation, "returns", 1) else set()


def _touched(operation: Operation) -> Iterator[tuple[str, str]]:
    """Events that an operation brings about, each with the name of the thing that it befalls. A story's have no names."""
    if isinstance(operation, Story):
        return
    fields = {key: getattr(operation, key) for key in operation.__struct_fields__ if key not in ("name", "called", "type")}
    body = fields.pop("body", None)
    fields["returned"] = getattr(body.end, "refs", ()) if body is not None else ()
    event = TOUCHES.get(type(operation), USED)
    for key, value in fields.items():
        for name in (value,) if isinstance(value, str) else value if isinstance(value, tuple) else ():
            yield event, name
            if key in ("nested", "returned"):
                yield AGAIN, name
            if getattr(operation, "lets_go", False):
                yield DROPPED, name


def _befallen(scenario: Scenario, verdict: Verdict) -> set[str]:
    """Events that befall everything in a run."""
    losses = losses_of(verdict.answers, scenario.world)
    is_lost = len(scenario.world.nodes) > 1 and (losses.nodes or losses.departures)
    is_restarted = any(key[:2] == ("crash", GCS) for key in verdict.answers)
    return ({LOST} if is_lost else set()) | ({RESTARTED} if is_restarted else set())


def _orphans(scenario: Scenario, verdict: Verdict) -> Iterator[str]:
    """Operations of processes that have died: a driver that crashed or left, a task that exits, tasks of crashed workers."""
    program, tasks = scenario.program, {one.name: one for one in scenario.program.performances()}
    crashed = {str(key[1]) for key in verdict.answers if key[0] == "crash"}
    workers_die = any(name.startswith("worker/") for name in crashed)
    for number, driver in enumerate(program.drivers):
        is_gone = f"driver/{number}" in crashed or isinstance(driver.end, Exit | Leave)
        for owner, operation in walk(driver, ""):
            exits = owner and isinstance(tasks[owner].body.end, Exit | ExitActor)
            if is_gone or exits or (owner and workers_die):
                yield operation.name


def _begun(events: Iterable[Event]) -> Iterator[str]:
    """Names of tasks, calls and actors, once for each line in which they say that they run."""
    for event in events:
        if event.kind == OUTPUT and event.process.startswith("worker/"):
            begin = BEGIN.match(event.details[1])
            if begin is not None:
                yield begin["name"]


class ApiCoverage:
    """Counts of cells, for all runs that were added."""

    def __init__(self) -> None:
        self.reached: Counter[Cell] = Counter()
        """Cell -> the number of runs that reached it."""
        self.struck: Counter[Cell] = Counter()
        """Cell -> the number of runs with a loud fault that reached it."""

    def add(self, scenario: Scenario, verdict: Verdict, said: Mapping[str, set[Word]]) -> None:
        lives = lives_of(scenario, verdict)
        cells = {
            (kind, word, event)
            for name, words in said.items()
            for kind, word in words
            for event in lives[name] | ({USED} if LIVES[kind] is OF_CALLS else set())
            if event in LIVES[kind]
        }
        self.reached.update(cells)
        if any(key[0] in LOUD for key in verdict.answers):
            self.struck.update(cells)

    def merge(self, other: ApiCoverage) -> None:
        self.reached.update(other.reached)
        self.struck.update(other.struck)

    def line(self) -> str:
        """Summary in one line."""
        known, out = all_cells(), excluded()
        asked = [cell for cell in known if cell not in out]
        reached = sum(cell in self.reached for cell in asked)
        struck = sum(cell in self.struck for cell in asked)
        share = f"{reached} of {len(asked)} ({100 * reached / len(asked):.0f} %)"
        return f"cells of the API: {share}, {struck} in runs with a fault; {len(out)} of {len(known)} excluded"

    def table(self) -> str:
        """Table of the words and events: the number of runs that reached each cell, and of those with a loud fault."""
        out, rows = excluded(), [f"{'word':<52} " + " ".join(f"{event:>14}" for event in EVENTS)]
        for kind, word in words_of_the_package():
            cells = [self._shown((kind, word, event), out) if event in LIVES[kind] else "" for event in EVENTS]
            rows.append(f"{kind + ' ' + word:<52} " + " ".join(f"{cell:>14}" for cell in cells))
        return "\n".join(row.rstrip() for row in [*rows, self.line(), *mistakes(self.reached)])

    def _shown(self, cell: Cell, out: Mapping[Cell, str]) -> str:
        return "excluded" if cell in out else f"{self.reached[cell]}/{self.struck[cell]}" if self.reached[cell] else "-"
