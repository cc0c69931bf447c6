"""Rows of the state API about a driver's own things, field by field: ``Census``.

The driver knows its things: tasks that run, wait or cannot run, an actor with calls, values, and groups. One of these no
node can hold. What runs says where it is. The tables of the state API must show each thing so before long, in every field,
and again after all of it was ended. Rows may be late, so the driver looks again for a while.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

import minray
from minray.in_rays_place.names.experimental import internal_kv as kv
from minray.util.placement_group import placement_group, remove_placement_group
from minray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from minray.util.state.exception import RayStateApiException
from tests.spec.bundles import labels_of_bundles
from tests.spec.filled import filled
from tests.spec.stories import Look, Story, look_at
from tests.spec.tables import rows_of

if TYPE_CHECKING:
    from tests.spec.model import Losses, Reading
    from tests.spec.stage import Outcome

PLAIN, ASYNC, THREADED = "plain", "async", "threaded"
CLERKS = (PLAIN, ASYNC, THREADED)
"""Kinds of the actor."""
ARRAY_BYTES = 40
"""Bytes of an array among the arguments of tasks, calls and constructors."""
SIZE = 400
"""Bytes of the value that was put, more than worlds with stores keep in messages."""
LONG_S = 3000.0
"""Virtual seconds for which tasks rest. They are ended before."""
PATIENCE_S, LOOK_AGAIN_S = 300.0, 0.2
"""Virtual seconds for which the tables may be wrong, and between the first two looks at them. The next are farther apart."""
REPORTED_S = 2.5
"""Virtual seconds after which an owner has reported its failed tasks."""
NOWHERE = {"nowhere": 1.0}
"""Resources that no node has."""
FOR_EVER: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "max_task_retries": -1}
"""Options of actors that begin again after every loss."""
RIGHT = "right"
IN = "in"
"""Field of a wanted row: the key under which the thing itself has said where it is."""
Row = dict[str, Any]


class Census(Story, frozen=True):
    """One driver's things, counted while they are there and when they are over."""

    clerk: str = PLAIN
    restarts: bool = False
    """Whether the actor is killed once, and begins again."""
    is_named: bool = True
    """Whether tasks have names that are not those of their functions."""
    is_labelled: bool = False
    """Whether bundles ask for any node that lacks a label."""
    leaves_tasks: bool = False
    """Whether an actor calls another one, and has a task fail, before both are killed."""

    def tell(self) -> list[Look]:
        with ExitStack() as ends:
            things = Things(self, ends)
            there = things.look_until_right(things.rows_of_living())
        return [there, things.look_until_right(things.rows_of_ended())]

    def wanted(self) -> list[Any]:
        return [RIGHT, RIGHT]

    def errors(self, losses: Losses) -> set[str]:
        return set()

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        """After a loss, what the driver knows of its things need not be so any more."""
        losses = reading.losses_of_job()
        forgets = losses.forgets_actors or (self.leaves_tasks and (losses.forgets_tasks or reading.model.losses.silence))
        if not (losses.deaths or losses.silence or losses.departures or losses.hopeless or forgets):
            yield from super().check(reading, outcome)

    def busy_s(self) -> float:
        return 2 * PATIENCE_S


class Things:
    """The things of one census, and what the tables should say of them."""

    def __init__(self, story: Census, ends: ExitStack) -> None:
        """Make them; ``ends`` is given what ends each of them."""
        context = minray.get_runtime_context()
        self._story, self._job, self._worker = story, context.get_job_id(), context.get_worker_id()
        self._room = f"{story.name} {self._job}"
        """Name of the actor and of the group, and place of the notes of where things are."""
        self._class = "AsyncClerk" if story.clerk == ASYNC else "Clerk"
        many: dict[str, Any] = {"num_cpus": 0, "max_retries": -1}
        self._rest = rest.options(**many, **self._named("resting")).remote(self._room, _array())
        ends.callback(_end_task, self._rest)
        self._waits = take.options(**many, **self._named("waiting")).remote(self._rest)
        self._homeless = take.options(**many, resources=NOWHERE, **self._named("homeless")).remote(0)
        ends.callback(_end_task, self._homeless)
        self._done = take.options(**many, **self._named("done")).remote(0)
        self._failed = fail.options(num_cpus=0, max_retries=0, **self._named("failed")).remote()
        kind = {PLAIN: Clerk, THREADED: Clerk.options(max_concurrency=2), ASYNC: AsyncClerk}[story.clerk]
        self._actor = kind.options(**FOR_EVER, name=self._room).remote(self._room, _array())
        ends.callback(minray.kill, self._actor)
        if story.restarts:
            look_at(self._actor.say.remote(), PATIENCE_S)
            minray.kill(self._actor, no_restart=False)
        self._calls = [self._actor.work.remote(LONG_S, _array()) for _ in range(3)]
        inner = minray.put(0)
        self._inner, self._box, self._value = inner.hex(), minray.put([inner]), minray.put(b"c" * SIZE)
        self._left = self._leave_tasks() if story.leaves_tasks else []
        self._group = self._make_group([NOWHERE, NOWHERE], self._room, ends)
        self._placed = self._make_group([{"memory": 1}, {"memory": 2}], "", ends)
        self._nodes = [self._node_of_bundle(index) for index in range(2)]

    def _make_group(self, bundles: list[dict[str, float]], name: str, ends: ExitStack) -> Any:
        labels = labels_of_bundles(len(bundles), self._story.is_labelled)
        group = placement_group(bundles, "SPREAD", name=name, bundle_label_selector=labels)
        ends.callback(remove_placement_group, group)
        return group

    def _leave_tasks(self) -> list[str]:
        """Have a call and a task of an actor end, and then their owner and the worker of the call; return their ids."""
        helper = Helper.options(**FOR_EVER).remote(self._room)
        employer = Employer.options(**FOR_EVER).remote()
        kind, shown = look_at(employer.employ.remote(helper), PATIENCE_S)
        time.sleep(REPORTED_S)
        for actor in (employer, helper):
            minray.kill(actor)
        return list(shown) if kind == "value" else []

    def _node_of_bundle(self, index: int) -> str:
        """Run a task in a bundle, and return its node; empty if an error comes instead."""
        strategy = PlacementGroupSchedulingStrategy(self._placed, index)
        task = say_node.options(num_cpus=0, max_retries=-1, scheduling_strategy=strategy).remote()
        kind, shown = look_at(task, PATIENCE_S)
        return str(shown) if kind == "value" else ""

    def _named(self, name: str) -> dict[str, str]:
        return {"name": f"{name} of {self._story.name}"} if self._story.is_named else {}

    # --- rows, without what may be anything

    def rows_of_living(self) -> dict[str, dict[str, Row]]:
        running, behind = {"state": "RUNNING", "error_type": None}, "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY"
        at_once = {PLAIN: 1, THREADED: 2, ASYNC: 3}[self._story.clerk]
        tasks = {
            _task(self._rest): self._task("resting", "rest") | running | {IN: "rest"},
            _task(self._waits): self._task("waiting", "take") | _pending("PENDING_ARGS_AVAIL"),
            _task(self._homeless): self._task("homeless", "take", NOWHERE) | _pending("PENDING_NODE_ASSIGNMENT"),
        }
        tasks |= self._rows_of_ended_tasks()
        for number, call in enumerate(self._calls):
            state = running if number < at_once else {"state": behind, "error_type": None}
            tasks[_task(call)] = self._call() | state | {IN: "clerk"}
        value = {"task_status": "NIL", "type": "DRIVER", "reference_type": "LOCAL_REFERENCE"}
        objects = {
            self._value.hex(): value,
            self._inner: value | {"reference_type": "CAPTURED_IN_OBJECT"},
            self._rest.hex(): value | {"task_status": "SUBMITTED_TO_WORKER", "reference_type": "USED_BY_PENDING_TASK"},
            self._done.hex(): value | {"task_status": "FINISHED"},
            self._failed.hex(): value | {"task_status": "FAILED"},
            self._waits.hex(): value | {"task_status": "PENDING_ARGS_AVAIL"},
        }
        actor = self._actor_row() | {"state": "ALIVE", "has_cause": self._story.restarts, IN: "clerk"}
        rows = {"tasks": tasks, "objects": objects, "actors": {self._actor._actor_id.hex(): actor}}
        return rows | self._others("PENDING", "CREATED")

    def rows_of_ended(self) -> dict[str, dict[str, Row]]:
        raised = {"state": "FAILED", "error_type": "TASK_EXECUTION_EXCEPTION"}
        never_begun = {"state": "FAILED", "error_type": "TASK_CANCELLED", "attempt_number": 0}
        tasks = {
            _task(self._rest): self._task("resting", "rest") | raised,
            _task(self._waits): self._task("waiting", "take") | raised | {"attempt_number": 0},
            _task(self._homeless): self._task("homeless", "take", NOWHERE) | never_begun,
        }
        for call in self._calls:
            tasks[_task(call)] = self._call() | {"state": "FAILED", "error_type": "ACTOR_DIED"}
        tasks |= self._rows_of_ended_tasks()
        for task_id in self._left[:1]:
            helped = {"state": "FINISHED", "type": "ACTOR_TASK", "job_id": self._job, "name": "Helper.help"}
            tasks[task_id] = helped | {IN: "helper"}
        for task_id in self._left[1:]:
            tasks[task_id] = raised | {"type": "NORMAL_TASK", "job_id": self._job, "name": "fail"}
        actor = self._actor_row() | {"state": "DEAD", "has_cause": True}
        return {"tasks": tasks, "actors": {self._actor._actor_id.hex(): actor}} | self._others("REMOVED", "REMOVED")

    def _rows_of_ended_tasks(self) -> dict[str, Row]:
        failed = {"state": "FAILED", "error_type": "TASK_EXECUTION_EXCEPTION", "attempt_number": 0}
        return {
            _task(self._done): self._task("done", "take") | {"state": "FINISHED", "error_type": None, "attempt_number": 0},
            _task(self._failed): self._task("failed", "fail") | failed,
        }

    def _task(self, name: str, function: str, needs: Row | None = None) -> Row:
        shown = self._named(name).get("name", function)
        return {
            "name": shown,
            "func_or_class_name": function,
            "type": "NORMAL_TASK",
            "job_id": self._job,
            "actor_id": None,
            "parent_task_id": "",
            "required_resources": needs or {},
        }

    def _call(self) -> Row:
        of = {"name": f"{self._class}.work", "func_or_class_name": f"{self._class}.work", "type": "ACTOR_TASK"}
        return self._task("", "") | of | {"actor_id": self._actor._actor_id.hex()}

    def _actor_row(self) -> Row:
        return {
            "class_name": self._class,
            "job_id": self._job,
            "name": self._room,
            "is_detached": False,
            "num_restarts": int(self._story.restarts),
        }

    def _others(self, state: str, state_of_placed: str) -> dict[str, dict[str, Row]]:
        nowhere = [{"bundle_index": index, "unit_resources": NOWHERE, "node_id": None} for index in range(2)]
        placed = [
            {"bundle_index": index, "unit_resources": {"memory": index + 1.0}, "node_id": node_id}
            for index, node_id in enumerate(self._nodes)
        ]
        group = {"name": self._room, "creator_job_id": self._job, "state": state, "bundles": nowhere, "is_detached": False}
        groups = {
            self._group.id.hex(): group,
            self._placed.id.hex(): group | {"name": "", "state": state_of_placed, "bundles": placed},
        }
        job = {"status": "RUNNING", "type": "DRIVER", "end_time": None}
        worker = {"is_alive": True, "worker_type": "DRIVER", "exit_type": None, "exit_detail": None}
        return {"placement groups": groups, "jobs": {self._job: job}, "workers": {self._worker: worker}}

    # --- looks

    def look_until_right(self, wanted: dict[str, dict[str, Row]]) -> Look:
        """Return what is wrong after all patience."""
        until, pause_s = time.monotonic() + PATIENCE_S, LOOK_AGAIN_S
        while wrong := self._wrong(wanted):
            if time.monotonic() > until:
                return "value", wrong
            time.sleep(pause_s)
            pause_s *= 2
        return "value", RIGHT

    def _wrong(self, wanted: dict[str, dict[str, Row]]) -> list[str]:
        try:
            found = {table: rows_of(table) for table in wanted}
        except RayStateApiException as error:
            return [str(error)]
        pids = {row["worker_id"]: row["pid"] for row in found["workers"]}
        found["objects"] = [row for row in found.get("objects", ()) if row["pid"] == pids.get(self._worker)]
        wrong: list[str] = []
        for table, rows in wanted.items():
            for row_id, right in rows.items():
                shown = [row for row in found[table] if next(iter(row.values())) == row_id]
                if len(shown) == 1:
                    wrong += self._differences(shown[0], right, pids)
                elif shown or right.get("state") != "REMOVED":  # the gcs keeps few of these
                    wrong.append(f"{table}: {right} is {shown}")
        return wrong

    def _differences(self, row: Row, right: Row, pids: dict[str, int]) -> list[str]:
        shown = row | {"has_cause": row.get("death_cause") is not None}
        if IN in right:
            said = json.loads(kv._internal_kv_get(right[IN], namespace=self._room) or b"{}")
            right = right | {field: said.get(field) for field in ("node_id", "worker_id") if field in row}
            right |= {field: pids.get(said.get("worker_id", "")) for field in ("pid", "worker_pid") if field in row}
        wrong = {field: value for field, value in right.items() if field != IN and shown[field] != value}
        return [f"not {wrong}: {row}"] if wrong else []


def _end_task(ref: Any) -> None:
    minray.cancel(ref)
    minray.wait([ref], timeout=PATIENCE_S)


def _task(ref: Any) -> str:
    task: str = ref.task_id().hex()
    return task


def _pending(state: str) -> Row:
    return {"state": state, "node_id": None, "worker_id": None, "worker_pid": None, "error_type": None, "attempt_number": 0}


def _array() -> Any:
    """A small array, which travels beside the pickle stream."""
    return filled(ARRAY_BYTES, 7)


def check(array: Any) -> None:
    """Raise ValueError if an array has changed on its way."""
    if array.tobytes() != bytes([7]) * ARRAY_BYTES:
        raise ValueError("the array has changed")


def say_where(room: str, key: str) -> None:
    """Write down where this runs."""
    context = minray.get_runtime_context()
    place = {"node_id": context.get_node_id(), "worker_id": context.get_worker_id()}
    kv._internal_kv_put(key, json.dumps(place), namespace=room)


@minray.remote
def rest(room: str, array: Any) -> None:
    check(array)
    say_where(room, "rest")
    time.sleep(LONG_S)


@minray.remote
def say_node() -> str:
    return minray.get_runtime_context().get_node_id()


@minray.remote
def take(_: Any) -> None:
    """Take an argument."""


@minray.remote
def fail() -> None:
    raise ValueError("no")


@minray.remote
class Clerk:
    """An actor at work."""

    def __init__(self, room: str, array: Any) -> None:
        check(array)
        say_where(room, "clerk")

    def say(self) -> None:
        pass

    def work(self, seconds: float, array: Any) -> None:
        check(array)
        time.sleep(seconds)


@minray.remote
class Helper:
    """An actor that another one calls."""

    def __init__(self, room: str) -> None:
        say_where(room, "helper")

    def help(self) -> None:
        pass


@minray.remote
class Employer:
    """An actor whose call and task outlive it in the state API."""

    def employ(self, helper: Any) -> list[str]:
        helped, failed = helper.help.remote(), fail.options(num_cpus=0, max_retries=0).remote()
        minray.get(helped)
        minray.wait([failed])
        return [_task(helped), _task(failed)]


@minray.remote
class AsyncClerk:
    """An async actor at work."""

    def __init__(self, room: str, array: Any) -> None:
        check(array)
        say_where(room, "clerk")

    async def say(self) -> None:
        pass

    async def work(self, seconds: float, array: Any) -> None:
        check(array)
        await asyncio.sleep(seconds)
