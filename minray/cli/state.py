"""``minray list``, ``minray get``, ``minray summary``: state tables of a cluster, read from outside of it.

Ray: python/ray/util/state/state_cli.py

    minray list actors --filter state=ALIVE --limit 20
    minray list tasks --format json                short ids are those of a table alone
    minray get actors ID
    minray summary tasks

The commands ask what the functions of ``minray.util.state`` ask. At the end, standard error names each process that does
not answer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import Any, TypeVar

import click

from minray.cli.output import FORMAT, formatted
from minray.cli.tls import tls_options
from minray.common.shown import cut
from minray.common.text_table import fitted, short_ids, table
from minray.node.cluster_client import ClusterClient
from minray.observability.state_reader import StateReader
from minray.platform.base import PlatformError
from minray.util.state import filters as choosing
from minray.util.state.api import DEFAULT_LIMIT, MAX_LIMIT
from minray.util.state.common import ActorSummaries, ObjectSummaries, TaskSummaries
from minray.util.state.rows import KINDS, Kind, Listing, beginning_of_id, find

T = TypeVar("T")
TIMEOUT_S = 5.0
"""Default number of seconds that each process has to answer."""
LISTED = {"objects": "references to objects"}
"""Noun for the rows of a listing, where it differs from the listing's name."""
NEEDED = (
    "NAME", "CLASS_NAME", "NODE_NAME", "STATE", "STATUS", "TYPE", "PID", "WORKER_PID", "IS_ALIVE", "WORKER_TYPE",
    "DRIVER_INFO",
)  # fmt: skip
"""Columns that a table never leaves out, beside the id."""
FORMATS = "--format json"
"""Option with which ``summary`` leaves out nothing."""
SumUp = Callable[[list[Any]], tuple[Any, Callable[[], list[str]]]]
"""Function that sums up rows: the sums, a dataclass, and a function that makes a text of them."""
Connect = Callable[[str | None, str | None], ClusterClient]
"""Function that makes a client from an address and the path of a token file, either of which may be None."""


def state_commands(connect: Connect) -> list[click.Command]:
    """Make the groups of commands ``list``, ``get`` and ``summary``."""
    listing = click.Group("list", help="List the actors, tasks, objects, nodes, ... of a cluster.")
    getting = click.Group("get", help="Show all columns of a row, by its id or the beginning of it.")
    summing = click.Group("summary", help="Count actors, tasks or objects.")
    for name, kind in KINDS.items():
        listing.add_command(_list_command(name, kind, connect))
        getting.add_command(_get_command(name, kind, connect))
    for name, sum_up in SUMMARIES.items():
        summing.add_command(_summary_command(name, sum_up, connect))
    return [listing, getting, summing]


def _check_timeout(_context: click.Context, _parameter: click.Parameter, timeout: float) -> float:
    if not math.isfinite(timeout):
        raise click.BadParameter(f"timeout must be a finite number of seconds, got {timeout}.")
    return timeout


def which_cluster(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a cluster."""
    token_file = click.option(
        "--token-file",
        metavar="FILE",
        help="File with the cluster's token. Default: that of its node here, else $MINRAY_TOKEN.",
    )
    address = click.option(
        "--address",
        metavar="HOST:PORT",
        help="Address of the cluster. Default: $MINRAY_ADDRESS, else the newest started here.",
    )
    return address(token_file(tls_options(command)))


def cluster_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options that name a cluster, and the seconds to wait for each of its processes."""
    timeout = click.option(
        "--timeout",
        type=click.FloatRange(0.001),
        callback=_check_timeout,
        default=TIMEOUT_S,
        show_default=True,
        help="Seconds that each process has to answer.",
    )
    return which_cluster(timeout(command))


def ask(
    connect: Connect,
    address: str | None,
    token_file: str | None,
    timeout: float,
    question: Callable[[StateReader], Coroutine[Any, Any, T]],
) -> T:
    """Ask the processes of a cluster, and return the answers. Raises ClickException, which click prints in one line."""
    try:
        with connect(address, token_file) as client:
            return client.read(question)
    except TimeoutError:
        raise click.ClickException(f"the gcs does not answer within {timeout:g} s") from None
    except (RuntimeError, ConnectionError, PlatformError, ValueError) as error:
        raise click.ClickException(str(error)) from None


def _list_command(name: str, kind: Kind, connect: Connect) -> click.Command:
    @click.command(name, help=f"List the {name} of a cluster.")
    @cluster_options
    @click.option(
        "-f",
        "--filter",
        "filters",
        multiple=True,
        metavar="KEY=VALUE",
        help="Show only rows with this value; KEY!=VALUE for rows without it. All filters must hold.",
    )
    @click.option("--limit", type=click.IntRange(1, MAX_LIMIT), default=DEFAULT_LIMIT, show_default=True)
    @click.option("--detail", is_flag=True, help="Show all columns and whole ids, however wide.")
    @FORMAT
    def command(
        address: str | None,
        token_file: str | None,
        timeout: float,
        filters: tuple[str, ...],
        limit: int,
        detail: bool,
        form: str,
    ) -> None:
        try:
            wanted = [choosing.parse(text) for text in filters]
            choosing.check(kind.state, wanted)
        except ValueError as error:
            raise click.ClickException(str(error)) from None
        listing = ask(connect, address, token_file, timeout, lambda reader: kind.read(reader, timeout, None))
        rows = choosing.matching(listing.rows, wanted, len(listing.rows))
        if form != "table":
            click.echo(formatted(form, [asdict(row) for row in rows[:limit]]))
        else:
            ids = [] if detail else [kind.id_of(row) for row in listing.rows]
            click.echo("\n".join(list_text(name, rows, limit, kind.state.columns(detail), ids)))
        _say_missing(listing)

    return command


def list_text(name: str, rows: list[Any], limit: int, columns: list[str], ids: Sequence[str] = ()) -> list[str]:
    """Return the number of rows, and a table of the first ``limit`` rows, as lines.

    With ``ids``, those of all rows, the table has short ids and fits the usual width.
    """
    shown = rows[:limit]
    more = f", {limit} shown" if len(rows) > limit else ""
    head = f"{len(rows)} {LISTED.get(name, name)}{more}"
    cells = [[_in_one_line(_cell(getattr(row, column))) for column in columns] for row in shown]
    header = tuple(column.upper() for column in columns)
    if not ids:
        return [head, *table(header, [tuple(row) for row in cells])]
    for index, column in enumerate(columns):
        if column.endswith("_id"):
            short = short_ids(ids if index == 0 else [row[index] for row in cells])
            for row in cells:
                row[index] = short[row[index]]
    return [head, *fitted(header, [tuple(row) for row in cells], (header[0], *NEEDED), whole=(header[0], "DRIVER_INFO"))]


def _get_command(name: str, kind: Kind, connect: Connect) -> click.Command:
    @click.command(name, help=f"Show one of the {name}, by its id or the beginning of it.")
    @click.argument("id")
    @cluster_options
    @FORMAT
    def command(id: str, address: str | None, token_file: str | None, timeout: float, form: str) -> None:
        try:
            digits = beginning_of_id(id)
        except ValueError as error:
            raise click.ClickException(str(error)) from None
        listing = ask(connect, address, token_file, timeout, lambda reader: find(kind, reader, timeout, digits))
        _say_missing(listing)
        if not listing.rows:
            raise click.ClickException(f"none of the {name} has an id that begins with {id}")
        if form != "table":
            facts = [asdict(row) for row in listing.rows]
            click.echo(formatted(form, facts if name in LISTED else facts[0]))
            return
        for row in listing.rows:
            click.echo("\n".join(f"{key}: {_cell(value)}" for key, value in asdict(row).items()))

    return command


def _summary_command(name: str, sum_up: SumUp, connect: Connect) -> click.Command:
    @click.command(name, help=f"Count the {name} of a cluster.")
    @cluster_options
    @FORMAT
    def command(address: str | None, token_file: str | None, timeout: float, form: str) -> None:
        listing = ask(connect, address, token_file, timeout, lambda reader: KINDS[name].read(reader, timeout, None))
        sums, text_of = sum_up(listing.rows)
        click.echo("\n".join(text_of()) if form == "table" else formatted(form, asdict(sums)))
        _say_missing(listing)

    return command


def _actors(rows: list[Any]) -> tuple[Any, Callable[[], list[str]]]:
    sums = ActorSummaries.to_summary(actors=rows)
    return sums, lambda: _text_of_actors(sums)


def _text_of_actors(sums: ActorSummaries) -> list[str]:
    lines = [(one.class_name, _counts(one.state_counts)) for one in sums.summary.values()]
    return [f"{sums.total_actors} actors", *fitted(("CLASS", "STATES"), lines, ("CLASS", "STATES"), all_columns=FORMATS)]


def _tasks(rows: list[Any]) -> tuple[Any, Callable[[], list[str]]]:
    sums = TaskSummaries.to_summary(tasks=rows)
    return sums, lambda: _text_of_tasks(sums)


def _text_of_tasks(sums: TaskSummaries) -> list[str]:
    lines = [(one.func_or_class_name, one.type, _counts(one.state_counts)) for one in sums.summary.values()]
    head = f"{sums.total_tasks} tasks, {sums.total_actor_tasks} actor tasks, {sums.total_actor_scheduled} actors created"
    header = ("FUNCTION OR CLASS", "TYPE", "STATES")
    return [head, *fitted(header, lines, ("FUNCTION OR CLASS", "STATES"), all_columns=FORMATS)]


def _objects(rows: list[Any]) -> tuple[Any, Callable[[], list[str]]]:
    sums = ObjectSummaries.to_summary(objects=rows)
    return sums, lambda: _text_of_objects(sums)


def _text_of_objects(sums: ObjectSummaries) -> list[str]:
    lines = [
        (str(one.total_objects), f"{one.total_size_mb:.3f} MB", _counts(one.ref_type_counts), site)
        for site, one in sums.summary.items()
    ]
    head = f"{sums.total_objects} references to {sums.total_size_mb:.3f} MB"
    return [head, *fitted(("REFERENCES", "SIZE", "KINDS", "CALL SITE"), lines, ("CALL SITE",), all_columns=FORMATS)]


SUMMARIES = {"actors": _actors, "tasks": _tasks, "objects": _objects}


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{name}: {count}" for name, count in sorted(counts.items()))


def _in_one_line(text: str) -> str:
    """Return the last line of a text, which of an error is the exception itself, and only its beginning if it is long."""
    return cut(text.rstrip("\n").rpartition("\n")[2])


def _cell(value: Any) -> str:
    if isinstance(value, list):
        return "; ".join(map(_cell, value))
    if isinstance(value, dict):
        return ", ".join(f"{key}: {_cell(inner)}" for key, inner in value.items())
    if isinstance(value, float):
        return f"{value:g}"
    return "" if value is None else str(value)


def _say_missing(listing: Listing) -> None:
    for text in (listing.missing, listing.dropped):
        if text:
            click.echo(f"{text}.", err=True)
