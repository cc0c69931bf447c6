"""Actors on a real cluster: processes that are killed, threads, event loops, several drivers (G24-G55)."""

from __future__ import annotations

import abc
import asyncio
import atexit
import inspect
import os
import signal
import sys
import threading
import time
from typing import Any

import pytest

import minray as ray
from minray.actor import ActorClassInheritanceException
from minray.exceptions import (
    ActorAlreadyExistsError,
    ActorDiedError,
    ActorUnavailableError,
    PendingCallsLimitExceeded,
    RayActorError,
    RayTaskError,
    TaskCancelledError,
)
from minray.util import list_named_actors
from tests.helpers import wait_for_condition
from tests.real.support import POLL_S, Files, Journal, Signal, api, echo, is_alive, run_driver, words

pytestmark = pytest.mark.usefixtures("cluster")
INIT = {"num_cpus": 4, "namespace": "tests"}


@ray.remote(num_cpus=0)
class Hides:
    """The attribute has the name of the method; Ray looks for methods in the class."""

    def __init__(self) -> None:
        self.done = False  # type: ignore[assignment,method-assign]
        self.static = self.of_class = "an attribute"  # type: ignore[assignment,method-assign]

    def done(self) -> object:
        return self.done, self.word

    @property
    def word(self) -> str:
        return "a property"

    @staticmethod
    def static() -> str:
        return "static"

    @classmethod
    def of_class(cls) -> str:
        return cls.__name__

    def __getattr__(self, name: str) -> object:
        return lambda: name


def test_an_attribute_hides_no_method_of_its_name() -> None:
    hides: Any = Hides.remote()
    assert ray.get([hides.done.remote(), hides.static.remote()]) == [(False, "a property"), "static"]
    assert ray.get(hides.of_class.remote()) == "Hides"
    for name in ("word", "anything"):
        with pytest.raises(AttributeError, match=name):
            getattr(hides, name)


class Base:
    def twice_or_thrice(self, number: int) -> int:
        return 2 * number


@ray.remote(num_cpus=0)
class Counter(Base):
    """Counts, and says where it lives."""

    STEP = 1

    def __init__(self, start: int = 0, journal: Journal | None = None) -> None:
        self.count, self.journal = start, journal

    def add(self, by: int = 1) -> int:
        self.count += by
        return self.count

    @staticmethod
    def twice(number: int) -> int:
        return 2 * number

    @classmethod
    def steps(cls, number: int) -> int:
        return cls.STEP * number

    def twice_or_thrice(self, number: int) -> int:
        return super().twice_or_thrice(number) + number

    def pid(self) -> int:
        return os.getpid()

    def hold(self, started: Signal, release: Signal) -> int:
        started.set()
        release.wait()
        return self.add()

    def note_and_hold(self, journal: Journal, release: Signal) -> int:
        if journal.note(os.getpid()) == 1:
            release.wait()
        return self.add()

    def until_cancelled(self, started: Signal, fails: bool) -> int:
        started.set()
        while not ray.get_runtime_context().is_canceled():
            threading.Event().wait(POLL_S)
        return self.fail() if fails else self.add()

    def fail(self) -> int:
        raise ValueError("no")

    def child(self) -> Any:
        self.own = Counter.remote(100)
        return self.own

    def call(self, handle: Any) -> int:
        return int(ray.get(handle.add.remote()))

    def leave(self) -> None:
        ray.actor.exit_actor()

    def __ray_shutdown__(self) -> None:
        if self.journal is not None:
            self.journal.note(f"ended at {self.count}")


@ray.remote
def add_to(handle: Any) -> int:
    return int(ray.get(handle.add.remote()))


class Frozen:
    """Stops the clocks, as a user's tests do."""

    def stop(self, now: float) -> float:
        self.clocks = {name: getattr(time, name) for name in ("time", "monotonic", "perf_counter_ns")}
        for name in self.clocks:
            setattr(time, name, lambda: now)
        return time.monotonic()

    def go_on(self) -> None:
        for name, clock in self.clocks.items():
            setattr(time, name, clock)


class AsyncFrozen(Frozen):
    async def call(self) -> None: ...


# --- basics


def test_calls_run_in_order_in_a_process_of_the_actors_own() -> None:
    counter = Counter.remote(5)
    assert ray.get([counter.add.remote() for _ in range(100)]) == list(range(6, 106))
    assert ray.get(counter.pid.remote()) != os.getpid()
    with pytest.raises(ValueError, match="no") as caught:
        ray.get(counter.fail.remote())
    assert isinstance(caught.value, RayTaskError) and ray.get(counter.add.remote(ray.put(1))) == 106


class Leaver:
    """Ends itself, and keeps that to itself."""

    def swallow(self, kind: type[BaseException]) -> str:
        try:
            ray.actor.exit_actor()
        except kind:
            return "gone on"

    def in_a_thread(self) -> str:
        thread = threading.Thread(target=ray.actor.exit_actor)
        thread.start()
        thread.join()
        return "later"

    def later(self) -> str:
        threading.Timer(0.1, ray.actor.exit_actor).start()
        return "later"

    def call(self) -> None: ...


class AsyncLeaver(Leaver):
    async def in_a_task(self) -> str:
        async def leave() -> None:
            ray.actor.exit_actor()

        asyncio.get_running_loop().call_later(0.1, asyncio.ensure_future, leave())
        return "later"


@pytest.mark.parametrize("options", [{}, {"max_concurrency": 2}])
@pytest.mark.parametrize(
    ("leaver", "method", "args", "first"),
    [
        (Leaver, "swallow", [Exception], None),
        (Leaver, "swallow", [BaseException], None),
        (Leaver, "in_a_thread", [], "later"),
        (Leaver, "later", [], "later"),
        (AsyncLeaver, "swallow", [Exception], None),
        (AsyncLeaver, "later", [], "later"),
        (AsyncLeaver, "in_a_task", [], "later"),
    ],
)
def test_c2_an_actor_exits_although_what_exit_actor_raises_is_swallowed(
    leaver: type, method: str, args: list[Any], first: str | None, options: dict[str, int]
) -> None:
    actor = ray.remote(leaver).options(**options).remote()
    if first is None:
        with pytest.raises(ActorDiedError, match=words("exit_actor was called")):
            ray.get(getattr(actor, method).remote(*args))
    else:
        assert ray.get(getattr(actor, method).remote(*args)) == first
    wait_for_condition(lambda: _is_dead(actor))


def _is_dead(actor: Any) -> bool:
    try:
        ray.get(actor.call.remote())
    except ActorDiedError:
        return True
    return False


@pytest.mark.parametrize("now", [0, 1577836800])
@pytest.mark.parametrize(("frozen", "max_concurrency"), [(Frozen, 1), (Frozen, 2), (AsyncFrozen, 1000)])
def test_calls_are_answered_when_user_code_stops_the_clocks(frozen: type, max_concurrency: int, now: int) -> None:
    actor = ray.remote(frozen).options(max_concurrency=max_concurrency).remote()
    assert ray.get(actor.stop.remote(now)) == now
    assert ray.get(actor.go_on.remote()) is None and ray.get(actor.go_on.remote()) is None


def test_a_method_may_have_any_name() -> None:
    names = ["_call", "_prepare", "_prepared", "_client", "_api", "_spec", "_ref", "_owner", "_methods", "_actor_id_hex"]
    odd = ray.remote(type("Odd", (), {name: lambda self, name=name: name for name in names})).remote()
    assert ray.get([getattr(odd, name).remote() for name in names]) == names


def test_a_handle_takes_notes_which_stay_where_they_are() -> None:
    counter = Counter.remote()
    counter.tag = "first"
    assert counter.tag == "first" and ray.get(counter.add.remote()) == 1
    assert not hasattr(ray.get(echo.remote([counter]))[0], "tag")


def test_actors_are_generic_in_annotations() -> None:
    for kind in (ray.actor.ActorHandle, ray.actor.ActorProxy, ray.actor.ActorClass):
        assert kind[Counter] is not None


class Guest:
    """Writes down how it leaves."""

    def __init__(self, journal: Journal) -> None:
        self.journal = journal
        atexit.register(journal.note, "atexit")

    def pid(self) -> int:
        return os.getpid()

    def exit(self, code: int) -> None:
        sys.exit(code)

    def hold(self, started: Signal) -> None:
        try:
            started.set()
            threading.Event().wait()
        finally:
            self.journal.note("finally")

    def __ray_shutdown__(self) -> None:
        self.journal.note("shutdown")


@pytest.mark.parametrize("is_busy", [False, True])
def test_an_actor_that_is_told_to_end_by_sigterm_cleans_up(is_busy: bool, files: Files) -> None:
    journal, started = files.journal(), files.signal("started")
    guest = ray.remote(Guest).remote(journal)
    pid = ray.get(guest.pid.remote())
    running = [guest.hold.remote(started)] if is_busy else []
    if is_busy:
        started.wait()
    os.kill(pid, signal.SIGTERM)
    wait_for_condition(lambda: not is_alive(pid))
    for ref in [*running, guest.pid.remote()]:
        with pytest.raises(ActorDiedError):
            ray.get(ref)
    assert journal.lines() == ["finally"] * is_busy + ["shutdown", "atexit"]


def test_an_actor_that_exits_with_an_error_cleans_up(files: Files) -> None:
    journal = files.journal()
    guest = ray.remote(Guest).remote(journal)
    with pytest.raises(ActorDiedError):
        ray.get(guest.exit.remote(3))
    wait_for_condition(lambda: journal.lines() == ["shutdown", "atexit"])


def test_handles_go_to_tasks_and_actors_and_an_actor_makes_others() -> None:
    counter, other = Counter.remote(), Counter.remote()
    assert [ray.get(add_to.remote(counter)), ray.get(other.call.remote(counter))] == [1, 2]
    child = ray.get(counter.child.remote())
    assert sorted(ray.get([child.add.remote(), add_to.remote(child)])) == [101, 102] and child != counter


def test_what_belongs_to_the_class_needs_no_actor() -> None:
    assert [Counter.STEP, Counter.twice(2), Counter.steps(3)] == [1, 4, 3] and not hasattr(Counter, "missing")
    counter = Counter.remote()
    assert ray.get([counter.twice.remote(2), counter.steps.remote(3)]) == [4, 3]


def test_a_class_of_an_imported_module_is_one_class_with_its_methods() -> None:
    """Whole, and not in part the one that a worker finds in the module: ``super()`` needs that."""
    assert ray.get(Counter.remote().twice_or_thrice.remote(2)) == 6


def tagged(tag: str) -> Any:
    """Mark a method, as libraries do that bind methods by what is written on them."""

    def mark(function: Any) -> Any:
        function.tag = tag
        return function

    return mark


class Tagging:
    @tagged("inherited")
    async def inherited(self) -> None: ...

    def overridden(self) -> None: ...


@ray.remote(num_cpus=0)
class Tagged(Tagging):
    LIMIT = 7

    @tagged("own")
    def own(self, number: int, /, *, times: int = 2) -> str:
        """Say the number a few times."""
        return str(number) * times

    @tagged("overridden")
    def overridden(self) -> None: ...


def test_methods_are_attributes_of_an_actor_class() -> None:
    actor_class: Any = Tagged
    assert {"own", "inherited", "LIMIT", "remote", "options"} <= set(dir(actor_class))
    tags = {name: getattr(actor_class, name).tag for name in dir(actor_class) if hasattr(getattr(actor_class, name), "tag")}
    assert tags == {"own": "own", "inherited": "inherited", "overridden": "overridden"}
    assert list(inspect.signature(actor_class.own).parameters)[:2] == ["number", "times"]
    own = actor_class.own
    assert (own.__name__, own.__doc__, own.__qualname__) == ("own", "Say the number a few times.", "Tagged.own")
    assert callable(own) and not hasattr(actor_class, "missing")
    assert ray.get(actor_class.remote().own.remote(3)) == "33"


def test_a_method_of_an_actor_class_is_called_on_a_handle() -> None:
    with pytest.raises(TypeError, match=r"'own' is a method of actor class Tagged; call it on a handle: handle.own.remote"):
        Tagged.own(Tagged, 3)  # type: ignore[attr-defined]


def test_an_actor_class_knows_the_class_that_it_was_made_of() -> None:
    actor_class: Any = Tagged
    plain = actor_class.__ray_actor_class__
    assert plain().own(3) == "33" and plain.__mro__[1] is Tagging
    assert issubclass(actor_class.__ray_metadata__.modified_class, Tagging)
    assert actor_class.__ray_metadata__.class_name == "Tagged"
    derived = ray.remote(num_cpus=0)(type("Derived", (actor_class.__ray_metadata__.modified_class,), {}))
    assert ray.get(derived.remote().own.remote(4)) == "44"


def test_g24_g27_an_actor_without_handles_cleans_up_and_ends(files: Files) -> None:
    journal = files.journal()
    counter = Counter.remote(0, journal)
    child = ray.get(counter.child.remote())
    pids = ray.get([counter.pid.remote(), child.pid.remote()])
    counter.add.remote()
    del counter, child
    wait_for_condition(lambda: not any(is_alive(pid) for pid in pids))
    assert journal.lines() == ["ended at 1"]


def test_c2_an_actor_exits_when_it_wants_to(files: Files) -> None:
    for method in ("leave", "__ray_terminate__"):
        counter = Counter.options(max_restarts=3).remote(7, files.journal(method))
        pid = ray.get(counter.pid.remote())
        with pytest.raises(ActorDiedError):
            ray.get(getattr(counter, method).remote())
        with pytest.raises(ActorDiedError):
            ray.get(counter.add.remote())
        wait_for_condition(lambda pid=pid: not is_alive(pid))
        assert files.journal(method).lines() == ["ended at 7"]


# --- names


def test_g31_g33_names(files: Files) -> None:
    counter = Counter.options(name="n").remote()
    assert ray.get(ray.get_actor("n").add.remote()) == 1
    with pytest.raises(ValueError, match=words("an actor with name 'n' exists in namespace 'tests'")) as caught:
        Counter.options(name="n").remote()
    assert isinstance(caught.value, ActorAlreadyExistsError)
    same = Counter.options(name="n", get_if_exists=True).remote()
    assert same == counter and ray.get(same.add.remote()) == 2
    ray.kill(same)
    with pytest.raises(ValueError, match=words("there is no actor named 'n' in namespace 'tests'")):
        ray.get_actor("n")
    assert ray.get(Counter.options(name="n").remote(10).add.remote()) == 11


def test_g33a_a_named_actor_that_is_let_go_and_obtained_again_answers() -> None:
    for number in range(20):
        counter = Counter.options(name="again", get_if_exists=True).remote(number)
        assert ray.get(counter.add.remote()) == number + 1
        if number % 2:
            with pytest.raises(ActorDiedError):
                ray.get(counter.__ray_terminate__.remote())
        del counter
    with pytest.raises(ValueError, match="no actor named 'again'"):
        ray.get_actor("again")
    assert {"namespace": "tests", "name": "again"} not in list_named_actors(all_namespaces=True)


def test_g33a_a_handle_that_was_found_by_name_keeps_its_actor() -> None:
    counter = Counter.options(name="kept").remote()
    found = ray.get_actor("kept")
    del counter
    assert ray.get([found.add.remote() for _ in range(3)]) == [1, 2, 3]
    assert ray.get(ray.get_actor("kept").add.remote()) == 4


def test_actors_that_ask_for_memory_alone_hold_it_and_no_cpu() -> None:
    @ray.remote
    class Holding:
        def ready(self) -> bool:
            return True

    total = ray.cluster_resources()
    actors = [Holding.options(memory=10**6).remote() for _ in range(5)]
    assert ray.get([actor.ready.remote() for actor in actors], timeout=60) == [True] * 5
    wait_for_condition(lambda: ray.available_resources().get("memory") == total["memory"] - 5 * 10**6)
    wait_for_condition(lambda: ray.available_resources().get("CPU") == total["CPU"])


def test_g26_g32_a_detached_actor_outlives_its_driver_in_its_namespace(node: Any) -> None:
    address = node.address_info["address"]
    program = """
    ray.init(sys.argv[1], namespace="theirs", log_to_driver=False)
    @ray.remote(num_cpus=0)
    class Keeper:
        def __init__(self): self.value = 0
        def add(self):
            self.value += 1
            return self.value
    if sys.argv[2] == "make":
        kept = Keeper.options(name="kept", lifetime="detached").remote()
        lost = Keeper.options(name="lost").remote()
        print(ray.get([kept.add.remote(), lost.add.remote()]))
    else:
        print(ray.get(ray.get_actor("kept").add.remote()))
        ray.kill(ray.get_actor("kept"))
    """
    assert run_driver(program, address, "make").stdout == "[1, 1]\n"
    with pytest.raises(ValueError):
        ray.get_actor("kept")
    assert ray.get(ray.get_actor("kept", namespace="theirs").add.remote()) == 2
    with pytest.raises(ValueError):
        ray.get_actor("lost", namespace="theirs")
    assert run_driver(program, address, "find").stdout == "3\n"
    with pytest.raises(ValueError):
        ray.get_actor("kept", namespace="theirs")


# --- deaths


def test_g29_kill_interrupts_running_calls(files: Files) -> None:
    counter = Counter.remote(0, files.journal())
    running = counter.hold.remote(files.signal("started"), files.signal("release"))
    queued = counter.add.remote()
    files.signal("started").wait()
    ray.kill(counter)
    for ref in (running, queued, counter.add.remote()):
        with pytest.raises(ActorDiedError, match="killed by .?(min)?ray.kill"):
            ray.get(ref)
    assert files.journal().lines() == []


def test_g35_g36_a_killed_process_is_replaced_and_its_calls_are_lost(files: Files) -> None:
    counter = Counter.options(max_restarts=1).remote(10)
    running = counter.hold.remote(files.signal("started"), files.signal("release"))
    files.signal("started").wait()
    connected = api()
    from minray.core_worker.user_threads.actor_api import ActorApi

    (pid,) = [info.pid for info in ActorApi(connected).all() if info.actor_id.hex() == counter._actor_id.hex()]
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ActorUnavailableError):
        ray.get(running)
    wait_for_condition(lambda: outcome(counter.add.remote()) == 11)
    os.kill(ray.get(counter.pid.remote()), signal.SIGKILL)
    wait_for_condition(lambda: isinstance(outcome(counter.add.remote()), ActorDiedError))


def outcome(ref: Any) -> Any:
    try:
        return ray.get(ref)
    except RayActorError as error:
        return error


def test_g37_a_call_with_retries_is_made_again(files: Files) -> None:
    counter = Counter.options(max_restarts=1, max_task_retries=1).remote()
    ref = counter.note_and_hold.remote(files.journal(), files.signal())
    wait_for_condition(lambda: files.journal().lines())
    os.kill(int(files.journal().lines()[0]), signal.SIGKILL)
    assert ray.get(ref) == 1 and len(set(files.journal().lines())) == 2


def test_g34_a_constructor_that_raises() -> None:
    @ray.remote(num_cpus=0, max_restarts=5)
    class Failing:
        def __init__(self) -> None:
            raise KeyError("cannot be made")

        def work(self) -> None: ...

    with pytest.raises(ActorDiedError, match="cannot be made") as caught:
        ray.get(Failing.remote().work.remote())
    assert caught.value.actor_init_failed


class Gate:
    """Opened while its coroutine constructor waits at it."""

    async def __init__(self, opened: Signal, attempts: Journal, fails: bool = False) -> None:
        attempts.note(os.getpid())
        await asyncio.to_thread(opened.wait)
        if fails:
            raise KeyError("cannot be made")
        self.loop = asyncio.get_running_loop()
        self.meeting = asyncio.Event()

    def is_on_its_loop(self) -> bool:
        """In an actor with a coroutine constructor plain methods run on the event loop too."""
        return asyncio.get_running_loop() is self.loop

    def pid(self) -> int:
        return os.getpid()


class Bridge(Gate):
    """The constructor and a ``__new__`` are inherited; other methods are coroutines."""

    def __new__(cls, *_args: Any) -> Bridge:
        return super().__new__(cls)

    async def meet(self) -> str:
        await self.meeting.wait()
        return "met"

    async def come(self) -> None:
        self.meeting.set()


@pytest.mark.parametrize("kind", [Gate, Bridge])
def test_a_constructor_may_be_a_coroutine(kind: type, files: Files) -> None:
    opened, attempts = files.signal(), files.journal()
    actor: Any = ray.remote(num_cpus=0, max_restarts=1)(kind).remote(opened, attempts)
    first = actor.is_on_its_loop.remote()
    wait_for_condition(lambda: len(attempts.lines()) == 1)
    assert ray.wait([first], timeout=0) == ([], [first]), "calls wait for the constructor"
    opened.set()
    assert ray.get(first) is True
    if kind is Bridge:
        assert ray.get([actor.meet.remote(), actor.come.remote()]) == ["met", None]
    ray.kill(actor, no_restart=False)
    wait_for_condition(lambda: len(set(attempts.lines())) == 2)
    wait_for_condition(lambda: _answer(actor) is True, message="the new process has awaited its constructor too")


def _answer(actor: Any) -> object:
    try:
        return ray.get(actor.is_on_its_loop.remote())
    except ActorUnavailableError:
        return None


def test_g34_a_constructor_that_is_a_coroutine_may_raise(files: Files) -> None:
    opened, attempts = files.signal(), files.journal()
    opened.set()
    actor: Any = ray.remote(num_cpus=0, max_restarts=3)(Gate).remote(opened, attempts, True)
    with pytest.raises(ActorDiedError, match="cannot be made") as caught:
        ray.get(actor.pid.remote())
    assert caught.value.actor_init_failed and len(attempts.lines()) == 1


# --- concurrency


@ray.remote(num_cpus=0, max_concurrency=3, concurrency_groups={"io": 1})
class Threaded:
    def __init__(self) -> None:
        self.barrier = threading.Barrier(3)

    def meet(self) -> int:
        self.barrier.wait(30)
        return threading.get_ident()

    @ray.method()
    def meet_again(self) -> int:
        return self.meet()

    @ray.method(concurrency_group="io")
    def read(self) -> str:
        return "read"

    def own_thread(self) -> int:
        return threading.get_ident()

    def until_cancelled(self, started: Signal, ended: Signal) -> str:
        started.set()
        while not ray.get_runtime_context().is_canceled():
            threading.Event().wait(POLL_S)
        ended.set()
        return "cancelled"


@ray.remote(num_cpus=0)
class Async:
    def __init__(self) -> None:
        self.event = asyncio.Event()
        self.waiting = 0

    async def wait(self) -> int:
        self.waiting += 1
        await self.event.wait()
        return threading.get_ident()

    async def release(self) -> int:
        self.event.set()
        return self.waiting

    async def fetch(self, box: list[Any]) -> Any:
        return await box[0]

    async def stubborn(self, started: Signal, then_fails: bool) -> str:
        started.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if then_fails:
                raise KeyError("no") from None
        return "a value"

    async def forever(self, started: Signal, ended: Signal) -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()


def test_g45_g53_threads_meet_and_groups_do_not_wait_for_each_other(files: Files) -> None:
    actor = Threaded.remote()
    assert len(set(ray.get([actor.meet.remote(), actor.meet.remote(), actor.meet_again.remote()]))) == 3
    signals = [files.signal(f"{i}") for i in range(3)]
    ended = [files.signal(f"{i} has ended") for i in range(3)]
    running = [actor.until_cancelled.remote(*pair) for pair in zip(signals, ended, strict=True)]
    for started in signals:
        started.wait()
    assert ray.get(actor.read.remote()) == "read"
    for ref in running:
        ray.cancel(ref)
    for ref in running:
        with pytest.raises(TaskCancelledError):
            ray.get(ref)
    assert all(end.is_set() for end in ended)


def test_threads_are_so_many_as_calls_may_run_at_once() -> None:
    """Objects of a thread are there again: a connection to a database, a ``threading.local``."""
    actor = Threaded.remote()
    calls = [actor.own_thread.options(concurrency_group=group).remote() for group in ["io", None] * 200]
    threads = ray.get(calls)
    assert len(set(threads[::2])) == 1 and len(set(threads[1::2]) - set(threads[::2])) <= 3


def test_g11_a_reference_that_a_method_of_an_async_actor_returns_is_its_value() -> None:
    @ray.remote
    class Async:
        def plain(self) -> Any:
            return ray.put(4)

        async def coroutine(self) -> Any:
            return self.plain()

        def makes_coroutine(self) -> Any:
            return self.coroutine()

    actor = Async.remote()
    refs = ray.get([actor.plain.remote(), actor.coroutine.remote(), actor.makes_coroutine.remote()])
    assert [ray.get(ref) for ref in refs] == [4, 4, 4]


@ray.remote(num_cpus=0, concurrency_groups={"io": 2, "check": 1})
class AsyncInGroups:
    def __init__(self) -> None:
        self.released = threading.Event()

    async def block(self) -> bool:
        return self.released.wait(60)

    @ray.method(concurrency_group="io")
    async def block_io(self) -> bool:
        return self.released.wait(60)

    @ray.method(concurrency_group="io")
    async def sleep(self, started: Signal) -> None:
        started.set()
        await asyncio.Event().wait()

    @ray.method(concurrency_group="check")
    async def check(self) -> int:
        return threading.get_ident()

    @ray.method(concurrency_group="check")
    def check_plainly(self) -> int:
        assert asyncio.get_event_loop().is_running()
        return threading.get_ident()

    @ray.method(concurrency_group="check")
    async def count(self) -> Any:
        for number in range(3):
            yield number

    @ray.method(concurrency_group="check")
    def release(self) -> None:
        self.released.set()


def test_g53_what_blocks_the_event_loop_of_a_group_holds_up_no_other(files: Files) -> None:
    """A group of an async actor has a loop, and a thread, of its own."""
    actor = AsyncInGroups.remote()
    blocked = [actor.block.remote(), actor.block_io.remote()]
    assert len(set(ray.get([actor.check.remote(), actor.check_plainly.remote()]))) == 1
    assert [ray.get(ref) for ref in actor.count.remote()] == [0, 1, 2]
    ray.get(actor.release.remote())
    assert ray.get(blocked) == [True, True]
    ref = actor.sleep.remote(started := files.signal("it sleeps"))
    started.wait()
    ray.cancel(ref)
    with pytest.raises(TaskCancelledError):
        ray.get(ref)


def test_g53_g54_coroutines_share_one_thread() -> None:
    actor = Async.remote()
    waiting = [actor.wait.remote() for _ in range(200)]
    assert ray.get(actor.fetch.remote([add_to.remote(Counter.remote())])) == 1
    assert ray.get(actor.release.remote()) == 200
    assert len(set(ray.get(waiting))) == 1


def assert_interrupted(ref: Any) -> None:
    """Check that a call was cancelled while it ran."""
    with pytest.raises(TaskCancelledError) as caught:
        ray.get(ref)
    assert isinstance(caught.value, RayTaskError)


def test_g45_a_running_coroutine_is_cancelled(files: Files) -> None:
    actor = Async.remote()
    ref = actor.forever.remote(files.signal("started"), files.signal("ended"))
    files.signal("started").wait()
    with pytest.raises(ValueError, match="force=True"):
        ray.cancel(ref, force=True)
    ray.cancel(ref)
    assert_interrupted(ref)
    files.signal("ended").wait()
    assert ray.get(actor.release.remote()) == 0


@pytest.mark.parametrize("then_fails", [False, True])
def test_g45_a_coroutine_that_ends_in_a_way_of_its_own_is_cancelled_all_the_same(files: Files, then_fails: bool) -> None:
    actor = Async.remote()
    ref = actor.stubborn.remote(files.signal("started"), then_fails)
    files.signal("started").wait()
    ray.cancel(ref)
    assert_interrupted(ref)


@pytest.mark.parametrize("fails", [False, True])
def test_g45_a_plain_call_that_ends_after_it_was_cancelled_has_no_value_but_may_fail(files: Files, fails: bool) -> None:
    counter = Counter.remote()
    ref = counter.until_cancelled.remote(files.signal("started"), fails)
    files.signal("started").wait()
    ray.cancel(ref)
    with pytest.raises(ValueError if fails else TaskCancelledError):
        ray.get(ref)
    assert ray.get(counter.add.remote()) == (1 if fails else 2)


def test_g55_max_pending_calls(files: Files) -> None:
    counter = Counter.options(max_pending_calls=2).remote()
    refs = [counter.hold.remote(files.signal("started"), files.signal("release")), counter.add.remote()]
    with pytest.raises(PendingCallsLimitExceeded):
        counter.add.remote()
    files.signal("release").set()
    assert ray.get(refs) == [1, 2] and ray.get(counter.add.remote()) == 3


def test_g55_a_call_that_could_not_be_made_is_not_pending() -> None:
    counter = Counter.options(max_pending_calls=1).remote()
    for _ in range(2):
        with pytest.raises(TypeError, match="pickle"):
            counter.add.remote(threading.Lock())
    assert ray.get(counter.add.remote()) == 1


# --- mistakes of users


def test_an_abstract_class_has_no_actors() -> None:
    class Shape(abc.ABC):
        @abc.abstractmethod
        def area(self) -> float: ...

    class Square(Shape):
        def area(self) -> float:
            return 1.0

    with pytest.raises(TypeError, match="abstract"):
        ray.remote(Shape).remote()
    assert ray.get(ray.remote(Square).remote().area.remote()) == 1.0


def test_a_class_cannot_be_derived_from_an_actor_class() -> None:
    with pytest.raises(ActorClassInheritanceException, match=words("derive plain classes")):

        class Derived(Counter):  # type: ignore[misc, valid-type]
            pass


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"max_retries": 1}, ValueError, "'max_retries' is not an option of an actor"),
        ({"max_restarts": -2}, ValueError, "max_restarts"),
        ({"max_restarts": "1"}, TypeError, "max_restarts"),
        ({"max_concurrency": 0}, ValueError, "max_concurrency"),
        ({"lifetime": "long"}, ValueError, "lifetime must be 'detached', 'non_detached' or None"),
        ({"name": ""}, ValueError, "name must not be empty"),
        ({"name": 1}, TypeError, "name"),
        ({"get_if_exists": True}, ValueError, "get_if_exists=True needs a name"),
        ({"max_pending_calls": 0}, ValueError, "max_pending_calls must be at least 1"),
        ({"concurrency_groups": {"io": 1}}, ValueError, "must be given in @minray.remote"),
    ],
)
def test_wrong_options_say_what_is_wrong(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=words(message)):
        Counter.options(**options)


def test_wrong_uses_say_what_to_do() -> None:
    counter = Counter.remote()
    for use, error, message in (
        (Counter, TypeError, r"use Counter.remote\(...\)"),
        (counter.add, TypeError, r"use handle.add.remote\(...\)"),
        (lambda: counter.missing, AttributeError, "actor class Counter has no method 'missing'"),
        (lambda: ray.kill(counter.add.remote()), ValueError, "use cancel for tasks"),
        (lambda: ray.get_actor(""), ValueError, "takes the name"),
        (lambda: ray.get_actor(None), ValueError, "neither empty nor None"),  # type: ignore[arg-type]
        (ray.actor.exit_actor, TypeError, "in an actor's method only"),
        (lambda: ray.method(3), (ValueError, AssertionError), "takes options only"),
        (lambda: Counter.remote(1, 2, 3), TypeError, r"Counter.remote: too many positional arguments; .* takes \("),
    ):
        with pytest.raises(error, match=words(message)):
            use()


def test_wrong_options_of_a_method_are_errors_at_once() -> None:
    counter = Counter.remote()
    with pytest.raises(ValueError, match="not an option of an actor's method"):
        counter.add.options(max_retries=1)
    with pytest.raises(ValueError, match="no concurrency group 'io'; it has none"):
        counter.add.options(concurrency_group="io")


class Documented:
    def add(self, number: int, /, *more: int, times: int = 2) -> int:
        """Add numbers."""
        return number

    @classmethod
    def shared(cls, number: int) -> int:
        """Belongs to the class."""
        return number


def test_a_method_of_a_handle_has_the_documentation_and_signature_of_the_users() -> None:
    handle: Any = ray.remote(num_cpus=0)(Documented).remote()
    assert (handle.add.__doc__, handle.add.__name__) == ("Add numbers.", "add")
    assert str(inspect.signature(handle.add)) == "(number: 'int', /, *more: 'int', times: 'int' = 2) -> 'int'"
    assert handle.shared.__doc__ == "Belongs to the class."
    assert str(inspect.signature(handle.shared)) == "(number: 'int') -> 'int'"
    (sent,) = ray.get(ray.put([handle]))
    assert list(inspect.signature(sent.add).parameters) == ["number", "more", "times"]
    assert "handle.method.remote" in sent.add.__doc__ and "handle.method.remote" in (ray.actor.ActorMethod.__doc__ or "")
