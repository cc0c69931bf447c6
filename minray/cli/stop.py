"""``minray stop``: end the nodes of this user on this machine that ``minray start`` has started, of one cluster or of all.

Ray: python/ray/scripts/scripts.py (stop), which ends all processes of all clusters

    minray stop                            end all of them, and forget the tables of all heads
    minray stop --address=127.0.0.1:6379   end those of one cluster

Nodes that have joined a cluster end first, then the heads. Clusters of programs (``init()``) are left alone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from contextlib import suppress

import click

from minray.cli.errors import errors_for_people
from minray.node.cluster_client import end_gracefully
from minray.node.discovery import (
    NodeFile,
    endpoint_of,
    forget_head,
    forget_heads,
    head_directory,
    nodes_of,
    session_token,
    started_nodes,
    sweep,
)
from minray.platform.process.session import live_sessions

END_S = 5.0
"""Seconds that a node has to end after SIGTERM before it is killed."""
POLL_S = 0.02
"""Seconds between two looks at whether a node has ended."""


@click.command()
@click.option("--force", is_flag=True, help="Kill the nodes at once, without letting them unregister.")
@click.option("--address", metavar="HOST:PORT", help="Address of the cluster whose nodes end. Default: all clusters.")
def stop(force: bool, address: str | None) -> None:
    """End the nodes of this user on this machine that `minray start` has started."""
    with errors_for_people():
        if address is None:
            nodes = started_nodes()
            _end(nodes, force)
            forget_heads()
        else:
            nodes = _nodes_at(address)
            _end(nodes, force)
            for head in {file.gcs_address for file in nodes if file.is_head} or {address}:
                forget_head(head)
    click.echo(f"Stopped {len(nodes)} node{'' if len(nodes) == 1 else 's'}." if nodes else "No node was running.")


def _nodes_at(address: str) -> list[NodeFile]:
    """Return the nodes of one cluster. Raises ConnectionError if neither a node nor the tables of its head are here."""
    endpoint_of(address)  # Raises ValueError for anything but an address.
    nodes = [file for file in nodes_of(address) if file.detached]
    if not nodes and not head_directory(address).exists():
        others = sorted({file.gcs_address for file in started_nodes()})
        running = f"; running here: {', '.join(others)}" if others else ""
        raise ConnectionError(f"`minray start` has started no node of a cluster at {address} on this machine{running}")
    return nodes


def _end(nodes: Sequence[NodeFile], force: bool) -> None:
    for file in sorted(nodes, key=lambda file: file.is_head):
        if not force:
            with suppress(RuntimeError):  # The token cannot be read; the node is ended all the same.
                end_gracefully(file, session_token(file.session_dir), "minray stop")
        _end_session(file.session_dir, signal.SIGKILL if force else signal.SIGTERM)
    sweep()


def _end_session(session_dir: str, first: signal.Signals) -> None:
    """Signal the zygote of a session; return when it has ended, and with it all other processes of the node.

    If ``first`` does not end it within END_S, it is killed. Raises RuntimeError if it does not end even then.
    """
    root = os.path.dirname(session_dir)
    for number in (first, signal.SIGKILL):
        zygote_pid = live_sessions(root).get(session_dir)
        if zygote_pid is None:
            return
        with suppress(ProcessLookupError):
            os.kill(zygote_pid, number)
        deadline = time.monotonic() + END_S
        while session_dir in live_sessions(root):
            if time.monotonic() > deadline:
                break
            time.sleep(POLL_S)
        else:
            return
    raise RuntimeError(f"the node of {session_dir} has not ended {END_S:g} s after SIGKILL")
