"""Invariants at every moment of a simulated run. A ``Watch`` looks at one cluster from its start.

It sees each message before it is sent, each grant, each cancellation and each freed object, and says at once what is
broken, as a number of ``docs/specification.md`` and a sentence. What must hold when a run is over is ``judge``'s to say.

| | looked at when | |
|---|---|---|
| S1 | a lease takes its resources, or gives them back | there was enough of each, and is no more than the total |
| S2 | a grant is sent | a worker has one lease at most: its owner holds it, and it works for it |
| G99 | a grant is sent | a worker serves one job, one environment, the same GPUs, and tasks or one actor, for good |
| G106 | a grant is sent | nothing is leased in a placement group that was removed |
| S4 | a task is pushed | its attempt is within its retries |
| S5, S6, G79 | an object is made, sealed, evicted or forgotten | see ``objects`` |
| S2, S3, S8, S10, G36 | an actor's call is pushed, or begins | see ``actor_watch`` |
| S7 | an owner frees an object | nobody else holds or carries a reference (``holders``) |
| G19, G40 | a task is pushed | it was not cancelled before, unless this is the push that the cancellation found |
| S9 | a gcs dies, and at the end | what an earlier gcs knew as durable is known |
| G25 | a gcs dies, and at the end | an actor has ended with its owner, or its job, only if that has ended |
| S3, S9, G104, L5, L6 | news is told or heard | see ``news`` |
| G91 | an item arrives | with it no more are unread than its generator may have, unless lost results hurry it |
| L5, L6, S3, G89 | a death is asked for or told, or memory is short | see ``deaths`` |
| L5 | a message is sent | they are not absurdly many, and none is sent twice without need (``repeats``) |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from minray.common.ids import job_of_actor, short
from minray.core_worker.records.leased_worker import LeasedWorker
from minray.core_worker.records.pending_task import PUSHED
from minray.gcs.gcs_actor_manager import describe
from minray.protocol.actor import DEAD, JOB_FINISHED, OWNER_DIED
from minray.protocol.base import decode
from minray.protocol.core_worker import PushTask, ReportGeneratorItem
from minray.protocol.gcs import KvDel, job_namespace
from minray.protocol.raylet import GRANTED as LEASE_GRANTED
from minray.protocol.raylet import LeaseReply
from minray.scheduling.lease import GRANTED
from minray.scheduling.local_resource_manager import Gpus, LocalResourceManager
from minray.simulation import Deadlock, SimCluster
from minray.simulation.cluster import GCS
from minray.simulation.loop import SimProcess, current_process
from tests.simulation.actor_watch import ActorWatch
from tests.simulation.deaths import Deaths
from tests.simulation.figures import Figures
from tests.simulation.holders import Holders
from tests.simulation.interference import watch_sends
from tests.simulation.limits import Messages
from tests.simulation.news import News
from tests.simulation.objects import Objects
from tests.simulation.order import Order
from tests.simulation.progress import Progress
from tests.simulation.repeats import Repeats
from tests.simulation.told import Told
from tests.simulation.unanswered import watch_calls
from tests.simulation.unseen import Unseen
from tests.simulation.victims import Victims
from tests.simulation.waits import Waits

MOST_MESSAGES = 30_000
"""Three times what the largest scenario of a campaign sends."""
MESSAGES_EACH = 500
"""Messages for each task and call, if that is more."""
MOST_PROBLEMS = 5
"""Number of problems noted of each invariant."""


class Broken(Deadlock):
    """A property that did not hold; raised inside the world, it stops it at once."""

    def __init__(self, prop: str, text: str) -> None:
        super().__init__(f"{prop}: {text}")
        self.prop = prop


class Raylets(dict[str, Any]):
    """The raylets of a cluster, by name, with a call for each that joins; they may be those of another such table."""

    def __init__(self, raylets: dict[str, Any], on_raylet: Callable[[str, Any], None]) -> None:
        super().__init__(raylets)
        self._raylets = raylets
        self._on_raylet = on_raylet

    def __setitem__(self, name: str, raylet: Any) -> None:
        super().__setitem__(name, raylet)
        self._raylets[name] = raylet
        self._on_raylet(name, raylet)


class Watch:
    """Looks at one cluster; make it before the cluster's first driver."""

    def __init__(self, cluster: SimCluster, performances: int = 0) -> None:
        """``performances``: how many tasks and calls there are."""
        self.cluster = cluster
        self.problems: list[str] = []
        self._most_messages = max(MOST_MESSAGES, MESSAGES_EACH * performances)
        self.messages = 0
        """Sent so far."""
        self.holders = Holders(lambda text: self.on_broken("S7", text), self._gcs_actors)
        self.objects = Objects(self.on_broken)
        self.actors = ActorWatch(self.on_broken, self._gcs_actors, self._is_declared_dead)
        self.news = News(self.on_broken)
        self.deaths = Deaths(self.on_broken, cluster.world.loop)
        self.repeats = Repeats(self.on_broken, cluster.oracle.answers)
        self.order = Order(self.on_broken)
        self.unseen, self.figures, self.told = Unseen(), Figures(), Told(self.on_broken)
        self.victims = Victims(self.on_broken, cluster.world.loop)
        self.waits, self.limits = Waits(self.on_broken), Messages(self.on_broken, cluster._system_config)
        self.progress = Progress(cluster, self.on_broken, self.waits)
        watch_calls(cluster.world.loop, self.on_broken)
        cluster.raylets = Raylets(cluster.raylets, self._on_raylet)
        for name, raylet in cluster.raylets.items():
            self._on_raylet(name, raylet)
        self._gcs: Any = None
        """The gcs whose news is watched."""
        self._cancelled: dict[bytes, tuple[bytes, int]] = {}
        """Task -> the lease and the attempt with which its cancellation found it pushed; ``b""``: it was not."""
        self._bindings: dict[bytes, Any] = {}
        """Worker -> what it was granted for at first."""
        self._processes: dict[str, SimProcess] = {}
        """Processes of all core workers, by name."""
        for process in cluster.world.loop.processes:
            if process.name in cluster.cores:
                self._add(process, cluster.cores[process.name])
        self._durable: dict[tuple[str, ...], str] = {}
        """Rows of a dead gcs: row -> state."""
        self._removed: set[tuple[str, ...]] = set()
        """Rows of values whose removal was asked for."""
        self._watch_gcs(cluster.processes[GCS])
        start_gcs = cluster.start_gcs
        cluster.start_gcs = lambda: self._watch_gcs(start_gcs())  # type: ignore[method-assign]
        self._connect = cluster._connect
        cluster._connect = self._on_core  # type: ignore[method-assign]
        watch_sends(cluster, self._on_send)

    def _on_raylet(self, name: str, raylet: Any) -> None:
        self.objects.add(name, raylet)
        self.news.add_raylet(name, raylet)
        self.deaths.add_raylet(name, raylet)
        self.repeats.add_raylet(name, raylet)
        self.victims.add_raylet(name, raylet)
        self.order.add_raylet(name, raylet)
        self.figures.add_raylet(name, raylet)
        self._watch_resources(name, raylet._broker.local.resources)

    def on_broken(self, prop: str, text: str) -> None:
        """A property does not hold."""
        if sum(problem.startswith(f"{prop}:") for problem in self.problems) < MOST_PROBLEMS:
            self.problems.append(f"{prop}: {text}")

    def stop(self, prop: str, text: str) -> None:
        """There is no use in waiting for the end."""
        self.cluster.world.loop.world.call_soon(_raise, Broken(prop, text))

    def look_at_gcs(self) -> None:
        """Whether the gcs still knows what those before it knew; asked whenever one dies, and at the end."""
        gcs: Any = self.cluster.gcs
        if not hasattr(gcs, "_nodes"):
            return  # it died before it had read its store
        rows = _rows_of(gcs)
        full = _full_tables(gcs)
        over = {job_namespace(job.job_id) for job in gcs._jobs.finished()}
        if "job" in full:  # Jobs are forgotten once they are over.
            over |= {job_namespace(bytes.fromhex(row[1])) for row in self._durable if row[0] == "job" and row not in rows}
        for row, state in self._durable.items():
            is_dropped = (row[0] == "value" and row[1] in over) or (row not in rows and row[0] in full)
            is_removed = row in self._removed and row not in rows
            if rows.get(row) not in (state, "over") and not (is_dropped or is_removed):
                self.on_broken("S9", f"the gcs knows {' '.join(row)} as {rows.get(row)}; it was {state} before a restart")
        self._durable |= rows
        for info in [row.info for row in gcs._actors.rows() if row.info.state == DEAD and row.info.death is not None]:
            if info.death.kind == OWNER_DIED and gcs.worker_death(info.owner) is None:
                self.on_broken("G25", f"the gcs says that {describe(info)} has ended with its owner, who lives")
            is_known = gcs._jobs.get(job_of_actor(info.actor_id)) is not None  # old ones are forgotten
            if info.death.kind == JOB_FINISHED and is_known and not gcs.job_is_over(job_of_actor(info.actor_id)):
                self.on_broken("G25", f"the gcs says that {describe(info)} has ended with its job, which is not over")

    def look_at_rest(self) -> list[str]:
        """Return the errors that nobody has seen or heard of, and wrong figures, in a cluster at rest."""
        cores, alive = self.cluster.cores, self.cluster.alive()
        living = alive | {core.config.worker_id.hex() for name, core in cores.items() if name in alive}
        return [*self.unseen.unreported(living), *self.figures.wrong(living)]

    def _on_core(self, core: Any) -> None:
        self._connect(core)
        process = current_process.get()
        assert process is not None
        self._add(process, core)

    def _watch_gcs(self, process: SimProcess) -> SimProcess:
        process.on_death.append(self.look_at_gcs)
        return process

    def _add(self, process: SimProcess, core: Any) -> None:
        self._processes[process.name] = process
        self.waits.add(process, core)
        self.holders.add(process, core)
        self.actors.add(core)
        self.news.add_core(core)
        self.victims.add_core(core)
        self.order.add_core(core)
        self.unseen.add_core(core)
        self.figures.add_core(core)
        self.told.add(core)
        cancel = core.submission.outcomes.cancel_task

        def watched_cancel(task: Any, force: bool, recursive: bool) -> None:
            if task.state is not PUSHED:
                self._cancelled[task.task_id] = b"", 0
            elif isinstance(task.worker, LeasedWorker):
                self._cancelled.setdefault(task.task_id, (task.worker.lease_id, task.attempt))
            cancel(task, force, recursive)

        core.submission.outcomes.cancel_task = watched_cancel
        on_report = core.submission.generators.on_report

        def watched_report(request: ReportGeneratorItem, buffers: Any) -> Any:
            self._expect_few_unread(core, request)
            return on_report(request, buffers)

        core.submission.generators.on_report = watched_report

    def _expect_few_unread(self, core: Any, request: ReportGeneratorItem) -> None:
        task = core.submission.tasks.tasks.get(request.task_id)
        if task is None or task.attempt != request.attempt or request.value is None or task.stream is None:
            return
        most, read = task.prepared.template.most_unread, task.stream.read
        if 0 < most < request.number - read and not (task.items_lost or task.has_lost_results):
            name = f"task {short(request.task_id)}"
            self.on_broken("G91", f"{name} yields number {request.number} when {read} are read, and may be {most} ahead")

    def _watch_resources(self, name: str, resources: LocalResourceManager) -> None:
        allocate, free = resources.allocate, resources.free

        def watched_allocate(demand: Mapping[str, int]) -> Gpus:
            gpus = allocate(demand)
            missing = {key: resources.available[key] for key in demand if resources.available[key] < 0}
            if missing:
                self.on_broken("S1", f"{name} gives away {dict(demand)}, and then has {missing}")
            return gpus

        def watched_free(demand: Mapping[str, int], gpus: Gpus) -> None:
            free(demand, gpus)
            more = {key: resources.available[key] for key in demand if resources.available[key] > resources.total[key]}
            if more:
                self.on_broken("S1", f"{name} takes back {dict(demand)}, and then has {more} of {resources.total}")

        resources.allocate = watched_allocate  # type: ignore[method-assign]
        resources.free = watched_free  # type: ignore[method-assign]

    def _gcs_actors(self) -> dict[bytes, Any]:
        """The rows of the gcs that lives."""
        gcs: Any = self.cluster.gcs
        return gcs._actors._actors._rows if self.cluster.processes[GCS].alive else {}

    def _is_declared_dead(self, node_id: bytes) -> bool:
        """Whether the gcs has given up a node; not before it has read its store."""
        nodes: Any = getattr(self.cluster.gcs, "_nodes", None)
        node = None if nodes is None else nodes.get(node_id)
        return node is not None and not node.alive

    def _on_send(self, end: Any, message: Any, word: str) -> bool:
        self.messages += 1
        if self.cluster.gcs is not self._gcs:
            self._gcs = self.cluster.gcs
            self.news.add_gcs(self._gcs)
            self.deaths.add_gcs(self._gcs)
            self.order.add_gcs(self._gcs)
        self.deaths.on_send(self.cluster.cores.get(end.pipe.source.name), message, word)
        self.repeats.on_send(end, message, self.cluster.world.loop.ticks)
        self.victims.on_send(end, message, word, self._gcs_actors)
        self.limits.on_send(end, message, word)
        if word == "KvDel":
            removal = decode(KvDel, message.payload)
            self._removed.add(("value", removal.namespace, removal.key.hex()))
        if word == "FinishJob":
            self.told.on_farewell(end.pipe.source.name, self.cluster.cores.get(end.pipe.source.name))
        if self.messages == self._most_messages:
            storm = f"{self.messages} messages; the last one is {word}"
            self.on_broken("L5", storm)
            self.stop("L5", storm)
        if word == "PushTask" and end.pipe.source.name in self.cluster.cores:  # The gcs pushes constructors of actors.
            self._on_push(end.pipe.source.name, decode(PushTask, message.payload))
        elif word == "RequestWorkerLease reply" and decode(LeaseReply, message.payload).kind == LEASE_GRANTED:
            self._on_grant()
        return True

    def _on_push(self, source: str, push: PushTask) -> None:
        what = f"{source} pushes attempt {push.attempt} of task {short(push.task_id)}"
        if push.actor_id:
            row = self._gcs_actors().get(push.actor_id)
            if row is not None and push.attempt - row.info.preemptions > row.info.max_restarts >= 0:
                self.on_broken("S4", f"{what}, an actor with {row.info.max_restarts} restarts")
            return
        task = self.cluster.cores[source].submission.tasks.tasks.get(push.task_id)
        free = task.memory_kills + task.preemptions if task is not None else 0
        if task is not None and push.attempt - free > task.prepared.template.max_retries >= 0:
            self.on_broken("S4", f"{what}, which has {task.prepared.template.max_retries} retries")
        found = self._cancelled.get(push.task_id, (push.lease_id, push.attempt))
        if found != (push.lease_id, push.attempt):
            self.on_broken("G19" if found[0] else "G40", f"{what}, which was cancelled")

    def _on_grant(self) -> None:
        """Is a worker that some raylet has granted by one lease used by another one too? Or in a group that is no more?"""
        granted: dict[bytes, bytes] = {}
        for raylet in self.cluster.raylets.values():
            broker = raylet._broker
            for lease_id, entry in broker.entries.items():
                if entry.worker is not None:
                    granted[entry.worker.worker_id] = lease_id
                    self._expect_binding(broker, entry)
                    self._expect_group(broker, lease_id, entry.request.shape.strategy.group_id)
        for name, core in self.cluster.cores.items():
            if self._processes[name].alive:
                for worker in core.submission.submitter.leased_workers():
                    self._expect_lease(granted.get(worker.address.worker_id), worker.lease_id, f"{name} holds a worker")
                receiver = core.execution.receiver
                if receiver.unanswered():
                    self._expect_lease(granted.get(core.address.worker_id), receiver.lease_id, f"{name} has a task")

    def _expect_binding(self, broker: Any, entry: Any) -> None:
        """Is a worker still granted for what it was granted for at first? What it has loaded knows nothing else."""
        lease_id, shape = entry.request.lease_id, entry.request.shape
        if broker.states.get(lease_id) != GRANTED:
            return
        gpus = tuple(sorted(broker.local.leases[lease_id].gpus.taken))
        binding = shape.job_id, shape.runtime_env, gpus, lease_id if entry.request.for_actor else b""
        if self._bindings.setdefault(entry.worker.worker_id, binding) != binding:
            worker = short(entry.worker.worker_id)
            self.on_broken("S2", f"worker {worker} serves lease {short(lease_id)}, and has served what it does not fit to")

    def _expect_group(self, broker: Any, lease_id: bytes, group_id: bytes) -> None:
        if broker.refusals.is_removed(group_id) and broker.states.get(lease_id) == GRANTED:
            self.on_broken("G106", f"lease {short(lease_id)} goes on in placement group {short(group_id)}, which is removed")

    def _expect_lease(self, granted: bytes | None, lease_id: bytes, what: str) -> None:
        if granted not in (None, lease_id):
            self.on_broken("S2", f"{what} by lease {short(lease_id)}, and {short(granted)} was granted")


def _raise(error: Broken) -> None:
    raise error


def _full_tables(gcs: Any) -> set[str]:
    """Kinds of things of which a gcs keeps enough that are over, so that it may forget others."""
    jobs, groups = gcs._jobs, gcs._groups
    kept = {"job": (jobs._past, jobs._max_finished_jobs), "group": (groups._removed, groups._max_removed_groups)}
    return {kind for kind, (over, most) in kept.items() if len(over) >= most}


def _rows_of(gcs: Any) -> dict[tuple[str, ...], str]:
    """Rows that a gcs holds to be durable, with their states."""
    rows = {("node", node_id.hex()): "there" if node.alive else "over" for node_id, node in gcs._nodes._nodes.items()}
    rows |= {("job", job_id.hex()): "over" if job.end_time else "there" for job_id, job in gcs._jobs._jobs.items()}
    groups = gcs._groups.all()
    rows |= {("group", group.group_id.hex()): "over" if group.state == "REMOVED" else "there" for group in groups}
    for namespace, values in gcs._values._namespaces.items():
        rows |= {("value", namespace, key.hex()): "there" for key in values}
    rows |= {("death", worker_id.hex()): "there" for worker_id in gcs._workers._deaths}
    rows |= {("actor", actor_id.hex()): "over" for actor_id in gcs._actors._actors._forgotten}
    for row in gcs._actors.rows():
        rows["actor", row.info.actor_id.hex()] = "over" if row.info.state == DEAD else "there"
    return rows
