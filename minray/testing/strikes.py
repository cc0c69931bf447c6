"""Says in words what a fault strikes: which process, and what runs there at that moment.

Ray: has no counterpart.

    watch = StrikeWatch(cluster)       # before the program starts
    watch.sentence()                   # worker 2 dies while `transform(3)` runs
    watch.legend()                     # worker 2 is worker/8b806476 on n1

Rules
  * Workers have numbers in the order in which they started: a person can remember "worker 2", not a name such as
    ``worker/8b806476``.
  * A call is shown with its arguments if the user's function has been entered, as they are in its frame at that moment. Only
    values of Python's basic types are written out. Running a user's ``__repr__`` could change the run.
  * Watching changes nothing: the watched run has the same trace. So no frame and no copy of its locals is kept.
  * A fault without a sentence of its own is described by its key.

Left out: which task a message is about, because the message is only a word and a number here.
"""

from __future__ import annotations

import inspect
import re
import reprlib
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import Any

from minray.common.ids import short
from minray.common.thread_frames import frames_of_other_threads
from minray.core_worker.core_worker import CoreWorker
from minray.core_worker.introspection.stacks import awaited_frames, thread_frames, users_part
from minray.core_worker.records.received_task import ReceivedTask
from minray.errors.tracebacks import is_runtime
from minray.simulation.cluster import SimCluster
from minray.simulation.faults import CUTS_S, DELAYS_S, LONG_DELAYS_S, LONG_STALLS_S, REPEATS_S, RESETS, STALLS_S, Key
from minray.simulation.loop import SimProcess
from minray.testing.shrink import describe_fault

WORKER = "worker/"
OF_PROCESSES = ("crash", "node_loss", "long_stall")
"""Loud faults that strike a process before one of its steps."""
BASIC = (bool, int, float, complex, str, bytes, type(None), list, tuple, dict, set, frozenset)
"""Types whose values are written out."""
MOST_CHARACTERS = 40
"""Characters of the arguments of a call that are shown."""
MOST_CALLS = 3
"""Number of running calls that are named."""
TASK = re.compile(r"task ([0-9a-f]{4}-\d+)(?=:)")
"""Matches a task in a story, with its short id as the story shows it."""
SHOWN_ID = 8
"""Characters of an id that a story shows."""
MOST_STRIKES = 3
"""Number of faults that a sentence describes."""


@dataclass(frozen=True)
class Strike:
    """A fault that has struck."""

    key: Key
    words: str
    """A clause with subject and verb: ``worker 2 dies while `transform(3)` runs``."""


class StrikeWatch:
    """Notes every fault of a run as it strikes."""

    def __init__(self, cluster: SimCluster) -> None:
        """Watch a cluster in which no fault has struck yet."""
        self.strikes: list[Strike] = []
        self.in_calls: list[Key] = []
        """The points at which a worker could have been struck in the middle of a call."""
        self._cluster = cluster
        self._tasks: dict[str, str] = {}
        """Short id -> name of the tasks that were pending when a worker took a step."""
        self._named: dict[str, str] = {}
        """The workers that the sentences mention, with their nodes."""
        cluster.oracle.listen(self._on_chance)

    def _on_chance(self, key: Key, answer: int) -> None:
        if key[0] in OF_PROCESSES and str(key[1]).startswith(WORKER):
            self._learn_names()
            if self._is_in_call(key[1]):
                self.in_calls.append(key)
        if answer:
            describe = CLAUSES.get(key[0])
            words = describe_fault(key) if describe is None else describe(self, key, answer)
            self.strikes.append(Strike(key, words))

    def sentence(self) -> str:
        """Return one clause for the faults that have struck, in their order; empty if there were none."""
        told = [strike.words for strike in self.strikes[:MOST_STRIKES]]
        rest = len(self.strikes) - len(told)
        more = [f"{rest} more fault{'s' * (rest > 1)} strike{'s' * (rest == 1)}"] if rest else []
        return ", and then ".join([*told, *more])

    def legend(self) -> str:
        """Return which processes the workers of the sentences are; empty if these mention none."""
        return "; ".join(f"{self._number(name)} is {name} on {node}" for name, node in self._named.items())

    def story(self, rows: int) -> str:
        """Return the run's story, in which tasks have the names of their functions."""
        return TASK.sub(self._with_name, self._cluster.trace.story(rows))

    def _with_name(self, found: re.Match[str]) -> str:
        name = self._tasks.get(found[1])
        return f"{name} {found[0]}" if name else found[0]

    # --- Names

    def _learn_names(self) -> None:
        for core in self._cluster.cores.values():
            for task_id, task in core.submission.tasks.tasks.items():
                self._tasks.setdefault(short(task_id)[:SHOWN_ID], task.prepared.template.name)

    def name(self, process: str) -> str:
        """Return a process's name for a person: ``worker 2``, ``the raylet of n1``."""
        role, _, rest = process.partition("/")
        if role == "worker":
            node = self._cluster.trace.nodes().get(process, "?")
            self._named.setdefault(process, node)
            return self._number(process)
        return f"the raylet of {rest}" if role == "raylet" else f"the {role}"

    def _number(self, worker: str) -> str:
        workers = [name for name in self._cluster.trace.nodes() if name.startswith(WORKER)]
        return f"worker {workers.index(worker) + 1}" if worker in workers else worker

    def link(self, link: str) -> tuple[str, str]:
        source, _, target = link.partition(">")
        return self.name(source), self.name(target)

    def node_of(self, process: str) -> str:
        return self._cluster.trace.nodes().get(process, "?")

    # --- Moments

    def moment(self, name: str) -> str:
        """Return what a process does now, as a clause of time; empty for processes that run no tasks."""
        process = self._process(name)
        if process is None or not name.startswith(WORKER):
            return ""
        core = self._cluster.cores.get(name)
        if core is None:
            return "while it starts"
        received = _received(core)
        running = _running(received)
        ended = [task for task in received if task.is_claimed() and _has_run(task)]
        waiting = [task for task in received if not task.is_claimed()]
        if running:
            return f"while {_listed(_calls(process, core, running))} {'run' if len(running) > 1 else 'runs'}"
        if ended:
            return f"when {_listed([f'`{_name(task)}`' for task in ended])} has run, before its result is sent"
        if waiting:
            return f"before {_listed([f'`{_name(task)}`' for task in waiting[:1]])} begins"
        actor = core.execution.executor.actor
        return "while it is idle" if actor is None else f"while its actor `{type(actor).__name__}` waits for calls"

    def _is_in_call(self, name: str) -> bool:
        """Whether a worker is in the middle of a call, and of only one."""
        process, core = self._process(name), self._cluster.cores.get(name)
        if process is None or core is None or len(running := _running(_received(core))) != 1:
            return False
        return _entry_of(running[0], list(_entered(process, core))) is not None

    def _process(self, name: str) -> SimProcess | None:
        found = [process for process in self._cluster.world.loop.processes if process.name == name and process.alive]
        return found[-1] if found else None


def _name(task: ReceivedTask) -> str:
    return task.header.template.name


def _received(core: CoreWorker) -> list[ReceivedTask]:
    return core.execution.receiver.unanswered() + core.execution.actor_receiver.unanswered()


def _running(received: Sequence[ReceivedTask]) -> list[ReceivedTask]:
    return [task for task in received if task.is_claimed() and not _has_run(task)]


def _has_run(task: ReceivedTask) -> bool:
    return task.is_over or task.execution is not None


def _listed(names: Sequence[str]) -> str:
    if len(names) > MOST_CALLS:
        return f"{len(names)} calls"
    return " and ".join(names)


def _calls(process: SimProcess, core: CoreWorker, running: Sequence[ReceivedTask]) -> list[str]:
    """Return the running calls of a process, with their arguments where the user's function has been entered."""
    frames = list(_entered(process, core))
    calls = []
    for task in running:
        entered = _entry_of(task, frames)
        if entered is None:
            calls.append(f"`{_name(task)}`")
        else:
            frames.remove(entered)
            calls.append(f"`{_name(task)}({_arguments(entered)})`")
    return calls


def _entry_of(task: ReceivedTask, frames: Sequence[FrameType]) -> FrameType | None:
    """Return the frame of a task's function among those of the functions that have been entered; None if it is not there."""
    name = _name(task).rpartition(".")[2]
    return next((frame for frame in frames if frame.f_code.co_name == name), None)


def _entered(process: SimProcess, core: CoreWorker) -> Iterator[FrameType]:
    """Yield the frame of the user's function of each call that has been entered in a process."""
    current = frames_of_other_threads()
    stacks = [thread_frames(current.get(ident)) for ident in process.user_thread_idents]
    actor = core.execution.actor_receiver.actor
    stacks += [awaited_frames(task) for task in (actor.coroutines() if actor is not None else [])]
    for stack in stacks:
        part = users_part(stack)
        if part and not is_runtime(part[0].f_code.co_filename):
            yield part[0]


def _arguments(frame: FrameType) -> str:
    values = inspect.getargvalues(frame)
    names = [name for name in values.args if name != "self"]
    shown = [_shown(values.locals[name]) if name in values.locals else "?" for name in names]
    if values.varargs:
        shown += [_shown(value) for value in values.locals.get(values.varargs, ())]
    if values.keywords:
        shown += [f"{name}={_shown(value)}" for name, value in values.locals.get(values.keywords, {}).items()]
    text = ", ".join(shown)
    if sys.version_info < (3, 13):
        values.locals.clear()  # Python would keep this copy as long as the frame, and values that the function has let go.
    return text if len(text) <= MOST_CHARACTERS else text[: MOST_CHARACTERS - 3] + "..."


def _shown(value: Any) -> str:
    """Return a value in short: written out if that runs no code of the user's, else the name of its class."""
    return _SHORT.repr(value) if type(value) in BASIC else f"<{type(value).__name__}>"


class _ShortRepr(reprlib.Repr):
    """Writes containers, in which values of other types are shown by the names of their classes."""

    def repr1(self, x: Any, level: int) -> str:
        return super().repr1(x, level) if type(x) in BASIC else f"<{type(x).__name__}>"


_SHORT = _ShortRepr()
_SHORT.maxlist = _SHORT.maxtuple = _SHORT.maxdict = _SHORT.maxset = _SHORT.maxfrozenset = 3


# --- One clause for each kind of fault


def _crash(watch: StrikeWatch, key: Key, answer: int) -> str:
    return f"{watch.name(key[1])} dies {watch.moment(key[1])}".rstrip()


def _node_loss(watch: StrikeWatch, key: Key, answer: int) -> str:
    moment = watch.moment(key[1])
    of_worker = f" with {watch.name(key[1])}, {moment}" if moment else ""
    return f"node {watch.node_of(key[1])} is lost{of_worker}"


def _stall(durations_s: Sequence[float]) -> Callable[[StrikeWatch, Key, int], str]:
    def describe(watch: StrikeWatch, key: Key, answer: int) -> str:
        return f"{watch.name(key[1])} stands still for {durations_s[answer]:g} s {watch.moment(key[1])}".rstrip()

    return describe


def _late(delays_s: Sequence[float]) -> Callable[[StrikeWatch, Key, int], str]:
    def describe(watch: StrikeWatch, key: Key, answer: int) -> str:
        source, target = watch.link(key[1])
        return f"the message `{key[2]}` from {source} to {target} is {delays_s[answer]:g} s late"

    return describe


def _reset(watch: StrikeWatch, key: Key, answer: int) -> str:
    source, target = watch.link(key[1])
    how = RESETS[answer]
    lost = {
        "lost": "and the message is lost",
        "answer lost": "and all that comes back is lost",
        "half-open here": f"and {source} hears of that only 30 s later",
        "half-open there": f"and {target} hears of that only 30 s later",
    }[how]
    return f"the connection from {source} to {target} breaks at the message `{key[2]}`, {lost}"


def _cut(watch: StrikeWatch, key: Key, answer: int) -> str:
    source, _, target = str(key[1]).partition(">")
    one, other = watch.node_of(source), watch.node_of(target)
    duration_s = CUTS_S[(answer + 1) // 2]
    if answer % 2:
        return f"{one} and {other} hear nothing of each other for {duration_s:g} s, from the message `{key[2]}` on"
    return f"{other} hears nothing of {one} for {duration_s:g} s, from the message `{key[2]}` on"


def _duplicate(watch: StrikeWatch, key: Key, answer: int) -> str:
    source, target = watch.link(key[1])
    return f"the message `{key[2]}` from {source} to {target} arrives again {REPEATS_S[answer]:g} s later"


def _preempt(watch: StrikeWatch, key: Key, answer: int) -> str:
    return f"user code of {watch.name(key[1])} waits for a moment {watch.moment(key[1])}".rstrip()


CLAUSES: dict[str, Callable[[StrikeWatch, Key, int], str]] = {
    "crash": _crash,
    "node_loss": _node_loss,
    "long_stall": _stall(LONG_STALLS_S),
    "stall": _stall(STALLS_S),
    "long_delay": _late(LONG_DELAYS_S),
    "delay": _late(DELAYS_S),
    "reset": _reset,
    "break": _reset,
    "cut": _cut,
    "duplicate": _duplicate,
    "preempt": _preempt,
}
"""Kind of fault -> the function that describes one. Only plans that name them have the other kinds."""
