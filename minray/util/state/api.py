"""The functions: list, get and sum up the objects of the cluster that this process is connected to.

Ray: python/ray/util/state/api.py

Every process of the cluster is asked, and each tells of its ten thousand largest references at most. ``minray memory`` is
the same on the command line, also from outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, fields
from typing import Any

from minray.core_worker.state_reader import ClusterObjects
from minray.util.state.common import ObjectState, ObjectSummaries
from minray.util.state.exception import RayStateApiException
from minray.worker import connected_api

DEFAULT_LIMIT = 100
MAX_LIMIT = 10_000
DEFAULT_TIMEOUT_S = 30

Filter = tuple[str, str, str | bool | int | float]
"""The name of a field, ``=`` or ``!=``, and a value; case does not matter."""


def list_objects(
    address: str | None = None,
    filters: Sequence[Filter] | None = None,
    limit: int = DEFAULT_LIMIT,
    timeout: float = DEFAULT_TIMEOUT_S,
    detail: bool = False,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> list[ObjectState]:
    """The objects that processes of the cluster refer to, the largest first; one record for each process and object.

    ``filters``: only those for which all of these hold, such as ``("reference_type", "=", "LOCAL_REFERENCE")``. ``detail``
    changes nothing, since the records have all there is. Raises ValueError for a wrong filter or limit, and
    RayStateApiException if this process is not connected, or if something is missing (a process does not answer in time, or
    refers to too much) and ``raise_on_missing_output``.
    """
    if not 0 < limit <= MAX_LIMIT:
        raise ValueError(f"limit must be from 1 to {MAX_LIMIT}, not {limit}")
    tests = [_test_of(one) for one in filters or ()]
    objects = _read(address, timeout, None)
    if raise_on_missing_output and (missing := _missing(objects)):
        raise RayStateApiException(missing)
    return [state for state in _states(objects) if all(test(state) for test in tests)][:limit]


def get_objects(
    id: str, address: str | None = None, timeout: float = DEFAULT_TIMEOUT_S, _explain: bool = False
) -> list[ObjectState]:
    """Who refers to the object with this id (hex): a record for each process; none for an unknown object.

    Raises ValueError for what is no id, RayStateApiException if this process is not connected.
    """
    return _states(_read(address, timeout, [bytes.fromhex(id)]))


def summarize_objects(
    address: str | None = None,
    timeout: float = DEFAULT_TIMEOUT_S,
    raise_on_missing_output: bool = True,
    _explain: bool = False,
) -> dict[str, Any]:
    """All references by the line of the program that made them: ``{"cluster": ...}``, an ``ObjectSummaries`` as a dict.

    Raises RayStateApiException as ``list_objects`` does.
    """
    objects = _read(address, timeout, None)
    if raise_on_missing_output and (missing := _missing(objects)):
        raise RayStateApiException(missing)
    return {"cluster": asdict(ObjectSummaries.to_summary(objects=_states(objects)))}


def _read(address: str | None, timeout: float, object_ids: list[bytes] | None) -> ClusterObjects:
    if address not in (None, "auto"):
        raise ValueError("these functions look at the cluster of this process; for another one use: minray memory --address")
    api = connected_api()
    if api is None:
        raise RayStateApiException("this process is not connected to a cluster; call minray.init()")
    return api.objects_of_cluster(timeout, object_ids)


def _states(objects: ClusterObjects) -> list[ObjectState]:
    states = [
        ObjectState(
            object_id=use.object_id.hex(),
            object_size=use.size,
            task_status=use.task_status,
            attempt_number=use.attempt + 1,
            reference_type=use.reference_type,
            call_site=use.call_site,
            type="DRIVER" if use.is_driver else "WORKER",
            pid=use.pid,
            ip=objects.nodes[use.node_id].ip,
        )
        for use in objects.uses()
    ]
    return sorted(states, key=lambda state: -state.object_size)


def _missing(objects: ClusterObjects) -> str:
    parts = [f"{name} does not answer" for name in objects.silent]
    if left_out := objects.left_out():
        parts.append(f"{left_out} references or copies are left out, because their process or node has so many")
    return "; ".join(parts)


def _test_of(wanted: Filter) -> Callable[[ObjectState], bool]:
    name, predicate, value = wanted
    if name not in {one.name for one in fields(ObjectState)}:
        raise ValueError(f"an object has no {name!r} to filter by")
    if predicate not in ("=", "!="):
        raise ValueError(f"a filter compares by = or !=, not by {predicate!r}")
    text = str(value).lower()
    return lambda state: (str(getattr(state, name)).lower() == text) is (predicate == "=")
