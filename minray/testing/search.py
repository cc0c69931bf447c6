"""Looks for a seed whose faults make a user's program fail, and makes these faults few.

Ray: has no counterpart.

``FaultSearch.run`` returns a ``FaultReport`` if no seed fails. Else it raises the program's own error, with a note that has
the seed, the sentence, the replay command and the story. The order of the runs:

 1. Seed 0, without faults, twice. If it fails, the program is wrong without faults, or does what the simulation refuses. If
    the two runs differ, no failure could be replayed, and ``NotRepeatable`` says where they part.
 2. The faults that have made the program fail before (``saved_faults.py``), and then their seeds.
 3. The seeds 1, 2, 3 and so on, until one fails or the time is over.

Rules
  * A smaller set of faults must make the program fail alike: the same class of error at the same line of the user's code.
  * Only the number of re-runs and of their steps limits the shrinking, never the clock. So a seed shrinks to the same
    faults on every machine.
  * Fixtures' values and modules outlive a run. State that the program keeps there is the user's to reset.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy.random  # noqa: F401 (if a program were to import it, its first run would draw more entropy than the others)

from minray.common.clock import Clock
from minray.simulation.arguments import check_program, check_result
from minray.simulation.faults import Key
from minray.simulation.garbage import frozen_heap
from minray.simulation.loop import TICKS_PER_SECOND, Deadlock, NotSimulated
from minray.simulation.page import write_page
from minray.simulation.trace import Trace, parting
from minray.simulation.user_thread import USER_THREAD
from minray.testing.program_runs import FaultSettings, ProgramRun, run_program
from minray.testing.saved_faults import read_faults, save_failure
from minray.testing.shrink import Answers, FaultShrinker, Shape, shape
from minray.testing.strikes import OF_PROCESSES, StrikeWatch

MOST_RUNS = 200
"""Number of re-runs in which the faults of one failure are made few; a crash alone needs about ten."""
MOST_MOVES = 6
"""Number of points in the middle of calls to which a lone fault is moved at most."""
MOST_STEPS = 1_000_000
"""Steps of these re-runs together, at most: some two minutes."""
STORY_ROWS = 38
"""Events of a story, which with its first and its last line has forty rows."""
CAUSES = """\
Usual causes: a set of objects, which is ordered by their addresses; a function of time that a default argument or a class
keeps; a package that asks the system; numpy's generators without a seed; threads or files of the program's own; state that a
module or a fixture keeps from one run to the next."""

RESTARTS = "Give the actor max_restarts and max_task_retries, or handle the error."
HINTS = {
    "SimulationFailed": "minray itself has raised an exception. Please report it, with the file of the line `replay`.",
    "ActorDiedError": f"An actor ends with its process when it has no restarts left. {RESTARTS}",
    "ActorUnavailableError": f"A call that an actor may have begun is not repeated by itself. {RESTARTS}",
    "WorkerCrashedError": "A task without retries left fails with its process. Give it max_retries, or handle the error.",
    "NodeDiedError": "A task without retries left fails with its node. Give it max_retries, or handle the error.",
    "OwnerDiedError": "A value is lost with the process that has made its reference. Let the driver own what must last.",
    "ObjectLostError": "A value is lost with its node, unless the task that made it can run again (max_retries).",
    "GetTimeoutError": "A fault may hold a message up for 70 s, and a process too. Wait for longer, or handle the error.",
}
"""Class of an error that a correct program may see -> how a program gets along with it."""


class NotRepeatable(AssertionError):
    """Two runs of a program with the same seed and the same faults differ."""


@dataclass(frozen=True)
class FaultReport:
    """The outcome of a search in which no seed failed."""

    seeds: int
    """Number of seeds that were run, seed 0 included."""
    faults: int
    """Number of faults that have struck in all runs."""
    not_judged: int
    """Number of runs that failed because faults had taken the driver's cluster away; these say nothing."""
    seconds: float
    """Real seconds that it took."""
    is_cut_short: bool = False
    """Whether the time was over before all seeds were run."""

    def line(self) -> str:
        """Describe the search in one line."""
        judged = f", {self.not_judged} not judged because the driver had lost its cluster" if self.not_judged else ""
        cut = "; the time was over" if self.is_cut_short else ""
        return f"{self.seeds} seeds with {self.faults} faults in {self.seconds:.1f} s{judged}{cut}"


class ProgramShrinker(FaultShrinker):
    """Makes the faults of one failing run few; the program stays as it is."""

    def __init__(self, run: ProgramRun, run_with: Callable[..., ProgramRun]) -> None:
        """``run_with(seed, overrides, on_chance)`` runs the program."""
        self.run = run
        """The failing run with the fewest faults so far."""
        self.runs = 0
        """Number of re-runs."""
        self._steps = 0
        self._run_with = run_with
        self._tried: set[Answers] = {run.faults}

    @property
    def faults(self) -> Answers:
        return self.run.faults

    def take_faults(self, faults: Answers) -> bool:
        if faults in self._tried or self.is_over():
            return False
        self._tried.add(faults)
        run = self.again(faults)
        if not run.has_failed or run.failure() != self.run.failure():
            return False
        self.run = run
        self._tried.add(run.faults)
        return True

    def again(self, faults: Answers) -> ProgramRun:
        """Run with exactly these faults."""
        return self._count(self._run_with(self.run.seed, dict(faults)))

    def points_of(self, kinds: Iterable[str]) -> dict[Shape, list[Key]]:
        points: dict[Shape, list[Key]] = {}
        none = {(kind, "", ""): 0 for kind in kinds}
        self._count(self._run_with(self.run.seed, none, on_chance=lambda key: points.setdefault(shape(key), []).append(key)))
        return points

    def move_into_call(self) -> None:
        """Let a lone fault of a process strike while a call runs there, if that makes the program fail alike.

        The points between two calls are many, but a sentence about one says little to the user.
        """
        if len(self.faults) != 1 or self.faults[0][0][0] not in OF_PROCESSES:
            return
        ((key, answer),) = self.faults
        dry = self._count(self._run_with(self.run.seed, {(key[0], "", ""): 0}, watches=True))
        assert dry.watch is not None
        if key in dry.watch.in_calls:
            return
        found = [point for point in dry.watch.in_calls if point[:2] == key[:2]]
        any(self.take_faults(((point, answer),)) for point in found[:: max(1, len(found) // MOST_MOVES)])

    def is_over(self) -> bool:
        return self.runs >= MOST_RUNS or self._steps >= MOST_STEPS

    def _count(self, run: ProgramRun) -> ProgramRun:
        self.runs += 1
        self._steps += run.steps
        return run


class FaultSearch:
    """Runs one program under many seeds."""

    def __init__(
        self,
        program: Callable[[], Any],
        settings: FaultSettings,
        test: str,
        path: Path,
        replay_command: str,
        on_progress: Callable[[int, int], None] = lambda done, total: None,
        show_output: bool = False,
    ) -> None:
        """``test`` is the name of the program for people, and ``path`` the file of its saved faults.

        ``on_progress(done, total)`` is called after each seed.
        """
        check_program(program)
        self._program = program
        self._settings = settings
        self._test = test
        self._path = path
        self._replay_command = replay_command
        self._on_progress = on_progress
        self._show_output = show_output
        self._began = Clock.monotonic()
        self._seeds = self._faults = self._not_judged = 0

    def run(self) -> FaultReport:
        """Run all seeds. Raises the program's error for the first one that fails; raises NotRepeatable."""
        with frozen_heap():
            saved = read_faults(self._path)
            failures = saved.failures if saved is not None else ()
            self._check_repeatable()
            for failure in failures:
                self._judge(self._run(failure.seed, dict(failure.overrides)))
            known = [failure.seed for failure in failures if 0 < failure.seed < self._settings.seeds]
            is_cut_short = False
            for seed in dict.fromkeys((*known, *range(1, self._settings.seeds))):
                if self._is_time_over():
                    is_cut_short = True
                    break
                self._judge(self._run(seed))
                self._seeds += 1
                self._on_progress(self._seeds, self._settings.seeds)
        return self._report(is_cut_short)

    def replay(self) -> FaultReport:
        """Run only the saved faults. Raises the program's error if they make it fail."""
        with frozen_heap():
            saved = read_faults(self._path)
            if saved is None:
                raise ValueError(f"there is no file {self._path} to replay")
            if saved.test != self._test:
                raise ValueError(f"{self._path} has the faults of {saved.test}, not those of {self._test}")
            for failure in saved.failures:
                self._judge(self._run(failure.seed, dict(failure.overrides)))
        return self._report(False)

    def _report(self, is_cut_short: bool) -> FaultReport:
        return FaultReport(
            seeds=self._seeds,
            faults=self._faults,
            not_judged=self._not_judged,
            seconds=Clock.monotonic() - self._began,
            is_cut_short=is_cut_short,
        )

    def _run(
        self,
        seed: int,
        overrides: dict[Key, int] | None = None,
        *,
        on_chance: Callable[[Key], None] | None = None,
        watches: bool = False,
    ) -> ProgramRun:
        return run_program(
            self._program,
            self._settings,
            seed,
            overrides,
            watches=watches,
            on_chance=on_chance,
            show_output=self._show_output,
        )

    def _is_time_over(self) -> bool:
        limit_s = self._settings.seconds
        return limit_s is not None and Clock.monotonic() - self._began >= limit_s

    # --- Without faults

    def _check_repeatable(self) -> None:
        first = self._run(0)
        if first.error is not None:
            note = f"{self._test} fails with seed 0, in which no fault strikes."
            words = filter(None, [note, _refusal_in(first.error), _waiting(first.error)])
            first.error.add_note("\n".join(words))
            raise first.error
        check_result(first.value)
        again = self._run(0)
        self._seeds += 1
        if again.error is not None:
            again.error.add_note(
                f"{self._test} passes once with seed 0, in which no fault strikes, and fails when it is run again. It keeps "
                f"state from one run to the next, in a module or in the value of a fixture."
            )
            raise again.error
        self._check_same(first.trace, again.trace, "of seed 0 without faults")

    def _check_same(self, one: Trace, other: Trace, which: str) -> None:
        """Raise NotRepeatable if two runs differ, with the first line that does."""
        number = parting(one, other)
        if number is None:
            return
        told = "\n".join(
            f"  {label}: {_line_of(trace, number)}" for label, trace in (("one run  ", one), ("the other", other))
        )
        raise NotRepeatable(
            f"{self._test} is not repeatable: two runs {which} differ, so that no failure could be replayed.\n"
            f"The first difference is event {number}:\n{told}\n{CAUSES}"
        )

    # --- A failing seed

    def _judge(self, run: ProgramRun) -> None:
        """Count a run; if the program has failed, raise its error with all that is to be said."""
        self._faults += len(run.faults)
        self._not_judged += run.error is not None and not run.is_judged
        if run.has_failed:
            raise self._explained(run)

    def _explained(self, failed: ProgramRun) -> BaseException:
        """Make the faults of a failing run few, save them and the page; return the error with the note."""
        shrinker = ProgramShrinker(failed, self._run)
        again = shrinker.again(failed.faults)
        if not again.has_failed or again.failure() != failed.failure():
            self._check_same(failed.trace, again.trace, f"of seed {failed.seed} with the same faults")
            raise NotRepeatable(
                f"{self._test} is not repeatable: it fails with seed {failed.seed} ({failed.failure()}), and a second run "
                f"with the same faults and events does not fail so. {CAUSES}"
            )
        shrinker.shrink_faults()
        shrinker.move_into_call()
        smallest = self._run(failed.seed, dict(shrinker.faults), watches=True)
        error = smallest.error
        assert smallest.has_failed and error is not None and smallest.watch is not None, "the same faults are the same run"
        what = smallest.watch.sentence()
        sentence = f"fails when {what}" if what else "fails without a fault: what the seed decides by chance is enough"
        save_failure(self._path, self._test, failed.seed, smallest.faults, smallest.failure(), sentence)
        page = self._path.with_suffix(".html")
        write_page(smallest.trace, page, f"Seed {failed.seed}: {self._test} {sentence}. It ends with {smallest.failure()}.")
        error.add_note(self._note(failed, smallest, smallest.watch, sentence, shrinker.runs, page))
        for line in smallest.output():
            print(line)
        return error

    def _note(
        self, failed: ProgramRun, smallest: ProgramRun, watch: StrikeWatch, sentence: str, runs: int, page: Path
    ) -> str:
        struck, enough = len(failed.faults), len(smallest.faults)
        needed = "" if struck == enough else f", and {enough or 'none'} of them {'are' if enough > 1 else 'is'} enough"
        hint = HINTS.get(type(smallest.error).__name__, "")
        lines = [
            f"seed {failed.seed}: {sentence}",
            *filter(None, [watch.legend()]),
            f"{struck} fault{'s' * (struck != 1)} struck{needed} ({runs} re-runs). Seed 0, without faults, passes.",
            *filter(None, [hint, _waiting(smallest.error)]),
            f"replay: {self._replay_command}",
            f"page:   {shown_path(page)}",
            watch.story(STORY_ROWS),
        ]
        return "\n".join(lines)


def shown_path(path: Path) -> str:
    """Return a path for people: relative to the working directory if it is below that."""
    return os.path.relpath(path) if path.absolute().is_relative_to(Path.cwd()) else str(path)


def _refusal_in(error: BaseException) -> str:
    """Return the words of the simulation's refusal that has led to an error; empty if there is none."""
    seen: set[int] = set()
    causes: list[BaseException | None] = [error]
    while causes:
        cause = causes.pop()
        if cause is None or id(cause) in seen:
            continue
        if type(cause) is NotSimulated:
            return f"The simulation cannot run it: {str(cause).splitlines()[0]}"
        seen.add(id(cause))
        causes += [getattr(cause, "cause", None), cause.__cause__, cause.__context__]
    return ""


def _waiting(error: BaseException | None) -> str:
    """Return where user code waits in a run that has not ended; empty for other errors."""
    if not isinstance(error, Deadlock):
        return ""
    places = [line.split() for line in str(error).splitlines() if USER_THREAD in line]
    waits = ", ".join(f"{process} at {place}" for process, *_, place in places)
    return f"The program does not end. User code waits here: {waits}" if waits else ""


def _line_of(trace: Trace, number: int) -> str:
    if number >= len(trace.events):
        return "has ended"
    event = trace.events[number]
    return f"{event.ticks / TICKS_PER_SECOND:.6f} s  {event.process:<16} {event.text()}"
