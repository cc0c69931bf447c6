"""Placement groups as drivers and workers ask for them: the gcs decides, and this process waits for it.

Ray: CreatePlacementGroup, RemovePlacementGroup and WaitPlacementGroupReady of src/ray/core_worker/core_worker.h

Making a group without a name, and removing one, asks nobody: the gcs hears of it while the program goes on, again if it
must. Until it has answered, nothing else is asked about this group, and no list of groups; and nobody else may hear of a
group that it does not know yet (``is_known``). Removing a group that may have a name waits until the gcs has heard that
(``settle``), so that no process that learns of the removal finds the group by its name.

``ready`` is an object of this process that no task makes: its value, the handle, is put in when the gcs says that the group
is there, or an error when it was removed. (Ray runs an empty task in the group's first bundle; that takes a lease, and
cannot be had while others use the bundle.)
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from minray.common.ids import PLACEMENT_GROUP_ID_BYTES, short
from minray.common.resources import ResourceSet
from minray.core_worker.memory_store import StoredObject
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

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker

CREATED, REMOVED = "CREATED", "REMOVED"
"""The states of a group in which nobody waits for it any more."""
WAIT_S = 30.0
"""How long one question to the gcs may take."""
ASK_AGAIN_S = 1.0
"""The pause after the gcs could not answer."""
MAX_KNOWN_GROUPS = 1000
"""Number of groups whose names and bundles are remembered."""


class PlacementGroups:
    """What one process asks about placement groups; all of it on the loop."""

    def __init__(self, core: CoreWorker) -> None:
        self._core = core
        self._waiting: dict[bytes, tuple[bytes, asyncio.Task[None]]] = {}
        """Objects of ``begin_ready`` that have no value yet: their group, and who waits for it."""
        self._known: dict[bytes, PlacementGroupInfo] = {}
        """Groups that this process has made or looked up last, and has not removed; user threads read it.

        Names and bundles never change; of the rest it says nothing.
        """
        self._new: set[bytes] = set()
        """Groups whose making the gcs has not answered yet; user threads add to it."""
        self._telling: dict[bytes, deque[Request[Any]]] = {}
        """By group, what the gcs must hear, the first of which is on its way."""
        self._settling: dict[bytes, list[asyncio.Future[None]]] = {}
        """By group, who waits until it has heard all of that."""

    # --- made and removed

    def describe(self, bundles: Sequence[ResourceSet], strategy: str, name: str, detached: bool) -> PlacementGroupInfo:
        """A new group; in any thread."""
        core = self._core
        random = core.platform.host.random_bytes(PLACEMENT_GROUP_ID_BYTES - len(core.job_id))
        actor = core.actor_receiver.actor
        return PlacementGroupInfo(
            random + core.job_id,
            name,
            core.namespace,
            strategy,
            [Bundle(bundle) for bundle in bundles],
            state="",
            job_id=core.job_id,
            detached=detached,
            creator=b"" if actor is None else actor.actor_id,
        )

    def announce(self, group: PlacementGroupInfo) -> None:
        """A user thread is about to post ``create``."""
        self._new.add(group.group_id)

    def create(self, group: PlacementGroupInfo) -> None:
        """One without a name, which nobody can refuse."""
        self._remember(group.group_id, group)
        self._tell(group.group_id, CreatePlacementGroup(group))

    async def create_named(self, group: PlacementGroupInfo) -> None:
        """Raises ValueError if its name is taken."""
        await self.settle_all()
        reply = await self._core.gcs.call(CreatePlacementGroup(group))
        if reply.refused:
            raise ValueError(reply.refused)
        self._remember(group.group_id, group)

    def remove(self, group_id: bytes) -> None:
        """Nothing happens if it was removed before."""
        self._known.pop(group_id, None)
        self._tell(group_id, RemovePlacementGroup(group_id))

    def is_known(self, group_id: bytes) -> bool:
        """Whether others may ask about it; in any thread."""
        return group_id not in self._new

    def may_have_name(self, group_id: bytes) -> bool:
        """Whether others may look for it; in any thread."""
        known = self._known.get(group_id)
        return bool(known.name) if known is not None else group_id not in self._new

    def _tell(self, group_id: bytes, request: Request[Any]) -> None:
        """Say it after what was said before."""
        waiting = self._telling.setdefault(group_id, deque())
        waiting.append(request)
        if len(waiting) == 1:
            self._say_next(group_id)

    def _say_next(self, group_id: bytes) -> None:
        self._core.patient.send_to_gcs(self._telling[group_id][0], lambda *_: self._on_told(group_id))

    def _on_told(self, group_id: bytes) -> None:
        """Or there is no gcs any more."""
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
        """Until the gcs has heard what this process has done with the group (or is gone)."""
        if group_id in self._telling:
            settled: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._settling.setdefault(group_id, []).append(settled)
            await settled

    async def settle_all(self) -> None:
        for group_id in list(self._telling):
            await self.settle(group_id)

    # --- asked about

    async def get(self, group_id: bytes) -> PlacementGroupInfo | None:
        await self.settle(group_id)
        return (await self._core.gcs.call(GetPlacementGroup(group_id))).group

    async def named(self, name: str) -> PlacementGroupInfo | None:
        """The group of this name in the namespace of this job."""
        await self.settle_all()
        return (await self._core.gcs.call(GetPlacementGroup(b"", name, self._core.namespace))).group

    async def bundles_of(self, group_id: bytes) -> list[ResourceSet]:
        """What the bundles of a group hold; empty if nobody remembers it."""
        group = self._known.get(group_id)
        if group is None:
            group = await self.get(group_id)
            if group is None:
                return []
            self._remember(group_id, group)
        return [bundle.resources for bundle in group.bundles]

    def _remember(self, group_id: bytes, group: PlacementGroupInfo) -> None:
        self._known[group_id] = group
        if len(self._known) > MAX_KNOWN_GROUPS:
            del self._known[next(iter(self._known))]

    async def wait(self, group_id: bytes, timeout_s: float | None) -> bool:
        """Until the group is created (True), removed, or the time is up; with 0, as it is now."""
        if timeout_s == 0:
            group = await self.get(group_id)
            return group is not None and group.state == CREATED
        try:
            async with asyncio.timeout(timeout_s):
                group = await self._until_decided(group_id)
        except TimeoutError:
            return False
        return group is not None and group.state == CREATED

    async def _until_decided(self, group_id: bytes) -> PlacementGroupInfo | None:
        """Wait until it is created or removed; None: the gcs does not know it (any more)."""
        await self.settle(group_id)
        while True:
            try:
                reply = await self._core.gcs.call(WaitPlacementGroup(group_id, WAIT_S))
            except RemoteFailure:
                await asyncio.sleep(ASK_AGAIN_S)
                continue
            if reply.group is None or reply.group.state in (CREATED, REMOVED):
                return reply.group

    # --- ready

    def begin_ready(self, object_id: bytes, group_id: bytes, value: StoredObject) -> None:
        """A user thread has made a reference, whose object shall have this value when the group is there."""
        self._core.references.add_owned(object_id)
        if self._core.is_exiting:
            self._core.objects.put_error(object_id, LocalRayletDiedError(reason="the cluster is gone"))
            return
        name = f"placement_group_ready({short(group_id)})"
        waiting = asyncio.get_running_loop().create_task(self._become_ready(object_id, group_id, value), name=name)
        self._waiting[object_id] = group_id, waiting

    async def _become_ready(self, object_id: bytes, group_id: bytes, value: StoredObject) -> None:
        try:
            group = await self._until_decided(group_id)
        except PlatformError as error:
            self._core.objects.put_error(object_id, LocalRayletDiedError(reason=f"the gcs is gone: {error}"))
        else:
            if group is not None and group.state == CREATED:
                self._core.objects.on_value(object_id, value)
            else:
                reason = "the placement group was removed before it was ready"
                self._core.objects.put_error(object_id, TaskPlacementGroupRemoved(reason=reason))
        finally:
            self._waiting.pop(object_id, None)

    def forget(self, object_ids: Iterable[bytes]) -> None:
        """Nobody refers to these objects any more."""
        if self._waiting:
            for object_id in object_ids:
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
        await self.settle(group_id)
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
