"""Actors in programs: how they are made, found by name and ended, and the two classes that they are of.

A handle is bound under the name of the ``Create`` that made it, in every process that holds it; one that was found by name
is bound under that of its ``Find``, since it does not keep the actor alive. What actors are asked to do is a ``Call``
(``programs``), whose body is played in the actor's process.

Several ``Create`` may give one name, also in different drivers; they are alike then, so that it does not matter whose the
actor is that is there.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import minray
from minray.exceptions import ActorAlreadyExistsError, PendingCallsLimitExceeded
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from tests.spec.groups import SLOT
from tests.spec.stage import BORN, END, ERRORS, RUN, History, Outcome, Stage, Tagged

if TYPE_CHECKING:
    from tests.spec.model import Reading, Scope
    from tests.spec.programs import Call, Generate

GROUP = "io"
"""The one concurrency group that actors have."""
PARTING_STEPS = 5
"""In so many steps an actor cleans up."""
NAMESPACE = "spec"
"""Namespace of all named actors, whichever driver makes them."""


def away(place: int) -> NodeAffinitySchedulingStrategy:
    """On this one of the other nodes that live, or anywhere if that is not possible."""
    own = minray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in minray.nodes() if node["Alive"] and node["NodeID"] != own] or [own]
    return NodeAffinitySchedulingStrategy(others[place % len(others)], soft=True)


class Create(Tagged, frozen=True):
    """``Performer.options(...).remote(...)``."""

    name: str
    args: tuple[str, ...] = ()
    nested: tuple[str, ...] = ()
    """References and handles in a container, which the actor keeps."""
    max_restarts: int = 0
    max_task_retries: int = 0
    max_concurrency: int = 1
    is_async: bool = False
    """Whether its methods are coroutines, of which many run at once, unless it says how many."""
    num_cpus: int | None = None
    """None: one to be placed, none to live."""
    called: str = ""
    """The name that it is given."""
    detached: bool = False
    """Whether it lives on without its maker and without handles."""
    get_if_exists: bool = False
    seconds: float = 0.0
    """Seconds that its constructor takes,"""
    type: str = ""
    """and ends with this one of ``ERRORS``."""
    has_group: bool = False
    """Whether some of its calls may run in a concurrency group."""
    is_unordered: bool = False
    """Whether calls need not wait for those before them."""
    max_pending_calls: int = -1
    """By each handle."""
    group: str = ""
    """The placement group that it lives in, where it takes a slot and no CPU."""
    parting_s: float = 0.0
    """Seconds that it cleans up when it ends and is not killed."""
    away: int = -1
    """A place among the other nodes that live: there it would like to live."""

    def perform(self, stage: Stage) -> Outcome:
        args, nested = stage.bound(self.args), stage.bound(self.nested)
        actor_class = CLASSES[self.is_async, self.has_group].options(
            num_cpus=self.num_cpus,
            max_restarts=self.max_restarts,
            max_task_retries=self.max_task_retries,
            max_concurrency=None if self.is_async and self.max_concurrency == 1 else self.max_concurrency,
            name=self.called or None,
            namespace=NAMESPACE if self.called else None,
            lifetime="detached" if self.detached else None,
            get_if_exists=self.get_if_exists,
            max_pending_calls=self.max_pending_calls,
            scheduling_strategy="DEFAULT" if self.away < 0 else away(self.away),
            **({"allow_out_of_order_execution": True} if self.is_unordered else {}),
        )
        for group in stage.bound((self.group,)):
            strategy = PlacementGroupSchedulingStrategy(stage.refs[group])
            actor_class = actor_class.options(num_cpus=0, resources={SLOT: 1}, scheduling_strategy=strategy)
        outcome: Outcome = {"of": args + nested}
        try:
            handle = actor_class.remote(self, stage.pick(nested), *stage.pick(args).values())
        except ActorAlreadyExistsError:
            return outcome | {"taken": True}
        stage.refs[self.name] = handle
        return outcome | ({"is": handle._actor_id.hex()} if self.called else {})

    def cpus_to_be_placed(self) -> int:
        return 1 if self.num_cpus is None else self.num_cpus

    def keeps_order(self) -> bool:
        """Whether its calls begin one after the other."""
        return self.max_concurrency == 1 and not (self.is_async or self.has_group or self.is_unordered)

    def foresee(self, scope: Scope) -> None:
        scope.foresee_actor(self)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, self.args + self.nested, outcome)
        yield from reading.check_name(self, outcome)


class Find(Tagged, frozen=True):
    """``minray.get_actor``."""

    name: str
    called: str

    def perform(self, stage: Stage) -> Outcome:
        try:
            handle = minray.get_actor(self.called, namespace=NAMESPACE)
        except ValueError:
            return {"of": [], "found": False}
        stage.refs[self.name] = handle
        return {"of": [], "found": True, "is": handle._actor_id.hex()}

    def foresee(self, scope: Scope) -> None:
        scope.foresee_found(self)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_found(self, outcome)


class Kill(Tagged, frozen=True):
    """``minray.kill``, for good or not."""

    name: str
    actor: str
    """A handle, of ``Create`` or ``Find``."""
    no_restart: bool = True
    is_asked: bool = False
    """By ``__ray_terminate__`` instead, a call among others, unless it takes no more of them."""

    def perform(self, stage: Stage) -> Outcome:
        handles = stage.bound((self.actor,))
        for handle in handles:
            if self.is_asked:
                with contextlib.suppress(PendingCallsLimitExceeded):
                    stage.refs[handle].__ray_terminate__.remote()
            else:
                minray.kill(stage.refs[handle], no_restart=self.no_restart)
        return {"of": handles}

    def foresee(self, scope: Scope) -> None:
        scope.foresee_kill(self)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, (self.actor,), outcome)


class ExitActor(Tagged, frozen=True):
    """The end of a call: ``exit_actor``."""

    error = "ActorDiedError"

    def perform(self, name: str, stage: Stage) -> Any:
        minray.actor.exit_actor()


class Actor:
    """Base of both classes of actors."""

    def __init__(self, create: Create, nested: dict[str, Any], *args: Any) -> None:
        stage = Stage(nested)
        print(json.dumps([BORN, create.name, [stage.open(value) for value in args], list(nested)]))
        self._kept = dict(nested)
        self._parting_s = create.parting_s
        time.sleep(create.seconds)
        if create.type:
            raise ERRORS[create.type](create.name)

    def __ray_shutdown__(self) -> None:
        for _ in range(PARTING_STEPS if self._parting_s else 0):
            time.sleep(self._parting_s / PARTING_STEPS)

    def enter(self, call: Call, nested: dict[str, Any], args: tuple[Any, ...]) -> Stage:
        stage = Stage(nested)
        print(json.dumps([RUN, call.name, [stage.open(value) for value in args], list(nested)]))
        return stage

    def leave(self, call: Call, nested: dict[str, Any], stage: Stage, history: History) -> Any:
        print(json.dumps([END, call.name, history]))
        if call.keep:
            self._kept.update(nested)
        return call.body.end.perform(call.name, stage)


class Performer(Actor):
    """An actor whose methods are functions."""

    def perform(self, call: Call, nested: dict[str, Any], *args: Any) -> Any:
        stage = self.enter(call, nested, args)
        return self.leave(call, nested, stage, stage.play(call.body))

    def generate(self, operation: Generate, refs: dict[str, Any]) -> Iterator[Any]:
        yield from operation.items(refs)


class AsyncPerformer(Actor):
    """An actor whose methods are coroutines."""

    async def perform(self, call: Call, nested: dict[str, Any], *args: Any) -> Any:
        stage = self.enter(call, nested, args)
        return self.leave(call, nested, stage, await stage.play_awaiting(call.body))

    async def generate(self, operation: Generate, refs: dict[str, Any]) -> AsyncIterator[Any]:
        for item in operation.items(refs):
            yield item


CLASSES = {
    (is_async, has_group): minray.remote(concurrency_groups={GROUP: 2} if has_group else {})(performer)
    for is_async, performer in ((False, Performer), (True, AsyncPerformer))
    for has_group in (False, True)
}
