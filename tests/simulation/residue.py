"""A process at rest shows nothing that a new one does not: one walk goes over all that it has.

``census`` looks at tables of work. Here every attribute of every object counts: a number that is not zero, a flag that is
set, a thing that is there, a container that is not empty. The norm is what processes of a cluster show that has only just
started. ``MAY_DIFFER`` names the attributes that a process changes for good, each with its reason.
"""

from __future__ import annotations

import time
from collections import OrderedDict, deque
from collections.abc import Container, Iterator
from functools import cache, partial
from types import BuiltinMethodType, FunctionType, MethodType
from typing import Any

from minray.simulation import SimCluster
from tests.simulation.census import ROOMS, _attributes

CONTAINERS = (dict, list, tuple, set, frozenset, deque, OrderedDict)
CODE = (FunctionType, MethodType, BuiltinMethodType, type, partial)
RECORDS = "minray.core_worker.records."
"""Where records of tasks and objects are: those that are there are judged by the tables that have them."""
REASONS: dict[str, str] = {
    "a number that names the next thing, or a time": """
        ActorTaskSubmitter._stream_count Allocator._holes_made BlockedTasks._sequence Borrowing._message_count
        Bulk._read_count CreateRequestQueue._progress_at FutureResolver._question_count GcsTaskManager._last
        LeaseArguments._came_at LeaseArguments._pin_count LeaseArguments._turn_at LeaseArguments._turn_s
        LocalGc._not_before LocalLeaseManager._arrivals LocalObjectManager._file_count LogMonitor._batch_count
        NormalTaskSubmitter._revoked_until ObjectDirectory._turn_count ObjectManager._push_count
        ObjectManager._question_count ObjectManager._report_count ObjectStore._question_count ObjectTable._count
        PlacementGroupResourceManager._generation PlacementGroupScheduler._attempt_count PushedTasks.acknowledged
        StartFailures.since StoreClient._pin_count TaskExecutor._birthplace TaskProfile._grown
        Worker.block_sequence Worker.leased_at Publisher._forgotten
    """,
    "a figure for people": """
        _Method.failed UsageMeter._last GcsMetricsService._last _Outbox.is_scheduled _Outbox.unacknowledged
        _WorkerStream.early LogMonitor._unkept KeptMetrics._refused KeptMetrics._sums KeptMetrics._summed
        OutputNames.actor_words MetricReporter._number TaskEventBuffer._left_out GcsTaskManager._dropped
        GcsTaskManager._failed GcsTaskManager._workers GcsTaskManager.size_bytes GcsTaskManager.tasks
        IoWorkers.restored_bytes IoWorkers.restored_objects IoWorkers.spilled_bytes IoWorkers.spilled_objects
        IoWorkers.streamed_bytes IoWorkers.trouble Fallback.trouble LeaseScheduler.spilled_count LocalGc.shortages
        ObjectManager.pushed_bytes ObjectManager.received_bytes StartFailures.in_all StartFailures.reason
        StartFailures.timed_out StartFailures.in_a_row TaskExecutor._call_counts TaskManager.recent
        TaskManager.submitted_count TaskProfile._labels TaskProfile._templates TaskProfile._phases
        WorkerDeaths.evictions WorkerDeaths.failures _Method.nanoseconds _Outbox.dropped _Outbox.dropped_of
        _WorkerStream.kept_mark _WorkerStream.mark _WorkerStream.task_id _WorkerStream.task_name _Outbox.warnings
        _Outbox.lines OutputNames.is_named KeptMetrics.series KeptMetrics.size KeptMetrics._ended
        KeptMetrics._living
    """,
    "ids of what is over, which only refuse late messages": """
        WorkerProcesses._doomed ActorTaskReceiver._dead ActorTaskReceiver._over ClusterLeaseManager._confirmed
        _Topic.complete_since EndedLeases._ends GcsActorManager._forgotten GcsActorManager._kills
        GcsActorManager._outbid LeaseTable.ended ObjectDirectory._dead_nodes ObjectDirectory._heard
        ObjectDirectory._over ObjectTable._aborted ObjectTable._freed ObjectTable._spent
        PlacementGroupManager._forgotten PlacementGroupManager._refused PlacementGroupResourceManager._over
        ReferenceCounter._dead ReferenceCounter._replaced ReferenceCounter._spent Refusals._removed_groups
        TaskReceiver._past_leases NormalTaskSubmitter._leaving
    """,
    "rows of what is over, which users may ask for": """
        GcsActorManager._dead GcsActorManager._rows GcsActorManager._states PlacementGroupManager._groups
        PlacementGroupManager._removed PlacementGroupManager._states
    """,
    "a copy of what never changes, or what a process is from its first work on": """
        TaskExecutor.used_up TaskExecutor.wants_exit TaskReceiver._exiting ActorManager._infos
        ActorManager._subscriptions ActorTaskReceiver._headers ActorTaskReceiver.actor Borrowing._watching
        Bulk._addresses Bulk._listeners Bulk._remote BundleService._subscription DeathWatch._subscriptions
        Dispatcher._handlers FunctionManager._functions FunctionManager._pickled FunctionManager._wanted
        JobContext.job OmpThreads._set Peer._on_end Peer.target Peer.may_restart PlacementGroups._known
        TaskExecutor.actor TaskReceiver._environment_ready TaskReceiver._headers TaskReceiver._preparing
        TaskReceiver.lease_id TaskTitle.template NormalTaskSubmitter._keys Peers._peers Worker.binding
        Worker.lease_id _Source.job_id _WorkerStream.sink DependencyResolver._large
    """,
    "memory that was used before, which is free": """
        Allocator._ends Allocator._holes Allocator._touched CreateRequestQueue._free_bytes
        CreateRequestQueue._is_stuck CreateRequestQueue._spillable_bytes
    """,
    "a memory of trouble, which only delays the next attempt": """
        Peer.death Peer._connecting _Watch.silences LocalObjectManager._pauses StartFailures.again_at
        WorkerPool._failures_before WorkerPool._first_tasks
    """,
    "what the world is": """
        PlacementGroupScheduler._leaving MemoryMonitor._period_s MemoryMonitor._task NodeView.death_cause
        NodeView.draining NodeView.waiting ClusterResourceScheduler._last_spread ActorProcess.actor_id
    """,
    "work that lasts; tables of it are judged elsewhere (census, judge)": """
        Lineage._tasks Lineage.bytes KvManager._namespaces Worker.retired LeaseScheduler._reap_timer
        TaskExecutor._leaving ActorCreator._handles Departure.drain Departure._deadline Departure._leaving
        Departure._move_count LeaseBroker.leaving ActorCreator._creations ActorTaskReceiver._streams
        MemoryStore.objects ObjectDirectory._objects PushedTasks.tasks ReferenceCounter._references
        TaskManager.tasks _Topic.waiters WorkerProcesses._asking Peer._waiting PullManager._waiting
    """,
}
"""Why a process at rest shows more than a new one -> these attributes."""
MAY_DIFFER = frozenset(name for names in REASONS.values() for name in names.split())


def readings(root: Any) -> dict[str, set[str]]:
    """Return the attributes of all objects of a process that show something: ``Class.attribute`` -> what."""
    found: dict[str, set[str]] = {}
    seen, left = {id(root)}, [root]
    while left:
        one = left.pop()
        if isinstance(one, CONTAINERS):
            parts: list[Any] = list(one.values() if isinstance(one, dict) else one)
        else:
            kind, parts = type(one), []
            for name in _attributes(kind, tuple(getattr(one, "__dict__", ()))):
                value = getattr(one, name, None)
                if (shown := _shown(value)) and not isinstance(value, CODE):
                    found.setdefault(f"{kind.__name__}.{name}", set()).add(shown)
                    parts.append(value)
        for part in parts:
            if id(part) not in seen and (isinstance(part, CONTAINERS) or _is_watched(type(part).__module__)):
                seen.add(id(part))
                left.append(part)
    return found


def _shown(value: Any) -> str:
    """Say what an attribute shows; empty: nothing."""
    if value is None or value is False or (isinstance(value, CONTAINERS) and not value):
        return ""
    if isinstance(value, bool | int | float | str | bytes):
        return str(value) if isinstance(value, bool) else "something" if value else ""
    return "something" if isinstance(value, CONTAINERS) else type(value).__name__


@cache
def _is_watched(module: str) -> bool:
    """Whether the classes of a module are looked at. (A class of a program would be kept by the cache, and its world.)"""
    return module.startswith(ROOMS) and not module.startswith(RECORDS)


def roots_of(cluster: SimCluster, lost: Container[str] = ()) -> Iterator[tuple[str, str, Any]]:
    """Yield name, role and main object of all living processes."""
    alive = cluster.alive()
    for name, raylet in cluster.raylets.items():
        if f"raylet/{name}" in alive:
            yield f"raylet/{name}", "raylet", raylet
    if "gcs" in alive:
        yield "gcs", "gcs", cluster.gcs
    for name, core in cluster.cores.items():
        if name in alive and name not in lost:
            yield name, "driver" if core.config.is_driver else "worker", core


@cache
def norm() -> dict[str, dict[str, frozenset[str]]]:
    """Return what processes show that have only just started, by their role; call this outside of any simulation."""
    shown: dict[str, dict[str, set[str]]] = {}

    def program() -> None:
        time.sleep(10)

    with SimCluster([{"num_cpus": 2}] * 2, 1, storage="gcs.db", show_output=False) as cluster:
        driver = cluster.start_driver(program)
        for settled_s in (5.0, 30.0):
            cluster.settle(settled_s)
            for _, role, root in roots_of(cluster):
                for name, values in readings(root).items():
                    shown.setdefault(role, {}).setdefault(name, set()).update(values)
        cluster.wait_for(driver)
    return {role: {name: frozenset(values) for name, values in of.items()} for role, of in shown.items()}


def residue(cluster: SimCluster, roles: Container[str], lost: Container[str] = ()) -> list[str]:
    """List what living processes of these roles show that a new one does not; one line for each attribute."""
    problems = []
    for process, role, root in roots_of(cluster, lost):
        known = norm()[role]
        classes = {name.partition(".")[0] for name in known}
        for name, values in readings(root).items() if role in roles else ():
            if name in MAY_DIFFER or values <= known.get(name, frozenset()):
                continue
            if name in known or name.partition(".")[0] in classes:
                problems.append(f"L2: {process} at rest shows {name}, which a new process does not: {sorted(values)}")
    return problems
