"""The pytest plugin beside others: time-outs, pytest-xdist, pytest-asyncio, anyio.

Ray: has no counterpart
"""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.testing.runs import run, run_apart

pytest_plugins = ["pytester"]

STUCK = """
@minray.remote
class Slow:
    def wait(self):
        time.sleep(100)

def test_one(minray_local):
    slow = Slow.remote()
    huge = add.options(num_cpus=99, name="huge").remote(1)
    minray.get([huge, slow.wait.remote()])
"""


def told(result: pytest.RunResult) -> None:
    """Check that a run tells what its cluster waited for."""
    result.stdout.fnmatch_lines_random(
        [
            "*minray: what the cluster waits for*",
            "*task huge * waits for a worker: needs {CPU: 99}*",
            "*call Slow.wait * it runs*",
            "*Stacks of the cluster:*",
            "*Threads of the test's process:*",
        ]
    )


@pytest.mark.slow
def test_a_time_out_of_minray_tells_what_the_cluster_waits_for(pytester: pytest.Pytester) -> None:
    result = run(pytester, STUCK, "-p", "no:timeout", "--minray-timeout=4")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*not done within 4 s (--minray-timeout)*"])
    told(result)


@pytest.mark.slow
@pytest.mark.parametrize("option", ["--timeout=4", "--minray-timeout=4"])
def test_a_time_out_of_pytest_timeout_does_so_too(pytester: pytest.Pytester, option: str) -> None:
    result = run_apart(pytester, STUCK, option)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*from pytest-timeout*"])
    told(result)


@pytest.mark.slow
def test_the_method_thread_prints_before_it_ends_the_process(pytester: pytest.Pytester) -> None:
    result = run_apart(pytester, STUCK, "--timeout=4", "--timeout-method=thread")
    assert result.ret == 1
    told(result)


def test_a_wrong_time_is_refused(pytester: pytest.Pytester) -> None:
    result = run(pytester, STUCK, "--minray-timeout=-1")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--minray-timeout*invalid*-1*"])


@pytest.mark.slow
def test_each_worker_of_xdist_has_clusters_of_its_own(pytester: pytest.Pytester) -> None:
    result = run_apart(
        pytester,
        """
import os

@pytest.mark.parametrize("number", range(6))
def test_local(minray_local, number):
    counter = Counter.options(name="the same").remote()
    assert minray.get(counter.add.remote()) == 1

@pytest.mark.parametrize("number", range(4))
def test_processes(minray_processes, number):
    counter = Counter.options(name="the same").remote()
    assert minray.get(counter.add.remote()) == 1
""",
        "-n2",
    )
    result.assert_outcomes(passed=10)


ASYNC = """
@minray.remote
class Slow:
    async def answer(self):
        return 42

async def test_reference(minray_local):
    assert await add.remote(1) == 2

async def test_many(minray_local):
    slow = Slow.remote()
    assert await asyncio.gather(*(slow.answer.remote() for _ in range(3))) == [42, 42, 42]
"""


@pytest.mark.skipif(find_spec("pytest_asyncio") is None, reason="needs pytest-asyncio")
def test_pytest_asyncio(pytester: pytest.Pytester) -> None:
    simulated = """
@pytest.mark.minray_world("simulation")
async def test_simulated(minray_local):
    await asyncio.sleep(100)
    assert await add.remote(1) == 2
"""
    ini = "asyncio_mode = auto\nasyncio_default_fixture_loop_scope = function\n"
    result = run_apart(pytester, "\nimport asyncio\n" + ASYNC + simulated, ini=ini)
    result.assert_outcomes(passed=3)


@pytest.mark.skipif(find_spec("anyio") is None, reason="needs anyio")
def test_anyio(pytester: pytest.Pytester) -> None:
    head = (
        "\nimport asyncio\n\npytestmark = pytest.mark.anyio\n\n@pytest.fixture\ndef anyio_backend():\n    return 'asyncio'\n"
    )
    threads = """
async def test_thread(minray_local):
    from anyio import to_thread
    assert await to_thread.run_sync(minray.get, add.remote(1)) == 2
"""
    run_apart(pytester, head + ASYNC + threads).assert_outcomes(passed=3)
