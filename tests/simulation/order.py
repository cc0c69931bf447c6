"""First come, first served: no later request is served before an earlier one of the same kind; a part of the ``Watch``.

| | looked at when | |
|---|---|---|
| S8 | a raylet gives resources to a request | no earlier one of this owner waits that has the same needs and depth |
| S8 | a raylet grants a worker | no lease with the same binding has had resources for longer |
| S8 | an owner pushes a task | no task of the same key was ready before, except those that were given back |
| S8 | the gcs begins to place a group | no older group with the same bundles waits, except after a refusal |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minray.common.ids import short
from minray.gcs.placement_group_manager import PENDING

LOOKED_AT = 8
"""Number of tasks at the front of a queue with which a pushed one is compared."""


class Order:
    """Looks at the queues of one cluster."""

    def __init__(self, on_broken: Callable[[str, str], None]) -> None:
        self._on_broken = on_broken
        self._count = 0
        self._arrived: dict[bytes, int] = {}
        """Lease -> its number in the order in which leases began to wait for their turn."""
        self._allocated: dict[bytes, int] = {}
        """Lease -> its number in the order in which leases got resources."""

    def _next(self) -> int:
        self._count += 1
        return self._count

    # --- Raylets

    def add_raylet(self, name: str, raylet: Any) -> None:
        """Look at the queues of one node."""
        self._watch_turns(name, raylet._broker.local)
        scheduler, pool = raylet._broker.scheduler, raylet._broker.pool
        grant = scheduler._grant

        def watched_grant(entry: Any, worker: Any) -> None:
            lease_id = entry.request.lease_id
            mine = self._allocated.get(lease_id, 0)
            for other, binding in pool._waiting.items():
                if binding == worker.binding and self._allocated.get(other, mine) < mine and not _is_paused(pool, binding):
                    self._on_broken("S8", f"{name} grants lease {short(lease_id)} a worker before {short(other)}")
            grant(entry, worker)

        scheduler._grant = watched_grant

    def _watch_turns(self, name: str, local: Any) -> None:
        line_up, allocate = local._line_up, local._allocate

        def watched_line_up(request: Any) -> None:
            self._arrived[request.lease_id] = self._next()
            line_up(request)

        def watched_allocate(request: Any, now: float) -> None:
            mine = self._arrived.get(request.lease_id, 0)
            for other in local._queues[request.shape].values():
                is_alike = (other.owner_id, other.level) == (request.owner_id, request.level)
                if is_alike and not other.dependency_ids and self._arrived.get(other.lease_id, mine) < mine:
                    self._on_broken("S8", f"{name} serves lease {short(request.lease_id)} before {short(other.lease_id)}")
            self._allocated[request.lease_id] = self._next()
            allocate(request, now)

        local._line_up, local._allocate = watched_line_up, watched_allocate

    # --- Owners

    def add_core(self, core: Any) -> None:
        """Look at the queues of one process's tasks."""
        submitter, client = core.submission.submitter, core.submission.lease_client
        ready, given_back, push = submitter.on_task_ready, submitter.on_tasks_unstarted, client.push
        numbers: dict[tuple[bytes, int], int] = {}
        """Task and attempt -> its number in the order in which tasks became ready; given-back ones have none."""

        def watched_ready(task: Any, now: float) -> None:
            numbers[task.task_id, task.attempt] = self._next()
            ready(task, now)

        def watched_back(tasks: list[Any], now: float) -> None:
            for task in tasks:
                numbers.pop((task.task_id, task.attempt), None)
            given_back(tasks, now)

        def watched_push(worker: Any, task: Any) -> None:
            mine = numbers.pop((task.task_id, task.attempt), 0)
            queue = worker.key.queue
            for index in range(min(LOOKED_AT, len(queue))):
                other = queue[index]
                if numbers.get((other.task_id, other.attempt), mine) < mine:
                    self._on_broken("S8", f"task {short(task.task_id)} is pushed before {short(other.task_id)}")
            push(worker, task)

        submitter.on_task_ready, submitter.on_tasks_unstarted, client.push = watched_ready, watched_back, watched_push

    # --- The gcs

    def add_gcs(self, gcs: Any) -> None:
        """Look at the queue of placement groups."""
        scheduler, manager = gcs._group_scheduler, gcs._groups
        begin = scheduler._begin

        def watched_begin(group: Any, places: Any) -> None:
            for other in manager.all():
                if other.group_id == group.group_id or group.state != PENDING:
                    break
                is_tried = other.group_id in scheduler._attempts or other.group_id in scheduler._retries
                if not is_tried and _needs_of(other) == _needs_of(group):
                    what = f"placement group {short(group.group_id)} is placed before {short(other.group_id)}"
                    self._on_broken("S8", f"{what}, which is older")
            begin(group, places)

        scheduler._begin = watched_begin


def _is_paused(pool: Any, binding: Any) -> bool:
    return binding.start() in pool._first_tasks


def _needs_of(group: Any) -> Any:
    return group.state, group.strategy, [(bundle.resources, bundle.labels, bundle.node_id) for bundle in group.bundles]
