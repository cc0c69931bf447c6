"""Messages about changes, judged when they act: the newest word about a thing counts, and only what is stored is told.

A part of the ``Watch`` (see ``invariants``). Each rule below holds at one moment, and a later message often hides that it
was broken.

| | looked at when | |
|---|---|---|
| S9 | the gcs tells a change | the change is stored |
| G31, L6 | the gcs tells of an actor | its name and its worker lead to it, as long as they should |
| S3 | a raylet hears that a worker waits, or does not | the worker's last word counts |
| S3 | a raylet hears what a node has free | no older report counts |
| S3 | an owner hears where copies are, or a caller what became of an actor | no older news counts |
| S3 | an item of a generator arrives | it is of the present attempt |
| G104 | a raylet answers that bundles are open, or refuses some | they are; it has reserved none of those |
| L5 | a request for a lease is sent on by a raylet | it is sent on once |
| L5 | a raylet sends a request for a lease to another node | that node can hold it, by its labels and its resources |
| L6 | a raylet counts resources of another node as promised | the promise ends by itself |
| state | the gcs hears of ended tasks | it keeps each of them, or counts it as dropped |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from minray.common.ids import short
from minray.common.task_rows import ROW
from minray.gcs.gcs_actor_manager import ActorRow
from minray.protocol.actor import DEAD
from minray.protocol.base import decode, encode
from minray.protocol.gcs import JOBS, NODES, WORKER_DEATHS
from minray.protocol.placement_group import PLACEMENT_GROUPS
from minray.raylet.placement_group_resource_manager import COMMITTED, ENDING
from minray.scheduling.lease import GRANTED, SPILLBACK

TABLES = {NODES: "nodes", JOBS: "jobs", WORKER_DEATHS: "worker_deaths", PLACEMENT_GROUPS: "placement_groups"}
"""Channel of the gcs -> the stored table with its rows."""
ACTORS_CHANNEL = "actors:"
LONGEST_PROMISE_S = 5.0

OnBroken = Callable[[str, str], None]


class News:
    """Looks at the news in one cluster."""

    def __init__(self, on_broken: OnBroken) -> None:
        self._on_broken = on_broken

    # --- The gcs

    def add_gcs(self, gcs: Any) -> None:
        publisher = gcs._publisher
        publish = publisher.publish

        def watched_publish(channel: str, key: bytes, value: bytes | None) -> None:
            if value is not None and self._stored(gcs, channel, key) not in (None, value):
                self._on_broken("S9", f"the gcs tells a change of {short(key)} on channel {channel} that is not stored")
            publish(channel, key, value)
            if channel.startswith(ACTORS_CHANNEL):
                for row in gcs._actors.rows():
                    self._expect_in_index(gcs._actors._actors, row.info.actor_id)

        publisher.publish = watched_publish
        self._watch_tasks(gcs.tasks)
        self._watch_leases(gcs._actors._scheduler)

    def _watch_leases(self, scheduler: Any) -> None:
        """A request for an actor's lease that a raylet has sent on says so, as those for tasks do."""
        request = scheduler._request
        sent_on: dict[bytes, bytes] = {}
        """Actor -> the raylet to which its request was sent on."""

        async def watched(row: Any, lease_id: bytes, raylet: Any, final: bool) -> Any:
            actor_id = row.info.actor_id
            if sent_on.pop(actor_id, b"") == raylet.worker_id and not final:
                self._on_broken("L5", f"the request {short(lease_id)} for an actor may be sent on again and again")
            reply = await request(row, lease_id, raylet, final)
            if reply is not None and reply.kind == SPILLBACK:
                sent_on[actor_id] = reply.raylet.worker_id
            return reply

        scheduler._request = watched

    def _watch_tasks(self, tasks: Any) -> None:
        add = tasks.add

        def watched(report: Any) -> None:
            failed = {(one.task_id, one.attempt) for one in report.failed} - tasks._failed.keys()
            workers = [one for one in report.workers if one.rows and one.worker_id not in tasks._workers]
            new = report.left_out + len(failed) + sum(len(one.rows) // ROW.size + one.lost for one in workers)
            before = tasks.tasks + tasks.dropped()
            add(report)
            if tasks.tasks + tasks.dropped() != before + new:
                kept = f"{tasks.tasks} of them and has dropped {tasks.dropped()}"
                self._on_broken("state", f"the gcs has heard of {before + new} ended tasks; it keeps {kept}")

        tasks.add = watched

    def _expect_in_index(self, manager: Any, actor_id: bytes) -> None:
        """Whether the gcs finds an actor by its name as long as it has it, and by its worker as long as it lives there."""
        row = manager.get(actor_id)
        info = None if row is None else row.info
        has_name = info is not None and bool(info.name) and info.state != DEAD and not info.is_ending
        if info is not None and has_name != (manager._named.get((info.namespace, info.name)) == actor_id):
            word = "does not lead" if has_name else "leads"
            self._on_broken("G31", f"actor {short(actor_id)} is {info.state}, and its name {word} to it")
        if info is not None and info.address is not None and info.state != DEAD:
            if manager._of_worker.get(info.address.worker_id) != actor_id:
                self._on_broken("L6", f"the gcs does not find actor {short(actor_id)} by its worker")

    def _stored(self, gcs: Any, channel: str, key: bytes) -> bytes | None:
        """Return what the storage says about a thing; None if such things are not stored."""
        tables = gcs._storage._storage._tables
        if channel in TABLES:
            return bytes(tables.get(TABLES[channel], {}).get(key.hex(), b""))
        if not channel.startswith(ACTORS_CHANNEL):
            return None
        row = tables.get("actors", {}).get(key.hex())
        return b"" if row is None else encode(decode(ActorRow, row).info)

    # --- Raylets

    def add_raylet(self, name: str, raylet: Any) -> None:
        self._watch_blocked(name, raylet._broker)
        self._watch_bundles(name, raylet.groups)
        self._watch_views(name, raylet._broker.nodes)
        self._watch_spillbacks(name, raylet._broker)

    def _watch_spillbacks(self, name: str, broker: Any) -> None:
        assign = broker.cluster.assign

        def watched(now: float) -> Any:
            assignment = assign(now)
            for placement in assignment.placed:
                view = broker.nodes.get(placement.node_id) if placement.kind == SPILLBACK else None
                shape = placement.request.shape
                if view is not None and not view.could_hold(placement.request.resources, shape.labels):
                    what = f"lease {short(placement.request.lease_id)} to {view}"
                    self._on_broken("L5", f"{name} sends the request for {what}, which can never hold it")
            return assignment

        broker.cluster.assign = watched

    def _watch_blocked(self, name: str, broker: Any) -> None:
        on_blocked = broker.on_blocked
        newest: dict[bytes, int] = {}

        def watched(worker_id: bytes, sequence: int, blocked: bool) -> None:
            lease = self._lease_of(broker, worker_id)
            before = None if lease is None else lease.blocked
            on_blocked(worker_id, sequence, blocked)
            after = self._lease_of(broker, worker_id)
            if lease is not None and after is lease:
                right = blocked if sequence > newest.get(worker_id, 0) else before
                if lease.blocked != right:
                    last = newest.get(worker_id, 0)
                    what = f"{name} counts the worker {short(worker_id)} as {'' if lease.blocked else 'not '}waiting"
                    self._on_broken("S3", f"{what} after its word number {sequence}; the last was {last}")
            newest[worker_id] = max(sequence, newest.get(worker_id, 0))

        broker.on_blocked = watched

    @staticmethod
    def _lease_of(broker: Any, worker_id: bytes) -> Any:
        worker = broker.pool.workers.get(worker_id)
        if worker is None or broker.states.get(worker.lease_id) != GRANTED:
            return None
        return broker.local.leases.get(worker.lease_id)

    def _watch_bundles(self, name: str, groups: Any) -> None:
        commit, prepare, bundles = groups.bundles.commit, groups.bundles.prepare, groups.bundles

        def watched_prepare(group_id: bytes, attempt: int, wanted: Any) -> str:
            refused: str = prepare(group_id, attempt, wanted)
            of_attempt = [one for one in bundles._of(group_id) if one.attempt == attempt] if refused else []
            held = [one.index for one in of_attempt if bundles._state(one) != ENDING]
            if held:
                self._on_broken("G104", f"{name} refuses bundles of {short(group_id)}, and has reserved {held} of them")
            return refused

        def watched(group_id: bytes, wanted: Any) -> Any:
            wanted = list(wanted)
            missing = commit(group_id, wanted)
            there = bundles._groups.get(group_id, {})
            is_open = {index for index, attempt in wanted if index in there and there[index].attempt == attempt}
            is_open = {index for index in is_open if bundles._state(there[index]) == COMMITTED}
            if set(missing) != {index for index, _ in wanted} - is_open:
                what = f"bundles {sorted(is_open)} of placement group {short(group_id)} are open"
                self._on_broken("G104", f"{name} answers that {sorted(missing)} are missing, and {what}")
            return missing

        bundles.commit, bundles.prepare = watched, watched_prepare

    def _watch_views(self, name: str, nodes: Any) -> None:
        on_resources, promise = nodes.on_resources, nodes.promise

        def watched_resources(node_id: bytes, version: int, total: Any, available: Any, waiting: int = 0) -> None:
            view = nodes._views.get(node_id)
            newest, before = (-1, None) if view is None else (view.version, dict(view.available))
            on_resources(node_id, version, total, available, waiting)
            if view is not None and version <= newest and view.available != before:
                self._on_broken("S3", f"{name} takes report {version} of {view}, and had number {newest}")

        def watched_promise(view: Any, demand: Any, now: float) -> None:
            promise(view, demand, now)
            until = view.promised_until
            if until is None or until > now + LONGEST_PROMISE_S:
                self._on_broken("L6", f"{name} promises resources of {view} until {until}, and it is {now}")

        nodes.on_resources, nodes.promise = watched_resources, watched_promise

    # --- Owners and callers

    def add_core(self, core: Any) -> None:
        self._watch_items(core)
        self._watch_places(core.directory)
        self._watch_actors(core.submission.actors.submitter)
        self._watch_requests(core.submission.submitter)

    def _watch_items(self, core: Any) -> None:
        generators, tasks = core.submission.generators, core.submission.tasks.tasks
        on_report = generators.on_report

        def watched(request: Any, buffers: Any) -> Any:
            task = tasks.get(request.task_id)
            is_late = task is not None and task.stream is not None and request.attempt < task.attempt
            before = _stream(task) if is_late else None
            answer = on_report(request, buffers)
            if is_late and _stream(task) != before:
                what = f"item {request.number} of attempt {request.attempt} of task {short(request.task_id)}"
                self._on_broken("S3", f"its owner takes {what}, whose attempt is {task.attempt}")
            return answer

        generators.on_report = watched

    def _watch_places(self, directory: Any) -> None:
        on_update = directory.on_update

        def watched(raylet: Any, number: int, changes: Any) -> None:
            is_late = number <= directory._heard.get(raylet.node_id, 0)
            before = _places(directory, changes) if is_late else None
            on_update(raylet, number, changes)
            if is_late and _places(directory, changes) != before:
                self._on_broken("S3", f"an owner takes update {number} of {short(raylet.node_id)} once more")

        directory.on_update = watched

    def _watch_actors(self, submitter: Any) -> None:
        on_info = submitter.on_info

        def watched(client: Any, info: Any) -> None:
            known = client.info
            on_info(client, info)
            is_older = known is not None and client.state != DEAD and client.info.restarts < known.restarts
            if known is not None and (is_older or (known.state == DEAD and client.state != DEAD)):
                self._on_broken("S3", f"a caller takes old news of actor {short(client.actor_id)}: {info.state}")

        submitter.on_info = watched

    def _watch_requests(self, submitter: Any) -> None:
        on_redirected = submitter.on_redirected

        def watched(request: Any, raylet: Any, grant_or_reject: bool, now: float) -> None:
            known = set(request.key.requests)
            if grant_or_reject and request.grant_or_reject:
                self._on_broken("L5", f"a raylet sends on a request that was sent on before: {short(request.lease_id)}")
            on_redirected(request, raylet, grant_or_reject, now)
            new = [each for key, each in request.key.requests.items() if key not in known]
            if grant_or_reject and new and not new[0].grant_or_reject:
                self._on_broken("L5", f"the request {short(new[0].lease_id)} may be sent on again and again")

        submitter.on_redirected = watched


def _stream(task: Any) -> Any:
    return task.stream.arrived, dict(task.stream.beyond), task.stream.total, dict(task.items_lost or {})


def _places(directory: Any, changes: Any) -> list[Any]:
    known = [directory._objects.get(change.object_id) for change in changes]
    return [each and (dict(each.raylets), dict(each.receivers)) for each in known]
