"""Further parts of Python's library have a simulated meaning, or are refused with advice."""

from __future__ import annotations

import _thread
import datetime as dates
import importlib
import logging
import os
import pickle
import platform
import queue
import random
import secrets
import select
import selectors
import signal
import socket
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import date, datetime
from os import urandom as token_urandom
from pathlib import Path
from time import sleep as bound_sleep
from typing import Any

import pytest

import minray
from minray.exceptions import WorkerCrashedError
from minray.simulation import NotSimulated, SimCluster, run
from minray.simulation.interpreter import EPOCH_S

UTC = dates.UTC


class Moment(datetime):
    pass


def test_every_wall_clock_is_the_simulated_one() -> None:
    def program() -> None:
        time.sleep(360)
        now = time.time()
        assert EPOCH_S + 360 <= now < EPOCH_S + 370
        assert datetime.now() == datetime.fromtimestamp(now) == datetime.today() == dates.datetime.now()
        assert datetime.now(UTC) == datetime.now(tz=UTC) == datetime.fromtimestamp(now, UTC)
        assert datetime.utcnow() == datetime.fromtimestamp(now, UTC).replace(tzinfo=None)
        assert date.today() == date.fromtimestamp(now)
        assert Moment.now() == Moment.fromtimestamp(now) and type(Moment.now()) is Moment
        assert time.localtime() == time.localtime(now) and time.gmtime() == time.gmtime(now)
        assert time.ctime() == time.ctime(now) == time.asctime() == time.asctime(time.localtime(now))
        assert time.strftime("%c") == time.strftime("%c", time.localtime(now))
        assert pickle.loads(pickle.dumps(datetime.now())) == datetime.now()

    before = vars(datetime)["now"]
    run(program, nodes=1)
    assert vars(datetime)["now"] is before
    assert Moment.now() > datetime(2025, 1, 1) and datetime.now(UTC).timestamp() - time.time() < 60


def test_every_clock_of_the_system_is_the_simulated_one() -> None:
    def program() -> None:
        time.sleep(360)
        assert time.clock_gettime(time.CLOCK_REALTIME) == time.time()
        assert time.clock_gettime_ns(time.CLOCK_REALTIME) == time.time_ns()
        assert time.clock_gettime(time.CLOCK_MONOTONIC) == time.clock_gettime(time.CLOCK_BOOTTIME) == time.monotonic()
        assert time.clock_gettime_ns(time.CLOCK_MONOTONIC) == time.monotonic_ns()
        assert time.clock_gettime(time.CLOCK_PROCESS_CPUTIME_ID) == pytest.approx(time.process_time(), abs=1)
        assert time.clock_gettime_ns(time.CLOCK_THREAD_CPUTIME_ID) == pytest.approx(time.thread_time_ns(), abs=1e9)
        with pytest.raises(OSError, match="Invalid argument"):
            time.clock_gettime(999)

    run(program, nodes=1)
    assert time.clock_gettime(time.CLOCK_REALTIME) == pytest.approx(time.time(), abs=1)


def test_a_logger_may_show_the_time_of_greenwich() -> None:
    class Formatter(logging.Formatter):
        pass

    def program() -> str:
        Formatter.converter = time.gmtime
        return Formatter("%(asctime)s").format(logging.makeLogRecord({"created": 0, "msecs": 0}))

    assert run(program, nodes=1) == "1970-01-01 00:00:00,000"


def test_every_generator_without_a_seed_is_seeded_by_the_run() -> None:
    def draws() -> list[Any]:
        own, system = random.Random(), random.SystemRandom()
        found = [secrets.token_hex(8), secrets.randbelow(1 << 60), os.getrandom(8), system.random(), own.random()]
        own.seed()
        random.seed()
        return [*found, own.random(), random.random(), random.Random(5).random()]

    def program() -> list[Any]:
        return [draws(), minray.get(minray.remote(draws).remote())]

    first, again, other = (run(program, nodes=1, seed=seed) for seed in (1, 1, 2))
    assert first == again
    (here, there), (elsewhere, _) = first, other
    assert here[-1] == there[-1] == random.Random(5).random()
    assert not {*here[:-1]} & {*there[:-1], *elsewhere[:-1]}


@pytest.mark.parametrize(
    ("name", "call", "instead"),
    [
        ("threading.Thread.start", lambda: threading.Timer(1, print).start(), "use tasks, an actor, or coroutines"),
        ("_thread.start_new_thread", lambda: _thread.start_new_thread(print, ()), "use tasks, an actor, or coroutines"),
        ("os.system", lambda: os.system("true"), "use a task"),
        ("os.posix_spawn", lambda: os.posix_spawn("/bin/true", ["true"], {}), "use a task"),
        ("os.execv", lambda: os.execlp("true", "true"), "use a task"),
        ("os.forkpty", lambda: os.forkpty(), "use a task"),
        ("os.pipe", lambda: os.pipe(), "use a queue between threads of an actor"),
        ("os.pipe2", lambda: os.pipe2(0), "use a queue between threads of an actor"),
        ("os.killpg", lambda: os.killpg(1 << 21, 0), "use os.kill with the pid of a simulated process"),
        ("signal.alarm", lambda: signal.alarm(0), "use the timeout of minray.get and minray.wait, or asyncio.timeout"),
        ("signal.setitimer", lambda: signal.setitimer(signal.ITIMER_REAL, 0), "use the timeout of minray.get"),
        ("signal.pthread_kill", lambda: signal.pthread_kill(threading.get_ident(), 0), "use os.kill"),
        ("signal.pause", lambda: signal.pause(), "use time.sleep to wait, or a threading.Event"),
        ("signal.sigwait", lambda: signal.sigwait({signal.SIGUSR1}), "use time.sleep to wait"),
        ("signal.sigwaitinfo", lambda: signal.sigwaitinfo({signal.SIGUSR1}), "use time.sleep to wait"),
        ("signal.sigtimedwait", lambda: signal.sigtimedwait({signal.SIGUSR1}, 0), "use time.sleep to wait"),
        ("select.select", lambda: select.select([], [], [], 0), "use time.sleep to wait, and let tasks and actors talk"),
        ("select.poll", lambda: select.poll(), "use time.sleep to wait"),
        ("select.epoll", lambda: select.epoll(), "use time.sleep to wait"),
        ("selectors._BaseSelectorImpl.__init__", lambda: selectors.DefaultSelector(), "use time.sleep to wait"),
        ("socket.socket.__init__", lambda: socket.socket(), "let tasks and actors talk"),
        ("socket.gethostbyname", lambda: socket.gethostbyname(socket.gethostname()), "let tasks and actors talk"),
        ("socket.getaddrinfo", lambda: socket.getaddrinfo("localhost", 80), "let tasks and actors talk"),
        ("time.clock_settime", lambda: time.clock_settime(-1, 0.0), "let time pass with time.sleep"),
        ("uuid.uuid1", lambda: uuid.uuid1(), "use uuid.uuid4"),
    ],
)
def test_what_is_refused_says_what_to_do(name: str, call: Callable[[], Any], instead: str) -> None:
    with pytest.raises(NotSimulated, match=f"{name}e? inside the simulated process driver/0: {instead}"):
        run(lambda: call(), nodes=1)


def identity() -> dict[str, Any]:
    """Describe the process that runs this."""
    return {
        "pid": os.getpid(),
        "ppid": os.getppid(),
        "thread": threading.get_native_id(),
        "hosts": {socket.gethostname(), platform.node(), platform.uname().node, os.uname().nodename},
        "system": (platform.system(), platform.platform(), platform.processor(), os.uname().sysname),
    }


def test_a_process_has_a_parent_a_thread_and_a_host_of_the_simulation() -> None:
    def program() -> list[dict[str, Any]]:
        ask = minray.remote(identity)
        nested = minray.remote(lambda: minray.get(ask.remote()))
        return minray.get([nested.remote(), ask.options(resources={"there": 1}).remote()])

    real = identity()
    with SimCluster([{"num_cpus": 2}, {"num_cpus": 1, "resources": {"there": 1}}]) as cluster:
        of_driver = cluster.run(identity)
        workers = cluster.run(program)
        pids = {name: process.pid for name, process in cluster.processes.items()}
    assert of_driver["hosts"] == workers[0]["hosts"] == {"head"} and workers[1]["hosts"] == {"n1"}
    assert [worker["ppid"] for worker in workers] == [pids["raylet/head"], pids["raylet/n1"]]
    assert of_driver["ppid"] == cluster.world.loop.world.pid and of_driver["pid"] == pids["driver/0"]
    assert all(each["thread"] == each["pid"] for each in (of_driver, *workers))
    assert of_driver["system"] == real["system"]
    assert identity() == real, "what is outside is as it was"


def test_a_process_whose_parent_has_died_sees_pid_1_as_its_parent() -> None:
    with SimCluster() as cluster:
        loop = cluster.world.loop
        parent, child = cluster.processes["gcs"], loop.add_process("child", "head", 0)
        assert child.context.run(os.getppid) == loop.world.pid
        child.parent = parent
        assert child.context.run(os.getppid) == parent.pid
        cluster.kill("gcs")
        assert child.context.run(os.getppid) == 1


@pytest.mark.parametrize(
    ("end", "name"), [(lambda: os.abort(), "SIGABRT"), (lambda: signal.raise_signal(signal.SIGTERM), "SIGTERM")]
)
def test_a_signal_to_oneself_ends_the_simulated_process(end: Callable[[], None], name: str) -> None:
    def program() -> None:
        with pytest.raises(WorkerCrashedError, match=f"was killed by {name}"):
            minray.get(minray.remote(max_retries=0)(lambda: end()).remote())

    run(program, nodes=1)


@minray.remote(max_concurrency=3)
class Shared:
    """An actor in threads; locks of every kind are made when it is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.again = threading.RLock()
        self.opened = threading.Event()
        self.items: queue.Queue[int] = queue.Queue(maxsize=1)
        self.simple: queue.SimpleQueue[int] = queue.SimpleQueue()
        self.story: list[str] = []

    def hold(self, kind: str, name: str) -> None:
        with getattr(self, kind):
            self.story.append(f"{name} begins")
            time.sleep(60)
            self.story.append(f"{name} ends")

    def hold_twice(self) -> bool:
        with self.again, self.again:
            return self.again.acquire(blocking=False)

    def try_lock(self, seconds: float) -> tuple[bool, float]:
        time.sleep(1)
        started = time.monotonic()
        got = self.lock.acquire(timeout=seconds) if seconds else self.lock.acquire(blocking=False)
        return got, time.monotonic() - started

    def poll(self) -> float:
        time.sleep(59)
        while not self.lock.acquire(blocking=False):
            pass
        self.lock.release()
        return time.monotonic()

    def wait(self, seconds: float | None) -> tuple[bool, float]:
        started = time.monotonic()
        return self.opened.wait(seconds), time.monotonic() - started

    def open(self) -> None:
        time.sleep(7)
        self.opened.set()

    def produce(self) -> float:
        started = time.monotonic()
        for number in range(3):
            self.items.put(number)
        return time.monotonic() - started

    def consume(self) -> list[int]:
        found = []
        for _ in range(3):
            time.sleep(2)
            found.append(self.items.get())
        return found

    def put_simply(self, number: int) -> None:
        time.sleep(2)
        self.simple.put(number)

    def get_simply(self, seconds: float | None) -> int | None:
        assert isinstance(self.simple, queue.SimpleQueue)
        try:
            return self.simple.get(timeout=seconds)
        except queue.Empty:
            return None

    def thread(self) -> tuple[int, int]:
        time.sleep(1)
        return os.getpid(), threading.get_native_id()

    def told(self) -> list[str]:
        return self.story


@pytest.mark.parametrize("kind", ["lock", "again"])
def test_who_waits_for_a_lock_waits_in_virtual_time(kind: str) -> None:
    def program() -> list[str]:
        actor = Shared.remote()
        minray.get([actor.hold.remote(kind, name) for name in "abc"])
        return minray.get(actor.told.remote())

    assert run(program, nodes=1) == [f"{name} {what}" for name in "abc" for what in ("begins", "ends")]


def test_a_lock_is_waited_for_as_long_as_one_likes() -> None:
    def program() -> list[Any]:
        actor = Shared.remote()
        held = actor.hold.remote("lock", "a")
        tried = minray.get([actor.try_lock.remote(seconds) for seconds in (0, 5)])
        minray.get(actor.poll.remote())
        minray.get(held)
        return [*tried, minray.get(actor.try_lock.remote(5)), minray.get(actor.hold_twice.remote())]

    assert run(program, nodes=1) == [(False, 0), (False, 5), (True, 0), True]


def test_an_event_is_waited_for_in_virtual_time() -> None:
    def program() -> list[Any]:
        actor = Shared.remote()
        never = minray.get(actor.wait.remote(5))
        opened = [actor.wait.remote(None), actor.open.remote()]
        return [never, minray.get(opened)[0], minray.get(actor.wait.remote(5))]

    never, opened, after = run(program, nodes=1)
    assert never == (False, 5) and opened[0] and 6.9 < opened[1] < 7.1 and after == (True, 0)


def test_a_queue_between_threads_is_one_of_the_simulation() -> None:
    def program() -> list[Any]:
        actor = Shared.remote()
        return minray.get([actor.produce.remote(), actor.consume.remote()])

    seconds, found = run(program, nodes=1)
    assert found == [0, 1, 2] and 3.9 < seconds < 4.1


def test_a_simple_queue_between_threads_is_one_of_the_simulation() -> None:
    def program() -> list[Any]:
        actor = Shared.remote()
        first = minray.get([actor.get_simply.remote(None), actor.put_simply.remote(5)])
        return [first[0], *minray.get([actor.get_simply.remote(seconds) for seconds in (0, 100)])]

    before = queue.SimpleQueue
    assert run(program, nodes=1) == [5, None, None]
    assert queue.SimpleQueue is before


def wait_for_what_never_is(seconds: float) -> None:
    condition = threading.Condition()
    with condition:
        assert not condition.wait_for(lambda: False, seconds)


@pytest.mark.parametrize(
    "wait",
    [
        lambda: pytest.raises(queue.Empty, queue.Queue().get, timeout=60),
        lambda: pytest.raises(queue.Empty, queue.SimpleQueue().get, timeout=60),
        lambda: threading.Semaphore(0).acquire(timeout=60),
        lambda: wait_for_what_never_is(60),
    ],
    ids=["queue", "simple queue", "semaphore", "condition"],
)
def test_a_time_out_of_a_library_is_virtual(wait: Callable[[], Any]) -> None:
    def program() -> float:
        started = time.monotonic()
        wait()
        return time.monotonic() - started

    assert run(program, nodes=1) == 60


def test_threads_of_an_actor_have_numbers_of_their_own() -> None:
    def program() -> list[tuple[int, int]]:
        actor = Shared.remote()
        return minray.get([actor.thread.remote() for _ in range(3)])

    found = run(program, nodes=1)
    assert len(set(found)) == 3 and len({pid for pid, _ in found}) == 1 and found == run(program, nodes=1)


def test_a_condition_is_waited_for_by_its_owner_alone() -> None:
    def program() -> None:
        with pytest.raises(RuntimeError, match="un-acquired lock"):
            threading.Condition().wait(1)
        with pytest.raises(RuntimeError, match="release unlocked lock"):
            threading.Lock().release()
        with pytest.raises(ValueError, match="non-blocking"):
            threading.Lock().acquire(False, 1)
        with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object"):
            pickle.dumps(threading.Lock())

    run(program, nodes=1)


def test_names_of_the_users_modules_are_simulated_until_the_run_ends() -> None:
    def nap() -> tuple[float, str]:
        before = time.monotonic()
        bound_sleep(100)
        return time.monotonic() - before, token_urandom(4).hex()

    def program() -> list[Any]:
        return [nap(), minray.get(minray.remote(nap).remote())]  # The function takes its names along by value.

    real = (bound_sleep, token_urandom)
    (here, there), again = run(program, nodes=1, seed=3), run(program, nodes=1, seed=3)
    assert here[0] == there[0] == 100 and again == [here, there]
    assert (bound_sleep, token_urandom) == real == (time.sleep, os.urandom)


def test_a_module_that_is_first_imported_in_a_run_keeps_nothing_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "late_module.py").write_text("from time import sleep, time\nfrom minray import init\n")
    monkeypatch.syspath_prepend(tmp_path)

    def program() -> float:
        late: Any = importlib.import_module("late_module")
        late.init()
        late.sleep(100)
        return float(late.time())

    try:
        first, again = run(program, nodes=1), run(program, nodes=1)
        assert first == again > 1_700_000_000 and sys.modules["late_module"].sleep is time.sleep
    finally:
        del sys.modules["late_module"]
