"""The simulation without what a browser lacks: numpy, psutil, uvloop, ``resource``, ``fcntl`` and child processes.

Each program runs in a process of its own, in which these modules cannot be imported. What a browser does with threads is
tested in one (``tests/playground``).
"""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

from minray.simulation.__main__ import simulate

pytestmark = pytest.mark.slow

MISSING = ("numpy", "psutil", "uvloop", "resource", "fcntl", "_posixshmem", "termios")
HIDE = f"import sys\nfor name in {MISSING!r}:\n    sys.modules[name] = None\n"


def output(program: str) -> str:
    """Run a program where these modules are missing; return what it prints."""
    command = [sys.executable, "-c", HIDE + textwrap.dedent(program)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_run_with_faults_is_the_one_of_a_system_that_has_all() -> None:
    program = """
        from minray.simulation.__main__ import simulate
        cluster, outcome = simulate(11, 2, "swarm", show_output=False)
        print(outcome, cluster.trace.digest())
    """
    cluster, outcome = simulate(11, 2, "swarm", show_output=False)
    assert output(program) == f"{outcome} {cluster.trace.digest()}\n"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="without numpy, large values need Python 3.12 (PEP 688)")
def test_a_large_value_is_read_from_the_store_and_freed() -> None:
    program = """
        import minray
        from minray.simulation import SimCluster

        @minray.remote
        def size(value):
            return len(value)

        with SimCluster(2, seed=3) as cluster:
            print(cluster.run(lambda: minray.get([size.remote(minray.put(bytes(1 << 20))) for _ in range(4)])))
            cluster.settle()
            print([raylet.store.table.allocator.used for raylet in cluster.raylets.values()])
    """
    assert output(program) == f"{[1 << 20] * 4}\n[0, 0]\n"


def test_a_copy_needs_no_numpy() -> None:
    program = """
        from minray.platform.storage.copier import copy_in_parts
        target = bytearray(8)
        copy_in_parts(memoryview(target), memoryview(b"minrayed"), 1)
        print(target.decode())
    """
    assert output(program) == "minrayed\n"
