"""What else of Python's library has a simulated meaning, or is refused with a word on what to do instead."""

from __future__ import annotations

import _thread
import datetime as dates
import logging
import os
import pickle
import queue
import random
import secrets
import threading
import time
import uuid
from collections.abc import Callable
from datetime import date, datetime
from typing import Any

import pytest

import minray
from minray.simulation import NotSimulated, run
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
        found = [secrets.token_hex(8), secrets.randbelow(1 << 60), system.random(), own.random()]
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
        ("uuid.uuid1", lambda: uuid.uuid1(), "use uuid.uuid4"),
    ],
)
def test_what_is_refused_says_what_to_do(name: str, call: Callable[[], Any], instead: str) -> None:
    with pytest.raises(NotSimulated, match=f"{name}e? inside the simulated process driver/0: {instead}"):
        run(lambda: call(), nodes=1)


@minray.remote(max_concurrency=3)
class Shared:
    """An actor in threads; locks of every kind are made when it is."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.again = threading.RLock()
        self.opened = threading.Event()
        self.items: queue.Queue[int] = queue.Queue(maxsize=1)
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
