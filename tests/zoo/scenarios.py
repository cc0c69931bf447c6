"""Programs with faults that the bugs of the zoo must not survive: mostly one of them, drawn anew by every seed.

``mix`` is general: nested tasks, bursts and pauses, cancellations, references in containers, a second driver that may be
killed, on one to three nodes, under ``FaultPlan.swarm`` and one kind of interference with the wire. It knows no bug, and
neither does ``campaign``, a scenario of ``tests/spec``. The others aim at what only a certain order of events can show.

Each takes a seed and says which properties were broken: none, on the true code, whatever the seed.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

import minray
from minray.simulation import Deadlock, FaultPlan, SimCluster, SimulationFailed
from minray.simulation.faults import SWARM
from tests.simulation.interference import break_channels, replay_requests, watch_sends
from tests.simulation.invariants import Broken
from tests.simulation.judge import judged, outcome_of
from tests.spec import trial as spec
from tests.spec.scenario import Scenario
from tests.spec.strategies import scenario_of
from tests.zoo import actor_steps
from tests.zoo.watches import StoppingWatch

LOST = ("OwnerDiedError", "WorkerCrashedError", "NodeDiedError", "LocalRayletDiedError")
"""Errors that a program may see when processes die, bare or as the cause of a RayTaskError."""
CANCELLED = "TaskCancelledError"
SETTLE_S = 300.0
"""Longer than a request that was delayed by 70 s, repeated after 40 s, and given up after a minute."""
LEASES = ("RequestWorkerLease", "ReturnWorkerLease", "CancelWorkerLease")
TASKS = ("PushTask", "CancelTask", "ReclaimTasks", "NotifyWorkerBlocked")
BORROWING = ("AddBorrower", "RemoveBorrower", "GetObject")


@dataclass(frozen=True)
class Verdict:
    """How one run ended."""

    props: tuple[str, ...]
    """The properties that were broken (``error``: an exception that nobody caught, a wrong value); empty: all is well."""
    text: str = ""


SIGNS = (
    ("L3", r"\d+ leases|in its machines|available \{|leased workers|lease requests"),
    ("L2", r"\d+ (references|stored objects|borrowings on their way)"),
    ("L1", r"\d+ (waiters|tasks|questions to owners|unanswered tasks|queued tasks|tasks waiting here|answers on their way)"),
)
"""How the judge's lines name what is left, and the property that this breaks."""
LOST_REQUESTS = re.compile(r"after the driver's end|driver\S*: \d+ lease requests")
"""Lease requests that a driver keeps when it has lost its cluster. No answer will come, and nothing waits for it."""


# --- What the programs are made of ---


@minray.remote(max_retries=-1)
def work(number: int, seconds: float) -> int:
    time.sleep(seconds)
    return number


@minray.remote(max_retries=-1)
def nest(number: int, seconds: float) -> int:
    return sum(minray.get([work.remote(number + i, seconds) for i in range(2)]))


@minray.remote(max_retries=-1)
def make(number: int) -> list[Any]:
    return [minray.put(number), minray.put([minray.put(number)])]


@minray.remote(max_retries=-1)
def relay(refs: list[Any], hops: int) -> list[Any]:
    return refs if hops == 0 else minray.get(relay.remote(refs, hops - 1))


@minray.remote(max_retries=-1)
def read(refs: list[Any]) -> int:
    first, second = minray.get(refs)
    assert first == minray.get(second[0])
    return int(first)


def burst(draw: Random, allowed: Sequence[str]) -> None:
    seconds = draw.choice((0.0, 0.005, 0.05))
    refs = [work.remote(i, seconds) for i in range(draw.randrange(2, 12))]
    for i, ref in enumerate(refs):
        expect(outcome_of(ref), i, allowed)


def nested(draw: Random, allowed: Sequence[str]) -> None:
    refs = [nest.remote(i, draw.choice((0.0, 0.05))) for i in range(draw.randrange(1, 5))]
    for i, ref in enumerate(refs):
        expect(outcome_of(ref), 2 * i + 1, allowed)


def cancels(draw: Random, allowed: Sequence[str]) -> None:
    """Some of a burst are cancelled, and more of the same comes at once."""
    seconds = draw.choice((0.001, 0.02, 0.3))
    refs = [draw.choice((work, nest)).remote(i, seconds * draw.randrange(3)) for i in range(draw.randrange(3, 10))]
    time.sleep(draw.choice((0.0, 0.002, 0.05, 0.4)))
    for ref in draw.sample(refs, draw.randrange(1, len(refs) + 1)):
        minray.cancel(ref, force=draw.random() < 0.3, recursive=draw.random() < 0.5)
        if draw.random() < 0.3:
            time.sleep(0.003)
    more = [work.remote(100 + i, 0.001) for i in range(draw.randrange(3))]
    for i, ref in enumerate(refs):
        outcome = outcome_of(ref)
        if outcome not in (i, 2 * i + 1):
            expect(CANCELLED if CANCELLED in str(outcome) else outcome, CANCELLED, LOST)
    for i, ref in enumerate(more):
        expect(outcome_of(ref), 100 + i, allowed)


def references(draw: Random, allowed: Sequence[str]) -> None:
    """Made in one worker, passed on by others, read in further ones, dropped everywhere else meanwhile."""
    made = [outcome_of(make.remote(i)) for i in range(draw.randrange(1, 4))]
    passed = []
    for refs in made:
        if isinstance(refs, list):
            passed.append(outcome_of(relay.remote(refs, draw.randrange(3))))
        else:
            expect(refs, "references", allowed)
    del made
    for refs in passed:
        if isinstance(refs, list):
            outcome = outcome_of(read.remote(refs))
            expect(outcome if isinstance(outcome, str) else type(outcome), int, allowed)
        else:
            expect(refs, "references", allowed)


def pause(draw: Random, allowed: Sequence[str]) -> None:
    time.sleep(draw.choice((0.01, 0.1, 0.6, 3.0)))


STEPS = (burst, nested, cancels, references, pause)


def expect(outcome: Any, value: Any, allowed: Sequence[str]) -> None:
    """A wrong value, or an error that nothing explains, is the end of the run."""
    if outcome == value or any(name in str(outcome) for name in allowed):
        return
    lost = any(name in str(outcome) for name in LOST)
    raise Broken("S7" if lost else "error", f"{outcome!r} instead of {value!r}; allowed: {allowed}")


def program(seed: int, steps: int, allowed: Sequence[str]) -> Callable[[], None]:
    """An ordinary program, drawn by the seed."""

    def body() -> None:
        draw = Random(seed)
        for _ in range(steps):
            draw.choice(STEPS)(draw, allowed)

    return body


# --- What is done to their world ---


def second_driver(cluster: SimCluster, seed: int, steps: int, killed_after_s: float | None) -> None:
    """Another job beside the first, which may be killed; what it finds does not count, what it leaves does."""
    outcome = cluster.start_driver(program(seed, steps, LOST), "driver/second")
    outcome.add_done_callback(lambda future: future.exception())
    if killed_after_s is not None:

        def kill() -> None:
            process = cluster.processes["driver/second"]
            if process.alive:
                process.exit(None, 9)

        cluster.world.loop.world.call_later(killed_after_s, kill)


def restart_gcs(cluster: SimCluster, after_s: float, pause_s: float) -> None:
    world = cluster.world.loop.world
    world.call_later(after_s, cluster.kill, "gcs")
    world.call_later(after_s + pause_s, cluster.start_gcs)


def mix(seed: int) -> Verdict:
    """See the head of this file."""
    draw = Random(seed)
    plan = FaultPlan.swarm(seed)
    deadly = any(plan.rates[kind] for kind in SWARM)
    nodes = draw.randrange(1, 4)
    killed_after_s = draw.choice((None, 0.02, 0.1, 0.3, 1.0, 5.0))
    second, restart, interference = draw.random() < 0.5, draw.random() < 0.25, draw.randrange(4)

    def strike(cluster: SimCluster) -> None:
        words = draw.choice((LEASES, TASKS, BORROWING))
        if interference == 1:
            replay_requests(cluster, words)
        elif interference == 2:
            replay_requests(cluster)
        elif interference == 3:
            break_channels(cluster, [*words, *(f"{word} reply" for word in words)], budget=6, one_in=3)
        if restart:
            restart_gcs(cluster, draw.choice((0.1, 1.0, 4.0)), draw.choice((1.0, 15.0)))
        if second:
            second_driver(cluster, seed + 1_000_000, draw.randrange(2, 6), killed_after_s)

    body = program(seed, draw.randrange(2, 6), LOST if deadly else ())
    return watched(body, strike, nodes=nodes, seed=seed, faults=plan, storage="gcs.db")


ACTORS = ("RegisterActor", "CreateActor", "KillActor", "EndActor", "ExitActor", "PushActorTask", "RequestWorkerLease")


def actors(seed: int) -> Verdict:
    """Actors, as ``mix`` does with tasks; see ``actor_steps``."""
    draw = Random(seed)
    restart, interference = draw.random() < 0.4, draw.randrange(3)

    def strike(cluster: SimCluster) -> None:
        if interference == 1:
            replay_requests(cluster, ACTORS)
        elif interference == 2:
            break_channels(cluster, [*ACTORS, *(f"{word} reply" for word in ACTORS)], budget=8, one_in=3)
        if restart:
            restart_gcs(cluster, draw.choice((0.01, 0.015, 0.1, 1.0)), draw.choice((1.0, 5.0)))

    body = actor_steps.program(seed, draw.randrange(2, 6))
    nodes = draw.randrange(1, 3)
    return watched(body, strike, nodes=nodes, seed=seed, faults=FaultPlan.swarm(seed), storage="gcs.db")


def lost_home(seed: int) -> Verdict:
    """The raylet beside a driver dies, and answers from another node come when the driver has given everything up."""
    draw = Random(seed)
    number = draw.randrange(1, 8)

    def strike(cluster: SimCluster) -> None:
        world = cluster.world.loop.world
        count = 0

        def on_send(end: Any, message: Any, word: str) -> bool:
            nonlocal count
            if word != "PushTask reply":
                return True
            count += 1
            if count == number:
                cluster.kill("raylet/n1")
            if count >= number:
                world.call_later(draw.choice((0.01, 0.05, 0.2)), late, end, message)
            return count < number

        def late(end: Any, message: Any) -> None:
            if not end.closed:
                end.pipe.put(message)

        watch_sends(cluster, on_send)

    def body() -> None:
        refs = [work.remote(i, 0.02) for i in range(8)]
        for i, ref in enumerate(refs):
            outcome = outcome_of(ref)
            if outcome != "LocalRayletDiedError":
                expect(outcome, i, ())

    nodes = [{"num_cpus": 2}, {"num_cpus": 0}]
    return watched(body, strike, nodes=nodes, seed=seed, faults=FaultPlan.quiet(), driver_node="n1")


def late_result(seed: int) -> Verdict:
    """A node dies while the word of a large result that an actor has made there is on its way.

    It may arrive when its owner knows that the node is dead, and does not know yet that the actor is.
    """
    draw = Random(seed)
    number, delay_s = draw.randrange(1, 7), draw.choice((0.001, 0.003, 0.01))

    def strike(cluster: SimCluster) -> None:
        count = 0

        def on_send(end: Any, message: Any, word: str) -> bool:
            nonlocal count
            if word != "PushActorTask reply" or end.pipe.source.node != "n1":
                return True
            count += 1
            if count == number:
                end.pipe.put(message, delay_s)
                cluster.kill("raylet/n1")
            return count != number

        watch_sends(cluster, on_send)

    def body() -> None:
        filler = Filler.remote()
        refs = [filler.fill.remote(number) for number in range(12)]
        for number, ref in enumerate(refs):
            expect(int(minray.get(ref).max()), number, ())

    nodes = [{"num_cpus": 0}, {"num_cpus": 1}, {"num_cpus": 1}]
    system = {"max_direct_call_object_size": 100}
    quiet = FaultPlan.quiet()
    return watched(body, strike, nodes=nodes, seed=seed, faults=quiet, system_config=system, storage="gcs.db")


STORE_BYTES, WORDS = 100_000, 1000
"""Bytes of each node's object store, and the number of numbers of 8 bytes in a value."""


@minray.remote(max_retries=-1)
def fill(number: int) -> Any:
    return np.full(WORDS, number)


@minray.remote(max_restarts=-1, max_task_retries=-1, num_cpus=1)
class Filler:
    def fill(self, number: int) -> Any:
        return np.full(WORDS, number)


def spills(seed: int) -> Verdict:
    """Three times as many values as there is memory for, several of which are read at once while others are made."""
    draw = Random(seed)

    def body() -> None:
        refs = [minray.put(np.full(WORDS, number)) for number in range(36)]
        for _ in range(draw.randrange(2, 6)):
            asked = draw.sample(range(len(refs)), draw.randrange(2, 6))
            made = [fill.remote(number) for number in range(draw.randrange(4))]
            arrays = minray.get([refs[number] for number in asked])
            if [int(array.max()) for array in arrays] != asked:
                raise Broken("error", "another value than was put")
            time.sleep(draw.choice((0.0, 0.01, 0.5)))
            refs += [minray.put(np.full(WORDS, number)) for number in range(len(refs), len(refs) + draw.randrange(4))]
            del arrays, made

    system = {"max_direct_call_object_size": 100, "min_spilling_size": 16_000, "max_io_workers": draw.randrange(1, 3)}
    nodes = [{"num_cpus": 2, "object_store_memory": STORE_BYTES}]
    return watched(body, lambda _: None, nodes=nodes, seed=seed, faults=FaultPlan.quiet(), system_config=system)


def watched(body: Callable[[], Any], strike: Callable[[SimCluster], None], **options: Any) -> Verdict:
    """``judged``, stopped by what is broken first, as a verdict."""
    watches: list[StoppingWatch] = []

    def watch(cluster: SimCluster) -> StoppingWatch:
        watches.append(StoppingWatch(cluster))
        return watches[0]

    try:
        judged(body, strike, settle_s=SETTLE_S, watch=watch, **options)
    except Broken as error:
        return Verdict((error.prop,), str(error))
    except Deadlock as error:
        if "real seconds" in str(error):
            return Verdict(("error",), str(error))
        leaked = watches[0].leases_of_the_dead()
        return Verdict(("L1", "L3"), f"{leaked}\n{error}") if leaked else Verdict(("L1",), str(error))
    except SimulationFailed as error:
        return Verdict(("error",), str(error))
    except AssertionError as error:
        text = str(error)
        if watches[0].has_lost_a_raylet() and all(map(LOST_REQUESTS.match, text.splitlines())):
            return Verdict(())
        return Verdict(tuple(prop for prop, sign in SIGNS if re.search(sign, text)) or ("error",), text)
    return Verdict(())


def campaign(seed: int) -> Verdict:
    """The scenario that ``make spec`` runs with this seed."""
    found = spec.run(scenario_of(seed))
    return Verdict(tuple(sorted(found.codes)), "\n".join(found.problems))


RARE = ("ray-45791",)
"""Bugs that the campaign meets in fewer than one of 500 scenarios. A small one that it has found stands for them."""


def rare(seed: int) -> Verdict:
    """The witness of a bug of ``RARE``, whose number is the seed."""
    witness = Path(__file__).with_name("witnesses") / f"{RARE[seed % len(RARE)]}.json"
    found = spec.run(Scenario.from_json(witness.read_text()))
    return Verdict(tuple(sorted(found.codes)), "\n".join(found.problems))


CAMPAIGN = "campaign"
SCENARIOS: dict[str, Callable[[int], Verdict]] = {
    "mix": mix,
    "actors": actors,
    "lost_home": lost_home,
    "late_result": late_result,
    "spills": spills,
    "rare": rare,
    CAMPAIGN: campaign,
}
