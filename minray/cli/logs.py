"""``minray logs``: lists the log files of a cluster, and prints or follows one of them, from any machine that may join.

Ray: python/ray/util/state/state_cli.py (logs_state_cli_group)

    minray logs                                what there is, on all nodes
    minray logs raylet.log --tail 100          the end of a file of the head, or of the only node that has it
    minray logs 'worker-*.err' --node-id 1f3c  the only file that matches the pattern, or else those that do
    minray logs actor ID --follow              what an actor prints
    minray logs task ID --err                  what a task has written to standard error; nothing of other tasks
    minray logs worker ID, worker --pid 4711   all that a worker prints
    minray logs node ID [FILE]                 the files of one node
    minray logs job ID                         what the workers of a job print, file by file

An id may be given with Ray's option ``--id`` as well, and may be only the beginning of one. Text goes to standard output as
it is in the file, byte by byte. What is said about it goes to standard error.
"""

from __future__ import annotations

import codecs
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import click

from minray.cli.errors import errors_for_people
from minray.cli.output import FORMAT, formatted
from minray.cli.state import Connect, cluster_options
from minray.common.ids import JOB_ID_BYTES, TASK_ID_BYTES, UNIQUE_ID_BYTES
from minray.node.cluster_client import ClusterClient
from minray.observability.log_cursor import LogPlace, NoSuchLog, name_of
from minray.observability.log_reader import FOLLOW_INTERVAL_S, ClusterLogs, LogName, grouped
from minray.observability.state_reader import StateReader
from minray.protocol.gcs import NodeInfo
from minray.protocol.logs import EVERYTHING, LogFile
from minray.util.state.rows import KINDS, beginning_of_id, find

DEFAULT_TAIL = 1000
"""Default number of last lines, as in Ray."""
ALL = -1
UNITS = ("B", "kB", "MB", "GB")


@dataclass(frozen=True)
class _Printing:
    """Options of all commands that print a log."""

    connect: Connect
    address: str | None
    token_file: str | None
    timeout: float
    follow: bool
    tail: int
    interval: float
    encoding: str
    encoding_errors: str

    @contextmanager
    def client(self) -> Iterator[ClusterClient]:
        """Connect to the cluster. Errors that users can cause are one line."""
        try:
            with errors_for_people(), warnings.catch_warnings(), self.connect(self.address, self.token_file) as client:
                # An interrupt may come between the making of a question and its beginning; nobody need know.
                warnings.filterwarnings("ignore", "coroutine .* was never awaited", RuntimeWarning)
                yield client
        except NoSuchLog as error:
            raise click.ClickException(str(error)) from None
        except KeyboardInterrupt:  # the usual end of --follow
            sys.exit(130)

    def print(self, find_place: Callable[[ClusterLogs, StateReader], Any]) -> None:
        """Print the log at the place that ``find_place`` finds, a coroutine function."""
        with self.client() as client:
            self.print_place(client, client.read(lambda reader: find_place(ClusterLogs(reader, self.timeout), reader)))

    def print_place(self, client: ClusterClient, place: LogPlace) -> None:
        lines = 0

        async def begin(reader: StateReader) -> Any:
            return ClusterLogs(reader, self.timeout).cursor(place, self.tail, self.follow)

        async def go_on(reader: StateReader) -> bytes:
            return bytes(await (cursor.read_more(self.interval) if self.follow else cursor.read()))

        cursor = client.read(begin)
        decoder = codecs.getincrementaldecoder(self.encoding)(self.encoding_errors)
        while self.follow or not cursor.is_end:
            piece = client.read(go_on)
            lines += piece.count(b"\n")
            click.echo(decoder.decode(piece), nl=False)
        click.echo(decoder.decode(b"", True), nl=False)
        if lines == self.tail:
            click.echo(f"These are the last {lines} lines. For all: --tail -1", err=True)


def logs_command(connect: Connect) -> click.Group:
    """Make the group of commands ``logs``."""
    group = _LogGroup("logs", help="List log files, or print and follow one: that of a file, actor, task, worker or job.")
    for make in (_cluster_command, _actor_command, _task_command, _worker_command, _node_command, _job_command):
        group.add_command(make(connect))
    return group


class _LogGroup(click.Group):
    """A group whose command ``cluster`` need not be named."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in ctx.help_option_names):
            args = ["cluster", *args]
        return super().parse_args(ctx, args)


def _check_encoding(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    try:
        codecs.getincrementaldecoder(name)
    except LookupError:
        raise click.BadParameter(f"{name!r} is not an encoding that Python knows") from None
    return name


def _check_errors(_context: click.Context, _parameter: click.Parameter, name: str) -> str:
    try:
        codecs.lookup_error(name)
    except LookupError:
        raise click.BadParameter(f"{name!r} is not a way to handle errors that Python knows") from None
    return name


def _reading_options(connect: Connect) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Add the options of ``_Printing``, and pass the command one as ``reading``."""
    options = [
        click.option("-f", "--follow", is_flag=True, help="Go on with what is written, until interrupted."),
        click.option(
            "--tail",
            type=click.IntRange(ALL),
            default=DEFAULT_TAIL,
            show_default=True,
            help="Number of last lines to begin with; -1: all.",
        ),
        click.option("--interval", type=click.FloatRange(0.01), default=FOLLOW_INTERVAL_S, hidden=True),
        click.option("--encoding", default="utf-8", callback=_check_encoding, help="Encoding of the log. Default: utf-8."),
        click.option(
            "--encoding-errors",
            default="replace",
            callback=_check_errors,
            help="What to do with bytes that are no text. Default: replace.",
        ),
    ]

    def add(command: Callable[..., None]) -> Callable[..., None]:
        def with_reading(
            address: str | None,
            token_file: str | None,
            timeout: float,
            follow: bool,
            tail: int,
            interval: float,
            encoding: str,
            encoding_errors: str,
            **others: Any,
        ) -> None:
            reading = _Printing(
                connect=connect,
                address=address,
                token_file=token_file,
                timeout=timeout,
                follow=follow,
                tail=tail,
                interval=interval,
                encoding=encoding,
                encoding_errors=encoding_errors,
            )
            command(reading=reading, **others)

        with_reading.__doc__ = command.__doc__
        added: Callable[..., None] = with_reading
        for option in reversed(options):
            added = option(added)
        return cluster_options(added)

    return add


NODE_ID = click.option("-id", "--node-id", default="", help="Id of a node, or the beginning of one.")
NODE_IP = click.option("-ip", "--node-ip", default="", help="Address of a node.")
ERR = click.option("--err", is_flag=True, help="Standard error instead of standard output.")


def _suffix(err: bool) -> str:
    return "err" if err else "out"


# --- Files -------------------------------------------------------------------------------------------------------------


def _cluster_command(connect: Connect) -> click.Command:
    @click.command("cluster")
    @click.argument("file", default="*", metavar="[FILE]")
    @NODE_ID
    @NODE_IP
    @FORMAT
    @_reading_options(connect)
    def command(reading: _Printing, file: str, node_id: str, node_ip: str, form: str) -> None:
        """Print the log file that FILE, a name or pattern, names alone; otherwise list the files that match."""
        _print_or_list(reading, file, node_id, node_ip, form)

    return command


def _node_command(connect: Connect) -> click.Command:
    @click.command("node")
    @click.argument("node_id", metavar="ID")
    @click.argument("file", default="*", metavar="[FILE]")
    @FORMAT
    @_reading_options(connect)
    def command(reading: _Printing, node_id: str, file: str, form: str) -> None:
        """List the log files of the node with this id, or print one of them."""
        _print_or_list(reading, file, node_id, "", form)

    return command


def _print_or_list(reading: _Printing, file: str, node_id: str, node_ip: str, form: str) -> None:
    is_pattern = bool(set("*?[") & set(file))
    with reading.client() as client:
        node_id = beginning_of_id(node_id) if node_id else ""

        async def find_file(reader: StateReader) -> LogPlace:
            return await ClusterLogs(reader, reading.timeout).find(LogName(node_id, node_ip, file))

        async def list_files(reader: StateReader) -> tuple[list[tuple[NodeInfo, list[LogFile]]], list[str]]:
            logs = ClusterLogs(reader, reading.timeout)
            return await logs.list_all(file, await logs.node(node_id, node_ip) if node_id or node_ip else None)

        if not is_pattern:
            reading.print_place(client, client.read(find_file))
            return
        listed, silent = client.read(list_files)
        places = [LogPlace(node, log.name) for node, files in listed for log in files]
        if len(places) == 1 and form == "table":
            reading.print_place(client, places[0])
            return
        click.echo(_as_table(listed) if form == "table" else formatted(form, _facts(listed)))
        for words in silent:
            click.echo(words, err=True)
        if not listed and silent:
            sys.exit(1)


def _as_table(listed: list[tuple[NodeInfo, list[LogFile]]]) -> str:
    lines: list[str] = []
    for node, files in listed:
        lines.append(f"{name_of(node)}, {node.ip}")
        sizes = {log.name: log.size for log in files}
        for group, names in grouped(files).items():
            lines += [f"  {group}", *(f"    {_size(sizes[name]):>8}  {name}" for name in names)]
    return "\n".join(lines) if lines else "no log file matches"


def _size(size: int) -> str:
    amount, unit = float(size), 0
    while amount >= 999.5 and unit < len(UNITS) - 1:
        amount, unit = amount / 1000, unit + 1
    return f"{amount:.0f} {UNITS[unit]}" if unit == 0 or amount >= 99.5 else f"{amount:.1f} {UNITS[unit]}"


def _facts(listed: list[tuple[NodeInfo, list[LogFile]]]) -> list[dict[str, Any]]:
    return [
        {"node_id": node.node_id.hex(), "node_name": node.name, "node_ip": node.ip, "logs": grouped(files)}
        for node, files in listed
    ]


# --- Actors, tasks, workers, jobs --------------------------------------------------------------------------------------


def _one_id(given: str, option: str) -> str:
    """Return the id that was given as an argument or as an option, or its beginning."""
    if bool(given) == bool(option):
        raise click.UsageError("give one id, as an argument or with --id")
    try:
        return beginning_of_id(given or option)
    except ValueError as error:
        raise click.UsageError(str(error)) from None


async def _whole(kind: str, size: int, digits: str, reader: StateReader, timeout: float) -> str:
    """Return the id, of ``size`` bytes, that begins with these digits."""
    if len(digits) >= 2 * size:
        return digits
    rows = (await find(KINDS[kind], reader, timeout, digits)).rows
    if not rows:
        raise NoSuchLog(f"none of the {kind} has an id that begins with {digits}; see `minray list {kind}`")
    return KINDS[kind].id_of(rows[0])


def _actor_command(connect: Connect) -> click.Command:
    @click.command("actor")
    @click.argument("id", default="", metavar="[ID]")
    @click.option("-a", "--id", "id_option", default="", help="Id of the actor, or the beginning of one.")
    @click.option("-pid", "--pid", type=click.IntRange(1), help="Process id of the actor.")
    @NODE_ID
    @NODE_IP
    @ERR
    @_reading_options(connect)
    def command(reading: _Printing, id: str, id_option: str, pid: int | None, node_id: str, node_ip: str, err: bool) -> None:
        """Print what an actor prints: its newest incarnation that has printed anything."""
        if pid is not None:
            _print_worker(reading, "", pid, node_id, node_ip, err)
            return
        digits = _one_id(id, id_option)

        async def find_place(logs: ClusterLogs, reader: StateReader) -> LogPlace:
            return await logs.of_actor(
                await _whole("actors", UNIQUE_ID_BYTES, digits, reader, reading.timeout), _suffix(err)
            )

        reading.print(find_place)

    return command


def _task_command(connect: Connect) -> click.Command:
    @click.command("task")
    @click.argument("id", default="", metavar="[ID]")
    @click.option("--id", "id_option", default="", help="Id of the task, or the beginning of one.")
    @click.option(
        "-a", "--attempt-number", type=click.IntRange(EVERYTHING), default=EVERYTHING, help="Attempt. Default: the last."
    )
    @ERR
    @_reading_options(connect)
    def command(reading: _Printing, id: str, id_option: str, attempt_number: int, err: bool) -> None:
        """Print what a task has printed, and nothing of the other tasks of its worker."""
        digits = _one_id(id, id_option)

        async def find_place(logs: ClusterLogs, reader: StateReader) -> LogPlace:
            task_id = await _whole("tasks", TASK_ID_BYTES, digits, reader, reading.timeout)
            return await logs.of_task(task_id, attempt_number, _suffix(err))

        reading.print(find_place)

    return command


def _worker_command(connect: Connect) -> click.Command:
    @click.command("worker")
    @click.argument("id", default="", metavar="[ID]")
    @click.option("--id", "id_option", default="", help="Id of the worker, or the beginning of one.")
    @click.option("-pid", "--pid", type=click.IntRange(1), help="Process id of the worker.")
    @NODE_ID
    @NODE_IP
    @ERR
    @_reading_options(connect)
    def command(reading: _Printing, id: str, id_option: str, pid: int | None, node_id: str, node_ip: str, err: bool) -> None:
        """Print what a worker has printed, whatever it was running."""
        digits = _one_id(id, id_option) if pid is None else ""
        _print_worker(reading, digits, pid or 0, node_id, node_ip, err)

    return command


def _print_worker(reading: _Printing, worker_id: str, pid: int, node_id: str, node_ip: str, err: bool) -> None:
    async def find_place(logs: ClusterLogs, reader: StateReader) -> LogPlace:
        digits = beginning_of_id(node_id) if node_id else ""
        return await logs.find(LogName(node_id=digits, node_ip=node_ip, worker_id=worker_id, pid=pid, suffix=_suffix(err)))

    reading.print(find_place)


def _job_command(connect: Connect) -> click.Command:
    @click.command("job")
    @click.argument("id", default="", metavar="[ID]")
    @click.option("--id", "id_option", default="", help="Id of the job (`minray list jobs`).")
    @ERR
    @_reading_options(connect)
    def command(reading: _Printing, id: str, id_option: str, err: bool) -> None:
        """Print what the workers of a job have printed, file by file. The driver's own output is where it was started."""
        job_id = _one_id(id, id_option)
        if reading.follow:
            raise click.UsageError("a job has a file for each worker: follow one of them with `minray logs worker`")
        with reading.client() as client:
            if len(job_id) != 2 * JOB_ID_BYTES:
                raise ValueError(f"{job_id} is not the id of a job, {2 * JOB_ID_BYTES} hexadecimal digits")
            for place in client.read(lambda reader: ClusterLogs(reader, reading.timeout).of_job(job_id, _suffix(err))):
                click.echo(f"--- {name_of(place.node)}: {place.file} ---", err=True)
                reading.print_place(client, place)

    return command
