"""The calls ``get``, ``put``, ``wait``, ``cancel``, and those that list nodes and resources of the cluster.

Ray: python/ray/_private/worker.py

A call goes to the cluster to which the process is connected. In the simulation several drivers live in one interpreter, so
there the connection is in a context variable. A call without ``init`` starts a local cluster, as in Ray. The function that
starts it is injected by ``minray/__init__.py``, because ``minray.node.init`` is a room above this one.
"""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, overload

from minray.api.unserializable import PICKLING_ERRORS, explain_value
from minray.common.bundles import without_bundles
from minray.common.forks import at_fork
from minray.common.labels import labels_of
from minray.common.resources import to_floats
from minray.common.shown import RowsInNotebooks, a, shown
from minray.core_worker.user_threads.actor_api import ActorApi
from minray.errors.tracebacks import hides_from_pytest
from minray.exceptions import RayError
from minray.protocol.base import R
from minray.protocol.gcs import DASHBOARD, DASHBOARD_ADDRESS, NODES, RESOURCES, KvGet, NodeInfo, NodeResources
from minray.values.object_ref import ObjectRef, current_hooks, set_default_hooks
from minray.values.object_ref_generator import ObjectRefGenerator

if TYPE_CHECKING:
    from minray.core_worker.user_threads.user_api import UserApi
    from minray.observability.state_reader import ClusterObjects, StateReader

__tracebackhide__ = hides_from_pytest

T = TypeVar("T")
Waitable = TypeVar("Waitable", bound=ObjectRef[Any] | ObjectRefGenerator[Any])

current_process_api: ContextVar[UserApi | None] = ContextVar("minray_api")
"""Connection of a simulated process, None when it has left; set together with ``object_ref.current_hooks``."""
_process_api: UserApi | None = None
_forked = False
auto_init: Callable[[], None] | None = None
"""Function that joins or starts a cluster; set by ``minray/__init__.py``."""


def connect_process(api: UserApi | None) -> None:
    """Set the connection of this process; None when it disconnects."""
    global _process_api
    _process_api = api
    set_default_hooks(api)
    if api is not None:
        api.port.begin_reports()


def connect_context(api: UserApi | None) -> None:
    """Set the connection of this context, a simulated process; None when it disconnects."""
    from minray.core_worker.introspection.metric_registry import MetricRegistry, of_context

    current_process_api.set(api)
    current_hooks.set(api)
    of_context.set(MetricRegistry())
    if api is not None:
        api.port.begin_reports()


def is_initialized() -> bool:
    """Return whether this process is connected to a cluster."""
    return connected_api() is not None


class Answers(Protocol):
    """Answers of a cluster's processes to one question; ``silent`` names the processes that did not answer."""

    @property
    def silent(self) -> list[str]: ...


A = TypeVar("A", bound=Answers)


def state_reader(api: UserApi) -> StateReader:
    """Make a reader that asks all processes of the cluster that ``api`` is connected to; this process answers itself."""
    from minray.observability.state_reader import StateReader

    process = api.port.process
    return StateReader(process.peers, process.gcs, process.config.worker_id, api.port.answers)


def objects_of_cluster(timeout_s: float, object_ids: Sequence[bytes] | None = None) -> ClusterObjects:
    """Ask all processes of the cluster for their largest objects, or for these. Raises RaySystemError, TimeoutError."""
    api = current_api()
    found: ClusterObjects = api.run_on_loop(lambda: state_reader(api).read(timeout_s, object_ids=object_ids))
    return found


def known_nodes() -> list[NodeInfo]:
    """Return all nodes that the gcs knows, dead ones too."""
    return read_gcs(NODES, NodeInfo)


def resource_reports() -> list[NodeResources]:
    """Return the latest resource report of each node."""
    return read_gcs(RESOURCES, NodeResources)


def read_gcs(channel: str, record: type[R]) -> list[R]:
    """Return all rows of a channel of the gcs."""
    api = current_api()
    rows: list[R] = api.run_on_loop(lambda: state_reader(api).rows(channel, record))
    return rows


def dashboard_address() -> str:
    """Return host and port of the dashboard of this process's cluster; empty if it has none, or there is no connection."""
    api = connected_api()
    if api is None:
        return ""
    reply = api.run_on_loop(lambda: api.port.process.gcs.call(KvGet(DASHBOARD, DASHBOARD_ADDRESS)))
    session, _, address = (reply.value or b"").decode().partition(" ")
    heads = [node for node in read_gcs(NODES, NodeInfo) if node.is_head and node.alive] if address else []
    return address if any(head.session_dir.endswith(f"/{session}") for head in heads) else ""


def ask_cluster(question: Callable[[StateReader], Coroutine[Any, Any, A]], missing: str) -> A:
    """Ask the processes of this process's cluster, and return their answers.

    Warns with a RuntimeWarning for each process that does not answer; ``missing`` says what the answers then lack. Raises
    RuntimeError if this process is not connected.
    """
    api = connected_api()
    if api is None:
        raise RuntimeError("this process is not connected to a cluster; call minray.init() first")
    found: A = api.run_on_loop(lambda: question(state_reader(api)))
    for name in found.silent:
        warnings.warn(f"{name} does not answer: {missing}", RuntimeWarning, stacklevel=3)
    return found


def connected_api() -> UserApi | None:
    """Return the connection of this process or context, or None."""
    return current_process_api.get(None) or _process_api


def current_api() -> UserApi:
    """Return the connection of this process or context; connect first if there is none."""
    api = current_process_api.get(None) or _process_api
    if api is not None:
        return api
    if _forked:
        raise RuntimeError(
            "this process was forked from a driver and has no connection of its own; call minray.init(address=...) in it"
        )
    connect()
    api = connected_api()
    assert api is not None
    return api


def connect() -> None:
    """Join or start a cluster as ``init()`` does, unless this process is connected."""
    if connected_api() is None:
        assert auto_init is not None, "minray/__init__.py, which every import of this file runs first, sets it"
        auto_init()


def _after_fork() -> None:
    global _forked
    if _process_api is not None:
        _forked = True
        connect_process(None)


at_fork(after_in_child=_after_fork)


@overload
def get(object_refs: ObjectRef[T], *, timeout: float | None = None) -> T: ...
@overload
def get(object_refs: ObjectRefGenerator[T], *, timeout: float | None = None) -> ObjectRefGenerator[T]: ...
@overload
def get(object_refs: Sequence[ObjectRef[T]], *, timeout: float | None = None) -> list[T]: ...
def get(object_refs: Any, *, timeout: float | None = None) -> Any:
    """Return the value of a reference, or the list of values of a list of references, in order.

    Waits until all values exist, at most ``timeout`` seconds (None: without end; 0: do not wait). Raises the task's
    exception, GetTimeoutError after ``timeout``, ValueError for anything but references. Returns a generator as it is.
    """
    if type(object_refs) is ObjectRefGenerator:
        return object_refs
    if timeout is not None:
        check_timeout(timeout)
    api = current_api()
    is_one = type(object_refs) is ObjectRef
    if not is_one and not isinstance(object_refs, list):
        raise ValueError(f"get takes an ObjectRef or a list of them, not {type(object_refs).__name__}")
    if not is_one:
        _check_refs("get", object_refs)
    try:
        values = api.reader.get((object_refs,) if is_one else object_refs, timeout)
    except (RayError, KeyboardInterrupt) as error:
        raise error.with_traceback(None)  # noqa: B904 (the same exception: its frames here tell users nothing)
    return values[0] if is_one else values


def put(value: T) -> ObjectRef[T]:
    """Store a value, owned by this process, and return its reference. Raises TypeError for an ObjectRef."""
    if type(value) is ObjectRef:
        raise TypeError("put of an ObjectRef is not allowed (the value would be a reference); put a list that contains it")
    try:
        return current_api().put(value)
    except PICKLING_ERRORS:
        explain_value(f"the put value {shown(value)}", "value", value)


def wait(
    ray_waitables: list[Waitable], *, num_returns: int = 1, timeout: float | None = None, fetch_local: bool = True
) -> tuple[list[Waitable], list[Waitable]]:
    """Wait until ``num_returns`` of the references are ready; return ``(ready, rest)``, both in input order.

    After ``timeout`` seconds (None: no limit) the first list may be shorter. A large value is ready when it is on this node,
    so it is fetched; with ``fetch_local=False`` it is ready when it exists on any node. A generator is ready when its next
    item is, or when it has no more items. Raises ValueError for duplicates and for an impossible ``num_returns``, TypeError
    for anything but a list.
    """
    if not isinstance(ray_waitables, list):
        raise TypeError(f"wait takes a list of ObjectRefs, not {type(ray_waitables).__name__}")
    api = current_api()
    if not ray_waitables:
        return [], []
    refs: list[Any] = ray_waitables
    if list(map(type, ray_waitables)).count(ObjectRef) != len(ray_waitables):
        refs = [ref._peek() if isinstance(ref, ObjectRefGenerator) else ref for ref in ray_waitables]
        _check_refs("wait", refs, TypeError)
    if not isinstance(num_returns, int) or isinstance(num_returns, bool):
        raise TypeError(f"num_returns must be an int, not {type(num_returns).__name__}")
    if not 0 < num_returns <= len(ray_waitables):
        raise ValueError(f"num_returns must be from 1 to {len(ray_waitables)} (the number of references), not {num_returns}")
    if timeout is not None:
        check_timeout(timeout)
        if timeout < 0:
            raise ValueError(f"timeout must not be negative, but is {shown(timeout)}")
    try:
        found: tuple[list[Any], list[Any]] = api.reader.wait(refs, num_returns, timeout, fetch_local)
    except (RayError, KeyboardInterrupt) as error:
        raise error.with_traceback(None)  # noqa: B904 (the same exception: its frames here tell users nothing)
    if refs is not ray_waitables:
        given = dict(zip(refs, ray_waitables, strict=True))
        found = [given[ref] for ref in found[0]], [given[ref] for ref in found[1]]
    return found


def check_timeout(timeout: Any) -> None:
    """Check a timeout in seconds. Raises TypeError for anything but a number, ValueError for nan."""
    if not isinstance(timeout, numbers.Real) or isinstance(timeout, bool):
        raise TypeError(f"timeout must be a number of seconds or None, not {type(timeout).__name__}")
    if math.isnan(timeout):
        raise ValueError("timeout is not a number (nan); None waits without end")


def cancel(ray_waitable: ObjectRef[Any] | ObjectRefGenerator[Any], *, force: bool = False, recursive: bool = True) -> None:
    """Cancel the task that makes this object. Cancelling twice is the same as cancelling once.

    A task that has not started never starts. A running task is interrupted with KeyboardInterrupt; with ``force=True`` its
    worker is killed. ``recursive`` cancels its child tasks too.

    An actor's running coroutine is cancelled. A running plain method of an actor finds ``is_canceled()`` true in its runtime
    context, and its result is dropped. Raises ValueError for ``force=True`` with an actor's call."""
    if type(ray_waitable) is ObjectRefGenerator:
        ray_waitable = ray_waitable.completed()
    if type(ray_waitable) is not ObjectRef:
        raise TypeError(f"cancel takes an ObjectRef or an ObjectRefGenerator, not {type(ray_waitable).__name__}")
    api = current_api()
    if force and ActorApi(api).is_call(ray_waitable):
        raise ValueError("force=True does not apply to an actor's call: use minray.kill to end the actor")
    api.cancel(ray_waitable, force, recursive)


def _check_refs(name: str, refs: list[Any], error: type[Exception] = ValueError) -> None:
    if set(map(type, refs)) - {ObjectRef}:
        wrong = next(ref for ref in refs if type(ref) is not ObjectRef)
        raise error(f"{name} takes ObjectRefs, but the list has {a(wrong)}")


def nodes() -> list[dict[str, Any]]:
    """Return a dict for each living or dead node of this cluster, with Ray's keys: NodeID, Alive, Resources, Labels, ...

    ``NodeID`` is hexadecimal. ``Resources`` are the totals of a living node, and empty for a dead one.
    """
    return RowsInNotebooks(
        {
            "NodeID": info.node_id.hex(),
            "Alive": info.alive,
            "alive": info.alive,
            "NodeName": info.name,
            "NodeManagerAddress": info.ip,
            "NodeManagerHostname": info.hostname,
            "NodeManagerPort": int(info.address.tcp_endpoint.rpartition(":")[2] or 0),
            "RayletSocketName": info.address.endpoint.removeprefix("unix:"),
            "Resources": to_floats(info.resources_total) if info.alive else {},
            "Labels": labels_of(info.node_id, info.labels),
            "IsHead": info.is_head,
            "DeathReason": info.death_reason,
            "DeathReasonMessage": info.death_cause,
        }
        for info in known_nodes()
    )


def cluster_resources() -> dict[str, float]:
    """Return the total amount of each resource of all living nodes."""
    return _sum_up([info.resources_total for info in known_nodes() if info.alive])


def available_resources() -> dict[str, float]:
    """Return the free amount of each resource of all living nodes, without reservations of placement groups.

    The amounts are those of the nodes' last reports, about a tenth of a second old.
    """
    alive = {info.node_id for info in known_nodes() if info.alive}
    return _sum_up([report.available for report in resource_reports() if report.node_id in alive])


def _sum_up(sets: list[dict[str, int]]) -> dict[str, float]:
    total: dict[str, int] = {}
    for amounts in sets:
        for name, amount in amounts.items():
            total[name] = total.get(name, 0) + amount
    return {name: amount for name, amount in to_floats(without_bundles(total)).items() if amount > 0}
