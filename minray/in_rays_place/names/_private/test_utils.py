"""Waits, programs and actors for tests, under the name that older programs import, and a few more.

Ray: python/ray/_private/test_utils.py

Helpers that look into Ray's processes (metrics, Redis, logs of the raylet) are left out.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import Any

import psutil

from minray.actor import ActorHandle, kill
from minray.api.calls import get
from minray.cluster_utils import Cluster, ClusterNode
from minray.exceptions import RayActorError
from minray.in_rays_place.names._common.test_utils import (
    Semaphore,
    SignalActor,
    async_wait_for_condition,
    run_string_as_driver,
    wait_for_condition,
)

__all__ = ["Semaphore", "SignalActor", "async_wait_for_condition", "run_string_as_driver", "wait_for_condition"]


def wait_for_pid_to_exit(pid: int, timeout: float = 20) -> None:
    """Wait until no such process runs. Raises RuntimeError after ``timeout`` seconds."""

    def has_exited() -> bool:
        try:
            return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True

    wait_for_condition(has_exited, timeout)


def wait_until_succeeded_without_exception(
    func: Callable[..., Any],
    exceptions: type[Exception] | tuple[type[Exception], ...],
    *args: Any,
    timeout_ms: float = 1000,
    retry_interval_ms: float = 100,
    raise_last_ex: bool = False,
) -> bool:
    """Call a function until it does not raise one of these exceptions. Return whether that happened in time."""
    deadline, last = time.monotonic() + timeout_ms / 1000, None
    while time.monotonic() <= deadline:
        try:
            func(*args)
            return True
        except exceptions as error:
            last = error
            time.sleep(retry_interval_ms / 1000)
    if raise_last_ex and last is not None:
        raise last
    return False


def wait_for_assertion(
    assertion_predictor: Callable[..., Any], timeout: float = 10, retry_interval_ms: float = 100, **kwargs: Any
) -> None:
    """Call a function until it raises no AssertionError. Raises its last one after ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            assertion_predictor(**kwargs)
            return
        except AssertionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(retry_interval_ms / 1000)


def kill_actor_and_wait_for_failure(actor: ActorHandle[Any], timeout: float = 10, retry_interval_ms: float = 100) -> None:
    """Kill an actor, which is not restarted, and wait until its calls fail. Raises RuntimeError after ``timeout``."""
    kill(actor)

    def is_dead() -> bool:
        try:
            get(actor.__ray_ready__.remote())
        except RayActorError:
            return True
        return False

    wait_for_condition(is_dead, timeout, retry_interval_ms)


def get_other_nodes(cluster: Cluster, exclude_head: bool = False) -> list[ClusterNode]:
    """Return the nodes of a cluster without the one to which this driver is connected, which is the head."""
    return [node for node in cluster.list_all_nodes() if node is not cluster.head_node]


def same_elements(elems_a: Iterable[Any], elems_b: Iterable[Any]) -> bool:
    """Tell whether two collections have equal elements, in any order; elements need not be hashable."""
    first, second = list(elems_a), list(elems_b)
    return len(first) == len(second) and all(first.count(item) == second.count(item) for item in first)
