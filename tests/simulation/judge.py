"""The judge of simulated runs: what must hold when a program is over, its faults have stopped and its references are gone.

``judged`` runs a body in a driver under a ``Watch`` (see ``invariants``), heals the world, lets it settle, and looks into
the tables of all that survived. A body may keep nothing; what it returns must be plain values. ``outcome_of`` turns a
``get`` into something that can be compared: the value, or the name of a typed error. Anything else that a ``get`` raises
fails the run.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, TypeVar

import minray
from minray.common.bundles import is_cpu
from minray.common.ids import short
from minray.exceptions import RayError
from minray.protocol.actor import ALIVE, DEAD
from minray.protocol.core_worker import TASK_NAME_MARK
from minray.protocol.gcs import job_namespace
from minray.simulation import FaultPlan, SimCluster
from minray.simulation.trace import OUTPUT
from tests.simulation import roles
from tests.simulation.invariants import Watch
from tests.simulation.needs import NOTHING, Needs, needs_of_detached
from tests.simulation.rest import unrest
from tests.simulation.roles import Cluster

T = TypeVar("T")

SETTLE_S = 150.0
"""Longer than any death takes to be noticed: a node that says nothing is declared dead after a minute."""
LIMIT_S = 1500.0
kept = roles.kept

INTERRUPTED = "RayTaskError(TaskCancelledError)"
"""The outcome of what was cancelled when it ran; of what had not begun it is TaskCancelledError."""


def outcome_of(ref: Any, timeout: float | None = None) -> Any:
    """The value of a reference, or the name of its error."""
    try:
        return minray.get(ref, timeout=timeout)
    except RayError as error:
        return type(error).__name__


def drive(
    cluster: Cluster,
    body: Callable[[], T],
    strike: Callable[[Cluster], Any] | None = None,
    settle_s: float = SETTLE_S,
    driver_node: str = "head",
    watch: Callable[[SimCluster], Watch] = Watch,
) -> T:
    """Run ``body`` in a driver while ``strike`` does things to the cluster; judge what is left, then end the driver."""
    watched = watch(cluster)
    results: list[T] = []
    verdict_is_in = False

    def program() -> None:
        results.append(body())
        while not verdict_is_in:
            time.sleep(1)

    name = f"driver/{len(cluster.cores)}"
    driver = cluster.start_driver(program, name, driver_node)
    if strike is not None:
        strike(cluster)
    cluster.wait_until(lambda: bool(results) or driver.done(), LIMIT_S)
    if driver.done():
        driver.result()
    cluster.settle(settle_s)
    watched.look_at_gcs()
    problems = watched.problems + leftovers(cluster) + unrest(cluster) + watched.look_at_rest()
    verdict_is_in = True
    assert not problems, "\n".join(problems)
    cluster.wait_for(driver)
    cluster.settle()
    cluster.raise_failures()
    watched.look_at_gcs()
    problems = watched.problems + leftovers(cluster)
    assert not problems, "after the driver's end:\n" + "\n".join(problems)
    return results[0]


def judged(
    body: Callable[[], T],
    strike: Callable[[Cluster], Any] | None = None,
    *,
    nodes: Sequence[dict[str, Any]] | int = 2,
    seed: int = 0,
    faults: FaultPlan | None = None,
    settle_s: float = SETTLE_S,
    driver_node: str = "head",
    watch: Callable[[SimCluster], Watch] = Watch,
    **options: Any,
) -> tuple[T, Cluster]:
    """The whole life of a cluster; the body's result and what remains of the cluster (its trace)."""
    described = [{"num_cpus": 2}] * nodes if isinstance(nodes, int) else nodes
    with Cluster(described, seed, faults, show_output=False, **options) as cluster:
        result = drive(cluster, body, strike, settle_s, driver_node, watch)
    return result, cluster


def printed(cluster: SimCluster) -> list[str]:
    """Every line that a task has printed, in order: how often its body has run."""
    lines = [
        event.details[1] for event in cluster.trace.events if event.kind == OUTPUT and event.process.startswith("worker/")
    ]
    return [line for line in lines if not line.startswith(TASK_NAME_MARK)]


def leftovers(cluster: SimCluster, but_detached: bool = False, lost: Container[str] = ()) -> list[str]:
    """List what a healthy, idle cluster without references would not have; one line each.

    ``but_detached``: that may have detached actors, and then has exactly what they need. ``lost``: the names of processes
    that have lost their cluster, and are not asked.
    """
    alive = cluster.alive()
    cores = {name: core for name, core in cluster.cores.items() if name in alive and name not in lost}
    needs = NOTHING
    if but_detached and "gcs" in alive:
        needs = needs_of_detached(living_detached(cluster.gcs), list(cores.values()))
    problems: list[str] = []
    for name, core in cores.items():
        problems += [f"{name}: {problem}" for problem in core_leftovers(core, needs)]
    for name, raylet in cluster.raylets.items():
        if f"raylet/{name}" in alive:
            problems += [f"raylet/{name}: {problem}" for problem in raylet_leftovers(raylet, needs)]
    if "gcs" in alive:
        left = gcs_leftovers(cluster.gcs, needs) + _jobs_of_the_dead(cluster, alive)
        problems += [f"gcs: {problem}" for problem in left]
        problems += _workers_of_the_past(cluster, alive)
    return problems


def _jobs_of_the_dead(cluster: SimCluster, alive: Container[str]) -> list[str]:
    """List the jobs that run for the gcs although their drivers are gone."""
    gcs: Any = cluster.gcs
    living = {core.process.address.worker_id for name, core in cluster.cores.items() if name in alive}
    jobs = [job for job in gcs._jobs.running() if job.driver.worker_id not in living]
    return [f"job {short(job.job_id)} runs without a driver" for job in jobs]


def _workers_of_the_past(cluster: SimCluster, alive: Container[str]) -> list[str]:
    """Processes that have outlived their jobs (L7)."""
    gcs: Any = cluster.gcs
    return [
        f"raylet/{name}: a worker of job {short(worker.binding.job_id)}, which is over"
        for name, raylet in cluster.raylets.items()
        if f"raylet/{name}" in alive
        for worker in raylet._broker.pool.workers.values()
        if worker.binding is not None and gcs.job_is_over(worker.binding.job_id)
    ]


def living_detached(gcs: Any) -> dict[bytes, Any]:
    return {row.info.actor_id: row for row in gcs._actors.rows() if row.info.detached and row.info.state == ALIVE}


def gcs_leftovers(gcs: Any, needs: Needs = NOTHING) -> list[str]:
    """Actors and placement groups that nobody has any more, what belongs to attempts to place some, values of past jobs."""
    scheduler = gcs._group_scheduler
    actors = [row for row in gcs._actors.rows() if row.info.actor_id not in needs.rows]
    tables = {
        "actors": [row.info for row in actors if row.info.state != DEAD],
        "leases of dead actors": [row.info for row in actors if row.info.state == DEAD and row.lease_id],
        "placement groups": [short(group.group_id) for group in gcs._groups.all() if group.state != "REMOVED"],
        "values of jobs that are over": [
            space
            for job in gcs._jobs.finished()
            if not job.kept and (space := job_namespace(job.job_id)) in gcs._values._namespaces
        ],
        "attempts": scheduler._attempts,
        "retries": scheduler._retries,
        "who waits for groups": [one for waiters in scheduler._waiters.values() for one in waiters if not one.done()],
    }
    return [f"{len(table)} {name}: {_listing(table)}" for name, table in tables.items() if table]


def core_leftovers(core: Any, needs: Needs = NOTHING) -> list[str]:
    """The tables of one core worker."""
    submission, execution = core.submission, core.execution
    lease, streams = execution.receiver.lease, execution.actor_receiver._streams.values()
    tables = {
        "references": _without(core.references._references, needs.objects),
        "stored objects": _without(core.store.objects, needs.objects),
        "waiters": core.store._waiters,
        "tasks": _without(submission.tasks.tasks, needs.constructors),
        "leased workers": submission.submitter.leased_workers(),
        "lease requests": [request for key in submission.submitter._keys.values() for request in key.requests],
        "questions to owners": [*core.futures._asking, *core.futures._probing, *core.futures._looking],
        "remembered tasks": submission.recovery.lineage._tasks,
        "borrowings on their way": core.borrowing._registering,
        "tickets on their way back": core.borrowing._spent._batches,
        "streams of generators": list(submission.generators.streams._streams),
        "items that wait for tickets": execution.generator_executor._lending,
        "copies of objects": _without(core.directory._objects, needs.objects),
        "questions about copies": _without(core.directory._over, needs.objects),
        "copies to be freed or promoted": [*core.directory._free._batches, *core.directory._promote._batches],
        "tasks waiting here": execution.receiver._waiting,
        "answers on their way": execution.intake._answering,
        "unanswered tasks": execution.receiver.unanswered(),
        "acknowledged answers": [number for number in lease.tasks if lease.is_over(number)],
        "acknowledged answers of calls": [n for stream in streams for n in stream.tasks if stream.is_over(n)],
        "placement groups that are waited for": core.placement_groups._waiting,
        "placement groups that the gcs is told of": core.placement_groups._telling,
        "actors being made": _without(submission.actors.creator._creations, needs.rows),
        "handles of own actors": submission.actors.creator._handles,
        "actors that are called": list(submission.actors.clients),
        "unanswered calls": [task for stream in streams for task in stream.unanswered()],
        "queued tasks": [task for key in submission.submitter._keys.values() for task in key.queue],
        "keys of large arguments": [key for key in submission.submitter._keys.values() if key.dependencies],
    }
    return [f"{len(table)} {name}: {_listing(table)}" for name, table in tables.items() if table]


def _without(table: Mapping[bytes, Any], ids: Container[bytes]) -> dict[bytes, Any]:
    return {key: value for key, value in table.items() if key not in ids}


def _listing(table: Any) -> str:
    items = list(table.items() if isinstance(table, dict) else table)[:3]
    text = "; ".join(f"{short(item[0])} {item[1]}" if isinstance(item, tuple) else str(item) for item in items)
    return text[:600]


def raylet_leftovers(raylet: Any, needs: Needs = NOTHING) -> list[str]:
    """Leases, resources and copies of one node."""
    broker, leases = raylet._broker, needs.leases_on(raylet._config.node_id)
    problems = []
    owners = [entry.owner.endpoint for lease_id, entry in broker.entries.items() if lease_id not in leases]
    if owners:
        problems.append(f"{len(owners)} leases: {owners[:3]}")
    if missing := leases - broker.entries.keys():
        problems.append(f"the leases {[short(lease_id) for lease_id in missing]} of actors that live are not there")
    if broker.local.leases.keys() != leases or broker.local.queued() or broker.cluster.waiting():
        problems.append("leases in its machines")
    if raylet.groups.bundles.all():
        problems.append(f"bundles {[(short(each.group_id), each.index) for each in raylet.groups.bundles.all()][:3]}")
    in_use: Counter[str] = Counter()
    for lease in broker.local.leases.values():
        in_use.update(lease.request.resources)
    free = {key: total - in_use[key] for key, total in broker.local.total.items()}
    if broker.local.available != free or broker.local.total != raylet._config.resources:
        problems.append(f"available {broker.local.available}, total {broker.local.total}")
    arguments = broker.arguments
    if arguments._dependencies or arguments._pins or arguments._questions or arguments._timers or len(arguments.manager):
        problems.append(f"arguments of {len(arguments._dependencies)} leases")
    manager = arguments.manager
    if manager.pinned_bytes or manager._active_count or manager._ahead or manager._waiting or broker.local._fetching:
        problems.append(f"{manager.pinned_bytes} bytes of arguments are pinned")
    table, store = raylet.store.table, raylet.store
    left = [entry for entry in table.copies() if entry.object_id not in needs.objects]
    if left or (not needs.objects and (len(table) or table.allocator.used or table.fallback.used)):
        copies = [f"{short(entry.object_id)} {table.states.get(entry.key)}" for entry in left]
        problems.append(f"{table.allocator.used} bytes of {len(copies)} copies in its store: {copies[:3]}")
    spare = [object_id for object_id in (*table._spare, *table._spare_in_fallback) if object_id not in needs.objects]
    if table._by_pin or spare or store._waiting or len(store._queue) or raylet.objects._pulls:
        problems.append(f"pins {len(table._by_pin)}, questions {len(store._waiting)}, pulls {len(raylet.objects._pulls)}")
    if not needs.objects and not leases:
        problems += [f"{count} {name}" for name, count in _sums(raylet).items() if count]
    return problems


def _sums(raylet: Any) -> dict[str, int]:
    """Gauges of things that come and go: zero when these are gone."""
    table, spilling, local = raylet.store.table, raylet.io_workers._manager, raylet._broker.local
    pulls, pushes = raylet.objects.pulls, raylet.objects.pushes
    return {
        "bytes that must stay in memory": table.unspilled_bytes,
        "bytes that could be spilled": table.spillable_bytes,
        "bytes on disk": table.spilled_bytes,
        "bytes on their way to disk": spilling._writing_bytes,
        "files of spilled objects": len(spilling._files),
        "bundles of objects that are brought here": len(pulls._bundles) or pulls._begun_count,
        "bytes that are to be brought here": pulls.due_bytes,
        "bytes that are being sent": pushes.bytes_in_flight + len(pushes),
        "leases, as owners have them": sum(local._held_by_owner.values()),
        "leases, as shapes have them": sum(local._held_by_shape.values()),
        "blocked leases": sum(local._blocked_levels.values()),
        "requests, as owners have them": sum(local._queued_by.values()),
    }


class Account:
    """Adds up what the leases of each node hold, ten thousand times a (virtual) second, for two minutes (G99, S1)."""

    PERIOD_S = 0.000_1
    MOST_LOOKS = 20_000

    def __init__(self, cluster: SimCluster) -> None:
        self.problems: list[str] = []
        self.looks = 0
        self._cluster = cluster
        self._look()

    def _look(self) -> None:
        self.looks += 1
        for name, raylet in self._cluster.raylets.items():
            broker: Any = raylet._broker
            local = broker.local
            in_use: Counter[str] = Counter(local.resources.reserved)
            for lease in local.leases.values():
                lent = lease.blocked
                in_use.update({key: n for key, n in lease.request.resources.items() if not (lent and is_cpu(key))})
            for key, total in local.total.items():
                if local.available[key] != total - in_use[key]:
                    self.problems.append(f"{name}: {local.available[key]} of {total} {key} free, {in_use[key]} in use")
            missing = [key for key, amount in local.available.items() if amount < 0]
            if missing and not (all(map(is_cpu, missing)) and self._has_unblocked(name)):
                self.problems.append(f"{name}: {local.available}")
        if self.looks < self.MOST_LOOKS and len(self.problems) < 5:
            self._cluster.world.loop.world.call_later(self.PERIOD_S, self._look)

    def _has_unblocked(self, name: str) -> bool:
        """Whether a worker of this node has ever been blocked: then CPUs that it took back may be missing for a while."""
        return any(
            f"raylet/{name}" == event.details[1]
            for event in self._cluster.trace.events
            if "NotifyWorkerBlocked" in event.details
        )
