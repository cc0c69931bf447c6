"""Small tables for notebooks: what a reference, an actor, a cluster, or rows of the state API are at this moment.

Ray: the ``_repr_html_`` of RayContext (python/ray/widgets), its only one in the core

A notebook calls ``_repr_html_`` on the value of a cell's last line. An explanation there must not change the program: it
fetches no value, keeps nothing alive, and does not count as looking at an error.

Rules
  * One second for all questions to the cluster (``ANSWER_S``); what has not come by then is left out, and a line says so.
  * No exception leaves ``html_of``, also after ``shutdown``: then the table has what is known without a cluster.
  * All text is escaped. Colours are those of the page, so that light and dark themes both work. Ids may be selected whole.
"""

from __future__ import annotations

import asyncio
import dataclasses
import html
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from minray.api.actor_handle import ActorHandle
from minray.api.calls import connected_api, state_reader
from minray.common.ids import short
from minray.common.resources import to_floats
from minray.common.shown import cut, shown
from minray.errors.packed_exception import describe_packed
from minray.protocol.actor import GetActor
from minray.protocol.gcs import DASHBOARD, DASHBOARD_ADDRESS, NODES, RESOURCES, KvGet, NodeInfo, NodeResources
from minray.values.object_ref import ObjectName, ObjectRef

if TYPE_CHECKING:
    from minray.core_worker.user_threads.user_api import UserApi

ANSWER_S = 1.0
"""Most seconds that a table waits for the cluster: a person looks at it, and another cell may be next."""
MOST_ROWS = 50
"""Most rows of a list; a last line counts the others."""
MOST_LETTERS = 300
"""Most characters of one cell of a table."""
MOST_UNBROKEN = 24
"""Most characters of a cell of a list that stay in one line, such as an address."""
LEAST_ID = 28
"""Least digits of a text that is shown as an id; ids of nodes and workers have 32."""
NOT_CONNECTED = "this process is not connected to a cluster"
SILENT = f"the cluster has not answered within {ANSWER_S:g} s"
LEFT = "it belongs to a cluster that this process has left"
_TABLE = "border-collapse:collapse;margin:0;font-size:90%"
_CELL = "border:1px solid rgba(128,128,128,.4);padding:2px 8px;text-align:left;vertical-align:top;overflow-wrap:anywhere"
_HEAD = f"{_CELL};font-weight:600;overflow-wrap:normal"
_LONG = f"{_CELL};min-width:12em"
"""Style of a long text in a list. It may break after any letter, so beside other columns it would be a few letters wide."""

Rows = list[tuple[str, str]]
"""Rows of a table: a name and a text each."""


def html_of(thing: Any) -> str:
    """Describe a reference, an actor handle, a context of ``init``, or rows of the state API; never raise."""
    try:
        if isinstance(thing, ObjectRef):
            return _table("ObjectRef", _rows_of_reference(thing))
        if isinstance(thing, ActorHandle):
            return _table(f"Actor {thing._minray_spec.class_name}", _rows_of_actor(thing))
        if isinstance(thing, list):
            return _list(thing)
        if isinstance(thing, Mapping):
            return _table("minray", _rows_of_cluster(thing))
        return _table(type(thing).__name__, [(name, _text(value)) for name, value in _fields(thing).items()])
    except Exception as error:
        return f"<code>{html.escape(shown(thing))}</code> ({html.escape(shown(error))})"


def _ask(api: UserApi, make: Callable[[], Coroutine[Any, Any, Rows]]) -> Rows:
    """Run a question to the cluster for at most ``ANSWER_S``; return a row that says so if there is no answer."""

    async def ask() -> Rows:
        async with asyncio.timeout(ANSWER_S):
            return await make()

    try:
        found: Rows = api.run_on_loop(ask)
    except TimeoutError:
        return [("note", SILENT)]
    except Exception as error:
        return [("note", str(error))]
    return found


# --- References


def _rows_of_reference(ref: ObjectRef[Any]) -> Rows:
    rows: Rows = [("id", ref.hex())]
    api = connected_api()
    if isinstance(ref, ObjectName):
        return [*rows, ("note", "an id without an owner, which leads to no value")]
    if api is None:
        return [*rows, ("note", NOT_CONNECTED)]
    owner = ref.owner_address()
    is_ours = owner.worker_id == api.config.worker_id
    where = f"node {short(owner.node_id)}"
    rows.append(("owner", f"this process, {where}" if is_ours else f"worker {short(owner.worker_id)}, {where}"))
    stored = api.port.store.objects.get(ref.binary())
    if stored is not None and stored.is_error:
        text = describe_packed(bytes(stored.data)).strip()
        state = "freed" if stored.is_freed else "failed"
        return [("state", state), *rows, ("why", text.splitlines()[-1] if text else "an error without a text")]
    return _ask(api, lambda: _describe_reference(api, ref, rows))


async def _describe_reference(api: UserApi, ref: ObjectRef[Any], rows: Rows) -> Rows:
    """Describe an object that is no error in this process."""
    stored = api.port.store.objects.get(ref.binary())
    found = (await api.port.locator.locate([(ref.binary(), ref.owner_address())])).get(ref.binary())
    if stored is None and (found is None or found.size is None):
        chain = await api.port.explainer.explain_in_time(ref.binary(), ref.owner_address())
        return [("state", "pending" if found is not None else "unknown"), *rows, ("why", " ← ".join(chain))]
    rows = [("state", "ready"), *rows]
    if found is not None and found.size is not None:
        nodes = ", ".join(map(short, found.node_ids))
        place = f"in shared memory of node {nodes}" if nodes else "with its owner"
        rows += [("size", size_text(found.size)), ("where", f"{place}, spilled to disk" if found.did_spill else place)]
    elif stored is not None:
        rows.append(("size", size_text(stored.size())))
    return rows


def size_text(size_bytes: int) -> str:
    """Return a size for people: ``1,536 bytes (1.5 KiB)``."""
    amount, unit = float(size_bytes), ""
    for unit_of_1024 in ("KiB", "MiB", "GiB", "TiB"):
        if amount < 1024:
            break
        amount, unit = amount / 1024, unit_of_1024
    exact = f"{size_bytes:,} byte{'s' if size_bytes != 1 else ''}"
    return f"{exact} ({amount:.1f} {unit})" if unit else exact


# --- Actors


def _rows_of_actor(handle: ActorHandle[Any]) -> Rows:
    rows: Rows = [("id", handle._actor_id.hex())]
    api = connected_api()
    if api is None or api is not handle._minray_api:
        return [*rows, ("note", NOT_CONNECTED if api is None else LEFT)]
    return _ask(api, lambda: _describe_actor(api, handle, rows))


async def _describe_actor(api: UserApi, handle: ActorHandle[Any], rows: Rows) -> Rows:
    actor_id, owner = handle._actor_id, handle._minray_owner
    info = (await api.port.process.gcs.call(GetActor(actor_id, owner))).actor
    if info is None:
        rows = [("state", "not registered yet"), *rows]
    else:
        rows = [("state", info.state), *rows]
        if info.name:
            rows.append(("name", f"{info.name} (namespace {info.namespace})"))
        if info.address is not None:
            rows.append(("process", f"pid {info.pid}, node {short(info.address.node_id)}"))
        if info.max_restarts or info.restarts:
            most = "any number" if info.max_restarts < 0 else f"{info.max_restarts}"
            rows.append(("restarts", f"{info.restarts} of {most}"))
    is_ours = owner.worker_id == api.config.worker_id
    rows.append(("owner", "this process" if is_ours else f"worker {short(owner.worker_id)}"))
    if info is not None and info.death is not None:
        return [*rows, ("why", info.death.message)]
    return [*rows, ("why", " ← ".join(await api.port.explainer.explain_actor_in_time(actor_id, owner)))]


# --- Clusters


def _rows_of_cluster(info: Mapping[str, Any]) -> Rows:
    rows: Rows = [(name, str(info[name])) for name in ("address", "session_dir") if info.get(name)]
    api = connected_api()
    if api is None:
        return [*rows, ("note", NOT_CONNECTED)]
    if info.get("node_id") not in (None, api.config.node_id.hex()):
        return [*rows, ("note", LEFT)]
    return rows + _ask(api, lambda: _describe_cluster(api))


async def _describe_cluster(api: UserApi) -> Rows:
    reader = state_reader(api)
    nodes = [node for node in await reader.rows(NODES, NodeInfo) if node.alive]
    reports = await reader.rows(RESOURCES, NodeResources)
    dashboard = (await api.port.process.gcs.call(KvGet(DASHBOARD, DASHBOARD_ADDRESS))).value or b""
    ids = {node.node_id for node in nodes}
    free = _summed([report.available for report in reports if report.node_id in ids])
    totals = _summed([node.resources_total for node in nodes])
    resources = ", ".join(f"{name}: {free.get(name, 0):g} of {total:g} free" for name, total in totals.items())
    rows = [("nodes", f"{len(nodes)}"), ("resources", resources)]
    return [*rows, ("dashboard", dashboard.decode().partition(" ")[2])] if dashboard else rows


def _summed(amounts: Sequence[Mapping[str, int]]) -> dict[str, float]:
    """Add up resources of nodes, without memory and without the labels that each node has for itself."""
    total: dict[str, int] = {}
    for one in amounts:
        for name, amount in one.items():
            if "memory" not in name and "node:" not in name and "_group_" not in name:
                total[name] = total.get(name, 0) + amount
    return to_floats(total)


# --- Rows of the state API, and tables


def _list(rows: Sequence[Any]) -> str:
    """Return a table with a line for each row; columns in which no row has anything are left out."""
    described = [{name: _text(value) for name, value in _fields(row).items()} for row in rows[:MOST_ROWS]]
    names = [name for name in (described[0] if described else ()) if any(row.get(name) for row in described)]
    head = "".join(f'<th style="{_HEAD}">{html.escape(name)}</th>' for name in names)
    lines = ["".join(map(_cell, (row.get(name, "") for name in names))) for row in described]
    more = f"<div>and {len(rows) - MOST_ROWS:,} more</div>" if len(rows) > MOST_ROWS else ""
    if not described:
        return "<div>no rows</div>"
    body = "".join(f"<tr>{line}</tr>" for line in lines)
    return _scrolled(f'<table style="{_TABLE}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}')


def _fields(row: Any) -> dict[str, Any]:
    """Return the columns of a row: those that are no details, of a row of the state API."""
    if isinstance(row, Mapping):
        return {str(name): value for name, value in row.items()}
    return {one.name: getattr(row, one.name) for one in dataclasses.fields(row) if not one.metadata.get("detail")}


def _text(value: Any) -> str:
    if value is None or value == {} or value == []:
        return ""
    if isinstance(value, Mapping):
        return ", ".join(f"{name}: {_text(item)}" for name, item in value.items())
    if isinstance(value, float):
        return f"{value:,.0f}" if value.is_integer() else f"{value:,.10g}"
    return str(value)


def _cell(text: str) -> str:
    """Return a cell of a list: the text escaped, and cut if it is long. An id is shortened; its title has all of it."""
    if len(text) > MOST_LETTERS:
        text = f"{text[:MOST_LETTERS]}..."
    is_id = len(text) >= LEAST_ID and not text.strip("0123456789abcdef")
    content = f'<code title="{text}" style="white-space:nowrap">{_short_id(text)}</code>' if is_id else html.escape(text)
    style = f"{_CELL};white-space:nowrap" if is_id or len(text) <= MOST_UNBROKEN else _LONG
    return f'<td style="{style}">{content}</td>'


def _short_id(digits: str) -> str:
    return short(bytes.fromhex(digits)) if len(digits) % 2 == 0 else digits[:8]


def _table(title: str, rows: Rows) -> str:
    """Return a table with one line for each pair of a name and a text."""
    lines = "".join(
        f'<tr><th style="{_HEAD}">{html.escape(name)}</th><td style="{_CELL}">{_whole(name, text)}</td></tr>'
        for name, text in rows
    )
    return _scrolled(f"<div><b>{html.escape(cut(title))}</b></div><table style=\"{_TABLE}\"><tbody>{lines}</tbody></table>")


def _whole(name: str, text: str) -> str:
    if len(text) > MOST_LETTERS:
        text = f"{text[:MOST_LETTERS]}..."
    return f"<code>{html.escape(text)}</code>" if name == "id" else html.escape(text)


def _scrolled(content: str) -> str:
    return f'<div style="overflow-x:auto;max-width:100%">{content}</div>'
