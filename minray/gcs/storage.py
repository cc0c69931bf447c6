"""The tables of the gcs on disk, with typed access to their rows.

Ray: src/ray/gcs/gcs_table_storage.h, src/ray/gcs/store_client/

    cluster  "id" -> the cluster's id; "jobs" -> the number of the newest job; "starts" -> how often a gcs was started
    nodes    node id (hex) -> NodeInfo          jobs   job id (hex) -> JobInfo
    placement_groups    group id (hex) -> PlacementGroupInfo
    kv       key (hex), colon, namespace -> value
    actors   actor id (hex) -> ActorRow         worker_deaths   worker id (hex) -> WorkerDeath

Rows are staged at once and durable when ``commit`` returns; concurrent commits share one sync. Resource reports are not
stored, since nodes send them again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

from minray.common.decoding import MALFORMED
from minray.common.ids import job_of_actor
from minray.gcs.gcs_actor_manager import ActorRow
from minray.platform.base import Platform, Storage, StorageFailed
from minray.protocol.base import Record, decode, encode
from minray.protocol.gcs import JobInfo, NodeInfo, WorkerDeath
from minray.protocol.placement_group import PlacementGroupInfo

CLUSTER, NODES, JOBS, KV, ACTORS, PLACEMENT_GROUPS = "cluster", "nodes", "jobs", "kv", "actors", "placement_groups"
WORKER_DEATHS, FORGOTTEN_ACTORS = "worker_deaths", "forgotten_actors"
CLUSTER_ID_BYTES = 16

R = TypeVar("R", bound=Record)


class GcsStorage:
    """Gives typed access to one store of rows."""

    def __init__(self, storage: Storage, cluster_id: bytes) -> None:
        self._storage = storage
        self.cluster_id = cluster_id
        """Random id that was made when the store was new, and never changes."""

    @classmethod
    async def open(cls, platform: Platform, path: str) -> GcsStorage:
        """Open a store. Raises StorageFailed if that fails, or if a new store cannot be written."""
        storage = platform.open_storage(path)
        cluster_id = storage.load(CLUSTER).get("id")
        if cluster_id is None:
            cluster_id = platform.host.random_bytes(CLUSTER_ID_BYTES)
            storage.put(CLUSTER, "id", cluster_id)
            try:
                await storage.commit()
            except BaseException:
                storage.close()
                raise
        return cls(storage, cluster_id)

    @property
    def durable(self) -> bool:
        """Tell whether a restarted gcs finds the rows that this one has committed."""
        return self._storage.durable

    def nodes(self) -> list[NodeInfo]:
        return self._load(NODES, NodeInfo)

    def jobs(self) -> list[JobInfo]:
        return self._load(JOBS, JobInfo)

    def actors(self) -> list[ActorRow]:
        return self._load(ACTORS, ActorRow)

    def forgotten_actors(self) -> list[bytes]:
        """Return the ids of dead actors whose rows are deleted, of all jobs that are remembered."""
        return [bytes.fromhex(key) for key in self._storage.load(FORGOTTEN_ACTORS)]

    def worker_deaths(self) -> list[WorkerDeath]:
        return self._load(WORKER_DEATHS, WorkerDeath)

    def job_count(self) -> int:
        return int.from_bytes(self._storage.load(CLUSTER).get("jobs", b""), "big")

    def start_count(self) -> int:
        """Return the number of gcs processes that have used these tables."""
        return int.from_bytes(self._storage.load(CLUSTER).get("starts", b""), "big")

    def placement_groups(self) -> list[PlacementGroupInfo]:
        return self._load(PLACEMENT_GROUPS, PlacementGroupInfo)

    def values(self) -> Iterator[tuple[str, bytes, bytes]]:
        for row, value in self._storage.load(KV).items():
            key, _, namespace = row.partition(":")
            yield namespace, bytes.fromhex(key), value

    def _load(self, table: str, record: type[R]) -> list[R]:
        try:
            return [decode(record, row) for row in self._storage.load(table).values()]
        except MALFORMED as error:
            raise StorageFailed(f"table {table} has a row that is no {record.__name__}: {error}") from None

    def put_node(self, node: NodeInfo) -> None:
        self._storage.put(NODES, node.node_id.hex(), encode(node))

    def put_job(self, job: JobInfo) -> None:
        self._storage.put(JOBS, job.job_id.hex(), encode(job))

    def put_job_count(self, count: int) -> None:
        self._storage.put(CLUSTER, "jobs", count.to_bytes(8, "big"))

    def put_start_count(self, count: int) -> None:
        self._storage.put(CLUSTER, "starts", count.to_bytes(8, "big"))

    def put_placement_group(self, group: PlacementGroupInfo) -> None:
        self._storage.put(PLACEMENT_GROUPS, group.group_id.hex(), encode(group))

    def delete_placement_group(self, group_id: bytes) -> None:
        self._storage.delete(PLACEMENT_GROUPS, group_id.hex())

    def delete_job(self, job_id: bytes) -> None:
        """Delete a job, and what is left of its actors."""
        self._storage.delete(JOBS, job_id.hex())
        for actor_id in self.forgotten_actors():
            if job_of_actor(actor_id) == job_id:
                self._storage.delete(FORGOTTEN_ACTORS, actor_id.hex())

    def put_actor(self, row: ActorRow) -> None:
        self._storage.put(ACTORS, row.info.actor_id.hex(), encode(row))

    def delete_actor(self, actor_id: bytes) -> None:
        """Delete the row of a dead actor; its id stays, so that late callers hear that it is dead."""
        self._storage.delete(ACTORS, actor_id.hex())
        self._storage.put(FORGOTTEN_ACTORS, actor_id.hex(), b"")

    def put_worker_death(self, death: WorkerDeath) -> None:
        self._storage.put(WORKER_DEATHS, death.worker_id.hex(), encode(death))

    def delete_worker_death(self, worker_id: bytes) -> None:
        self._storage.delete(WORKER_DEATHS, worker_id.hex())

    def put_value(self, namespace: str, key: bytes, value: bytes) -> None:
        self._storage.put(KV, f"{key.hex()}:{namespace}", value)

    def delete_value(self, namespace: str, key: bytes) -> None:
        self._storage.delete(KV, f"{key.hex()}:{namespace}")

    async def commit(self) -> None:
        """Return when all staged rows are durable.

        If it raises StorageFailed, none of them may be acknowledged, and the staged puts are dropped."""
        await self._storage.commit()

    def close(self) -> None:
        self._storage.close()
