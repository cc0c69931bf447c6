"""Placement groups as drivers and workers ask for them: the gcs decides, and this process waits for it.

Ray: CreatePlacementGroup, RemovePlacementGroup and WaitPlacementGroupReady of src/ray/core_worker/core_worker.h

``ready`` is an object of this process that no task makes: its value, the handle, is put in when the gcs says that the group
is there, or an error when it was removed. (Ray runs an empty task in the group's first bundle; that takes a lease, and
cannot be had while others use the bundle.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from minray.common.ids import PLACEMENT_GROUP_ID_BYTES, short
from minray.common.resources import ResourceSet
from minray.core_worker.memory_store import StoredObject
from minray.exceptions import LocalRayletDiedError, TaskPlacementGroupRemoved
from minray.platform.base import PlatformError, RemoteFailure
from minray.protocol.placement_group import (
    Bundle,
    CreatePlacementGroup,
    GetPlacementGroup,
    PlacementGroupInfo,
    RemovePlacementGroup,
    WaitPlacementGroup,
)

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker

CREATED, REMOVED = "CREATED", "REMOVED"
"""The states of a group in which nobody waits for it any more."""
WAIT_S = 30.0
"""How long one question to the gcs may take."""
ASK_AGAIN_S = 1.0
"""The pause after the gcs could not answer."""


class PlacementGroups:
    """What one process asks about placement groups; all of it on the loop."""

    def __init__(self, core: CoreWorker) -> None:
        self._core = core
        self._waiting: dict[bytes, tuple[bytes, asyncio.Task[None]]] = {}
        """Objects of ``begin_ready`` that have no value yet: their group, and who waits for it."""
        self._bundles: dict[bytes, list[ResourceSet]] = {}
        """Of the groups that this process has made or looked up; they never change."""

    async def create(self, bundles: Sequence[ResourceSet], strategy: str, name: str, detached: bool) -> bytes:
        """Returns the new group's id. Raises ValueError if the gcs refuses."""
        core = self._core
        random = core.platform.host.random_bytes(PLACEMENT_GROUP_ID_BYTES - len(core.job_id))
        described = [Bundle(bundle) for bundle in bundles]
        group_id = random + core.job_id
        actor = core.actor_receiver.actor
        group = PlacementGroupInfo(
            group_id,
            name,
            self._namespace(),
            strategy,
            described,
            state="",
            job_id=core.job_id,
            detached=detached,
            creator=b"" if actor is None else actor.actor_id,
        )
        reply = await core.gcs.call(CreatePlacementGroup(group))
        if reply.refused:
            raise ValueError(reply.refused)
        self._bundles[group_id] = list(bundles)
        return group_id

    async def remove(self, group_id: bytes) -> None:
        """Nothing happens if it was removed before."""
        await self._core.gcs.call(RemovePlacementGroup(group_id))

    async def get(self, group_id: bytes) -> PlacementGroupInfo | None:
        return (await self._core.gcs.call(GetPlacementGroup(group_id))).group

    async def named(self, name: str) -> PlacementGroupInfo | None:
        """The group of this name in the namespace of this job."""
        return (await self._core.gcs.call(GetPlacementGroup(b"", name, self._namespace()))).group

    async def bundles_of(self, group_id: bytes) -> list[ResourceSet]:
        """What the bundles of a group hold; empty if nobody remembers it."""
        if group_id not in self._bundles:
            group = await self.get(group_id)
            if group is None:
                return []
            self._bundles[group_id] = [bundle.resources for bundle in group.bundles]
        return self._bundles[group_id]

    async def wait(self, group_id: bytes, timeout_s: float | None) -> bool:
        """Until the group is created (True), removed, or the time is up."""
        try:
            async with asyncio.timeout(timeout_s):
                group = await self._until_decided(group_id)
        except TimeoutError:
            return False
        return group is not None and group.state == CREATED

    async def _until_decided(self, group_id: bytes) -> PlacementGroupInfo | None:
        """Wait until it is created or removed; None: the gcs does not know it (any more)."""
        while True:
            try:
                reply = await self._core.gcs.call(WaitPlacementGroup(group_id, WAIT_S))
            except RemoteFailure:
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            if reply.group is None or reply.group.state in (CREATED, REMOVED):
                return reply.group

    def _namespace(self) -> str:
        return self._core.job.config.namespace if self._core.job is not None else ""

    # --- ready

    def begin_ready(self, object_id: bytes, group_id: bytes, value: StoredObject) -> None:
        """A user thread has made a reference, whose object shall have this value when the group is there."""
        self._core.references.add_owned(object_id)
        if self._core.is_exiting:
            self._core.put_error(object_id, LocalRayletDiedError(reason="the cluster is gone"))
            return
        name = f"placement_group_ready({short(group_id)})"
        waiting = asyncio.get_running_loop().create_task(self._become_ready(object_id, group_id, value), name=name)
        self._waiting[object_id] = group_id, waiting

    async def _become_ready(self, object_id: bytes, group_id: bytes, value: StoredObject) -> None:
        try:
            group = await self._until_decided(group_id)
        except PlatformError as error:
            self._core.put_error(object_id, LocalRayletDiedError(reason=f"the gcs is gone: {error}"))
        else:
            if group is not None and group.state == CREATED:
                self._core.on_object(object_id, value)
            else:
                reason = "the placement group was removed before it was ready"
                self._core.put_error(object_id, TaskPlacementGroupRemoved(reason=reason))
        finally:
            self._waiting.pop(object_id, None)

    def forget(self, object_id: bytes) -> None:
        """Nobody refers to the object any more."""
        if object_id in self._waiting:
            self._waiting.pop(object_id)[1].cancel()

    def close(self) -> None:
        for _, waiting in list(self._waiting.values()):
            waiting.cancel()

    # --- people want to know

    def group_awaited_by(self, object_id: bytes) -> bytes | None:
        """The group that an object of ``begin_ready`` waits for."""
        return self._waiting[object_id][0] if object_id in self._waiting else None

    async def explain(self, group_id: bytes) -> tuple[str, bool]:
        """Which group this is and how far, and why no further, for people; and whether all of it is there."""
        try:
            reply = await self._core.gcs.call(GetPlacementGroup(group_id))
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
