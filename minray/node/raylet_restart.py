"""The raylet of a ``minray start --head`` node is started again when it has crashed: what a second raylet does differently.

Ray: no counterpart; Ray's head node does not survive its raylet

The gcs lives on when the raylet beside it is killed, and so do the other nodes. Without a raylet no program on the head's
machine could join the cluster, so the zygote forks the raylet again (``respawn``) unless it ended in order.

Rules
  * Each raylet is a node of its own, with a new id: the gcs never takes back a node that it has declared dead.
  * A second raylet knows itself by the node's file, which the first one does not find. It writes its id there before it
    listens. So a program that reads the file and reaches another raylet is refused, and reads again.
  * Sockets and spill files of the former raylet are removed. Its external spill files stay: only it knew them.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import msgspec

from minray.common.config import RayletConfig
from minray.common.ids import UNIQUE_ID_BYTES, short
from minray.node.discovery import NodeFile, read_node_file, write_node_file
from minray.platform.base import PlatformError
from minray.platform.process.session import SOCKETS, renew_spill_directories
from minray.platform.storage.external_storage import is_external
from minray.platform.transport.endpoints import UnixEndpoint, is_listening, make_room

RESTART_S = 10.0
"""Seconds that a program waits for the raylet of its node to come back: more than the zygote's longest pause."""
POLL_S = 0.05
"""Seconds between two looks at whether a raylet listens."""
SETTLED_S = 0.05
"""Seconds after which a socket that still refuses is removed: one that was just made has a listener in microseconds."""
logger = logging.getLogger(__name__)


def next_life(config: RayletConfig, random_bytes: Callable[[int], bytes]) -> RayletConfig:
    """Return the config for this life of a raylet: the given one for the first, one with a new node id for each later.

    Raises OSError if the directories of a later life cannot be made.
    """
    file = read_node_file(config.session_dir)
    if file is None:
        return config
    node_id = random_bytes(UNIQUE_ID_BYTES)
    logger.warning("the raylet of node %s has ended; it is started again as node %s", file.node_id[:8], short(node_id))
    _remove_dead_sockets(Path(config.session_dir, SOCKETS))
    places = [f"{place}_{short(node_id)}" if is_external(place) else place for place in config.spill_directories]
    renew_spill_directories(config.session_dir, places)
    write_node_file(msgspec.structs.replace(file, node_id=node_id.hex()))
    return msgspec.structs.replace(config, node_id=node_id, spill_directories=places)


def note_departure(config: RayletConfig, reason: str) -> None:
    """Note in the node's file, if there is one, that its raylet has ended in order and will not come back."""
    file = read_node_file(config.session_dir)
    if file is not None:
        with suppress(OSError):
            write_node_file(msgspec.structs.replace(file, departure=reason))


def _remove_dead_sockets(directory: Path) -> None:
    """Remove the sockets on which no process listens any more, nor begins to listen."""
    dead = [path for path in directory.iterdir() if not is_listening(f"unix:{path}")]
    time.sleep(SETTLED_S)
    for path in dead:
        with suppress(OSError, PlatformError):
            make_room(UnixEndpoint(str(path)))


def when_listening(file: NodeFile) -> NodeFile:
    """Return the file of a node as soon as its raylet listens, at once if it is not one that is started again.

    Raises ConnectionError if the raylet does not come back, or has left the cluster.
    """
    deadline = time.monotonic() + RESTART_S
    while file.restarts and not is_listening(file.raylet_endpoint):
        if file.departure:
            raise ConnectionError(_describe(file, f"has left the cluster ({file.departure})"))
        if time.monotonic() > deadline:
            raise ConnectionError(_describe(file, f"has ended and has not come back within {RESTART_S:g} s"))
        time.sleep(POLL_S)
        file = read_node_file(file.session_dir) or file
    return file


def successor_of(file: NodeFile) -> NodeFile | None:
    """Return the file of the node that has taken a node's place, also one that is just starting; None if there is none."""
    deadline = time.monotonic() + RESTART_S
    while True:
        newer = read_node_file(file.session_dir)
        if newer is None or newer.node_id != file.node_id:
            return newer
        is_there = newer.departure or is_listening(file.raylet_endpoint)
        if not file.restarts or is_there or time.monotonic() > deadline:
            return None
        time.sleep(POLL_S)


def _describe(file: NodeFile, what: str) -> str:
    log = os.path.join(file.session_dir, "logs", "raylet.log")
    return (
        f"cannot join the cluster at {file.gcs_address}: the raylet of its head node {what}, see {log}. Add a node on this"
        f" machine with: minray start --address={file.gcs_address}. Or end the cluster with: minray stop"
        f" --address={file.gcs_address}"
    )
