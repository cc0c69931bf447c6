"""Every table of the protocol's classes that is no copy of another process's state, with the reason.

``tests/simulation/test_views.py`` reads all classes of ``ROOMS`` and finds their containers. Each is compared with its
source (``views.COPIES``), or stands here. So a new copy without a comparison fails a test.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parents[2] / "minray"
ROOMS = ("gcs", "raylet", "core_worker", "scheduling", "rpc", "object_store", "object_manager")
CONTAINERS = ("dict[", "set[", "list[", "deque[", "OrderedDict[", "Mapping[", "Counter[")

UNDER_WAY = "work under way: the judge expects none at rest (judge, rest, census)"
REASONS: dict[str, str] = {
    "the state itself: this process decides it": """
        KvManager._dropped PlacementGroupManager._forgotten GcsActorManager._forgotten GcsActorManager._outbid
        PlacementGroupResourceManager._groups LeaseTable.entries LocalLeaseManager.leases LocalResourceManager._gpus
        MemoryStore.objects ReferenceCounter._references TaskManager.tasks Lineage._tasks _Remembered.results
        NormalTaskSubmitter._workers KeyQueue.workers KeyQueue.queue ActorProcess._groups ActorTaskReceiver._streams
        Allocator._blocks LocalObjectManager._files Spilled.checksums ObjectEntry.pins ObjectRefStreams._streams
        ObjectRefStream.beyond Gpus.taken Reservation.resources ActorCreator._creations ActorCreator._handles
        PlacementGroupScheduler._leaving ConcurrencyGroup.waiting
    """,
    UNDER_WAY: """
        ActorExits._exiting ActorScheduler._creating ActorScheduler._constructing ActorScheduler._without_node
        PlacementGroupScheduler._attempts PlacementGroupScheduler._retries PlacementGroupScheduler._promised
        PlacementGroupScheduler._waiters PlacementGroupManager._waiting BundleService._asked LeaseArguments._dependencies
        LeaseArguments._questions LeaseArguments._timers LeaseArguments._pins LeaseArguments._arrived _WaitingLease.needed
        LeaseDependencyManager._leases LeaseDependencyManager._waiting LeaseDependencyManager._ahead
        LeaseDependencyManager._users LeaseDependencyManager._pinned LeaseDependencyManager._missing
        LeaseScheduler._revoking LeaseEntry.calls LeaseEntry.waiters SpillBatch.entries WorkerPool._waiting
        WorkerProcesses._lives WorkerProcesses._asking WorkerProcesses._killed ResourceReporter._when_accepted
        ActorHost._refused UserLoop._inbox UserLoop._tasks
        CallerStream.unbegun GeneratorExecutor._waiting OutgoingStream.queue PushedTasks.tasks TaskExecutor._leaving
        TaskReceiver._waiting BlockedTasks._blocking FutureResolver._asking FutureResolver._probing FutureResolver._looking
        FutureResolver._following ValueFetcher._fetching MemoryStore._waiters _Copies.receivers LeasedWorker.in_flight
        KeyQueue.requests ObjectRefStream.waiting PendingTask.waiting_for PendingTask.items_lost CallStream.in_flight
        ActorClient.queue ActorClient.retries ActorClient.lost ReceivedTask.fetching DependencyResolver._for_function
        DependencyResolver._failed LeaseClient._unstarted NormalTaskSubmitter._due PlacementGroups._waiting
        PlacementGroups._new PlacementGroups._telling PlacementGroups._settling ClusterLeaseManager._arrived
        ClusterLeaseManager._complete ClusterLeaseManager._infeasible ClusterLeaseManager._unknown
        ClusterLeaseManager._confirmed ClusterResourceScheduler.improved ClusterResourceScheduler._promised
        LocalLeaseManager._fetching LocalLeaseManager._to_fetch LocalLeaseManager._queues
        LocalLeaseManager._queued LocalLeaseManager._revoked_at
        Batch._waiting Batches._batches Peer._waiting _Topic.waiters Subscription._unnamed CreateRequestQueue._waiting
        Question._pinned ObjectStore._waiting Bulk._waiting Chunks._waiting ObjectManager._pulls Pull._sources
        _Bundle.objects _Object.bundles PullManager._objects PullManager._bundles PullManager._waiting PushManager._waiting
    """,
    "a sum or an index of a table of the same class, which the judge adds up (judge, objects)": """
        LocalLeaseManager._queued_by LocalLeaseManager._held_by_owner LocalLeaseManager._held_by_shape
        LocalLeaseManager._blocked_levels LocalLeaseManager._over_cap_at Allocator._holes Allocator._ends Allocator._by_size
        ObjectTable._doomed ObjectTable._by_pin ObjectTable._spare ObjectTable._spare_in_fallback
        ObjectTable._unneeded NormalTaskSubmitter._keys PlacementGroupResourceManager._ending _Topic.changed_at
        GcsNodeManager._versions KeyQueue.low
        Publisher._topics ActorManager._subscriptions DeathWatch._subscriptions _Copies.raylets
    """,
    "numbers or ids of what is over, which only refuse late messages": """
        EndedLeases._ends PlacementGroupResourceManager._over WorkerProcesses._doomed ActorTaskReceiver._over
        ActorTaskReceiver._dead TaskReceiver._past_leases ObjectDirectory._over ObjectDirectory._heard
        ReferenceCounter._spent ObjectTable._freed ObjectTable._aborted ObjectTable._spent NormalTaskSubmitter._leaving
        PlacementGroupManager._refused ReferenceCounter._replaced
    """,
    "a memory of trouble, which only delays the next attempt": """
        WorkerPool._failures_before WorkerPool._first_tasks LocalObjectManager._pauses
    """,
    "a result, a parameter or a list of parts, not a table": """
        LastWords._lines Actions.matches Actions.starts Actions.kills Actions.failures Death.stderr_tail Location.node_ids
        NodeUsage.components _Measurement.processes
        Effects.freed Effects.give_back Effects.doubtful Dropped.unread Dropped.waiting Ending.surplus Ending.waiting
        Result.refs Execution.values Assignment.allocated Assignment.fetching
        Assignment.placed Assignment.infeasible GcsServer._listeners Raylet._listeners CoreWorker._listeners
        CoreWorker._closes Bulk._listeners Dispatcher._handlers
    """,
    "a copy of what never changes": """
        FunctionManager._pickled FunctionManager._functions FunctionManager._wanted DependencyResolver._large
        PlacementGroups._known Bulk._remote Bulk._addresses CallSites._sites TaskProfile._templates TaskProfile._labels
        MetricsService.drivers
    """,
    "for people: output, states of tasks, metrics": """
        GcsTaskManager._failed GcsTaskManager._workers GcsTaskManager._dropped _WorkerStream.early _Outbox.lines
        _Outbox.warnings _Outbox.waiters TaskExecutor._call_counts OutputNames.unended OutputNames.forget_names
        TaskProfile._phases MetricRegistry._families TaskEventBuffer._failed TaskManager.recent Process.breakpoints
        KeptMetrics._living KeptMetrics._ended KeptMetrics._sums KeptMetrics._summed KeptMetrics._refused
        RequestMeter._methods
    """,
}
"""Why tables are no copies -> these tables, as ``Class.attribute``."""


def reasons() -> dict[str, str]:
    """Return the reason of each table that is no copy."""
    return {table: reason for reason, tables in REASONS.items() for table in tables.split()}


def tables_of_the_package() -> Iterator[str]:
    """Find all attributes of classes that are annotated as containers."""
    for room in ROOMS:
        for path in sorted((PACKAGE / room).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    yield from _tables_of(node)


def _tables_of(owner: ast.ClassDef) -> Iterator[str]:
    for node in ast.walk(owner):
        if isinstance(node, ast.AnnAssign) and any(word in ast.unparse(node.annotation) for word in CONTAINERS):
            target = ast.unparse(node.target)
            if target.startswith("self.") or node in owner.body:
                yield f"{owner.name}.{target.removeprefix('self.')}"
