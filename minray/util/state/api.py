"""The state functions: list, get and summarize the actors, tasks, objects and so on of this process's cluster.

Ray: python/ray/util/state/api.py

Each function asks all processes that have a part of the answer. A process returns at most ten thousand rows: its largest
objects and its newest tasks. On the command line ``minray list``, ``minray get`` and ``minray summary`` do the same, also
from outside of the cluster.

All functions take the same arguments. ``address``: None or "auto", for this process's cluster. ``filters``: only rows for
which all filters hold, such as ``("state", "=", "ALIVE")``. ``limit``: the largest number of rows, from 1 to 10,000.
``timeout``: seconds that each process may take. ``detail`` has no effect, since rows have all fields.

A RuntimeWarning says how many tasks of ended processes the gcs has dropped, because it keeps a limited number.

They raise ValueError for a wrong address, filter, limit or id, and RayStateApiException if this process is not connected or
the gcs does not answer in time. With ``raise_on_missing_output`` they also raise RayStateApiException if rows are missing,
because a process does not answer in time or has more than ten thousand.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar

from minray.api.calls import check_timeout, connected_api, state_reader
from minray.exceptions import RaySystemError
from minray.util.state import filters as choosing
from minray.util.state.common import (
    ActorState,
    ActorSummaries,
    JobState,
    NodeState,
    ObjectState,
    ObjectSummaries,
    PlacementGroupState,
    TaskState,
    TaskSummaries,
    WorkerState,
)
from minray.util.state.exception import RayStateApiException
from minray.util.state.filters import Filter
from minray.util.state.rows import KINDS, Listing, plain_id

if TYPE_CHECKING:
    from minray.observability.state_reader import StateReader

DEFAULT_LIMIT = 100
MAX_LIMIT = 10_000
DEFAULT_TIMEOUT_S = 30

Filters = Sequence[Filter] | None
S = TypeVar("S")
T = TypeVar("T")


def list_actors(
    address: str | None = None,
    filters: Filters = None,
    limit: int = DEFAULT_LIMIT,
    timeout: float = DEFAULT_TIMEOUT_S,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[ActorState]:
    """Return the actors, newest first: all living ones, and the last thousand dead ones."""
    return _list("actors", address, filters, limit, timeout, raise_on_missing_output)


def list_tasks(
    address: str | None = None,
    filters: Filters = None,
    limit: int = DEFAULT_LIMIT,
    timeout: float = DEFAULT_TIMEOUT_S,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[TaskState]:
    """Return the tasks, for each submitting process: all unfinished ones, and the last thousand finished ones.

    The gcs keeps what ended processes knew: the failed tasks that they had submitted, with their errors, and the last ten
    thousand tasks that each worker had run.
    """
    return _list("tasks", address, filters, limit, timeout, raise_on_missing_output)


def list_objects(
    address: str | None = None,
    filters: Filters = None,
    limit: int = DEFAULT_LIMIT,
    timeout: float = DEFAULT_TIMEOUT_S,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[ObjectState]:
    """Return the objects to which processes refer, largest first, with a row for each process and object."""
    return _list("objects", address, filters, limit, timeout, raise_on_missing_output)


def list_nodes(
    address: str | None = None,
    filters: Filters = None,
    limit: int = DEFAULT_LIMIT,
    timeout: float = DEFAULT_TIMEOUT_S,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[NodeState]:
    """Return all nodes, also those that have left the cluster."""
    return _list("nodes", address, filters, limit, timeout, raise_on_missing_output)


def list_workers(
    address: str | None = None,
    filters: Filters = None,
    limit: int = DEFAULT_LIMIT,
    timeout: float = DEFAULT_TIMEOUT_S,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[WorkerState]:
    """Return the living drivers and workers, and those that have died lately."""
    return _list("workers", address, filters, limit, timeout, raise_on_missing_output)


def list_jobs(
    address: str | None = None,
    filters: Filters = None,
    limit: int = DEFAULT_LIMIT,
    timeout: float = DEFAULT_TIMEOUT_S,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[JobState]:
    """Return the jobs: drivers that are connected, and those that were."""
    return _list("jobs", address, filters, limit, timeout, raise_on_missing_output)


def list_placement_groups(
    address: str | None = None,
    filters: Filters = None,
    limit: int = DEFAULT_LIMIT,
    timeout: float = DEFAULT_TIMEOUT_S,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[PlacementGroupState]:
    """Return the placement groups that the gcs remembers, removed ones too."""
    return _list("placement-groups", address, filters, limit, timeout, raise_on_missing_output)


def get_actor(
    id: str, address: str | None = None, timeout: float = DEFAULT_TIMEOUT_S, _explain: bool = False
) -> ActorState | None:
    """Return the actor with this id (hex); None if there is none."""
    return _get("actors", ActorState, id, address, timeout)


def get_task(
    id: str, address: str | None = None, timeout: float = DEFAULT_TIMEOUT_S, _explain: bool = False
) -> TaskState | None:
    """Return the task with this id (hex), in its current attempt; None if it is unknown or forgotten."""
    return _get("tasks", TaskState, id, address, timeout)


def get_node(
    id: str, address: str | None = None, timeout: float = DEFAULT_TIMEOUT_S, _explain: bool = False
) -> NodeState | None:
    """Return the node with this id (hex); None if there is none."""
    return _get("nodes", NodeState, id, address, timeout)


def get_worker(
    id: str, address: str | None = None, timeout: float = DEFAULT_TIMEOUT_S, _explain: bool = False
) -> WorkerState | None:
    """Return the worker or driver with this id (hex); None if it is unknown or forgotten."""
    return _get("workers", WorkerState, id, address, timeout)


def get_job(
    id: str, address: str | None = None, timeout: float = DEFAULT_TIMEOUT_S, _explain: bool = False
) -> JobState | None:
    """Return the job with this id (hex); None if there is none."""
    return _get("jobs", JobState, id, address, timeout)


def get_placement_group(
    id: str, address: str | None = None, timeout: float = DEFAULT_TIMEOUT_S, _explain: bool = False
) -> PlacementGroupState | None:
    """Return the placement group with this id (hex); None if there is none."""
    return _get("placement-groups", PlacementGroupState, id, address, timeout)


def get_objects(
    id: str, address: str | None = None, timeout: float = DEFAULT_TIMEOUT_S, _explain: bool = False
) -> list[ObjectState]:
    """Return a row for each process that refers to the object with this id (hex); an empty list if there is none."""
    return _read("objects", address, timeout, _checked(id)).rows


def summarize_actors(
    address: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> dict[str, Any]:
    """Return the numbers of actors by class and state: ``{"cluster": ...}`` with an ``ActorSummaries`` as a dict."""
    rows = _complete("actors", address, timeout, raise_on_missing_output)
    return {"cluster": asdict(ActorSummaries.to_summary(actors=rows))}


def summarize_tasks(
    address: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> dict[str, Any]:
    """Return the numbers of tasks by name and state: ``{"cluster": ...}`` with a ``TaskSummaries`` as a dict."""
    rows = _complete("tasks", address, timeout, raise_on_missing_output)
    return {"cluster": asdict(TaskSummaries.to_summary(tasks=rows))}


def summarize_objects(
    address: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> dict[str, Any]:
    """Return numbers and sizes of references by the line of the program that made them: ``{"cluster": ...}`` with an
    ``ObjectSummaries`` as a dict."""
    rows = _complete("objects", address, timeout, raise_on_missing_output)
    return {"cluster": asdict(ObjectSummaries.to_summary(objects=rows))}


def _list(
    kind: str, address: str | None, filters: Filters, limit: int, timeout: float, raise_on_missing_output: bool
) -> list[Any]:
    if not isinstance(limit, int):
        raise TypeError(f"limit must be an int, not {type(limit).__name__}")
    if not 0 < limit <= MAX_LIMIT:
        raise ValueError(f"limit must be from 1 to {MAX_LIMIT}, not {limit}")
    choosing.check(KINDS[kind].state, filters)
    return choosing.matching(_complete(kind, address, timeout, raise_on_missing_output), filters, limit)


def _complete(kind: str, address: str | None, timeout: float, raise_on_missing_output: bool) -> list[Any]:
    listing = _read(kind, address, timeout, None)
    if raise_on_missing_output and listing.missing:
        raise RayStateApiException(listing.missing)
    if listing.dropped:
        warnings.warn(listing.dropped, RuntimeWarning, stacklevel=4)
    return listing.rows


def _get(kind: str, state: type[S], id: str, address: str | None, timeout: float) -> S | None:
    rows: list[S] = _read(kind, address, timeout, _checked(id)).rows
    return rows[0] if rows else None


def _checked(id: str) -> str:
    if not isinstance(id, str):
        raise TypeError(f"an id is a str of hexadecimal digits, not {type(id).__name__}")
    return id


def _read(kind: str, address: str | None, timeout: float, id: str | None) -> Listing:
    digits = None if id is None else plain_id(id)
    return ask(address, timeout, lambda reader: KINDS[kind].read(reader, timeout, digits))


def ask(address: str | None, timeout: float, question: Callable[[StateReader], Coroutine[Any, Any, T]]) -> T:
    """Ask the processes of this process's cluster. ``address`` and ``timeout``: as for all functions of this file."""
    if address not in (None, "auto"):
        raise ValueError("these functions look at the cluster of this process; for another one: minray list --address")
    check_timeout(timeout)
    api = connected_api()
    if api is None:
        raise RayStateApiException("this process is not connected to a cluster; call minray.init()")
    try:
        answer: T = api.run_on_loop(lambda: question(state_reader(api)))
    except TimeoutError:
        raise RayStateApiException(f"the gcs does not answer within {timeout:g} s") from None
    except RaySystemError as error:
        raise RayStateApiException(str(error)) from None
    return answer
