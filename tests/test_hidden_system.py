"""minray on a system without what only Unix has: the simulation runs as ever, and processes say what they need.

``tests/hidden.py`` is such a system. It takes a process of its own.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests import hidden

pytestmark = pytest.mark.slow


def output(program: str, *arguments: str) -> str:
    """Run a program on such a system and return what it prints."""
    done = hidden.run(program, *arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def test_what_is_hidden_is_not_there() -> None:
    program = """
        import importlib, os, shutil, socket, signal
        for name in hidden.MODULES:
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                assert error.name == name
            else:
                raise SystemExit(f"{name} can be imported")
        assert not hasattr(os, "fork") and not hasattr(socket, "AF_UNIX") and not hasattr(signal, "SIGKILL")
        one, other = socket.socketpair()
        one.send(b"loopback")
        print(other.recv(10).decode(), shutil.disk_usage(".").total > 0)
        one.close(), other.close()
    """
    assert output(program) == "loopback True\n"


PROGRAM = """
    import sys
    import numpy
    import minray
    from minray.simulation.cluster import run

    @minray.remote
    class Sum:
        def __init__(self):
            self.all = 0

        def add(self, number):
            self.all += number
            return self.all

    @minray.remote
    def double(value):
        return 2 * value

    @minray.remote(num_returns="streaming")
    def count(end):
        yield from range(end)

    @minray.remote(max_retries=0)
    def crash():
        import os
        os.abort()

    def program():
        total = Sum.remote()
        large = minray.put(numpy.ones(1 << 18))
        try:
            minray.get(crash.remote())
        except minray.exceptions.WorkerCrashedError as error:
            print(type(error).__name__)
        print(minray.get([double.remote(number) for number in range(5)]), minray.get(double.remote(large)).sum())
        print([minray.get(total.add.remote(number)) for number in range(5)], [minray.get(ref) for ref in count.remote(3)])

    if sys.argv[1:] == ["local"]:
        with minray.init(local_mode=True, num_cpus=2, logging_level="WARNING"):
            program()
    else:
        run(program, nodes=3, seed=3)
"""


@pytest.mark.parametrize("world", ["simulated", "local"])
def test_a_program_runs_in_the_worlds_that_need_no_processes(world: str) -> None:
    assert output(PROGRAM, world) == (
        "WorkerCrashedError\n[0, 2, 4, 6, 8] 524288.0\n[0, 1, 3, 6, 10] [0, 1, 2]\n"
    )


def test_a_run_with_faults_is_that_of_any_other_system() -> None:
    words = ["--seed", "11", "--faults", "swarm", "--rows", "20"]
    program = "import runpy, sys\nrunpy.run_module('minray.simulation', run_name='__main__')\n"
    here = subprocess.run([sys.executable, "-m", "minray.simulation", *words], capture_output=True, text=True, check=True)
    assert "digest" in here.stdout
    assert output(program, *words) == here.stdout


@pytest.mark.parametrize(
    "start",
    [
        "minray.init()",
        "minray.init('local')",
        "minray.init('auto')",
        "minray.init('127.0.0.1:6379')",
        "minray.get(minray.remote(abs).remote(-1))",
        "from minray.cluster_utils import Cluster; Cluster(initialize_head=True)",
    ],
)
def test_processes_say_what_they_need_and_what_needs_less(start: str) -> None:
    done = hidden.run(f"import minray\n{start}\n")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == (
        f"RuntimeError: processes of minray need unix sockets, which this system ({sys.platform}) lacks: use"
        " minray.init(local_mode=True), a cluster inside this process, or minray.simulation"
    )


@pytest.mark.parametrize("command", [["start", "--head"], ["status"], ["stop"]])
def test_the_command_line_says_so_too(command: list[str]) -> None:
    done = hidden.run("from minray.__main__ import main\nmain()\n", *command)
    assert done.returncode == 1 and "processes of minray need unix sockets" in done.stderr
    assert "Traceback" not in done.stderr


def test_the_machine_is_described() -> None:
    """Memory, processors and limits; there is no limit where nobody can ask for it."""
    program = """
        import errno
        from minray.platform.process import host, limits
        here = host.RealHost()
        used, most = here.memory_usage()
        assert here.cpu_count >= 1 and 0 < used < most and here.memory_bytes > 1 << 26 and here.process_memory(1) >= 0
        print(repr(here.shortage()), host.raise_file_limit() == host.MOST_FILES)
        print(limits.describe_os_error(OSError(errno.EMFILE, "")))
        print(limits.describe_process_limit())
    """
    assert output(program).splitlines() == [
        "'' True",
        "Too many open files (this process has as many files open as its system allows)",
        "a control group or the machine may allow fewer (pids.max, kernel.pid_max)",
    ]


def test_a_thread_with_a_loop_runs() -> None:
    program = """
        import asyncio, warnings
        from minray.platform.threads.user_code import IoThread
        warnings.simplefilter("ignore")  # uvloop is hidden, too
        thread = IoThread()
        print(thread.run(asyncio.sleep(0, "back")))
        thread.stop()
    """
    assert output(program) == "back\n"


def test_files_are_spilled_and_packages_unpacked() -> None:
    program = """
        import asyncio, os, sys, tempfile
        from concurrent.futures import ThreadPoolExecutor
        from minray.platform.storage import packages
        from minray.platform.storage.disk import RealDisk
        from minray.platform.storage.private_paths import remove_tree

        async def spill(directory):
            disk = RealDisk(directory, 0.999999)
            await disk.write("one", [b"spilled ", b"objects"])
            piece = memoryview(bytearray(7))
            await disk.read("one", 8, [piece])
            print(bytes(piece).decode())
            disk.remove("one")
            await disk.close()

        with tempfile.TemporaryDirectory() as directory:
            asyncio.run(spill(directory))
            work, checks = os.path.join(directory, "unpacked"), []
            with open(os.path.join(directory, "module.py"), "w") as file:
                file.write("name = 1")
            package = packages.pack_file(file.name, 1000)
            with ThreadPoolExecutor(4) as threads:
                list(threads.map(lambda _: packages.unpack(package, work, lambda: checks.append(1)), range(4)))
            print(os.listdir(work), len(checks))
            remove_tree(work)
            print(os.path.exists(work))
    """
    assert output(program) == "objects\n['module.py'] 1\nFalse\n"
