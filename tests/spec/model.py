"""The sequential model: which outcomes the guarantees allow for each operation of a program.

``Model`` goes over a program once, in the order of its text, and says of every object whether ``get`` may return its value
and which errors it may raise (``Expectation``). ``problems`` holds what a run has shown against that.

Rules
  * Without losses (processes or nodes that faults can kill) every ``get`` without a time-out has one outcome, unless the
    task is cancelled somewhere.
  * Each loss ends at most one attempt of a task (G16), or takes its value away, so that it has to run again (G67, G70): only
    a task with no more retries than losses may fail for it (G17).
  * An object that a task made is lost when that task's process dies, which faults, forced cancellations and tasks that
    exit can bring about (G62). Objects of drivers are never lost.
  * What a driver has once seen of its own object stays (G43): every later look must show the same. Only a task that runs
    again, since its value was lost with the node that had it in its object store, may end otherwise; and until it ends, its
    object is as if it had not been made yet.

What we do not like about it yet: a cancellation may strike at any time, so that one that certainly comes before its task
starts (G40) is not held to it; and time-outs may always strike.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from tests.spec.programs import END, RUN, Body, Cancel, Exit, Generate, History, Program, Submit, parse_word

LOST_OWNER = "OwnerDiedError"
LOST_OBJECT = "ObjectReconstructionFailedError"
TIMEOUT = "GetTimeoutError"
VALUE = "its value"
DRIVER = ""
"""The owner of what drivers make."""


@dataclass(frozen=True)
class Losses:
    """What faults can take away in a run."""

    deaths: int = 0
    """So many times processes may die, or count as dead."""
    nodes: bool = False
    """Whether whole nodes can be among them."""
    objects: bool = False
    """Whether values are in the object stores of such nodes."""
    files: bool = False
    """Whether values can be lost on disk, however often; or are not made again."""

    def errors(self) -> set[str]:
        return {"WorkerCrashedError", "NodeDiedError"} if self.nodes else {"WorkerCrashedError"}


@dataclass(frozen=True)
class Expectation:
    """Of one object."""

    owner: str
    """The task that makes it (by ``submit`` or ``put``)."""
    has_value: bool
    """Whether it may have its value."""
    errors: frozenset[str]
    """As names of classes; those that only others than the owner see are not among them."""
    inside: tuple[str, ...] = ()
    """The references that its value may hold, in order."""
    surely_inside: frozenset[str] = frozenset()
    """Those that it must."""

    @property
    def is_sure(self) -> bool:
        return not self.errors


@dataclass
class Scope:
    """Goes over one body; see ``foresee`` of the operations."""

    model: Model
    owner: str
    sure: set[str]
    """Names that must be bound now."""

    def foresee_body(self, body: Body) -> None:
        for operation in body.operations:
            self.model.sure_before[operation.name] = frozenset(self.sure)
            operation.foresee(self)

    def foresee_task(self, task: Submit) -> None:
        model = self.model
        inner = Scope(model, task.name, {name for name in task.nested if name in self.sure})
        for name in task.args:
            if name in self.sure:
                inner.open(name)
        inner.foresee_body(task.body)
        end = task.body.end
        errors = {end.error} - {""}
        for name in task.args:
            errors |= model.errors_seen_by(task.name, name)
        losses = model.losses
        uses_up = losses.deaths > task.max_retries or is_repeated(task) or losses.files
        if losses.deaths > 0 and uses_up:
            errors |= losses.errors()
        if losses.objects and (uses_up or task.name in model.cancelled):
            errors.add(LOST_OBJECT)
        if task.name in model.cancelled:
            errors |= {"TaskCancelledError", *(["WorkerCrashedError"] if model.cancelled[task.name] else [])}
        has_value = not end.error and all(model.objects[name].has_value for name in task.args if name in model.objects)
        refs: tuple[str, ...] = getattr(end, "refs", ())
        surely = frozenset(name for name in refs if name in inner.sure)
        model.objects[task.name] = Expectation(self.owner, has_value, frozenset(errors), refs, surely)
        self.sure.add(task.name)

    def foresee_put(self, name: str, refs: tuple[str, ...]) -> None:
        surely = frozenset(ref for ref in refs if ref in self.sure)
        self.model.objects[name] = Expectation(self.owner, True, frozenset(), refs, surely)
        self.sure.add(name)

    def foresee_items(self, generator: Generate) -> None:
        """An item that is bound was here; it may be lost later."""
        model = self.model
        errors = frozenset({LOST_OBJECT} if model.losses.objects else ())
        surely = frozenset(ref for ref in generator.refs if ref in self.sure)
        for name in generator.item_names():
            model.objects[name] = Expectation(self.owner, True, errors, generator.refs, surely)
        if not errors and not model.may_break_off(self.owner, generator):
            self.sure.update(generator.item_names())
            if generator.item_names():
                self.sure |= surely

    def foresee_get(self, names: tuple[str, ...]) -> None:
        if all(not self.model.errors_seen_by(self.owner, name) for name in names):
            for name in names:
                if name in self.sure:
                    self.open(name)

    def open(self, name: str) -> None:
        found = self.model.objects.get(name)
        if found is not None and not self.model.errors_seen_by(self.owner, name):
            self.sure |= found.surely_inside


class Model:
    """Everything that is foreseen of one program."""

    def __init__(self, program: Program, losses: Losses) -> None:
        self.program = program
        self.losses = losses
        self.tasks = {task.name: task for task in program.tasks()}
        self.objects: dict[str, Expectation] = {}
        self.sure_before: dict[str, frozenset[str]] = {}
        """Operation -> the names that must be bound when it begins."""
        self.cancelled: dict[str, bool] = {}
        """Task -> whether it may be cancelled by force."""
        for operation in program.walk():
            if isinstance(operation, Cancel) and operation.ref in self.tasks:
                self._cancel(self.tasks[operation.ref], operation.force, operation.recursive)
        exits = any(isinstance(task.body.end, Exit) for task in self.tasks.values())
        self.owners_die = losses.deaths > 0 or exits or any(self.cancelled.values())
        """Whether processes that run tasks can die."""
        for driver in program.drivers:
            Scope(self, DRIVER, set()).foresee_body(driver)

    def _cancel(self, task: Submit, force: bool, recursive: bool) -> None:
        self.cancelled[task.name] = force or self.cancelled.get(task.name, False)
        for operation in task.body.operations if recursive else ():
            if isinstance(operation, Submit):
                self._cancel(operation, force, recursive)

    def errors_seen_by(self, viewer: str, name: str) -> frozenset[str]:
        """What a ``get`` may raise in the process of ``viewer``."""
        found = self.objects.get(name)
        if found is None:
            return frozenset()
        lost = found.owner not in (DRIVER, viewer) and self.owners_die
        return found.errors | ({LOST_OWNER} if lost else frozenset())

    def may_break_off(self, owner: str, generator: Generate) -> frozenset[str]:
        """Errors that may end a generator before its time (G93)."""
        crashes = self.losses.errors() if self.losses.deaths > generator.max_retries else set()
        cancelled = {"TaskCancelledError", "WorkerCrashedError"} if owner in self.cancelled else set()
        return frozenset(crashes | cancelled)

    def most_runs(self, task: Submit) -> int:
        """Of one submission (G16, G18, G22)."""
        is_any = is_repeated(task) or self.losses.files
        return 1 + (task.max_retries if is_any else min(task.max_retries, self.losses.deaths))

    def can_be_lost(self, name: str) -> bool:
        """Whether it may have to be made again."""
        return self.losses.objects and name in self.tasks


def is_repeated(task: Submit) -> bool:
    """Whether its own failures use up its retries (G16, G18)."""
    end = task.body.end
    return isinstance(end, Exit) or (bool(end.error) and task.retry_exceptions)


@dataclass
class Reading:
    """Goes over the history of one body; see ``check`` of the operations."""

    model: Model
    viewer: str
    """The task whose history it is."""
    ready: set[str] = field(default_factory=set)
    """Objects that ``wait`` has named."""
    seen: dict[str, str] = field(default_factory=dict)
    """Objects that the viewer owns -> what a ``get`` has shown of them."""

    def check_body(self, body: Body, history: History) -> Iterator[str]:
        if len(history) != len(body.operations):
            yield f"history: {len(history)} outcomes of {len(body.operations)} operations"
        for operation, outcome in zip(body.operations, history, strict=False):
            yield from operation.check(self, outcome)

    def check_names(self, name: str, refs: tuple[str, ...], outcome: dict[str, object]) -> Iterator[str]:
        """The operation has used the names that it should."""
        of = outcome["of"]
        assert isinstance(of, list)
        missing = [ref for ref in refs if ref in self.model.sure_before[name] and ref not in of]
        if missing or of != [ref for ref in refs if ref in of]:
            yield f"G11: {name} should know {list(refs)}, and knows {of}"

    def is_there(self, name: str) -> bool:
        """Whether its value, or error, must be within reach: it was seen, or named by ``wait``, or put here."""
        if self.model.can_be_lost(name):
            return False
        expected = self.model.objects.get(name)
        is_own = expected is not None and expected.owner == self.viewer and name not in self.model.tasks
        return is_own or name in self.ready or name in self.seen

    def check_value(self, place: str, word: str) -> Iterator[str]:
        """A value that a ``get`` returned or a task was given."""
        name, inside = parse_word(word)
        expected = self.model.objects.get(name)
        if expected is None or not expected.has_value:
            yield f"G1: {place} got a value of {name}, which has none"
            return
        if inside != [ref for ref in expected.inside if ref in inside] or not expected.surely_inside <= set(inside):
            yield f"G60: {place} got {word}, which should hold {list(expected.inside)}"
        yield from self._check_same(place, expected, name, VALUE)

    def check_error(self, place: str, names: Sequence[str], error: str, timeout: float | None) -> Iterator[str]:
        """What a ``get`` of these raised."""
        if error == TIMEOUT:
            if timeout is None or all(map(self.is_there, names)):
                yield f"G7: {place} timed out on {list(names)}"
            return
        possible = [name for name in names if error in self.model.errors_seen_by(self.viewer, name)]
        if not possible:
            allowed = {name: sorted(self.model.errors_seen_by(self.viewer, name)) or "no error" for name in names}
            yield f"G17: {place} got {error}; allowed: {allowed}"
        if len(names) == 1 and possible:
            yield from self._check_same(place, self.model.objects[names[0]], names[0], error)

    def check_items(self, generator: Generate, items: Sequence[Sequence[str]]) -> Iterator[str]:
        """G90, G92, G93: the values in order, perhaps an error, the end."""
        place, model = generator.name, self.model
        allowed = model.may_break_off(self.viewer, generator)
        last = {f"RayTaskError({generator.type})"} if generator.type else set()
        is_over = False
        for number, (kind, shown) in enumerate(items, 1):
            name = f"{generator.name}.{number}"
            if kind == "end":
                if not is_over and (generator.type or number != generator.yields + 1):
                    yield f"G93: {place} ended before item {number}, without a word"
            elif is_over:
                yield f"G93: {place} goes on with {shown} after an error"
            elif kind == "value":
                if parse_word(shown)[0] != name or number > generator.yields:
                    yield f"G90: {place} shows {shown} as item {number} of {generator.yields}"
                yield from self.check_value(place, shown)
            elif shown != LOST_OBJECT or not model.losses.objects:
                is_over = True
                if shown not in (allowed | last if number == generator.yields + 1 else allowed):
                    yield f"G92: {place} shows {shown} as item {number} of {generator.yields}; allowed: {sorted(allowed)}"

    def _check_same(self, place: str, expected: Expectation, name: str, shown: str) -> Iterator[str]:
        if expected.owner == self.viewer:
            before = self.seen.setdefault(name, shown)
            self.seen[name] = shown
            if before != shown and not (before == VALUE and self.model.can_be_lost(name)):
                yield f"G43: {place} got {shown} of {name}, after {before}"


def problems(program: Program, losses: Losses, histories: Sequence[History], lines: Sequence[str]) -> list[str]:
    """What the guarantees forbid of these histories of drivers, and of what tasks have printed; one line each."""
    model = Model(program, losses)
    found: list[str] = []
    for driver, history in zip(program.drivers, histories, strict=True):
        found += Reading(model, DRIVER).check_body(driver, history)
    runs: Counter[str] = Counter()
    for line in lines:
        word, name, *details = json.loads(line)
        task = model.tasks[name]
        reading = Reading(model, name)
        if word == RUN:
            runs[name] += 1
            found += _check_arguments(reading, task, *details)
        else:
            assert word == END
            found += reading.check_body(task.body, details[0])
    return [*found, *_check_runs(model, runs)]


def _check_arguments(reading: Reading, task: Submit, words: list[str], nested: list[str]) -> Iterator[str]:
    """G10, G11: values at top level, references below."""
    for word in words:
        yield from reading.check_value(f"the body of {task.name}", word)
    outcome: dict[str, object] = {"of": [parse_word(word)[0] for word in words] + nested}
    yield from reading.check_names(task.name, task.args + task.nested, outcome)


def _check_runs(model: Model, runs: Counter[str]) -> Iterator[str]:
    parents = {child.name: task.name for task in model.tasks.values() for child in task.body.operations}
    for name, count in runs.items():
        parent = parents.get(name)
        most = model.most_runs(model.tasks[name]) * (runs[parent] if parent else 1)
        if count > most:
            yield f"G16: {name} ran {count} times, and may {most} times"
