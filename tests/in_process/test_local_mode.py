"""``init(local_mode=True)``: a whole cluster inside the test's own process."""

from __future__ import annotations

import _thread
import asyncio
import atexit
import logging
import multiprocessing.util
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy
import pytest

import minray
from minray.cluster_utils import Cluster
from minray.exceptions import (
    ActorDiedError,
    RuntimeEnvSetupError,
    TaskCancelledError,
    WorkerCrashedError,
)
from minray.util.state import list_actors, list_tasks
from tests.helpers import wait_for_condition

DESCRIPTORS = Path("/proc/self/fd")


@pytest.fixture
def local() -> Iterator[Any]:
    """A cluster of one node with two CPUs."""
    yield minray.init(local_mode=True, num_cpus=2, logging_level="WARNING")
    minray.shutdown()


def descriptors() -> list[str]:
    """Return the descriptors that this process has open."""
    return sorted(path.name for path in DESCRIPTORS.iterdir()) if DESCRIPTORS.is_dir() else []


def test_nothing_outlives_the_cluster() -> None:
    replaced: list[Callable[[], Any]] = [
        lambda: time.sleep,
        lambda: os._exit,
        lambda: os.kill,
        lambda: os.getpid,
        lambda: os.environ._data,  # type: ignore[attr-defined]
        lambda: threading.Thread.start,
        lambda: signal.signal,
        lambda: asyncio.new_event_loop,
        lambda: os.system,
        lambda: subprocess._fork_exec,  # type: ignore[attr-defined]
        lambda: atexit.register,
        lambda: sys.path[:],
        lambda: logging.getLogger("minray.gcs").level,
    ]
    before = [look() for look in replaced], threading.enumerate(), len(descriptors())
    with minray.init(local_mode=True, num_cpus=2, logging_level="WARNING") as context:
        session = context["session_dir"]
        assert minray.get(minray.remote(numpy.zeros).remote(200_000)).nbytes == 1_600_000
    assert [look() for look in replaced] == before[0]
    assert set(threading.enumerate()) <= set(before[1])
    wait_for_condition(lambda: len(descriptors()) <= before[2])
    assert not os.path.exists(session)


def test_a_value_is_never_the_callers_object(local: Any) -> None:
    @minray.remote
    def change(values: list[int]) -> list[int]:
        values.append(4)
        return values

    mine = [1, 2, 3]
    ref = minray.put(mine)
    theirs = minray.get(change.remote(mine))
    assert (mine, theirs, minray.get(ref)) == ([1, 2, 3], [1, 2, 3, 4], [1, 2, 3])
    assert minray.get(ref) is not mine and minray.get(change.remote(ref)) == theirs
    array = minray.get(minray.put(numpy.arange(100_000)))
    with pytest.raises(ValueError, match="read-only"):
        array[0] = 1


def test_an_object_that_cannot_be_pickled_is_refused(local: Any) -> None:
    with pytest.raises(TypeError, match="pickle"):
        minray.remote(lambda lock: None).remote(threading.Lock())


def shout(word: str) -> str:
    return word.upper()


@minray.remote
def call_shout(word: str) -> str:
    return shout(word)


def test_a_mock_of_the_test_is_seen_in_tasks(local: Any) -> None:
    with mock.patch(f"{__name__}.shout", return_value="patched") as patched:
        assert minray.get(call_shout.remote("a")) == "patched"
    assert patched.call_args == mock.call("a") and minray.get(call_shout.remote("a")) == "A"


def wait_asleep() -> None:
    time.sleep(60)


def wait_for_an_event() -> None:
    threading.Event().wait()


def wait_in_a_loop() -> None:
    while True:
        pass


def wait_in_asyncio() -> None:
    asyncio.run(asyncio.sleep(60))


def wait_for_a_task() -> None:
    minray.get(minray.remote(resources={"none": 1})(wait_asleep).remote())


@pytest.mark.parametrize("wait", [wait_asleep, wait_for_an_event, wait_in_a_loop, wait_in_asyncio, wait_for_a_task])
def test_cancel_interrupts_what_runs(local: Any, wait: Callable[[], None], tmp_path: Path) -> None:
    began, ended = tmp_path / "began", tmp_path / "ended"

    @minray.remote(max_retries=0)
    def work() -> None:
        try:
            began.touch()
            wait()
        finally:
            ended.touch()

    ref = work.remote()
    wait_for_condition(began.exists)
    minray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        minray.get(ref, timeout=30)
    assert ended.exists()


@pytest.mark.parametrize(
    "end",
    [
        lambda: os._exit(3),
        lambda: os.kill(os.getpid(), 9),
        lambda: signal.raise_signal(signal.SIGSEGV),
        lambda: os.abort(),
    ],
)
def test_the_end_of_a_worker_ends_no_more_than_the_worker(local: Any, end: Callable[[], None]) -> None:
    @minray.remote(max_retries=0)
    def work() -> None:
        end()

    with pytest.raises(WorkerCrashedError):
        minray.get(work.remote())
    assert minray.get(call_shout.remote("on")) == "ON"


@minray.remote(max_restarts=1, max_task_retries=1)
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def add(self) -> int:
        self.count += 1
        return self.count

    def pid(self) -> int:
        return os.getpid()


def test_an_actor_restarts_in_another_process(local: Any) -> None:
    counter = Counter.remote()
    assert minray.get([counter.add.remote(), counter.add.remote()]) == [1, 2]
    first = minray.get(counter.pid.remote())
    assert first != os.getpid()
    os.kill(first, 9)
    assert minray.get(counter.add.remote()) == 1 and minray.get(counter.pid.remote()) != first
    minray.kill(counter)
    with pytest.raises(ActorDiedError):
        minray.get(counter.add.remote())
    assert [actor.state for actor in list_actors()] == ["DEAD"]


def test_variables_of_an_environment_belong_to_its_worker(local: Any) -> None:
    @minray.remote
    def look() -> tuple[str | None, str | None]:
        os.environ["CHANGED_IN_A_TASK"] = "1"
        return os.environ.get("FLAVOUR"), os.getenv("HOME")

    sour = look.options(runtime_env={"env_vars": {"FLAVOUR": "sour"}})
    assert minray.get([sour.remote(), look.remote()]) == [("sour", os.getenv("HOME")), (None, os.getenv("HOME"))]
    assert "FLAVOUR" not in os.environ
    os.environ.pop("CHANGED_IN_A_TASK", None)


PRINT = [sys.executable, "-S", "-c", "import os; print(os.environ.get('FLAVOUR'), 'HOME' in os.environ)"]
LENGTH = "import os; raise SystemExit(len(os.environ.get('FLAVOUR', '')))"
RETURN = f'{shlex.quote(sys.executable)} -S -c "{LENGTH}"'


@pytest.mark.slow
def test_a_program_that_a_worker_starts_has_the_workers_variables(local: Any) -> None:
    def run() -> str:
        return subprocess.run(PRINT, capture_output=True, text=True, check=True).stdout.strip()

    def look() -> list[str | int]:
        found: list[str | int] = [run(), os.popen(RETURN).close() or 0, os.system(RETURN)]
        child = multiprocessing.util.spawnv_passfds(os.fsencode(sys.executable), PRINT[:3] + [LENGTH], ())
        found.append(os.waitpid(child, 0)[1])
        os.environ["FLAVOUR"] = "sweet"
        return [*found, run()]

    sour = minray.remote(look).options(runtime_env={"env_vars": {"FLAVOUR": "sour"}})
    assert minray.get(sour.remote()) == ["sour True", 4 << 8, 4 << 8, 4 << 8, "sweet True"]
    assert minray.get(minray.remote(run).remote()) == "None True" and run() == "None True"


def test_another_working_directory_is_refused_with_words(local: Any, tmp_path: Path) -> None:
    with pytest.raises(RuntimeEnvSetupError, match="with local_mode all tasks run in the program's own directory"):
        minray.get(call_shout.options(runtime_env={"working_dir": f"local://{tmp_path}"}).remote("a"))


def test_a_thread_that_a_task_starts_belongs_to_its_worker(local: Any) -> None:
    @minray.remote
    def find() -> list[Any]:
        found: list[Any] = []

        def look() -> None:
            found.extend([os.getpid(), minray.get_runtime_context().get_worker_id(), minray.get(call_shout.remote("a"))])

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return [*found, os.getpid(), minray.get_runtime_context().get_worker_id()]

    pid, worker, value, own_pid, own_worker = minray.get(find.remote())
    assert (pid, worker, value) == (own_pid, own_worker, "A")


@pytest.mark.parametrize("in_actor", [True, False])
def test_what_a_foreign_thread_hands_to_a_workers_loop_runs_in_that_worker(local: Any, in_actor: bool) -> None:
    async def find() -> tuple[int, int]:
        loop, found = asyncio.get_running_loop(), asyncio.Event()
        pids: list[int] = []

        def look() -> None:
            pids.append(os.getpid())
            found.set()

        _thread.start_new_thread(loop.call_soon_threadsafe, (look,))  # As one of compiled code: in no process's context.
        await found.wait()
        return pids[0], os.getpid()

    class Finder:
        async def find(self) -> tuple[int, int]:
            return await find()

    def find_in_task() -> tuple[int, int]:
        return asyncio.run(find())

    finder = minray.remote(Finder).remote() if in_actor else None
    pid, own_pid = minray.get(finder.find.remote() if finder else minray.remote(find_in_task).remote())
    assert pid == own_pid


def test_a_thread_that_cannot_be_ended_is_named() -> None:
    lock = threading.Lock()
    lock.acquire()
    began = threading.Event()

    def wait(word: str) -> str:
        began.set()
        lock.acquire()
        return word

    with mock.patch(f"{__name__}.shout", wait):
        minray.init(local_mode=True, num_cpus=1, logging_level="ERROR")
        ref = call_shout.remote("a")
        began.wait()
        place = r"outlives the cluster, at .*test_local_mode\.py:\d+"
        with pytest.warns(RuntimeWarning, match=rf"a thread of worker/\w+ {place}"):
            minray.shutdown()
    del ref
    lock.release()


def test_several_nodes_one_of_which_dies() -> None:
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "_system_config": {"transport": "local", "health_check_period_ms": 50}},
    )
    other = cluster.add_node(num_cpus=1, resources={"there": 1})
    try:
        cluster.connect()
        where = minray.remote(lambda: minray.get_runtime_context().get_node_id())
        there = where.options(resources={"there": 0.1})
        nodes = minray.get([there.remote(), where.options(resources={"node:__internal_head__": 0.1}).remote()])
        assert nodes == [other.node_id, cluster.head_node.node_id]  # type: ignore[union-attr]
        lost = minray.remote(num_cpus=0, resources={"there": 0.1}, max_retries=0)(numpy.zeros).remote(200_000)
        minray.wait([lost], fetch_local=False)
        other.kill_raylet()
        with pytest.raises(minray.exceptions.ObjectLostError):
            minray.get(lost)
        wait_for_condition(lambda: [node["Alive"] for node in minray.nodes()].count(True) == 1)
        assert minray.get(call_shout.remote("on")) == "ON"
    finally:
        minray.shutdown()
        cluster.shutdown()


def test_a_gcs_with_storage_comes_back(tmp_path: Path) -> None:
    cluster = Cluster()
    head = cluster.add_node(num_cpus=1, storage=str(tmp_path / "tables"), _system_config={"transport": "local"})
    try:
        cluster.connect()
        counter = Counter.options(name="counter").remote()
        assert minray.get(counter.add.remote()) == 1
        head.kill_gcs_server()
        head.start_gcs_server()
        assert minray.get(minray.get_actor("counter").add.remote()) == 2
    finally:
        minray.shutdown()
        cluster.shutdown()


def test_what_does_not_fit_is_spilled_and_comes_back() -> None:
    with minray.init(local_mode=True, num_cpus=1, object_store_memory=20_000_000, logging_level="WARNING") as context:
        session = Path(context["session_dir"])
        assert not session.exists()
        refs = [minray.put(numpy.full(500_000, number)) for number in range(20)]
        assert [int(minray.get(ref)[0]) for ref in refs] == list(range(20))
        assert session.is_dir() and session.stat().st_mode & 0o777 == 0o700
    assert not session.exists()


def test_a_spill_directory_elsewhere_goes_but_not_another_one_in_its_place(tmp_path: Path) -> None:
    options: dict[str, Any] = {"num_cpus": 1, "object_store_memory": 20_000_000, "logging_level": "WARNING"}
    for is_replaced in (False, True):
        with minray.init(local_mode=True, object_spilling_directory=str(tmp_path), **options):
            refs = [minray.put(numpy.full(500_000, number)) for number in range(20)]
            assert [int(minray.get(ref)[0]) for ref in refs] == list(range(20))
            (spilled,) = tmp_path.iterdir()
            assert list(spilled.iterdir())
            if is_replaced:
                spilled.rename(tmp_path / "moved")
                spilled.mkdir()
                (spilled / "file").touch()
        assert (spilled / "file").exists() == spilled.exists() == is_replaced


def test_the_cluster_can_be_seen(local: Any) -> None:
    counter = Counter.remote()
    minray.get([counter.add.remote(), call_shout.remote("a")])
    assert {task.name for task in list_tasks()} >= {"call_shout", "Counter.add"}
    assert any(event["name"] == "call_shout" for event in minray.timeline())
    stuck = call_shout.options(resources={"none": 1}).remote("a")
    assert "no node" in str(minray.why(stuck))


def test_many_clusters_in_one_process_leave_nothing() -> None:
    threads, open_before = threading.active_count(), len(descriptors())
    for number in range(30):
        with minray.init(local_mode=True, num_cpus=1, logging_level="ERROR"):
            assert minray.get(call_shout.remote(f"a{number}")) == f"A{number}"
    assert threading.active_count() == threads and len(descriptors()) <= open_before


@pytest.mark.parametrize("level", [logging.NOTSET, logging.INFO])
def test_what_gcs_and_raylet_note_is_shown_if_the_program_asks_for_it(
    level: int, request: pytest.FixtureRequest, caplog: pytest.LogCaptureFixture
) -> None:
    gcs = logging.getLogger("minray.gcs")
    gcs.setLevel(level)
    request.addfinalizer(lambda: gcs.setLevel(logging.NOTSET))
    with minray.init(local_mode=True, num_cpus=1, logging_level="INFO"):
        actor = Counter.remote()
        minray.get(actor.add.remote())
        minray.kill(actor)
        wait_for_condition(lambda: list_actors()[0].state == "DEAD")
    noted = [record.getMessage() for record in caplog.records if record.name.startswith(gcs.name)]
    assert bool(noted) == (level == logging.INFO) and gcs.level == level


def test_it_does_not_join_another_cluster() -> None:
    with pytest.raises(ValueError, match="cannot join 'auto'"):
        minray.init("auto", local_mode=True)
    with pytest.raises(TypeError, match="local_mode must be a bool, not str"):
        minray.init(local_mode="yes")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="env_vars needs a node with processes of its own"):
        Cluster().add_node(env_vars={"A": "b"}, _system_config={"transport": "local"})


def test_a_task_may_not_fork_or_exec(local: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(RuntimeError, match=r"os\.fork\(\) in a task or actor of local_mode"):
            minray.get(minray.remote(lambda: os.fork()).remote())
        with pytest.raises(RuntimeError, match=r"os\.exec\.\.\.\(\) in a task or actor of local_mode"):
            minray.get(minray.remote(lambda: os.execvp(sys.executable, [sys.executable, "-c", ""])).remote())


BREAKPOINTS = """\
import minray

@minray.remote
def increment(number):
    total = number
    breakpoint()
    return total + 1

@minray.remote
class Actor:
    async def double(self, number):
        twice = number * 2
        breakpoint()
        return twice

minray.init(local_mode=True, logging_level="ERROR")
print("returned", minray.get(increment.remote(41)))
print("returned", minray.get(Actor.remote().double.remote(3)))
"""


@pytest.mark.slow
def test_breakpoints_of_tasks_and_actors_stop_at_the_programs_own_terminal(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(BREAKPOINTS)
    typed = "p total\ntotal = 5\nc\np twice\nc\n"
    done = subprocess.run([sys.executable, str(program)], input=typed, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert re.findall(r"\(Pdb\) (\d+)", done.stdout) == ["41", "6"]
    assert re.findall(r"returned (\d+)", done.stdout) == ["6", "6"]
