"""Progress: whenever time passes, no process lets wait what could go on; a part of the ``Watch`` (see ``invariants``).

A step takes no time. So before time passes, each process that runs has done all that it can do, and whatever waits in it
lacks something. A wake-up that is forgotten, and a condition that is too strict, are seen at once. No time-out hides them,
and no fault excuses them, because each rule asks one process about its own tables only.

``Progress`` looks at all processes. The rules stand in ``progress_of_nodes``, ``progress_of_work`` and ``progress_of_gcs``;
those in ``sums`` compare each count with the table that it counts, those in ``limits`` each table with its bound, and
``waits`` looks at user threads.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import Any

from minray.simulation import SimCluster
from minray.simulation.cluster import GCS
from minray.simulation.loop import TICKS_PER_SECOND, SimProcess
from tests.simulation import limits, progress_of_gcs, progress_of_nodes, progress_of_work, sums
from tests.simulation.insides import Rule, allowed
from tests.simulation.waits import Waits

APART_TICKS = TICKS_PER_SECOND // 100
"""Virtual time from one look to the next, at least; it doubles after each ``LOOKS_EACH`` looks."""
LOOKS_EACH = 50
ALL_EACH = 20
"""Number of looks of which one is at all processes. The others are at those that have run since the last look."""
SUMS_EACH = 4
"""Number of looks of which one compares counts, too, which takes as long as all the rest."""

Judged = tuple[str, tuple[Rule, ...], Any]
"""Number of the invariant, its rules, and what they judge."""


class Progress:
    """Looks at what waits in one cluster."""

    def __init__(self, cluster: SimCluster, on_broken: Callable[[str, str], None], waits: Waits) -> None:
        self._cluster = cluster
        self._rules_of_cores: tuple[Rule, ...] = (*progress_of_work.RULES, waits.open_waits, waits.lent_cpus)
        self._on_broken = on_broken
        self._next = 0
        """Tick that time must reach before the next look."""
        self._looks = 0
        self._ran: dict[SimProcess, None] = {}
        """Processes that have run since the last look."""
        self._uncounted: dict[SimProcess, None] = {}
        """Processes that have run since their counts were compared last."""
        self._loop = loop = cluster.world.loop
        advance, run_turn = loop._advance, loop._run_turn

        def watched_advance() -> None:
            timers = loop._timers
            while timers and loop._is_void(timers[0][2]):  # as the loop itself is about to do
                heapq.heappop(timers)
            if timers and timers[0][0] >= self._next:
                self._next = timers[0][0] + (APART_TICKS << (self._looks // LOOKS_EACH))
                ran, self._ran = self._ran, {}
                self._uncounted |= ran
                self._look(loop.processes if self._looks % ALL_EACH == 0 else ran, self._rules_of)
                if self._looks % SUMS_EACH == 0:
                    uncounted, self._uncounted = self._uncounted, {}
                    self._look(uncounted, self._sums_of)
                    self._look(uncounted, self._limits_of)
                self._looks += 1
            advance()

        def watched_turn(process: SimProcess) -> None:
            self._ran[process] = None
            run_turn(process)

        loop._advance, loop._run_turn = watched_advance, watched_turn  # type: ignore[method-assign]

    def _look(self, processes: Iterable[SimProcess], rules_of: Callable[[SimProcess], Judged]) -> None:
        """Look at these processes, as far as they live and do not stand still; nothing is ready in any of them."""
        for process in processes:
            if process.can_run and not process.ready:
                prop, rules, one = rules_of(process)
                for rule in allowed(rules):
                    for text in rule(one, process.time()):
                        self._on_broken(prop, f"{process.name} {text}")

    def _rules_of(self, process: SimProcess) -> Judged:
        return self._judged("L1", process, progress_of_gcs.RULES, progress_of_nodes.RULES, self._rules_of_cores)

    def _sums_of(self, process: SimProcess) -> Judged:
        return self._judged("S1", process, (), sums.OF_NODES, sums.OF_CORES)

    def _limits_of(self, process: SimProcess) -> Judged:
        return self._judged("L2", process, limits.OF_GCS, limits.OF_NODES, limits.OF_CORES)

    def _judged(
        self,
        prop: str,
        process: SimProcess,
        of_gcs: tuple[Rule, ...],
        of_nodes: tuple[Rule, ...],
        of_cores: tuple[Rule, ...],
    ) -> Judged:
        """Choose the rules for a process, and what they judge; a gcs is judged when it has read its store."""
        if process.name == GCS:
            gcs: Any = self._cluster.gcs
            return prop, of_gcs if hasattr(gcs, "_nodes") else (), gcs
        if process.name.startswith("raylet/"):
            return prop, *_if_there(of_nodes, self._raylet_of(process))
        return prop, *_if_there(of_cores, self._core_of(process))

    def _raylet_of(self, process: SimProcess) -> Any:
        """Return the raylet of a process, unless it ends, or has not begun: then an earlier process of the node had it."""
        raylet: Any = self._cluster.raylets.get(process.node)
        if raylet is None or raylet._platform.processes.pid != process.pid:
            return None
        return raylet if raylet._closing is None and not raylet._broker.scheduler._is_closed else None

    def _core_of(self, process: SimProcess) -> Any:
        """Return the core worker of a process, unless it ends or has lost its cluster."""
        core = self._cluster.cores.get(process.name)
        if core is None or core.gcs.death is not None or core.raylet.death is not None or core.process.is_exiting:
            return None
        return core


def _if_there(rules: tuple[Rule, ...], one: Any) -> tuple[tuple[Rule, ...], Any]:
    return ((), None) if one is None else (rules, one)
