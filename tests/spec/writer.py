"""The writer of plain programs, to which variations are added later.

It draws from a ``random.Random``. That of Hypothesis (``st.randoms``) knows its draws and can replay them; a campaign makes
one from a seed.

Rules
  * Every program ends. A task waits only for tasks that were submitted before it. Every task fits on the head. A task that
    holds custom resources waits for nothing. Actors hold no CPU. A call waits only for tasks that it has submitted itself,
    and no actor calls or keeps an actor that was made before it.
  * A name has the kind of its operation and a count: ``task1``, ``put2``, ``get3``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tests.spec.actors import Create, ExitActor, Find, Kill
from tests.spec.programs import (
    Body,
    Call,
    Cancel,
    Drop,
    End,
    Exit,
    Generate,
    Get,
    Operation,
    Program,
    Put,
    Raise,
    Return,
    ReturnUnpicklable,
    Sleep,
    Submit,
    Wait,
    Why,
)
from tests.spec.scenario import Node
from tests.spec.variations import (
    PAUSES_S,
)
from tests.spec.worlds import CUSTOM

SLEEPS_S = (*PAUSES_S, 1.0, 5.0)
TIMEOUTS_S = (0.0, 0.001, 0.05, 2.0, 30.0)
LONGEST_BURST = 6
DEPTH = 2
"""Levels of nested bodies with operations of all kinds. A deeper body only sleeps."""


@dataclass(frozen=True)
class Size:
    """Size of programs."""

    operations: tuple[int, int]
    """Number of operations of one driver, from and to."""
    drivers: int = 1
    """Number of drivers at most."""
SMALL, MEDIUM, LARGE = Size((1, 4)), Size((6, 16), 2), Size((60, 120), 3)
SIZES = {"small": SMALL, "medium": MEDIUM, "large": LARGE}


class Writer:
    """Writes one program."""

    def __init__(self, random: Random, nodes: tuple[Node, ...]) -> None:
        self._random = random
        self._head = nodes[0]
        self._count = 0
        # Programs differ in what may happen in them at all.
        self._may_fail = random.random() < 0.6
        self._may_cancel = random.random() < 0.5
        self._may_end_workers = random.random() < 0.3
        self._has_actors = random.random() < 0.6
        self._actors: dict[str, Create] = {}
        """Handle -> its ``Create``, in the order in which the actors are made."""
        self._calling = -1
        """Place of the actor whose call is being written. A call knows only actors that are made later."""
        self._may_kill = random.random() < 0.5
        self._named: list[str] = []
        """Actors of this driver that have names."""
        self._bare: set[str] = set()
        """Objects without references inside."""

    def program(self, size: Size) -> Program:
        count = self._random.randint(1, size.drivers)
        return Program(tuple(self._driver(self._random.randint(*size.operations)) for _ in range(count)))

    def _name(self, kind: str) -> str:
        self._count += 1
        return f"{kind}{self._count}"

    def _driver(self, length: int) -> Body:
        known: list[str] = []
        self._named = []
        operations: list[Operation] = []
        while len(operations) < length:
            if length >= LONGEST_BURST and self._random.random() < 0.06:
                operations += self._burst(known)
            elif self._handles(known) and self._random.random() < 0.1:
                operations += self._calls(known)
            else:
                operations.append(self._operation(known, 0))
        gets = [Get(self._name("get"), (name,)) for name in self._objects(known) if self._random.random() < 0.8]
        return Body((*operations, *gets))

    def _burst(self, known: list[str]) -> list[Operation]:
        """Submit many short tasks of one kind at once, which queue for the same workers. Some may be cancelled meanwhile."""
        random = self._random
        seconds, num_cpus = random.choice(PAUSES_S), min(self._head.num_cpus, random.choice((1, 1, 2)))
        names = [self._name("task") for _ in range(random.randint(3, LONGEST_BURST))]
        known += names
        bodies = [Body((Sleep(self._name("sleep"), seconds),) if random.random() < 0.8 else ()) for _ in names]
        operations: list[Operation] = [
            Submit(name, body, num_cpus=num_cpus) for name, body in zip(names, bodies, strict=True)
        ]
        if self._may_cancel:
            operations.append(Sleep(self._name("sleep"), random.choice(PAUSES_S)))
            operations += [self._cancel([name]) for name in names if random.random() < 0.6]
        return operations

    def _calls(self, known: list[str]) -> list[Operation]:
        """Make many short calls of one actor at once, which wait for each other. Some may be cancelled meanwhile."""
        random, handle = self._random, self._random.choice(self._handles(known))
        seconds = random.choice(PAUSES_S)
        names = [self._name("call") for _ in range(random.randint(3, LONGEST_BURST))]
        known += names
        bodies = [Body((Sleep(self._name("sleep"), seconds),) if random.random() < 0.8 else ()) for _ in names]
        operations: list[Operation] = [Call(name, handle, body) for name, body in zip(names, bodies, strict=True)]
        if self._may_cancel:
            operations.append(Sleep(self._name("sleep"), random.choice(PAUSES_S)))
            operations += [self._cancel([name]) for name in names if random.random() < 0.5]
        if self._may_kill and random.random() < 0.3:
            operations.append(self._kill([handle]))
        return operations

    def _operation(self, known: list[str], depth: int) -> Operation:
        """Write any operation; ``known`` are the names that are bound here."""
        random = self._random
        writers: list[tuple[int, Callable[[], Operation]]] = [(8 if depth == 0 else 3, lambda: self._submit(known, depth))]
        writers += [(2, lambda: self._put(known)), (2, lambda: Sleep(self._name("sleep"), random.choice(SLEEPS_S)))]
        writers.append((1, lambda: self._generate(known)))
        if self._objects(known):
            writers += [(3, lambda: self._get(known)), (2, lambda: self._wait(known))]
        if known:
            writers += [(1, lambda: self._drop(known)), (1, lambda: Why(self._name("why"), random.choice(known)))]
        if self._has_actors:
            writers += self._actor_writers(known, depth)
        cancellable = [name for name in known if name.startswith(("task", "call"))]
        if cancellable and self._may_cancel:
            writers.append((2, lambda: self._cancel(cancellable)))
        return random.choices([write for _, write in writers], [weight for weight, _ in writers])[0]()

    def _actor_writers(self, known: list[str], depth: int) -> list[tuple[int, Callable[[], Operation]]]:
        handles, named = self._handles(known), [name for name in self._named if self._place(name) > self._calling]
        weight = 1 if depth > 0 or handles else 6
        writers: list[tuple[int, Callable[[], Operation]]] = [(weight, lambda: self._create(known, depth))]
        if handles:
            writers.append((12, lambda: self._call(known, depth)))
            writers.append((1, lambda: self._generate(known, self._random.choice(handles))))
        if handles and self._may_kill:
            writers.append((2, lambda: self._kill(handles)))
        if named:
            writers.append((1, lambda: self._find(known, named)))
        return writers

    def _place(self, handle: str) -> int:
        return list(self._actors.values()).index(self._actors[handle])

    def _handles(self, known: list[str]) -> list[str]:
        return [name for name in known if name in self._actors]

    def _objects(self, known: list[str]) -> list[str]:
        return [name for name in known if name not in self._actors]

    def _create(self, known: list[str], depth: int) -> Create:
        random, name = self._random, self._name("actor")
        args = self._some(self._objects(known), 1) if random.random() < 0.3 else ()
        create = Create(
            name,
            args,
            self._some([ref for ref in known if ref in self._bare], 1),
            max_restarts=random.choice((0, 0, 1, 2, -1)),
            max_task_retries=random.choice((0, 0, 1, 2, -1)),
            max_concurrency=random.choice((1, 1, 1, 3)),
            num_cpus=random.choice((None, 0)),
            called=name if depth == 0 and random.random() < 0.4 else "",
            seconds=random.choice((0.0, 0.0, 0.02, 0.5)),
            type="ValueError" if self._may_fail and random.random() < 0.1 else "",
        )
        known.append(name)
        self._actors[name] = create
        if create.called:
            self._named.append(name)
        return create

    def _call(self, known: list[str], depth: int) -> Call:
        """Write a call that ends: it never exits its actor where both call and actor are retried without limit."""
        random, name = self._random, self._name("call")
        handle = random.choice(self._handles(known))
        actor, place = self._actors[handle], self._place(handle)
        later = [other for other in self._handles(known) if self._place(other) > place]
        args, keep = self._some(self._objects(known), 2) if random.random() < 0.4 else (), random.random() < 0.2
        kept = later + [ref for ref in known if ref in self._bare]
        nested = self._some([ref for ref in (kept if keep else self._objects(known) + later) if ref not in args], 2)
        before, self._calling = self._calling, place
        body = self._body([ref for ref in nested if ref in later], depth + 1, self._call_end)
        self._calling = before
        retries = random.choice((None, None, 0, 1, -1))
        is_endless = (actor.max_task_retries if retries is None else retries) < 0
        if isinstance(body.end, Exit) and is_endless and actor.max_restarts < 0:
            body = Body(body.operations)
        known.append(name)
        return Call(name, handle, body, args, nested, keep, retries, not is_endless and random.random() < 0.2)

    def _call_end(self, known: list[str]) -> End:
        is_over = self._may_kill and self._random.random() < 0.08
        return ExitActor() if is_over else self._end(known)

    def _kill(self, handles: list[str]) -> Kill:
        return Kill(self._name("kill"), self._random.choice(handles), self._random.random() < 0.5)

    def _find(self, known: list[str], named: list[str]) -> Find:
        name, actor = self._name("find"), self._random.choice(named)
        known.append(name)
        self._actors[name] = self._actors[actor]
        return Find(name, actor)

    def _some(self, known: list[str], most: int) -> tuple[str, ...]:
        return tuple(self._random.sample(known, min(len(known), self._random.randint(0, most))))

    def _submit(self, known: list[str], depth: int) -> Submit:
        random, name = self._random, self._name("task")
        args = self._some(self._objects(known), 2)
        nested = self._some([ref for ref in known if ref not in args], 2)
        body = self._body(list(nested), depth + 1, self._end)
        known.append(name)
        waits = any(isinstance(operation, Get | Wait | Generate | Kill | Find) for operation in body.operations)
        own = self._head.resources.get(CUSTOM, 0)
        custom = {CUSTOM: random.randint(1, own)} if own and not waits and random.random() < 0.3 else {}
        return Submit(
            name,
            body,
            args,
            nested,
            num_cpus=min(self._head.num_cpus, random.choice((1, 1, 1, 0, 2))),
            resources=custom,
            max_retries=random.choice((3, 3, 0, 1, 2)),
            retry_exceptions=random.random() < 0.2,
            spread=random.random() < 0.3,
        )

    def _body(self, known: list[str], depth: int, end: Callable[[list[str]], End]) -> Body:
        length = self._random.choice((0, 0, 1, 2, 3)) if depth <= DEPTH else self._random.randint(0, 1)
        operations = tuple(
            self._operation(known, depth) if depth <= DEPTH else Sleep(self._name("sleep"), 0.02) for _ in range(length)
        )
        return Body(operations, end(known))

    def _end(self, known: list[str]) -> End:
        draw = self._random.random()
        if self._may_fail and draw < 0.12:
            return Raise(self._random.choice(("ValueError", "KeyError")))
        if self._may_fail and draw < 0.16:
            return ReturnUnpicklable()
        if self._may_end_workers and draw > 0.9:
            return Exit(self._random.randint(0, 3))
        return Return(self._some(known, 2))

    def _put(self, known: list[str]) -> Put:
        refs, name = self._some(known, 2), self._name("put")
        known.append(name)
        if not refs:
            self._bare.add(name)
        return Put(name, refs)

    def _generate(self, known: list[str], actor: str = "") -> Generate:
        random, yields = self._random, self._random.randint(0, 5)
        generator = Generate(
            self._name("generator"),
            yields,
            random.choice((yields, yields + 2, yields // 2)),
            () if actor else self._some(known, 2),
            random.choice(PAUSES_S),
            random.choice(("ValueError", "KeyError")) if self._may_fail and random.random() < 0.3 else "",
            random.choice((-1, -1, 1, 2)),
            random.choice((3, 3, 0, 1)),
            self._may_cancel and random.random() < 0.3,
            actor,
        )
        known += generator.item_names()
        return generator

    def _timeout(self) -> float | None:
        return self._random.choice(TIMEOUTS_S) if self._random.random() < 0.3 else None

    def _get(self, known: list[str]) -> Get:
        objects = self._objects(known)
        return Get(self._name("get"), self._some(objects, 3) or (objects[-1],), self._timeout())

    def _wait(self, known: list[str]) -> Wait:
        objects = self._objects(known)
        refs = self._some(objects, 4) or (objects[-1],)
        return Wait(self._name("wait"), refs, self._random.randint(1, len(refs)), self._timeout())

    def _drop(self, known: list[str]) -> Drop:
        ref = self._random.choice(known)
        known.remove(ref)
        return Drop(self._name("drop"), ref)

    def _cancel(self, tasks: list[str]) -> Cancel:
        ref = self._random.choice(tasks)
        force = self._may_end_workers and ref.startswith("task") and self._random.random() < 0.5
        return Cancel(self._name("cancel"), ref, force, self._random.random() < 0.7)
