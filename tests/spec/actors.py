"""Actors in programs: operations that create, find and kill them, and the classes of the actors themselves.

A handle is bound under the name of the ``Create`` that made it, in every process that holds it. A handle that was found by
name is bound under the name of its ``Find``. A ``Call`` (``programs``) is the call of a method; its body is played in the
actor's process.

Several ``Create`` may give one name, in different drivers too. They have the same options then, so it does not matter which
of them has made the actor that exists.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import AsyncIterator, Iterator
from typing import TYPE_CHECKING, Any

import minray
from minray.exceptions import ActorAlreadyExistsError, PendingCallsLimitExceeded
from minray.util.placement_group import PlacementGroup
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from tests.spec.groups import SLOT
from tests.spec.stage import BORN, END, ERRORS, RUN, History, Outcome, Stage, Tagged, made
from tests.spec.wishes import A_PART, MARK, SEAT, ActorWishes

if TYPE_CHECKING:
    from tests.spec.model import Reading, Scope
    from tests.spec.programs import Call, Generate

GROUP = "io"
"""The concurrency group that actors have; there is no other."""
PARTING_STEPS = 5
"""Number of sleeps in which an actor cleans up: faults can strike between them."""
NAMESPACE = "spec"
"""Namespace of all named actors. All drivers share it."""


def away(place: int) -> NodeAffinitySchedulingStrategy:
    """Prefer the node at this place among the other nodes that live; run anywhere if that is not possible."""
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
    """Whether its methods are coroutines; many run at once, unless ``max_concurrency`` is more than 1."""
    num_cpus: int | None = None
    """Number of CPUs. None: Ray's default, one to be placed and none to live."""
    called: str = ""
    """The actor's name; empty: none."""
    detached: bool = False
    """Whether it lives on without its maker and without handles."""
    get_if_exists: bool = False
    seconds: float = 0.0
    """Seconds that its constructor takes."""
    type: str = ""
    """The one of ``ERRORS`` that its constructor raises; empty: none."""
    has_group: bool = False
    """Whether some of its calls may run in a concurrency group."""
    is_unordered: bool = False
    """Whether a call need not wait for earlier calls (``allow_out_of_order_execution``)."""
    max_pending_calls: int = -1
    """Number of pending calls that each handle may have; -1: any."""
    group: str = ""
    """The placement group that it lives in. It takes a slot there and no CPU; empty: none."""
    parting_s: float = 0.0
    """Seconds that ``__ray_shutdown__`` takes when the actor ends without being killed."""
    away: int = -1
    """Place, among the other nodes that live, of the node on which it would like to live; -1: any."""

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
        actor_class = actor_class.options(**self.wished(stage))
        for group in stage.bound((self.group,)):
            actor_class = actor_class.options(num_cpus=0, resources={SLOT: 1}, **self.housed(stage.refs[group]))
        outcome: Outcome = {"of": args + nested}
        try:
            handle = actor_class.remote(self, stage.pick(nested), *stage.pick(args).values())
        except ActorAlreadyExistsError:
            return outcome | {"taken": True}
        stage.refs[self.name] = handle
        if not self.called:
            made[handle._actor_id.hex()] = self.name
        return outcome | ({"is": handle._actor_id.hex()} if self.called else {})

    def wished(self, stage: Stage) -> dict[str, Any]:
        """Return the options that only a kind of ``Create`` has."""
        return {}

    def housed(self, group: PlacementGroup) -> dict[str, Any]:
        """Return the options with which it lives in a placement group."""
        return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group)}

    def cpus_to_be_placed(self) -> int:
        return 1 if self.num_cpus is None else self.num_cpus

    def keeps_order(self) -> bool:
        """Whether its calls begin in order, one after the other."""
        return self.max_concurrency == 1 and not (self.is_async or self.has_group or self.is_unordered)

    def foresee(self, scope: Scope) -> None:
        scope.foresee_actor(self)

    def check(self, reading: Reading, outcome: Outcome) -> Iterator[str]:
        yield from reading.check_names(self.name, self.args + self.nested, outcome)
        yield from reading.check_name(self, outcome)


class Settle(Create, frozen=True):
    """A ``Create`` with options that programs say rarely."""

    wishes: ActorWishes = ActorWishes()

    def wished(self, stage: Stage) -> dict[str, Any]:
        options = self.wishes.options({}, None)
        if self.wishes.has_seat:
            options["resources"] = {SEAT: A_PART}
        if self.wishes.mark:
            options["runtime_env"] = {"env_vars": {MARK: self.wishes.mark}}
        return options

    def housed(self, group: PlacementGroup) -> dict[str, Any]:
        wishes, options = self.wishes, super().housed(group)
        if not wishes.in_old_words:
            return options
        bundle = {} if wishes.bundle < 0 else {"placement_group_bundle_index": wishes.bundle}
        return wishes.options(options, group) | bundle


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
    """``minray.kill``, for good (``no_restart``) or not."""

    name: str
    actor: str
    """A handle, of ``Create`` or ``Find``."""
    no_restart: bool = True
    is_asked: bool = False
    """Whether it calls ``__ray_terminate__`` instead, which queues behind other calls. A full queue refuses that."""

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
    """The call ends with ``exit_actor``."""

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
        return call.divided(call.body.end.perform(call.name, stage))


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
