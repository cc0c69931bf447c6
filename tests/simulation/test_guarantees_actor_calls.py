"""G36 to G39b and G49 to G55, with G12, G40, G44 to G48 and G62: how an actor's calls run, how often, and in what order."""

from __future__ import annotations

import asyncio
import gc
import os
import time
from typing import Any

import pytest

import minray
from minray.exceptions import PendingCallsLimitExceeded, RayError
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation.actors import DEAD, UNAVAILABLE, Counter
from tests.simulation.interference import replay_requests
from tests.simulation.judge import INTERRUPTED, judged, outcome_of, printed
from tests.simulation.roles import Cluster

SEEDS = seeds(2)
CALLS = ["PushActorTask", "PushActorTask reply"]
QUIET = FaultPlan({"delay": 0.2, "preempt": 0.1, "stall": 0.01})


HERE_AND_THERE: list[dict[str, Any]] = [{"num_cpus": 1}, {"num_cpus": 1, "resources": {"r": 1}}]


def breaking(cluster: Cluster) -> None:
    cluster.when(*CALLS).break_channels(at_most=10, one_in=3)


def crash_actor(after_s: float) -> Any:
    return lambda cluster: cluster.after(after_s).actor().kill()


@minray.remote
def slow(value: Any, seconds: float = 1.0) -> Any:
    time.sleep(seconds)
    return value


@minray.remote
def fail() -> None:
    raise ValueError("no value")


# --- G12, G49, G50: order


@minray.remote
def add_through(counter: Any) -> int:
    total = int(minray.get(counter.add.remote()))
    del counter
    return total


@minray.remote
def collect_garbage() -> None:
    gc.collect()


@pytest.mark.parametrize("seed", SEEDS)
def test_g36_a_process_that_calls_an_actor_anew_is_not_taken_for_its_earlier_self(seed: int) -> None:
    """Each task gets a handle of its own, but they run in one worker, one after the other, and nothing is left between."""

    def body() -> list[int]:
        counter, counts = Counter.remote(), []
        for _ in range(3):
            counts.append(minray.get(add_through.remote(counter)))
            minray.get(collect_garbage.remote())
        return counts

    assert judged(body, seed=seed, nodes=[{"num_cpus": 1}])[0] == [1, 2, 3]


@pytest.mark.parametrize("interfere", [breaking, replay_requests])
@pytest.mark.parametrize("seed", SEEDS)
def test_g49_calls_run_once_each_in_the_order_in_which_they_were_made(seed: int, interfere: Any) -> None:
    """Arguments late, channels broken, messages repeated."""

    def body() -> list[Any]:
        actor = Counter.remote()
        refs = [actor.add.remote(slow.remote(i, 0.3) if i % 5 == 2 else i) for i in range(12)]
        return [outcome_of(ref) for ref in refs]

    result, cluster = judged(body, interfere, seed=seed, faults=QUIET)
    assert result == list(range(1, 13))
    assert [line for line in printed(cluster) if "begin" in line] == [f"begin {i}" for i in range(12)]


def test_g50_another_caller_overtakes_a_call_that_waits_for_its_argument() -> None:
    @minray.remote
    def add(actor: Any) -> int:
        return int(minray.get(actor.add.remote("other")))

    def body() -> list[int]:
        actor = Counter.remote()
        late = actor.add.remote(slow.remote("late", 5.0))
        other = minray.get(add.remote(actor))
        return [other, minray.get(late)]

    result, cluster = judged(body)
    assert result == [1, 2] and [line for line in printed(cluster) if "begin" in line] == ["begin other", "begin late"]


def test_g51_an_actor_that_promises_no_order_does_not_wait_for_late_arguments() -> None:
    def body() -> list[int]:
        actor = Counter.options(allow_out_of_order_execution=True).remote()
        return list(minray.get([actor.add.remote(slow.remote("late", 3.0)), actor.add.remote("soon")]))

    assert judged(body)[0] == [2, 1]


def test_g12_arguments_inside_containers_stay_references_and_failed_ones_fail_the_call() -> None:
    @minray.remote
    class Taker:
        def take(self, value: Any, box: list[Any]) -> list[Any]:
            return [value, isinstance(box[0], minray.ObjectRef), minray.get(box[0])]

    def body() -> list[Any]:
        actor = Taker.remote()
        ref = slow.remote(7)
        good = actor.take.remote(ref, [ref])
        bad = actor.take.remote(fail.remote(), [ref])
        return [outcome_of(good), outcome_of(bad), outcome_of(actor.take.remote(1, [ref]))]

    assert judged(body)[0] == [[7, True, 7], "RayTaskError(ValueError)", [1, True, 7]]


# --- G36 to G39b: retries


@pytest.mark.parametrize("seed", SEEDS)
def test_g36_each_call_runs_at_most_once_by_default(seed: int) -> None:
    def body() -> list[Any]:
        actor = Counter.options(max_restarts=-1).remote()
        outcomes = []
        for step in range(6):
            outcomes += [outcome_of(ref) for ref in [actor.add.remote(f"{step}.{i}") for i in range(3)]]
            time.sleep(0.5)
        return outcomes

    plan = FaultPlan({"crash": 0.01, "delay": 0.2, "crash_prefix": 0.3}, budget=3)
    result, cluster = judged(body, breaking, seed=seed, faults=plan)
    assert all(isinstance(value, int) or value == UNAVAILABLE for value in result)
    begun = [line for line in printed(cluster) if "begin" in line]
    assert len(set(begun)) == len(begun)


@pytest.mark.parametrize("seed", SEEDS)
def test_g37_calls_with_retries_survive_every_crash_of_a_restartable_actor(seed: int) -> None:
    def body() -> list[Any]:
        actor = Counter.options(max_restarts=-1, max_task_retries=-1).remote()
        return [type(outcome_of(actor.add.remote(step, 0.1))).__name__ for step in range(10)]

    plan = FaultPlan({"crash": 0.02, "delay": 0.2, "crash_prefix": 0.3}, budget=4)
    result, _ = judged(body, breaking, seed=seed, faults=plan)
    assert result == ["int"] * 10


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_g37_a_call_is_made_so_often_and_no_more(retries: int) -> None:
    @minray.remote(max_restarts=-1)
    class Fragile:
        def work(self) -> None:
            print("work")
            os._exit(1)

    result, cluster = judged(lambda: outcome_of(Fragile.options(max_task_retries=retries).remote().work.remote()))
    assert result == UNAVAILABLE and printed(cluster) == ["work"] * (retries + 1)


def test_g37_retries_end_with_the_restarts() -> None:
    @minray.remote(max_restarts=2, max_task_retries=-1)
    class Fragile:
        def work(self) -> None:
            print("work")
            os._exit(1)

    result, cluster = judged(lambda: outcome_of(Fragile.remote().work.remote()))
    assert result == DEAD and printed(cluster) == ["work"] * 3


@minray.remote(max_restarts=-1, max_task_retries=1)
class Fragile:
    def plain(self) -> None:
        print("plain")
        os._exit(1)

    @minray.method(max_task_retries=2)
    def decorated(self) -> None:
        print("decorated")
        os._exit(1)


def test_g38_the_call_counts_before_the_method_before_the_actor_before_the_class() -> None:
    def body() -> list[Any]:
        by_class, by_actor = Fragile.remote(), Fragile.options(max_task_retries=3).remote()
        methods = [by_class.plain, by_actor.plain, by_actor.decorated, by_actor.decorated.options(max_task_retries=0)]
        outcomes = []
        for method in methods:
            outcomes.append(outcome_of(method.remote()))
            time.sleep(3)  # A call that is made while the actor is being restarted uses up a retry.
        return outcomes

    result, cluster = judged(body)
    counts = [printed(cluster).count("plain"), printed(cluster).count("decorated")]
    assert result == [UNAVAILABLE] * 4 and counts == [2 + 4, 3 + 1]


@minray.remote(max_restarts=-1, max_task_retries=3)
class Moody:
    """An actor whose second call crashes; the others raise."""

    def __init__(self) -> None:
        self.calls = 0

    @minray.method(retry_exceptions=[ValueError])
    def work(self) -> None:
        print("work")
        self.calls += 1
        if self.calls == 2:
            os._exit(1)
        raise ValueError("moody")

    @minray.method(retry_exceptions=[KeyError])
    def other(self) -> None:
        print("other")
        raise ValueError("not listed")


def test_g39_exceptions_and_crashes_share_one_budget() -> None:
    def body() -> list[Any]:
        actor = Moody.remote()
        return [outcome_of(actor.work.remote()), outcome_of(actor.other.remote())]

    result, cluster = judged(body)
    assert result[1] == "RayTaskError(ValueError)" and printed(cluster).count("other") == 1
    assert printed(cluster).count("work") == 4 and result[0] in (UNAVAILABLE, "RayTaskError(ValueError)")


@pytest.mark.parametrize("number", [2, 4, 6])
def test_g39a_a_call_that_finished_before_the_crash_is_not_run_again(number: int) -> None:
    """The process dies when it is about to answer for the so manieth time: the calls before have been answered."""

    def body() -> list[Any]:
        actor = Counter.options(max_restarts=1, max_task_retries=-1).remote()
        return [outcome_of(actor.add.remote(i)) for i in range(6)]

    result, cluster = judged(body, lambda cluster: cluster.when("PushActorTask reply").of("worker").kill(number))
    begun = [line for line in printed(cluster) if "begin" in line]
    assert begun.count(f"begin {number - 1}") == 2 and len(begun) == 7
    assert result == [*range(1, number), *range(1, 8 - number)]


@pytest.mark.parametrize("retries", [0, -1])
@pytest.mark.parametrize("seed", seeds(2))
def test_g39b_an_actor_that_cannot_be_reached_is_unavailable_and_comes_back(seed: int, retries: int) -> None:
    def strike(cluster: Cluster) -> None:
        cluster.after(2).partition("n1", "head", 45)
        cluster.after(2).do(cluster.when("PushActorTask").lose_with_channel)

    def body() -> list[Any]:
        actor = Counter.options(resources={"r": 1}, num_cpus=0, max_task_retries=retries).remote()
        outcomes = []
        for pause_s in (0, 2.5, 60):
            time.sleep(pause_s)
            outcomes.append(outcome_of(actor.add.remote()))
        return outcomes

    result, cluster = judged(body, strike, nodes=HERE_AND_THERE, seed=seed)
    assert result == ([1, 2, 3] if retries else [1, UNAVAILABLE, 2]) and printed(cluster).count("made 0") == 1


@pytest.mark.parametrize("again", [False, True])
def test_g58_g39b_what_is_in_an_answer_that_its_caller_has_given_up_is_let_go(again: bool) -> None:
    nodes: list[dict[str, Any]] = [{"num_cpus": 1}, {"num_cpus": 1, "resources": {"r": 1}}]

    @minray.remote(resources={"r": 1}, num_cpus=0)
    class Echo:
        def echo(self, values: list[Any], works_s: float = 0.0) -> list[Any]:
            time.sleep(works_s)
            return values

    def strike(cluster: Cluster) -> None:
        cluster.after(2).partition("n1", "head", 45)
        clusters.append(cluster)

    clusters: list[Cluster] = []

    def is_known(object_id: bytes) -> bool:
        (driver,) = (core for name, core in clusters[0].cores.items() if name.startswith("driver"))
        return driver.references.reference_of(object_id) is not None

    def body() -> list[Any]:
        actor = Echo.remote()
        outcomes = [outcome_of(actor.echo.remote(["before"]))]
        time.sleep(1.9)
        travels = minray.put("travels")
        object_id = travels._id
        lost = [actor.echo.remote([travels], 1.0)]
        del travels
        time.sleep(0.2)
        lost.append(actor.echo.remote([]))
        outcomes += map(outcome_of, lost)
        outcomes += [outcome_of(actor.echo.remote(["again"]))] if again else []
        time.sleep(60)
        assert not is_known(object_id), "the actor lives, and its answer is nobody's"
        return outcomes

    result, _ = judged(body, strike, nodes=nodes)
    assert result == [["before"], UNAVAILABLE, UNAVAILABLE, *([["again"]] if again else [])]


def test_ray_50814_a_new_incarnation_gets_numbers_from_one_from_every_caller() -> None:
    @minray.remote
    def call(actor: Any) -> list[Any]:
        return [outcome_of(actor.add.remote(f"t{i}", 0.2)) for i in range(12)]

    def body() -> list[Any]:
        actor = Counter.options(max_restarts=1, max_task_retries=-1).remote()
        other = call.remote(actor)
        own = [outcome_of(actor.add.remote(f"d{i}", 0.2)) for i in range(12)]
        return [len(own), len(minray.get(other)), all(isinstance(count, int) for count in own)]

    result, cluster = judged(body, crash_actor(2.0))
    assert result == [12, 12, True] and printed(cluster).count("made 0") == 2


# --- G53 to G55: concurrency


@minray.remote(max_concurrency=3, concurrency_groups={"io": 1})
class Meeting:
    """Counts who is inside at once."""

    def __init__(self) -> None:
        self.inside = self.most = 0

    def work(self) -> int:
        self.inside += 1
        self.most = max(self.most, self.inside)
        time.sleep(1)
        self.inside -= 1
        return self.most

    @minray.method(concurrency_group="io")
    def read(self) -> str:
        return "read"


@minray.remote
class AsyncMeeting:
    """A ``Meeting`` of coroutines."""

    def __init__(self) -> None:
        self.inside = self.most = 0
        self.loops: set[int] = set()

    async def work(self) -> int:
        self.loops.add(id(asyncio.get_running_loop()))
        self.inside += 1
        self.most = max(self.most, self.inside)
        await asyncio.sleep(1)
        self.inside -= 1
        return self.most if len(self.loops) == 1 else -1

    async def wait(self, box: list[Any]) -> Any:
        return await box[0]

    async def forever(self) -> None:
        try:
            await asyncio.sleep(1e6)
        finally:
            print("cancelled")


@pytest.mark.parametrize(("actor_class", "most"), [(Meeting, 3), (AsyncMeeting, 3), (AsyncMeeting, None)])
@pytest.mark.parametrize("seed", seeds(2))
def test_g53_g54_so_many_calls_run_at_once_and_no_more(actor_class: Any, most: int | None, seed: int) -> None:
    def body() -> list[int]:
        actor = actor_class.options(max_concurrency=most).remote()
        return list(minray.get([actor.work.remote() for _ in range(10)]))

    result, _ = judged(body, breaking, seed=seed, faults=QUIET)
    assert max(result) == (most or 10) and min(result) > 0


def test_g53_groups_do_not_wait_for_each_other() -> None:
    def body() -> list[Any]:
        actor = Meeting.options(max_concurrency=1).remote()
        works = [actor.work.remote() for _ in range(20)]
        ready, _ = minray.wait([*works, actor.read.remote()], num_returns=3)
        return [minray.get(ready[-1]), max(minray.get(works))]

    assert judged(body)[0] == ["read", 1]


@minray.remote(concurrency_groups={"io": 1})
class AsyncInGroups:
    """A coroutine that blocks, and one that is cancelled beside it."""

    async def block(self) -> int:
        time.sleep(10)
        return id(asyncio.get_running_loop())

    @minray.method(concurrency_group="io")
    async def work(self) -> int:
        await asyncio.sleep(1)
        return id(asyncio.get_running_loop())

    @minray.method(concurrency_group="io")
    async def forever(self) -> None:
        await asyncio.sleep(1e6)


@pytest.mark.parametrize("seed", SEEDS)
def test_g53_g54_a_group_of_coroutines_has_a_loop_of_its_own(seed: int) -> None:
    def body() -> list[Any]:
        actor = AsyncInGroups.remote()
        blocked, forever, *works = [method.remote() for method in (actor.block, actor.forever, actor.work, actor.work)]
        time.sleep(0.5)
        minray.cancel(forever)
        loops = minray.get(works)
        return [minray.wait([blocked], timeout=0)[0], loops[0] == loops[1] != minray.get(blocked), outcome_of(forever)]

    assert judged(body, breaking, seed=seed, faults=QUIET)[0] == [[], True, "RayTaskError(TaskCancelledError)"]


@pytest.mark.parametrize("seed", SEEDS)
def test_an_async_actor_awaits_references_that_are_made_later(seed: int) -> None:
    def body() -> list[Any]:
        actor = AsyncMeeting.remote()
        return list(minray.get([actor.wait.remote([slow.remote(i, 0.5)]) for i in range(5)]))

    assert judged(body, seed=seed, faults=QUIET)[0] == list(range(5))


def test_g55_at_most_so_many_calls_of_a_handle_are_pending() -> None:
    def body() -> list[Any]:
        actor = Counter.options(max_pending_calls=2).remote()
        refs = [actor.add.remote(i, 1.0) for i in range(2)]
        try:
            actor.add.remote()
            return []
        except PendingCallsLimitExceeded:
            return [*minray.get(refs), minray.get(actor.add.remote())]

    assert judged(body)[0] == [1, 2, 3]


# --- G40, G44 to G48: cancelling


@pytest.mark.parametrize("interfere", [breaking, replay_requests])
@pytest.mark.parametrize("seed", SEEDS)
def test_g40_g48_a_call_that_has_not_begun_never_begins_and_others_are_not_held_up(seed: int, interfere: Any) -> None:
    def body() -> list[Any]:
        actor = Counter.remote()
        running, late = actor.add.remote("running", 1.0), actor.add.remote(slow.remote("late", 50.0))
        queued, last = actor.add.remote("queued"), actor.add.remote("last")
        time.sleep(0.3)
        minray.cancel(late)
        minray.cancel(queued)
        return [outcome_of(ref) for ref in (running, late, queued, last)]

    result, cluster = judged(body, interfere, seed=seed, faults=QUIET)
    assert result in ([1, "TaskCancelledError", "TaskCancelledError", 2], [1, "TaskCancelledError", 2, 3])
    assert "begin late" not in printed(cluster)


def test_g44_force_is_refused_for_calls() -> None:
    def body() -> bool:
        actor = Counter.remote()
        ref = actor.add.remote("x", 1.0)
        try:
            minray.cancel(ref, force=True)
        except ValueError:
            return bool(minray.get(ref))
        return False

    assert judged(body)[0]


@minray.remote
class Watching:
    def run(self) -> str:
        for _ in range(100):
            if minray.get_runtime_context().is_canceled():
                print("saw it")
                return "saw it"
            time.sleep(0.1)
        return "did not"

    def parent(self, other: Any) -> Any:
        return outcome_of(other.run.remote())


def test_g45_a_running_plain_call_sees_a_flag_and_its_value_is_lost() -> None:
    def body() -> Any:
        actor = Watching.remote()
        ref = actor.run.remote()
        time.sleep(1)
        minray.cancel(ref)
        return outcome_of(ref)

    result, cluster = judged(body)
    assert result == INTERRUPTED and printed(cluster) == ["saw it"]


def test_g46_children_of_a_cancelled_call_are_cancelled_too() -> None:
    def body() -> Any:
        parent, child = Watching.remote(), Watching.remote()
        ref = parent.parent.remote(child)
        time.sleep(1)
        minray.cancel(ref)
        return outcome_of(ref)

    result, cluster = judged(body)
    assert result == INTERRUPTED and printed(cluster) == ["saw it"]


@pytest.mark.parametrize("seed", SEEDS)
def test_g45_g47_a_running_coroutine_is_cancelled_also_by_a_borrower(seed: int) -> None:
    @minray.remote
    def cancel(box: list[Any]) -> None:
        minray.cancel(box[0])
        minray.cancel(box[0])

    def body() -> list[Any]:
        actor = AsyncMeeting.remote()
        refs = [actor.forever.remote() for _ in range(2)]
        time.sleep(1)
        minray.cancel(refs[0])
        minray.get(cancel.remote([refs[1]]))
        return [*(outcome_of(ref) for ref in refs), outcome_of(actor.work.remote())]

    result, cluster = judged(body, breaking, seed=seed, faults=QUIET)
    assert result == [INTERRUPTED, INTERRUPTED, 1] and printed(cluster) == ["cancelled"] * 2


# --- G62: owners of results


def test_g62_results_and_arguments_that_an_actor_owns_die_with_it() -> None:
    @minray.remote
    class Owner:
        def make(self) -> list[Any]:
            return [minray.put("mine")]

    def body() -> list[Any]:
        owner, reader = Owner.remote(), Counter.remote()
        (ref,) = minray.get(owner.make.remote())
        minray.kill(owner)
        time.sleep(5)
        try:
            minray.get(ref)
            return []
        except RayError as error:
            return [type(error).__name__, outcome_of(reader.add.remote(ref)), outcome_of(reader.add.remote())]

    assert judged(body)[0] == ["OwnerDiedError", "RayTaskError(OwnerDiedError)", 1]
