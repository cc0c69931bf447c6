"""A raylet lets wait only what lacks something: rules of ``Progress``, which looks between two instants.

Each rule says for one queue what an entry lacks if it waits: resources, a worker, memory, a copy. It decides that from the
tables alone, and not by the conditions of the class that owns the queue.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from minray.common.bundles import is_gpu
from minray.common.ids import short
from minray.common.labels import accepts
from minray.common.resources import fits
from minray.common.task_spec import STRATEGY_AFFINITY
from minray.scheduling.lease import ALLOCATED
from tests.simulation.insides import LEASES, PULLS, SPILLING, Rule, looks_into

DEADLINE_SLACK_S = 0.01
"""Seconds by which the timer of a deadline may differ from it."""


@looks_into(LEASES)
def leases_that_fit(raylet: Any, _now: float) -> Iterator[str]:
    """A request waits here only for resources, for the worker cap, for memory of its arguments, or behind its like."""
    broker = raylet._broker
    local, manager = broker.local, broker.arguments.manager
    held = Counter(lease.request.shape for lease in local.leases.values() if not lease.request.for_actor)
    for shape, queue in local._queues.items():
        first = next(iter(queue.values()))
        has_gpus = any(map(is_gpu, first.resources))
        if not fits(first.resources, local.available) or (has_gpus and not local.resources.has_room(first.resources)):
            continue
        for request in queue.values():
            is_capped = held[shape] >= local.cap(shape) and not request.for_actor
            if not is_capped and (not request.dependency_ids or _has_arguments(broker.arguments, request.lease_id)):
                yield f"lets the lease {short(request.lease_id)} wait, which fits"
                break
    for lease_id in local._fetching:
        is_pulled = lease_id in manager._waiting or lease_id in manager._ahead or lease_id in broker.arguments._questions
        if not is_pulled and _has_arguments(broker.arguments, lease_id):
            yield f"lets the lease {short(lease_id)} wait for arguments that are here"


def _has_arguments(arguments: Any, lease_id: bytes) -> bool:
    manager = arguments.manager
    return all(map(arguments._is_here, manager.needed(lease_id))) and manager.has_memory(lease_id)


@looks_into(LEASES)
def leases_that_fit_elsewhere(raylet: Any, now: float) -> Iterator[str]:
    """A request waits here only if no other node, as this raylet sees it, has room for it, or could ever hold it."""
    broker = raylet._broker
    nodes, local = broker.nodes, broker.local
    if nodes._own_policy is not None:
        return
    others = [view for view in nodes._views.values() if view.alive and not view.draining and view is not nodes.local]
    for request in local.queued():
        strategy, shape = request.shape.strategy, request.shape
        if strategy.kind == STRATEGY_AFFINITY and strategy.node_id == nodes.local.node_id:
            continue
        for view in others:
            if accepts(shape.labels, view.labels) and fits(request.resources, view.available):
                yield f"lets the lease {short(request.lease_id)} wait, and {view} has room for it"
    for request in broker.cluster._infeasible.values():
        for view in nodes._views.values():
            if view.alive and view.could_hold(request.resources, request.shape.labels):
                yield f"holds the lease {short(request.lease_id)} for impossible, and {view} could serve it"
    for request in broker.cluster._unknown.values():
        if nodes.get(request.shape.strategy.node_id) is not None:
            yield f"lets the lease {short(request.lease_id)} wait for a node that it knows"
    if broker.cluster._arrived or broker.cluster._complete:
        yield "has not decided all requests that have come"
    if (expiry := nodes.next_expiry()) is not None and expiry < now - PROMISE_SLACK_S:
        yield f"keeps a promise that ran out {now - expiry:.2f} s ago"


PROMISE_SLACK_S = 0.05
"""Seconds by which a raylet may be late with its timers; a slow node takes up to 10 ms for a step."""


def leases_without_workers(raylet: Any, now: float) -> Iterator[str]:
    """A lease with resources waits only for a worker that is starting, or for the end of a pause."""
    broker = raylet._broker
    pool = broker.pool
    waiting = {lease_id for lease_id, state in broker.states.items() if state == ALLOCATED}
    if waiting != pool._waiting.keys():
        yield f"has resources for {len(waiting)} leases without a worker, and looks for {len(pool._waiting)}"
    ready = 0
    for lease_id, binding in pool._waiting.items():
        deaths = pool._first_tasks.get(binding.start())
        if deaths is not None and now < deaths.again_at:
            continue
        ready += 1
        if any(worker.binding in (None, binding) for worker in pool._idle.values()):
            yield f"lets the lease {short(lease_id)} wait for a worker, and one is idle"
    starting = len(pool._starting)
    if starting < min(ready, pool._max_starting) and now >= pool.starts.again_at:
        yield f"starts {starting} workers, and {ready} leases wait for one"


@looks_into(SPILLING)
def requests_for_memory(raylet: Any, now: float) -> Iterator[str]:
    """A request for memory waits only if there is no room, and something will be spilled, or time will be up."""
    store, manager = raylet.store, raylet.io_workers._manager
    table, queue = store.table, store._queue
    if queue._waiting:
        size = queue._waiting[0][0].size
        if size <= table.allocator.largest_hole():
            yield f"lets {size} bytes wait for memory, and has a piece of {table.allocator.largest_hole()}"
        if not _is_set(store._timer, now):
            yield f"lets {len(queue)} requests wait for memory, and will not look again"
    wanted = queue.waiting_bytes > manager._writing_bytes
    is_short = wanted or table.unspilled_bytes - manager._writing_bytes > manager._threshold_bytes
    has_enough = not manager.writing or table.spillable_bytes >= manager._config.min_spilling_size
    if is_short and has_enough and table.spillable_count() and manager.writing < manager._config.max_io_workers:
        if manager.can_write(now) and not manager._pauses and not raylet.io_workers._is_closed:
            yield f"is short of memory, and does not write the {table.spillable_count()} copies that it could"


def _is_set(timer: Any, now: float) -> bool:
    return timer is not None and not timer.cancelled() and timer.when() >= now


def requests_for_copies(raylet: Any, _now: float) -> Iterator[str]:
    """A request for a copy waits only while the copy is written, restored, or pulled."""
    store, pulls = raylet.store, raylet.objects._pulls
    table = store.table
    restoring = {one.entry.object_id for one, _ in store._queue._waiting if hasattr(one, "entry")}
    for object_id, waiting in store._waiting.items():
        entry = table.find(object_id)
        if not waiting:
            yield f"keeps an empty list of requests for {short(object_id)}"
        elif entry is None and object_id not in pulls:
            yield f"lets requests wait for {short(object_id)}, which nobody brings"
        elif entry is not None and table.is_sealed(entry) and any(one.attempt <= entry.attempt for _, _, one in waiting):
            yield f"lets requests wait for {short(object_id)}, which is here"
        elif entry is not None and table.is_spilled(entry) and object_id not in restoring and object_id not in pulls:
            yield f"lets requests wait for {short(object_id)}, which is on disk"


@looks_into(PULLS)
def transfers(raylet: Any, _now: float) -> Iterator[str]:
    """A bundle of pulls waits only behind another one; a chunk waits only for the limit of bytes in flight."""
    pulls, pushes = raylet.objects.pulls, raylet.objects.pushes
    begun = sum(bundle.has_begun and not bundle.stalled for bundle in pulls._bundles.values())
    ready = [bundle for bundle in pulls._bundles.values() if not bundle.has_begun and not bundle.unknown]
    if ready and not begun:
        yield f"brings nothing here, and {len(ready)} bundles of objects are ready"
    if pushes._waiting and (not pushes.bytes_in_flight or _fits_next(pushes)):
        yield f"lets {len(pushes)} chunks wait, and has {pushes.bytes_in_flight} bytes in flight"
    for receiver, batch in raylet.objects._reports._batches.items():
        if not batch._is_open:
            yield f"lets {len(batch._waiting)} reports for {short(receiver)} wait"


def _fits_next(pushes: Any) -> bool:
    return bool(pushes.bytes_in_flight + pushes._waiting[0][0] <= pushes._limit_bytes)


def idle_workers(raylet: Any, now: float) -> Iterator[str]:
    """Workers of a job that is over are idle only until they are asked to end."""
    scheduler, pool = raylet._broker.scheduler, raylet._broker.pool
    late_s = 2 * scheduler._system.kill_idle_workers_interval_ms / 1000 + 1.0
    for worker in pool._idle.values():
        if worker.binding is not None and pool.is_over(worker.binding.job_id) and now - worker.idle_since > late_s:
            yield f"keeps the worker {short(worker.worker_id)} of a job that is over"


def deadlines(raylet: Any, now: float) -> Iterator[str]:
    """A node that leaves has until the deadline of the last request, if that has one."""
    departure = raylet._departure
    drain, timer = departure.drain, departure._deadline
    if drain is None or departure.is_over:
        return
    is_set = timer is not None and not timer.cancelled()
    if is_set != bool(drain.deadline):
        yield f"is to leave, and {'has a' if is_set else 'has no'} timer; the deadline is {drain.deadline}"
    elif is_set:
        remaining_s = max(0.0, drain.deadline - departure._platform.host.time())
        if abs(timer.when() - now - remaining_s) > DEADLINE_SLACK_S:
            yield f"is to leave in {remaining_s} s, and its timer says {timer.when() - now} s"


RULES: tuple[Rule, ...] = (
    leases_that_fit, leases_that_fit_elsewhere, leases_without_workers, requests_for_memory, requests_for_copies, transfers,
    idle_workers, deadlines,
)  # fmt: skip
