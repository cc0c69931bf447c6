"""``minray debug``: lists the breakpoints at which tasks wait, and attaches the terminal to one.

Ray: the command debug in python/ray/scripts/scripts.py

    minray debug                   list the breakpoints, and ask which one to attach to
    minray debug 1f3c2a4b-1        attach to that one

Without an address the command looks into every cluster that has a node of this user on this machine, also those that
``minray.init()`` has started. A worker on another machine is listed. To attach to it, run the command there, because its
debugger listens on a unix socket.
"""

from __future__ import annotations

import sys
from datetime import datetime
from typing import NamedTuple

import click

from minray.cli.state import Connect, ask, cluster_options
from minray.common.ids import short
from minray.common.text_table import table
from minray.node.debugger_terminal import attach_terminal
from minray.node.discovery import find_nodes, setting
from minray.observability.state_reader import StateReader
from minray.platform.base import PlatformError
from minray.protocol.gcs import NodeInfo
from minray.protocol.state import Breakpoint

COLUMNS = ("NUMBER", "ID", "TASK", "WAITS AT", "ERROR", "NODE", "PID", "SINCE", "TERMINAL")


class Waiting(NamedTuple):
    """A breakpoint, and where its worker is."""

    at: Breakpoint
    node: NodeInfo
    pid: int
    is_here: bool
    """Whether the worker runs on this machine, under this user."""

    @property
    def node_text(self) -> str:
        name = self.node.name or short(self.node.node_id)
        return name if self.is_here else f"{name} ({self.node.ip})"


def debug_command(connect: Connect) -> click.Command:
    @click.command("debug")
    @click.argument("breakpoint_id", metavar="[ID]", default="")
    @click.option("--list", "only_list", is_flag=True, help="Only list the breakpoints, and attach to none.")
    @cluster_options
    def command(
        breakpoint_id: str, only_list: bool, address: str | None, token_file: str | None, timeout: float
    ) -> None:
        """List the breakpoints of tasks and actors, and attach this terminal to one.

        ID is that of a breakpoint, or the beginning of it. Without it the command asks for a number of the list.
        """
        waiting = _find(connect, address, token_file, timeout)
        if breakpoint_id:
            _attach(_choose(waiting, breakpoint_id))
            return
        click.echo("\n".join(list_text(waiting)))
        if waiting and not only_list and sys.stdin.isatty():
            number = click.prompt("\nAttach to number", default=1, type=click.IntRange(1, len(waiting)))
            _attach(waiting[number - 1])

    return command


def _find(connect: Connect, address: str | None, token_file: str | None, timeout: float) -> list[Waiting]:
    """Ask for all breakpoints, oldest first. Without an address, ask each cluster of this machine."""
    nodes = find_nodes()
    named = address or setting("ADDRESS")
    addresses = [named] if named and named != "auto" else list(dict.fromkeys(file.gcs_address for file in nodes))
    if not addresses:
        raise click.ClickException("no running cluster was found on this machine; name one with --address")
    here = {bytes.fromhex(file.node_id) for file in nodes}
    waiting, problems = [], []
    for one in addresses:
        try:
            found = ask(connect, one, token_file, timeout, lambda reader: StateReader.breakpoints(reader, timeout))
        except click.ClickException as problem:
            problems.append(problem)
            continue
        for process in found.processes:
            node = found.nodes[process.node_id]
            is_here = process.node_id in here
            waiting += [Waiting(at, node, process.pid, is_here) for at in process.breakpoints]
        for name in found.silent:
            click.echo(f"{name} does not answer.", err=True)
    if len(problems) == len(addresses):
        raise problems[0]
    for unreached in problems:
        click.echo(f"Warning: {unreached.message}", err=True)
    return sorted(waiting, key=lambda one: (one.at.since, one.at.id))


def list_text(waiting: list[Waiting]) -> list[str]:
    """Return the number of breakpoints and a table of them, as lines."""
    if not waiting:
        return ["No task waits in a debugger."]
    rows = [
        (
            str(number),
            one.at.id,
            one.at.task_name or "(a thread)",
            f"{one.at.function} ({one.at.filename}:{one.at.line})",
            one.at.error or "-",
            one.node_text,
            str(one.pid),
            f"{datetime.fromtimestamp(one.at.since):%H:%M:%S}",
            "attached" if one.at.is_attached else "-",
        )
        for number, one in enumerate(waiting, 1)
    ]
    return [f"{len(waiting)} breakpoint{'s' if len(waiting) > 1 else ''}", *table(COLUMNS, rows)]


def _choose(waiting: list[Waiting], beginning: str) -> Waiting:
    """Return the breakpoint whose id is this, or else begins so. Raises ClickException if there is not exactly one."""
    found = [one for one in waiting if one.at.id == beginning] or [one for one in waiting if one.at.id.startswith(beginning)]
    if len(found) == 1:
        return found[0]
    if found:
        raise click.ClickException(f"{len(found)} ids begin with {beginning}: {', '.join(one.at.id for one in found)}")
    raise click.ClickException(f"no task waits at a breakpoint whose id begins with {beginning}; see: minray debug --list")


def _attach(one: Waiting) -> None:
    """Attach the terminal until the session or the input ends. Raises ClickException if that is not possible."""
    name = one.at.task_name or "the thread"
    if not one.is_here:
        raise click.ClickException(
            f"process {one.pid} runs on node {one.node_text}, not on this machine under this user. A debugger never listens"
            f" on the network; log in there and run: minray debug {one.at.id}"
        )
    if one.at.is_attached:
        raise click.ClickException(f"another terminal is attached to {one.at.id}; leave it there with Ctrl-D")
    try:
        attach_terminal(one.at.endpoint, one.at.id, name, one.pid)
    except PlatformError as error:
        raise click.ClickException(f"cannot attach to {one.at.id}: {error}") from None
    except KeyboardInterrupt:
        pass  # The terminal is left, as with Ctrl-D.
