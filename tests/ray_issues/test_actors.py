"""Issues of Ray about actors: names, lifetimes, restarts, retried calls, concurrency."""

from __future__ import annotations

import asyncio
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import minray as ray
from minray.exceptions import RayActorError
from minray.util.placement_group import placement_group, remove_placement_group
from minray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.helpers import wait_for_condition
from tests.real.support import PATIENCE_S, Files, Journal, Signal, hold, is_alive, left_in_driver

pytestmark = pytest.mark.usefixtures("cluster")


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=PATIENCE_S)


@ray.remote
class Counter:
    def __init__(self, count: int = 0) -> None:
        self.count = count

    def add(self) -> int:
        self.count += 1
        return self.count

    def pid(self) -> int:
        return os.getpid()

    def die(self) -> None:
        os._exit(1)


def is_known(name: str, namespace: str | None = None) -> bool:
    try:
        ray.get_actor(name, namespace=namespace)
    except ValueError:
        return False
    return True


# -- Names


@pytest.mark.ray_issue(ray="wrong at times: RayActorError, since an actor is found that is about to end")
def test_ray_44083_a_named_actor_that_is_dropped_and_obtained_again_answers() -> None:
    """`get_if_exists` finds a named actor whose last handle was just dropped, and the next call fails with the actor."""
    for _ in range(20):
        counter = Counter.options(name="44083", get_if_exists=True).remote()
        assert get(counter.add.remote()) >= 1
        del counter


@pytest.mark.ray_issue(ray="right")
def test_ray_41324_threads_obtain_the_same_actor() -> None:
    """Threads that get or create one named actor at the same moment find no actor, or one that is dead."""

    def obtain(_: int) -> Any:
        counter = Counter.options(name="41324", get_if_exists=True).remote()
        return counter, get(counter.add.remote())

    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(obtain, range(8)))
    assert sorted(count for _, count in found) == list(range(1, 9))


@ray.remote(num_cpus=0)
def get_or_create(name: str) -> int:
    try:
        counter = ray.get_actor(name)
    except ValueError:
        try:
            counter = Counter.options(name=name, lifetime="detached").remote()
        except ValueError:
            counter = ray.get_actor(name)
    return int(ray.get(counter.add.remote()))


@pytest.mark.ray_issue(ray="right")
def test_ray_19896_tasks_obtain_the_same_actor() -> None:
    """Tasks that look for a named actor, and create it when there is none, hang or fail when they do so together."""
    assert sorted(get([get_or_create.remote("19896") for _ in range(4)])) == [1, 2, 3, 4]
    ray.kill(ray.get_actor("19896"))


@pytest.mark.ray_issue(pull=True, ray="right")
def test_ray_49480_an_actor_is_obtained_while_the_last_one_goes_out_of_scope() -> None:
    """`get_if_exists` fails with a ValueError if the last actor of that name goes out of scope at that moment."""
    for _ in range(30):
        Counter.options(name="49480", get_if_exists=True, max_restarts=-1).remote()
    last = Counter.options(name="49480", get_if_exists=True, max_restarts=-1).remote()
    assert get(last.add.remote()) == 1


@pytest.mark.ray_issue(pull=True, ray="right")
def test_ray_58628_the_error_of_an_actor_that_does_not_fit_says_so() -> None:
    """With `get_if_exists`, an actor that fits into no bundle of its placement group is reported as a name not found."""
    group = placement_group([{"CPU": 1}])
    strategy = PlacementGroupSchedulingStrategy(placement_group=group)
    options: Any = {"name": "58628", "get_if_exists": True, "num_gpus": 8, "scheduling_strategy": strategy}
    try:
        with pytest.raises(ValueError, match="bundle"):
            Counter.options(**options).remote()
    finally:
        remove_placement_group(group)


@pytest.mark.ray_issue(ray="right")
def test_ray_7591_a_killed_actor_is_not_found_by_name() -> None:
    """A named actor can still be found by its name after it was killed."""
    counter = Counter.options(name="7591", lifetime="detached").remote()
    assert get(counter.add.remote()) == 1
    ray.kill(counter)
    wait_for_condition(lambda: not is_known("7591"))
    again = Counter.options(name="7591").remote()
    assert get(again.add.remote()) == 1


@pytest.mark.ray_issue(ray="right")
def test_ray_17644_an_actor_of_another_namespace_can_be_killed() -> None:
    """The gcs crashes when somebody asks for the name of an actor of another namespace that was killed."""
    Counter.options(name="17644", namespace="elsewhere", lifetime="detached").remote()
    ray.kill(ray.get_actor("17644", namespace="elsewhere"))
    wait_for_condition(lambda: not is_known("17644", namespace="elsewhere"))
    assert get(Counter.remote().add.remote()) == 1


@pytest.mark.ray_issue(ray="right")
def test_ray_9282_detached_actors_need_no_name() -> None:
    """The second detached actor without a name cannot be made, as if the empty name were taken."""
    counters = [Counter.options(lifetime="detached").remote(number) for number in range(2)]
    assert get([counter.add.remote() for counter in counters]) == [1, 2]
    for counter in counters:
        ray.kill(counter)


@pytest.mark.ray_issue(ray="right")
def test_ray_45581_named_actors_can_be_listed_from_a_coroutine_while_tasks_run() -> None:
    """`list_named_actors` deadlocks with the interpreter's lock when it is called while tasks come to an end."""
    counter = Counter.options(name="45581").remote()

    @ray.remote(num_cpus=0)
    def nothing() -> None: ...

    async def ask() -> list[list[str]]:
        found = []
        for _ in range(10):
            refs = [nothing.remote() for _ in range(10)]
            found.append(ray.util.list_named_actors())
            await asyncio.gather(*(asyncio.wrap_future(ref.future()) for ref in refs))
        return found

    assert all("45581" in names for names in asyncio.run(ask()))
    assert get(counter.add.remote()) == 1


# -- Ends and restarts


@pytest.mark.ray_issue(ray="right")
def test_ray_26414_calls_to_an_actor_that_is_killed_end() -> None:
    """The driver deadlocks when it calls an actor at the moment at which the actor is killed."""
    for _ in range(3):
        counter = Counter.remote()
        refs = [counter.add.remote()]
        ray.kill(counter)
        refs += [counter.add.remote() for _ in range(20)]
        for ref in refs:
            try:
                assert get(ref) >= 1
            except RayActorError:
                continue
        with pytest.raises(RayActorError):
            get(refs[-1])


@pytest.mark.ray_issue(ray="right")
def test_ray_26772_calls_behind_the_one_that_ends_the_actor_end() -> None:
    """Calls that wait behind one in which the actor's process dies never end."""
    counter = Counter.remote()
    refs = [counter.die.remote(), *(counter.add.remote() for _ in range(20))]
    for ref in refs:
        with pytest.raises(RayActorError):
            get(ref)


@pytest.mark.ray_issue(ray="right")
def test_ray_3715_a_call_of_a_dead_actor_is_ready() -> None:
    """`wait` never finds the call of a dead actor ready."""
    counter = Counter.remote()
    refs = [counter.die.remote(), counter.add.remote()]
    assert ray.wait(refs, num_returns=2, timeout=PATIENCE_S) == (refs, [])


@pytest.mark.ray_issue(ray="right")
def test_ray_29677_the_error_of_a_dead_actor_has_its_id() -> None:
    """A RayActorError has the actor's id only in some of the ways in which an actor ends."""
    counter = Counter.remote()
    with pytest.raises(RayActorError) as died:
        get(counter.die.remote())
    assert died.value.actor_id == counter._actor_id.hex()
    killed = Counter.remote()
    ray.kill(killed)
    with pytest.raises(RayActorError) as raised:
        get([killed.add.remote() for _ in range(5)])
    assert raised.value.actor_id == killed._actor_id.hex()


@pytest.mark.ray_issue(ray="right")
def test_ray_6878_a_call_outlives_the_last_handle_of_its_actor() -> None:
    """A task that calls an actor and returns the reference drops the last handle; the result is waited for without end."""

    @ray.remote(num_cpus=0)
    def call() -> Any:
        return Counter.remote().add.remote()

    assert get(get(call.remote())) == 1


@ray.remote(max_restarts=-1, max_task_retries=-1)
class DiesOnce:
    def answer(self, journal: Journal) -> str:
        if journal.note() == 1:
            os._exit(1)
        return "answer"


@ray.remote(max_restarts=-1, max_task_retries=-1)
class AsyncDiesOnce:
    async def wait(self, journal: Journal, release: Signal) -> str:
        journal.note()
        while not release.is_set():
            await asyncio.get_running_loop().run_in_executor(None, release.wait)
        return "answer"

    async def die(self, journal: Journal) -> None:
        if journal.note() == 1:
            os._exit(1)


@ray.remote
class Caller:
    def call(self, actor: Any, *arguments: Any) -> Any:
        return ray.get(actor.answer.remote(*arguments))


@pytest.mark.ray_issue(ray="right")
def test_ray_12758_a_call_to_a_named_actor_is_retried(files: Files) -> None:
    """`max_task_retries` of a named actor is not used by a caller that was given its handle."""
    actor = DiesOnce.options(name="12758").remote()
    assert get(Caller.remote().call.remote(actor, files.journal())) == "answer"
    assert len(files.journal().lines()) == 2


@pytest.mark.ray_issue(ray="right")
def test_ray_11990_calls_to_an_async_actor_are_retried(files: Files) -> None:
    """An async actor that exits and may restart never answers the calls that ran, though they may be retried."""
    actor, began = AsyncDiesOnce.remote(), files.journal("began")
    ref = actor.wait.remote(began, files.signal())
    wait_for_condition(began.lines)
    actor.die.remote(files.journal("deaths"))
    wait_for_condition(lambda: len(began.lines()) == 2)
    files.signal().set()
    assert get(ref) == "answer"


@pytest.mark.ray_issue(ray="right")
def test_ray_39110_one_death_costs_one_retry(files: Files) -> None:
    """A call is retried before its caller knows of the actor's death, and uses up a retry for nothing."""
    for number in range(3):
        actor = DiesOnce.options(max_task_retries=1).remote()
        assert get(actor.answer.remote(files.journal(str(number)))) == "answer"


@ray.remote(max_restarts=1)
class SlowToRestart:
    def __init__(self, lives: Journal, release: Signal) -> None:
        if lives.note() > 1:
            release.wait()

    def die(self) -> None:
        os._exit(1)

    @ray.method(max_task_retries=1)
    def answer(self) -> str:
        return "answer"


@pytest.mark.ray_issue(ray="right")
def test_ray_44719_a_call_to_a_restarting_actor_waits_and_costs_no_retry(files: Files) -> None:
    """A call with `max_task_retries` to an actor that is restarting fails at once and uses up its retry."""
    lives = files.journal()
    actor = SlowToRestart.remote(lives, files.signal())
    actor.die.remote()
    wait_for_condition(lambda: len(lives.lines()) == 2, timeout_s=PATIENCE_S)
    refs = [actor.answer.remote() for _ in range(5)]
    assert ray.wait(refs, timeout=0.2)[0] == []
    files.signal().set()
    assert get(refs) == ["answer"] * 5


@ray.remote(max_restarts=-1)
class Holder:
    def __init__(self, values: list[int], lives: Journal) -> None:
        self.total = len(values)
        lives.note()

    def die(self) -> None:
        os._exit(1)

    @ray.method(max_task_retries=-1)
    def length(self) -> int:
        return self.total


@pytest.mark.ray_issue(ray="right")
def test_ray_47043_an_actor_restarts_with_an_argument_that_nobody_else_holds(files: Files) -> None:
    """An actor cannot restart when its constructor's argument was freed because nobody else referred to it."""

    @ray.remote(num_cpus=0)
    def values() -> list[int]:
        return [1] * 1024 * 1024

    lives, ref = files.journal(), values.remote()
    actor = Holder.remote(ref, lives)
    assert get(actor.length.remote()) == 1024 * 1024
    del ref
    actor.die.remote()
    wait_for_condition(lambda: len(lives.lines()) == 2, timeout_s=PATIENCE_S)
    assert get(actor.length.remote()) == 1024 * 1024


@pytest.mark.ray_issue(ray="right")
def test_ray_16802_an_async_actor_that_exits_leaves_no_process() -> None:
    """The process of an async actor that calls `exit_actor` goes on without end."""

    @ray.remote
    class Leaver:
        async def pid(self) -> int:
            return os.getpid()

        async def leave(self) -> None:
            ray.actor.exit_actor()

    leaver = Leaver.remote()
    pid = get(leaver.pid.remote())
    leaver.leave.remote()
    wait_for_condition(lambda: not is_alive(pid), timeout_s=PATIENCE_S)


@ray.remote(num_cpus=0)
class Actor:
    def take(self, handle: Any) -> int:
        return os.getpid()

    def put(self) -> Any:
        return [ray.put("value")]


@pytest.mark.ray_issue(ray="right")
def test_ray_45704_an_actor_that_was_given_its_own_handle_ends() -> None:
    """The process of an actor that was passed a handle of itself never ends."""
    actor = Actor.remote()
    pid = get(actor.take.remote(actor))
    del actor
    wait_for_condition(lambda: not is_alive(pid), timeout_s=PATIENCE_S)


@pytest.mark.ray_issue(ray="right")
def test_ray_17718_what_an_actor_has_put_outlives_its_last_handle() -> None:
    """A value that an actor has put is lost when the actor's last handle goes, though its reference was returned."""
    actor = Actor.remote()
    (ref,) = get(actor.put.remote())
    pid = get(actor.take.remote(None))
    del actor
    assert get(ref) == "value"
    del ref
    wait_for_condition(lambda: not is_alive(pid), timeout_s=PATIENCE_S)


@ray.remote(num_cpus=0)
class Closer:
    def __init__(self, closed: Signal) -> None:
        self.closed = closed

    def answer(self) -> str:
        return "answer"

    def __ray_shutdown__(self) -> None:
        self.closed.set()


@pytest.mark.ray_issue(pull=True, ray="right")
def test_ray_57090_an_actor_that_goes_out_of_scope_is_shut_down(files: Files) -> None:
    """`__ray_shutdown__` of an actor is not called when the actor's last handle goes."""
    closer = Closer.remote(files.signal())
    assert get(closer.answer.remote()) == "answer"
    del closer
    wait_for_condition(files.signal().is_set, timeout_s=PATIENCE_S)


class Nested:
    def __init__(self, refs: dict[str, Any]) -> None: ...

    def answer(self) -> str:
        return "answer"


@pytest.mark.ray_issue(ray="not run: nothing that a program can see shows the reference")
def test_ray_27297_references_of_a_constructor_that_never_runs_are_let_go() -> None:
    """References inside the arguments of a constructor are kept for good if the actor is killed before it is made."""
    ref = ray.put(1)
    before = len(left_in_driver())
    actor = ray.remote(resources={"nowhere": 1})(Nested).remote({"ref": ref})
    ray.kill(actor)
    del ref, actor
    wait_for_condition(lambda: len(left_in_driver()) < before)


@pytest.mark.ray_issue(ray="not run: nothing that a program can see shows the reference")
def test_ray_32956_references_of_a_constructor_are_let_go_with_their_actor() -> None:
    """References inside the arguments of a constructor are not let go when their actor has ended."""
    ref = ray.put(1)
    before = len(left_in_driver())
    actor = ray.remote(num_cpus=0)(Nested).remote({"ref": ref})
    assert get(actor.answer.remote()) == "answer"
    del ref, actor
    wait_for_condition(lambda: len(left_in_driver()) < before)


# -- Concurrency


@pytest.mark.ray_issue(
    ray="wrong: the calls run one after the other",
    minray="like Ray: plain methods of an async actor run in its loop, as documented",
)
def test_ray_49869_plain_methods_of_an_async_actor_run_in_its_loop() -> None:
    """An actor with one async method runs its plain methods one at a time, also with `max_concurrency` above 1."""

    @ray.remote(max_concurrency=3)
    class Mixed:
        async def thread(self) -> int:
            return threading.get_ident()

        def plain(self) -> int:
            return threading.get_ident()

    mixed = Mixed.remote()
    threads = get([mixed.thread.remote(), *(mixed.plain.remote() for _ in range(3))])
    assert len(set(threads)) == 1


@pytest.mark.ray_issue(ray="right")
def test_ray_19593_a_busy_concurrency_group_holds_up_no_other(files: Files) -> None:
    """Calls of one concurrency group wait while the threads of another group are busy and more calls wait for them."""

    @ray.remote(concurrency_groups={"slow": 1, "fast": 1})
    class Actor:
        @ray.method(concurrency_group="slow")
        def wait(self, release: Signal) -> None:
            release.wait()

        @ray.method(concurrency_group="fast")
        def answer(self) -> str:
            return "answer"

    actor = Actor.remote()
    waiting = [actor.wait.remote(files.signal()) for _ in range(3)]
    assert get(actor.answer.remote()) == "answer"
    files.signal().set()
    get(waiting)


@pytest.mark.ray_issue(ray="right")
def test_ray_4934_a_wait_in_a_thread_of_an_actor_ends_at_its_timeout(files: Files) -> None:
    """`wait` with a timeout, in a thread that an actor has started, returns only when another method is called."""

    @ray.remote
    class Looper:
        def __init__(self, rounds: Journal, release: Signal) -> None:
            threading.Thread(target=self.run, args=(rounds, release)).start()

        def run(self, rounds: Journal, release: Signal) -> None:
            refs = [hold.remote(Signal(Path(f"{release.path}.started")), release)]
            for _ in range(3):
                ray.wait(refs, timeout=0)
                rounds.note()

    looper = Looper.remote(files.journal(), files.signal())
    wait_for_condition(lambda: len(files.journal().lines()) == 3, timeout_s=PATIENCE_S)
    files.signal().set()
    del looper


@ray.remote
def leave() -> None:
    os.left = True  # type: ignore[attr-defined]


@ray.remote
class Finder:
    def found(self) -> bool:
        return hasattr(os, "left")


@pytest.mark.ray_issue(ray="right")
def test_ray_28773_an_actor_has_a_process_of_its_own() -> None:
    """An actor is made in a process that has run tasks before, with what they have left in it."""
    get([leave.remote() for _ in range(4)])
    finders = [Finder.remote() for _ in range(6)]  # more than there are workers that have run no task yet
    assert not any(get([finder.found.remote() for finder in finders]))
