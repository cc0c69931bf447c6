"""Finds what a test leaves in its cluster: actors, placement groups, tasks and references, and how each is ended.

Ray: has no counterpart; the fixtures of python/ray/tests/conftest.py start a new cluster instead

``ClusterState`` is taken before a test. ``left_since`` returns what came since and does not go by itself. Handles and
references that a test holds in its variables go with them, so most of it ends while this file looks.

Rules
  * The driver's own tables are asked, and the gcs. Tasks and references of other processes are not counted: they end with
    the tasks and actors that have them.
  * Garbage is collected only if something is left at the first look. A collection may take longer than the test.
  * References that were pickled by hand are pinned for good by design, and never count.
"""

from __future__ import annotations

import asyncio
import gc
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from minray.api.actor_handle import ActorHandle
from minray.api.calls import state_reader
from minray.api.placement_group import PlacementGroup, remove_placement_group
from minray.common.clock import Clock
from minray.common.ids import PlacementGroupID, actor_of, job_of_actor, return_id, short, task_of
from minray.core_worker.ownership.reference_counter import Reference
from minray.core_worker.user_threads.actor_api import ActorApi
from minray.core_worker.user_threads.user_api import UserApi
from minray.exceptions import RayError
from minray.gcs.placement_group_manager import REMOVED
from minray.protocol.actor import DEAD, ActorInfo
from minray.protocol.placement_group import PlacementGroupInfo
from minray.testing.holders import holder_of
from minray.values.object_ref import ObjectRef

PATIENCE_S = 2.0
"""Seconds that actors, tasks and references get to end after the test's variables have gone."""
LOOKS_S = (0.02, 0.1)
"""Seconds after which garbage is collected, first the young, then all. Handles in cycles are seldom older than a test."""
ENDING_S = 0.3
"""Seconds that detached actors and placement groups get to end after ``kill`` and ``remove_placement_group`` returned."""
POLL_S = 0.001
ANSWER_S = 10.0
"""Seconds that the gcs has to answer."""


@dataclass(frozen=True)
class ClusterState:
    """The actors, groups, tasks and references of a cluster, as its driver and its gcs know them."""

    actors: dict[bytes, ActorInfo]
    groups: dict[bytes, PlacementGroupInfo]
    tasks: dict[bytes, str]
    """Names of this driver's unfinished tasks and calls, by id."""
    references: dict[bytes, Reference]

    @classmethod
    def of(cls, api: UserApi) -> ClusterState:
        found: ClusterState = api.run_on_loop(lambda: cls._read(api))
        return found

    @classmethod
    async def _read(cls, api: UserApi) -> ClusterState:
        reader, port = state_reader(api), api.port
        await asyncio.wait_for(api.placement_groups.settle_all(), ANSWER_S)
        actors, groups = await reader.actors(ANSWER_S), await reader.placement_groups(ANSWER_S)
        return cls(
            {info.actor_id: info for info in actors if info.state != DEAD},
            {info.group_id: info for info in groups if info.state != REMOVED},
            {key: task.prepared.template.name for key, task in port.submission.tasks.tasks.items()},
            {key: reference for key, reference in port.references.items() if not reference.pinned},
        )

    def without(self, before: ClusterState, of_job: bytes | None) -> ClusterState:
        """Return what has come since ``before``; with ``of_job`` only actors and groups of that job."""

        def counts(job_id: bytes) -> bool:
            return of_job is None or job_id == of_job

        actors, groups = self.actors.items(), self.groups.items()
        asked_for = before.asked_for()
        return ClusterState(
            {key: info for key, info in actors if key not in asked_for and counts(job_of_actor(key))},
            {key: info for key, info in groups if key not in before.groups and counts(info.job_id)},
            {key: name for key, name in self.tasks.items() if key not in before.tasks},
            {key: one for key, one in self.references.items() if key not in before.references},
        )

    def asked_for(self) -> set[bytes]:
        """Return the ids of actors that exist, and of those that this driver has asked for.

        The gcs may not know the latter yet. Their constructors and handles are among the driver's tasks and references.
        """
        tasks = [*self.tasks, *map(task_of, self.references)]
        return {*self.actors, *map(actor_of, tasks)}

    def lasts(self) -> bool:
        """Whether nothing here ends by itself, so that a long wait is useless: detached actors and groups alone are left."""
        return not self.tasks and not self.references and all(info.detached for info in self.actors.values())

    def __bool__(self) -> bool:
        return bool(self.actors or self.groups or self.tasks or self.references)


@dataclass(frozen=True)
class Leak:
    """One thing that was left."""

    line: str
    """A sentence that names it, says what keeps it, and how a test ends it."""
    end: Callable[[], object]
    """Ends it, as far as that can be done from outside."""


def left_since(
    before: ClusterState, api: UserApi, patience_s: float = PATIENCE_S, of_job: bytes | None = None
) -> list[Leak]:
    """Return what has come into the cluster since ``before`` and does not go within ``patience_s`` seconds.

    ``of_job``: count only actors and groups of this job; None: all. Returns nothing for a cluster that does not answer.
    """
    try:
        return _left_since(before, api, patience_s, of_job)
    except (RayError, TimeoutError):
        return []


def _left_since(before: ClusterState, api: UserApi, patience_s: float, of_job: bytes | None) -> list[Leak]:
    began = Clock.monotonic()
    pause = threading.Event()
    collections = 0
    while left := ClusterState.of(api).without(before, of_job):
        waited_s = Clock.monotonic() - began
        if collections < len(LOOKS_S) and waited_s > min(LOOKS_S[collections], patience_s):
            gc.collect(1 + collections)
            collections += 1
        elif waited_s > (min(ENDING_S, patience_s) if left.lasts() else patience_s):
            return _described(left, api)
        pause.wait(POLL_S)
    return []


def _described(left: ClusterState, api: UserApi) -> list[Leak]:
    handles, refs = _handles_and_refs()
    leaks = [_actor(info, handles.get(info.actor_id, []), api) for info in left.actors.values()]
    leaks += [_group(info) for info in left.groups.values()]
    calls = {task: name for task, name in left.tasks.items() if actor_of(task) not in left.actors}
    leaks += [_task(task, name, api) for task, name in calls.items()]
    for object_id, reference in left.references.items():
        told = task_of(object_id) in left.tasks or actor_of(task_of(object_id)) in left.actors
        if not told:
            leaks.append(_reference(object_id, reference, refs.get(object_id, []), api))
    return leaks


def _handles_and_refs() -> tuple[dict[bytes, list[object]], dict[bytes, list[object]]]:
    """Return all handles of actors by actor, and all references by object, that this process has."""
    handles: dict[bytes, list[object]] = {}
    refs: dict[bytes, list[object]] = {}
    for one in gc.get_objects():
        kind = type(one)
        if kind is ActorHandle:
            handles.setdefault(one._actor_id, []).append(one)
        elif kind is ObjectRef:
            refs.setdefault(one._id, []).append(one)
    return handles, refs


def _kept(things: list[object]) -> str:
    """Return what keeps these handles or references, as the end of a sentence; empty if nothing was found."""
    found = next((holder for holder in map(holder_of, things) if holder), "")
    return f", kept by {found}" if found else ""


def _actor(info: ActorInfo, handles: list[object], api: UserApi) -> Leak:
    name = f" {info.name!r}" if info.name else ""
    what = f"{'detached actor' if info.detached else 'actor'} {info.class_name}{name} ({info.state.lower()})"
    elsewhere = f", namespace={info.namespace!r}" if info.namespace != api.namespace else ""
    by_name = f"minray.kill(minray.get_actor({info.name!r}{elsewhere}))"
    if info.detached:
        how = f"{by_name} ends it" if info.name else "minray.kill() ends it"
    else:
        how = "drop its handle, or minray.kill() it"
    return Leak(f"{what}{_kept(handles)}: {how}", lambda: ActorApi(api).kill(info.actor_id, True))


def _group(info: PlacementGroupInfo) -> Leak:
    name = f" {info.name!r}" if info.name else ""
    handle = PlacementGroup(PlacementGroupID(info.group_id))
    what = f"{'detached ' if info.detached else ''}placement group{name} ({info.state.lower()})"
    return Leak(f"{what}: remove_placement_group() ends it", lambda: remove_placement_group(handle))


def _task(task_id: bytes, name: str, api: UserApi) -> Leak:
    own = api.port.process.address
    return Leak(
        f"task {name} has not ended: get() its result, or minray.cancel() it",
        lambda: api.post(api.port.submission.cancel_task, return_id(task_id, 1), own, True, True),
    )


def _reference(object_id: bytes, reference: Reference, refs: list[Any], api: UserApi) -> Leak:
    site = api.call_site_of(refs[0]) if refs else ""
    kept = _kept(refs) or _kept_inside(reference)
    made = f", made at {site}" if site else ""
    return Leak(f"reference {short(object_id)}{made}{kept}: drop it (del, or clear what keeps it)", lambda: None)


def _kept_inside(reference: Reference) -> str:
    """Return which part of minray keeps an object without a reference in the program."""
    if reference.lent:
        return ", kept by another process that was given it (an actor's state, or a running task)"
    if reference.contained:
        return ", kept by another object that contains it"
    if reference.submitted:
        return ", kept by a task that takes it"
    return ""
