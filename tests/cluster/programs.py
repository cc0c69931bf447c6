"""Remote functions that tests of several nodes share."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import minray
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.helpers import wait_for_condition


def on(node_id: str, soft: bool = False) -> NodeAffinitySchedulingStrategy:
    return NodeAffinitySchedulingStrategy(node_id=node_id, soft=soft)


def states() -> dict[str, bool]:
    """Node id -> whether the gcs counts it as living."""
    return {node["NodeID"]: node["Alive"] for node in minray.nodes()}


def is_running(pid: int) -> bool:
    """Whether it is there and not a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


@minray.remote
def where() -> str:
    return minray.get_runtime_context().get_node_id()


@minray.remote
def where_all_meet(directory: str, count: int) -> str:
    """Ends when ``count`` of these tasks run at the same time."""
    Path(directory, f"{os.getpid()}").touch()
    wait_for_condition(lambda: len(os.listdir(directory)) >= count)
    return minray.get_runtime_context().get_node_id()


@minray.remote(max_retries=0)
def stay(path: str) -> None:
    """Write this worker's pid, and stay."""
    write_pid(path)
    signal.pause()


@minray.remote(max_retries=1)
def stay_at_first(path: str) -> str:
    """The first attempt says where it runs (and its pid beside), and stays; the second one returns where it runs."""
    here = minray.get_runtime_context().get_node_id()
    if Path(path).exists():
        return here
    write_pid(f"{path}.pid")
    write(path, here)
    signal.pause()
    return ""


@minray.remote
def hold(gate: str) -> None:
    """Ends when there is a file of that name."""
    wait_for_condition(Path(gate).exists)


@minray.remote
def hold_and_tell(gate: str) -> str:
    """Hold until the gate is open, and return the id of the node."""
    wait_for_condition(Path(gate).exists)
    return minray.get_runtime_context().get_node_id()


def write_pid(path: str) -> None:
    write(path, str(os.getpid()))


def write(path: str, text: str) -> None:
    """A reader finds all of it or no file."""
    Path(f"{path}.part").write_text(text)
    os.rename(f"{path}.part", path)


def read_pid(path: Path) -> int:
    wait_for_condition(path.exists)
    return int(path.read_text())
