"""``minray start --block``: wait until the node ends, or until a signal asks for its end.

Ray: the loop at the end of start in python/ray/scripts/scripts.py

    SIGINT                              the node ends at once: its workers are killed
    SIGTERM                             the same
    SIGTERM and --drain-on-sigterm=60   the node is drained: it takes nothing new, its tasks may end within 60 s, and its
                                        objects move to other nodes; a second signal ends it at once

A container runs a node like this, as its first process. Kubernetes sends SIGTERM to it, and SIGKILL after the pod's grace
period (docs/kubernetes.md).

Rules
  * Signals are taken before the node starts: the kernel drops those that a container's first process has no handler for.
  * A head is not drained, because the cluster's tables are there. It ends at once, and what is in ``--storage`` stays.
  * If the gcs does not answer it is asked again, until the time of the drain is up.
"""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from minray.node.cluster_client import ClusterClient, end_gracefully
from minray.node.discovery import forget_head
from minray.node.node import Node
from minray.protocol.gcs import PREEMPTION

ASK_AGAIN_S = 1.0
"""Seconds between two attempts to ask the gcs for a drain."""
LEAVE_S = 5.0
"""Seconds that a node has for leaving after its deadline."""


class _Asked(SystemExit):
    """A signal has asked for the end of the node. The exit code is 0."""

    def __init__(self, number: int) -> None:
        super().__init__(0)
        self.number = number


def take_signals() -> None:
    """From now on SIGINT and SIGTERM raise SystemExit in the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, _on_signal)


def _on_signal(number: int, frame: Any) -> None:
    raise _Asked(number)


def wait_for_end(node: Node, drain_s: float, announce: Callable[[], None]) -> None:
    """Announce the node. Wait until it ends by itself, or a signal asks for its end; then end it, and this process.

    ``drain_s`` is the time for a drain after SIGTERM; 0: the node ends at once.
    """
    failed = False
    try:
        try:
            announce()
            while not node.zygote.ended:
                failed |= _some_failed(node, 1.0)
        except _Asked as asked:
            if asked.number == signal.SIGTERM and drain_s and not node.file.is_head:
                _drain(node, drain_s)
            raise
    except _Asked:
        end_gracefully(node.file, node.token, "minray start --block was ended")
        if node.file.is_head:
            forget_head(node.file.gcs_address)
        raise
    finally:
        node.close()
    click.echo(f"The node has ended; its logs are in {node.file.session_dir}/logs.", err=True)
    sys.exit(int(failed))


def _some_failed(node: Node, timeout_s: float) -> bool:
    """Wait for the next end of a process of the node, at most ``timeout_s``; return whether one has failed."""
    return any(end.status.code != 0 for end in node.zygote.poll_exits(timeout_s))


def _drain(node: Node, drain_s: float) -> None:
    """Drain the node; return when it has left, or its time is up, or it cannot be drained."""
    deadline = time.monotonic() + drain_s
    click.echo(f"Draining the node, for at most {drain_s:g} s.", err=True)
    while not node.zygote.ended and (left_s := deadline - time.monotonic()) > 0:
        refusal = _ask_for_drain(node, left_s)
        if refusal is None:
            _some_failed(node, ASK_AGAIN_S)
        elif refusal:
            click.echo(f"The node cannot be drained, and ends now: {refusal}", err=True)
            return
        else:
            break
    while not node.zygote.ended and time.monotonic() < deadline + LEAVE_S:
        _some_failed(node, ASK_AGAIN_S)


def _ask_for_drain(node: Node, left_s: float) -> str | None:
    """Ask the gcs to drain the node; return "" if it does, its reason if it refuses, None if it does not answer."""
    file = node.file
    try:
        with ClusterClient(file.gcs_endpoint, node.token, file.system_config, file.gcs_address) as client:
            return client.drain_node(bytes.fromhex(file.node_id), PREEMPTION, "its machine is taken away (SIGTERM)", left_s)
    except ConnectionError:
        return None
