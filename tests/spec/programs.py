"""Programs over the public API as plain data: the operations of drivers, tasks and actors, with their outcomes.

A ``Program`` is a list of drivers. A driver is a ``Body``: operations, one after the other. The body of a task and of an
actor's call is a ``Body`` too, with an end (it returns, raises, exits, ...). Everything is a frozen record that JSON can
hold. ``perform`` plays a driver's body with ``import minray`` alone and returns its history: one plain outcome for each
operation.

Rules
  * The name of an operation is unique in its program. An object has the name of the operation that makes it, in every
    process that holds a reference to it. So leaving out an operation changes no other name.
  * A name that is not bound (its operation was left out, or failed) is passed over. Hence every part of a program can be
    left out, and the remainder is a program.
  * The value of every object is ``(its name, the references inside)``. A history says names, never values.
  * Every operation is one class: ``perform`` does it, ``foresee`` says what will be known of it, ``check`` compares its
    outcome with that. To add one, write the class, name it in ``Operation``, and let ``Writer`` or a variation draw it.
  * Tasks and actors print what they see, as JSON lines; that is their history.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import json
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec

import minray
from minray.common.gpus import CUDA_VARIABLE
from minray.exceptions import PendingCallsLimitExceeded, RayError
from minray.util.scheduling_strategies import (
    In,
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    NotIn,
    PlacementGroupSchedulingStrategy,
)
from tests.spec.abandoned import Abandon
from tests.spec.actors import GROUP, Create, ExitActor, Find, Kill, Settle, away
from tests.spec.awkward import Awkward
from tests.spec.bouquets import Bouquet
from tests.spec.brief import Brief
from tests.spec.bundles import Benches, Booths, Bundles, Crowd
from tests.spec.burdens import Burdens
from tests.spec.census import Census
from tests.spec.closures import Closure
from tests.spec.contests import Contest
from tests.spec.customs import Customs
from tests.spec.environments import Environments
from tests.spec.fickle import Fickle
from tests.spec.founders import Endowment, Founding
from tests.spec.frees import Free
from tests.spec.generators import Stream
from tests.spec.groups import Describe, FindGroup, Group, Ready, Remove, remove_groups
from tests.spec.grumblers import Grumbling
from tests.spec.hasty import Hasty
from tests.spec.held import Held
from tests.spec.homecomers import Homecoming
from tests.spec.homeless import Homeless
from tests.spec.inquiries import Inquiry
from tests.spec.job_environments import Hooked, Spoiled
from tests.spec.lanes import Lanes
from tests.spec.lines import Line
from tests.spec.looks import Look
from tests.spec.luggage import Luggage
from tests.spec.overtaken import Overtaken
from tests.spec.poured import Poured
from tests.spec.remade import Remade
from tests.spec.residents import Seating
from tests.spec.rushes import Rush
from tests.spec.smuggled import Smuggled
from tests.spec.spaces import Spaces
from tests.spec.stage import (
    END,
    ERRORS,
    RUN,
    ZONE,
    History,
    Outcome,
    Record,
    Stage,
    Tagged,
    parse_word,
    raised,
    value_of,
)
from tests.spec.stopped import Stopped
from tests.spec.stories import Story
from tests.spec.tools import Tool
from tests.spec.towers import Tower
from tests.spec.wishes import MARK, CallWishes, TaskWishes

if TYPE_CHECKING:
    from tests.spec.model import Reading, Scope

MOST_CALLS = 4
"""Upper bound, for estimates of time, of how often a call or a constructor runs with the retries that programs have."""
NOWHERE = "0a" * 16
"""The id of no node."""
NOBODY_S = "no task makes it any more"
"""The answer of ``why`` about an object that was freed."""


# --- Operations ---


class Submit(Tagged, frozen=True):
    """``execute.options(...).remote(...)``."""

    name: str
    body: Body
    args: tuple[str, ...] = ()
    """References at top level. The task gets their values (G11)."""
    nested: tuple[str, ...] = ()
    """References in a container. The task gets references."""
    num_cpus: int = 1
    resources: dict[str, int] = {}
    max_retries: int = 3
    retry_exceptions: bool = False
    retry_only: str = ""
    """The one of ``ERRORS`` that is retried, and no other; empty: as ``retry_exceptions`` says."""
    spread: bool = False
    group: str = ""
    """The placement group that it runs in."""
    returns: int = 1
    """Number of objects, with the same references inside. A task with none cannot be awaited or cancelled."""
    yields: bool = False
    """Whether a generator fills the returns. One that raises does so after all of them."""
    is_last: bool = False
    """Whether its worker runs nothing after it (``max_calls``), if it returns one object."""
    mark: str = ""
    """The value of ``MARK`` in the environment of its worker; empty: the environment of its parent."""
    node: int = -1
    """Place, among the nodes that live, of the node that it runs on; -1: any."""
    is_soft: bool = True
    """Whether it may run elsewhere if that node or zone cannot run it."""
    nowhere: bool = False
    """Whether it is bound to a node that has never existed, instead."""
    gpus: float = 0.0
    """Number of GPUs: a whole number, or a part of one."""
    zone: str = ""
    """Value that the label ``ZONE`` of its node has to have, or should have (``is_soft``); ``!b``: any but ``b``."""

    def may_run_in(self, zone: str) -> bool:
        """Whether it may run on a node whose label ``ZONE`` has this value."""
        is_forbidden = self.zone.startswith("!")
        return not self.zone or self.is_soft or (zone == self.zone.removeprefix("!")) != is_forbidden

    def parts(self) -> list[str]:
        """Names of the objects that it returns: ``task3``, ``task3.2``, ``task3.3``."""
        return [self.name if number == 1 else f"{self.name}.{number}" for number in range(1, self.returns + 1)]

    def perform(self, stage: Stage) -> Outcome:
        args, nested = stage.bound(self.args), stage.bound(self.nested)
        outcome: Outcome = {"of": args + nested}
        strategy: Any = "SPREAD" if self.spread else "DEFAULT"
        for group in stage.bound((self.group,)):
            strategy = PlacementGroupSchedulingStrategy(stage.refs[group])
        options: dict[str, Any] = {
            "num_cpus": self.num_cpus,
            "resources": dict(self.resources),
            "max_retries": self.max_retries,
            "retry_exceptions": retried_exceptions(self),
            "scheduling_strategy": strategy,
            "name": self.name,
        }
        if self.gpus:
            options["num_gpus"] = self.gpus
        if self.zone and self.is_soft:
            expression = NotIn(self.zone[1:]) if self.zone.startswith("!") else In(self.zone)
            options["scheduling_strategy"] = NodeLabelSchedulingStrategy({}, soft={ZONE: expression})
        elif self.zone:
            options["label_selector"] = {ZONE: self.zone}
            outcome["zones"] = {node["NodeID"]: node["Labels"].get(ZONE, "") for node in minray.nodes()}
        if self.mark:
            options["runtime_env"] = {"env_vars": {MARK: self.mark}}
        if self.node >= 0:
            nodes = [node for node in minray.nodes() if node["Alive"]]
            node_id = NOWHERE if self.nowhere else nodes[self.node % len(nodes)]["NodeID"]
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node_id, soft=self.is_soft)
            outcome["on"] = node_id
        options = self.wished(options, stage)
        values = stage.pick(args).values()
        if self.returns == 0:
            execute.options(num_returns=0, **options).remote(self.name, self.body, stage.pick(nested), *values)
        elif self.returns == 1:
            task = self.function().options(**options)
            stage.refs[self.name] = task.remote(self.name, self.body, stage.pick(nested), *values)
        else:
            parted = (yield_parts if self.yields else execute_in_parts).options(num_returns=self.returns, **options)
            refs = parted.remote(self.parts(), self.body, stage.pick(nested), *values)
            stage.refs.update(zip(self.parts(), refs, strict=True))
        return outcome

    def wished(self, options: dict[str, Any], stage: Stage) -> dict[str, Any]:
        """Return the options with those that only a kind of ``Submit`` has."""
        return options

    def function(self) -> Any:
        """Return the remote function that returns one object."""
        return execute_last if self.is_last else execute

    def foresee(self, scope: Scope) -> None:
        scope.foresee_task(self)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, self.args + self.nested, outcome)


class Order(Submit, frozen=True):
    """A ``Submit`` with options that programs say rarely."""

    wishes: TaskWishes = TaskWishes()

    def wished(self, options: dict[str, Any], stage: Stage) -> dict[str, Any]:
        wishes, groups = self.wishes, [stage.refs[name] for name in stage.bound((self.group,))]
        changed = wishes.options(options, groups[0] if groups else None)
        if wishes.cpus and self.num_cpus:
            changed["num_cpus"] = wishes.cpus
        if wishes.in_bundle and groups and not self.resources:
            if wishes.in_old_words:
                changed["placement_group_bundle_index"] = 0
            else:
                changed["scheduling_strategy"] = PlacementGroupSchedulingStrategy(groups[0], 0, wishes.captures)
        return changed

    def function(self) -> Any:
        return execute_thrice if self.wishes.most_calls else super().function()


class Call(Tagged, frozen=True):
    """``handle.perform.options(...).remote(...)``."""

    name: str
    actor: str
    """A handle, of ``Create`` or ``Find``."""
    body: Body
    args: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    keep: bool = False
    """Whether the actor keeps what is in the container, as long as it lives."""
    max_task_retries: int | None = None
    """None: as the actor says."""
    retry_exceptions: bool = False
    retry_only: str = ""
    """The one of ``ERRORS`` that is retried, and no other; empty: as ``retry_exceptions`` says."""
    in_group: bool = False
    """Whether it runs in the actor's concurrency group."""

    def perform(self, stage: Stage) -> Outcome:
        handles, args, nested = stage.bound((self.actor,)), stage.bound(self.args), stage.bound(self.nested)
        outcome: Outcome = {"of": handles + args + nested}
        for handle in handles:
            method = stage.refs[handle].perform.options(
                max_task_retries=self.max_task_retries,
                retry_exceptions=retried_exceptions(self),
                name=self.name,
                **({"concurrency_group": GROUP} if self.in_group else {}),
                **self.wished(),
            )
            try:
                made = method.remote(self, stage.pick(nested), *stage.pick(args).values())
                stage.refs.update(zip(self.parts(), made if isinstance(made, list) else [made], strict=True))
            except PendingCallsLimitExceeded:
                outcome["refused"] = True
        return outcome

    def parts(self) -> list[str]:
        """Names of the objects that it returns."""
        return [self.name]

    def wished(self) -> dict[str, Any]:
        """Return the options that only a kind of ``Call`` has."""
        return {}

    def divided(self, value: Any) -> Any:
        """Return what the method returns for this value of its end."""
        return value

    def foresee(self, scope: Scope) -> None:
        scope.foresee_call(self)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (self.actor, *self.args, *self.nested), outcome)
        if "refused" in outcome and self.name not in reading.model.perhaps_refused:
            yield f"G55: {self.name} was refused, although its handle cannot have too many pending calls"


class Ask(Call, frozen=True):
    """A ``Call`` with options that programs say rarely."""

    wishes: CallWishes = CallWishes()

    def parts(self) -> list[str]:
        return [self.name, *(f"{self.name}.{number}" for number in range(2, self.wishes.returns + 1))]

    def wished(self) -> dict[str, Any]:
        returns = {"num_returns": self.wishes.returns} if self.wishes.returns > 1 else {}
        return returns | ({"enable_task_events": False} if self.wishes.is_unrecorded else {})

    def divided(self, value: Any) -> Any:
        return [_part(part, value) for part in self.parts()] if self.wishes.returns > 1 else value


class Put(Tagged, frozen=True):
    """``minray.put`` of a value with references inside."""

    name: str
    refs: tuple[str, ...] = ()
    padding: int = 0
    """Bytes of an array beside the references."""

    def perform(self, stage: Stage) -> Outcome:
        names = stage.bound(self.refs)
        stage.refs[self.name] = minray.put(value_of(self.name, stage.pick(names), self.padding))
        return {"of": names}

    def foresee(self, scope: Scope) -> None:
        scope.foresee_put(self.name, self.refs)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, self.refs, outcome)


class Get(Tagged, frozen=True):
    """``minray.get`` of one reference or of a list."""

    name: str
    refs: tuple[str, ...] = ()
    timeout: float | None = None

    def perform(self, stage: Stage) -> Outcome:
        names = stage.bound(self.refs)
        try:
            if len(names) == 1:
                values = [minray.get(stage.refs[names[0]], timeout=self.timeout)]
            else:
                values = minray.get([stage.refs[name] for name in names], timeout=self.timeout)
        except RayError as error:
            return {"of": names, "error": type(error).__name__}
        return {"of": names, "values": [stage.open(value) for value in values]}

    def foresee(self, scope: Scope) -> None:
        scope.foresee_get(self.refs if self.timeout is None else ())

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, self.refs, outcome)
        if "error" in outcome:
            yield from reading.check_error(self.name, outcome["of"], outcome["error"], self.timeout)
        elif [parse_word(word)[0] for word in outcome["values"]] != outcome["of"]:
            yield f"G6: {self.name} asked for {outcome['of']} and got {outcome['values']}"
        else:
            for word in outcome["values"]:
                yield from reading.check_value(self.name, word)
            reading.note_ends(outcome["values"])


class Await(Get, frozen=True):
    """``await`` of all references at once, in ``asyncio.wait_for``; outside of coroutines in a new event loop."""

    lets_go: bool = False
    """Whether only the ``await`` itself holds the references meanwhile."""

    def perform(self, stage: Stage) -> Outcome:
        try:
            return asyncio.run(self.perform_awaiting(stage))
        except KeyboardInterrupt as interrupt:  # asyncio keeps it in a cycle, and its frames would keep our references
            raise interrupt.with_traceback(None) from None

    async def perform_awaiting(self, stage: Stage) -> Outcome:
        names = stage.bound(self.refs)
        take = stage.refs.pop if self.lets_go else stage.refs.__getitem__
        try:
            values = await asyncio.wait_for(_all_of([take(name) for name in names]), self.timeout)
        except TimeoutError:
            return {"of": names, "late": True}
        if isinstance(values, RayError):
            return {"of": names, "error": type(values).__name__}
        return {"of": names, "values": [stage.open(value) for value in values]}

    def foresee(self, scope: Scope) -> None:
        super().foresee(scope)
        if self.lets_go:
            scope.sure.difference_update(self.refs)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        """Allow a time-out although the value is here: an event loop needs some time to return it."""
        if "late" not in outcome or self.timeout is None:
            yield from super().check(reading, outcome)
        else:
            yield from reading.check_names(self.name, self.refs, outcome)


async def _all_of(refs: list[Any]) -> list[Any] | RayError:
    """Await all of them, and empty the list so that the caller does not hold them.

    An error is returned without its frames, not raised. Its frames would keep those of ``wait_for``, and these keep the task
    that has the error (since Python 3.12 the awaiting coroutine). Futures are cancelled because asyncio would keep one that
    is not done when the loop ends, in a cycle.
    """
    futures = [refs.pop(0).as_future() for _ in range(len(refs))]
    try:
        return await asyncio.gather(*futures)
    except RayError as error:
        return error.with_traceback(None)
    finally:
        while futures:
            futures.pop().cancel()


class Peek(Tagged, frozen=True):
    """``ref.future()`` of each reference, and ``cancel`` of the futures that are not done after ``seconds``."""

    name: str
    refs: tuple[str, ...] = ()
    seconds: float = 0.0
    lets_go: bool = False
    """Whether only the futures hold the references meanwhile."""

    def perform(self, stage: Stage) -> Outcome:
        names = stage.bound(self.refs)
        take = stage.refs.pop if self.lets_go else stage.refs.__getitem__
        futures = {name: take(name).future() for name in names}
        time.sleep(self.seconds)
        shown = [(name, _value_or_error(stage, future)) for name, future in futures.items() if not future.cancel()]
        return {"of": names, "shown": shown}

    def foresee(self, scope: Scope) -> None:
        if self.lets_go:
            scope.sure.difference_update(self.refs)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, self.refs, outcome)
        for name, (kind, shown) in outcome["shown"]:
            if kind == "error":
                yield from reading.check_error(self.name, [name], shown, None)
            elif parse_word(shown)[0] != name:
                yield f"G6: {self.name} asked for {name} and got {shown}"
            else:
                yield from reading.check_value(self.name, shown)
        reading.note_ends([shown for _, (kind, shown) in outcome["shown"] if kind == "value"])


def _value_or_error(stage: Stage, future: concurrent.futures.Future[Any]) -> tuple[str, str]:
    """Read a future that is done, or about to be.

    A frame that raises the future's error is in a cycle of future, error and frame, which keeps the references in it.
    """
    error = future.exception()
    if error is None:
        return "value", stage.open(future.result())
    if isinstance(error, RayError):
        return "error", type(error).__name__
    raise error


class Wait(Tagged, frozen=True):
    """``minray.wait``."""

    name: str
    refs: tuple[str, ...] = ()
    num_returns: int = 1
    """Number of references to wait for; all that are bound, if those are fewer."""
    timeout: float | None = None

    def perform(self, stage: Stage) -> Outcome:
        names = stage.bound(self.refs)
        if not names:
            return {"of": [], "ready": [], "rest": []}
        by_ref = {stage.refs[name]: name for name in names}
        ready, rest = minray.wait(list(by_ref), num_returns=min(self.num_returns, len(names)), timeout=self.timeout)
        return {"of": names, "ready": [by_ref[ref] for ref in ready], "rest": [by_ref[ref] for ref in rest]}

    def foresee(self, scope: Scope) -> None:
        scope.foresee_get(())

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, self.refs, outcome)
        names, ready, rest = outcome["of"], outcome["ready"], outcome["rest"]
        if ready != [name for name in names if name in ready] or rest != [name for name in names if name not in ready]:
            yield f"G8: {self.name} of {names} returned {ready} and {rest}"
        wanted = min(self.num_returns, len(names))
        least = wanted if self.timeout is None else min(wanted, sum(map(reading.is_there, names)))
        if not least <= len(ready) <= wanted:
            yield f"G8: {self.name} wanted {wanted} of {names} and returned {len(ready)}"
        reading.ready.update(ready)


class Glance(Wait, frozen=True):
    """A ``Wait`` that fetches no value (``fetch_local``). It asks for one reference twice before, and is refused."""

    def perform(self, stage: Stage) -> Outcome:
        names = stage.bound(self.refs)
        if not names:
            return {"of": [], "ready": [], "rest": [], "refused": True}
        by_ref = {stage.refs[name]: name for name in names}
        try:
            minray.wait([next(iter(by_ref))] * 2, timeout=self.timeout)
            is_refused = False
        except ValueError:
            is_refused = True
        wanted = min(self.num_returns, len(names))
        ready, rest = minray.wait(list(by_ref), num_returns=wanted, timeout=self.timeout, fetch_local=False)
        shown = {"ready": [by_ref[ref] for ref in ready], "rest": [by_ref[ref] for ref in rest]}
        return {"of": names, "refused": is_refused, **shown}

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from super().check(reading, outcome)
        if not outcome["refused"]:
            yield f"G8: {self.name} waited for one reference twice, and was not refused"


class Cancel(Tagged, frozen=True):
    """``minray.cancel`` of a task, or of a call, which is never forced."""

    name: str
    ref: str
    force: bool = False
    recursive: bool = True

    def perform(self, stage: Stage) -> Outcome:
        names = stage.bound((self.ref,))
        for name in names:
            minray.cancel(stage.refs[name], force=self.force, recursive=self.recursive)
        return {"of": names, "at": time.time()}

    def foresee(self, scope: Scope) -> None:
        """Change nothing: ``Model`` has noted all cancellations before, since they strike at any time."""

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (self.ref,), outcome)


class Drop(Tagged, frozen=True):
    """``del ref``."""

    name: str
    ref: str

    def perform(self, stage: Stage) -> Outcome:
        return {"of": [self.ref] if stage.refs.pop(self.ref, None) is not None else []}

    def foresee(self, scope: Scope) -> None:
        scope.sure.discard(self.ref)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (self.ref,), outcome)


class Generate(Tagged, frozen=True):
    """``generate.options(...).remote(...)``. Its first items are read at once; a ``ReadOn`` may read more later.

    An item has the name of the generator with its position: ``generator3.1``.
    """

    name: str
    yields: int = 3
    read: int = 4
    """Number of times that the reader asks for the next item."""
    refs: tuple[str, ...] = ()
    """References inside each item."""
    pause_s: float = 0.0
    """Seconds before each item."""
    type: str = ""
    """The one of ``ERRORS`` that it raises after all items; empty: none."""
    most_unread: int = -1
    """Number of unread items at which it pauses (``_generator_backpressure_num_objects``); -1: it never pauses."""
    max_retries: int = 3
    cancel: bool = False
    """Whether the reader cancels it after its items, instead of just dropping it."""
    actor: str = ""
    """The handle of the actor that generates; empty: a task generates."""
    spread: bool = False
    """Whether its task has the scheduling strategy ``SPREAD``."""
    rest: int = 0
    """Number of further times that a ``ReadOn`` asks later."""
    only_takes: bool = False
    """Whether the reader gets no item's value. Items stay where they were made until another process wants them."""
    away: int = -1
    """Place, among the other nodes that live, of the node on which the task would like to run; -1: any."""
    in_loop: bool = False
    """Whether the reader asks in a new event loop each time."""

    def perform(self, stage: Stage) -> Outcome:
        handles, names = stage.bound((self.actor,)) if self.actor else [], stage.bound(self.refs)
        if self.actor and not handles:
            return {"of": names, "items": []}
        if self.actor:
            function = stage.refs[self.actor].generate.options(**self._options(), max_task_retries=self.max_retries)
        else:
            function = generate.options(
                **self._options(),
                max_retries=self.max_retries,
                scheduling_strategy=away(self.away) if self.away >= 0 else "SPREAD" if self.spread else "DEFAULT",
            )
        unread = Unread(self, function.remote(self, stage.pick(names)))
        items = unread.read_to(self.read, stage)
        if self.rest:
            stage.refs[rest_of(self.name)] = unread
        elif self.cancel:
            minray.cancel(unread.generator)
        return {"of": handles + names, "items": items}

    def _options(self) -> dict[str, Any]:
        return {"_generator_backpressure_num_objects": self.most_unread, "name": self.name}

    def items(self, refs: dict[str, Any]) -> Iterator[Any]:
        """Generate the items."""
        for number in range(1, self.yields + 1):
            time.sleep(self.pause_s)
            yield f"{self.name}.{number}", refs
        if self.type:
            raise ERRORS[self.type](self.name)

    def item_names(self) -> list[str]:
        """Names of all items that may ever be read."""
        return self.first_names(self.read + self.rest)

    def first_names(self, most: int) -> list[str]:
        return [f"{self.name}.{number}" for number in range(1, min(self.yields, most) + 1)]

    def foresee(self, scope: Scope) -> None:
        scope.foresee_items(self, self.first_names(self.read))

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, ((self.actor,) if self.actor else ()) + self.refs, outcome)
        if not self.actor or self.actor in outcome["of"]:
            yield from reading.check_items(self, outcome["items"])


def rest_of(generator: str) -> str:
    """Name under which a generator is bound that is read later."""
    return f"rest of {generator}"


class Unread:
    """A generator, and the items that it has shown."""

    def __init__(self, operation: Generate, generator: Any) -> None:
        self.operation = operation
        self.generator = generator
        self.items: list[list[str]] = []

    def read_to(self, most: int, stage: Stage) -> list[list[str]]:
        """Ask until it has shown ``most`` items or ends. Return all items that it has ever shown."""
        while len(self.items) < most and ["end", ""] not in self.items:
            ref = asyncio.run(_next_of(self.generator)) if self.operation.in_loop else next(self.generator, None)
            if ref is None:
                self.items.append(["end", ""])
                break
            if self.operation.only_takes and len(self.items) < self.operation.yields:
                self.items.append(["ref", ""])
                stage.refs[f"{self.operation.name}.{len(self.items)}"] = ref
                continue
            try:
                value = minray.get(ref)
            except RayError as error:
                self.items.append(["error", type(error).__name__])
            else:
                self.items.append(["value", stage.open(value)])
                stage.refs[value[0]] = ref
        return list(self.items)


async def _next_of(generator: Any) -> Any:
    """Ask for the next item; None at the end."""
    return await anext(generator, None)


class ReadOn(Tagged, frozen=True):
    """``next`` of a generator that was read in part before, and ``minray.get`` of each item."""

    name: str
    generator: str

    def perform(self, stage: Stage) -> Outcome:
        unread: Unread | None = stage.refs.pop(rest_of(self.generator), None)
        if unread is None:
            return {"of": []}
        known, most = len(unread.items), unread.operation.read + unread.operation.rest
        return {"of": [], "known": known, "items": unread.read_to(most, stage)}

    def foresee(self, scope: Scope) -> None:
        generator = scope.model.generators.get(self.generator)
        if generator is not None and generator.rest and self.generator in scope.asked:
            scope.foresee_items(generator, generator.item_names()[len(generator.first_names(generator.read)) :])

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (), outcome)
        if "items" in outcome:
            generator = reading.model.generators[self.generator]
            yield from reading.check_items(generator, outcome["items"], outcome["known"])


class Why(Tagged, frozen=True):
    """``minray.why``."""

    name: str
    ref: str

    def perform(self, stage: Stage) -> Outcome:
        names = stage.bound((self.ref,))
        return {"of": names, "why": [minray.why(stage.refs[name]) for name in names]}

    def foresee(self, scope: Scope) -> None:
        """Change nothing: ``why`` only asks."""

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (self.ref,), outcome)
        for text in outcome["why"]:
            if not text or NOBODY_S in text:
                yield f"L8: {self.name} of {self.ref}, which is held here, says {text!r}"


class Sleep(Tagged, frozen=True):
    """``time.sleep``; in the simulation this is virtual time."""

    name: str
    seconds: float

    def perform(self, stage: Stage) -> Outcome:
        begun = time.time()
        time.sleep(self.seconds)
        return {"of": [], "begun": begun, "ended": time.time()}

    async def perform_awaiting(self, stage: Stage) -> Outcome:
        begun = time.time()
        await asyncio.sleep(self.seconds)
        return {"of": [], "begun": begun, "ended": time.time()}

    def foresee(self, scope: Scope) -> None:
        """Change nothing: time binds no name."""

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (), outcome)


Operation = (
    Submit | Order | Put | Get | Await | Peek | Wait | Glance | Cancel | Drop | Free | Generate | ReadOn | Why | Look | Sleep
    | Create | Settle | Call | Ask | Find | Kill | Group | Ready | FindGroup | Describe | Remove
    | Abandon | Seating | Stream | Bundles | Spaces | Lanes | Closure | Environments | Tool | Awkward
    | Founding | Endowment | Grumbling | Homecoming | Hooked | Spoiled | Contest | Burdens | Luggage
    | Benches | Line | Booths | Homeless | Smuggled | Tower | Inquiry | Customs | Bouquet | Overtaken | Fickle
    | Held | Stopped | Poured | Crowd | Hasty | Rush | Remade | Brief | Census
)


# --- The ends of tasks ---


class Return(Tagged, frozen=True):
    """The task's value holds these references."""

    refs: tuple[str, ...] = ()
    padding: int = 0
    """Bytes of an array beside them."""
    error = ""
    """Error that ``get`` raises for this end; empty: none."""

    def perform(self, name: str, stage: Stage) -> Any:
        return value_of(name, stage.pick(stage.bound(self.refs)), self.padding)


class Raise(Tagged, frozen=True):
    """The task raises one of ``ERRORS``."""

    type: str = "ValueError"

    def perform(self, name: str, stage: Stage) -> Any:
        raise ERRORS[self.type](name)

    @property
    def error(self) -> str:
        return f"RayTaskError({self.type})"


class RaiseAtFirst(Tagged, frozen=True):
    """The task raises the first time in each process; the next time it returns. An actor is one process."""

    type: str = "ValueError"
    refs: tuple[str, ...] = ()

    def perform(self, name: str, stage: Stage) -> Any:
        place = (minray.get_runtime_context().get_worker_id(), name)
        if place not in raised:
            raised.add(place)
            raise ERRORS[self.type](name)
        return name, stage.pick(stage.bound(self.refs))

    @property
    def error(self) -> str:
        return f"RayTaskError({self.type})"


class Exit(Tagged, frozen=True):
    """The task ends its process, every time it runs."""

    code: int = 1
    """Exit code. It is not 0 for a call that ``raises``: 0 ends the actor in good order, as ``ExitActor`` does."""
    raises: bool = False
    """Whether it calls ``sys.exit``, which lets the process clean up, instead of ``os._exit``."""
    error = "WorkerCrashedError"

    def perform(self, name: str, stage: Stage) -> Any:
        if self.raises:
            sys.exit(self.code)
        os._exit(self.code)


class ReturnUnpicklable(Tagged, frozen=True):
    """The task returns a lock, which cannot be pickled."""

    error = "RayTaskError(TypeError)"

    def perform(self, name: str, stage: Stage) -> Any:
        return threading.Lock()


class Miscount(Tagged, frozen=True):
    """The task, which should return several objects, returns one too few, or one too many (``is_more``)."""

    is_more: bool = False
    error = "RayTaskError(ValueError)"

    def perform(self, name: str, stage: Stage) -> Any:
        return name, {}

    def counted(self, parts: list[str]) -> list[str]:
        return [*parts, parts[0]] if self.is_more else parts[:-1]


class Leave(Tagged, frozen=True):
    """The end of a driver that does not wait: it disconnects in good order, and its tasks end with it."""

    error = ""

    def perform(self, name: str, stage: Stage) -> Any:
        return None


End = Leave | Return | Raise | RaiseAtFirst | Exit | ReturnUnpicklable | Miscount | ExitActor


class Body(Record, frozen=True):
    """Operations of a driver or a task."""

    operations: tuple[Operation, ...] = ()
    end: End = Return()
    """A driver has ``Leave`` or ``Exit`` here, or ``Return()``: then it stays until all drivers are through."""

    def walk(self) -> Iterator[Operation]:
        """All operations; those of a task or call follow the one that submits it."""
        for operation in self.operations:
            yield operation
            if isinstance(operation, Submit | Call):
                yield from operation.body.walk()

    def tasks_of_job(self) -> Iterator[Submit]:
        """Tasks that belong to its driver's job. Those that actors submit are of the job that has made the actor."""
        for operation in self.operations:
            if isinstance(operation, Submit):
                yield operation
                yield from operation.body.tasks_of_job()


def retried_exceptions(task: Submit | Call) -> bool | list[type[Exception]]:
    """Value of the option ``retry_exceptions``."""
    return [ERRORS[task.retry_only]] if task.retry_only else task.retry_exceptions


def retries_its_exception(task: Submit | Call) -> bool:
    """Whether it is retried for what its end raises."""
    end = task.body.end
    if not task.retry_only:
        return task.retry_exceptions
    return isinstance(end, Raise | RaiseAtFirst) and end.type == task.retry_only


class Program(Record, frozen=True):
    """The program of a scenario."""

    drivers: tuple[Body, ...] = ()

    def walk(self) -> Iterator[Operation]:
        for driver in self.drivers:
            yield from driver.walk()

    def leavers(self) -> set[int]:
        """Numbers of the drivers that leave or exit before the others are through."""
        return {number for number, driver in enumerate(self.drivers) if isinstance(driver.end, Leave | Exit)}

    def tasks(self) -> list[Submit]:
        return [operation for operation in self.walk() if isinstance(operation, Submit)]

    def performances(self) -> list[Submit | Call]:
        """Tasks and calls: the operations with a body of their own."""
        return [operation for operation in self.walk() if isinstance(operation, Submit | Call)]

    def actors(self) -> list[Create]:
        return [operation for operation in self.walk() if isinstance(operation, Create)]

    def names_actors_well(self) -> bool:
        """Whether every ``Create`` that needs a name has one, and all with one name have the same options."""
        by_name: dict[str, Create] = {}
        named = [msgspec.structs.replace(create, name="") for create in self.actors() if create.called]
        are_alike = all(by_name.setdefault(create.called, create) == create for create in named)
        return are_alike and all(create.called or not (create.detached or create.get_if_exists) for create in self.actors())

    def speakers(self) -> set[str]:
        """Names of the tasks, calls and actors that print lines."""
        return {one.name for one in (*self.performances(), *self.actors())}

    def busy_s(self) -> float:
        """Upper bound, in seconds, of the time that it takes on one CPU, with all retries."""
        return sum(_busy_s(driver) for driver in self.drivers)

    def most_retries(self) -> int:
        """Upper bound of the retries of all tasks and calls together."""
        return sum(one.max_retries if isinstance(one, Submit) else MOST_CALLS for one in self.performances())


def has_wishes(program: Program) -> bool:
    """Whether its nodes need the resources of ``RICHES``."""
    return any(isinstance(operation, Story | Order | Settle) for operation in program.walk())


def _busy_s(body: Body) -> float:
    total = 0.0
    for operation in body.operations:
        if isinstance(operation, Sleep | Peek):
            total += operation.seconds
        elif isinstance(operation, Look):
            total += operation.pause_s
        elif isinstance(operation, Submit):
            total += _busy_s(operation.body) * (operation.max_retries + 1)
        elif isinstance(operation, Call):
            total += _busy_s(operation.body) * MOST_CALLS
        elif isinstance(operation, Create):
            total += operation.seconds * MOST_CALLS
        elif isinstance(operation, Generate):
            tries = MOST_CALLS if operation.max_retries < 0 else operation.max_retries + 1
            total += operation.yields * operation.pause_s * tries
        elif isinstance(operation, Abandon):
            total += operation.busy_s()
        elif isinstance(operation, Get | Wait):
            total += (operation.timeout or 0) * (2 if isinstance(operation, Glance) else 1)
        elif isinstance(operation, Story):
            total += operation.busy_s()
    return total


@minray.remote
def execute(name: str, body: Body, nested: dict[str, Any], *args: Any) -> Any:
    """Run a task that returns one value, or none."""
    return body.end.perform(name, _played(name, body, nested, args))


@minray.remote(max_calls=1)
def execute_last(name: str, body: Body, nested: dict[str, Any], *args: Any) -> Any:
    """Run a task that returns one value, as the last of its worker."""
    return body.end.perform(name, _played(name, body, nested, args))


@minray.remote(max_calls=3)
def execute_thrice(name: str, body: Body, nested: dict[str, Any], *args: Any) -> Any:
    """Run a task that returns one value, as one of three of its worker."""
    return body.end.perform(name, _played(name, body, nested, args))


def _played(name: str, body: Body, nested: dict[str, Any], args: tuple[Any, ...]) -> Stage:
    stage = Stage(nested)
    context = minray.get_runtime_context()
    place = [context.get_node_id(), os.environ.get(MARK, ""), minray.get_gpu_ids()]
    place += [context.get_job_id(), context.get_assigned_resources(), os.environ.get(CUDA_VARIABLE, "")]
    print(json.dumps([RUN, name, [stage.open(value) for value in args], list(nested), *place]))
    print(json.dumps([END, name, stage.play(body)]))
    return stage


@minray.remote
def execute_in_parts(parts: list[str], body: Body, nested: dict[str, Any], *args: Any) -> Any:
    """Run a task that returns several values."""
    value = body.end.perform(parts[0], _played(parts[0], body, nested, args))
    return [_part(part, value) for part in _counted(parts, body.end)]


@minray.remote
def yield_parts(parts: list[str], body: Body, nested: dict[str, Any], *args: Any) -> Iterator[Any]:
    """Run a task whose several values come from a generator."""
    stage = _played(parts[0], body, nested, args)
    try:
        value = body.end.perform(parts[0], stage)
    except Exception:
        yield from [(part, {}) for part in parts]
        raise
    yield from [_part(part, value) for part in _counted(parts, body.end)]


def _counted(parts: list[str], end: End) -> list[str]:
    return end.counted(parts) if isinstance(end, Miscount) else parts


def _part(name: str, value: Any) -> Any:
    """Make one of several values. A value that cannot be pickled is in each of them."""
    return (name, *value[1:]) if isinstance(value, tuple) else value


@minray.remote
def generate(operation: Generate, refs: dict[str, Any]) -> Iterator[Any]:
    """Generate items in a task."""
    yield from operation.items(refs)


def perform(driver: Body, stage: Stage) -> History:
    """Play a driver's body in a process that is connected to a cluster, and remove its placement groups at the end.

    For a driver that leaves or exits, the cluster removes them.
    """
    history = stage.play(driver)
    if isinstance(driver.end, Leave | Exit):
        driver.end.perform("", stage)
    else:
        remove_groups(stage)
    return history
