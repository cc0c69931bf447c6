"""``minray dashboard``: a web page about a running cluster, served in the foreground.

Ray: python/ray/scripts/scripts.py (dashboard, which only forwards a port)

    minray dashboard                                  the newest cluster started here, at http://127.0.0.1:8265
    minray dashboard --address=10.0.0.1:23456         a cluster on other machines
    minray dashboard --host=10.0.0.1 --port=9000      for other machines
    minray dashboard --tls-cert=node.crt --tls-key=node.key          with HTTPS
    minray dashboard --allow-control                  a page that can also cancel, kill and drain

It prints the address for the first visit, which sets a cookie. The address has the dashboard's token, never the cluster's.
If the head is killed and started again, the dashboard finds it again.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from minray.cli.errors import errors_for_people
from minray.cli.state import which_cluster
from minray.cli.tls import take_web_files
from minray.dashboard.access import warning_of
from minray.dashboard.connection import Target
from minray.dashboard.process import DEFAULT_HOST, DEFAULT_PORT, Listening, check_installed, serve_in_foreground
from minray.platform.process.host import RealHost
from minray.platform.transport.web_tls import web_files_of

if TYPE_CHECKING:
    from minray.dashboard.server import DashboardServer  # which needs aiohttp

Locate = Callable[[str | None, str | None], Target]
"""Function that finds a cluster, by an address and the path of a token file, either of which may be None."""


def dashboard_command(locate: Locate) -> click.Command:
    """Make the command."""

    @click.command("dashboard")
    @which_cluster
    @click.option("--host", default=DEFAULT_HOST, show_default=True, help="Address at which the dashboard listens.")
    @click.option(
        "--port",
        type=click.IntRange(0, 65535),
        help=f"TCP port; 0 means any free one. Default: {DEFAULT_PORT}, or the next free one.",
    )
    @click.option("--allow-control", is_flag=True, help="Let visitors cancel tasks, kill actors and drain nodes.")
    def command(address: str | None, token_file: str | None, host: str, port: int | None, allow_control: bool) -> None:
        """Serve a web page about a cluster, until it is interrupted."""
        with errors_for_people():
            check_installed()
            own_files = take_web_files()
            target = locate(address, token_file)
            listening = Listening(host, port, allow_control, own_files or web_files_of(target.system_config))
            again = partial(locate, target.address, token_file)
            _run(serve_in_foreground(target, again, listening, RealHost(), _announce))

    return command


def _run(main: Coroutine[Any, Any, None]) -> None:
    try:
        import uvloop
    except ImportError:
        asyncio.run(main)
    else:
        uvloop.run(main)


def _announce(server: DashboardServer) -> None:
    click.echo(f"The dashboard of the cluster at {server.state.connection.target.address} is at\n")
    click.echo(f"    {server.url()}\n")
    click.echo(
        "Open it once with the token; the browser keeps that as a cookie. Ctrl-C ends the dashboard, not the cluster."
    )
    if server.allow_control:
        click.echo("Visitors can cancel tasks, kill actors and drain nodes (--allow-control).")
    if not server.is_encrypted and (warning := warning_of(server.host)):
        click.echo(warning)
    sys.stdout.flush()  # A program that reads this through a pipe waits for the address.
