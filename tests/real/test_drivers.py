"""Programs that use a cluster: how they begin and end, several at once, Ctrl-C, forks, notebooks (G57, G47)."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest

import minray as ray
from minray.exceptions import LocalRayletDiedError, OwnerDiedError
from tests.helpers import wait_for_condition
from tests.real.conftest import all_resources_are_free
from tests.real.support import Files, driver_command, echo, hold, is_alive, run_driver, start_driver

FORKS = pytest.mark.skipif(os.environ.get("MINRAY_TRANSPORT") == "grpc", reason="a child has gRPC's sockets, no threads")
JOIN = "ray.init(address=sys.argv[1], logging_level='ERROR')\n"


def program(text: str) -> str:
    """One that joins the cluster named by its first argument."""
    return JOIN + text


def left_of(session: str) -> set[str]:
    """Names in the session's directory. Logs stay if they have lines."""
    return set(os.listdir(session)) if os.path.exists(session) else set()


# --- beginning and ending


@pytest.mark.usefixtures("shutdown_only")
def test_init_and_shutdown_may_be_repeated() -> None:
    assert not ray.is_initialized()
    for _ in range(3):
        context = ray.init(num_cpus=1)
        assert ray.is_initialized() and ray.get(echo.remote(1)) == 1
        session = Path(context["session_dir"])
        ray.shutdown()
        ray.shutdown()
        assert not ray.is_initialized()
        assert left_of(str(session)) <= {"logs"}


@pytest.mark.usefixtures("shutdown_only")
def test_what_an_earlier_cluster_has_left_is_lost_however_it_is_used() -> None:
    @ray.remote
    class Actor:
        def method(self) -> int:
            return 1

    ray.init(num_cpus=1)
    actor = Actor.remote()
    ref = actor.method.remote()
    assert ray.get(ref) == 1
    ray.shutdown()
    ray.init(num_cpus=1)
    holder = ray.put([ref])  # this process knows the reference again, and did not count the one that we have
    with pytest.raises(OwnerDiedError, match="left the cluster"):
        ref.future().result(30)
    del holder
    with pytest.raises(OwnerDiedError, match="left the cluster"):
        ray.get(ref)
    with pytest.raises(OwnerDiedError):
        ray.get(actor.method.remote())
    with pytest.raises(ray.exceptions.ActorHandleNotFoundError, match="has left"):
        ray.kill(actor)
    assert ray.get(echo.remote(2)) == 2


@pytest.mark.usefixtures("shutdown_only")
def test_init_twice_is_an_error_unless_it_may_be_ignored() -> None:
    first = ray.init(num_cpus=1)
    with pytest.raises(RuntimeError, match="ignore_reinit_error"):
        ray.init(num_cpus=1)
    assert ray.init(num_cpus=4, ignore_reinit_error=True).address_info == first.address_info
    assert ray.cluster_resources()["CPU"] == 1


@pytest.mark.usefixtures("shutdown_only")
def test_an_init_that_fails_leaves_no_thread() -> None:
    before = threading.enumerate()
    with pytest.raises(ValueError, match="namespace cannot be encoded as UTF-8"):
        ray.init(num_cpus=1, namespace="\udc80")
    assert threading.enumerate() == before and not ray.is_initialized()


@pytest.mark.usefixtures("shutdown_only")
def test_a_task_is_connected_already_and_cannot_disconnect() -> None:
    @ray.remote
    def work() -> Any:
        with pytest.raises(RuntimeError, match="connected already"):
            ray.init()
        address = ray.init(ignore_reinit_error=True)["node_id"]
        ray.shutdown()
        return address, ray.is_initialized(), ray.get(echo.remote("still here")), ray.get_runtime_context().get_node_id()

    ray.init(num_cpus=1)
    node_id = ray.get_runtime_context().get_node_id()
    assert ray.get([work.remote(), work.remote()]) == [(node_id, True, "still here", node_id)] * 2


@pytest.mark.usefixtures("shutdown_only")
def test_the_first_call_starts_a_cluster() -> None:
    assert ray.get(ray.put(1)) == 1 and ray.is_initialized()


@pytest.mark.usefixtures("shutdown_only")
def test_threads_that_make_the_first_call_at_once_start_one_cluster() -> None:
    barrier, nodes = threading.Barrier(4), set()

    def call() -> None:
        barrier.wait()
        ray.put(1)
        nodes.add(ray.get_runtime_context().get_node_id())

    threads = [threading.Thread(target=call) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert nodes == {ray.get_runtime_context().get_node_id()}


ADDRESSES = (
    "node_ip_address redis_address object_store_address raylet_socket_name webui_url session_dir metrics_export_port"
    " gcs_address address dashboard_agent_listen_port node_id"
)


def test_the_context_has_the_addresses_that_ray_has() -> None:
    @ray.remote
    def from_a_task() -> dict[str, Any]:
        return ray.init(ignore_reinit_error=True).address_info

    with ray.init(num_cpus=1) as context:
        info = context.address_info
        assert set(info) == set(ADDRESSES.split()) and ray.get(from_a_task.remote()) == info
        assert info["raylet_socket_name"] == ray.nodes()[0]["RayletSocketName"]
        assert all(Path(info[name]).exists() for name in ("raylet_socket_name", "object_store_address", "session_dir"))
        assert info["address"] == info["gcs_address"] and info["node_ip_address"] == ray.nodes()[0]["NodeManagerAddress"]
        absent = ("webui_url", "redis_address", "metrics_export_port", "dashboard_agent_listen_port")
        assert not any(info[name] for name in absent) and not context.dashboard_url
        assert sys.version.startswith(context.python_version) and context.ray_version == ray.__version__


def test_init_is_a_context_manager_and_a_mapping() -> None:
    with ray.init(num_cpus=1, namespace="n") as context:
        assert context["node_id"] == ray.get_runtime_context().get_node_id()
        assert ray.get_runtime_context().namespace == "n"
    assert not ray.is_initialized()
    with pytest.raises(KeyError), ray.init(num_cpus=1):
        raise KeyError("leaves the cluster behind")
    assert not ray.is_initialized()


@pytest.mark.usefixtures("shutdown_only")
def test_references_of_an_ended_cluster_are_useless_but_harmless() -> None:
    ray.init(num_cpus=1)
    old, function = ray.put("old"), echo.options(name="kept")
    ray.shutdown()
    ray.init(num_cpus=1)
    assert ray.get(function.remote(1)) == 1
    with pytest.raises(Exception, match="died|lost|owner|cluster"):
        ray.get(old, timeout=10)
    del old


@pytest.mark.usefixtures("shutdown_only")
def test_a_thread_that_waits_during_shutdown_is_released(files: Files) -> None:
    ray.init(num_cpus=1)
    started, outcome = files.signal("started"), []

    def wait() -> None:
        try:
            outcome.append(ray.get(hold.remote(started, files.signal("never"))))
        except BaseException as error:
            outcome.append(type(error).__name__)

    thread = threading.Thread(target=wait)
    thread.start()
    started.wait()
    ray.shutdown()
    thread.join(10)
    assert not thread.is_alive() and outcome


@pytest.mark.slow
@pytest.mark.usefixtures("shutdown_only")
def test_a_future_whose_value_is_on_its_way_at_shutdown_raises() -> None:
    """The raylet is suspended, and does not say farewell either."""
    ray.init(num_cpus=1)
    ref = ray.put(b"x" * 1_000_000)
    (raylet,) = (one for one in psutil.Process().children(recursive=True) if one.name() == "minray:raylet")
    raylet.suspend()
    future = ref.future()
    ray.shutdown()
    with pytest.raises(LocalRayletDiedError, match="has left its cluster"):
        future.result(10)


@pytest.mark.usefixtures("shutdown_only")
def test_a_callback_of_a_future_cannot_wait(files: Files) -> None:
    """The callback runs in the thread that everything else needs, and so does unpickling of an awaited value."""
    ray.init(num_cpus=1)
    large, release = ray.put(bytes(1_000_000)), files.signal("release")
    said: list[str] = []
    called = threading.Event()

    def call_back(_: Any) -> None:
        for ask in (ray.nodes, ray.shutdown, lambda: ray.get(large), lambda: ray.get(hold.remote(release, release))):
            try:
                ask()
            except RuntimeError as error:
                said.append(str(error))
        called.set()

    hold.remote(files.signal("started"), release).future().add_done_callback(call_back)
    release.set()
    assert called.wait(10) and len(said) == 4 and all("would block" in words for words in said)
    assert ray.get(echo.remote(1)) == 1


def test_a_driver_whose_raylet_stands_still_leaves_nothing() -> None:
    done = run_driver(
        """
        import psutil, threading
        session = ray.init(num_cpus=1, logging_level="ERROR")["session_dir"]
        @ray.remote
        def f():
            threading.Event().wait(60)
        failed = f.remote().future()
        failed.add_done_callback(lambda _: sys.exit(4))
        [raylet] = [process for process in psutil.Process().children(recursive=True) if process.name() == "minray:raylet"]
        raylet.suspend()
        ray.shutdown()
        print(session, type(failed.exception(0)).__name__, psutil.Process().children(recursive=True))
        """
    )
    session, _, words = done.stdout.partition(" ")
    assert (done.returncode, words, done.stderr) == (0, "LocalRayletDiedError []\n", "")
    assert left_of(session) <= {"logs"}


def test_threads_that_are_left_end_with_the_program_in_silence() -> None:
    """One waits, one calls on; and what is called after that begins nothing anew."""
    program = """
import atexit, threading
def late():
    try:
        ray.put(1)
    except RuntimeError as error:
        print(error)
    print(caller.is_alive(), ray.is_initialized())
atexit.register(late)
import minray as ray
@ray.remote
def f(seconds):
    threading.Event().wait(seconds)
calls = threading.Event()
def call():
    while True:
        ray.get(f.remote(0))
        calls.set()
caller = threading.Thread(target=call, daemon=True)
ray.init(num_cpus=2, logging_level="ERROR")
long = f.remote(60)
threading.Thread(target=lambda: ray.get(long), daemon=True).start()
caller.start()
calls.wait()
"""
    done = subprocess.run([sys.executable, "-W", "error", "-c", program], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "minray has been shut down, because the interpreter is ending\nTrue False\n"


def test_a_driver_that_is_killed_leaves_nothing() -> None:
    driver = start_driver(
        """
        context = ray.init(num_cpus=2, logging_level="ERROR")
        @ray.remote
        def f():
            import time
            time.sleep(1000)
        refs = [f.remote() for _ in range(5)]
        print(context["session_dir"], flush=True)
        ray.get(refs)
        """
    )
    assert driver.stdout is not None and driver.stderr is not None
    session = driver.stdout.readline().strip()
    family = psutil.Process(driver.pid).children(recursive=True)
    assert len(family) >= 4
    driver.kill()
    driver.communicate()
    wait_for_condition(lambda: not any(process.is_running() for process in family), message="all processes are gone")
    wait_for_condition(lambda: left_of(session) <= {"logs"})


@pytest.mark.parametrize("end", ["sys.exit(3)", "raise SystemExit(3)", "import os; ray.shutdown(); os._exit(3)"])
def test_a_drivers_exit_status_is_its_own(end: str) -> None:
    done = run_driver(f"ray.init(num_cpus=1, logging_level='ERROR')\nray.get(ray.put(1))\n{end}")
    assert (done.returncode, done.stdout, done.stderr) == (3, "", "")


# --- several drivers


@pytest.mark.usefixtures("cluster")
class TestSeveralDrivers:
    def test_drivers_share_a_cluster(self, node: Any) -> None:
        text = program(
            """
@ray.remote
def f(x):
    return x * 2
assert ray.get([f.remote(x) for x in range(300)]) == [x * 2 for x in range(300)]
print(ray.get_runtime_context().get_job_id(), ray.get_runtime_context().get_node_id())
"""
        )
        drivers = [start_driver(text, node["session_dir"]) for _ in range(3)]
        assert ray.get([echo.remote(number) for number in range(300)]) == list(range(300))
        outputs = [driver.communicate(timeout=60) for driver in drivers]
        assert [driver.returncode for driver in drivers] == [0, 0, 0], outputs
        jobs, nodes = zip(*(output.split() for output, _ in outputs), strict=True)
        assert len({*jobs, ray.get_runtime_context().get_job_id()}) == 4
        assert set(nodes) == {ray.get_runtime_context().get_node_id()}
        wait_for_condition(all_resources_are_free)

    @FORKS
    def test_a_killed_driver_is_dead_though_a_child_that_it_has_forked_lives(self, node: Any, files: Files) -> None:
        text = program("""
import os, signal, time
@ray.remote(num_cpus=2)
class Held:
    def pid(self):
        return os.getpid()
held = Held.remote()
ray.get(held.pid.remote())
if os.fork():
    os.kill(os.getpid(), signal.SIGKILL)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.01)
""")
        release = files.signal("release")
        driver = start_driver(text, node["session_dir"], release.path)
        assert driver.wait(30) == -signal.SIGKILL
        wait_for_condition(all_resources_are_free)
        release.set()
        driver.communicate(timeout=10)

    def test_the_arguments_of_a_program_need_not_be_text(self, node: Any) -> None:
        done = run_driver(program("print(ascii(sys.argv[2]))"), node["session_dir"], os.fsdecode(b"file\xff"))
        assert (done.returncode, done.stdout) == (0, "'file\\udcff'\n"), done.stderr

    def test_a_driver_that_joins_cannot_bring_resources(self, node: Any) -> None:
        done = run_driver("ray.init(address=sys.argv[1], num_cpus=3)", node["session_dir"])
        assert done.returncode == 1 and "ValueError" in done.stderr and "num_cpus" in done.stderr

    def test_jobs_do_not_see_each_others_workers(self, node: Any, files: Files) -> None:
        text = program(
            """
import os
@ray.remote
def pid():
    return os.getpid()
print(*set(ray.get([pid.remote() for _ in range(20)])))
"""
        )

        @ray.remote
        def pid() -> int:
            return os.getpid()

        ours = set(ray.get([pid.remote() for _ in range(20)]))
        first, second = (set(map(int, run_driver(text, node["session_dir"]).stdout.split())) for _ in range(2))
        assert first and second and not ours & first and not ours & second and not first & second
        wait_for_condition(lambda: not any(is_alive(one) for one in first | second))

    def test_a_busy_driver_does_not_starve_another(self, node: Any) -> None:
        @ray.remote
        def work() -> None:
            sum(range(30_000))

        other = start_driver(
            program("f = ray.remote(lambda: 1)\nassert ray.get([f.remote() for _ in range(4)]) == [1] * 4"),
            node["session_dir"],
        )
        refs = [work.remote() for _ in range(300)]
        while other.poll() is None:
            _, refs = ray.wait(refs, num_returns=100)
            refs += [work.remote() for _ in range(100)]
        assert (other.returncode, other.communicate()) == (0, ("", ""))
        ray.get(refs)

    @pytest.mark.parametrize("how", ["end", "kill"])
    def test_what_a_driver_leaves_behind_is_cleaned_up(self, node: Any, files: Files, how: str) -> None:
        started = files.signal("started")
        text = program(
            """
import os, signal, time
path = sys.argv[2]
@ray.remote(num_cpus=2)
def run_on():
    open(path, "w").close()
    time.sleep(1000)
reference, waiting = run_on.remote(), run_on.remote()
while not os.path.exists(path):
    assert ray.wait([reference], timeout=0.01) == ([], [reference])
if sys.argv[3] == "kill":
    os.kill(os.getpid(), signal.SIGKILL)
"""
        )
        done = run_driver(text, node["session_dir"], started.path, how)
        assert done.returncode == (0 if how == "end" else -signal.SIGKILL)
        assert ray.get(echo.options(num_cpus=2).remote("free again"), timeout=30) == "free again"

    def test_the_cluster_goes_with_the_driver_that_started_it(self, node: Any) -> None:
        """The others are told."""
        host = start_driver(
            """
            context = ray.init(num_cpus=1, logging_level="ERROR")
            print(context["session_dir"], flush=True)
            sys.stdin.read()
            """
        )
        assert host.stdout is not None
        session = host.stdout.readline().strip()
        guest = start_driver(
            program(
                """
f = ray.remote(lambda: __import__("time").sleep(1000))
print("ready", flush=True)
try:
    ray.get(f.remote())
except ray.exceptions.RayError as error:
    print(type(error).__name__)
"""
            ),
            session,
        )
        assert guest.stdout is not None and guest.stdout.readline() == "ready\n"
        host.kill()
        host.communicate()
        output, _ = guest.communicate(timeout=30)
        assert guest.returncode == 0 and output.strip().endswith("DiedError")


# --- interrupts, forks, loops


CTRL_C = """
import os, signal, threading
ray.init(num_cpus=2, logging_level="ERROR")
@ray.remote
def wait_for(path):
    import time
    while not os.path.exists(path):
        time.sleep(0.01)
    return "done"
@ray.remote
def f(x):
    return x
path = sys.argv[1]
ray.get(f.remote(0))
for number in range(20):
    slow = wait_for.remote(path + "never")
    threading.Timer(0.02, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        if number % 2:
            ray.get(slow)
        else:
            while True:
                ray.get([f.remote(x) for x in range(20)])
        print("not interrupted")
    except KeyboardInterrupt:
        pass
    ray.cancel(slow)
    assert ray.get([f.remote(x) for x in range(20)], timeout=30) == list(range(20)), number
print("usable")
"""


def test_ctrl_c_interrupts_get_and_leaves_the_cluster_usable(tmp_path: Path) -> None:
    done = run_driver(CTRL_C, str(tmp_path / "file"))
    assert (done.stdout, done.returncode) == ("usable\n", 0), done.stderr


ON_A_TERMINAL = """
ray.init(num_cpus=1, logging_level="ERROR")
@ray.remote
def f(x):
    return x
@ray.remote
def forever():
    import time
    while True:
        time.sleep(0.01)
assert ray.get(f.remote(1)) == 1
slow = forever.remote()
try:
    print("ready", flush=True)
    ray.get(slow)
except KeyboardInterrupt:
    print("interrupted")
ray.cancel(slow)
print("still", ray.get(f.remote(1)))
"""


def test_ctrl_c_on_the_terminal_interrupts_the_driver_alone() -> None:
    """A terminal sends SIGINT to all processes of its group."""
    driver = start_driver(ON_A_TERMINAL, start_new_session=True)
    assert driver.stdout is not None and driver.stdout.readline() == "ready\n"
    os.killpg(driver.pid, signal.SIGINT)
    output, errors = driver.communicate(timeout=30)
    assert (output, driver.returncode) == ("interrupted\nstill 1\n", 0), errors


FORK = """
import os
context = ray.init(num_cpus=1, logging_level="ERROR")
reference = ray.put("parent's")
child = os.fork()
if child == 0:
    try:
        ray.get(reference)
    except RuntimeError as error:
        print("child:", "forked" in str(error), flush=True)
    if sys.argv[1] == "joins":
        ray.init(address=context["session_dir"], logging_level="ERROR")
        print("child:", ray.get(ray.put("own")), flush=True)
    sys.exit(0)
os.waitpid(child, 0)
print("parent:", ray.get(reference), ray.get(ray.remote(lambda: "works").remote()))
"""


def test_a_forked_driver_is_told_to_connect_by_itself() -> None:
    done = run_driver(FORK, "stays")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["child: True", "parent: parent's works"]


@FORKS
def test_a_forked_driver_may_connect_by_itself() -> None:
    done = run_driver(FORK, "joins")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["child: True", "child: own", "parent: parent's works"]


def test_on_grpc_a_forked_driver_is_told_at_once_that_it_cannot_join() -> None:
    done = run_driver(
        """
        import os
        context = ray.init(num_cpus=1, logging_level="ERROR", _system_config={"transport": "grpc"})
        child = os.fork()
        if child == 0:
            for arguments in ({"address": context["session_dir"]}, {"num_cpus": 1, "_system_config": {"transport": "grpc"}}):
                try:
                    ray.init(logging_level="ERROR", **arguments)
                except (ConnectionError, RuntimeError) as error:
                    print(type(error).__name__, "spawn" in str(error), flush=True)
            os._exit(0)
        os.waitpid(child, 0)
        print(ray.get(ray.remote(lambda: "works").remote()))
        """
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["ConnectionError True", "RuntimeError True", "works"]


def test_on_grpc_the_loop_ends_before_the_interpreter() -> None:
    """A loop that outlives the interpreter uses its freed memory: an exit with signal 11, if it has something to do then."""
    done = run_driver(
        """
        import atexit, threading
        def last():  # before the import, so that it is called after everything that the import registers
            print(ray.is_initialized(), "minray-io" in [thread.name for thread in threading.enumerate()])
        atexit.register(last)
        import minray.platform.real
        ray.init(num_cpus=1, logging_level="ERROR", _system_config={"transport": "grpc"})
        print(ray.get(ray.remote(lambda: "works").remote()))
        """
    )
    assert (done.returncode, done.stdout.splitlines()) == (0, ["works", "False False"]), done.stderr


def test_multiprocessing_beside_a_driver() -> None:
    done = run_driver(
        """
        import multiprocessing
        def double(x):
            return 2 * x
        ray.init(num_cpus=1, logging_level="ERROR")
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(double, range(5)) == [0, 2, 4, 6, 8]
        assert ray.get(ray.put(1)) == 1
        """
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


ENDED_BEFORE_IT_RAN = """
def forks_and_ends(count):
    import os, signal, time
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # One CPU: a child runs only when its parent waits.
    ended = 0
    for _ in range(count):
        child = os.fork()
        if child == 0:
            time.sleep(5)
            os._exit(0)
        os.kill(child, signal.SIGTERM)
        ended += os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
    return ended

ray.init(num_cpus=1, log_to_driver=False)
"""


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="a process cannot choose its CPU")
@pytest.mark.parametrize("where", ["forks_and_ends(5)", "ray.get(ray.remote(forks_and_ends).remote(5))"])
def test_a_child_that_is_told_to_end_before_it_has_run_ends(where: str) -> None:
    assert run_driver(f"{ENDED_BEFORE_IT_RAN}\nprint({where})").stdout == "5\n"


FORKING = """
import os, signal
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
import minray as ray
ray.init(num_cpus=1, logging_level="ERROR")
child = os.fork()
if child == 0:
    os._exit(0)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), ray.get(ray.put(1)))
"""


def test_a_child_that_is_told_to_end_while_it_is_being_forked_ends() -> None:
    """Pools of ``multiprocessing`` do so. Callbacks of a fork lose exceptions: a ``SystemExit`` would be the last of it."""
    done = subprocess.run([sys.executable, "-W", "error", "-c", FORKING], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "-15 1\n", "")


def test_a_running_loop_as_in_a_notebook() -> None:
    done = run_driver(
        """
        import asyncio
        async def cell():
            ray.init(num_cpus=1, logging_level="ERROR")
            @ray.remote
            def f(x):
                return x
            assert ray.get(f.remote(1)) == 1
            assert await f.remote(2) == 2
            assert ray.wait([f.remote(3)])[1] == []
            ray.shutdown()
        asyncio.run(cell())
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_init_in_another_thread_than_the_main_one() -> None:
    done = run_driver(
        """
        import threading
        def work():
            ray.init(num_cpus=1, logging_level="ERROR")
            assert ray.get(ray.remote(lambda: 1).remote()) == 1
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert ray.get(ray.remote(lambda: 2).remote()) == 2
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_drivers_signal_handlers_are_its_own() -> None:
    """But for SIGTERM, if it has none, and while it is connected."""
    done = run_driver(
        """
        import os, signal
        before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGCHLD)]
        for handler, is_taken in ((signal.SIG_DFL, True), (signal.SIG_IGN, False), (print, False)):
            signal.signal(signal.SIGTERM, handler)
            ray.init(num_cpus=1, logging_level="ERROR")
            assert before == [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGCHLD)]
            assert (signal.getsignal(signal.SIGTERM) != handler) == is_taken
            if is_taken and not (child := os.fork()):
                os.kill(os.getpid(), signal.SIGTERM)
            assert not is_taken or os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM
            ray.shutdown()
            assert signal.getsignal(signal.SIGTERM) == handler
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("waits", ["ray.get(Host.remote().hold.remote())", "threading.Event().wait()"])
def test_a_driver_that_is_told_to_end_by_sigterm_cleans_up(waits: str) -> None:
    driver = start_driver(
        f"""
        import atexit, threading
        @ray.remote
        class Host:
            def hold(self): threading.Event().wait()
        atexit.register(print, "atexit")
        ray.init(num_cpus=1, logging_level="ERROR")
        try:
            print("begun", flush=True)
            {waits}
        finally:
            print("finally", ray.is_initialized())
        """
    )
    assert driver.stdout is not None and driver.stdout.readline() == "begun\n"
    driver.terminate()
    output, errors = driver.communicate(timeout=30)
    assert (driver.returncode, output, errors) == (signal.SIGTERM, "finally True\natexit\n", "")


def test_a_driver_may_use_subprocesses_of_its_own() -> None:
    done = run_driver(
        """
        import subprocess
        ray.init(num_cpus=1, logging_level="ERROR")
        child = subprocess.Popen(["true"])
        assert ray.get(ray.put(1)) == 1
        assert child.wait() == 0 and subprocess.run(["false"]).returncode == 1
        f = ray.remote(lambda: subprocess.run(["echo", "hello"], capture_output=True, text=True).stdout)
        assert ray.get(f.remote()) == "hello\\n"
        """
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_daemon_that_has_closed_its_standard_streams(tmp_path: Path) -> None:
    done = tmp_path / "done"
    driver = driver_command(
        """
        ray.init(num_cpus=1, logging_level="ERROR")

        @ray.remote
        def speak():
            print("nobody hears this", flush=True)
            return "spoken"

        open(sys.argv[1], "w").write(ray.get(speak.remote()))
        """,
        str(done),
    )
    subprocess.run(["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *driver], check=True, timeout=60)
    assert done.read_text() == "spoken"


ACTORS_UNDER_A_LIMIT = """
    import resource
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(map(int, sys.argv[1:])))
    ray.init(num_cpus=1)

    @ray.remote(num_cpus=0)
    class Idle:
        def rest(self):
            return 1

    idle = [Idle.remote() for _ in range(30)]
    print(sum(ray.get([one.rest.remote() for one in idle])))
    """


def test_a_shell_s_limit_of_open_files_is_raised_as_far_as_it_may_be() -> None:
    """A raylet has three for each of thirty workers; with 64 it could not start them all."""
    done = run_driver(ACTORS_UNDER_A_LIMIT, "64", "5000")
    assert (done.returncode, done.stdout.strip()) == (0, "30"), done.stderr
    assert "files at most" not in done.stderr


def test_a_limit_of_open_files_that_may_be_too_low_is_told() -> None:
    done = run_driver(ACTORS_UNDER_A_LIMIT, "500", "500")
    assert (done.returncode, done.stdout.strip()) == (0, "30"), done.stderr
    assert "a process may open 500 files at most, which may be too few; allow more with: ulimit -n 8192" in done.stderr


def test_actors_for_which_no_worker_can_be_started_fail_and_name_the_limit() -> None:
    done = run_driver(
        """
        import resource
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
        ray.init(num_cpus=2, _system_config={"worker_start_patience_seconds": 3.0})

        @ray.remote(num_cpus=0)
        class Idle:
            def rest(self):
                return 1

        idle = [Idle.remote() for _ in range(30)]
        try:
            ray.get([one.rest.remote() for one in idle], timeout=60)
        except ray.exceptions.ActorUnschedulableError as error:
            print(error)
        """
    )
    assert "no worker could be started" in done.stdout and "files at most; allow more with: ulimit -n 8192" in done.stdout


@pytest.mark.parametrize("kept_by", ["an actor", "the driver"])
def test_an_actor_that_only_a_cycle_elsewhere_keeps_makes_room_too(kept_by: str) -> None:
    """When nothing goes on in a cluster where somebody waits, all processes collect garbage, those too that rest."""
    done = run_driver(
        """
        import asyncio, gc
        ray.init(num_cpus=1, logging_level="ERROR", _system_config={
            "get_warning_s": 1000, "local_gc_min_interval_s": 0.2, "health_check_period_ms": 100})

        @ray.remote(num_cpus=1)
        class Worker:
            def work(self):
                return "works"

        class Trainer:
            def train(self):
                gc.set_threshold(0)
                self.itself = self
                self.worker = Worker.remote()
                return ray.get(self.worker.work.remote())

        if sys.argv[1] == "an actor":
            @ray.remote(num_cpus=0)
            class Elsewhere:
                def train(self):
                    return Trainer().train()

            elsewhere = Elsewhere.remote()
            print(ray.get(elsewhere.train.remote()))
        else:
            print(Trainer().train())

        async def wait():
            return await Worker.remote().work.remote()

        print(asyncio.run(wait()))
        """,
        kept_by,
    )
    assert (done.returncode, done.stdout.split()) == (0, ["works", "works"]), done.stderr


def test_an_actor_that_only_a_cycle_keeps_makes_room_for_what_is_waited_for() -> None:
    """Ray collects garbage when resources are short; here who waits for long does, unless garbage is not to be collected."""
    done = run_driver(
        """
        import gc
        ray.init(num_cpus=1, logging_level="ERROR", _system_config={"get_warning_s": 0.2})
        gc.set_threshold(0)

        @ray.remote(num_cpus=1)
        class Worker:
            def work(self):
                return "works"

        class Trainer:
            def __init__(self):
                self.itself = self
                self.worker = Worker.remote()

        for _ in range(2):
            trainer = Trainer()
            print(ray.get(trainer.worker.work.remote()))
        gc.disable()
        trainer = Trainer()
        try:
            ray.get(trainer.worker.work.remote(), timeout=1)
        except ray.exceptions.GetTimeoutError:
            print("waits")
        """
    )
    assert (done.returncode, done.stdout.split()) == (0, ["works", "works", "waits"]), done.stderr


def test_a_working_directory_that_is_gone_is_an_error_that_says_so(tmp_path: Path) -> None:
    done = run_driver(
        """
        import os
        os.chdir(sys.argv[1])
        os.rmdir(sys.argv[1])
        try:
            ray.init(num_cpus=1)
        except RuntimeError as error:
            print(error)
        os.chdir("/")
        with ray.init(num_cpus=1, logging_level="ERROR"):
            print(ray.get(ray.put(1)))
        """,
        str(tmp_path),
    )
    assert done.stdout == "the current directory has been removed; os.chdir() to another one before init()\n1\n", done.stderr


def test_clusters_come_and_go_in_one_process_without_a_word() -> None:
    """Also while tasks are unfinished; what a transport keeps of one cluster must not trouble the next."""
    done = run_driver(
        """
        f = ray.remote(lambda number: number)
        for _ in range(4):
            ray.init(num_cpus=2, logging_level="ERROR")
            references = [f.remote(number) for number in range(50)]
            assert ray.get(references[:10]) == list(range(10))
            ray.shutdown()
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
