"""``minray timeline`` and ``stack``: activities of processes, read from outside of the cluster.

Ray: python/ray/scripts/scripts.py (timeline, stack)

    minray timeline -o trace.json      when each worker ran which tasks, for Perfetto and chrome://tracing
    minray stack                       the current stack of each thread and coroutine of each worker and driver

The commands ask each process, which answers even while user code runs. Standard error names each process that does not
answer in time.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from datetime import datetime

import click

from minray.cli.state import Connect, ask, cluster_options
from minray.observability.chrome_trace import trace_events, write_trace
from minray.observability.stack_text import stack_text
from minray.observability.state_reader import StateReader, describe_dropped


def process_commands(connect: Connect) -> list[click.Command]:
    return [_timeline_command(connect), _stack_command(connect)]


def _timeline_command(connect: Connect) -> click.Command:
    @click.command("timeline")
    @cluster_options
    @click.option("-o", "--output", metavar="FILE", help="Default: a new file in the temporary directory.")
    def command(address: str | None, token_file: str | None, timeout: float, output: str | None) -> None:
        """Write the tasks that the workers have run, with their times, as a trace for a browser."""
        profile = ask(connect, address, token_file, timeout, lambda reader: reader.profile(timeout))
        events = trace_events(profile.workers)
        try:
            path = output or _new_file(f"minray-timeline-{datetime.now():%Y-%m-%d_%H-%M-%S}-")
            write_trace(path, events)
        except OSError as error:
            raise click.ClickException(f"cannot write {output or error.filename}: {error.strerror}") from None
        tasks = sum(len(worker.events) for worker in profile.workers)
        click.echo(f"{tasks} tasks and calls of {len(profile.workers)} workers are written to {path}")
        click.echo("To look at it, open it at https://ui.perfetto.dev, or in Chrome at chrome://tracing.")
        _say_silent(profile.silent)
        if profile.dropped:
            click.echo(f"{describe_dropped(profile.dropped)}.", err=True)

    return command


def _new_file(prefix: str) -> str:
    """Make a new file that only this user can read, in the temporary directory that all users share.

    Its name is random, so that no other user can have made it before.
    """
    descriptor, path = tempfile.mkstemp(".json", prefix)
    os.close(descriptor)
    return path


def _stack_command(connect: Connect) -> click.Command:
    @click.command("stack")
    @cluster_options
    def command(address: str | None, token_file: str | None, timeout: float) -> None:
        """Show the current stack of every thread and coroutine of every worker and driver."""
        found = ask(connect, address, token_file, timeout, lambda reader: StateReader.stacks(reader, timeout))
        click.echo(stack_text(found))
        _say_silent(found.silent)

    return command


def _say_silent(names: Sequence[str]) -> None:
    for name in names:
        click.echo(f"{name} does not answer.", err=True)
