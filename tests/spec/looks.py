"""Looks at the state API in the middle of programs, and what their answers must not say.

A look shows one table. Nothing is at rest meanwhile, so rows may be late; but none may be impossible:

  * A state has what belongs to it: an actor that lives has a place, a dead one a cause of death.
  * What is over stays over. An actor, node, process, job or group that one look has shown as ended is never again shown as
    living, by no process.
  * A process that has ended is not shown as living for ever, nor is a node whose raylet has ended, or an actor in an ended
    worker.
  * The looker's own knowledge counts. A task whose value it has got has not failed. An actor that nothing can have ended is
    there and lives. One that it has killed for good is dead.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import minray
from minray.api.actor_handle import ActorHandle
from minray.util.state.exception import RayStateApiException
from tests.spec.groups import SLOT
from tests.spec.stage import Outcome, Stage, Tagged
from tests.spec.tables import rows_of

if TYPE_CHECKING:
    from tests.spec.model import Reading, Scope

RESOURCES = "resources"
"""A look may also be at these, instead of a table of ``FIELDS``."""
REPORTED_S = 1.0
"""Virtual seconds after which nodes have reported what is reserved."""
FIELDS = {
    "actors": ("actor_id", "state", "name", "node_id", "pid", "death_cause", "num_restarts"),
    "jobs": ("job_id", "status", "end_time"),
    "nodes": ("node_id", "state", "node_name"),
    "placement groups": ("placement_group_id", "state"),
    "tasks": ("task_id", "state", "attempt_number", "name", "job_id", "parent_task_id", "worker_id", "error_message"),
    "workers": ("worker_id", "is_alive", "exit_type"),
}
"""Table -> the fields of a row that are kept: the id and the state come first."""
OVER: dict[str, tuple[Any, ...]] = {
    "actors": ("DEAD",),
    "jobs": ("SUCCEEDED",),
    "nodes": ("DEAD",),
    "placement groups": ("REMOVED",),
    "workers": (False,),
}
"""Table -> states after which there is no other."""
LIVING = {"nodes": "ALIVE", "workers": True}
"""Table -> state in which the process of a row must live."""
HEARD_S = 3.0
"""Virtual seconds after which a process's end is known everywhere, if no process is silent."""
GIVEN_UP_S = 100.0
"""Virtual seconds for that if processes may be silent: a silent node is given up after a minute."""


class Look(Tagged, frozen=True):
    """``list_actors`` and its like."""

    name: str
    table: str = "actors"
    pause_s: float = 0.0
    """Seconds before it."""

    def perform(self, stage: Stage) -> Outcome:
        time.sleep(self.pause_s)
        if self.table == RESOURCES:
            return {"of": [], "available": minray.available_resources(), "total": minray.cluster_resources()}
        outcome: Outcome = {"of": [], "begun": time.time(), "job": minray.get_runtime_context().get_job_id()}
        try:
            rows = rows_of(self.table)
        except RayStateApiException as error:
            return outcome | {"ended": time.time(), "unknown": str(error)}
        handles = {name: thing for name, thing in stage.refs.items() if isinstance(thing, ActorHandle)}
        outcome["handles"] = {name: handle._actor_id.hex() for name, handle in handles.items()}
        outcome["rows"] = [[row[field] for field in FIELDS[self.table]] for row in rows]
        return outcome | {"ended": time.time()}

    def foresee(self, scope: Scope) -> None:
        scope.model.sure_kills[self.name] = frozenset(scope.killed)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (), outcome)
        if self.table == RESOURCES:
            yield from self._check_resources(reading, outcome)
            return
        rows = [dict(zip(FIELDS[self.table], row, strict=True)) for row in outcome.get("rows", ())]
        if len({(row[FIELDS[self.table][0]], row.get("attempt_number")) for row in rows}) < len(rows):
            yield f"state: {self.name} shows a row of {self.table} twice"
        if self.table == "actors":
            yield from self._check_actors(reading, outcome, rows)
        elif self.table == "tasks":
            yield from self._check_tasks(reading, outcome, rows)

    def _check_resources(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        """No more is free than there is, and than placement groups leave, unless nodes come and go or are silent."""
        losses, available, total = reading.model.losses, outcome["available"], outcome["total"]
        if losses.nodes or losses.silence or losses.departures or self.pause_s < REPORTED_S:
            return
        reserved = sum(reading.ready_groups.values())
        if available.get(SLOT, 0) > total.get(SLOT, 0) - reserved:
            yield f"state: {self.name} shows {available} of {total}, and placement groups have reserved {reserved} {SLOT}"

    def _check_actors(self, reading: Reading, outcome: Outcome, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
        for row in rows:
            has_place, has_died = row["node_id"] is not None and row["pid"] > 0, row["death_cause"] is not None
            if row["state"] == "ALIVE" and not has_place or row["state"] in ("DEAD", "RESTARTING") and not has_died:
                yield f"state: {self.name} shows an impossible actor: {row}"
        states, model = {row["actor_id"]: row["state"] for row in rows}, reading.model
        for handle, actor_id in outcome.get("handles", {}).items():
            fate, state = model.fates.of(handle), states.get(actor_id, "missing")
            is_killed = fate is not None and model.fates.identity(handle) in model.sure_kills[self.name]
            is_over = state == "DEAD" or (state == "missing" and model.losses.forgets_actors)
            if is_killed and "rows" in outcome and not is_over:
                yield f"state: {self.name} shows {handle}, which was killed, as {state}"
            is_kept = fate is not None and fate.is_kept and not fate.may_die
            is_registered = fate is not None and bool(fate.create.called)  # others are registered later than they are made
            if is_kept and "rows" in outcome and state in ("DEAD", *(["missing"] if is_registered else [])):
                yield f"state: {self.name} shows {handle}, which nothing has ended, as {state}"

    def _check_tasks(self, reading: Reading, outcome: Outcome, rows: Sequence[dict[str, Any]]) -> Iterator[str]:
        own = [row for row in rows if row["job_id"] == outcome["job"] and not row["parent_task_id"]]
        for row in own:
            has_value = reading.has_seen_value(row["name"])
            may_fail_later = getattr(reading.model.tasks.get(row["name"]), "yields", False)  # after its first value
            ends = ("FINISHED", "FAILED") if may_fail_later else ("FINISHED",)
            if has_value and row["state"] not in ends:
                yield f"state: {self.name} shows {row['name']}, whose value is known, as {row['state']}"
            if row["state"] == "RUNNING" and not row["worker_id"]:
                yield f"state: {self.name} shows a task that runs nowhere: {row}"


def contradictions(looks: Iterable[tuple[Look, Outcome]]) -> Iterator[str]:
    """Rows that were shown as living by a look that began when another had shown them as ended."""
    ended: dict[tuple[str, str], float] = {}
    shown = [(look, outcome) for look, outcome in looks if "rows" in outcome]
    for look, outcome in shown:
        for row_id, state, *_ in outcome["rows"]:
            if state in OVER.get(look.table, ()):
                key = look.table, row_id
                ended[key] = min(outcome["ended"], ended.get(key, outcome["ended"]))
    for look, outcome in shown:
        for row_id, state, *_ in outcome["rows"]:
            was_over = ended.get((look.table, row_id), outcome["begun"]) < outcome["begun"]
            if was_over and state not in OVER.get(look.table, (state,)):
                yield f"state: {look.name} shows {row_id} as {state}, when another look has shown that it is over"


def stale(looks: Iterable[tuple[Look, Outcome]], ends: Mapping[str, float], is_silent: bool) -> Iterator[str]:
    """Rows of processes and nodes that were shown as living long after they had ended; ``ends``: id -> time of the end."""
    late_s = GIVEN_UP_S if is_silent else HEARD_S
    for look, outcome in looks:
        for row_id, state, *_ in outcome.get("rows", ()):
            if state == LIVING.get(look.table, "") and ends.get(row_id, outcome["begun"]) < outcome["begun"] - late_s:
                ago_s = outcome["begun"] - ends[row_id]
                yield f"state: {look.name} shows {row_id} as {state}, and it has ended {ago_s:.1f} s ago"
