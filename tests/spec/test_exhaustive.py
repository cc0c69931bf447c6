"""Every single crash of the smallest program. The sweep also sees planted bugs, and points that it has missed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner

from minray.core_worker.submission.task_manager import TaskManager
from minray.simulation.garbage import without_garbage_collection
from tests.spec.exhaustive import PROGRAMS, STRIKES, Sweep, Sweeper, faults_at, listen, main, place_of, table
from tests.spec.shrink import shrink

SMALLEST = PROGRAMS["one task"]
CHECKOUT = Path(__file__).resolve().parents[2]


def sweep_smallest(*kinds: str) -> Sweep:
    with without_garbage_collection():
        return Sweeper("one task", SMALLEST).strike_all(kinds or tuple(STRIKES))


@pytest.mark.slow
def test_no_single_crash_breaks_the_smallest_program() -> None:
    sweep = sweep_smallest("crash")
    assert not sweep.failures, "\n".join([*sweep.failures[0].verdict.problems, sweep.failures[0].verdict.story])
    assert sweep.is_complete and sweep.runs == 1 + len(sweep.struck)
    roles = {place_of(key)[0] for key in sweep.points if key[0] == "crash"}
    assert roles == {"driver", "gcs", "raylet", "worker"}


@pytest.mark.slow
def test_both_faults_of_a_pair_strike() -> None:
    sweeper = Sweeper("one task", SMALLEST)
    with without_garbage_collection():
        _, points = listen(SMALLEST)
        lease = [key for key in points if key[2] == "RequestWorkerLease"]
        for fault in faults_at(lease):
            sweeper.strike(fault)
        sweep = sweeper.strike_pairs(8)
    assert sweep.pairs > 8 == sweep.pairs_struck
    assert not sweep.failures and not sweep.missed


def test_a_dry_run_collects_points_and_strikes_none() -> None:
    verdict, points = listen(SMALLEST)
    assert verdict.ok and not verdict.answers
    assert ("driver/0>raylet/head", "RequestWorkerLease") in {key[1:3] for key in points}
    assert len(points) == len(set(points))


@pytest.mark.slow
def test_a_retry_that_is_forgotten_is_found_at_the_one_point_that_shows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskManager, "begin_retry", lambda *_: False)
    sweep = sweep_smallest("crash")
    places = {place_of((failure.scenario.overrides or ())[0][0]) for failure in sweep.failures}
    assert places == {("worker", "send PushTask reply")}  # At earlier points the body has not begun: no attempt is used up.
    failure = sweep.failures[0]
    witness = shrink(failure.scenario, failure.verdict, max_runs=60)
    assert witness.verdict.codes == {"G17"} and len(witness.scenario.overrides or ()) == 1


def test_a_point_that_was_not_struck_is_noticed() -> None:
    nowhere = ("crash", "worker/none", "user_code", 1)
    sweeper = Sweeper("one task", SMALLEST)
    sweeper.strike((nowhere, 1))
    assert sweeper.sweep.missed == [(nowhere, 1)] and not sweeper.sweep.is_complete
    unfinished = Sweep("one task", points=[nowhere])
    assert not unfinished.is_complete and "0/1" in table([unfinished])


def test_a_negative_number_of_pairs_is_refused() -> None:
    done = CliRunner().invoke(main, ["--program", "one task", "--pairs", "-3"])
    assert done.exit_code == 2 and "-3 is not in the range" in done.output


STUB = """#!/bin/sh
case "$*" in
*--list) {listing} ;;
*) echo "$@"; {run} ;;
esac
"""
"""Script that stands for Python in the environment of ``make``."""


@pytest.mark.parametrize(
    ("listing", "run", "programs"),
    [
        ("echo 'one task'; echo last", "true", ["one task", "last"]),
        ("echo 'one task'; echo last", "exit 1", ["one task", "last"]),
        ("echo 'one task'; exit 3", "true", None),
        ("true", "true", None),
    ],
    ids=["all pass", "one fails", "no list", "an empty list"],
)
def test_make_runs_every_program_and_fails_if_one_fails_or_the_list_is_empty(
    tmp_path: Path, listing: str, run: str, programs: list[str] | None
) -> None:
    (tmp_path / "bin").mkdir()
    python = tmp_path / "bin" / "python"
    python.write_text(STUB.format(listing=listing, run=run))
    python.chmod(0o755)
    (tmp_path / ".installed").touch()
    command = ["make", "--silent", "-C", str(CHECKOUT), "exhaustive", f"VENV={tmp_path}", "EXHAUSTIVE_ARGS="]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode == 0) == (programs is not None and run == "true"), done.stderr
    assert {*done.stdout.splitlines()} == {f"-m tests.spec.exhaustive --program {name}" for name in programs or []}
