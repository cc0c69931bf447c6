"""Bounds that hold at every moment (L2): rules of ``Progress`` about tables, and a look at each message.

A table that grows beyond its bound harms no small program. The bound is read where it was set, in the configuration or as a
constant, and not from the class that keeps it. Campaigns draw bounds so small that few tasks reach them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from minray.common.bounds import BOUNDS
from minray.common.config import SystemConfig
from minray.core_worker.submission.task_manager import MOST_RECENT
from minray.gcs.worker_manager import MAX_WORKER_DEATHS
from minray.protocol.base import decode
from minray.protocol.core_worker import GetObjects, RemoveBorrower, UpdateObjectLocations
from minray.protocol.gcs import PollReply
from minray.protocol.object_store import FreeObjects, PromoteObjects
from tests.simulation.insides import ACTORS, SPILLING, SUBMITTER, Rule, looks_into


def _beyond(sizes: dict[str, tuple[int, int]]) -> Iterator[str]:
    for name, (size, most) in sizes.items():
        if size > most:
            yield f"has {size} {name}, and may have {most}"


@looks_into(ACTORS)
def of_the_gcs(gcs: Any, _now: float) -> Iterator[str]:
    """The gcs keeps few things that are over."""
    system = gcs._config.system_config
    yield from _beyond({
        "dead actors": (len(gcs._actors._actors._dead), system.maximum_gcs_destroyed_actor_cached_count),
        "finished jobs": (len(gcs._jobs._past), system.maximum_gcs_finished_job_cached_count),
        "removed placement groups": (len(gcs._groups._removed), system.maximum_gcs_removed_placement_group_cached_count),
        "deaths of workers": (len(gcs._workers._deaths), MAX_WORKER_DEATHS),
        "rows of tasks": (gcs.tasks.tasks, system.task_events_max_num_task_in_gcs),
        "bytes of rows of tasks": (gcs.tasks.size_bytes, system.task_events_max_bytes_in_gcs),
    })  # fmt: skip
    for channel, topic in gcs._publisher._topics.items():
        removals = len(topic.changed_at) - len(topic.values)
        yield from _beyond({f"removals of channel {channel}": (removals, system.publisher_max_removals)})


@looks_into(SPILLING)
def of_a_node(raylet: Any, _now: float) -> Iterator[str]:
    """A node does few things at a time."""
    system, manager, pool = raylet._config.system_config, raylet.io_workers._manager, raylet._broker.pool
    pulls = [pull for pull in raylet.objects._pulls.values() if hasattr(pull, "_in_flight")]
    yield from _beyond({
        "files that are written": (manager.writing, system.max_io_workers),
        "starting workers": (len(pool._starting), pool._max_starting),
        "chunks of one object on their way": (
            max((pull._in_flight for pull in pulls), default=0), system.object_manager_chunks_at_once
        ),
    })  # fmt: skip


@looks_into(SUBMITTER)
def of_a_core(core: Any, _now: float) -> Iterator[str]:
    """An owner remembers and asks for few things; so does a borrower, and a generator."""
    system, submission = core.config.system_config, core.submission
    submitter, lineage = submission.submitter, submission.recovery.lineage
    workers = submitter._workers.values()
    streams = core.execution.generator_executor._waiting.values()
    borrowed = [one for _, one in core.references.items() if one.held_tickets]
    yield from _beyond({
        "ended tasks": (len(submission.tasks.recent), MOST_RECENT),
        "bytes of remembered tasks": (lineage.bytes, system.max_lineage_bytes),
        "placement groups that it remembers": (len(core.placement_groups._known), system.max_known_placement_groups),
        "tasks on one worker": (
            max((len(one.in_flight) for one in workers), default=0), system.max_tasks_in_flight_per_worker
        ),
        "tickets of one object": (max((len(one.held_tickets) for one in borrowed), default=0), system.max_borrower_tickets),
        "reports of one generator on their way": (
            max((one.reported - one.answered for one in streams), default=0), system.generator_max_reports_in_flight + 1
        ),
    })  # fmt: skip


OF_GCS: tuple[Rule, ...] = (of_the_gcs,)
OF_NODES: tuple[Rule, ...] = (of_a_node,)
OF_CORES: tuple[Rule, ...] = (of_a_core,)


def _bytes_of_news(reply: PollReply) -> int:
    """Return the bytes of an answer to a poll; a single entry may have as many as it likes."""
    return sum(len(key) + len(value or b"") for key, value in reply.entries) if len(reply.entries) > 1 else 0


MESSAGES: dict[str, tuple[type[Any], Callable[[Any], int], str]] = {
    "FreeObjects": (FreeObjects, lambda request: len(request.copies), "max_items_per_batch"),
    "PromoteObjects": (PromoteObjects, lambda request: len(request.copies), "max_items_per_batch"),
    "RemoveBorrower": (RemoveBorrower, lambda request: len(request.loans), "max_items_per_batch"),
    "UpdateObjectLocations": (UpdateObjectLocations, lambda request: len(request.changes), "max_items_per_batch"),
    "GetObjects": (GetObjects, lambda request: len(request.questions), "max_questions_per_message"),
    "Poll reply": (PollReply, _bytes_of_news, "publisher_max_reply_bytes"),
}
"""Word -> the record of such a message, its size, and the name of its bound."""


class Messages:
    """Looks at the messages of one cluster whose bounds are small; no ordinary program reaches the others."""

    def __init__(self, on_broken: Callable[[str, str], None], system: SystemConfig) -> None:
        self._on_broken = on_broken
        small = [word for word, (*_, name) in MESSAGES.items() if getattr(system, name) < getattr(BOUNDS, name)]
        self._bounds = {word: getattr(system, MESSAGES[word][2]) for word in small}

    def on_send(self, end: Any, message: Any, word: str) -> None:
        """Look at a message that is about to be sent."""
        if (most := self._bounds.get(word)) is not None:
            record, size_of, _ = MESSAGES[word]
            if (size := size_of(decode(record, message.payload))) > most:
                self._on_broken("L2", f"{end.pipe.source.name} sends {size} things in one {word}, and may send {most}")
