"""``minray.testing.faults``: which programs fail, and what their errors say."""

from __future__ import annotations

import asyncio
import inspect
import itertools
import os
import queue
import random
import re
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minray
from minray.exceptions import ActorDiedError
from minray.simulation import Deadlock, FaultPlan, NotSimulated
from minray.simulation.cluster import DriverDied
from minray.testing import faults
from minray.testing.program_runs import AT_USER_CODE, FaultSettings, ProgramRun, run_program
from minray.testing.saved_faults import read_faults
from minray.testing.search import NotRepeatable, ProgramShrinker


@minray.remote
def wait(seconds: float) -> float:
    time.sleep(seconds)
    return seconds


@minray.remote
class Mortal:
    """An actor without restarts."""

    def work(self, number: int, *rest: Any, **more: Any) -> int:
        time.sleep(0.1)
        return number


def sound() -> None:
    assert minray.get([wait.options(max_retries=-1).remote(0.1) for _ in range(4)]) == [0.1] * 4


def fragile() -> None:
    actor: Any = Mortal.remote()
    assert minray.get([actor.work.remote(number, "a", key=[1.5]) for number in range(4)]) == [0, 1, 2, 3]


def note_of(error: BaseException) -> str:
    return "\n".join(error.__notes__)


def find(program: Any, directory: Path, error: type[BaseException], **options: Any) -> tuple[BaseException, str]:
    """The error of a program's first failing seed, and the note about it."""
    with pytest.raises(error) as raised:
        faults(program, directory=directory, **options)
    return raised.value, note_of(raised.value)


def test_a_program_that_withstands_all_faults_returns_a_report(tmp_path: Path) -> None:
    progress: list[tuple[int, int]] = []
    report = faults(sound, seeds=10, directory=tmp_path / "none", on_progress=lambda *done: progress.append(done))
    assert report.seeds == 10 and report.faults > 10 and not report.is_cut_short
    assert progress == [(number, 10) for number in range(2, 11)]
    assert report.line().startswith(f"10 seeds with {report.faults} faults in ")
    assert not (tmp_path / "none").exists()


def test_a_failure_is_told_in_one_sentence_with_a_story_a_page_and_a_command(tmp_path: Path) -> None:
    _, note = find(fragile, tmp_path, ActorDiedError, seeds=20)
    first, legend, count, hint, replay, page, *story = note.splitlines()
    assert first == "seed 1: fails when worker 2 dies while `Mortal.work(0, 'a', key=[1.5])` runs", note
    assert legend.startswith("worker 2 is worker/") and legend.endswith(" on head")
    assert "faults struck, and 1 of them is enough" in count and "Seed 0, without faults, passes" in count
    assert "Give the actor max_restarts and max_task_retries" in hint
    (file,) = tmp_path.glob("*.json")
    assert replay == f'replay: minray.testing.faults(fragile, replay="{file}", ...)'
    assert page == f"page:   {file.with_suffix('.html')}"
    assert len(story) == 40 and any("!! crash before step" in row for row in story)
    assert any("Mortal.work task " in row for row in story)
    assert "Seed 1: " in file.with_suffix(".html").read_text()


def test_the_same_seed_shrinks_to_the_same_faults_and_the_same_words(tmp_path: Path) -> None:
    notes = [find(fragile, tmp_path / name, ActorDiedError, seeds=20)[1] for name in "ab"]
    assert notes[0].replace(str(tmp_path / "a"), "") == notes[1].replace(str(tmp_path / "b"), "")
    files = [next((tmp_path / name).glob("*.json")).read_text() for name in "ab"]
    assert files[0] == files[1]


def test_saved_faults_are_tried_first_and_then_their_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find(fragile, tmp_path, ActorDiedError, seeds=20)
    runs: list[tuple[int, int | None]] = []

    def spy(program: Any, settings: Any, seed: int, overrides: Any = None, **options: Any) -> ProgramRun:
        runs.append((seed, None if overrides is None else len(overrides)))
        return run_program(program, settings, seed, overrides, **options)

    monkeypatch.setattr("minray.testing.search.run_program", spy)
    find(fragile, tmp_path, ActorDiedError, seeds=20)
    assert runs[:3] == [(0, None), (0, None), (1, 1)]
    runs.clear()
    (file,) = tmp_path.glob("*.json")
    file.write_text(file.read_text().replace('"seed": 1', '"seed": 4'))
    faults(sound, directory=tmp_path, seeds=6, name=f"{__name__}.fragile")
    assert runs == [(0, None), (0, None), (4, 1), (4, None), (1, None), (2, None), (3, None), (5, None)]


def test_a_replay_runs_the_saved_faults_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    find(fragile, tmp_path, ActorDiedError, seeds=20)
    (file,) = tmp_path.glob("*.json")
    with pytest.raises(ActorDiedError) as raised:
        faults(fragile, replay=file)
    assert "seed 1: fails when worker 2 dies while `Mortal.work(0" in note_of(raised.value)
    assert faults(sound, replay=file, name=f"{__name__}.fragile").seeds == 0
    with pytest.raises(ValueError, match=r"has the faults of .*fragile, not those of .*sound"):
        faults(sound, replay=file)
    with pytest.raises(ValueError, match="there is no file .*absent.json to replay"):
        faults(fragile, replay=tmp_path / "absent.json")


def test_no_seed_is_begun_when_the_time_is_over(tmp_path: Path) -> None:
    report = faults(sound, seeds=10**6, seconds=0.001, directory=tmp_path)
    assert report.seeds == 1 and report.is_cut_short and report.line().endswith("; the time was over")


def test_a_program_that_fails_without_faults_says_so(tmp_path: Path) -> None:
    def wrong() -> None:
        raise LookupError("always")

    error, note = find(wrong, tmp_path, LookupError)
    assert str(error) == "always" and note.endswith("wrong fails with seed 0, in which no fault strikes.")
    assert not list(tmp_path.iterdir())


def test_a_program_that_fails_by_chance_needs_no_fault(tmp_path: Path) -> None:
    def lucky() -> None:
        assert random.random() < 0.9

    _, note = find(lucky, tmp_path, AssertionError)
    assert ": fails without a fault: what the seed decides by chance is enough" in note


def test_a_program_that_waits_for_ever_says_where(tmp_path: Path) -> None:
    _, note = find(lambda: queue.Queue().get(), tmp_path, Deadlock, timeout=5)
    line = test_a_program_that_waits_for_ever_says_where.__code__.co_firstlineno + 1
    assert f"The program does not end. User code waits here: driver/0 at test_faults.py:{line}" in note


# --- Runs that differ


class Addressed:
    """Hashed by its address."""

    def __init__(self, number: int) -> None:
        self.number = number


KEPT: list[int] = []


def set_s_order() -> None:
    found = {Addressed(number) for number in range(500)}
    minray.get([wait.remote(each.number / 100) for each in itertools.islice(found, 5)])


def real_clock(now: Any = time.time) -> None:
    minray.get(wait.remote(now() % 1))


def state_of_its_own() -> None:
    KEPT.append(1)
    minray.get(wait.remote(len(KEPT) / 10))


@pytest.mark.parametrize("program", [set_s_order, real_clock, state_of_its_own])
def test_two_runs_that_differ_are_told_with_the_first_line_that_does(program: Any, tmp_path: Path) -> None:
    with pytest.raises(NotRepeatable) as raised:
        faults(program, directory=tmp_path)
    text = str(raised.value)
    assert f"{program.__name__} is not repeatable: two runs of seed 0 without faults differ" in text
    assert "The first difference is event " in text and "Usual causes: a set of objects" in text
    one, other = (line for line in text.splitlines() if line.startswith(("  one run  : ", "  the other: ")))
    assert one.partition(": ")[2] != other.partition(": ")[2]


def test_a_program_that_fails_only_when_it_is_run_again_keeps_something(tmp_path: Path) -> None:
    runs: list[int] = []

    def full() -> None:
        runs.append(1)
        assert len(runs) == 1

    _, note = find(full, tmp_path, AssertionError)
    assert "passes once with seed 0, in which no fault strikes, and fails when it is run again" in note


def test_a_failure_that_does_not_come_again_is_not_shrunk(tmp_path: Path) -> None:
    runs: list[int] = []

    def once() -> None:
        runs.append(1)
        assert len(runs) != 4

    with pytest.raises(NotRepeatable, match=r"fails with seed 2 \(AssertionError at test_faults.py:\d+\), and a second run"):
        faults(once, directory=tmp_path)


# --- What is refused, and what works


def starts_a_thread() -> None:
    threading.Thread(target=print).start()


def starts_a_child_in_a_task() -> None:
    @minray.remote
    def call() -> None:
        subprocess.run(["true"])

    minray.get(call.remote())


def leaves_it_to_an_executor() -> None:
    async def call() -> None:
        await asyncio.to_thread(print)

    asyncio.run(call())


@pytest.mark.parametrize(
    ("program", "words"),
    [
        (
            starts_a_thread,
            "threading.Thread.start inside the simulated process driver/0: use tasks, an actor, or coroutines",
        ),
        (starts_a_child_in_a_task, r"subprocess.Popen.__init__ inside the simulated process worker/\w+: use a task"),
        (leaves_it_to_an_executor, "run_in_executor: threads inside simulated user code; use tasks, an actor, or"),
    ],
)
def test_a_refusal_names_the_line_and_the_remedy(program: Any, words: str, tmp_path: Path) -> None:
    error, note = find(program, tmp_path, NotSimulated)
    lines, first = inspect.getsourcelines(program)
    calls = [(first + n, line.strip()) for n, line in enumerate(lines) if "(" in line and "def " not in line]
    number, source = calls[0]
    assert f"(called at {__file__}:{number}: {source})" in str(error)
    assert "fails with seed 0, in which no fault strikes.\nThe simulation cannot run it: " in note
    assert re.search(words, note)


def test_numpy_and_pandas_work_in_tasks_and_actors(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")

    def program() -> None:
        @minray.remote(max_retries=-1)
        def table(count: int) -> Any:
            assert 0 <= np.random.rand() < 1 and 0 <= np.random.default_rng().random() < 1
            return pandas.DataFrame({"a": np.arange(count), "b": ["x", "y"] * (count // 2)})

        @minray.remote(max_restarts=-1, max_task_retries=-1)
        class Tables:
            def rows(self, *tables: Any) -> Any:
                return pandas.concat(tables).groupby("b").a.sum()

        tables: Any = Tables.remote()
        sums = minray.get(tables.rows.remote(*(table.remote(count) for count in (2, 4, 50_000))))
        assert list(sums.index) == ["x", "y"]

    assert faults(program, seeds=8, directory=tmp_path).seeds == 8


def test_coverage_and_debuggers_see_the_program_and_its_tasks(tmp_path: Path) -> None:
    seen: set[str] = set()
    before = threading.gettrace()
    threading.settrace(lambda frame, event, arg: seen.add(frame.f_code.co_name))
    try:
        faults(fragile, seeds=1, directory=tmp_path)
    finally:
        threading.settrace(before)  # type: ignore[arg-type]
    assert {"fragile", "work"} <= seen


def test_a_real_cluster_goes_on_beside_the_simulation(shutdown_only: None, tmp_path: Path) -> None:
    minray.init(num_cpus=1)
    ref = wait.remote(0)
    assert faults(sound, seeds=3, directory=tmp_path).seeds == 3
    assert minray.get([ref, wait.remote(0)]) == [0, 0]


def test_numpy_s_global_generator_is_as_before_after_the_runs(tmp_path: Path) -> None:
    np.random.seed(5)
    expected = np.random.rand(3)
    np.random.seed(5)
    faults(lambda: np.random.rand(), seeds=2, directory=tmp_path)
    assert (np.random.rand(3) == expected).all()


# --- Settings


def test_the_defaults_of_faults_are_those_of_the_settings() -> None:
    settings = FaultSettings()
    given = inspect.signature(faults).parameters
    for name in ("seeds", "nodes", "faults", "budget", "lose_driver", "timeout", "seconds"):
        assert given[name].default == getattr(settings, name)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"seeds": 0}, ValueError, "seeds must be at least 1, got 0"),
        ({"seeds": 2.5}, TypeError, "seeds must be a whole number, got 2.5"),
        ({"budget": 0}, ValueError, "budget must be at least 1, got 0"),
        ({"budget": True}, TypeError, "budget must be a whole number, got True"),
        ({"nodes": 0}, ValueError, "a cluster has at least one node"),
        ({"nodes": "3"}, TypeError, "nodes are a number, or a list"),
        ({"faults": "swam"}, ValueError, 'faults must be "swarm", "quiet" or a FaultPlan, got \'swam\''),
        ({"faults": {"crash": 1}}, TypeError, "faults must be .* or a FaultPlan, got {'crash': 1}"),
        (
            {"faults": "quiet", "budget": 1},
            ValueError,
            'faults="quiet" has no loud faults, so budget=1 would have no effect',
        ),
        ({"faults": FaultPlan({"crash": 0.1})}, ValueError, "crash of the plan would never strike: .*budget=2"),
        ({"seconds": 0}, ValueError, "seconds must be a number of seconds above 0, got 0"),
        ({"timeout": float("inf")}, ValueError, "timeout must be a number of seconds above 0, got inf"),
        ({"lose_driver": 1}, TypeError, "lose_driver must be True or False, got 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        faults(sound, **options)


def test_programs_that_are_no_functions_are_refused(tmp_path: Path) -> None:
    async def coroutine() -> None: ...

    with pytest.raises(TypeError, match="coroutine is async; give lambda: asyncio.run"):
        faults(coroutine, directory=tmp_path)
    with pytest.raises(TypeError, match="the program returned a coroutine"):
        faults(lambda: coroutine(), directory=tmp_path)


def test_a_plan_is_used_as_it_is_but_for_the_budget() -> None:
    plan = FaultPlan({"node_loss": 0.2}, budget=1, struck_tasks=("user_code",))
    assert FaultSettings(faults=plan).plan(7) == plan
    assert FaultSettings(faults=plan, budget=3).plan(1) == FaultPlan(
        {"node_loss": 0.2}, budget=3, struck_tasks=("user_code",)
    )
    assert FaultSettings(faults="quiet").plan(1) == FaultPlan.quiet()
    assert FaultSettings().plan(0) is None


def test_the_swarm_strikes_user_code_with_two_seeds_in_three() -> None:
    for seed in range(1, 31):
        plan = FaultSettings(budget=3).plan(seed)
        assert plan is not None and 1 <= plan.budget <= 3
        kinds = AT_USER_CODE[seed % 3]
        assert plan.struck_tasks == (("user_code",) if kinds else ())
        assert all(plan.rates[kind] > 0 for kind in kinds)


# --- Runs that say nothing, and lost drivers


def test_a_run_whose_driver_has_lost_its_cluster_is_not_judged(tmp_path: Path) -> None:
    plan = FaultPlan({"crash": 1.0}, budget=1, targets=("raylet/head",))
    report = faults(lambda: minray.get(wait.remote(1)), seeds=3, faults=plan, directory=tmp_path)
    assert report.seeds == 3 and report.not_judged == 2
    assert "2 not judged because the driver had lost its cluster" in report.line()


def test_a_lost_driver_is_started_again_if_it_may_be_lost(tmp_path: Path) -> None:
    plan = FaultPlan({"crash": 0.3}, budget=1, targets=(), struck_tasks=("user_code",))
    pids: list[int] = []

    def program() -> None:
        pids.append(os.getpid())
        minray.get(wait.remote(1))

    report = faults(program, seeds=5, faults=plan, lose_driver=True, directory=tmp_path)
    assert report.not_judged == 0 and len(pids) > 1 + 5


def test_a_driver_that_ends_itself_has_failed(tmp_path: Path) -> None:
    with pytest.raises(DriverDied, match="driver/0 has exited with code 3"):
        faults(lambda: os._exit(3), lose_driver=True, directory=tmp_path)


def test_an_interrupt_from_outside_ends_the_search(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("minray.simulation.cluster.SimCluster.wait_for", interrupt)
    with pytest.raises(KeyboardInterrupt):
        faults(sound, directory=tmp_path)


def test_only_a_failure_of_the_same_error_at_the_same_line_is_kept(tmp_path: Path) -> None:
    def program() -> None:
        actor: Any = Mortal.remote()
        try:
            minray.get(actor.work.remote(1))
        except ActorDiedError:
            raise LookupError("dead") from None
        assert random.random() < 0.5

    settings = FaultSettings()
    failed = next(run for seed in range(1, 60) if "LookupError" in (run := run_program(program, settings, seed)).failure())
    shrinker = ProgramShrinker(
        failed, lambda seed, overrides, **more: run_program(program, settings, seed, overrides, **more)
    )
    shrinker.shrink_faults()
    assert shrinker.run.failure() == failed.failure() and [key[0] for key, _ in shrinker.faults] == ["crash"]


def test_pytest_is_not_imported_for_faults_alone(tmp_path: Path) -> None:
    program = (
        "import sys\n"
        "import minray.testing\n"
        "assert 'minray.simulation' not in sys.modules, 'imported before it is used'\n"
        "print(minray.testing.faults(lambda: None, seeds=2).seeds, 'pytest' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert done.stdout == "2 False\n"


def test_saved_faults_name_the_error_and_the_sentence(tmp_path: Path) -> None:
    find(fragile, tmp_path, ActorDiedError, seeds=20)
    saved = read_faults(next(tmp_path.glob("*.json")))
    assert saved is not None and saved.test.endswith("test_faults.fragile")
    (failure,) = saved.failures
    assert failure.error.startswith("ActorDiedError at test_faults.py:")
    assert failure.sentence.startswith("fails when worker 2 dies while")
