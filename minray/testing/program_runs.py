"""Runs a user's program once in the simulation, by a seed and with faults, and says how it ended.

Ray: has no counterpart.

``FaultSettings`` are what the user has asked for; ``ProgramRun`` is one run. The search for a failing seed is in
``minray/testing/search.py``.

Rules
  * The program is the driver. It runs on the head, in a user thread of the simulation.
  * A run is judged only if the driver keeps its cluster. If faults end the head's raylet or the gcs, or cut the driver off
    from them until it gives them up, no program can go on. Its error then says nothing about the program.
  * A driver that a fault has killed (only with ``lose_driver``) is started again, as a supervisor would do it.
  * An exception that comes from outside of the program, such as Ctrl-C or a time-out of the test runner, ends the search.
"""

from __future__ import annotations

import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from types import FrameType
from typing import Any

from minray.errors.tracebacks import is_runtime
from minray.simulation.arguments import node_descriptions
from minray.simulation.cluster import LIMIT_S, DriverDied, SimCluster, SimulationFailed
from minray.simulation.faults import LOUD, FaultPlan, Key, Oracle
from minray.simulation.loop import Deadlock, SimLoop
from minray.simulation.refusal import is_library
from minray.simulation.trace import OUTPUT, Trace
from minray.simulation.user_thread import UserThread
from minray.testing.shrink import Answers
from minray.testing.strikes import StrikeWatch

SEEDS = 200
"""Number of seeds that are tried unless the user says otherwise: half a minute for a small program."""
NODES = 3
SWARM_BUDGET = 2
"""Largest number of loud faults in a run of a swarm."""
AT_USER_CODE: tuple[tuple[str, ...], ...] = ((), ("crash",), ("crash", "node_loss", "long_stall"))
"""Loud faults of the seeds of a swarm, in turn; empty: those of ``FaultPlan.swarm``, anywhere."""
USER_CODE_RATES = (0.02, 0.05, 0.15)
"""Chances of a loud fault before a step of user code, of which a call has a few: it strikes early or late in a program."""
USER_CODE = UserThread.strike_name
DRIVERS = "driver/"


@dataclass(frozen=True)
class FaultSettings:
    """The user's choices for one program; raises TypeError or ValueError if they make no sense."""

    seeds: int = SEEDS
    """Number of seeds, the first of which (0) has no faults."""
    nodes: int | Sequence[Mapping[str, Any]] = NODES
    """Number of nodes with two CPUs each, or a description of each (see ``minray.simulation.run``)."""
    faults: FaultPlan | str = "swarm"
    budget: int | None = None
    """Largest number of loud faults in a run; None: two for a swarm, and the plan's own number for a plan."""
    lose_driver: bool = False
    """Whether the driver may be killed too."""
    timeout: float = LIMIT_S
    """Virtual seconds that the program may take in one run."""
    seconds: float | None = None
    """Real seconds after which no further seed is begun; None: no limit."""

    def __post_init__(self) -> None:
        _check_count("seeds", self.seeds)
        if self.budget is not None:
            _check_count("budget", self.budget)
        if not isinstance(self.lose_driver, bool):
            raise TypeError(f"lose_driver must be True or False, got {self.lose_driver!r}")
        for name, value in (("timeout", self.timeout), ("seconds", self.seconds)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e9):
                raise ValueError(f"{name} must be a number of seconds above 0, got {value!r}")
        node_descriptions(self.nodes)
        if isinstance(self.faults, str) and self.faults not in ("swarm", "quiet"):
            raise ValueError(f'faults must be "swarm", "quiet" or a FaultPlan, got {self.faults!r}')
        if not isinstance(self.faults, str | FaultPlan):
            raise TypeError(f'faults must be "swarm", "quiet" or a FaultPlan, got {self.faults!r}')
        if self.faults == "quiet" and self.budget is not None:
            raise ValueError(f'faults="quiet" has no loud faults, so budget={self.budget} would have no effect')
        plan = self.plan(1)
        if plan is not None and not plan.budget and any(plan.rates.get(kind) for kind in LOUD):
            loud = " and ".join(kind for kind in LOUD if plan.rates.get(kind))
            raise ValueError(f"{loud} of the plan would never strike: say how often at most, as in budget=2")

    def plan(self, seed: int) -> FaultPlan | None:
        """Return the faults of a seed; None for seed 0, which has none."""
        if seed == 0:
            return None
        if isinstance(self.faults, FaultPlan):
            plan = self.faults if self.budget is None else replace(self.faults, budget=self.budget)
        elif self.faults == "quiet":
            plan = FaultPlan.quiet()
        else:
            plan = swarm(seed, self.budget or SWARM_BUDGET)
        return plan.aimed_at(*plan.targets, DRIVERS) if self.lose_driver else plan


def swarm(seed: int, budget: int) -> FaultPlan:
    """Return the swarm of a seed.

    A third of the seeds have ``FaultPlan.swarm``, whose loud faults are mostly those of messages, since a run has many more
    of them than steps of user code. The others strike workers that are about to run user code: a third by crashes alone,
    and a third also by lost nodes and long stalls.
    """
    plan = FaultPlan.swarm(seed, budget=budget)
    kinds = AT_USER_CODE[seed % len(AT_USER_CODE)]
    if not kinds:
        return plan
    quiet = {kind: rate for kind, rate in plan.rates.items() if kind not in LOUD}
    rate = USER_CODE_RATES[Oracle(seed).below(("swarm", "user code"), len(USER_CODE_RATES))]
    return replace(plan, rates={**quiet, **dict.fromkeys(kinds, rate / len(kinds))}, struck_tasks=(USER_CODE,))


def _check_count(name: str, value: Any) -> None:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise ValueError(f"{name} must be at least 1, got {value}")


@dataclass
class ProgramRun:
    """One run of a program, when it is over."""

    seed: int
    trace: Trace
    faults: Answers = ()
    """The faults that struck, in their order."""
    steps: int = 0
    error: BaseException | None = None
    """The exception that has left the program; None if it returned."""
    is_judged: bool = True
    """Whether the driver has kept its cluster."""
    value: Any = None
    """The value that the program returned."""
    watch: StrikeWatch | None = field(default=None, repr=False)
    """The faults in words, if they were watched."""

    @property
    def has_failed(self) -> bool:
        """Whether the program is to blame: it raised an exception while its cluster was there."""
        return self.error is not None and self.is_judged

    def failure(self) -> str:
        """Return class and place of the error. Two runs with the same words have failed alike."""
        return "" if self.error is None else f"{type(self.error).__name__}{_place_of(self.error)}"

    def output(self) -> list[str]:
        """Return the lines that the driver has printed, those of its workers included."""
        return [
            event.details[1]
            for event in self.trace.events
            if event.kind == OUTPUT and event.process.startswith(DRIVERS) and not event.is_task_mark()
        ]


def run_program(
    program: Callable[[], Any],
    settings: FaultSettings,
    seed: int,
    overrides: Mapping[Key, int] | None = None,
    *,
    watches: bool = False,
    on_chance: Callable[[Key], None] | None = None,
    show_output: bool = False,
) -> ProgramRun:
    """Run a program once. ``overrides``: exactly the faults that strike; None: those that the seed draws.

    ``watches``: describe the faults as they strike. ``on_chance`` is called with every question of the oracle.
    """
    cluster = SimCluster(settings.nodes, seed, settings.plan(seed), overrides, show_output=show_output)
    watch, alarms = None, _Alarms()
    value, error, is_judged = None, None, True
    if on_chance is not None:
        cluster.oracle.listen(lambda key, _: on_chance(key))
    try:
        with alarms.held(), cluster:
            alarms.ring_in(cluster.world.loop)
            if watches:
                watch = StrikeWatch(cluster)
            value, error = _drive(cluster, program, settings.timeout)
            is_judged = error is None or not _has_lost_its_cluster(cluster)
    except SimulationFailed as failed:
        error = failed
    return ProgramRun(
        seed=seed,
        trace=cluster.trace,
        faults=tuple(cluster.oracle.answers.items()),
        steps=cluster.world.loop.steps,
        error=error,
        is_judged=is_judged,
        value=value,
        watch=watch,
    )


class _Alarms:
    """Holds SIGALRM back, and then lets what its handler raises end the run, such as a time-out of the test runner.

    Python calls a handler between any two lines. There its exception could count as what a task of the simulation has
    raised, or be swallowed. So the handler is called between two turns of the loop, or when the cluster has ended.
    """

    def __init__(self) -> None:
        self._held: Callable[[], object] | None = None
        self._loop: SimLoop | None = None

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold alarms back until the block ends, or until the next turn of the loop."""
        number = getattr(signal, "SIGALRM", None)
        before = None if number is None else signal.getsignal(number)
        if number is None or not callable(before) or threading.current_thread() is not threading.main_thread():
            yield
            return
        ring: Callable[[int, FrameType | None], object] = before

        def hold(signal_number: int, frame: FrameType | None) -> None:
            self._held = partial(ring, signal_number, frame)
            if self._loop is not None:
                self._loop.interruption = self._ring

        signal.signal(number, hold)
        try:
            yield
        finally:
            signal.signal(number, before)
            self._ring()

    def ring_in(self, loop: SimLoop) -> None:
        """Let alarms end this loop's run from now on."""
        self._loop = loop

    def _ring(self) -> None:
        held, self._held = self._held, None
        if held is not None:
            held()


def _drive(cluster: SimCluster, program: Callable[[], Any], timeout_s: float) -> tuple[Any, BaseException | None]:
    """Run the program as a driver. Return its value and its exception; raise what comes from outside of it."""
    number = 0
    while True:
        name = f"{DRIVERS}{number}"
        outcome = cluster.start_driver(program, name)
        try:
            return cluster.wait_for(outcome, timeout_s), None
        except Deadlock as error:
            return None, error
        except BaseException as error:
            if not outcome.done() or outcome.exception() is not error:
                raise
            was_struck = any(key[0] == "crash" and key[1] == name for key in cluster.oracle.answers)
            if not (isinstance(error, DriverDied) and was_struck):
                return None, error
        number += 1


def _has_lost_its_cluster(cluster: SimCluster) -> bool:
    """Whether the head's raylet or the gcs has ended, or the driver has given one of them up."""
    drivers = [core for name, core in cluster.cores.items() if name.startswith(DRIVERS)]
    given_up = any(core.raylet.death is not None or core.gcs.death is not None for core in drivers[-1:])
    return given_up or not {"gcs", "raylet/head"} <= cluster.alive()


def _place_of(error: BaseException) -> str:
    """Return the innermost line of the user's code in a traceback: `` at test_jobs.py:31``; empty if there is none."""
    frames = [
        (frame.filename, frame.lineno)
        for frame in traceback.extract_tb(error.__traceback__)
        if not is_runtime(frame.filename) and not is_library(frame.filename)
    ]
    return f" at {os.path.basename(frames[-1][0])}:{frames[-1][1]}" if frames else ""
