"""Scripts on a simulated cluster: a program's text, a seed, nodes and faults, and the run that follows from these.

    python -m minray.simulation.script run.json                     repeats a run of the playground, with the same digest
    python -m minray.simulation.script run.json --html run.html     and writes it as a page

The playground is the simulation in a browser (``docs/playground.md``). A script and the same script here have the same run,
event by event. The file is JSON: the fields of ``Script``.

Rules
  * A script is a whole program. Its functions and classes travel by value, as those of ``__main__`` do.
  * When it has ended its variables are dropped in the order in which they were made: Python's versions differ in that. Those
    of functions through which its exception came are dropped first, since versions differ in what these are.
  * Its tracebacks underline nothing: versions differ in what they underline, and a script may print a traceback.
  * The gcs keeps its tables on disk. It is started again a second after it died, so that one may kill it.
  * ``overrides`` are exactly the faults that strike. Without them the seed draws from the kinds in ``faults``.
  * An aim adds one fault at the first place where it can strike from an event on. The run's answers then name it.

What we do not like yet: Python 3.14 drops the variables of a function that ends in another order than earlier versions. If
several of them are references, the run has another digest there.
"""

from __future__ import annotations

import ast
import builtins
import linecache
import traceback
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import click
import msgspec

from minray.common.package import DIRECTORY
from minray.exceptions import RayError
from minray.simulation.cluster import GCS, DriverDied, SimCluster, SimulationFailed
from minray.simulation.faults import KINDS, LOUD, FaultPlan, Key, Oracle
from minray.simulation.loop import TICKS_PER_SECOND, Deadlock, SimProcess, to_ticks
from minray.simulation.page import headline, write_page

FILENAME = "program.py"
"""The script's file name in tracebacks."""
MOST_NODES = 8
"""The largest number of nodes: more lanes than these nobody can read."""
LIMIT_S = 600.0
"""Virtual seconds after which a script that has not ended counts as one that never ends."""
SETTLE_S = 5.0
"""Virtual seconds of the run after the script's end: enough to see what is freed, and short enough to look at."""
GCS_PAUSE_S = 1.0
"""Virtual seconds without a gcs after its death."""
STORE_BYTES = 8 << 20
"""Size of each node's object store: so small that a script of a few megabytes spills."""
BUDGET = 2
"""Number of loud faults that the seed may draw."""
QUIET_RATE, LOUD_RATE = 0.1, 0.01
"""Chance of a quiet and of a loud fault at each place where it can strike."""


class Script(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A program's text, and all that decides its run."""

    source: str
    seed: int = 0
    nodes: Annotated[int, msgspec.Meta(ge=1, le=MOST_NODES)] = 3
    faults: tuple[str, ...] = ()
    """Kinds of faults that the seed draws."""
    overrides: tuple[tuple[tuple[str | int, ...], int], ...] | None = None
    """Exactly the faults that strike, as keys and answers of the oracle; None: the seed draws them."""

    def __post_init__(self) -> None:
        self.plan()
        Oracle(self.seed, None, dict(self.overrides or ()))

    def plan(self) -> FaultPlan:
        """Return the plan of the kinds that the seed draws. Raises ValueError for a kind that does not exist."""
        if unknown := sorted(set(self.faults).difference(KINDS)):
            raise ValueError(f"there is no fault {unknown[0]!r}; there are {', '.join(KINDS)}")
        rates = {kind: LOUD_RATE if kind in LOUD else QUIET_RATE for kind in self.faults}
        return FaultPlan(rates, BUDGET if any(kind in LOUD for kind in rates) else 0)

    def oracle(self, aim: Aim | None) -> Oracle:
        overrides = None if self.overrides is None else dict(self.overrides)
        return Oracle(self.seed, self.plan(), overrides) if aim is None else AimedOracle(self.seed, overrides or {}, aim)


class Aim(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One fault, for a process from an event on, or for the message of one event."""

    kind: str
    answer: int
    """The answer of the oracle: which of the forms of the fault strikes; from 1 on."""
    event: int
    """Number of the event that was looked at."""
    process: str = ""
    """The process to strike at its next step; empty: the fault strikes the message whose SEND is the event."""


class AimedOracle(Oracle):
    """An oracle with overrides, and one fault more that strikes where an aim says."""

    def __init__(self, seed: int, overrides: dict[Key, int], aim: Aim) -> None:
        super().__init__(seed, None, overrides)
        self._kinds |= {aim.kind}
        self._aim: Aim | None = aim
        self.count_events: Callable[[], int] = lambda: 0
        """Returns how many events there are so far; set when there is a world."""

    def choose(self, key: Key, n: int) -> int:
        aim = self._aim
        if aim is None or not self.active or key[0] != aim.kind or not self._is_aimed(aim, key):
            return super().choose(key, n)
        self._aim = None
        answer = self.answers[key] = min(aim.answer, n - 1)
        return answer

    def _is_aimed(self, aim: Aim, key: Key) -> bool:
        last = self.count_events() - 1
        return last >= aim.event and key[1] == aim.process if aim.process else last == aim.event


@dataclass(frozen=True)
class Performance:
    """A run of a script, when it is over."""

    cluster: SimCluster
    outcome: str
    """The script's end in one line: that it has ended, or its error."""
    details: str
    """The traceback of its error, or what waits in a deadlock; empty if it has ended."""

    @property
    def digest(self) -> str:
        return self.cluster.trace.digest()

    @property
    def seconds(self) -> float:
        return self.cluster.world.loop.ticks / TICKS_PER_SECOND


class Stage:
    """A cluster on which a script runs, until it has ended or until an event."""

    def __init__(self, script: Script, aim: Aim | None = None, on_event: Callable[[SimCluster], None] | None = None) -> None:
        """``on_event`` is called after each event. It may stop the world's loop, and changes nothing else."""
        self._script = script
        self._on_event = on_event
        described = [{"num_cpus": 2, "object_store_memory": STORE_BYTES}] * script.nodes
        self.cluster = SimCluster(described, script.seed, storage="gcs.db", show_output=False)
        self.cluster.oracle = script.oracle(aim)

    def perform(self, then: Callable[[SimCluster], None] = lambda cluster: None) -> Performance:
        """Run the script to its end, or until ``on_event`` stops it; call ``then`` before the cluster ends."""
        linecache.cache[FILENAME] = len(self._script.source), None, self._script.source.splitlines(True), FILENAME
        cluster, outcome, details = self.cluster, "", ""
        try:
            with cluster:
                self._listen()
                keep_gcs(cluster, cluster.processes[GCS])
                try:
                    outcome = self._outcome()
                    if outcome:
                        cluster.settle(SETTLE_S)
                except Deadlock as deadlock:
                    outcome, _, details = str(deadlock).partition("\n")
                then(cluster)
        except SimulationFailed as failure:
            outcome, details = "minray itself has failed", str(failure)
        except DriverDied as death:
            outcome = str(death)
        except (Exception, SystemExit) as error:
            outcome, details = f"{type(error).__name__}: {error}".partition("\n")[0], _traceback(error)
        return Performance(cluster, outcome, details)

    def _listen(self) -> None:
        cluster, on_event, oracle = self.cluster, self._on_event, self.cluster.oracle
        if isinstance(oracle, AimedOracle):
            oracle.count_events = lambda: len(cluster.trace.events)
        if on_event is not None:
            cluster.trace.on_event = lambda: on_event(cluster)

    def _outcome(self) -> str:
        """Run the script's driver, and say how it has ended; empty if it was stopped."""
        loop = self.cluster.world.loop
        ended = self.cluster.start_driver(program_of(self._script.source), "driver/0")
        loop.limit_ticks = loop.ticks + to_ticks(LIMIT_S)

        def stop(_: object) -> None:
            loop.stop()

        ended.add_done_callback(stop)
        loop.run_forever()
        ended.remove_done_callback(stop)
        if not ended.done():
            ended.cancel()
            return ""
        try:
            ended.result()
        except SystemExit as error:
            if error.code not in (None, 0):
                raise
        return "the program has ended"


def keep_gcs(cluster: SimCluster, process: SimProcess) -> None:
    """Start the gcs again, after a pause, whenever it dies."""

    def start() -> None:
        keep_gcs(cluster, cluster.start_gcs())

    process.on_death.append(lambda: cluster.world.loop.world.call_later(GCS_PAUSE_S, start))


def program_of(source: str) -> Callable[[], None]:
    """Return the driver that runs a script."""

    def program() -> None:
        names: dict[str, Any] = {"__name__": "__main__", "__builtins__": builtins}
        try:
            exec(_compile(source), names)
        except BaseException as error:
            _drop_variables(error)
            raise
        finally:
            for name in list(names):
                del names[name]

    return program


def _compile(source: str) -> types.CodeType:
    """Compile a script without the columns that tracebacks underline."""
    tree = ast.parse(source, FILENAME)
    for node in ast.walk(tree):
        if hasattr(node, "col_offset"):
            node.end_lineno, node.col_offset, node.end_col_offset = node.lineno, -1, -1  # type: ignore[attr-defined]
    return compile(tree, FILENAME, "exec")


def _drop_variables(error: BaseException) -> None:
    """Drop the variables of the functions through which an exception came, in the order in which they were made.

    Until Python 3.11 a comprehension is such a function. Its frame would keep what it iterates over as long as the error
    lives.
    """
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    kept = [list(frame.f_locals.values()) for frame in frames]
    traceback.clear_frames(error.__traceback__)
    for frame, values in zip(frames, kept, strict=True):
        _ = frame.f_locals  # Until Python 3.12 this is a copy, which lets go of the variables when it is asked for again.
        while values:
            del values[0]


def _traceback(error: BaseException) -> str:
    """Return the error's traceback without minray's own frames above the script."""
    if isinstance(error, RayError):
        return str(error)
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith(DIRECTORY)]
    return "".join([*traceback.format_list(frames), *traceback.format_exception_only(error)])


@click.command()
@click.argument("path", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--html", "page", type=click.Path(dir_okay=False, path_type=Path), help="Write a page of the run here.")
def main(path: Path, page: Path | None) -> None:
    """Repeat a run that the playground has saved."""
    try:
        script = msgspec.json.decode(path.read_bytes(), type=Script)
    except (ValueError, TypeError, RecursionError) as error:
        raise click.UsageError(f"{path} is no run that the playground has saved: {error}") from None
    done = Stage(script).perform()
    click.echo(f"result  {done.outcome}")
    for key, answer in done.cluster.oracle.answers.items():
        click.echo(f"chance  {key}: {answer}")
    if done.details:
        click.echo(done.details)
    click.echo(f"{done.cluster.world.loop.steps} steps, {done.seconds:.1f} virtual seconds, digest {done.digest}")
    if page is not None:
        write_page(done.cluster.trace, page, headline(script.seed, script.nodes, done.outcome, done.cluster.trace))
        click.echo(f"page    {page}")


if __name__ == "__main__":
    main()
