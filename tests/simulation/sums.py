"""Counts that a process keeps beside a table, compared with the table (S1): rules of ``Progress``.

A count that is not corrected in one place shifts what a limit allows. The tables are right again when all is over, and the
count may be, too. So it is compared whenever time passes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any

from minray.common.bundles import group_name, is_cpu, is_reserved, plain_name
from minray.common.ids import item_id, short
from minray.object_store.object_table import CREATED, NOWHERE
from minray.scheduling.local_lease_manager import _use
from tests.simulation.insides import CALLS, LEASES, PULLS, SPILLING, SUBMITTER, Rule, looks_into

MOST_SHOWN = 60
"""Characters of a count in a problem."""


def _differing(counts: dict[str, tuple[Any, Any]]) -> Iterator[str]:
    for name, (kept, counted) in counts.items():
        if kept != counted:
            yield f"has a wrong count of {name}: {_shown(kept)}, and it is {_shown(counted)}"


def _shown(count: Any) -> str:
    return str(sorted(count.values()) if isinstance(count, dict) else count)[:MOST_SHOWN]


@looks_into(LEASES)
def leases(raylet: Any, _now: float) -> Iterator[str]:
    local, manager = raylet._broker.local, raylet._broker.arguments.manager
    requests = [lease.request for lease in local.leases.values()]
    running = [one for one in manager._leases.values() if one.runs]
    users = Counter(object_id for one in running for object_id in one.needed)
    yield from _differing({
        "leases by owner": (local._held_by_owner, Counter(one.owner_id for one in requests)),
        "leases by shape": (local._held_by_shape, Counter(one.shape for one in requests if not one.for_actor)),
        "blocked leases": (
            local._blocked_levels, Counter(one.request.level for one in local.leases.values() if one.blocked)
        ),
        "requests by use": (local._queued_by, Counter(_use(one) for one in local.queued())),
        "requests in queues": (set(local._queued), {key for queue in local._queues.values() for key in queue}),
        "leases that run with arguments": (manager._active_count, sum(not one.is_blocked for one in running)),
        "pinned arguments": (sorted(manager._pinned), sorted(users)),
        "bytes of pinned arguments": (manager.pinned_bytes, sum(manager._pinned.values())),
    })  # fmt: skip


@looks_into(LEASES)
def gpus(raylet: Any, _now: float) -> Iterator[str]:
    """The leases and bundles have all that a pool of GPUs has given away."""
    local = raylet._broker.local
    holders = [*(lease.gpus for lease in local.leases.values()), *(one.gpus for one in raylet.groups.bundles.all())]
    for name, pools in local.resources._gpus.items():
        for pool in pools:
            taken: Counter[int] = Counter()
            for held in holders:
                taken.update(held.taken if held.source is pool else {})
            given = {index: pool._whole[index] - free for index, free in pool._free.items() if pool._whole[index] != free}
            yield from _differing({f"shares of {name}": (given, dict(taken))})


@looks_into(LEASES)
def groups(raylet: Any, _now: float) -> Iterator[str]:
    """A lease of one bundle also takes of what its group has here for any bundle."""
    local = raylet._broker.local
    if not raylet.groups.bundles.all():
        return
    taken: Counter[str] = Counter()
    for lease in local.leases.values():
        shares: dict[str, int] = {}
        for name, amount in lease.request.resources.items():
            if is_reserved(name) and not (lease.blocked and is_cpu(name)):
                whole = _of_any_bundle(name)
                shares[whole] = max(amount, shares.get(whole, 0))
        taken.update(shares)
    for name, total in local.total.items():
        if is_reserved(name) and _of_any_bundle(name) == name:
            yield from _differing({f"free {name}": (local.available.get(name, 0), total - taken[name])})


def _of_any_bundle(name: str) -> str:
    return group_name(plain_name(name), bytes.fromhex(name.rpartition("_")[2]))


@looks_into(SPILLING)
def copies(raylet: Any, _now: float) -> Iterator[str]:
    table, queue, spilling = raylet.store.table, raylet.store._queue, raylet.io_workers._manager
    there = list(table._entries.values())
    files = Counter(entry.spilled.file for entry in table.copies() if entry.spilled is not None)
    files.update(table._unneeded)
    in_arena = [one for one in table.copies() if one.offset != NOWHERE and not table.fallback.has(one.offset)]
    yield from _differing({
        "bytes to spill": (table.spillable_bytes, sum(table._entries[key].size for key in table._spillable)),
        "bytes that must stay": (table.unspilled_bytes, sum(one.size for one in there if table._needs_memory(one))),
        "bytes on disk": (table.spilled_bytes, sum(one.size for one in table.copies() if one.spilled is not None)),
        "objects in files": (spilling._files, dict(files)),
        "bytes that requests wait for": (queue.waiting_bytes, sum(one.size for one, _ in queue._waiting)),
        "pieces of memory": (len(table.allocator._blocks), len(in_arena)),
        "bytes of memory in use": (table.allocator.used, sum(table.allocator._blocks.values())),
        "pins": (len(table._by_pin), sum(len(one.pins) for one in table.copies())),
    })  # fmt: skip


@looks_into(PULLS)
def transfers(raylet: Any, _now: float) -> Iterator[str]:
    pulls, store = raylet.objects.pulls, raylet.store
    bundles = pulls._bundles
    due = [one.size for one in pulls._objects.values() if one.is_due]
    yield from _differing({
        "bundles under way": (pulls._begun_count, sum(one.has_begun and not one.stalled for one in bundles.values())),
        "bytes that are due": (pulls.due_bytes, sum(due)),
        "objects of bundles": (
            sorted((order, key) for order, one in bundles.items() for key in one.objects),
            sorted((order, key) for key, one in pulls._objects.items() for order in one.bundles),
        ),
    })  # fmt: skip
    for one in bundles.values():
        objects = [pulls._objects[key] for key in one.objects]
        yield from _differing({
            "objects of unknown size": (one.unknown, sum(each.size is None for each in objects)),
            "objects that are made again": (one.stalled, sum(each.is_stalled for each in objects)),
            "bytes of a bundle": (one.bytes, sum(each.size for each in objects if each.on_begin is not None)),
        })  # fmt: skip
    writing = {key for key, entry in store.table._entries.items() if store.table.states.get(entry.key) == CREATED}
    if lost := [key for key in writing if not store.table._entries[key].creator and key not in raylet.objects._pulls]:
        yield f"has {len(lost)} copies that nobody completes"


@looks_into(SUBMITTER)
def tasks(core: Any, _now: float) -> Iterator[str]:
    submitter, lineage = core.submission.submitter, core.submission.recovery.lineage
    workers = [worker for key in submitter._keys.values() for worker in key.workers.values()]
    yield from _differing({
        "leased workers": (sorted(submitter._workers), sorted(worker.lease_id for worker in workers)),
        "bytes of remembered tasks": (lineage.bytes, sum(one.size for one in lineage._tasks.values())),
    })  # fmt: skip
    for key in submitter._keys.values():
        low = {one.lease_id for one in key.workers.values() if submitter._pipelining.is_low(one)}
        yield from _differing({"workers with little to do": (set(key.low), low)})
    for worker in workers:
        if worker.stalled and not worker.in_flight:
            yield f"thinks that the worker {short(worker.worker_id)} stands still, which has no task"
        estimate = sum(task.estimate_us for task in worker.in_flight.values())
        if abs(worker.queued_us - estimate) > 1.0:
            yield f"counts {worker.queued_us} us of work for a worker, and it has {estimate}"


@looks_into(CALLS)
def actors(core: Any, _now: float) -> Iterator[str]:
    """A call that a user thread is about to submit is not counted yet."""
    clients = core.submission.actors.clients
    of_tasks = (task.prepared.client for task in core.submission.tasks.tasks.values())
    calls = Counter(client.actor_id for client in of_tasks if client is not None)
    for actor_id in clients:
        client = clients.client_of(actor_id)
        counted = calls[actor_id]
        if client is not None and client.submitted - client.ended not in (counted, counted - 1):
            yield f"counts {client.submitted - client.ended} calls of an actor, and there are {counted}"


def streams(core: Any, _now: float) -> Iterator[str]:
    """A stream knows whether one of its items is large, which may be lost."""
    for task in core.submission.tasks.tasks.values():
        if task.stream is not None and not task.stream.has_large:
            items = (core.store.objects.get(item_id(task.task_id, number)) for number in task.stream.numbers())
            if any(one is not None and one.place is not None for one in items):
                yield f"does not know that the generator {short(task.task_id)} has large items"


OF_NODES: tuple[Rule, ...] = (leases, groups, gpus, copies, transfers)
OF_CORES: tuple[Rule, ...] = (tasks, actors, streams)
