"""The marker ``minray_faults`` in runs of pytest."""

from __future__ import annotations

import json
import re
from textwrap import dedent

import pytest

import minray.testing.search  # noqa: F401 (imported by the first run in this process, it would be imported by each of them)
from minray.testing import fault_plugin
from tests.testing.runs import PLUGIN

pytest_plugins = ["pytester"]

HEAD = """
import time
import minray, pytest

@minray.remote
class Mortal:
    def work(self, number):
        time.sleep(0.1)
        return number

@minray.remote(max_retries=-1)
def wait(seconds):
    time.sleep(seconds)
    return seconds

def fragile(count=4):
    actor = Mortal.remote()
    assert minray.get([actor.work.remote(number) for number in range(count)]) == list(range(count))
"""
FILE = ".minray_faults/test_it.test_it.json"


class Runner:
    """Runs pytest with the plugin on a test file of its own."""

    def __init__(self, pytester: pytest.Pytester) -> None:
        self.pytester = pytester

    def run(self, source: str, *arguments: str) -> pytest.RunResult:
        self.pytester.makepyfile(test_it=HEAD + dedent(source))
        return self.again(*arguments)

    def again(self, *arguments: str) -> pytest.RunResult:
        common = (*PLUGIN, "-p", "no:cacheprovider", "-p", "no:randomly")
        xdist = () if any("-n" in argument for argument in arguments) else ("-p", "no:xdist")
        return self.pytester.runpytest_inprocess(*common, *xdist, *arguments)


@pytest.fixture
def runner(pytester: pytest.Pytester) -> Runner:
    return Runner(pytester)


def test_a_marked_test_is_one_test_that_ends_at_its_first_failing_seed(runner: Runner, pytester: pytest.Pytester) -> None:
    result = runner.run(
        """
        @pytest.mark.minray_faults(seeds=20)
        def test_it():
            print("the output of a run")
            fragile()
        """
    )
    result.assert_outcomes(failed=1)
    text = result.stdout.str()
    result.stdout.fnmatch_lines(
        [
            "E * The actor is dead *",
            "E * seed 1: fails when worker 2 dies while `Mortal.work(0)` runs",
            "E * worker 2 is worker/* on head",
            "E * faults struck, and 1 of them is enough (*",
            f"E * replay: python -m pytest test_it.py::test_it --minray-fault-replay {FILE}",
            "E * page:   .minray_faults/test_it.test_it.html",
            "E * !! crash before step *",
        ]
    )
    assert text.count("the output of a run") == 2, "in the source and in the failing run"
    assert "program_runs.py" not in text, "the traceback begins with the test"
    story = text[text.index("page:   ") :].split("\n\n")[0].splitlines()[1:]
    assert len(story) == 40
    assert (pytester.path / FILE).exists() and (pytester.path / FILE).with_suffix(".html").exists()


def test_a_sound_test_passes_and_says_nothing_unless_it_is_asked(runner: Runner, pytester: pytest.Pytester) -> None:
    source = """
        @pytest.mark.minray_faults(seeds=6)
        def test_it():
            assert minray.get(wait.remote(60)) == 60
        """
    result = runner.run(source)
    result.assert_outcomes(passed=1)
    assert "minray faults" not in result.stdout.str() and "seeds" not in result.stdout.str()
    result = runner.again("-v")
    assert re.search(r"test_it.py::test_it: 6 seeds with \d+ faults in [\d.]+ s", result.stdout.str())
    assert not (pytester.path / ".minray_faults").exists()


def test_progress_is_written_while_a_test_runs(runner: Runner, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fault_plugin, "REPORT_S", 0.0)
    source = """
        @pytest.mark.minray_faults(seeds=4)
        def test_it():
            print("not shown")
        """
    text = runner.run(source, "-v").stdout.str()
    assert re.findall(r"test_it.py::test_it: (\d) of 4 seeds, \d+ s", text) == ["2", "3", "4"]
    assert "not shown" not in text
    assert "of 4 seeds" not in runner.again().stdout.str()


def test_fixtures_and_parameters_are_the_arguments_of_the_driver(runner: Runner) -> None:
    result = runner.run(
        """
        @pytest.fixture
        def seconds():
            return 0.5

        class TestIt:
            @pytest.mark.minray_faults(seeds=3)
            @pytest.mark.parametrize("count", [1, 2])
            def test_it(self, count, seconds, tmp_path, request):
                assert request.node.name == f"test_it[{count}]" and tmp_path.exists()
                assert minray.get([wait.remote(seconds)] * count) == [0.5] * count
        """
    )
    result.assert_outcomes(passed=2)


def test_a_coroutine_function_is_run_in_the_simulation(runner: Runner, pytester: pytest.Pytester) -> None:
    """Plugins such as anyio's run coroutine functions themselves, and before others."""
    pytester.makeconftest(
        """
        import inspect, pytest

        @pytest.hookimpl(tryfirst=True)
        def pytest_pyfunc_call(pyfuncitem):
            assert not inspect.iscoroutinefunction(pyfuncitem.obj), "run outside of the simulation"
        """
    )
    result = runner.run(
        """
        import asyncio

        @pytest.mark.minray_faults(seeds=3)
        async def test_it():
            await asyncio.sleep(100)
            assert await wait.remote(1) == 1
        """
    )
    result.assert_outcomes(passed=1)


def test_a_test_that_reads_its_output_gets_it(runner: Runner) -> None:
    result = runner.run(
        """
        @pytest.mark.minray_faults(seeds=3)
        def test_it(capsys):
            print("hello")
            assert capsys.readouterr().out == "hello\\n"
        """
    )
    result.assert_outcomes(passed=1)


def test_saved_faults_are_tried_before_the_seeds_of_a_later_run(runner: Runner, pytester: pytest.Pytester) -> None:
    source = """
        @pytest.mark.minray_faults(seeds={seeds})
        def test_it():
            fragile()
        """
    runner.run(source.format(seeds=20)).assert_outcomes(failed=1)
    before = (pytester.path / FILE).read_text()
    result = runner.run(source.format(seeds=1))  # too few seeds to find it
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        ["E * seed 1: fails when worker 2 dies while `Mortal.work(0)` runs", "E * 1 fault struck (*"]
    )
    assert (pytester.path / FILE).read_text() == before
    result = runner.again("--minray-fault-replay", FILE)
    result.stdout.fnmatch_lines(["E * seed 1: fails when worker 2 dies while `Mortal.work(0)` runs"])


def test_a_replay_runs_only_the_test_whose_faults_it_has(runner: Runner, pytester: pytest.Pytester) -> None:
    result = runner.run(
        """
        @pytest.mark.minray_faults(seeds=20)
        def test_it():
            fragile()

        @pytest.mark.minray_faults(seeds=20)
        def test_other():
            fragile()
        """,
        "-k",
        "test_it",
    )
    result = runner.again("--minray-fault-replay", FILE, "-rs")
    result.assert_outcomes(failed=1, skipped=1)
    result.stdout.fnmatch_lines([f"*--minray-fault-replay: {FILE} has the faults of test_it.py::test_it"])
    result = runner.again("--minray-fault-replay", "absent.json", "-k", "test_it and not other")
    result.stdout.fnmatch_lines(["--minray-fault-replay: there is no file absent.json"])


def test_a_broken_file_of_faults_is_named(runner: Runner, pytester: pytest.Pytester) -> None:
    (pytester.path / FILE).parent.mkdir()
    (pytester.path / FILE).write_text("{")
    result = runner.run(
        """
        @pytest.mark.minray_faults
        def test_it():
            pass
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([f"E * ValueError: */{FILE} is no file of saved faults: * Restore it, or delete it."])


def test_the_directory_of_faults_can_be_configured(runner: Runner, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nminray_faults_dir = found/here")
    source = """
        @pytest.mark.minray_faults(seeds=20)
        @pytest.mark.parametrize("name", ["a/b"])
        def test_it(name):
            fragile()
        """
    runner.run(source).assert_outcomes(failed=1)
    (file,) = (pytester.path / "found/here").glob("*.json")
    assert json.loads(file.read_text())["test"] == "test_it.py::test_it[a/b]"


def test_no_seed_is_begun_when_the_time_is_over_and_the_summary_says_so(runner: Runner) -> None:
    result = runner.run(
        """
        @pytest.mark.minray_faults(seeds=100_000)
        def test_it():
            minray.get(wait.remote(1))
        """,
        "--minray-fault-seconds",
        "0.001",
    )
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines(
        ["*= minray faults =*", "test_it.py::test_it: 1 seeds with 0 faults in * s; the time was over"]
    )


@pytest.mark.parametrize("seconds", ["0", "-1", "soon", "nan"])
def test_a_time_that_is_none_is_refused(runner: Runner, seconds: str) -> None:
    result = runner.run("def test_it(): pass", f"--minray-fault-seconds={seconds}")
    result.stderr.fnmatch_lines([f"*--minray-fault-seconds: invalid * value: '{seconds}'"])


def test_a_test_whose_runs_differ_fails_with_the_first_difference(runner: Runner) -> None:
    result = runner.run(
        """
        import numpy as np

        @pytest.mark.minray_faults
        def test_it(generator=np.random.default_rng(7)):
            minray.get(wait.remote(generator.random()))
        """
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            "E * test_it.py::test_it is not repeatable: two runs of seed 0 without faults differ, *",
            "E * The first difference is event *:",
            "E *   one run  : *",
            "E *   the other: *",
        ]
    )


def test_what_the_simulation_refuses_is_told_with_line_and_remedy(runner: Runner, pytester: pytest.Pytester) -> None:
    result = runner.run(
        """
        import threading

        @pytest.mark.minray_faults
        def test_it():
            threading.Thread(target=print).start()
        """
    )
    result.assert_outcomes(failed=1)
    lines = (pytester.path / "test_it.py").read_text().splitlines()
    number = next(number for number, line in enumerate(lines, 1) if "Thread(" in line)
    place = f"test_it.py:{number}: threading.Thread(target=print).start())"
    result.stdout.fnmatch_lines(
        [f"E * threading.Thread.start inside the simulated process driver/0: use tasks, an actor, or coroutines *{place}"]
    )


@pytest.mark.parametrize(
    ("marker", "words"),
    [
        ("(seeds=0)", "minray_faults: seeds must be at least 1, got 0"),
        ("(5)", "minray_faults takes keyword arguments only, as in seeds=200; got (5,)"),
        ("(seed=5)", "minray_faults has no argument 'seed', only seeds, nodes, faults, budget, *"),
        ("(nodes=0)", "minray_faults: a cluster has at least one node*"),
        ("(faults='loud')", "minray_faults: faults must be *swarm*, *quiet* or a FaultPlan, got 'loud'"),
    ],
)
def test_a_marker_that_makes_no_sense_fails_its_test(runner: Runner, marker: str, words: str) -> None:
    result = runner.run(f"@pytest.mark.minray_faults{marker}\ndef test_it(): pass")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines([words])


def test_tests_whose_body_cannot_be_the_driver_are_refused(runner: Runner) -> None:
    result = runner.run(
        """
        import unittest
        from hypothesis import given, strategies as st

        class TestIt(unittest.TestCase):
            @pytest.mark.minray_faults
            def test_it(self): pass

        @pytest.mark.minray_faults
        @given(st.integers())
        def test_drawn(number): pass
        """
    )
    result.assert_outcomes(errors=2)
    result.stdout.fnmatch_lines(["*TestIt::test_it is a method of a unittest.TestCase: minray_faults needs a function, *"])
    result.stdout.fnmatch_lines(["*test_drawn is a test of Hypothesis, whose examples are drawn by chance: *"])


def test_skips_and_expected_failures_are_those_of_seed_0(runner: Runner) -> None:
    result = runner.run(
        """
        @pytest.mark.minray_faults(seeds=3)
        def test_skipped():
            pytest.skip("not here")

        @pytest.mark.minray_faults(seeds=20)
        @pytest.mark.xfail(strict=True)
        def test_expected():
            fragile()

        runs = []

        @pytest.mark.minray_faults(seeds=5)
        def test_skipped_later():
            runs.append(1)
            if len(runs) > 3:
                pytest.skip("a run with faults")
        """
    )
    result.assert_outcomes(skipped=1, xfailed=1, passed=1)


def test_a_time_out_from_outside_ends_the_test_and_is_no_finding(runner: Runner, pytester: pytest.Pytester) -> None:
    result = runner.run(
        """
        import signal

        def ring(*_):
            pytest.fail("time-out from outside")

        @pytest.mark.minray_faults(seeds=100_000)
        def test_it():
            minray.get(wait.remote(1))

        @pytest.fixture(autouse=True)
        def limited():
            before = signal.signal(signal.SIGALRM, ring)
            signal.setitimer(signal.ITIMER_REAL, 0.3)
            yield
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        """
    )
    result.assert_outcomes(failed=1)
    assert "time-out from outside" in result.stdout.str() and "replay:" not in result.stdout.str()
    assert not (pytester.path / ".minray_faults").exists()


def test_nothing_of_the_simulation_is_imported_without_a_marked_test(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        """
        import sys

        def test_it():
            assert not any(name.startswith(("minray.simulation", "minray.testing.search")) for name in sys.modules)
        """
    )
    result = pytester.runpytest_subprocess(*PLUGIN, "-p", "no:xdist")
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_under_xdist_all_seeds_of_a_test_run_in_one_worker(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=HEAD
        + dedent(
            """
            import os

            @pytest.mark.minray_faults(seeds=6)
            @pytest.mark.parametrize("number", range(3))
            def test_it(number, tmp_path_factory):
                here = tmp_path_factory.getbasetemp().parent.parent / f"seeds-of-{number}"
                with here.open("a") as file:
                    file.write(os.environ["PYTEST_XDIST_WORKER"] + "\\n")
                minray.get(wait.remote(1))

            @pytest.mark.minray_faults(seeds=20)
            def test_fragile():
                fragile()
            """
        )
    )
    base = pytester.path / "base"
    arguments = (*PLUGIN, "-p", "no:cacheprovider", "-n", "2", "-v", f"--basetemp={base}")
    result = pytester.runpytest_subprocess(*arguments)
    result.assert_outcomes(passed=3, failed=1)
    workers = [path.read_text().splitlines() for path in sorted(pytester.path.glob("seeds-of-*"))]
    assert [(len(set(names)), len(names)) for names in workers] == [(1, 7)] * 3
    result.stdout.fnmatch_lines(["*seed 1: fails when worker 2 dies while `Mortal.work(0)` runs"])
    result.stdout.fnmatch_lines(["*= minray faults =*", "test_it.py::test_it*: 6 seeds with * faults in * s"])
