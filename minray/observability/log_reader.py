"""Log files of all nodes, read from any process that belongs to the cluster: listed, read in pieces, followed.

Ray: python/ray/dashboard/modules/log/log_manager.py (LogsManager)

    logs = ClusterLogs(reader, timeout_s)
    node = await logs.node(node_id)
    (await logs.list_logs(node)).files
    text = await logs.read_log(LogPlace(node, "raylet.log"), tail=100)
    async for piece in logs.follow_log(LogPlace(node, "raylet.log"), tail=100): ...

Each node's files are read by its raylet (``minray/raylet/log_service.py``). Where the lines of an actor, task or worker are
follows from what the gcs and the workers say about them. A ``LogCursor`` is one reader's place in one file.

Every failure is a ``NoSuchLog`` whose message says what to do; a ``PlatformError`` or TimeoutError is the gcs's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from glob import escape
from typing import NamedTuple, TypeVar

import msgspec

from minray.common.ids import JOB_ID_BYTES
from minray.common.shown import shown
from minray.observability.log_cursor import LogCursor, LogPlace, NoSuchLog, name_of
from minray.observability.state_reader import StateReader
from minray.platform.base import PlatformError, RemoteFailure
from minray.protocol.base import Record, Request
from minray.protocol.gcs import NodeInfo
from minray.protocol.logs import EVERYTHING, ListLogs, LogChoice, LogFile, LogFiles

R = TypeVar("R", bound=Record)

FOLLOW_INTERVAL_S = 0.5
"""Default seconds between two looks at a file that is followed, as in Ray."""
MOST_NAMED = 10
"""Most ids that an error names."""
MOST_SEARCHED = 200
"""Most files that are looked through for the lines of a task or actor whose worker nobody knows."""
MOST_DEAD_NAMED = 3
"""Most dead nodes that an error names, because the lines that are missing may have been there."""
NOW_US = 1 << 62
"""Start of a run that is not over, so that it is the newest."""
GROUPS: Sequence[tuple[str, Callable[[str], bool]]] = (
    ("worker_out", lambda name: name.startswith("worker-") and name.endswith(".out")),
    ("worker_err", lambda name: name.startswith("worker-") and name.endswith(".err")),
    ("raylet", lambda name: name.startswith("raylet.")),
    ("gcs_server", lambda name: name.startswith("gcs.")),
    ("dashboard", lambda name: name.startswith("dashboard.")),
    ("internal", lambda name: True),
)
"""Ray's names for groups of files, and which files are in them; a file is in the first group that takes it."""


class LogName(NamedTuple):
    """How a user names a log: by one of file, actor, task, worker and process. Ids are hexadecimal."""

    node_id: str = ""
    """Node of the file or process, or the beginning of its id; without ``node_ip`` too, the head or any node."""
    node_ip: str = ""
    filename: str = ""
    """Name of a file, or a shell pattern that one file matches."""
    actor_id: str = ""
    task_id: str = ""
    attempt: int = EVERYTHING
    worker_id: str = ""
    """Id of a worker, or the beginning of one."""
    pid: int = 0
    suffix: str = "out"
    """Stream of a worker: "out" or "err"."""


class _Run(NamedTuple):
    """A worker that has run, or runs, what is looked for."""

    node_id: bytes
    worker_id: bytes
    attempt: int = 0
    started_us: int = 0


def grouped(files: Iterable[LogFile]) -> dict[str, list[str]]:
    """Return the names of files by group, with Ray's names of groups. Backups are in the group of their file."""
    groups: dict[str, list[str]] = {}
    for file in files:
        name = _without_number(file.name)
        group = next(group for group, takes in GROUPS if takes(name))
        groups.setdefault(group, []).append(file.name)
    return {group: groups[group] for group, _ in GROUPS if group in groups}


def _without_number(name: str) -> str:
    """Return the name of the file that a backup belongs to."""
    file, _, number = name.rpartition(".")
    return file if file and number.isdecimal() else name


class ClusterLogs:
    """Reads the logs of a cluster's nodes. Each process that is asked has ``timeout_s`` seconds to answer."""

    def __init__(self, reader: StateReader, timeout_s: float) -> None:
        self._reader = reader
        self._timeout_s = timeout_s

    # --- Nodes and files -----------------------------------------------------------------------------------------------

    async def node(self, node_id: str = "", node_ip: str = "") -> NodeInfo:
        """Return the node with this id, or the beginning of one, or with this address; without both, the head."""
        nodes = await self._reader.nodes(self._timeout_s)
        if node_id:
            found = [node for node in nodes if node.node_id.hex().startswith(node_id.lower())]
            what = f"an id that begins with {node_id}"
        elif node_ip:
            found, what = [node for node in nodes if node.ip == node_ip], f"the address {node_ip}"
        else:
            found, what = [node for node in nodes if node.is_head], "the role of the head"
        alive = [node for node in found if node.alive]
        if len(alive) > 1 or (not alive and len(found) > 1 and node_id):
            ids = _some_of([node.node_id.hex() for node in alive or found])
            raise NoSuchLog(f"{len(alive or found)} nodes have {what}; name one by its id: {ids}")
        if not found:
            raise NoSuchLog(f"no node has {what}; `minray list nodes` names the nodes")
        return (alive or found)[0]

    async def list_logs(self, node: NodeInfo, pattern: str = "*") -> LogFiles:
        """Return the log files of a node whose names match a shell pattern."""
        listed = await self._ask(node, ListLogs(pattern))
        if listed.absence:
            raise NoSuchLog(f"{name_of(node)}: {listed.absence}")
        return listed

    # --- Reading -------------------------------------------------------------------------------------------------------

    def cursor(self, place: LogPlace, tail: int = EVERYTHING, is_followed: bool = False) -> LogCursor:
        """Begin to read a file: its last ``tail`` lines, and with ``is_followed`` what is written later."""
        return LogCursor(self._ask, place, tail, is_followed)

    async def read_log(self, place: LogPlace, tail: int = EVERYTHING, search: str = "") -> bytes:
        """Return a file's last ``tail`` lines, of those that contain ``search``; the whole file is read into memory."""
        cursor = self.cursor(_searched(place, search), tail)
        pieces: list[bytes] = []
        while not cursor.is_end:
            pieces.append(await cursor.read())
        return b"".join(pieces)

    async def follow_log(
        self, place: LogPlace, tail: int = EVERYTHING, search: str = "", interval_s: float = FOLLOW_INTERVAL_S
    ) -> AsyncIterator[bytes]:
        """Yield a file's last ``tail`` lines, and then what is written, as whole lines. Ends with ``NoSuchLog``."""
        cursor = self.cursor(_searched(place, search), tail, True)
        while True:
            yield await cursor.read_more(interval_s)

    async def _ask(self, node: NodeInfo, request: Request[R]) -> R:
        if not node.alive:
            raise NoSuchLog(_where_the_dead_logged(node))
        try:
            async with asyncio.timeout(self._timeout_s):
                return await self._reader.ask_raylet(node, request)
        except TimeoutError:
            raise NoSuchLog(f"{name_of(node)} does not answer within {self._timeout_s:g} s") from None
        except RemoteFailure:
            raise
        except PlatformError as error:
            raise NoSuchLog(_where_the_dead_logged(node, str(error))) from None

    # --- Whose lines ---------------------------------------------------------------------------------------------------

    async def find(self, name: LogName) -> LogPlace:
        """Return the file, and the choice of its lines, that a user names."""
        if name.actor_id:
            return await self.of_actor(name.actor_id, name.suffix)
        if name.task_id:
            return await self.of_task(name.task_id, name.attempt, name.suffix)
        node = await self.node(name.node_id, name.node_ip) if name.node_id or name.node_ip else None
        if name.filename:
            return await self._of_file(node, name.filename)
        return await self.of_worker(name.worker_id, name.pid, node, name.suffix)

    async def _of_file(self, node: NodeInfo | None, pattern: str) -> LogPlace:
        """Return the file of this name, or the only one that matches a pattern.

        ``node`` None: on the head; a file that the head does not have, on the only node that has it.
        """
        is_pattern = bool(set("*?[") & set(pattern))
        places = await self._places(pattern if is_pattern else escape(pattern), node)
        if node is None and not is_pattern and len(places) > 1:
            places = [place for place in places if place.node.is_head] or places
        if len(places) == 1:
            return places[0]
        where = name_of(node) if node is not None else "the living nodes"
        if not places:
            raise NoSuchLog(f"no log file of {where} is called {shown(pattern)}; `minray logs` lists the files")
        found = _some_of([f"{place.file} on {name_of(place.node)}" for place in places])
        raise NoSuchLog(f"{shown(pattern)} names {len(places)} log files of {where}: {found}")

    async def of_actor(self, actor_id: str, suffix: str = "out") -> LogPlace:
        """Return where the newest incarnation of an actor prints that has printed anything."""
        actors = [actor for actor in await self._reader.actors(self._timeout_s) if actor.actor_id.hex() == actor_id]
        runs = await self._runs(lambda event_actor, task_id: event_actor == actor_id)
        address = actors[0].address if actors else None
        if address is not None:
            runs.append(_Run(address.node_id, address.worker_id, started_us=NOW_US))
        return await self._newest(runs, suffix, LogChoice(actor_id=actor_id), f"actor {actor_id}")

    async def of_task(self, task_id: str, attempt: int = EVERYTHING, suffix: str = "out") -> LogPlace:
        """Return where a task prints or has printed; its last attempt, unless one is named."""
        runs = await self._runs(lambda actor_id, event_task: event_task == task_id)
        found = await self._reader.tasks(self._timeout_s, [bytes.fromhex(task_id)])
        told = [task for owner in found.processes for task in owner.tasks if task.task_id.hex() == task_id]
        runs += [_Run(task.node_id, task.worker_id, task.attempt, NOW_US) for task in told if task.worker_id]
        who = f"task {task_id}" + (f", attempt {attempt}," if attempt != EVERYTHING else "")
        runs = [run for run in runs if attempt in (EVERYTHING, run.attempt)]
        return await self._newest(runs, suffix, LogChoice(task_id=task_id, attempt=attempt), who)

    async def of_worker(
        self, worker_id: str = "", pid: int = 0, node: NodeInfo | None = None, suffix: str = "out"
    ) -> LogPlace:
        """Return where a worker prints, named by its id or its process id; ``node`` None: on any living node."""
        pattern = f"worker-{worker_id}*.{suffix}" if worker_id else f"worker-*-{pid}.{suffix}"
        places = await self._places(pattern, node)
        who = f"worker {worker_id}" if worker_id else f"process {pid}"
        if len({place.file for place in places}) > 1:
            files = _some_of([f"{place.file} on {name_of(place.node)}" for place in places])
            raise NoSuchLog(f"several workers are called {who}: {files}; name a node, or the worker's whole id")
        if not places:
            raise NoSuchLog(f"no worker that is called {who} has written a file *.{suffix} on {_nodes(node)}")
        return places[0]

    async def of_job(self, job_id: str, suffix: str = "out") -> list[LogPlace]:
        """Return where the workers of a job print or have printed, on all living nodes."""
        places = await self._places(f"worker-*-{job_id}-*.{suffix}")
        if not places:
            raise NoSuchLog(f"no worker of job {job_id} has written a file *.{suffix}; `minray list jobs` names the jobs")
        return places

    async def list_all(
        self, pattern: str = "*", node: NodeInfo | None = None
    ) -> tuple[list[tuple[NodeInfo, list[LogFile]]], list[str]]:
        """Return the matching files of a node, or of all living ones that have any, and what went wrong, in words."""
        asked = [node] if node is not None else [one for one in await self._reader.nodes(self._timeout_s) if one.alive]
        answers = await asyncio.gather(*(self.list_logs(one, pattern) for one in asked), return_exceptions=True)
        trouble: list[str] = []
        listed: list[tuple[NodeInfo, list[LogFile]]] = []
        for one, answer in zip(asked, answers, strict=True):
            if isinstance(answer, NoSuchLog):
                trouble.append(str(answer))
            elif isinstance(answer, BaseException):
                raise answer
            elif answer.files:
                listed.append((one, answer.files))
                if answer.total > len(answer.files):
                    trouble.append(f"{name_of(one)} has {answer.total} such files, and names {len(answer.files)} of them")
        return listed, trouble

    async def _places(self, pattern: str, node: NodeInfo | None = None) -> list[LogPlace]:
        """Return the files of a node that match, or those of all living ones, newest first.

        Raises NoSuchLog if there is none, and a node has not answered.
        """
        listed, trouble = await self.list_all(pattern, node)
        dated = [(log.modified, LogPlace(one, log.name)) for one, files in listed for log in files]
        if not dated and trouble:
            raise NoSuchLog("; ".join(trouble[:MOST_NAMED]))
        return [place for _, place in sorted(dated, key=lambda entry: -entry[0])]

    async def _runs(self, matches: Callable[[str, str], bool]) -> list[_Run]:
        """Return the workers that have run a task for which ``matches(actor id, task id)``, as far as it is remembered."""
        profile = await self._reader.profile(self._timeout_s)
        return [
            _Run(worker.node_id, worker.worker_id, event.attempt, event.start_us)
            for worker in profile.workers
            for event in worker.events
            if matches(event.actor_id.hex(), event.task_id.hex())
        ]

    async def _newest(self, runs: list[_Run], suffix: str, choice: LogChoice, who: str) -> LogPlace:
        """Return the file of the worker that ran last and has a file.

        If there is none, look for the marks in the newest files of the job: of a worker that was killed, nothing else tells
        what it was running.
        """
        trouble = ""
        for worker in dict.fromkeys((run.node_id, run.worker_id) for run in sorted(runs, key=lambda run: -run.started_us)):
            try:
                place = await self._file_of(_Run(*worker), suffix)
            except NoSuchLog as error:
                trouble = trouble or str(error)
            else:
                if place is not None:
                    return place._replace(choice=choice)
        job_id = (choice.task_id or choice.actor_id)[-2 * JOB_ID_BYTES :]
        for place in (await self._places(f"worker-*-{job_id}-*.{suffix}"))[:MOST_SEARCHED]:
            cursor = self.cursor(place._replace(choice=choice))
            while not cursor.is_end:
                if await cursor.read():
                    return cursor.place
        known = "" if runs else " and no worker is known that has run it"
        stream = "standard error" if suffix == "err" else "standard output"
        dead = [_where_the_dead_logged(node) for node in await self._reader.nodes(self._timeout_s) if not node.alive]
        words = [trouble or f"nothing is found that {who} has written to its {stream}{known}", *dead[:MOST_DEAD_NAMED]]
        raise NoSuchLog("; ".join(dict.fromkeys(words)))

    async def _file_of(self, run: _Run, suffix: str) -> LogPlace | None:
        node = await self.node(run.node_id.hex())
        files = await self.list_logs(node, f"worker-{run.worker_id.hex()}-*.{suffix}")
        return LogPlace(node, files.files[0].name) if files.files else None


def _searched(place: LogPlace, search: str) -> LogPlace:
    return place._replace(choice=msgspec.structs.replace(place.choice, search=search)) if search else place


def _where_the_dead_logged(node: NodeInfo, why: str = "") -> str:
    why = why or node.death_cause
    reason = f" ({why})" if why else ""
    return (
        f"{name_of(node)} cannot be reached{reason}. Its log files were in {node.session_dir}/logs on {node.hostname},"
        " which keeps those of its last sessions"
    )


def _nodes(node: NodeInfo | None) -> str:
    return name_of(node) if node is not None else "any living node"


def _some_of(names: Sequence[str]) -> str:
    return ", ".join(names[:MOST_NAMED]) + (", ..." if len(names) > MOST_NAMED else "")
