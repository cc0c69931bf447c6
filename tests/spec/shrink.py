"""Makes a failing scenario small: leaves out its faults (``minray/testing/shrink.py``), alternating with program and world.

A scenario is a tree of lists and records. Any item of a list may be left out (a fault, a driver, an operation, an argument,
a node), and any field may be set to its default. So this file knows nothing of the operations, except that the operations of
a body may take the place of their task. A new operation is shrunk like the rest. A smaller scenario must fail with one of
the same numbers, or with any if there is only one bug to be found.

Rules
  * First, parts of the program are tried alone, with these faults or with others that the world draws.
  * Then faults go. With few faults, runs are alike, and parts of the program can go without changing the rest.
  * The program shrinks as far as it can with the faults where they are, because aiming a fault anew takes many runs.
  * A smaller program may need its fault at another step. A dry run finds the points where the fault could strike.
  * A program that never ends gets less time than the judge gives it, since waiting would take most of the time. The result
    must also fail with the judge's limit. If it does not, all is done again with that limit.
  * Every re-run is counted, and so are its steps. There are at most ``max_runs`` runs, and none after ``MOST_STEPS`` steps.
  * A failure that needs many faults, all of which shift each other, stays large. Then another one is tried (``smallest``).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec

from minray.simulation.faults import LOUD, Key
from minray.testing.shrink import FEW, MANY, FaultShrinker, Shape, describe_fault, leave_out, shape, some
from tests.spec.scenario import Answers, Scenario
from tests.spec.trial import run
from tests.spec.verdict import Verdict

MAX_RUNS = 1000
"""Number of re-runs for one witness, at most."""
MOST_STEPS = 15_000_000
"""Steps of all re-runs together, at most: some ten minutes."""
HASTE_S = 300.0
"""Virtual seconds that a smaller program may take: longer than all deaths together take to be noticed."""
ISOLATED = 12
"""Number of parts of the program that are tried alone."""
CHANCES = 4
"""Number of seeds whose faults are tried on each part."""
MOST_FAULTS, MOST_PERFORMANCES = 3, 8
"""A witness with more faults, or more tasks and calls, is not small."""
FAILURES = 4
"""Number of failures that are shrunk at most until one of them is small."""
SEARCHED = 200
"""Number of further scenarios in which other failures are looked for."""
HANGS = frozenset({"L1", "L5"})
"""Numbers of one failure: work that never ends shows by its time, or by its messages, which fewer faults make fewer."""
Tree = dict[str, Any]
Path = tuple[str | int, ...]


@dataclass(frozen=True)
class Witness:
    """A small scenario that fails."""

    scenario: Scenario
    verdict: Verdict
    runs: int
    """Number of re-runs that it has cost."""

    def describe(self) -> str:
        """One sentence: the problem, the size of the program, and the faults."""
        _, count = size_of(self.scenario)
        size = "1 task or call" if count == 1 else f"{count} tasks and calls"
        faults = ", ".join(describe_fault(key) for key, _ in self.scenario.overrides or ())
        problem = self.verdict.problems[0].splitlines()[0]
        return f"{problem} ({size}; {faults or 'no fault'})"


class Shrinker(FaultShrinker):
    """Shrinks one scenario."""

    def __init__(
        self,
        scenario: Scenario,
        verdict: Verdict,
        max_runs: int = MAX_RUNS,
        run_one: Callable[[Scenario], Verdict] = run,
        any_code: bool = False,
    ) -> None:
        self._codes = frozenset() if any_code else verdict.codes | (HANGS if verdict.codes & HANGS else frozenset())
        """Numbers of which one must be broken; empty: any may be."""
        self.runs = 0
        self._max_runs = max_runs
        self._steps = 0
        self._run_one = run_one
        self.best = scenario
        self.verdict = verdict
        self._tried: set[str] = set()

    def is_alike(self, verdict: Verdict) -> bool:
        """Whether a verdict shows one of the wanted problems."""
        return not verdict.ok and (not self._codes or bool(verdict.codes & self._codes))

    def shrink(self) -> Witness:
        """Shrink the scenario. Return the smallest that was found."""
        if self.best.overrides is None:
            self._maybe_take(replace(self.best, overrides=answers_of(self.verdict)))
        self._isolate(self._take_by_chance)
        if not self.keep_loud():
            self.keep_beginning()
            self.thin_out()
        self.leave_out_faults(coarse=True)
        self._shrink_program(self._maybe_take_tree)
        self.thin_out()
        self.single_out()
        self._isolate(self._take_or_aim)
        before = None
        while self.best != before and not self.is_over():
            before = self.best
            self.thin_out()
            self.leave_out_faults(coarse=len(self.faults) > MANY)
            self._shrink_program(self._take_or_aim)
            self._hoist()
            self._shrink_rest()
        return Witness(self.best, self.verdict, self.runs)

    # --- Faults

    @property
    def faults(self) -> Answers:
        return self.best.overrides or ()

    def take_faults(self, faults: Answers) -> bool:
        return self._maybe_take(replace(self.best, overrides=faults))

    def points_of(self, kinds: Iterable[str]) -> dict[Shape, list[Key]]:
        return self._points(replace(self.best, overrides=tuple(((kind, "", ""), 0) for kind in kinds)))

    # --- One candidate

    def _maybe_take(self, candidate: Scenario) -> bool:
        """Run a candidate, and make it the best if it fails alike."""
        text = candidate.to_json()
        if text in self._tried or self.is_over() or not candidate.is_feasible():
            return False
        self._tried.add(text)
        verdict = self._count(self._run_one(candidate))
        if not self.is_alike(verdict):
            return False
        self.best, self.verdict = candidate, verdict
        return True

    def is_over(self) -> bool:
        return self.runs >= self._max_runs or self._steps >= MOST_STEPS

    def _count(self, verdict: Verdict) -> Verdict:
        self.runs += 1
        self._steps += verdict.steps
        return verdict

    def _maybe_take_tree(self, tree: Tree) -> bool:
        try:
            candidate = msgspec.convert(tree, Scenario, strict=False)
        except msgspec.ValidationError:
            return False
        return self._maybe_take(candidate)

    def _take_by_chance(self, tree: Tree) -> bool:
        """Try a tree with the faults that its world draws, by several seeds."""
        for seed in range(self.best.seed, self.best.seed + CHANCES):
            if self._maybe_take_tree({**tree, "overrides": None, "seed": seed}):
                self.best = replace(self.best, overrides=answers_of(self.verdict))  # the same run
                return True
        return False

    def _take_or_aim(self, tree: Tree) -> bool:
        return self._maybe_take_tree(tree) or self._aim_again(tree)

    def _aim_again(self, tree: Tree) -> bool:
        """Let one of the faults strike elsewhere: at points of the same shape, which a dry run finds."""
        answers = self.best.overrides or ()
        overrides = tuple(answer for answer in answers if answer[0][0] in LOUD) or answers
        try:
            candidate = msgspec.convert(tree, Scenario, strict=False)
        except msgspec.ValidationError:
            return False
        if not overrides or len(overrides) > FEW or not candidate.is_feasible() or self.is_over():
            return False
        points = self._points(candidate)
        for index, (key, answer) in enumerate(overrides):
            for point in some(points.get(shape(key), [])):
                aimed = (*overrides[:index], (point, answer), *overrides[index + 1 :])
                if self._maybe_take(replace(candidate, overrides=aimed)):
                    return True
        return False

    # --- Passes

    def _points(self, scenario: Scenario) -> dict[Shape, list[Key]]:
        """Shape -> the points at which faults could strike that have a kind of the scenario's overrides."""
        points: dict[Shape, list[Key]] = {}
        self._count(run(scenario, lambda key: points.setdefault(shape(key), []).append(key), HASTE_S))
        return points

    def _isolate(self, take: Callable[[Tree], bool]) -> None:
        """Try single parts of one driver's operations, without the rest."""
        tree = tree_of(self.best)
        found = {json.dumps(part): part for driver in tree["program"].get("drivers", []) for part in parts_of(driver)}
        for part in sorted(found.values(), key=lambda part: len(json.dumps(part)))[:ISOLATED]:
            if take({**tree, "program": {"drivers": [{"operations": part}]}}):
                return

    def _shrink_program(self, take: Callable[[Tree], bool]) -> None:
        """Leave out operations and other items of lists, by halves and smaller parts."""
        for path in lists_of(tree_of(self.best)):
            if path[0] == "program":
                self._shrink_list(path, take if path[-1] == "operations" else self._maybe_take_tree)

    def _hoist(self) -> None:
        """Put the operations of a task in its place, outer tasks first."""
        for path in lists_of(tree_of(self.best)):
            index = 0
            while path[-1] == "operations" and index < len(items := look_up(tree_of(self.best), path) or []):
                inner = look_up(items[index], ("body", "operations"))
                tree = tree_of(self.best)
                put(tree, path, items[:index] + (inner or []) + items[index + 1 :])
                if not inner or not self._maybe_take_tree(tree):
                    index += 1

    def _shrink_rest(self) -> None:
        """Leave out nodes, and set fields to their defaults, the innermost first."""
        self._shrink_list(("world", "nodes"), self._maybe_take_tree)
        for path in reversed(fields_of(tree_of(self.best))):
            tree = tree_of(self.best)
            if path[0] != "overrides" and drop(tree, path):
                self._maybe_take_tree(tree)

    def _shrink_list(self, path: Path, take: Callable[[Tree], bool]) -> None:
        """Leave out halves, quarters, eighths and so on of one list, down to single items."""
        items = look_up(tree_of(self.best), path)
        if not isinstance(items, list):
            return

        def take_list(kept: list[Any]) -> bool:
            tree = tree_of(self.best)
            put(tree, path, kept)
            return take(tree)

        leave_out(items, take_list)


def parts_of(driver: Tree) -> Iterator[list[Tree]]:
    """Parts of a driver: an operation, those that mention it, perhaps those that mention these, and all that they need."""
    operations = driver.get("operations", [])
    texts = [json.dumps(operation) for operation in operations]
    words = [json.dumps(operation["name"]) for operation in operations]
    mentions = [{other for other, word in enumerate(words) if word in text} for text in texts]
    for place in range(len(operations)):
        part = {place}
        for _ in range(2):
            part |= {other for other, mentioned in enumerate(mentions) if mentioned & part}
            whole: set[int] = set()
            lacking = set(part)
            while lacking:
                whole |= lacking
                lacking = set().union(*(mentions[other] for other in lacking)) - whole
            if len(whole) > 1:
                yield [operations[index] for index in sorted(whole)]


def replace(scenario: Scenario, **changes: Any) -> Scenario:
    return msgspec.structs.replace(scenario, **changes)


def answers_of(verdict: Verdict) -> Answers:
    return tuple(verdict.answers.items())


# --- Trees


def tree_of(scenario: Scenario) -> Tree:
    tree: Tree = msgspec.json.decode(msgspec.json.encode(scenario))
    return tree


def look_up(tree: Any, path: Path) -> Any:
    """Item or field at a path; None if there is none."""
    for part in path:
        try:
            tree = tree[part]
        except (KeyError, IndexError, TypeError):
            return None
    return tree


def put(tree: Tree, path: Path, value: Any) -> None:
    look_up(tree, path[:-1])[path[-1]] = value


def drop(tree: Tree, path: Path) -> bool:
    """Delete an item or a field; False if it is not there."""
    owner = look_up(tree, path[:-1])
    if look_up(tree, path) is None:
        return False
    del owner[path[-1]]
    return True


def lists_of(tree: Any, path: Path = ()) -> list[Path]:
    """Paths of all lists, outer ones first."""
    return [found for found, value in walk(tree, path) if isinstance(value, list) and not is_key(found)]


def fields_of(tree: Any) -> list[Path]:
    """Paths of all fields of records, outer ones first."""
    return [path for path, _ in walk(tree, ()) if path and isinstance(path[-1], str)]


def is_key(path: Sequence[str | int]) -> bool:
    """Whether a path leads into an override, which is left out as a whole."""
    return path[:1] == ("overrides",) and len(path) > 1


def walk(tree: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    yield path, tree
    if isinstance(tree, dict | list):
        for key, value in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from walk(value, (*path, key))


def shrink(scenario: Scenario, verdict: Verdict, max_runs: int = MAX_RUNS, any_code: bool = False) -> Witness:
    """Return a smaller scenario that fails with one of the same numbers, or with any (``any_code``)."""
    hasty = Shrinker(scenario, verdict, max_runs, partial(run, limit_s=HASTE_S), any_code)
    witness = hasty.shrink()
    judged = run(witness.scenario)
    if hasty.is_alike(judged):
        return Witness(witness.scenario, judged, witness.runs + 1)
    return Shrinker(scenario, verdict, max_runs, run, any_code).shrink()


def smallest(
    scenario: Scenario,
    verdict: Verdict,
    draw: Callable[[int], Scenario],
    max_runs: int = MAX_RUNS,
    any_code: bool = False,
) -> Witness:
    """Shrink a failure. If it stays large, also shrink failures of the next seeds, and return the smallest witness."""
    found = [shrink(scenario, verdict, max_runs, any_code)]
    for seed in range(scenario.seed + 1, scenario.seed + SEARCHED):
        if len(found) == FAILURES or is_small(found[-1].scenario):
            break
        other = draw(seed)
        failed = run(other)
        if not failed.ok and (any_code or failed.codes & verdict.codes):
            found.append(shrink(other, failed, max_runs, any_code))
    return min(found, key=lambda witness: size_of(witness.scenario))


def size_of(scenario: Scenario) -> tuple[int, int]:
    """Number of faults, and number of tasks and calls."""
    return len(scenario.overrides or ()), len(scenario.program.performances())


def is_small(scenario: Scenario) -> bool:
    faults, performances = size_of(scenario)
    return faults <= MOST_FAULTS and performances <= MOST_PERFORMANCES
