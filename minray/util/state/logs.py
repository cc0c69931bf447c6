"""``list_logs`` and ``get_log``: the log files of all nodes, and the lines of an actor, a task or a worker.

Ray: python/ray/util/state/api.py (get_log, list_logs)

    for line in get_log(actor_id=actor._actor_id.hex(), tail=100):
        print(line, end="")

Each file is read by the raylet of its node, in bounded pieces and with its backups. ``minray logs`` does the same on the
command line, also from outside of the cluster.

Both raise ValueError for wrong arguments, and RayStateApiException if there is no such log, or its node does not answer.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Generator
from typing import Any

from minray.observability.log_cursor import LogCursor, NoSuchLog
from minray.observability.log_reader import FOLLOW_INTERVAL_S, ClusterLogs, LogName, grouped
from minray.observability.state_reader import StateReader
from minray.protocol.logs import EVERYTHING
from minray.util.state.api import DEFAULT_TIMEOUT_S, ask
from minray.util.state.exception import RayStateApiException
from minray.util.state.rows import plain_id

SUFFIXES = ("out", "err")
_ANSI_CODE = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[@-Z\\^_])")
"""Escape sequences of terminals: those with parameters, and those of two characters."""


def list_logs(
    address: str | None = None,
    node_id: str | None = None,
    node_ip: str | None = None,
    glob_filter: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
) -> dict[str, list[str]]:
    """Return the names of a node's log files by group: ``{"raylet": ["raylet.log"], "worker_out": [...], ...}``.

    The node is that with this id, or with this address; without both it is the head. ``glob_filter`` is a shell pattern.
    """

    async def read(reader: StateReader) -> dict[str, list[str]]:
        logs = ClusterLogs(reader, timeout)
        node = await logs.node(plain_id(node_id) if node_id else "", node_ip or "")
        return grouped((await logs.list_logs(node, glob_filter or "*")).files)

    try:
        return ask(address, timeout, read)
    except NoSuchLog as error:
        raise RayStateApiException(str(error)) from None


def get_log(
    address: str | None = None,
    node_id: str | None = None,
    node_ip: str | None = None,
    filename: str | None = None,
    actor_id: str | None = None,
    task_id: str | None = None,
    pid: int | None = None,
    follow: bool = False,
    tail: int = EVERYTHING,
    timeout: float = DEFAULT_TIMEOUT_S,
    suffix: str = "out",
    encoding: str | None = "utf-8",
    errors: str = "strict",
    submission_id: str | None = None,
    attempt_number: int = 0,
    _interval: float | None = None,
    filter_ansi_code: bool = False,
) -> Generator[Any, None, None]:
    """Yield the lines of a log, with their ends; bytes if ``encoding`` is None. A log may be longer than memory.

    The log is that of a file, an actor, a task or a process. ``filename`` may be a shell pattern that one file matches.
    A node is named as for ``list_logs``; a process is looked for on all nodes unless one is named. ``suffix`` is "out"
    for standard output, "err" for standard error. ``tail``: number of last lines to begin with; -1 for all. With ``follow``
    the generator waits for new lines, for ever; it looks for them every ``_interval`` seconds.
    """
    if suffix not in SUFFIXES:
        raise ValueError(f'suffix must be "out" or "err", not {suffix!r}')
    if not isinstance(tail, int) or tail < EVERYTHING:
        raise ValueError(f"tail must be a number of lines, or -1 for all, not {tail!r}")
    if submission_id is not None:
        raise ValueError("minray has no submitted jobs; the output of a driver is where it was started")
    if encoding is not None:
        codecs.lookup(encoding)
        codecs.lookup_error(errors)
    interval_s = FOLLOW_INTERVAL_S if _interval is None else _interval
    if sum(one is not None for one in (filename, actor_id, task_id, pid)) != 1:
        raise ValueError("give one of filename, actor_id, task_id and pid")
    wanted = LogName(
        node_id=plain_id(node_id) if node_id else "",
        node_ip=node_ip or "",
        filename=filename or "",
        actor_id=plain_id(actor_id) if actor_id else "",
        task_id=plain_id(task_id) if task_id else "",
        pid=pid or 0,
        suffix=suffix,
        attempt=attempt_number,
    )
    pieces = _pieces(address, timeout, wanted, tail, follow, interval_s)
    lines = _without_codes(_lines(pieces)) if filter_ansi_code else _lines(pieces)
    return lines if encoding is None else _decoded(lines, encoding, errors)


def _pieces(
    address: str | None, timeout: float, name: LogName, tail: int, follow: bool, interval_s: float
) -> Generator[bytes, None, None]:
    """Yield a log in pieces of any length."""

    async def begin(reader: StateReader) -> LogCursor:
        logs = ClusterLogs(reader, timeout)
        return logs.cursor(await logs.find(name), tail, follow)

    async def go_on(reader: StateReader) -> bytes:
        return await (cursor.read_more(interval_s) if follow else cursor.read())

    try:
        cursor = ask(address, timeout, begin)
        while follow or not cursor.is_end:
            yield ask(address, timeout, go_on)
    except NoSuchLog as error:
        raise RayStateApiException(str(error)) from None


def _lines(pieces: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    """Yield whole lines with their ends; the last one may have none."""
    begun = b""
    for piece in pieces:
        *whole, begun = (begun + piece).split(b"\n")
        for line in whole:
            yield line + b"\n"
    if begun:
        yield begun


def _without_codes(lines: Generator[bytes, None, None]) -> Generator[bytes, None, None]:
    for line in lines:
        yield _ANSI_CODE.sub(b"", line)


def _decoded(lines: Generator[bytes, None, None], encoding: str, errors: str) -> Generator[str, None, None]:
    for line in lines:
        yield line.decode(encoding, errors)
