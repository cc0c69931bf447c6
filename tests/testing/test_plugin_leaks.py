"""The leak check of the pytest plugin: each kind of thing that a test leaves is named, with what keeps it and what ends it.

Ray: has no counterpart
"""

from __future__ import annotations

from pathlib import Path

import pytest

from minray.node.discovery import local_nodes
from minray.testing import cluster_leaks
from tests.testing.runs import run, run_apart

pytest_plugins = ["pytester"]

CLEAN = """
import gc

def test_tasks(minray_local):
    refs = [add.remote(i) for i in range(5)]
    assert minray.get(refs) == [1, 2, 3, 4, 5]

def test_actor(minray_local):
    counter = Counter.remote()
    assert minray.get(counter.add.remote()) == 1

@pytest.fixture
def counter(minray_local):
    return Counter.remote()

def test_fixture(counter):
    assert minray.get(counter.add.remote()) == 1

class TestInstance:
    def test_attributes(self, minray_local):
        self.counter, self.refs = Counter.remote(), [add.remote(1)]
        assert minray.get(self.counter.add.remote()) == 1

def test_killed(minray_local):
    counter = Counter.options(name="x", lifetime="detached").remote()
    minray.get(counter.add.remote())
    minray.kill(counter)

def test_cycle(minray_local):
    with pytest.raises(minray.exceptions.RayTaskError) as info:
        ref = add.remote("text")
        minray.get(ref)

def test_thread(minray_local):
    thread = threading.Thread(target=lambda: None)
    thread.start()
    thread.join()

def test_put_with_nested(minray_local):
    inner = minray.put(1)
    assert minray.get(minray.get(minray.put([inner]))[0]) == 1
"""


SHOWN = ("-Wdefault", "-Wignore::pytest.PytestAssertRewriteWarning")
"""Show warnings, but not that modules of the process around the run cannot be rewritten."""


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less for what certainly stays."""
    monkeypatch.setattr(cluster_leaks, "PATIENCE_S", 0.5)


def test_clean_tests_pass(pytester: pytest.Pytester) -> None:
    run(pytester, CLEAN).assert_outcomes(passed=8)


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            'Counter.options(name="x", lifetime="detached").remote()',
            "*detached actor Counter 'x' (*): minray.kill(minray.get_actor('x')) ends it*",
        ),
        (
            'Counter.options(name="x", lifetime="detached", namespace="n").remote()',
            "*minray.kill(minray.get_actor('x', namespace='n')) ends it*",
        ),
        (
            "KEPT.append(Counter.remote())",
            "*actor Counter (*), kept by a list in the global KEPT of module test_inner: drop its handle, or *",
        ),
        (
            "KEPT.append(add.remote(1))",
            "*reference *, kept by a list in the global KEPT of module test_inner: drop it*",
        ),
        (
            "Holder.ref = minray.put(1)",
            "*reference *, kept by the attribute ref of class Holder: drop it*",
        ),
        (
            "KEPT.append(lambda ref=minray.put(1): ref)",
            "*reference *, kept by *a default argument of test_one.<locals>.<lambda>*",
        ),
        (
            "minray.util.placement_group([{'CPU': 1}])",
            "*placement group (*): remove_placement_group() ends it*",
        ),
        (
            "add.options(num_cpus=99, name='huge').remote(1)",
            "*task * has not ended: get() its result, or minray.cancel() it*",
        ),
        (
            "KEPT.append(threading.Event()); threading.Thread(target=KEPT[-1].wait, name='mine').start()",
            "*thread 'mine' runs: let it end, and join() it*",
        ),
        (
            "import subprocess, sys; KEPT.append(subprocess.Popen([sys.executable, '-c', 'input()'], stdin=-1))",
            "*process * runs (*input()*): terminate() it, and wait() for it*",
        ),
    ],
    ids=lambda text: text[:30] if not text.startswith("*") else "",
)
def test_a_leak_is_named(pytester: pytest.Pytester, body: str, line: str) -> None:
    result = run(
        pytester,
        f"""
KEPT = []

class Holder:
    ref = None

@pytest.fixture(autouse=True, scope="module")
def ends_what_the_tests_keep():
    yield
    for thing in KEPT:
        if isinstance(thing, threading.Event):
            thing.set()
        elif hasattr(thing, "stdin"):
            thing.stdin.close()
            thing.wait()

def test_one(minray_local):
    {body}

def test_two(minray_local):
    assert minray.get(add.remote(1)) == 2
""",
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*left by the test:*", line])


def test_shared_memory_and_files_are_named(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)  # whose workers share the memory that is looked at
    result = run_apart(
        pytester,
        """
from multiprocessing import resource_tracker, shared_memory
from pathlib import Path

KEPT = []

@pytest.fixture(autouse=True, scope="module")
def ends_what_the_tests_keep():
    yield
    KEPT[0].close()
    KEPT[0].unlink()
    KEPT[1].unlink()
    KEPT[1].parent.rmdir()

@pytest.mark.minray_init(num_cpus=1)
def test_one(minray_local):
    KEPT.append(shared_memory.SharedMemory(create=True, size=8))
    directory = Path(minray_local["session_dir"])
    directory.mkdir(parents=True)
    KEPT.append(directory / "left")
    KEPT[1].write_text("x")
""",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*file */left of an ended cluster*", "*shared memory psm_*: unlink() it*"])


def test_a_thread_of_a_worker_that_cannot_be_ended_is_named(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
LOCK = threading.Lock()

@pytest.fixture(autouse=True, scope="module")
def ends_what_the_tests_keep():
    LOCK.acquire()
    yield
    LOCK.release()

@minray.remote
def stuck():
    import test_inner
    test_inner.LOCK.acquire()

def test_one(minray_local):
    stuck.remote()
""",
    )
    result.assert_outcomes(passed=1, errors=1)
    result.stdout.fnmatch_lines(["*thread 'worker/* MainThread' runs, in stuck at *test_inner.py:*"])
    assert not local_nodes


@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize(("how", "errors", "warnings"), [("error", 1, 0), ("warn", 0, 1), ("off", 0, 0)])
def test_the_option_decides_what_a_leak_does(pytester: pytest.Pytester, how: str, errors: int, warnings: int) -> None:
    text = "\nKEPT = []\n\ndef test_one(minray_local):\n    KEPT.append(add.remote(1))\n"
    result = run(pytester, text, f"--minray-leaks={how}", *SHOWN)
    result.assert_outcomes(passed=1, errors=errors, warnings=warnings)


@pytest.mark.usefixtures("impatient")
def test_a_mark_and_a_pattern_allow_leaks(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
KEPT = []

@pytest.mark.minray_leaks("off")
def test_one(minray_local):
    KEPT.append(add.remote(1))

def test_two(minray_local):
    KEPT.append(Counter.remote())

def test_three(minray_local):
    KEPT.append(minray.put(1))
""",
        ini="minray_leaks_allow =\n    actor Counter .* kept by .* KEPT\n",
    )
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*ERROR*test_three*"])


def test_a_failed_test_is_not_blamed_for_leaks(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        "\ndef test_one(minray_local):\n    counter = Counter.remote()\n    assert minray.get(add.remote(1)) == 3\n",
    )
    result.assert_outcomes(failed=1)


@pytest.mark.usefixtures("impatient")
def test_leaks_count_in_clusters_that_a_test_starts(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_one(shutdown_only):
    minray.init(num_cpus=1)
    Counter.options(name="x", lifetime="detached").remote()

def test_two(shutdown_only):
    minray.init(num_cpus=1)
    assert minray.get(add.remote(1)) == 2
""",
        ini="minray_ray_fixtures = true\n",
    )
    result.assert_outcomes(passed=2, errors=1)
    result.stdout.fnmatch_lines(["*detached actor Counter 'x'*"])


def test_only_tests_with_a_fixture_are_checked(pytester: pytest.Pytester, tmp_path: Path) -> None:
    result = run(
        pytester,
        """
EVENT = threading.Event()

def test_one():
    threading.Thread(target=EVENT.wait).start()

def test_two(minray_local):
    EVENT.set()
""",
    )
    result.assert_outcomes(passed=2)
