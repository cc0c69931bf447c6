"""S7, by looking into all processes at once: an object is freed only if nobody else holds, borrows or carries a reference.

An owner forgets an object of its own, or frees its value and keeps its lineage. At that moment the watch asks every other
living process whether it holds a reference, and every answer on its way whether it brings one. Only a simulation can do
so: the owner itself knows nothing but its tickets.

What may be lost with the dead, and is no problem
  * A task that was pushed holds its arguments by its submitter alone. Has the submitter died, or given the worker up, the
    task's references are good for nothing, and so are those of the tasks that it has submitted. The same holds for calls.
  * An answer of a process that is dead is not awaited: its tickets are doubtful until the receiver has said whether it came.
  * An actor that was killed for good is dead for its callers before its process is: what that holds is good for nothing.
  * Processes that hear that a living process was declared dead may void its tickets. From then on nothing is judged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from minray.common.ids import short, task_of
from minray.core_worker.records.pending_task import PUSHED
from minray.platform.transport.queued_channel import REPLY
from minray.protocol.actor import DEAD
from minray.simulation.loop import SimProcess

CARRIERS = ("PushTask", "GetObject", "GetObjects")
"""Methods whose replies bring references along."""


class Watched(dict[bytes, Any]):
    """The table of a reference counter, which tells what it forgets."""

    def __init__(self, table: dict[bytes, Any], on_forgotten: Callable[[bytes, Any], None]) -> None:
        super().__init__(table)
        self._on_forgotten = on_forgotten

    def __delitem__(self, object_id: bytes) -> None:
        reference = self[object_id]
        super().__delitem__(object_id)
        self._on_forgotten(object_id, reference)


class Holders:
    """All reference counters of one cluster."""

    def __init__(self, on_broken: Callable[[str], None], actors: Callable[[], dict[bytes, Any]]) -> None:
        """``actors``: the rows of the gcs that lives."""
        self._actors = actors
        self.looks = 0
        """How many objects were freed by their owners and looked for elsewhere."""
        self._on_broken = on_broken
        self._cores: dict[bytes, tuple[SimProcess, Any]] = {}
        """By worker id."""
        self._is_undecidable = False
        """A living process was declared dead."""

    def add(self, process: SimProcess, core: Any) -> None:
        """A core worker has started."""
        self._cores[core.process.address.worker_id] = process, core
        references = core.references
        hear_of_death, free_value = references.on_death, core.borrowing._on_freed

        def on_forgotten(object_id: bytes, reference: Any) -> None:
            if reference.owner is None and not self._is_undecidable and not core.process.is_exiting:
                self._look(process.name, core, object_id)

        def on_death(worker_or_node_id: bytes, effects: Any) -> None:
            if any(worker_or_node_id in (other.address.worker_id, other.address.node_id) for _, other in self._alive()):
                self._is_undecidable = True
            hear_of_death(worker_or_node_id, effects)

        def on_freed(effects: Any) -> None:
            before = len(effects.freed)
            look_at(effects.freed)
            free_value(effects)
            look_at(effects.freed[before:])

        def look_at(object_ids: Any) -> None:
            for object_id in object_ids:
                reference = references.reference_of(object_id)
                if reference is not None:  # for lineage
                    on_forgotten(object_id, reference)

        self._watch_lineage(process.name, core.submission.recovery.lineage)
        references._references = Watched(references._references, on_forgotten)
        references.on_death, core.borrowing._on_freed = on_death, on_freed

    def _watch_lineage(self, name: str, lineage: Any) -> None:
        """A task is remembered as long as one of the results is there for which it is."""
        forget = lineage.on_forgotten

        def watched(object_id: bytes, effects: Any) -> None:
            task_id = task_of(object_id)
            before = lineage._tasks.get(task_id)
            left = set() if before is None else before.results - {object_id}
            forget(object_id, effects)
            if left and task_id not in lineage._tasks:
                self._on_broken(f"{name} forgets how {len(left)} results of task {short(task_id)} are made, which are there")

        lineage.on_forgotten = watched

    def _is_killed(self, core: Any) -> bool:
        """Whether this process ends, because its actor was killed for good."""
        actor = core.execution.actor_receiver.actor
        row = None if actor is None else self._actors().get(actor.actor_id)
        return row is not None and row.info.state == DEAD

    def _alive(self) -> Iterator[tuple[str, Any]]:
        return ((process.name, core) for process, core in self._cores.values() if process.alive)

    def _look(self, owner_name: str, owner: Any, object_id: bytes) -> None:
        self.looks += 1
        for why in (*self._holders(owner, object_id), *self._carriers(object_id)):
            self._on_broken(f"{owner_name} frees {short(object_id)}, and {why}")
            return

    def _holders(self, owner: Any, object_id: bytes) -> Iterator[str]:
        for name, core in self._alive():
            reference = core.references.reference_of(object_id) if core is not owner and not self._is_killed(core) else None
            if reference is not None and reference.is_held() and self._is_protected(core, object_id, reference, {}):
                yield f"{name} holds it: {_describe(reference)}"

    def _carriers(self, object_id: bytes) -> Iterator[str]:
        for name, core in self._alive():
            for end in core.platform.network.ends:
                source = end.other.pipe.source
                for _, _, message in end.other.pipe._way if source.alive else ():
                    is_awaited = message.kind == REPLY and message.method in CARRIERS and message.number in end._calls
                    if is_awaited and object_id in message.payload:
                        yield f"{message.word} from {source.name} to {name} carries it"

    def _is_protected(self, core: Any, object_id: bytes, reference: Any, asked: dict[bytes, None]) -> bool:
        """Whether no death explains that the owner does not know of this reference."""
        if reference.held_tickets:
            return True
        here = [*core.execution.receiver.lease.tasks.values(), *core.execution.actor_receiver.unanswered()]
        running = [task for task in here if task.reply is None and object_id in task.held]
        actor = core.execution.actor_receiver.actor
        if not running and not reference.is_wanted() and actor is not None and actor.is_ending:
            return False  # it has asked for the arguments of a call that it has refused since
        return not running or any(self._is_protected_by_submitter(core, task, object_id, asked) for task in running)

    def _is_protected_by_submitter(self, core: Any, task: Any, object_id: bytes, asked: dict[bytes, None]) -> bool:
        submitter_id = task.header.owner.worker_id
        process, submitter = self._cores.get(submitter_id, (None, None))
        if process is None or submitter is None or submitter_id in asked or not process.alive:
            return False
        pending = submitter.submission.tasks.tasks.get(task.task_id)
        if pending is None or pending.state is not PUSHED or pending.attempt != task.attempt or pending.worker is None:
            return False
        if not _is_pushed_to(pending, task, core):
            return False
        reference = submitter.references.reference_of(object_id)
        if reference is None or reference.owner is None:
            return True
        return self._is_protected(submitter, object_id, reference, {**asked, core.process.address.worker_id: None})


def _is_pushed_to(pending: Any, task: Any, core: Any) -> bool:
    """Whether its submitter means this lease, or this push of a call: a caller may have given up an earlier one."""
    if pending.prepared.client is None:
        return bool(pending.worker.lease_id == core.execution.receiver.lease_id)
    return bool(pending.worker.address == core.process.address and pending.sequence == task.sequence)


def _describe(reference: Any) -> str:
    tickets = len(reference.held_tickets or ())
    return f"{reference.local} local, {reference.submitted} submitted, {reference.contained} contained, {tickets} tickets"
