"""Reserving placement groups on their nodes: all bundles or none, and again when a node is lost.

Ray: src/ray/gcs/gcs_placement_group_scheduler.h, gcs_placement_group_manager.cc

The story of one attempt: choose a node for each bundle (``scheduling/bundle_scheduling_policy``); ask all these nodes to put
their bundles aside (``PrepareBundles``); store that they have; tell them to let work in (``CommitBundles``); store that too.
If one of them refuses, all are told to forget the attempt, and the next one follows after a pause (G104).

Rules
  * One attempt at a time for a group; many groups at a time. Those that have lost bundles choose first (G107).
  * What was chosen counts as taken until its node reports again, so that two groups do not run after the same room.
  * A group for which there is no room waits for news: a report, a node, a removed group. Only a refusal needs a timer.
  * A node that is to leave, and knows it, has lost its bundles; what runs in them may end (G21). There nobody is told of a
    removed group any more: such a node follows the news.
  * Whatever a raylet must hear it is told until it answers or its node is dead. What a gcs that died was about to tell,
    the next one makes good with ``ReleaseUnusedBundles``; attempts of a former gcs are over then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from minray.common.config import SystemConfig
from minray.common.ids import short
from minray.common.resources import ResourceSet, add, subtract
from minray.gcs.durable import Changes, durable, until_stored
from minray.gcs.node_manager import NodeManager
from minray.gcs.placement_group_manager import CREATED, REMOVED, PlacementGroupManager
from minray.platform.base import Platform, PlatformError, StorageFailed
from minray.protocol.base import DONE, Address, Done, Request
from minray.protocol.placement_group import (
    GENERATION_SHIFT,
    CommitBundles,
    CreatePlacementGroup,
    CreatePlacementGroupReply,
    GetPlacementGroup,
    PlacementGroupInfo,
    PlacementGroupReply,
    PrepareBundles,
    ReleaseUnusedBundles,
    RemoveBundles,
    RemovePlacementGroup,
    ReturnBundles,
    WaitPlacementGroup,
)
from minray.rpc.connection import Peers, PeerUnreachable
from minray.rpc.service import Call
from minray.scheduling.bundle_scheduling_policy import Places, explain, place

logger = logging.getLogger(__name__)

ASK_AGAIN_S = 1.0
"""The pause before a raylet is asked again."""
RETRY_FACTOR = 1.5


@dataclass(slots=True)
class Attempt:
    """One try to reserve what a group needs, from the choice of nodes to the last answer."""

    number: int
    places: Places
    """The bundles that it is about; empty when it only finishes what a former gcs has prepared."""


@dataclass(slots=True)
class Retry:
    """What became of a group's last attempt, which was refused."""

    at: float
    """Not before then."""
    delay_s: float
    reason: str


class PlacementGroupScheduler:
    """The part of the gcs that has to do with placement groups."""

    def __init__(
        self,
        platform: Platform,
        config: SystemConfig,
        manager: PlacementGroupManager,
        nodes: Callable[[], NodeManager],
        changes: Changes,
        store: Callable[[PlacementGroupInfo], Awaitable[None]],
        is_job_over: Callable[[bytes], bool],
        is_detached_actor: Callable[[bytes], bool],
    ) -> None:
        """``is_detached_actor``: whether that is one, and lives."""
        self._manager = manager
        self._nodes = nodes
        self._is_job_over = is_job_over
        self._is_detached_actor = is_detached_actor
        self._changes = changes
        self._store = store
        """Makes a record durable, then true; raises StorageFailed, and then it is neither."""
        self._first_delay_s = config.gcs_create_placement_group_retry_min_interval_ms / 1000
        self._max_delay_s = config.gcs_create_placement_group_retry_max_interval_ms / 1000
        self._peers = Peers(platform, b"", config.rpc_reconnect_timeout_s)
        self._generation = 0
        """The count of this gcs among those of its cluster; 0 before ``start``."""
        self._attempt_count = 0
        self._attempts: dict[bytes, Attempt] = {}
        """Those that go on, by group."""
        self._retries: dict[bytes, Retry] = {}
        """By group; only groups that still wait."""
        self._promised: dict[bytes, dict[bytes, ResourceSet]] = {}
        """What attempts have chosen since their node's last report, by node and group."""
        self._leaving: dict[bytes, None] = {}
        """Living nodes that know that they are to leave."""
        self._waiters: dict[bytes, list[asyncio.Future[None]]] = {}
        """Who waits for a group to be created or removed."""
        self._is_due = False
        """``_assign`` will be called at the end of this turn."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, generation: int, store: Callable[[], Awaitable[None]]) -> None:
        """All tables are loaded: go on where the gcs before has ended, as soon as this one's generation is durable."""
        self._spawn(self._start(generation, store), "start_placement_groups")

    async def _start(self, generation: int, store: Callable[[], Awaitable[None]]) -> None:
        await until_stored(store)
        self._generation = generation
        for node in self._nodes().living():
            in_use = [
                (group_id, index, attempt)
                for group_id in self._manager.on_node(node.node_id)
                for index, attempt in self._manager.bundles_on(group_id, node.node_id)
            ]
            if generation > 1:
                self._tell(node.node_id, ReleaseUnusedBundles(generation, in_use))
        for job_id in dict.fromkeys(group.job_id for group in self._manager.all()):
            if self._is_job_over(job_id):
                self.on_job_finished(job_id)
        for actor_id in dict.fromkeys(group.creator for group in self._manager.all() if group.creator):
            if not self._is_detached_actor(actor_id):
                self.on_actor_dead(actor_id)
        living = {node.node_id for node in self._nodes().living()}
        lost = {bundle.node_id: None for group in self._manager.all() for bundle in group.bundles if bundle.node_id}
        for node_id in lost:
            if node_id not in living:
                self.on_node_dead(node_id)
        for group_id in self._manager.prepared():
            self._attempts[group_id] = Attempt(0, {})
            self._spawn(self._commit(group_id), f"commit_bundles({short(group_id)})")
        self._assign_soon()

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._peers.close()

    # --- What users ask ------------------------------------------------------------------------------------------------

    @durable
    async def handle_CreatePlacementGroup(self, request: CreatePlacementGroup, call: Call) -> CreatePlacementGroupReply:
        group = request.group
        if not self._is_detached_actor(group.creator):
            group = msgspec.structs.replace(group, creator=b"")
        async with self._changes.of(f"{group.namespace}/{group.name}".encode() if group.name else group.group_id):
            over = "its job has finished" if not group.creator and self._is_job_over(group.job_id) else ""
            if refused := over or self._manager.refusal(group):
                return CreatePlacementGroupReply(refused)
            if (created := self._manager.create(group)) is not None:
                await self._store(created)
                self._assign_soon()
        if self._is_job_over(group.job_id):  # It has finished meanwhile.
            self.on_job_finished(group.job_id)
        if group.creator and not self._is_detached_actor(group.creator):
            self.on_actor_dead(group.creator)
        return CreatePlacementGroupReply()

    @durable
    async def handle_RemovePlacementGroup(self, request: RemovePlacementGroup, call: Call) -> Done:
        await self._remove(request.group_id)
        return DONE

    def handle_GetPlacementGroup(self, request: GetPlacementGroup, call: Call) -> PlacementGroupReply:
        if request.group_id:
            return self._reply(self._manager.get(request.group_id))
        return self._reply(self._manager.named(request.name, request.namespace))

    async def handle_WaitPlacementGroup(self, request: WaitPlacementGroup, call: Call) -> PlacementGroupReply:
        group = self._manager.get(request.group_id)
        if group is not None and group.state not in (CREATED, REMOVED):
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            waiters = self._waiters.setdefault(request.group_id, [])
            waiters[:] = [*(other for other in waiters if not other.done()), waiter]
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(request.timeout_s):
                    await waiter
        return self._reply(self._manager.get(request.group_id))

    def _reply(self, group: PlacementGroupInfo | None) -> PlacementGroupReply:
        return PlacementGroupReply(group, self._explain(group) if group is not None else "")

    # --- What happens to nodes and jobs ----------------------------------------------------------------------------------

    def on_node_joined(self) -> None:
        self._assign_soon()

    def on_report(self, node_id: bytes) -> None:
        """A node has said what it has free."""
        self._promised.pop(node_id, None)
        self._assign_soon()

    def on_node_dead(self, node_id: bytes) -> None:
        """Its bundles need other nodes (G107); work on the others goes on."""
        self._promised.pop(node_id, None)
        self._leaving.pop(node_id, None)
        self._peers.on_death_of(node_id, "its node was declared dead")
        self._lose_all(node_id)

    def on_node_leaving(self, node_id: bytes) -> None:
        """It takes nothing new, not even in its bundles, and may stay for long: they need other nodes (G21)."""
        self._leaving[node_id] = None
        self._lose_all(node_id)

    def _lose_all(self, node_id: bytes) -> None:
        for group_id in self._manager.on_node(node_id):
            self._spawn(self._lose_node(group_id, node_id), f"lose_bundles({short(group_id)})")

    def on_job_finished(self, job_id: bytes) -> None:
        self._remove_all(self._manager.of_job(job_id))

    def on_actor_dead(self, actor_id: bytes) -> None:
        """A detached actor: the groups that it has made end with it."""
        self._remove_all(self._manager.of_actor(actor_id))

    def _remove_all(self, group_ids: list[bytes]) -> None:
        for group_id in group_ids:
            self._spawn(until_stored(self._remove, group_id), f"remove_group({short(group_id)})")

    async def _lose_node(self, group_id: bytes, node_id: bytes) -> None:
        async def lose() -> None:
            async with self._changes.of(group_id):
                group = self._manager.lose_node(group_id, node_id)
                if group is not None:
                    logger.warning("placement group %s has lost bundles with node %s", short(group_id), short(node_id))
                    await self._store(group)

        await until_stored(lose)
        self._assign_soon()

    async def _remove(self, group_id: bytes) -> None:
        async with self._changes.of(group_id):
            group = self._manager.remove(group_id)
            if group is None:
                return
            await self._store(group)
        self._retries.pop(group_id, None)
        attempt = self._attempts.get(group_id)
        for node_id in dict.fromkeys([*group.nodes(), *(attempt.places.values() if attempt is not None else ())]):
            self._spawn(self._take_back(group_id, node_id), f"RemoveBundles({short(node_id)})")
        self._wake(group_id)
        self._assign_soon()

    async def _take_back(self, group_id: bytes, node_id: bytes) -> None:
        """A node that has as much free as before the group came has nothing to report."""
        await self._call_until_dead(node_id, RemoveBundles(group_id))
        self._promised.get(node_id, {}).pop(group_id, None)
        self._assign_soon()

    def _wake(self, group_id: bytes) -> None:
        for waiter in self._waiters.pop(group_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    # --- Choosing --------------------------------------------------------------------------------------------------------

    def _assign_soon(self) -> None:
        if not self._is_due and self._generation and self._manager.has_waiting():
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._assign)

    def _assign(self) -> None:
        """Begin an attempt for every group that waits and for which there is room."""
        self._is_due = False
        now = asyncio.get_running_loop().time()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        groups = [group for group in self._manager.waiting() if group.group_id not in self._attempts]
        nodes = self._free() if groups else {}
        wake_at: list[float] = []
        for group in groups:
            retry = self._retries.get(group.group_id)
            if retry is not None and now < retry.at:
                wake_at.append(retry.at)
                continue
            unplaced = group.unplaced()
            places = place(group.strategy, unplaced, nodes, _beside(group))
            if places is not None:
                for index, node_id in places.items():
                    subtract(nodes[node_id], unplaced[index])
                self._begin(group, places)
        if wake_at:
            self._timer = asyncio.get_running_loop().call_at(min(wake_at), self._assign)

    def _free(self) -> dict[bytes, ResourceSet]:
        """What nodes have free that take something new, as far as is known."""
        free: dict[bytes, ResourceSet] = {}
        for node in self._nodes().open():
            free[node.node_id] = dict(self._nodes().available(node.node_id))
            for promised in self._promised.get(node.node_id, {}).values():
                subtract(free[node.node_id], promised)
        return free

    def _begin(self, group: PlacementGroupInfo, places: Places) -> None:
        self._attempt_count += 1
        number = (self._generation << GENERATION_SHIFT) + self._attempt_count
        self._attempts[group.group_id] = Attempt(number, places)
        for index, node_id in places.items():
            promised = self._promised.setdefault(node_id, {}).setdefault(group.group_id, {})
            add(promised, group.bundles[index].resources)
        self._spawn(self._place(group, number, places), f"place_group({short(group.group_id)})")

    # --- The two phases --------------------------------------------------------------------------------------------------

    async def _place(self, group: PlacementGroupInfo, number: int, places: Places) -> None:
        group_id = group.group_id
        by_node: dict[bytes, dict[int, dict[str, int]]] = {}
        for index, node_id in places.items():
            by_node.setdefault(node_id, {})[index] = group.bundles[index].resources
        requests = {key: PrepareBundles(group_id, number, bundles) for key, bundles in by_node.items()}
        answers = await _all({key: self._prepare(key, request) for key, request in requests.items()})
        refused = next((reason for reason in answers.values() if reason), "")
        if not refused:
            refused = await self._note_prepared(group_id, places, number)
        if refused:
            self._abandon(group_id, number, refused)
        else:
            self._retries.pop(group_id, None)
            await self._commit(group_id)

    async def _prepare(self, node_id: bytes, request: PrepareBundles) -> str:
        """Ask one node; returns why not."""
        address = self._address_of(node_id)
        if address is None:
            return "the chosen node has died"
        try:
            return (await self._peers.to(address).call(request)).refused
        except PlatformError as error:
            return str(error)

    async def _note_prepared(self, group_id: bytes, places: Places, number: int) -> str:
        """Store that everything is put aside; returns why it is not to be."""
        async with self._changes.of(group_id):
            group = self._manager.prepare(group_id, places, number)
            if group is None:
                return "it was removed"
            try:
                await self._store(group)
            except StorageFailed as error:
                return str(error)
        return ""

    def _abandon(self, group_id: bytes, number: int, reason: str) -> None:
        """All or nothing (G104): what was put aside is given back, everywhere."""
        attempt = self._attempts.pop(group_id)
        for node_id in dict.fromkeys(attempt.places.values()):
            self._promised.get(node_id, {}).pop(group_id, None)
            self._tell(node_id, ReturnBundles(group_id, number))
        if self._state_of(group_id) == REMOVED:
            return
        last = self._retries.get(group_id)
        delay_s = self._first_delay_s if last is None else min(last.delay_s * RETRY_FACTOR, self._max_delay_s)
        self._retries[group_id] = Retry(asyncio.get_running_loop().time() + delay_s, delay_s, reason)
        self._assign_soon()

    async def _commit(self, group_id: bytes) -> None:
        """Let work into all bundles that have a place, also into those where that was done before."""
        group = self._manager.get(group_id)
        commits = {key: CommitBundles(group_id, group.on_node(key)) for key in group.nodes()} if group is not None else {}
        answers = await _all({key: self._commit_on(key, request) for key, request in commits.items()})
        lost = [bundle for missing in answers.values() for bundle in missing]

        async def note() -> None:
            async with self._changes.of(group_id):
                group = self._manager.commit(group_id, lost)
                if group is not None:
                    await self._store(group)

        await until_stored(note)
        for node_id in commits:
            if node_id in self._leaving:
                await self._lose_node(group_id, node_id)
        self._attempts.pop(group_id, None)
        if self._state_of(group_id) == CREATED:
            self._wake(group_id)
        self._assign_soon()

    async def _commit_on(self, node_id: bytes, request: CommitBundles) -> list[tuple[int, int]]:
        """Returns the bundles that are not there any more."""
        reply = await self._call_until_dead(node_id, request)
        return [(index, attempt) for index, attempt in request.bundles if reply is None or index in reply.missing]

    # --- To raylets ------------------------------------------------------------------------------------------------------

    def _tell(self, node_id: bytes, request: Request[Done]) -> None:
        self._spawn(self._tell_until_dead(node_id, request), f"{type(request).__name__}({short(node_id)})")

    async def _tell_until_dead(self, node_id: bytes, request: Request[Done]) -> None:
        await self._call_until_dead(node_id, request)

    async def _call_until_dead(self, node_id: bytes, request: Request[Any]) -> Any:
        """Ask until there is an answer; None if the node dies first."""
        while (address := self._address_of(node_id)) is not None:
            try:
                return await self._peers.to(address).call(request)
            except PeerUnreachable as error:
                if error.is_certain:
                    return None
            except PlatformError as error:
                logger.error("raylet %s refuses a %s: %s", short(node_id), type(request).__name__, error)
            await asyncio.sleep(ASK_AGAIN_S)
        return None

    def _address_of(self, node_id: bytes) -> Address | None:
        """None: it is dead."""
        node = self._nodes().get(node_id)
        return node.address if node is not None and node.alive else None

    # --- Helpers ---------------------------------------------------------------------------------------------------------

    def _state_of(self, group_id: bytes) -> str:
        group = self._manager.get(group_id)
        return REMOVED if group is None else group.state

    def _spawn(self, story: Coroutine[Any, Any, None], name: str) -> None:
        task = asyncio.get_running_loop().create_task(story, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _explain(self, group: PlacementGroupInfo) -> str:
        """Why a group is not ready, for people; empty if it is."""
        if group.state in (CREATED, REMOVED):
            return ""
        unplaced = group.unplaced()
        if group.group_id in self._attempts or not unplaced:
            return "its bundles are being reserved"
        totals = {node.node_id: node.resources_total for node in self._nodes().open()}
        beside = _beside(group)
        if place(group.strategy, unplaced, totals, beside) is None:
            return f"the cluster is too small: {explain(group.strategy, unplaced, totals, beside)}"
        free = self._free()
        if place(group.strategy, unplaced, free, beside) is None:
            return f"too much is in use: {explain(group.strategy, unplaced, free, beside)}"
        retry = self._retries.get(group.group_id)
        return f"the last attempt was refused ({retry.reason})" if retry is not None else "it will be tried at once"


def _beside(group: PlacementGroupInfo) -> list[bytes]:
    """Where the bundles are that have a place."""
    return [bundle.node_id for bundle in group.bundles if bundle.node_id]


async def _all(questions: Mapping[bytes, Coroutine[Any, Any, Any]]) -> dict[bytes, Any]:
    """Ask all nodes at once; the answers by node."""
    if len(questions) == 1:
        return {key: await question for key, question in questions.items()}
    loop = asyncio.get_running_loop()
    tasks = {key: loop.create_task(question, name=f"ask({short(key)})") for key, question in questions.items()}
    await asyncio.gather(*tasks.values())
    return {key: task.result() for key, task in tasks.items()}
