"""``minray drain-node``: make a node leave, and perhaps wait until it has left.

Ray: drain_node in python/ray/scripts/scripts.py

    minray drain-node --reason=... --reason-message=...                    the node of this machine
    minray drain-node --node-id=... --reason=... --reason-message=...      any node of the cluster
    minray drain-node ... --deadline-remaining-seconds=540 --wait          returns when the node has left

The hook of a container that is about to end waits (docs/kubernetes.md): the container would end with the hook.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import click

from minray.cli.errors import errors_for_people
from minray.cli.state import which_cluster
from minray.common.ids import UNIQUE_ID_BYTES
from minray.node.cluster_client import ClusterClient
from minray.node.discovery import nodes_of, setting, started_nodes
from minray.protocol.gcs import IDLE_TERMINATION, PREEMPTION

DRAIN_REASONS = {"DRAIN_NODE_REASON_IDLE_TERMINATION": IDLE_TERMINATION, "DRAIN_NODE_REASON_PREEMPTION": PREEMPTION}
LOOK_AGAIN_S = 0.2
"""Seconds between two questions whether the node has left."""
LATE_S = 30.0
"""Seconds after its deadline within which a node must have left. After that waiting is an error."""


class NodeId(click.ParamType):  # type: ignore[type-arg]  # Generic in some versions only.
    """Type of an option that is a node's id in hexadecimal."""

    name = "node id"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> bytes:
        try:
            node_id = bytes.fromhex(value)
        except ValueError:
            node_id = b""
        if len(node_id) != UNIQUE_ID_BYTES:
            self.fail(f"{value!r} is not the id of a node, {2 * UNIQUE_ID_BYTES} hex digits (minray list nodes)", param, ctx)
        return node_id


def drain_command(client: Callable[[str | None, str | None], ClusterClient]) -> click.Command:
    """Make the command; ``client(address, token_file)`` makes a client of the cluster."""

    @click.command()
    @which_cluster
    @click.option("--node-id", type=NodeId(), help="Id of the node, in hexadecimal. Default: the node of this machine.")
    @click.option(
        "--reason",
        required=True,
        type=click.Choice(list(DRAIN_REASONS), case_sensitive=False),
        help="A node that is not idle refuses an idle termination; no node refuses a preemption.",
    )
    @click.option("--reason-message", required=True, help="Reason in words, for listings and errors.")
    @click.option(
        "--deadline-remaining-seconds",
        type=click.IntRange(1),
        help="Seconds until the node leaves anyway. Default: no limit.",
    )
    @click.option("--wait", is_flag=True, help="Return when the node has left.")
    def drain_node(
        address: str | None,
        token_file: str | None,
        node_id: bytes | None,
        reason: str,
        reason_message: str,
        deadline_remaining_seconds: int | None,
        wait: bool,
    ) -> None:
        """Make a node leave. It takes no new tasks, its running tasks may end, and its objects move to other nodes."""
        remaining_s = deadline_remaining_seconds or 0.0
        with errors_for_people(), client(address, token_file) as asked:
            chosen = node_id or _own_node(address)
            refusal = asked.drain_node(chosen, DRAIN_REASONS[reason.upper()], reason_message, remaining_s)
            if refusal:
                raise click.ClickException(f"The drain request is not accepted: {refusal}")
            if not wait:
                click.echo(f"Node {chosen.hex()} is draining, or has left the cluster.")
                return
            _wait_for_death(asked, chosen, remaining_s)
        click.echo(f"Node {chosen.hex()} has left the cluster.")

    return drain_node


def _own_node(address: str | None) -> bytes:
    """Return the id of this machine's only node of the cluster, but for a head. Raises RuntimeError if there are others."""
    address = address or setting("ADDRESS")
    here = nodes_of(address) if address and address != "auto" else started_nodes()
    found = [file.node_id for file in here if not file.is_head and not file.departure]
    if len(found) != 1:
        ids = f": {', '.join(found)}" if found else ""
        raise RuntimeError(f"{len(found)} nodes of this machine can be drained{ids}; name one with --node-id")
    return bytes.fromhex(found[0])


def _wait_for_death(client: ClusterClient, node_id: bytes, remaining_s: float) -> None:
    """Return when the gcs says that the node is dead; a gcs that is away for a while is asked again.

    Raises RuntimeError if the node is still there LATE_S after its deadline; ``remaining_s`` 0: it has none.
    """
    latest = time.monotonic() + remaining_s + LATE_S if remaining_s else float("inf")
    while True:
        try:
            with client.again() as asked:
                while not asked.is_node_dead(node_id):
                    _wait_a_little(node_id, latest, "it still runs")
            return
        except ConnectionError as error:
            _wait_a_little(node_id, latest, str(error))


def _wait_a_little(node_id: bytes, latest: float, trouble: str) -> None:
    if time.monotonic() > latest:
        raise RuntimeError(f"node {node_id.hex()} has not left {LATE_S:g} s after its deadline: {trouble}")
    time.sleep(LOOK_AGAIN_S)
