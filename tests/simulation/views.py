"""Copies of state, compared with their sources in a cluster at rest (L6).

Every process keeps copies of what another one knows: the nodes, the deaths, the actors, the places of objects. A copy may be
late while things change. When nothing changes any more, it must equal its source. ``COPIES`` lists the copies, each with
the comparison; ``tests/simulation/tables.py`` says of every other table why it is none.

``stale_views`` compares what must hold whenever a cluster is at rest, also while programs hold references. A process that
has lost its cluster, or is ending, is not asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from minray.common.ids import job_of_actor, short
from minray.common.labels import labels_of
from minray.object_store.object_table import CREATED, SEALED
from minray.protocol.actor import DEAD, DEPENDENCIES_UNREADY, actors_channel
from minray.protocol.base import decode, encode
from minray.protocol.gcs import JOBS, NODES, RESOURCES, WORKER_DEATHS, NodeResources
from minray.protocol.placement_group import PLACEMENT_GROUPS
from minray.raylet.worker_pool import IDLE, LEASED
from minray.simulation import SimCluster

REMOVED = "REMOVED"
"""State of a placement group that is removed."""
PROMISED_S = 1.0
"""Virtual seconds after which a promise that has run out must be dropped: more than a slow node needs for a step."""


@dataclass(frozen=True)
class Cluster:
    """The living processes of a cluster, as the comparisons ask for them."""

    gcs: Any
    """The gcs that lives; None if there is none."""
    raylets: dict[bytes, Any]
    """Raylets by node id."""
    cores: dict[bytes, Any]
    """Core workers that have not lost their cluster, by worker id."""
    now: float

    @classmethod
    def of(cls, cluster: SimCluster) -> Cluster:
        alive = cluster.alive()
        gcs: Any = cluster.gcs
        raylets = [raylet for name, raylet in cluster.raylets.items() if f"raylet/{name}" in alive]
        cores = [core for name, core in cluster.cores.items() if name in alive and _is_connected(core)]
        return cls(
            gcs=gcs if "gcs" in alive else None,
            raylets={raylet._config.node_id: raylet for raylet in raylets if raylet._closing is None},
            cores={core.config.worker_id: core for core in cores},
            now=cluster.world.loop.time(),
        )

    def subscribers(self) -> Iterator[tuple[str, Any]]:
        """Name of each process that follows a channel, and its subscription."""
        for raylet in self.raylets.values():
            group = raylet.groups._subscription
            for subscription in [*raylet._subscriptions, *([] if group is None else [group])]:
                yield raylet._config.node_name, subscription
        for core in self.cores.values():
            for subscription in [*core.death_watch._subscriptions, *core.submission.actors._subscriptions.values()]:
                yield _name(core), subscription


def _is_connected(core: Any) -> bool:
    return core.gcs.death is None and core.raylet.death is None and not core.process.is_exiting


def _name(core: Any) -> str:
    return f"{'driver' if core.config.is_driver else 'worker'} {short(core.config.worker_id)}"


Comparison = Callable[[Cluster], Iterator[str]]
COMPARISONS: list[Comparison] = []
COPIES: set[str] = set()
"""Tables that are copies, or the sources of some: ``Class.attribute``."""


def copies(*tables: str) -> Callable[[Comparison], Comparison]:
    """Register a comparison, which looks at these tables."""

    def register(compare: Comparison) -> Comparison:
        if compare not in COMPARISONS:
            COMPARISONS.append(compare)
        COPIES.update(tables)
        return compare

    return register


def stale_views(cluster: SimCluster) -> list[str]:
    """List the copies that differ from their sources; one line each."""
    there = Cluster.of(cluster)
    return [f"L6: {text}" for compare in COMPARISONS for text in compare(there)]


def _difference(copy: Mapping[Any, Any], source: Mapping[Any, Any]) -> str:
    """Say by what a copy differs from its source; empty if it does not."""
    gone = [key for key in copy if key not in source]
    missing = [key for key in source if key not in copy]
    other = [key for key in copy if key in source and copy[key] != source[key]]
    words = (("has", gone, "which are gone"), ("lacks", missing, "which are there"), ("has old values of", other, ""))
    return ", ".join(f"{verb} {_shown(keys)} {rest}".rstrip() for verb, keys, rest in words if keys)


def _shown(keys: Iterable[Any]) -> str:
    return "[" + " ".join(short(key) if isinstance(key, bytes) else str(key) for key in list(keys)[:3]) + "]"


def _compare(what: str, copy: Mapping[Any, Any], source: Mapping[Any, Any]) -> Iterator[str]:
    difference = _difference(copy, source)
    if difference:
        yield f"{what} {difference}"


def _keys(keys: Iterable[Any]) -> dict[Any, None]:
    return dict.fromkeys(keys)


# --- Tables of the gcs, and those who follow them


@copies("Subscription._values")
def _followed(cluster: Cluster) -> Iterator[str]:
    if cluster.gcs is None:
        return
    for name, subscription in cluster.subscribers():
        topic = cluster.gcs._publisher._topics.get(subscription._channel)
        heard, values = subscription._values, {} if topic is None else topic.values
        if subscription._channel == RESOURCES:  # A node at rest reports now and then, and the last report may be on its way.
            heard, values = _without_versions(heard), _without_versions(values)
        if subscription.synchronised.is_set():
            yield from _compare(f"what {name} has heard on channel {subscription._channel}", heard, values)


def _without_versions(reports: Mapping[bytes, bytes]) -> dict[bytes, Any]:
    """Return the reports of nodes without their versions, which grow with every report."""
    return {key: msgspec.structs.replace(decode(NodeResources, value), version=0) for key, value in reports.items()}


@copies("_Topic.values")
def _published(cluster: Cluster) -> Iterator[str]:
    if (gcs := cluster.gcs) is None:
        return
    tables: dict[str, dict[bytes, Any]] = {
        NODES: gcs._nodes._nodes,
        RESOURCES: gcs._nodes._resources,
        JOBS: gcs._jobs._jobs,
        WORKER_DEATHS: gcs._workers._deaths,
        PLACEMENT_GROUPS: gcs._groups._groups,
    }
    for row in gcs._actors.rows():
        tables.setdefault(actors_channel(job_of_actor(row.info.actor_id)), {})[row.info.actor_id] = row.info
    for channel in tables.keys() | gcs._publisher._topics.keys():
        topic = gcs._publisher._topics.get(channel)
        rows = {key: encode(record) for key, record in tables.get(channel, {}).items()}
        yield from _compare(f"channel {channel}", {} if topic is None else topic.values, rows)


@copies("GcsActorManager._named", "GcsActorManager._of_worker", "GcsActorManager._dead", "GcsActorManager._kills")
def _indices_of_actors(cluster: Cluster) -> Iterator[str]:
    if cluster.gcs is None:
        return
    manager = cluster.gcs._actors._actors
    infos = [row.info for row in manager._rows.values()]
    living = [info for info in infos if info.state != DEAD]
    named = {(info.namespace, info.name): info.actor_id for info in living if info.name and not info.is_ending}
    placed = {info.address.worker_id: info.actor_id for info in living if info.address is not None}
    yield from _compare("the index of actors by name", manager._named, named)
    yield from _compare("the index of actors by worker", manager._of_worker, placed)
    kills = [row.kill.kill_id for row in manager._rows.values() if row.kill is not None]
    if unknown := [kill_id for kill_id in kills if kill_id not in manager._kills]:
        yield f"the gcs has forgotten the kills {_shown(unknown)}"
    dead = _keys(info.actor_id for info in infos if info.state == DEAD)
    yield from _compare("the list of dead actors", manager._dead, dead)


@copies("JobManager._job_of_driver", "JobManager._past", "PlacementGroupManager._names", "PlacementGroupManager._removed")
def _indices_of_jobs_and_groups(cluster: Cluster) -> Iterator[str]:
    if cluster.gcs is None:
        return
    jobs, groups = cluster.gcs._jobs, cluster.gcs._groups
    of_drivers = {job.driver.worker_id: key for key, job in jobs._jobs.items()}
    yield from _compare("the index of jobs", jobs._job_of_driver, of_drivers)
    past = _keys(job.job_id for job in jobs.finished() if not job.kept)
    yield from _compare("the list of past jobs", jobs._past, past)
    there = {key: group for key, group in groups._groups.items() if group.state != REMOVED}
    names = {(group.namespace, group.name): key for key, group in there.items() if group.name}
    yield from _compare("the index of placement groups", groups._names, names)
    yield from _compare("the list of removed groups", groups._removed, _keys(groups._groups.keys() - there.keys()))


@copies("GcsActorManager._rows", "JobManager._jobs", "PlacementGroupManager._groups", "GcsNodeManager._nodes")
@copies("WorkerManager._deaths", "KvManager._namespaces")
def _stored(cluster: Cluster) -> Iterator[str]:
    """A restarted gcs would find the same tables."""
    if (gcs := cluster.gcs) is None or not gcs._storage.durable:
        return
    storage = gcs._storage
    kept = {(space, key): value for space, values in gcs._values._namespaces.items() for key, value in values.items()}
    rows = {row.info.actor_id: row for row in storage.actors()}
    tables = (
        ("actors", rows, gcs._actors._actors._rows),
        ("jobs", {job.job_id: job for job in storage.jobs()}, gcs._jobs._jobs),
        ("placement groups", {group.group_id: group for group in storage.placement_groups()}, gcs._groups._groups),
        ("nodes", {node.node_id: node for node in storage.nodes()}, gcs._nodes._nodes),
        ("deaths", {death.worker_id: death for death in storage.worker_deaths()}, gcs._workers._deaths),
        ("values", {(space, key): value for space, key, value in storage.values()}, kept),
    )
    dropped = {key for _, key, value in storage._storage._staged if value is None}  # go with the next commit
    for name, stored, table in tables:
        left = {key: row for key, row in stored.items() if key in table or _row_key(key) not in dropped}
        yield from _compare(f"the stored table of {name}", left, table)


def _row_key(key: Any) -> str:
    """Return the key under which the storage has the row of a thing, or of a value in a namespace."""
    return key.hex() if isinstance(key, bytes) else f"{key[1].hex()}:{key[0]}"


@copies("HealthCheckManager._watches")
def _watched(cluster: Cluster) -> Iterator[str]:
    if (gcs := cluster.gcs) is None:
        return
    drivers = [core.config.worker_id for core in cluster.cores.values() if core.config.is_driver]
    watched = _keys(gcs._health._watches)
    for process_id in (*cluster.raylets, *drivers):
        if process_id not in watched:
            yield f"the gcs does not watch {short(process_id)}, which lives"
    for process_id in watched:
        if gcs.node(process_id) is not None and process_id not in cluster.raylets:
            yield f"the gcs watches the node {short(process_id)}, which is gone"


@copies("GcsNodeManager._resources")
def _reported(cluster: Cluster) -> Iterator[str]:
    if cluster.gcs is None:
        return
    reports = cluster.gcs._nodes._resources
    yield from _compare("the gcs's reports of nodes", _keys(reports), _keys(cluster.raylets))
    for node_id, raylet in cluster.raylets.items():
        if (report := reports.get(node_id)) is not None:
            yield from _compare_report(f"the gcs's report of {raylet._config.node_name}", report, raylet)


def _compare_report(what: str, report: Any, raylet: Any) -> Iterator[str]:
    now = raylet._read_resources(report.version)
    for field in ("total", "available", "pending", "shortages"):
        if getattr(report, field) != getattr(now, field):
            yield f"{what} says {field} {getattr(report, field)}, and it is {getattr(now, field)}"


# --- What raylets know


@copies("ClusterResourceScheduler._views", "Raylet._raylets", "NodeView.labels")
@copies("NodeView.total", "NodeView.available", "NodeView.reported")
def _views_of_nodes(cluster: Cluster) -> Iterator[str]:
    for raylet in cluster.raylets.values():
        name, nodes = raylet._config.node_name, raylet._broker.nodes
        views = {node_id: view for node_id, view in nodes._views.items() if view.alive}
        yield from _compare(f"{name}'s view of the nodes", _keys(views), _keys(cluster.raylets))
        for node_id, other in cluster.raylets.items():
            if (view := views.get(node_id)) is not None:
                yield from _compare_view(f"{name}'s view of {other._config.node_name}", view, raylet, other, cluster.now)


def _compare_view(what: str, view: Any, raylet: Any, other: Any, now: float) -> Iterator[str]:
    local, config = other._broker.local, other._config
    if raylet._raylets[config.node_id] != other.address:
        yield f"{what} has the address {raylet._raylets[config.node_id]}, and it is {other.address}"
    if view.labels != labels_of(config.node_id, config.labels):
        yield f"{what} has the labels {view.labels}"
    if view.promised_until is not None and view.promised_until + PROMISED_S < now:
        yield f"{what} keeps a promise that ran out {now - view.promised_until:.1f} s ago"
    if raylet is other:
        return
    if view.draining != (other._broker.leaving is not None):
        yield f"{what} says that it is{'' if view.draining else ' not'} to leave"
    told = {"total": dict(local.total), "available": local.resources.spare()}
    for field, right in told.items():
        if getattr(view, field) != right:
            yield f"{what} says {field} {getattr(view, field)}, and it is {right}"


@copies("LocalGc._reports", "LocalGc.drivers")
def _known_to_garbage_collection(cluster: Cluster) -> Iterator[str]:
    if (gcs := cluster.gcs) is None:
        return
    for node_id, raylet in cluster.raylets.items():
        name, known = raylet._config.node_name, raylet._local_gc
        yield from _compare(f"{name}'s reports of nodes", _keys(known._reports), _keys(cluster.raylets))
        there = _keys(job.job_id for job in gcs._jobs.running() if job.driver.node_id == node_id)
        yield from _compare(f"{name}'s list of drivers", _keys(known.drivers), there)


@copies("Refusals._dead_owners", "Refusals._removed_groups", "WorkerPool._finished_jobs", "LogMonitor._outboxes")
@copies("BundleService._known", "ObjectTable._dead")
def _ends_known_to_raylets(cluster: Cluster) -> Iterator[str]:
    """Each raylet has heard of every end that the gcs knows."""
    if (gcs := cluster.gcs) is None:
        return
    over = [job for job in gcs._jobs.finished() if not job.kept]
    there = _keys(key for key, group in gcs._groups._groups.items() if group.state != REMOVED)
    for raylet in cluster.raylets.values():
        name, broker, store = raylet._config.node_name, raylet._broker, raylet.store.table
        deaf = [key for key in gcs._workers._deaths if key not in broker.refusals._dead_owners]
        deaf += [key for key in gcs._workers._deaths if key not in store._dead]
        deaf += [node.node_id for node in gcs._nodes._nodes.values() if not node.alive and node.node_id not in store._dead]
        if deaf:
            yield f"{name} does not know of the deaths of {_shown(deaf)}"
        if late := [job.job_id for job in over if not broker.pool.is_over(job.job_id)]:
            yield f"{name} does not know that the jobs {_shown(late)} are over"
        if raylet.groups._subscription is not None:
            yield from _compare(f"{name}'s list of placement groups", raylet.groups._known, there)
        outboxes = raylet._log_monitor._outboxes
        for job in gcs._jobs._jobs.values():
            box = outboxes.get(job.job_id)
            if box is None or box.driver != job.driver or box.gone < bool(job.end_time):
                yield f"{name} does not know where the output of job {short(job.job_id)} goes"


@copies("WorkerPool.workers", "WorkerPool._idle", "WorkerPool._starting")
@copies("WorkerProcesses._processes", "LogMonitor._sources")
def _workers(cluster: Cluster) -> Iterator[str]:
    for node_id, raylet in cluster.raylets.items():
        name, pool = raylet._config.node_name, raylet._broker.pool
        here = {key: core for key, core in cluster.cores.items() if core.config.node_id == node_id}
        there = {key: core for key, core in here.items() if not core.config.is_driver}
        known = {key: worker for key, worker in pool.workers.items() if worker.address is not None and not worker.doom}
        yield from _compare(f"{name}'s list of workers", _keys(known), _keys(there))
        yield from _compare(f"{name}'s list of idle workers", pool._idle, _in_state(pool, IDLE))
        if doomed := [key for key, worker in pool.workers.items() if worker.doom]:
            yield f"{name} has given up the workers {_shown(doomed)}, and they live"
        for key, worker in known.items():
            core = there.get(key)
            if core is not None and (worker.address, worker.pid) != (core.address, core.platform.processes.pid):
                yield f"{name} has a wrong address of the worker {short(key)}"
        yield from _compare(f"{name}'s sources of output", _keys(raylet._log_monitor._sources), _keys(pool.workers))
        leased = {entry.worker.worker_id: key for key, entry in raylet._broker.entries.items() if entry.worker is not None}
        held = {key: worker.lease_id for key, worker in _in_state(pool, LEASED).items()}
        yield from _compare(f"{name}'s list of leased workers", held, leased)


def _in_state(pool: Any, state: str) -> dict[bytes, Any]:
    return {key: worker for key, worker in pool.workers.items() if pool.state(key) == state}


# --- What owners and callers know


@copies("ObjectDirectory._dead_nodes", "ReferenceCounter._dead")
def _deaths_known_to_owners(cluster: Cluster) -> Iterator[str]:
    if (gcs := cluster.gcs) is None:
        return
    nodes = _keys(node.node_id for node in gcs._nodes._nodes.values() if not node.alive)
    for core in cluster.cores.values():
        if core.death_watch._subscriptions:
            yield from _compare(f"{_name(core)}'s list of dead nodes", _keys(core.directory._dead_nodes), nodes)
            if deaf := [key for key in gcs._workers._deaths if key not in core.references._dead]:
                yield f"{_name(core)} does not know of the deaths of {_shown(deaf)}"


@copies("Peers._peers")
def _peers(cluster: Cluster) -> Iterator[str]:
    """No process counts a living one as dead, nor keeps a connection to one of whose death it has heard."""
    living = cluster.raylets.keys() | cluster.cores.keys()
    heard = [(raylet, raylet._peers, raylet._broker.refusals._dead_owners) for raylet in cluster.raylets.values()]
    heard += [(core, core.peers, core.references._dead) for core in cluster.cores.values()]
    for process, peers, deaths in heard:
        for key, peer in peers._peers.items():
            if key in living and peer.death is not None:
                yield f"{getattr(process, 'address', None)} counts {short(key)} as dead, which lives"
            elif key in deaths and peer.death is None:
                yield f"{getattr(process, 'address', None)} counts {short(key)} as living, of whose death it has heard"


@copies("ActorManager._infos")
def _actors(cluster: Cluster) -> Iterator[str]:
    """A caller knows each actor's record, and sends its calls where the actor lives."""
    if (gcs := cluster.gcs) is None:
        return
    rows = {row.info.actor_id: row.info for row in gcs._actors.rows()}
    for core in cluster.cores.values():
        for job_id, infos in core.submission.actors._infos.items():
            of_job = {key: info for key, info in rows.items() if job_of_actor(key) == job_id}
            states = {key: info if info.state != DEAD else DEAD for key, info in of_job.items()}
            told = {key: info if info.state != DEAD else DEAD for key, info in infos.items()}
            yield from _compare(f"{_name(core)}'s list of actors", told, states)
        for actor_id in core.submission.actors.clients:
            client, info = core.submission.actors.clients.client_of(actor_id), rows.get(actor_id)
            if client is not None and info is not None:
                yield from _compare_client(_name(core), client, info)


def _compare_client(name: str, client: Any, info: Any) -> Iterator[str]:
    if client.info is not None and (client.state != info.state or (info.state != DEAD and client.info != info)):
        yield f"{name} has an old record of actor {short(client.actor_id)}"
    if client.stream is not None and not client.stream.is_lost and client.stream.address != info.address:
        yield f"{name} sends the calls of actor {short(client.actor_id)} to {client.stream.address}, not to {info.address}"


@copies("GcsActorManager._rows")
def _actors_alive(cluster: Cluster) -> Iterator[str]:
    """An actor that the gcs counts as alive lives where the gcs says."""
    if (gcs := cluster.gcs) is None:
        return
    hosts = {}
    for core in cluster.cores.values():
        if core.execution.actor_receiver.actor is not None:
            hosts[core.execution.actor_receiver.actor.actor_id] = core.address
    for row in gcs._actors.rows():
        info = row.info
        if info.state not in (DEAD, DEPENDENCIES_UNREADY) and info.address != hosts.get(info.actor_id):
            yield f"the gcs has actor {short(info.actor_id)} at {info.address}, and it is at {hosts.get(info.actor_id)}"


# --- What owners know of objects


@copies("ObjectDirectory._objects", "ObjectTable._entries")
def _copies_of_objects(cluster: Cluster) -> Iterator[str]:
    """An owner knows all copies of its objects, and the first one is the primary one.

    A node that leaves may make a second one primary: it moves its copies, and the owner chooses another one.
    """
    nodes = () if cluster.gcs is None else cluster.gcs._nodes._nodes.values()
    is_complete = bool(nodes) and all(node.alive and node.drain is None for node in nodes)
    for core in cluster.cores.values():
        for object_id, known in core.directory._objects.items():
            what = f"{_name(core)} has object {short(object_id)}"
            for number, node_id in enumerate(known.raylets):
                raylet = cluster.raylets.get(node_id)
                entry = None if raylet is None else raylet.store.table.find(object_id)
                if entry is None or entry.attempt != known.attempt:
                    yield f"{what} on {short(node_id)}, which has no copy of attempt {known.attempt}"
                elif entry.is_primary != (number == 0) and (is_complete or number == 0):
                    yield f"{what} on {short(node_id)}, whose copy is {'' if entry.is_primary else 'not '}the primary one"
            if idle := [key for key in known.receivers if not _is_pulling(cluster.raylets.get(key), object_id)]:
                yield f"{what} on its way to {_shown(idle)}, and nothing fetches it there"
    for raylet in cluster.raylets.values():
        yield from _owned_copies(cluster, raylet)


@copies("ObjectTable._spillable")
def _uses_of_copies(cluster: Cluster) -> Iterator[str]:
    """A copy that no process reads may be evicted, or else be spilled; nothing else may."""
    for raylet in cluster.raylets.values():
        table = raylet.store.table
        unused = [one for one in table._entries.values() if table.states.get(one.key) == SEALED and not one.in_use()]
        must_stay = _keys(one.object_id for one in unused if table._needs_memory(one))
        yield from _compare(f"{raylet._config.node_name}'s list of copies to spill", table._spillable, must_stay)
        spare = [one for one in unused if one.object_id not in must_stay]
        evictable = _keys(one.object_id for one in spare if not table.fallback.has(one.offset))
        yield from _compare(f"{raylet._config.node_name}'s list of copies to evict", table._spare, evictable)


def _is_pulling(raylet: Any, object_id: bytes) -> bool:
    return raylet is not None and object_id in raylet.objects._pulls


def _owned_copies(cluster: Cluster, raylet: Any) -> Iterator[str]:
    table = raylet.store.table
    for entry in table._entries.values():
        owner = cluster.cores.get(entry.owner.worker_id)
        what = f"{raylet._config.node_name} has a copy of {short(entry.object_id)}"
        known = None if owner is None else owner.directory._objects.get(entry.object_id)
        if owner is not None and (known is None or raylet._config.node_id not in known.raylets):
            yield f"{what}, of which its owner does not know"
        if table.states.get(entry.key) == CREATED and not _is_pulling(raylet, entry.object_id):
            yield f"{what}, which nobody completes"
        if not entry.in_use() and table.states.get(entry.key) == SEALED:
            must_stay = entry.is_primary and entry.spilled is None
            if must_stay and (entry.object_id in table._spare or entry.object_id in table._spare_in_fallback):
                yield f"{what}, which must stay, and it may be evicted"


@copies("Reference.lent", "Reference.held_tickets")
def _borrowers(cluster: Cluster) -> Iterator[str]:
    """The tickets that an owner has noted are those that borrowers hold."""
    for core in cluster.cores.values():
        for object_id, reference in core.references.items():
            for ticket, (borrower, *_) in (reference.lent or {}).items():
                holder = cluster.cores.get(borrower.worker_id)
                held = None if holder is None else holder.references.reference_of(object_id)
                if holder is not None and (held is None or ticket not in (held.held_tickets or ())):
                    yield f"{_name(core)} has lent {short(object_id)} to {_name(holder)}, which does not have that ticket"
            owner = None if reference.owner is None else cluster.cores.get(reference.owner.worker_id)
            if owner is None:
                continue
            noted = owner.references.reference_of(object_id)
            for ticket in reference.held_tickets or ():
                if noted is None or ticket not in (noted.lent or {}):
                    yield f"{_name(core)} holds a ticket of {short(object_id)} that {_name(owner)} has not noted"
