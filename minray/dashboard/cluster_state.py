"""Reads the cluster for all visitors: each table, explanations, stacks, the wait-for graph.

Ray: python/ray/dashboard/state_aggregator.py, python/ray/dashboard/modules/

Each process has ``timeout_s`` seconds to answer, and the answer names those that did not. So the dashboard of a hung cluster
works. Only the gcs is needed: while it does not answer there are no tables, and ``cluster`` says so.

``SharedAnswers`` has the answers, so all visitors together cost the cluster as much as one. Filters and sorting of large
tables run in a thread, since they take longer than the others should wait.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from string import hexdigits
from typing import Any, NamedTuple, TypeVar

import msgspec

from minray._version import __version__
from minray.common.ids import TASK_ID_BYTES, return_id, short, short_actor
from minray.core_worker.introspection.explainer import until_it_repeats
from minray.dashboard import tables
from minray.dashboard.connection import ClusterConnection
from minray.dashboard.listing import RowQuestion, select_rows
from minray.dashboard.shared_answers import Kept, SharedAnswers
from minray.dashboard.tables import COLUMNS, Table, Usage
from minray.dashboard.waits import ACTOR, DRIVER, Chain, build_graph
from minray.observability.metric_families import Family
from minray.observability.state_reader import ClusterCensus, ClusterProfile, ClusterTasks
from minray.observability.system_metrics import collect
from minray.platform.base import PlatformError
from minray.protocol.actor import ALIVE, DEAD, ActorInfo, ExplainActor, ExplainCall
from minray.protocol.base import Address, Record, Request
from minray.protocol.core_worker import Explain, ExplainRun, Explanation
from minray.protocol.gcs import WORKER_DEATHS, NodeInfo, WorkerDeath
from minray.protocol.metrics import GetNodeMetrics
from minray.protocol.placement_group import GetPlacementGroup
from minray.protocol.raylet import ExplainLease
from minray.protocol.state import GetStacks, ProcessStacks, SystemValue, TaskInfo

TIMEOUT_S = 3.0
"""Seconds that each process has to answer. A hung one delays each answer by that."""
MOST_EXPLAINED = 200
"""Most tasks, actors and drivers that one wait-for graph explains. A person cannot read more, and each is a question."""
MOST_OF_A_KIND = 20
"""Most tasks with one name, state and owner among them, so that others have their place."""
AT_ONCE = 32
"""Most explanations under way at a time."""
LARGE = 5000
"""Number of rows from which a thread filters and sorts them."""
MOST_SELECTIONS = 64
"""Most answers about parts of tables that are kept, about a megabyte each at most."""
ENDED = ("FINISHED", "FAILED")


T = TypeVar("T")


class NotFound(Exception):
    """The cluster does not know what was asked for; the message says what."""


class Selection(NamedTuple):
    """A part of a table, as JSON."""

    body: bytes
    number: int
    """Number of the answer from which it was made."""


class DashboardState:
    """The questions of the dashboard."""

    def __init__(self, connection: ClusterConnection, timeout_s: float = TIMEOUT_S) -> None:
        self.connection = connection
        self.timeout_s = timeout_s
        self.shared = SharedAnswers()
        self._selections: dict[tuple[str, RowQuestion], Selection] = {}
        self.extra_tables: dict[str, Callable[[], Awaitable[Table]]] = {}
        """Tables that other parts of the dashboard read, by name; they join them here."""
        self._began = asyncio.get_running_loop().time()

    # --- raw answers, each shared by all

    async def _ask(self, name: str, ask: Callable[[], Awaitable[Any]]) -> Kept[Any]:
        return await self.shared.get(name, ask)

    async def census(self) -> Kept[ClusterCensus]:
        return await self._ask("census", lambda: self.connection.reader().census(self.timeout_s))

    async def actors(self) -> list[ActorInfo]:
        kept: Kept[list[ActorInfo]] = await self._ask("actors", lambda: self.connection.reader().actors(self.timeout_s))
        return kept.value

    async def newest_actors(self) -> list[ActorInfo]:
        """Ask for the actors now: a change is about one that may be younger than what is kept."""
        return await self.connection.reader().actors(self.timeout_s)

    async def _tasks(self) -> Kept[ClusterTasks]:
        return await self._ask("tasks", lambda: self.connection.reader().tasks(self.timeout_s, most=tables.MOST_ROWS))

    async def _tasks_with(self, task_id: bytes) -> ClusterTasks:
        """Return the tasks that are kept, if this one is among them; else ask all processes for it."""
        kept: ClusterTasks = (await self._tasks()).value
        if any(task.task_id == task_id for process in kept.processes for task in process.tasks):
            return kept
        return await self.connection.reader().tasks(self.timeout_s, [task_id])

    async def usage(self) -> Usage:
        """Ask each node that answers about its machine."""
        kept: Kept[Usage] = await self._ask("usage", self._read_usage)
        return kept.value

    async def _read_usage(self) -> Usage:
        census = (await self.census()).value
        nodes = [node for node in census.nodes if node.node_id in census.stats]

        async def ask(node: NodeInfo) -> list[SystemValue]:
            try:
                return (await self.ask(node.address, GetNodeMetrics())).values  # type: ignore[no-any-return]
            except (PlatformError, TimeoutError):
                return []  # The census names it, unless it has just stopped.

        found = await asyncio.gather(*map(ask, nodes))
        return {node.node_id: {one.name: one.value for one in values} for node, values in zip(nodes, found, strict=True)}

    async def metrics(self) -> list[Family]:
        """Collect all metrics, for Prometheus."""
        kept: Kept[list[Family]] = await self._ask("metrics", lambda: collect(self.connection.reader(), self.timeout_s))
        return kept.value

    async def profile(self, most: int) -> ClusterProfile:
        """Ask each worker for its share of about ``most`` tasks: those that ended last."""
        kept: Kept[ClusterProfile] = await self._ask(
            f"profile of {most}", lambda: self.connection.reader().profile(self.timeout_s, most)
        )
        return kept.value

    # --- tables

    async def table(self, name: str) -> Kept[Table]:
        """Return a table. Raises PlatformError, ConnectionError or TimeoutError if the gcs does not answer."""
        return await self.shared.get(f"table {name}", lambda: self._read(name))

    async def _read(self, name: str) -> Table:
        reader, timeout_s = self.connection.reader(), self.timeout_s
        if name == "nodes":
            return tables.nodes((await self.census()).value, await self.usage())
        if name == "jobs":
            return tables.jobs((await self.census()).value)
        if name == "workers":
            async with asyncio.timeout(timeout_s):
                deaths = await reader.rows(WORKER_DEATHS, WorkerDeath)
            return tables.workers((await self.census()).value, deaths, await self.actors())
        if name == "actors":
            return tables.actors(await self.actors())
        if name == "tasks":
            found = (await self._tasks()).value
            return await in_thread(lambda: tables.tasks(found), sum(len(one.tasks) for one in found.processes))
        if name == "placement_groups":
            return tables.placement_groups(await reader.placement_groups(timeout_s))
        if name in self.extra_tables:
            return await self.extra_tables[name]()
        assert name == "objects", name
        objects = await reader.read(timeout_s)
        return await in_thread(lambda: tables.objects(objects), sum(len(one.references) for one in objects.processes))

    async def select(self, name: str, question: RowQuestion) -> bytes:
        """Return a part of a table as JSON. Visitors with the same question share it."""
        kept = await self.table(name)
        known = self._selections.get((name, question))
        if known is None or known.number != kept.number:
            body = await in_thread(lambda: _selected(name, kept, question), len(kept.value.rows))
            known = Selection(body, kept.number)
            self._selections.pop((name, question), None)
            self._selections[name, question] = known
            if len(self._selections) > MOST_SELECTIONS:
                self._selections.pop(next(iter(self._selections)))
        return known.body

    async def find(self, name: str, id: str) -> dict[str, Any]:
        """Return the row whose id is, or begins with, this. Raises NotFound, also if several rows match."""
        table = (await self.table(name)).value
        key = COLUMNS[name][0]
        rows = [row for row in table.rows if str(row[key]).startswith(id.lower())]
        if not rows and name == "tasks" and (task_id := _task_id(id)):
            rows = tables.tasks(await self._tasks_with(task_id)).rows
        if not rows or len({row[key] for row in rows}) > 1:
            what = f"{len(rows)} of the {name} have ids that begin with" if rows else f"none of the {name} has the id"
            raise NotFound(f"{what} {id}")
        return {"row": rows[0], "rows": rows, "silent": list(table.silent)}

    async def task_summary(self) -> dict[str, Any]:
        table = (await self.table("tasks")).value
        return await in_thread(lambda: tables.task_summary(table), len(table.rows))

    async def cluster(self) -> dict[str, Any]:
        """Return the summary. While the gcs does not answer it says why, and has no counts."""
        target = self.connection.target
        known: dict[str, Any] = {
            "version": __version__,
            "address": target.address,
            "session": target.session,
            "uptime_s": int(asyncio.get_running_loop().time() - self._began),
            "timeout_s": self.timeout_s,
        }
        try:
            kept = await self.census()
        except (PlatformError, ConnectionError, TimeoutError) as error:
            return {**known, "is_connected": False, "trouble": self.trouble(error), "silent": ["gcs"]}
        return {**known, "is_connected": True, "trouble": "", **tables.summary(kept.value), "silent": kept.value.silent}

    def trouble(self, error: Exception) -> str:
        """Describe an error of a question to the gcs."""
        address = self.connection.target.address
        if isinstance(error, TimeoutError):
            return f"the gcs of the cluster at {address} has not answered for {self.timeout_s:g} s"
        if isinstance(error, PlatformError):
            return f"the gcs of the cluster at {address} cannot be reached: {error}"
        return str(error)

    # --- single processes

    async def ask(self, address: Address, request: Request[Any]) -> Any:
        """Ask one process. Raises PlatformError or TimeoutError."""
        return await self.connection.ask(self.connection.peers.to(address), request, self.timeout_s)

    async def ask_gcs(self, request: Request[Any]) -> Any:
        """Ask the gcs. Raises PlatformError, ConnectionError or TimeoutError."""
        return await self.connection.ask(self.connection.connected(), request, self.timeout_s)

    async def stacks(self, process: str) -> dict[str, Any]:
        """Return the stacks of the process whose worker id begins so, or that has this pid; "": of all processes."""
        census = (await self.census()).value
        if not process:
            found = await self.connection.reader().stacks(self.timeout_s)
            return {"processes": [plain(one) for one in found.processes], "silent": found.silent}
        wanted = [
            (address, pid)
            for worker_id, (address, pid) in census.processes().items()
            if worker_id.hex().startswith(process.lower()) or str(pid) == process
        ]
        if not wanted:
            raise NotFound(f"no living process has the id or pid {process}")
        answers = await asyncio.gather(*(self._stack_of(address) for address, _ in wanted))
        silent = [f"process {pid}" for (_, pid), answer in zip(wanted, answers, strict=True) if answer is None]
        return {"processes": [plain(one) for one in answers if one is not None], "silent": silent}

    async def _stack_of(self, address: Address) -> ProcessStacks | None:
        try:
            answer: ProcessStacks = await self.ask(address, GetStacks())
        except (PlatformError, TimeoutError):
            return None
        return answer

    # --- explanations

    async def why(self, id: str) -> dict[str, Any]:
        """Explain a task, object, actor or placement group, whose id may be shortened. Raises NotFound."""
        id = id.lower()
        if (info := await self._actor_of(id)) is not None:
            return {"id": info.actor_id.hex(), "lines": await self._explain_actor(info)}
        groups = (await self.table("placement_groups")).value.rows
        for row in groups:
            if id and str(row["placement_group_id"]).startswith(id):
                reply = await self.ask_gcs(GetPlacementGroup(bytes.fromhex(row["placement_group_id"])))
                return {"id": row["placement_group_id"], "lines": [reply.explanation or f"its state is {row['state']}"]}
        object_id, owner = await self._owner_of(id)
        return {"id": object_id.hex(), "lines": await self._explain(owner, Explain(object_id, 0))}

    async def _actor_of(self, id: str) -> ActorInfo | None:
        found = [info for info in await self.actors() if id and info.actor_id.hex().startswith(id)]
        return found[0] if len(found) == 1 else None

    async def _owner_of(self, id: str) -> tuple[bytes, Address]:
        """Return the object that a task, or an object, with this id stands for, and the address of its owner."""
        processes = (await self.census()).value.processes()
        task_id = _task_id(id)
        found = await self._tasks_with(task_id) if task_id else (await self._tasks()).value
        for process in found.processes:
            for task in process.tasks:
                text = task.task_id.hex()
                if id and (text.startswith(id) or id.startswith(text)) and process.worker_id in processes:
                    object_id = bytes.fromhex(id) if len(id) == 2 * (len(task.task_id) + 4) else return_id(task.task_id, 1)
                    return object_id, processes[process.worker_id][0]
        for row in (await self.table("objects")).value.rows:
            owner = processes.get(bytes.fromhex(row["owner_id"]))
            if id and str(row["object_id"]).startswith(id) and owner is not None:
                return bytes.fromhex(row["object_id"]), owner[0]
        raise NotFound(f"no task, object, actor or placement group with the id {id} is known, or its owner has ended")

    async def owner_of_task(self, task_id: bytes) -> tuple[bytes, Address]:
        """Return the first result of a task, and the address of its owner. Raises NotFound if no process owns it."""
        processes = (await self.census()).value.processes()
        for process in (await self._tasks_with(task_id)).processes:
            if process.worker_id in processes and any(task.task_id == task_id for task in process.tasks):
                return return_id(task_id, 1), processes[process.worker_id][0]
        raise NotFound(f"no living process has a task with the id {task_id.hex()}")

    async def _explain(self, address: Address, request: Request[Explanation]) -> list[str]:
        """Ask a process for a chain of reasons. A process that does not answer is itself the reason."""
        try:
            reply: Explanation = await self.ask(address, request)
        except TimeoutError:
            return [f"worker {short(address.worker_id)} has not answered for {self.timeout_s:g} s"]
        except PlatformError as error:
            return [f"worker {short(address.worker_id)} cannot be reached: {error}"]
        return until_it_repeats(reply.lines)

    async def _explain_actor(self, info: ActorInfo) -> list[str]:
        """Say what an actor does, or what its creation waits for."""
        name = f"actor {short_actor(info.actor_id)} ({info.class_name})"
        if info.state == DEAD:
            return [f"{name} is dead: {info.death.message if info.death is not None else 'the reason is not known'}"]
        if info.state == ALIVE and info.address is not None:
            said = await self._explain(info.address, ExplainCall(info.actor_id, b"", 0, 0))
            return [f"{name} lives in pid={info.pid}", *said]
        known = await self.ask_gcs(ExplainActor(info.actor_id, info.owner))
        lines = [f"{name} is not alive yet: {info.state}", *filter(None, [known.text])]
        if known.group_id:
            group = await self.ask_gcs(GetPlacementGroup(known.group_id))
            lines += filter(None, [group.explanation])
        if known.raylet is not None:
            try:
                text = (await self.ask(known.raylet, ExplainLease(known.lease_id))).text
            except (PlatformError, TimeoutError) as error:
                text = f"its raylet does not answer: {error}"
            lines += [f"its lease {text}"] if text else []
        return lines

    # --- who waits for whom

    async def waits(self) -> dict[str, Any]:
        """Return the wait-for graph of all that waits now, or of a part if more waits than a person can read."""
        kept: Kept[dict[str, Any]] = await self.shared.get("waits", self._read_waits)
        return kept.value

    async def _read_waits(self) -> dict[str, Any]:
        census = (await self.census()).value
        found = (await self._tasks()).value
        processes = census.processes()
        unended = [
            (owner_id, task, state)
            for owner_id, task, state in _with_states(found)
            if state not in ENDED and owner_id in processes
        ]
        pending = [info for info in await self.actors() if info.state not in (ALIVE, DEAD)]
        chosen = _choose(unended)
        limit = asyncio.Semaphore(AT_ONCE)

        async def chain_of_task(owner_id: bytes, task: TaskInfo, state: str) -> Chain:
            async with limit:
                lines = await self._explain(processes[owner_id][0], Explain(return_id(task.task_id, 1), 0))
            facts = {"task_id": task.task_id.hex(), "state": state, "pid": task.pid or None}
            kind = KIND_NAMES.get(task.kind, "task")
            return Chain(id=short(task.task_id), kind=kind, name=task.name, lines=lines, facts=facts)

        async def chain_of_actor(info: ActorInfo) -> Chain:
            async with limit:
                lines = await self._explain_actor(info)
            facts = {"actor_id": info.actor_id.hex(), "state": info.state}
            id, name = f"actor {short_actor(info.actor_id)}", info.name or info.class_name
            return Chain(id=id, kind=ACTOR, name=name, lines=lines[1:], facts=facts)

        async def chain_of_driver(address: Address, pid: int) -> Chain:
            async with limit:
                lines = await self._explain(address, ExplainRun(b"", 0))
            return Chain(id=f"driver {pid}", kind=DRIVER, name=f"driver {pid}", lines=lines, facts={"pid": pid})

        chains = await asyncio.gather(
            *(chain_of_driver(address, pid) for address, pid in census.drivers[:MOST_OF_A_KIND]),
            *(chain_of_actor(info) for info in pending[:MOST_OF_A_KIND]),
            *(chain_of_task(*one) for one in chosen),
        )
        waiting = [chain for chain in chains if chain.kind != DRIVER or chain.lines]
        holders = {chain.facts["pid"]: chain.id for chain in waiting if chain.facts.get("state") == "RUNNING"}
        total = len(unended) + len(pending)
        left_out = total - len(chosen) - min(len(pending), MOST_OF_A_KIND)
        note = (
            f"{left_out} of {total} unfinished tasks and actors are not drawn: of each name, state and owner only some are"
        )
        silent = sorted({*census.silent, *found.silent})
        notes = [note] if left_out else []
        if untold := sum(process.total - len(process.tasks) for process in found.processes):
            notes.append(f"{untold} further tasks were not looked at, because their processes have so many")
        return {**build_graph(waiting, holders), "total": total, "left_out": left_out, "silent": silent, "notes": notes}

    def close(self) -> None:
        self.shared.close()
        self.connection.close()


KIND_NAMES = {"NORMAL_TASK": "task", "ACTOR_TASK": "call", "ACTOR_CREATION_TASK": "constructor"}
"""Names of the kinds of tasks in explanations."""


def _with_states(found: ClusterTasks) -> Iterator[tuple[bytes, TaskInfo, str]]:
    """Yield each task with its owner's id and its state: that of the process to which it was sent is the newer one."""
    received = {(one.task_id, one.attempt): one.state for process in found.processes for one in process.received}
    for process in found.processes:
        for task in process.tasks:
            yield process.worker_id, task, received.get((task.task_id, task.attempt), task.state)


def _task_id(id: str) -> bytes:
    """Return the task that a whole id names: of itself, or of the object that it made; empty: the id is not a whole one."""
    is_whole = len(id) >= 2 * TASK_ID_BYTES and all(digit in hexdigits for digit in id)
    return bytes.fromhex(id[: 2 * TASK_ID_BYTES]) if is_whole else b""


def _choose(unended: list[tuple[bytes, TaskInfo, str]]) -> list[tuple[bytes, TaskInfo, str]]:
    """Choose the tasks that are explained: those that run first, and of equal ones only some."""
    counts: dict[tuple[bytes, str, str], int] = {}
    chosen: list[tuple[bytes, TaskInfo, str]] = []
    for owner_id, task, state in sorted(unended, key=lambda one: one[2] != "RUNNING"):
        key = (owner_id, task.name, state)
        counts[key] = counts.get(key, 0) + 1
        if counts[key] <= MOST_OF_A_KIND and len(chosen) < MOST_EXPLAINED:
            chosen.append((owner_id, task, state))
    return chosen


def _selected(name: str, kept: Kept[Table], question: RowQuestion) -> bytes:
    table = kept.value
    rows, matching = select_rows(table.rows, question)
    answer = {
        "rows": rows,
        "columns": COLUMNS[name],
        "total": len(table.rows) + table.left_out,
        "matching": matching,
        "limit": question.limit,
        "offset": question.offset,
        "left_out": table.left_out,
        "notes": table.notes,
        "silent": table.silent,
    }
    return msgspec.json.encode(answer)


async def in_thread(work: Callable[[], T], rows: int) -> T:
    """Do work on this many rows: at once if they are few, else in a thread, so that other visitors need not wait."""
    return await asyncio.to_thread(work) if rows > LARGE else work()


def plain(value: Any) -> Any:
    """Return a record as a dict, with all that is in it; ids become hexadecimal."""
    if isinstance(value, Record):
        return {name: plain(inner) for name, inner in msgspec.structs.asdict(value).items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value.hex() if isinstance(value, bytes) else value
