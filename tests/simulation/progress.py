"""Progress: whenever time passes, no process lets wait what could go on; a part of the ``Watch`` (see ``invariants``).

A step takes no time. So before time passes, each process that runs has done all that it can do, and whatever waits in it
lacks something. A wake-up that is forgotten, and a condition that is too strict, are seen at once. No time-out hides them,
and no fault excuses them, because each rule asks one process about its own tables only.

``Progress`` looks at all processes. The rules stand in ``progress_of_nodes``, ``progress_of_work`` and ``progress_of_gcs``;
those in ``sums`` compare each count with the table that it counts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from minray.simulation import SimCluster
from minray.simulation.cluster import GCS
from minray.simulation.loop import TICKS_PER_SECOND, SimProcess
from tests.simulation import progress_of_gcs, progress_of_nodes, progress_of_work, sums

APART_TICKS = TICKS_PER_SECOND // 200
"""Virtual time from one look to the next, at least; it doubles after each ``LOOKS_EACH`` looks."""
LOOKS_EACH = 100
ALL_EACH = 20
"""Number of looks of which one is at all processes. The others are at those that have run since the last look."""
SUMS_EACH = 4
"""Number of looks of which one compares counts, too, which takes as long as all the rest."""

Rule = Callable[[Any, float], Iterator[str]]
"""Gets a core worker, raylet or gcs, and the time on its clock; says what waits there without need."""


class Progress:
    """Looks at what waits in one cluster."""

    def __init__(self, cluster: SimCluster, on_broken: Callable[[str, str], None]) -> None:
        self._cluster = cluster
        self._on_broken = on_broken
        self._next = 0
        """Tick of the next look."""
        self._looks = 0
        self._ran: dict[SimProcess, None] = {}
        """Processes that have run since the last look."""
        self._loop = loop = cluster.world.loop
        advance, run_turn = loop._advance, loop._run_turn

        def watched_advance() -> None:
            if loop.ticks >= self._next:
                self._next = loop.ticks + (APART_TICKS << (self._looks // LOOKS_EACH))
                ran, self._ran = self._ran, {}
                self.look(loop.processes if self._looks % ALL_EACH == 0 else ran)
                self._looks += 1
            advance()

        def watched_turn(process: SimProcess) -> None:
            self._ran[process] = None
            run_turn(process)

        loop._advance, loop._run_turn = watched_advance, watched_turn  # type: ignore[method-assign]

    def look(self, processes: Iterable[SimProcess]) -> None:
        """Look at these processes, as far as they live and do not stand still; nothing is ready in any of them."""
        for process in processes:
            if not process.can_run or process.ready:
                continue
            for prop, rules, one in self._rules_of(process, self._looks % SUMS_EACH == 0):
                for rule in rules:
                    for text in rule(one, process.time()):
                        self._on_broken(prop, f"{process.name} {text}")

    def _rules_of(self, process: SimProcess, counts: bool) -> Iterator[tuple[str, tuple[Rule, ...], Any]]:
        cluster, name = self._cluster, process.name
        if name == GCS:
            if cluster.gcs is not None and hasattr(cluster.gcs, "_group_scheduler"):
                yield "L1", progress_of_gcs.RULES, cluster.gcs
        elif name.startswith("raylet/"):
            raylet = cluster.raylets.get(process.node)
            if raylet is not None and raylet._closing is None and not raylet._broker.scheduler._is_closed:
                yield "L1", progress_of_nodes.RULES, raylet
                yield "S1", sums.OF_NODES if counts else (), raylet
        elif name in cluster.cores:
            core = cluster.cores[name]
            if core.gcs.death is None and core.raylet.death is None and not core.process.is_exiting:
                yield "L1", progress_of_work.RULES, core
                yield "S1", sums.OF_CORES if counts else (), core
