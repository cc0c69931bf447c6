"""What all processes of a cluster say of its objects: who refers to them, where they are, who reads them.

Ray: python/ray/util/state/state_manager.py and the object half of python/ray/dashboard/state_aggregator.py

The gcs knows the nodes and the drivers, each raylet its store and its workers, each process its references. All are asked
at once; who is dead has nothing, and who does not answer in time is named (``silent``). ``uses`` puts the answers together.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple, TypeVar

from minray.common.ids import short
from minray.core_worker.stats import NIL, UNKNOWN_SIZE
from minray.platform.base import PlatformError
from minray.protocol.base import Address, Record, decode
from minray.protocol.core_worker import CoreWorkerStats, GetCoreWorkerStats, ObjectRefInfo
from minray.protocol.gcs import JOBS, NODES, JobInfo, NodeInfo, Poll
from minray.protocol.object_store import MOST_ENTRIES, CopyInfo, GetObjectsInfo, ObjectsInfo
from minray.protocol.raylet import GetNodeStats, NodeStats
from minray.rpc.connection import Peer, Peers, PeerUnreachable

R = TypeVar("R", bound=Record)

PINNED_IN_MEMORY, USED_BY_PENDING_TASK, LOCAL_REFERENCE, CAPTURED_IN_OBJECT, UNKNOWN_STATUS = (
    "PINNED_IN_MEMORY",
    "USED_BY_PENDING_TASK",
    "LOCAL_REFERENCE",
    "CAPTURED_IN_OBJECT",
    "UNKNOWN_STATUS",
)
"""Ray's names: it is being read in the store; a task takes it as an argument; the program has an ObjectRef; another value
contains it. UNKNOWN_STATUS: this process keeps it for others, who have borrowed it."""


class ObjectUse(NamedTuple):
    """One process and one object that it refers to, or reads."""

    object_id: bytes
    worker_id: bytes
    node_id: bytes
    pid: int
    is_driver: bool
    reference_type: str
    size: int
    """-1 if nobody who was asked knows it."""
    call_site: str
    task_status: str
    attempt: int
    owner_id: bytes
    borrowers: int


class ClusterObjects(NamedTuple):
    """All answers."""

    nodes: dict[bytes, NodeInfo]
    """Those that live."""
    stores: dict[bytes, ObjectsInfo]
    """By node id."""
    processes: list[CoreWorkerStats]
    silent: list[str]
    """Who has not answered, in words."""

    def left_out(self) -> int:
        """References and copies that exist, but are not described because there are so many."""
        references = sum(process.total - len(process.references) for process in self.processes)
        return references + sum(store.total - len(store.copies) for store in self.stores.values())

    def uses(self) -> list[ObjectUse]:
        """A line for each reference, and for each object that a process reads although it has no reference any more."""
        copies = {copy.object_id: copy for store in self.stores.values() for copy in store.copies}
        sizes = {info.object_id: info.size for process in self.processes for info in process.references if info.size >= 0}
        sizes |= {copy.object_id: copy.size for copy in copies.values()}
        reads: dict[bytes, dict[bytes, CopyInfo]] = {}
        for store in self.stores.values():
            for copy in store.copies:
                for reader in copy.readers:
                    reads.setdefault(reader, {})[copy.object_id] = copy
        found: list[ObjectUse] = []
        for process in self.processes:
            read = reads.get(process.worker_id, {})
            found += [_use(process, info, info.object_id in read, sizes) for info in process.references]
            known = {info.object_id for info in process.references}
            found += [_read_use(process, copy) for copy in read.values() if copy.object_id not in known]
        return found


def _use(process: CoreWorkerStats, info: ObjectRefInfo, is_read: bool, sizes: dict[bytes, int]) -> ObjectUse:
    return ObjectUse(
        info.object_id,
        process.worker_id,
        process.node_id,
        process.pid,
        process.is_driver,
        PINNED_IN_MEMORY if is_read else reference_type(info),
        sizes.get(info.object_id, UNKNOWN_SIZE),
        info.call_site,
        info.task_status,
        info.attempt,
        info.owner_id,
        info.borrowers,
    )


def _read_use(process: CoreWorkerStats, copy: CopyInfo) -> ObjectUse:
    return ObjectUse(
        copy.object_id,
        process.worker_id,
        process.node_id,
        process.pid,
        process.is_driver,
        PINNED_IN_MEMORY,
        copy.size,
        "",
        NIL,
        copy.attempt,
        copy.owner_id,
        0,
    )


def reference_type(info: ObjectRefInfo) -> str:
    """Why a process that does not read an object refers to it."""
    if info.submitted:
        return USED_BY_PENDING_TASK
    if info.local or info.is_pickled:
        return LOCAL_REFERENCE
    return CAPTURED_IN_OBJECT if info.contained else UNKNOWN_STATUS


class _Question:
    """What everybody is asked, and who has not answered."""

    def __init__(self, timeout_s: float, limit: int, object_ids: list[bytes] | None) -> None:
        self.limit = limit
        self.object_ids = object_ids
        self.silent: list[str] = []
        self._timeout_s = timeout_s

    async def ask(self, name: str, answer: Awaitable[R]) -> R | None:
        """None from who is dead, or does not answer in time."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except TimeoutError:
            self._note(name)
        except PlatformError as error:
            if not (isinstance(error, PeerUnreachable) and error.is_certain):
                self._note(name)
        return None

    def _note(self, name: str) -> None:
        if name not in self.silent:
            self.silent.append(name)


class StateReader:
    """Asks everybody."""

    def __init__(
        self,
        peers: Peers,
        gcs: Peer,
        own_id: bytes = b"",
        own_stats: Callable[[GetCoreWorkerStats], CoreWorkerStats] | None = None,
    ) -> None:
        """A process of the cluster answers for itself (``own_stats``)."""
        self._peers = peers
        self._gcs = gcs
        self._own_id = own_id
        self._own_stats = own_stats

    async def read(
        self, timeout_s: float, limit: int = MOST_ENTRIES, object_ids: Sequence[bytes] | None = None
    ) -> ClusterObjects:
        """The largest objects, or these; each process may take ``timeout_s``. Raises PlatformError if the gcs is gone."""
        question = _Question(timeout_s, limit, None if object_ids is None else list(object_ids))
        nodes, jobs = await asyncio.gather(self._rows(NODES, NodeInfo), self._rows(JOBS, JobInfo))
        alive = {node.node_id: node for node in nodes if node.alive}
        of_nodes = await asyncio.gather(*(self._read_node(question, node) for node in alive.values()))
        drivers = [(job.driver, job.driver_pid) for job in jobs if not job.end_time and job.driver.node_id in alive]
        workers = [(worker.address, worker.pid) for _, stats in of_nodes for worker in (stats.workers if stats else ())]
        asked = [self._read_process(question, to, pid) for to, pid in [*drivers, *workers] if to is not None]
        processes = [stats for stats in await asyncio.gather(*asked) if stats is not None]
        stores = {store.node_id: store for store, _ in of_nodes if store is not None}
        return ClusterObjects(alive, stores, processes, question.silent)

    async def _rows(self, channel: str, record: type[R]) -> list[R]:
        reply = await self._gcs.call(Poll(channel, b"", 0, 1.0))
        return [decode(record, value) for _, value in reply.entries if value is not None]

    async def _read_node(self, question: _Question, node: NodeInfo) -> tuple[ObjectsInfo | None, NodeStats | None]:
        raylet, name = self._peers.to(node.address), f"node {node.name or short(node.node_id)}"
        objects_info = GetObjectsInfo(question.limit, question.object_ids)
        return await asyncio.gather(
            question.ask(name, raylet.call(objects_info)), question.ask(name, raylet.call(GetNodeStats()))
        )

    async def _read_process(self, question: _Question, to: Address, pid: int) -> CoreWorkerStats | None:
        request = GetCoreWorkerStats(question.limit, question.object_ids)
        if self._own_stats is not None and to.worker_id == self._own_id:
            return self._own_stats(request)
        name = f"process {pid} of node {short(to.node_id)}"
        return await question.ask(name, self._peers.to(to).call(request))
