"""Reservation of placement groups on nodes: all bundles or none, and again when a node is lost.

Ray: src/ray/gcs/gcs_placement_group_scheduler.h, gcs_placement_group_manager.cc

The counterpart in the raylet is ``raylet/bundle_service.py``, which answers these messages, and
``raylet/placement_group_resource_manager.py``, which holds the bundles of a node.

The steps of one attempt

  1. Choose a node for each bundle (``scheduling/bundle_scheduling_policy``).
  2. Ask all these nodes to reserve their bundles (``PrepareBundles``), and store that they have.
  3. Tell them to open the bundles for leases (``CommitBundles``), and store that, too.

If one node refuses, all are told to drop the attempt, and the next one follows after a pause (G104).

Rules
  * A group has one attempt at a time; many groups have theirs at the same time. Groups that have lost bundles choose
    first (G107).
  * Chosen resources count as taken until their node reports again, so that two groups do not choose the same room.
  * A group without room waits for news: a report, a node, a removed group. Only a refusal needs a timer.
  * The bundles of a node that knows that it is drained count as lost; tasks in them may finish (G21). The gcs does not tell
    such a node about removed groups any more: the node follows the published news.
  * An unanswered ``PrepareBundles`` counts as a refusal. Any other message for a raylet is repeated until the raylet answers
    or its node is dead. If the gcs dies before, the next one sends ``ReleaseUnusedBundles`` instead; attempts of the former
    gcs are over then.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any

import msgspec

from minray.common.config import SystemConfig
from minray.common.ids import short
from minray.common.labels import labels_of
from minray.common.resources import ResourceSet, add, subtract
from minray.common.task_set import TaskSet
from minray.gcs.durable import Changes, durable, until_stored
from minray.gcs.gcs_node_manager import GcsNodeManager
from minray.gcs.persistent_caller import PersistentCaller
from minray.gcs.placement_group_manager import CREATED, REMOVED, PlacementGroupManager
from minray.platform.base import Platform, PlatformError, StorageFailed
from minray.policies.names import bundle_policy
from minray.policies.protocols import BundleQuestion
from minray.protocol.base import DONE, Done, R, Request
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
from minray.rpc.connection import Peers
from minray.rpc.service import Call
from minray.scheduling.bundle_labels import needs_with_labels, offers_with_labels
from minray.scheduling.bundle_scheduling_policy import Bundles, Nodes, Places, explain, place

logger = logging.getLogger(__name__)

RETRY_FACTOR = 1.5
"""Growth of the pause from one refused attempt to the next, as in Ray."""


class Attempt(msgspec.Struct):
    """One attempt to reserve a group's bundles, from the choice of nodes to the last answer."""

    number: int
    places: Places
    """Chosen node of each bundle; empty when the attempt only commits what a former gcs has prepared."""


class Retry(msgspec.Struct):
    """Says when a group whose last attempt was refused is tried again, and why it was refused."""

    at: float
    """Earliest time of the next attempt, on the loop's clock."""
    delay_s: float
    reason: str


class PlacementGroupScheduler:
    """Serves the messages about placement groups, and places their bundles."""

    def __init__(
        self,
        platform: Platform,
        config: SystemConfig,
        manager: PlacementGroupManager,
        nodes: Callable[[], GcsNodeManager],
        changes: Changes,
        store: Callable[[PlacementGroupInfo], Awaitable[None]],
        is_job_over: Callable[[bytes], bool],
        is_detached_actor: Callable[[bytes], bool],
    ) -> None:
        """``is_detached_actor``: tells whether an id is that of a living detached actor."""
        self._own_policy = bundle_policy(config, platform)
        """Policy of a program; None: there is none."""
        self._manager = manager
        self._nodes = nodes
        self._is_job_over = is_job_over
        self._is_detached_actor = is_detached_actor
        self._changes = changes
        self._store = store
        """Stores a record, and then enters it in the table. If it raises StorageFailed, it has done neither."""
        self._first_delay_s = config.gcs_create_placement_group_retry_min_interval_ms / 1000
        self._max_delay_s = config.gcs_create_placement_group_retry_max_interval_ms / 1000
        self._peers = Peers(platform, b"", config.rpc_reconnect_timeout_s)
        self._caller = PersistentCaller(self._peers, lambda raylet: nodes().death_cause(raylet.node_id) is not None)
        self._generation = 0
        """Number of this gcs among the gcs processes of its cluster; 0 before ``start``."""
        self._attempt_count = 0
        self._attempts: dict[bytes, Attempt] = {}
        """Attempts that are under way, by group."""
        self._retries: dict[bytes, Retry] = {}
        """Refused attempts by group; only of groups that still wait."""
        self._promised: dict[bytes, dict[bytes, ResourceSet]] = {}
        """Resources that attempts have chosen since their node's last report, by node and group."""
        self._leaving: dict[bytes, None] = {}
        """Living nodes that know that they are drained."""
        self._waiters: dict[bytes, list[asyncio.Future[None]]] = {}
        """Futures of requests that wait for a group to be created or removed."""
        self._is_due = False
        """Whether ``_assign`` is scheduled for the loop's next turn."""
        self._timer: asyncio.TimerHandle | None = None
        self._tasks = TaskSet()

    def start(self, generation: int, store: Callable[[], Awaitable[None]]) -> None:
        """Continue where the former gcs stopped, as soon as this one's generation is durable; all tables are loaded."""
        self._tasks.begin(self._start(generation, store), "start_placement_groups")

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
            self._tasks.begin(self._commit(group_id), f"commit_bundles({short(group_id)})")
        self._assign_soon()

    def close(self) -> None:
        self._tasks.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._peers.close()

    # --- Messages from users -------------------------------------------------------------------------------------------

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
        if self._is_job_over(group.job_id):  # The job may have finished meanwhile.
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

    # --- Events of nodes, jobs and actors --------------------------------------------------------------------------------

    def on_node_joined(self) -> None:
        self._assign_soon()

    def on_report(self, node_id: bytes) -> None:
        """Try waiting groups again, because a node has reported its free resources."""
        self._promised.pop(node_id, None)
        self._assign_soon()

    def on_node_dead(self, node_id: bytes) -> None:
        """Place the bundles of a dead node anew (G107); work in the group's other bundles goes on."""
        self._promised.pop(node_id, None)
        self._leaving.pop(node_id, None)
        self._peers.on_death_of(node_id, "its node was declared dead")
        self._lose_all(node_id)

    def on_node_leaving(self, node_id: bytes) -> None:
        """Place the bundles of a drained node anew (G21): it may stay for long, and takes nothing new even in bundles."""
        self._leaving[node_id] = None
        self._lose_all(node_id)

    def _lose_all(self, node_id: bytes) -> None:
        for group_id in self._manager.on_node(node_id):
            self._tasks.begin(self._lose_node(group_id, node_id), f"lose_bundles({short(group_id)})")

    def on_job_finished(self, job_id: bytes) -> None:
        self._remove_all(self._manager.of_job(job_id))

    def on_actor_dead(self, actor_id: bytes) -> None:
        """Remove the groups that a dead detached actor has created."""
        self._remove_all(self._manager.of_actor(actor_id))

    def _remove_all(self, group_ids: list[bytes]) -> None:
        for group_id in group_ids:
            self._tasks.begin(until_stored(self._remove, group_id), f"remove_group({short(group_id)})")

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
            self._tasks.begin(self._take_back(group_id, node_id), f"RemoveBundles({short(node_id)})")
        self._wake(group_id)
        self._assign_soon()

    async def _take_back(self, group_id: bytes, node_id: bytes) -> None:
        """Have a node remove a group's bundles, and drop their promise.

        The node may then have as much free as in its last report, so that no new report would end the promise."""
        await self._call_until_dead(node_id, RemoveBundles(group_id))
        self._promised.get(node_id, {}).pop(group_id, None)
        self._assign_soon()

    def _wake(self, group_id: bytes) -> None:
        for waiter in self._waiters.pop(group_id, ()):
            if not waiter.done():
                waiter.set_result(None)

    # --- Choosing nodes --------------------------------------------------------------------------------------------------

    def _assign_soon(self) -> None:
        if not self._is_due and self._generation and self._manager.has_waiting():
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._assign)

    def _assign(self) -> None:
        """Begin an attempt for every waiting group for which there is room."""
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
            places = self._choose_places(group, nodes)
            if places is not None:
                for index, node_id in places.items():
                    subtract(nodes[node_id], group.bundles[index].resources)
                self._begin(group, places)
        if wake_at:
            self._timer = asyncio.get_running_loop().call_at(min(wake_at), self._assign)

    def _choose_places(self, group: PlacementGroupInfo, nodes: Nodes) -> Places | None:
        """Choose the nodes of a group's bundles, as the program's policy says, or else as Ray does; None: no room."""
        bundles, offers = self._with_labels(group, nodes)
        if self._own_policy is not None:
            places = self._own_policy.place_bundles(BundleQuestion(group.strategy, bundles, offers, _beside(group)))
            if places is not None:
                return dict(places)
        return place(group.strategy, bundles, offers, _beside(group))

    def _free(self) -> dict[bytes, ResourceSet]:
        """Return the free resources of the nodes that take new work, less those promised to attempts."""
        free: dict[bytes, ResourceSet] = {}
        for node in self._nodes().open_nodes():
            free[node.node_id] = dict(self._nodes().available(node.node_id))
            for promised in self._promised.get(node.node_id, {}).values():
                subtract(free[node.node_id], promised)
        return free

    def _with_labels(self, group: PlacementGroupInfo, nodes: Nodes) -> tuple[Bundles, Nodes]:
        """Return the bundles to place and the resources of ``nodes``, both with the labels that the bundles want."""
        unplaced = group.unplaced()
        selectors = {index: group.bundles[index].labels for index in unplaced if group.bundles[index].labels}
        if not selectors:
            return unplaced, nodes
        labels = {node.node_id: labels_of(node.node_id, node.labels) for node in self._nodes().open_nodes()}
        return needs_with_labels(unplaced, selectors), offers_with_labels(nodes, labels, selectors)

    def _begin(self, group: PlacementGroupInfo, places: Places) -> None:
        self._attempt_count += 1
        number = (self._generation << GENERATION_SHIFT) + self._attempt_count
        self._attempts[group.group_id] = Attempt(number, places)
        for index, node_id in places.items():
            promised = self._promised.setdefault(node_id, {}).setdefault(group.group_id, {})
            add(promised, group.bundles[index].resources)
        self._tasks.begin(self._place(group, number, places), f"place_group({short(group.group_id)})")

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
        """Ask one node to reserve bundles; return the reason if it refuses, else an empty text."""
        node = self._nodes().get(node_id)
        if node is None or not node.alive:
            return "the chosen node has died"
        try:
            return (await self._peers.to(node.address).call(request)).refused
        except PlatformError as error:
            return str(error)

    async def _note_prepared(self, group_id: bytes, places: Places, number: int) -> str:
        """Store that all bundles are reserved; return the reason if the group was removed or cannot be stored."""
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
        """Give up an attempt: return the reserved bundles on all nodes (G104), and schedule the next attempt."""
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
        """Open all placed bundles for leases, also those that are open already."""
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
        """Have a node open its bundles; return those that it does not have any more."""
        reply = await self._call_until_dead(node_id, request)
        return [(index, attempt) for index, attempt in request.bundles if reply is None or index in reply.missing]

    # --- Messages to raylets ---------------------------------------------------------------------------------------------

    def _tell(self, node_id: bytes, request: Request[Done]) -> None:
        self._tasks.begin(self._tell_until_dead(node_id, request), f"{type(request).__name__}({short(node_id)})")

    async def _tell_until_dead(self, node_id: bytes, request: Request[Done]) -> None:
        await self._call_until_dead(node_id, request)

    async def _call_until_dead(self, node_id: bytes, request: Request[R]) -> R | None:
        """Repeat a request to a node until it is answered; return None if the node dies first, or is unknown."""
        node = self._nodes().get(node_id)
        return None if node is None else await self._caller.call(node.address, request)

    # --- Helpers ---------------------------------------------------------------------------------------------------------

    def _state_of(self, group_id: bytes) -> str:
        group = self._manager.get(group_id)
        return REMOVED if group is None else group.state

    def _explain(self, group: PlacementGroupInfo) -> str:
        """Explain for users why a group is not ready; empty if it is."""
        if group.state in (CREATED, REMOVED):
            return ""
        if group.group_id in self._attempts or not group.unplaced():
            return "its bundles are being reserved"
        totals = {node.node_id: node.resources_total for node in self._nodes().open_nodes()}
        strategy, beside = group.strategy, _beside(group)
        for reason, nodes in (("the cluster is too small", totals), ("too much is in use", self._free())):
            bundles, offers = self._with_labels(group, nodes)
            if place(strategy, bundles, offers, beside) is None:
                return f"{reason}: {explain(strategy, bundles, offers, beside)}"
        retry = self._retries.get(group.group_id)
        return f"the last attempt was refused ({retry.reason})" if retry is not None else "it will be tried at once"


def _beside(group: PlacementGroupInfo) -> list[bytes]:
    """Return the node of each placed bundle."""
    return [bundle.node_id for bundle in group.bundles if bundle.node_id]


async def _all(questions: Mapping[bytes, Coroutine[Any, Any, Any]]) -> dict[bytes, Any]:
    """Await the questions to all nodes at once, and return the answers by node."""
    if len(questions) == 1:
        return {key: await question for key, question in questions.items()}
    loop = asyncio.get_running_loop()
    tasks = {key: loop.create_task(question, name=f"ask({short(key)})") for key, question in questions.items()}
    await asyncio.gather(*tasks.values())
    return {key: task.result() for key, task in tasks.items()}
