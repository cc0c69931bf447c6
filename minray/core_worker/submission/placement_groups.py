"""Creates, removes and awaits placement groups for drivers and workers; the gcs decides about them.

Ray: CreatePlacementGroup, RemovePlacementGroup and WaitPlacementGroupReady of src/ray/core_worker/core_worker.h

Creating a group without a name, and removing a group, does not wait: the gcs hears of it while the program goes on, and the
message is repeated if need be. Until the gcs has answered, it is asked nothing else about this group, and for no list of
groups. No other process may hear of a group that the gcs does not know yet (``is_known``). Removing a group that may have a
name waits until the gcs has heard of the removal (``settle``). Hence a process that learns of the removal does not find the
group by its name.

``ready`` returns an object of this process that no task makes. Its value, the handle, is stored when the gcs says that the
group is created; an error is stored if the group was removed. Ray runs an empty task in the group's first bundle instead.
That takes a lease, which is not granted while other tasks use the bundle.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from minray.common.ids import PLACEMENT_GROUP_ID_BYTES, short
from minray.common.resources import ResourceSet
from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.objects import Objects
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.stored_object import StoredObject
from minray.exceptions import LocalRayletDiedError, TaskPlacementGroupRemoved
from minray.platform.base import PlatformError, RemoteFailure
from minray.protocol.base import Request
from minray.protocol.placement_group import (
    Bundle,
    CreatePlacementGroup,
    GetPlacementGroup,
    PlacementGroupInfo,
    RemovePlacementGroup,
    WaitPlacementGroup,
)

CREATED, REMOVED = "CREATED", "REMOVED"
"""States of a group that end the wait for it."""
WAIT_S = 30.0
"""Seconds that one ``WaitPlacementGroup`` request may take at the gcs; then it is sent again."""
ASK_AGAIN_S = 1.0
"""Seconds to wait after the gcs failed to answer; it may be restarting."""


class PlacementGroups:
    """Makes the requests of one process about placement groups. Methods run on the loop unless they say otherwise."""

    def __init__(
        self,
        process: Process,
        context: JobContext,
        references: ReferenceCounter,
        objects: Objects,
        own_actor_id: Callable[[], bytes],
    ) -> None:
        """Serve one process; ``own_actor_id`` returns the id of its actor, empty if there is none."""
        self._process = process
        self._max_known = process.config.system_config.max_known_placement_groups
        self._context = context
        self._references = references
        self._objects = objects
        self._own_actor_id = own_actor_id
        self._waiting: dict[bytes, tuple[bytes, asyncio.Task[None]]] = {}
        """Objects of ``begin_ready`` that have no value yet: the id of their group, and the asyncio task that waits."""
        self._known: dict[bytes, PlacementGroupInfo] = {}
        """The latest groups that this process has created or looked up, and has not removed; user threads read it.

        Names and bundles never change. All other fields may be out of date.
        """
        self._new: set[bytes] = set()
        """Ids of groups whose creation the gcs has not answered yet; user threads add to it."""
        self._telling: dict[bytes, deque[Request[Any]]] = {}
        """Requests that the gcs must hear, by group id; the first of each queue is on its way."""
        self._settling: dict[bytes, list[asyncio.Future[None]]] = {}
        """Futures that end when the gcs has heard all requests of a group, by group id."""

    # --- made and removed

    def describe(self, bundles: Sequence[Bundle], strategy: str, name: str, detached: bool) -> PlacementGroupInfo:
        """Make the record of a new group; for any thread."""
        context = self._context
        random = self._process.platform.host.random_bytes(PLACEMENT_GROUP_ID_BYTES - len(context.job_id))
        return PlacementGroupInfo(
            group_id=random + context.job_id,
            name=name,
            namespace=context.namespace,
            strategy=strategy,
            bundles=list(bundles),
            state="",
            job_id=context.job_id,
            detached=detached,
            creator=self._own_actor_id(),
        )

    def announce(self, group: PlacementGroupInfo) -> None:
        """Note a new group as unknown to the gcs; for the user thread that is about to post ``create``."""
        self._new.add(group.group_id)

    def create(self, group: PlacementGroupInfo) -> None:
        """Create a group without a name, which the gcs cannot refuse; do not wait for the answer."""
        self._remember(group.group_id, group)
        self._tell(group.group_id, CreatePlacementGroup(group))

    async def create_named(self, group: PlacementGroupInfo) -> None:
        """Create a group with a name; raise ValueError if the gcs refuses it, because the name is taken."""
        await self.settle_all()
        reply = await self._process.gcs.call(CreatePlacementGroup(group))
        if reply.refused:
            raise ValueError(reply.refused)
        self._remember(group.group_id, group)

    def remove(self, group_id: bytes) -> None:
        """Remove a group; do nothing if it was removed before, and do not wait for the answer."""
        self._known.pop(group_id, None)
        self._tell(group_id, RemovePlacementGroup(group_id))

    def is_known(self, group_id: bytes) -> bool:
        """Whether the gcs has heard of a group, so that other processes may ask about it; for any thread."""
        return group_id not in self._new

    def may_have_name(self, group_id: bytes) -> bool:
        """Whether other processes may look for a group by a name; for any thread."""
        known = self._known.get(group_id)
        return bool(known.name) if known is not None else group_id not in self._new

    def _tell(self, group_id: bytes, request: Request[Any]) -> None:
        """Send a request about a group to the gcs, after the earlier ones about this group."""
        waiting = self._telling.setdefault(group_id, deque())
        waiting.append(request)
        if len(waiting) == 1:
            self._say_next(group_id)

    def _say_next(self, group_id: bytes) -> None:
        self._process.patient.send_to_gcs(self._telling[group_id][0], lambda *_: self._on_told(group_id))

    def _on_told(self, group_id: bytes) -> None:
        """Send the next request about a group: the gcs has heard the first one, or is gone."""
        waiting = self._telling[group_id]
        waiting.popleft()
        self._new.discard(group_id)
        if waiting:
            self._say_next(group_id)
            return
        del self._telling[group_id]
        for settling in self._settling.pop(group_id, ()):
            if not settling.done():
                settling.set_result(None)

    async def settle(self, group_id: bytes) -> None:
        """Wait until the gcs has heard all requests of this process about a group, or is gone."""
        if group_id in self._telling:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settling.setdefault(group_id, []).append(settled)
            await settled

    async def settle_all(self) -> None:
        for group_id in list(self._telling):
            await self.settle(group_id)

    # --- asked about

    async def get_group(self, group_id: bytes) -> PlacementGroupInfo | None:
        await self.settle(group_id)
        return (await self._process.gcs.call(GetPlacementGroup(group_id))).group

    async def named(self, name: str) -> PlacementGroupInfo | None:
        """Return the group of this name in the namespace of this job; None if there is none."""
        await self.settle_all()
        return (await self._process.gcs.call(GetPlacementGroup(b"", name, self._context.namespace))).group

    async def bundles_of(self, group_id: bytes) -> list[ResourceSet]:
        """Return the resources of each bundle of a group; empty if neither this process nor the gcs knows the group."""
        group = self._known.get(group_id)
        if group is None:
            group = await self.get_group(group_id)
            if group is None:
                return []
            self._remember(group_id, group)
        return [bundle.resources for bundle in group.bundles]

    def _remember(self, group_id: bytes, group: PlacementGroupInfo) -> None:
        self._known[group_id] = group
        if len(self._known) > self._max_known:
            del self._known[next(iter(self._known))]

    async def wait_for_group(self, group_id: bytes, timeout_s: float | None) -> bool:
        """Wait until a group is created (True), or until it is removed or the time is up (False).

        With a timeout of 0, return whether the group is created now.
        """
        if timeout_s == 0:
            group = await self.get_group(group_id)
            return group is not None and group.state == CREATED
        try:
            async with asyncio.timeout(timeout_s):
                group = await self._until_decided(group_id)
        except TimeoutError:
            return False
        return group is not None and group.state == CREATED

    async def _until_decided(self, group_id: bytes) -> PlacementGroupInfo | None:
        """Wait until a group is created or removed; None: the gcs does not know it, or not any more."""
        await self.settle(group_id)
        while True:
            try:
                reply = await self._process.gcs.call(WaitPlacementGroup(group_id, WAIT_S))
            except RemoteFailure:
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            if reply.group is None or reply.group.state in (CREATED, REMOVED):
                return reply.group

    # --- ready

    def begin_ready(self, object_id: bytes, group_id: bytes, value: StoredObject) -> None:
        """Store this value in an object as soon as a group is created; a user thread has made the object's reference."""
        self._references.add_owned(object_id)
        if self._process.is_exiting:
            self._objects.put_error(object_id, LocalRayletDiedError(reason="the cluster is gone"))
            return
        name = f"placement_group_ready({short(group_id)})"
        waiting = asyncio.get_running_loop().create_task(self._become_ready(object_id, group_id, value), name=name)
        self._waiting[object_id] = group_id, waiting

    async def _become_ready(self, object_id: bytes, group_id: bytes, value: StoredObject) -> None:
        try:
            group = await self._until_decided(group_id)
        except PlatformError as error:
            self._objects.put_error(object_id, LocalRayletDiedError(reason=f"the gcs is gone: {error}"))
        else:
            if group is not None and group.state == CREATED:
                self._objects.on_value(object_id, value)
            else:
                reason = "the placement group was removed before it was ready"
                self._objects.put_error(object_id, TaskPlacementGroupRemoved(reason=reason))
        finally:
            self._waiting.pop(object_id, None)

    def forget(self, object_ids: Iterable[bytes]) -> None:
        """Stop waiting for the groups of objects to which no reference is left."""
        if self._waiting:
            for object_id in object_ids:
                if object_id in self._waiting:
                    self._waiting.pop(object_id)[1].cancel()

    def close(self) -> None:
        for _, waiting in list(self._waiting.values()):
            waiting.cancel()

    # --- explanations

    def group_awaited_by(self, object_id: bytes) -> bytes | None:
        """Return the id of the group that an object of ``begin_ready`` waits for; None for other objects."""
        return self._waiting[object_id][0] if object_id in self._waiting else None

    async def explain(self, group_id: bytes) -> tuple[str, bool]:
        """Describe a group for a user, its state and what it waits for; and say whether it is created."""
        await self.settle(group_id)
        try:
            reply = await self._process.gcs.call(GetPlacementGroup(group_id))
        except PlatformError as error:
            return f"placement group {short(group_id)}: the gcs cannot be asked: {error}", False
        group = reply.group
        if group is None:
            return f"placement group {short(group_id)} does not exist (any more)", False
        name = f"{group.name!r} " if group.name else ""
        text = f"placement group {name}({short(group_id)}, {group.strategy}) is {group.state}"
        if group.state in (CREATED, REMOVED):
            return text, group.state == CREATED
        placed = len(group.bundles) - len(group.unplaced())
        return f"{text}, {placed} of its {len(group.bundles)} bundles have a place: {reply.explanation}", False
