"""Runs one program on a real cluster, from its beginning to its verdict; and many, one after the other.

Rules
  * Drivers are processes of their own. When all are through, faults stop, and the cluster must come to rest. Then the
    drivers leave, and the cluster must be at rest again, except for detached actors. One more driver says farewell to these.
    At the end of a cluster nothing may be left.
  * A driver that was killed, has left or has lost its raylet has no history. Everything that it leaves behind is judged.
  * A cluster is used again until it has shown a problem.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from minray.cluster_utils import ClusterNode
from tests.helpers import whereabouts
from tests.spec.detached import Farewell, detached_names
from tests.spec.model import Facts, Losses, problems
from tests.spec.programs import Exit, Leave, Program
from tests.spec.real_cluster import DRIVER_COMMAND, DriverGone, RealCluster, RealDriver, Shape
from tests.spec.real_faults import Fault, Wrecker, losses
from tests.spec.stage import History, Record
from tests.spec.verdict import Judgement

SCENARIOS_PER_CLUSTER = 12
"""Number of scenarios on one cluster: it takes longer to start than most programs take."""
PATIENCE_S = 40.0
"""Seconds that a program may take beside its sleeps, and its cluster again to come to rest. Deaths by silence take seconds,
and the machine may have other work."""
LONG_S = 3.0
"""Seconds of waiting from which on a delay is reported."""
POLL_S = 0.005
"""Seconds between two looks at drivers or cluster."""


class RealScenario(Record, frozen=True):
    """A program, a cluster and faults. They do not decide a run alone, because time is real here."""

    program: Program
    shape: Shape = Shape()
    homes: tuple[int, ...] = ()
    """Number of the node on which each driver runs. Drivers beyond the end run on the head."""
    faults: tuple[Fault, ...] = ()
    seed: int = 0

    def to_json(self) -> str:
        return msgspec.json.format(msgspec.json.encode(self), indent=1).decode()

    @classmethod
    def from_json(cls, text: str) -> RealScenario:
        return msgspec.json.decode(text, type=cls)


@dataclass(frozen=True)
class RealVerdict(Judgement):
    """Result of a run."""

    struck: tuple[Fault, ...]
    """Faults that have found a target before the program was over."""
    histories: tuple[History, ...]
    evidence: str
    """Answers of ``why`` about pending objects, and all stacks; only if there are problems."""
    delays: tuple[str, ...] = ()
    """Waits of more than ``LONG_S`` seconds: no problems yet, but worth a look."""


class Trial:
    """One program on a cluster."""

    def __init__(self, cluster: RealCluster, scenario: RealScenario, patience_s: float) -> None:
        self._cluster = cluster
        self._scenario = scenario
        self._busy_s = scenario.program.busy_s()
        self._patience_s = patience_s + self._busy_s
        self._drivers = cluster.drivers[: len(scenario.program.drivers)]
        self._found: list[str] = []
        self._evidence: list[str] = []
        self._delays: list[str] = []
        self._histories: dict[int, History] = {}
        self._losses = Losses()
        self._homeless: list[str] = []
        """Errors of the drivers that have lost their raylets."""
        self._farewells: list[Farewell] = []

    def run(self) -> RealVerdict:
        cluster = self._cluster
        cluster.trouble()
        cluster.printed()
        wrecker = Wrecker(cluster, self._drivers, ())
        try:
            for number, driver in enumerate(self._drivers):
                driver.connect(self._home(number))
            wrecker = Wrecker(cluster, self._drivers, self._scenario.faults)
            for driver, body in zip(self._drivers, self._scenario.program.drivers, strict=True):
                driver.perform(body)
            self._play(wrecker)
            wrecker.heal()
            self._losses = losses(tuple(wrecker.struck), self._scenario.shape)
            self._come_to_rest()
            self._leave()
            self._say_farewells()
            self._judge_histories()
        except DriverGone as gone:
            self._found.append(f"L1: {gone}")
            self._gather_evidence(ask_drivers=False)
        finally:
            wrecker.heal()
        self._found += cluster.trouble()
        histories = tuple(self._histories[number] for number in sorted(self._histories))
        evidence = "\n".join(self._evidence)
        return RealVerdict(tuple(self._found), tuple(wrecker.struck), histories, evidence, tuple(self._delays))

    def _home(self, number: int) -> ClusterNode:
        homes, nodes = self._scenario.homes, self._cluster.nodes()
        return nodes[homes[number]] if number < len(homes) else nodes[0]

    def _play(self, wrecker: Wrecker) -> None:
        """Do faults until every driver is through, or the patience ends."""
        began = time.monotonic()
        deadline = began + self._patience_s
        waiting = dict(enumerate(self._drivers))
        while waiting and time.monotonic() < deadline:
            wrecker.advance()
            for number, driver in list(waiting.items()):
                outcome = driver.over()
                if outcome is not None:
                    del waiting[number]
                    self._keep(number, outcome)
            time.sleep(POLL_S)
        if (took_s := time.monotonic() - began) > LONG_S + self._busy_s:
            self._delays.append(f"the program took {took_s:.1f} s")
        while wrecker.is_lasting and not waiting:
            wrecker.advance()
            time.sleep(POLL_S)
        if waiting:
            wrecker.heal()
            self._found.append(f"L1: after {self._patience_s:.0f} s the drivers {sorted(waiting)} are not through")
            self._gather_evidence(ask_drivers=True)

    def _staying(self) -> list[RealDriver]:
        """Drivers that stay until the cluster is at rest."""
        leavers = self._scenario.program.leavers()
        return [driver for n, driver in enumerate(self._drivers) if n not in leavers and not driver.is_gone]

    def _keep(self, number: int, outcome: dict[str, Any]) -> None:
        driver, end = self._drivers[number], self._scenario.program.drivers[number].end
        if driver.is_gone:
            return
        if "failure" not in outcome:
            self._histories[number] = outcome["history"]
            driver.is_connected = not isinstance(end, Leave)
        elif isinstance(end, Exit) and outcome.get("code") == end.code:
            driver.is_gone = True
        elif outcome.get("is_homeless"):
            self._on_homeless(driver, outcome["failure"])
        else:
            self._found.append(f"escaped: driver {number}: {outcome['failure']}")

    def _on_homeless(self, driver: RealDriver, failure: str = "it has come to its end") -> None:
        """Note that a driver has lost its node, or believes so. Its history does not count any more."""
        driver.is_gone = True
        self._homeless.append(failure)

    def _come_to_rest(self) -> None:
        for driver in self._staying():
            driver.ask("drop")
        self._rest("at rest", self._unrest)
        if not self._found:
            self._rest("in workers", self._left_in_workers)
            self._rest("at rest again", self._unrest)
        if self._homeless and not self._losses.nodes:
            self._found += [f"L1: no fault has ended a node, and a driver has lost it: {how}" for how in self._homeless]

    def _unrest(self) -> list[str]:
        left = []
        for driver in self._staying():
            if driver.ask("is_homeless"):
                self._on_homeless(driver)
            else:
                left += [f"L2: driver {driver.pid}: {line}" for line in driver.ask("leftovers")]
        self._cluster.dismiss()
        return left or self._cluster.unrest(but_detached=True)

    def _left_in_workers(self) -> list[str]:
        count = sum(node.num_cpus for node in self._scenario.shape.nodes)
        return [f"L2: {line}" for driver in self._staying() for line in driver.ask("look_into_workers", count=count)]

    def _leave(self) -> None:
        """Disconnect all drivers, and wait for rest."""
        if not self._found:
            for driver in self._staying():
                driver.disconnect()
            self._rest("after the drivers' end", lambda: self._cluster.unrest(but_detached=True))

    def _say_farewells(self) -> None:
        """Say farewell to all detached actors, by one more driver, when their makers are gone."""
        names = detached_names(self._scenario.program)
        if not names or self._found:
            return
        self._cluster.have_drivers(1)
        driver = self._cluster.drivers[0]
        driver.connect(self._cluster.nodes()[0])
        self._farewells = msgspec.convert(driver.ask("say_farewells", names=names), list[Farewell])
        driver.disconnect()
        self._rest("after the farewells", self._cluster.unrest)

    def _rest(self, when: str, unrest: Callable[[], list[str]]) -> None:
        """Wait until ``unrest`` shows no problem, or the patience ends."""
        began = time.monotonic()
        last: list[str] = []
        while left := unrest():
            last = left
            if time.monotonic() - began > self._patience_s:
                self._found += [f"{problem} ({when})" for problem in left]
                self._gather_evidence(ask_drivers=any(driver.is_connected for driver in self._staying()))
                return
            time.sleep(POLL_S)
        if (took_s := time.monotonic() - began) > LONG_S:
            self._delays.append(f"rest ({when}) took {took_s:.1f} s: {'; '.join(last)}")

    def _judge_histories(self) -> None:
        """Judge the histories of drivers that have one. Tasks of other drivers do not count."""
        program, lines = self._scenario.program, self._cluster.printed()
        is_told = [n not in program.leavers() and not driver.is_gone for n, driver in enumerate(self._drivers)]
        told = [self._histories.get(n) if is_told[n] else None for n in range(len(self._drivers))]
        if [history is not None for history in told] == is_told:
            self._found += problems(program, self._losses, told, lines, Facts(farewells=self._farewells))

    def _gather_evidence(self, ask_drivers: bool) -> None:
        for driver in self._staying() if ask_drivers else ():
            try:
                self._evidence += [f"driver {driver.pid}: why {line}" for line in driver.ask("why")]
            except DriverGone as gone:
                self._evidence.append(f"driver {driver.pid}: {gone}")
        self._evidence.append(whereabouts())


class RealTier:
    """Runs scenarios one after the other, on as few clusters as that needs."""

    def __init__(self, driver_command: Sequence[str] = DRIVER_COMMAND, patience_s: float = PATIENCE_S) -> None:
        self._driver_command = driver_command
        self._patience_s = patience_s
        self._cluster: RealCluster | None = None
        self._scenarios = 0
        """Number of scenarios that this cluster has run."""

    def __enter__(self) -> RealTier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, scenario: RealScenario) -> RealVerdict:
        """Run and judge a scenario. The cluster ends after a problem, and after ``SCENARIOS_PER_CLUSTER`` scenarios."""
        if self._cluster is not None and self._cluster.shape != scenario.shape:
            left = self.close()
            if left:
                return RealVerdict(tuple(left), (), (), "of the cluster before this scenario")
        if self._cluster is None:
            self._cluster = RealCluster(scenario.shape, self._driver_command)
        self._cluster.prepare(len(scenario.program.drivers))
        verdict = Trial(self._cluster, scenario, self._patience_s).run()
        self._scenarios += 1
        if verdict.problems or self._scenarios == SCENARIOS_PER_CLUSTER:
            left = self.close()
            verdict = replace(verdict, problems=(*verdict.problems, *left))
        return verdict

    def close(self) -> list[str]:
        """End the cluster, and return a problem for each thing that is left behind."""
        cluster, self._cluster, self._scenarios = self._cluster, None, 0
        return cluster.close() if cluster is not None else []
