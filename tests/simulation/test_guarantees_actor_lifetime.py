"""G24 to G35: how actors begin and end: by scope, with their owners, detached, killed, named, restarted.

``judged`` finds whatever is left of an actor when a program is over: its lease, its process's tables, its creator's.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import minray
from minray.actor import named_actors
from minray.api import calls as worker
from minray.core_worker.user_threads.actor_api import ActorApi
from minray.exceptions import ActorAlreadyExistsError, ActorDiedError
from minray.protocol import actor as protocol
from minray.simulation import FaultPlan, SimCluster
from tests.seeds import seeds
from tests.simulation import judge
from tests.simulation.actors import DEAD, UNAVAILABLE, Counter, deaths, gcs_states
from tests.simulation.interference import replay_requests, watch_sends
from tests.simulation.judge import judged, outcome_of, printed
from tests.simulation.roles import Cluster

SEEDS = seeds(2)
QUIET = FaultPlan({"delay": 0.2, "preempt": 0.1, "stall": 0.01})
WORDS = [
    f"{word}{reply}"
    for word in ("RegisterActor", "CreateActor", "EndActor", "ExitActor", "ReportActorExit", "PushActorTask", "KillActor")
    for reply in ("", " reply")
]


def breaking(cluster: Cluster) -> None:
    cluster.when(*WORDS).break_channels(at_most=8, one_in=3)


# --- G24: by scope


@minray.remote
def call(handles: list[Any], seconds: float = 0.5) -> int:
    time.sleep(seconds)
    count: int = minray.get(handles[0].add.remote("from a task"))
    return count


def by_dropping() -> int:
    actor = Counter.remote()
    ref = actor.add.remote("last", 1.0)
    del actor
    return int(minray.get(ref))


def at_once() -> int:
    Counter.remote()
    return 1


def inside_an_object() -> int:
    box = minray.put([Counter.remote()])
    actor = minray.get(box)[0]
    del box
    return int(minray.get(actor.add.remote()))


def inside_a_task() -> int:
    return int(minray.get(call.remote([Counter.remote()])))


def as_an_argument_itself() -> int:
    other = Counter.remote()
    return int(minray.get(other.call.remote(Counter.remote(), 1))[0])


def kept_by_another_actor() -> int:
    keeper, actor = Counter.remote(), Counter.remote()
    minray.get(keeper.keep.remote([actor]))
    refs = [actor.add.remote(), keeper.add.remote()]
    del actor, keeper
    return int(minray.get(refs[0]))


def returned_by_an_actor() -> int:
    parent = Counter.remote()
    child = minray.get(parent.make_child.remote())
    return int(minray.get(child.add.remote())) - 100


@pytest.mark.parametrize("interfere", [replay_requests, breaking])
@pytest.mark.parametrize(
    "body",
    [by_dropping, at_once, inside_an_object, inside_a_task, as_an_argument_itself, kept_by_another_actor,
     returned_by_an_actor],
)  # fmt: skip
def test_g24_an_actor_ends_with_its_last_handle_wherever_that_was(body: Any, interfere: Any) -> None:
    result, cluster = judged(body, interfere, faults=QUIET)
    assert result == 1 and set(gcs_states(cluster)) == {protocol.DEAD}


@pytest.mark.parametrize("seed", SEEDS)
def test_g24_calls_that_were_made_are_finished_first(seed: int) -> None:
    def body() -> list[int]:
        actor = Counter.remote()
        refs = [actor.add.remote(i, 0.3) for i in range(4)]
        del actor
        time.sleep(0.1 * seed)
        return list(minray.get(refs))

    result, cluster = judged(body, seed=seed, faults=QUIET)
    assert result == [1, 2, 3, 4] and deaths(cluster) == [protocol.OUT_OF_SCOPE]
    assert printed(cluster)[-1] == "shut down after 4", "G27"


@minray.remote(num_cpus=1)
class Employer:
    """With all CPUs for life, one of which its own task would need."""

    def employ(self) -> None:
        self.ref = call_nobody.remote()


@minray.remote(num_cpus=1)
def call_nobody() -> None:
    time.sleep(0.1)


def test_g24_an_actor_that_waits_for_its_own_tasks_before_it_ends_holds_nobody_up() -> None:
    def program() -> float:
        first = Employer.remote()
        minray.get(first.employ.remote())
        begun_at = time.time()
        del first
        second = Employer.remote()
        minray.get(second.__ray_ready__.remote())
        minray.kill(second)
        return time.time() - begun_at

    assert judged(program, nodes=[{"num_cpus": 1}])[0] < 5


def test_g24_the_handle_that_an_actor_has_of_itself_keeps_nothing_alive() -> None:
    def body() -> str:
        actor = Counter.remote()
        itself = minray.get(actor.own_handle.remote())
        del actor
        time.sleep(5)
        return str(outcome_of(itself.add.remote()))

    assert judged(body)[0] == DEAD


@pytest.mark.parametrize("pause_s", [0.0, 0.004, 1.0])
def test_g24_g110_an_actor_whose_handles_are_dropped_around_a_restart_of_the_gcs_ends(pause_s: float) -> None:
    def strike(cluster: Cluster) -> None:
        cluster.after(2 + pause_s).gcs.kill()
        cluster.after(7).gcs.start()

    def body() -> int:
        actor = Counter.remote()
        count: int = minray.get(actor.add.remote())
        time.sleep(2 - time.time() % 1)
        del actor
        time.sleep(20)
        return count

    result, cluster = judged(body, strike, storage="gcs.db", faults=QUIET)
    assert result == 1 and deaths(cluster) == [protocol.OUT_OF_SCOPE]


class Leaving:
    """Ends itself, and keeps that to itself."""

    def __init__(self, seconds: float | None = None) -> None:
        if seconds is not None:
            self.leaving = asyncio.get_running_loop().create_task(self.leave(seconds))

    async def leave(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        minray.actor.exit_actor()

    async def swallow(self) -> str:
        try:
            minray.actor.exit_actor()
        except Exception:
            return "gone on"

    async def call(self) -> int:
        return 1


Leaver = minray.remote(max_restarts=-1)(Leaving)


@pytest.mark.parametrize("seed", SEEDS)
def test_g34_c2_an_actor_that_keeps_its_exit_to_itself_ends_all_the_same(seed: int) -> None:
    def body() -> list[Any]:
        swallows, later, at_once = Leaver.remote(), Leaver.remote(2.0), Leaver.remote(0.0)
        first = [outcome_of(swallows.swallow.remote()), outcome_of(later.call.remote())]
        time.sleep(5)
        return [*first, *(outcome_of(actor.call.remote()) for actor in (swallows, later, at_once))]

    result, cluster = judged(body, seed=seed)
    assert result == [DEAD, 1, DEAD, DEAD, DEAD] and deaths(cluster) == [protocol.EXITED] * 3


@minray.remote(max_restarts=-1, concurrency_groups={"io": 2})
class Hanging(Leaving):
    """Has coroutines that never end; what they do when they are cancelled is told to ``Counter``s."""

    async def hang(self, told: Any) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await told.add.remote("cancelled")

    @minray.method(concurrency_group="io")
    async def hang_in_group(self, told: Any) -> None:
        await self.hang(told)

    async def wait(self, seconds: float) -> str:
        await asyncio.sleep(seconds)
        return "waited"


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("end", ["leave", "swallow", "__ray_terminate__"])
def test_c2_g28_coroutines_that_never_end_do_not_keep_an_actor_that_exits(end: str, seed: int) -> None:
    def body() -> list[Any]:
        actor, told = Hanging.remote(), Counter.remote()
        hanging = [actor.hang.remote(told), actor.hang_in_group.remote(told), actor.wait.remote(10.0)]
        minray.get(actor.call.remote())
        begun_at = time.time()
        ends = outcome_of(getattr(actor, end).remote(*([0.1] if end == "leave" else [])))
        later = outcome_of(actor.call.remote())
        assert time.time() - begun_at < 5, "later calls fail at once"
        outcomes = [outcome_of(ref) for ref in hanging]
        assert 30 < time.time() - begun_at < 35
        return [ends, later, *outcomes, minray.get(told.add.remote("asked"))]

    assert judged(body, seed=seed)[0] == [DEAD, DEAD, DEAD, DEAD, "waited", 3]


@minray.remote(max_concurrency=3)
class Blocked:
    def hang(self) -> None:
        while True:
            time.sleep(3600)

    def leave(self) -> None:
        minray.actor.exit_actor()


def test_c2_g28_threads_that_never_end_do_not_keep_an_actor_that_exits() -> None:
    def body() -> list[Any]:
        actor = Blocked.remote()
        hanging = actor.hang.remote()
        return [outcome_of(ref) for ref in (actor.leave.remote(), actor.leave.remote(), hanging)]

    assert judged(body)[0] == [DEAD] * 3


# --- G25, G26: owners, and detached ones


@minray.remote(max_retries=0)
def make(name: str, **options: Any) -> Any:
    actor = Counter.options(name=name, namespace="x", **options).remote()
    minray.get(actor.add.remote())
    judge.kept["handle"] = actor
    return actor


def owner_dies(**options: Any) -> list[Any]:
    actor = minray.get(make.remote("n", **options))
    before = outcome_of(actor.add.remote())
    time.sleep(5)
    after = outcome_of(actor.add.remote())
    judge.kept.clear()
    return [before, after]


@pytest.mark.parametrize("max_restarts", [0, -1])
def test_g25_an_actor_dies_with_its_owner_whatever_max_restarts_says(max_restarts: int) -> None:
    def body() -> list[Any]:
        return owner_dies(max_restarts=max_restarts)

    result, cluster = judged(body, lambda cluster: cluster.after(2.0).owner_of_actor().kill())
    assert result == [2, DEAD] and deaths(cluster) == [protocol.OWNER_DIED]


def test_g26_a_detached_actor_outlives_its_owner_and_is_restarted_without_it() -> None:
    def body() -> list[Any]:
        outcomes = owner_dies(lifetime="detached", max_restarts=1)
        actor = minray.get_actor("n", "x")
        minray.kill(actor, no_restart=False)
        time.sleep(5)
        outcomes.append(outcome_of(actor.add.remote()))
        minray.kill(actor)
        return [*outcomes, outcome_of(actor.add.remote())]

    result, cluster = judged(body, lambda cluster: cluster.after(2.0).owner_of_actor().kill())
    assert result == [2, 3, 1, DEAD] and deaths(cluster) == [protocol.KILLED]


def test_g26_a_detached_actor_outlives_its_driver() -> None:
    def first() -> int:
        actor = Counter.options(name="n", namespace="x", lifetime="detached").remote()
        return int(minray.get(actor.add.remote()))

    def second() -> list[Any]:
        actor = minray.get_actor("n", "x")
        counts = [outcome_of(actor.add.remote())]
        minray.kill(actor)
        return [*counts, outcome_of(actor.add.remote())]

    with Cluster([{"num_cpus": 2}] * 2, show_output=False) as cluster:
        assert cluster.run(first) == 1
        cluster.settle()
        assert cluster.run(second) == [2, DEAD]
        cluster.settle()
        assert judge.leftovers(cluster) == []


@minray.remote(num_cpus=0)
class Maker:
    """Has an actor of its own."""

    def make(self) -> int:
        self.actor = Counter.options(name="made", namespace="x", max_restarts=-1).remote()
        return int(minray.get(self.actor.add.remote()))

    def ask(self) -> Any:
        return outcome_of(self.actor.add.remote())


def test_g25_g26_what_a_detached_actor_has_made_lives_as_long_as_that() -> None:
    """Actors that the driver has made beside the detached one end with the driver."""

    def first() -> int:
        others = [Counter.options(name="other", namespace="x", max_restarts=-1).remote()]
        minray.get(others[0].add.remote())
        maker = Maker.options(name="maker", namespace="x", lifetime="detached").remote()
        return int(minray.get(maker.make.remote()))

    def second() -> list[Any]:
        maker = minray.get_actor("maker", "x")
        names = sorted(name for _, name in named_actors(True))
        asked = minray.get(maker.ask.remote())
        minray.kill(maker)
        return [names, asked]

    with Cluster([{"num_cpus": 2}] * 2, show_output=False) as cluster:
        assert cluster.run(first) == 1
        cluster.settle()
        assert cluster.run(second) == [["made", "maker"], 2]
        cluster.settle()
        assert judge.leftovers(cluster) == []


@pytest.mark.parametrize("restarts", [False, True])
def test_g26_g31_a_detached_actor_whose_maker_dies_before_its_arguments_are_there_leaves_its_name(restarts: bool) -> None:
    @minray.remote
    def never() -> None:
        time.sleep(1000)

    def first() -> None:
        Counter.options(name="n", namespace="x", lifetime="detached").remote(never.remote())
        time.sleep(1000)

    def second() -> list[Any]:
        time.sleep(2)
        actor = minray.get_actor("n", "x")
        time.sleep(100)
        outcome = outcome_of(actor.add.remote())
        another = Counter.options(name="n", namespace="x", lifetime="detached").remote()
        outcomes = [outcome, outcome_of(another.add.remote())]
        minray.kill(another)
        return outcomes

    def strike() -> None:
        if restarts:
            cluster.now.gcs.kill()
        cluster.process("driver/first").kill()
        if restarts:
            cluster.start_gcs()

    with Cluster([{"num_cpus": 2}] * 2, show_output=False, storage="gcs.db") as cluster:
        cluster.start_driver(first, "driver/first")
        cluster.after(5).do(strike)
        assert cluster.run(second) == [DEAD, 1]
        cluster.settle()
        assert judge.leftovers(cluster) == []


def test_g25_an_actor_dies_with_its_driver() -> None:
    def first() -> None:
        actor = Counter.options(name="n", namespace="x").remote()
        minray.get(actor.add.remote())
        time.sleep(1000)

    with Cluster([{"num_cpus": 2}] * 2, show_output=False) as cluster:
        cluster.start_driver(first, "driver/first")
        cluster.after(5).process("driver/first").kill()
        cluster.settle(60)
        assert judge.leftovers(cluster) == [] and deaths(cluster)[0] in (protocol.OWNER_DIED, protocol.JOB_FINISHED)


# --- G27 to G30: the ways to end


def test_g27_clean_up_runs_once_after_all_calls_and_not_on_kill() -> None:
    def body() -> list[Any]:
        gently, killed, exits = Counter.remote(), Counter.remote(), Counter.remote()
        refs = [gently.add.remote(), gently.__ray_terminate__.remote(), killed.add.remote(), exits.exit.remote()]
        outcomes = [outcome_of(ref) for ref in refs]
        minray.kill(killed)
        time.sleep(5)
        return outcomes

    result, cluster = judged(body)
    assert result == [1, DEAD, 1, DEAD]
    assert sorted(line for line in printed(cluster) if "shut" in line) == ["shut down after 0", "shut down after 1"]
    assert sorted(deaths(cluster)) == [protocol.KILLED, protocol.EXITED, protocol.EXITED]


@minray.remote
class Stubborn:
    def work(self) -> int:
        return 1

    def __ray_shutdown__(self) -> None:
        print("begins to end")
        time.sleep(1000)


def test_g28_an_actor_that_takes_too_long_to_end_is_killed() -> None:
    def body() -> float:
        actor = Stubborn.options(name="n", namespace="x").remote()
        minray.get(actor.work.remote())
        begun, actor_id, owner = time.time(), actor._actor_id, actor._minray_owner
        del actor
        while (info := ActorApi(worker.current_api()).get_info(actor_id, owner)) is None or info.state != protocol.DEAD:
            time.sleep(1)
        return time.time() - begun

    waited_s, cluster = judged(body)
    assert 30 <= waited_s <= 33 and printed(cluster) == ["begins to end"]


@minray.remote
def kill(handles: list[Any]) -> None:
    minray.kill(handles[0])


@pytest.mark.parametrize("seed", SEEDS)
def test_g29_g30_kill_interrupts_running_calls_from_any_handle(seed: int) -> None:
    def body() -> list[Any]:
        actor = Counter.remote()
        minray.get(actor.add.remote("first"))
        refs = [actor.add.remote("running", 100.0), actor.add.remote("queued")]
        time.sleep(1)
        minray.get(kill.remote([actor]))
        return [outcome_of(ref) for ref in [*refs, actor.add.remote("later")]]

    result, cluster = judged(body, seed=seed, faults=QUIET)
    assert result == [DEAD] * 3 and deaths(cluster) == [protocol.KILLED]
    assert printed(cluster) == ["made 0", "begin first", "end first", "begin running"]


@pytest.mark.parametrize("after_s", [0.0, 0.0005, 0.002, 0.005, 0.02])
@pytest.mark.parametrize("interfere", [replay_requests, breaking])
def test_g29_ray_17369_an_actor_may_be_killed_at_every_moment_of_its_creation(after_s: float, interfere: Any) -> None:
    """Between the request for its worker and the reply, too: nothing of it may be left."""

    def body() -> str:
        actor = Counter.remote()
        time.sleep(after_s)
        minray.kill(actor)
        return str(outcome_of(actor.add.remote()))

    result, cluster = judged(body, interfere, nodes=1, faults=FaultPlan({"delay": 0.5}))
    assert result == DEAD and gcs_states(cluster) == [protocol.DEAD]


def test_g29_kill_is_heard_although_the_actor_is_still_being_registered() -> None:
    """The gcs cannot store the actor for a while; a process with a handle may kill it meanwhile."""

    def body() -> str:
        time.sleep(2)
        actor = Counter.remote()
        minray.kill(actor)
        time.sleep(5)
        return str(outcome_of(actor.add.remote()))

    def strike(cluster: Cluster) -> None:
        cluster.after(1).node("head").set(disk_full=True)
        cluster.after(3).node("head").set(disk_full=False)

    result, cluster = judged(body, strike, storage="gcs.db")
    assert result == DEAD and gcs_states(cluster) == [protocol.DEAD]


@pytest.mark.parametrize("max_restarts", [1, -1])
def test_g29_kill_without_no_restart_begins_a_new_incarnation_once(max_restarts: int) -> None:
    def body() -> list[Any]:
        actor = Counter.options(max_restarts=max_restarts).remote()
        counts = [outcome_of(actor.add.remote()), outcome_of(actor.add.remote())]
        minray.kill(actor, no_restart=False)
        time.sleep(3)
        counts.append(outcome_of(actor.add.remote()))
        minray.kill(actor, no_restart=False)
        time.sleep(3)
        return [*counts, outcome_of(actor.add.remote())]

    result, cluster = judged(body, replay_requests)
    assert result == [1, 2, 1, 1 if max_restarts == -1 else DEAD]
    assert printed(cluster).count("made 0") == (3 if max_restarts == -1 else 2), "a repeated wish is one wish"


# --- G31 to G33: names


@pytest.mark.parametrize("seed", SEEDS)
def test_g31_a_name_is_taken_while_the_actor_lives_and_free_when_it_is_dead(seed: int) -> None:
    def body() -> list[Any]:
        actor = Counter.options(name="n", namespace="x").remote()
        said = []
        try:
            Counter.options(name="n", namespace="x").remote()
        except ActorAlreadyExistsError as error:
            said.append(isinstance(error, ValueError))
        other = Counter.options(name="n", namespace="y").remote()
        minray.kill(actor)
        again = Counter.options(name="n", namespace="x").remote(10)
        return [*said, minray.get(other.add.remote()), minray.get(again.add.remote())]

    assert judged(body, replay_requests, seed=seed, faults=QUIET)[0] == [True, 1, 11]


def test_g31_a_name_is_free_when_its_actor_went_out_of_scope() -> None:
    def body() -> int:
        actor = Counter.options(name="n").remote()
        minray.get(actor.add.remote())
        del actor
        while True:
            try:
                return int(minray.get(Counter.options(name="n").remote(5).add.remote()))
            except ActorAlreadyExistsError:
                time.sleep(0.1)

    assert judged(body)[0] == 6


# --- G33a: names of actors whose handles come and go


def obtain(name: str = "n", **options: Any) -> Any:
    return Counter.options(name=name, namespace="x", get_if_exists=True, **options).remote()


def mixed_up(cluster: SimCluster) -> None:
    breaking(cluster)
    replay_requests(cluster)


@pytest.mark.parametrize("options", [{}, {"max_restarts": -1}])
@pytest.mark.parametrize("faults", [FaultPlan(), FaultPlan({"delay": 0.3, "preempt": 0.2, "duplicate": 0.2})])
@pytest.mark.parametrize("seed", seeds(4))
def test_g33a_an_actor_that_is_let_go_and_obtained_again_answers(seed: int, faults: FaultPlan, options: Any) -> None:
    """Ray #44083: every other call raised ActorDiedError."""

    def body() -> int:
        return sum(minray.get(obtain(**options).get.remote()) + 1 for _ in range(30))

    assert judged(body, mixed_up if faults.rates else None, seed=seed, faults=faults)[0] == 30


@minray.remote
def obtain_and_add(times: int) -> int:
    return sum(minray.get(obtain().add.remote()) > 0 for _ in range(times))


@pytest.mark.parametrize("seed", seeds(4))
def test_g33a_processes_that_obtain_one_name_again_and_again_all_have_an_actor_that_lives(seed: int) -> None:
    """Each may own the actor that another one is about to obtain, and drop it meanwhile."""

    def body() -> int:
        refs = [obtain_and_add.remote(8) for _ in range(4)]
        return sum(minray.get(refs))

    assert judged(body, replay_requests, nodes=[{"num_cpus": 2}] * 2, seed=seed, faults=QUIET)[0] == 32


@pytest.mark.parametrize("seed", SEEDS)
def test_g33a_a_handle_that_was_found_by_name_keeps_its_actor(seed: int) -> None:
    def body() -> list[Any]:
        actor = Counter.options(name="n", namespace="x").remote()
        found = minray.get_actor("n", "x")
        del actor
        time.sleep(5)
        said: list[Any] = [minray.get(found.add.remote())]
        del found
        try:
            minray.get_actor("n", "x")
        except ValueError:
            said.append(None)
        return [*said, named_actors(all_namespaces=True)]

    result, cluster = judged(body, replay_requests, seed=seed, faults=QUIET)
    assert result == [1, None, []] and deaths(cluster) == [protocol.OUT_OF_SCOPE]


def test_g33a_another_driver_s_handle_keeps_an_actor_that_its_owner_has_dropped() -> None:
    def own() -> None:
        actor = Counter.options(name="n", namespace="x").remote()
        minray.get(actor.add.remote())
        time.sleep(5)
        del actor
        time.sleep(20)

    def find() -> int:
        time.sleep(3)
        found = minray.get_actor("n", "x")
        time.sleep(10)
        return int(minray.get(found.add.remote()))

    with SimCluster([{"num_cpus": 2}] * 2, 1, QUIET, show_output=False) as cluster:
        owner, finder = cluster.start_driver(own, "owner"), cluster.start_driver(find, "finder")
        assert cluster.wait_for(finder) == 2
        cluster.wait_for(owner)
        cluster.settle(60)
        assert judge.leftovers(cluster) == [] and deaths(cluster) == [protocol.OUT_OF_SCOPE]


@pytest.mark.parametrize("gets", [False, True])
def test_g33a_a_name_is_free_while_the_actor_that_had_it_still_ends(gets: bool) -> None:
    def body() -> tuple[int, float]:
        actor = Stubborn.options(name="n", namespace="x").remote()
        minray.get(actor.work.remote())
        begun = time.time()
        del actor
        again = Counter.options(name="n", namespace="x", get_if_exists=gets).remote(5)
        return minray.get(again.add.remote()), time.time() - begun

    count, seconds = judged(body)[0]
    assert count == 6 and seconds < 5


def test_g33a_an_actor_is_held_although_its_creator_has_not_heard_yet_that_it_is_registered() -> None:
    """A process that finds the actor asks the creator, which waits for the gcs."""

    def strike(cluster: SimCluster) -> None:
        def on_send(end: Any, message: Any, word: str) -> bool:
            if word != "RegisterActor reply":
                return True
            end.pipe.put(message, 2.0)
            return False

        watch_sends(cluster, on_send)

    def create() -> int:
        actor = Counter.options(name="n", namespace="x").remote()
        count = int(minray.get(actor.add.remote()))
        time.sleep(10)
        return count

    def find() -> int:
        time.sleep(1)
        return int(minray.get(minray.get_actor("n", "x").add.remote()))

    with SimCluster(seed=1, show_output=False) as cluster:
        strike(cluster)
        creator, finder = cluster.start_driver(create, "creator"), cluster.start_driver(find, "finder")
        assert sorted((cluster.wait_for(creator), cluster.wait_for(finder))) == [1, 2]


def test_g33a_the_name_of_an_actor_whose_owner_has_left_is_free() -> None:
    def own() -> None:
        minray.get(obtain().add.remote())

    def obtain_on() -> list[int]:
        return [minray.get(obtain().add.remote()) for _ in range(20) if time.sleep(0.01) is None]

    with SimCluster(seed=1, show_output=False) as cluster:
        owner = cluster.start_driver(own, "owner")
        cluster.wait_for(owner)
        other = cluster.start_driver(obtain_on, "other")
        assert cluster.wait_for(other) == [1] * 20


@pytest.mark.parametrize("pause_s", [0.0, 0.05, 0.2])
def test_g33a_g110_a_name_is_given_up_across_a_restart_of_the_gcs(pause_s: float) -> None:
    def strike(cluster: SimCluster) -> None:
        world = cluster.world.loop.world
        world.call_later(2 + pause_s, cluster.kill, "gcs")
        world.call_later(4, cluster.start_gcs)

    def body() -> list[int]:
        counts = []
        while time.time() % 100 < 10:
            counts.append(minray.get(obtain().add.remote()))
            time.sleep(0.05)
        return counts

    counts, _ = judged(body, strike, storage="gcs.db", faults=QUIET)
    assert len(counts) > 20 and set(counts) == {1}


@pytest.mark.parametrize("how", ["kill", "exit"])
def test_g33a_an_actor_that_was_ended_is_obtained_anew(how: str) -> None:
    def body() -> list[int]:
        counts = []
        for _ in range(5):
            actor = obtain(max_restarts=-1)
            counts.append(minray.get(actor.add.remote()))
            if how == "kill":
                minray.kill(actor)
            else:
                assert outcome_of(actor.exit.remote()) == DEAD
        return counts

    assert judged(body, replay_requests, faults=QUIET)[0] == [1] * 5


@minray.remote(max_retries=0)
def make_and_call() -> Any:
    return minray.get(Counter.options(name="n", namespace="x").remote().add.remote())


def test_g31_a_creator_that_is_cancelled_before_its_actor_is_registered_leaves_the_name_free() -> None:
    def body() -> Any:
        made = make_and_call.remote()
        time.sleep(0.3)
        minray.cancel(made)
        outcome = outcome_of(made)
        time.sleep(0.1)
        return outcome, minray.get(Counter.options(name="n", namespace="x").remote(5).add.remote())

    result, _ = judged(body, lambda cluster: cluster.when("RegisterActor reply").delay(1.0))
    assert result == (judge.INTERRUPTED, 6)


def test_g32_names_are_visible_in_their_namespace_only() -> None:
    def body() -> list[Any]:
        own, other = Counter.options(name="a").remote(), Counter.options(name="b", namespace="x").remote()
        found: list[Any] = []
        for name, namespace in (("a", None), ("b", None), ("b", "x"), ("a", "x"), ("c", None)):
            try:
                found.append(minray.get(minray.get_actor(name, namespace).add.remote()))
            except ValueError:
                found.append(None)
        found += [[name for _, name in named_actors(everywhere)] for everywhere in (False, True)]
        del own, other
        return found

    assert judged(body)[0] == [1, None, 1, None, None, ["a"], ["a", "b"]]


@pytest.mark.parametrize("seed", seeds(3))
def test_g33_concurrent_creators_get_one_and_the_same_actor(seed: int) -> None:
    def program() -> tuple[str, int]:
        actor = Counter.options(name="n", namespace="x", get_if_exists=True, lifetime="detached").remote()
        count = minray.get(actor.add.remote())
        return actor._actor_id.hex(), count

    def end() -> None:
        minray.kill(minray.get_actor("n", "x"))

    plan = FaultPlan({"delay": 0.5, "preempt": 0.2})
    with Cluster([{"num_cpus": 2}] * 2, seed, plan, show_output=False) as cluster:
        breaking(cluster)
        drivers = [cluster.start_driver(program, f"driver/{i}") for i in range(3)]
        results = [cluster.wait_for(driver) for driver in drivers]
        assert len({actor_id for actor_id, _ in results}) == 1 and sorted(count for _, count in results) == [1, 2, 3]
        cluster.run(end)
        cluster.settle(60)
        assert judge.leftovers(cluster) == []


@pytest.mark.parametrize("is_killed", [False, True])
def test_what_ended_before_it_was_registered_is_not_begun_by_another_gcs(is_killed: bool) -> None:
    """The gcs cannot store it at first, hears that it shall end, agrees, and dies; then it is to be registered again."""
    restarts = 0

    def strike(cluster: Cluster) -> None:
        head, world = cluster.world.nodes["head"], cluster.world.loop.world

        def on_send(end: Any, message: Any, word: str) -> bool:
            nonlocal restarts
            if word in ("RegisterActor", "EndActor", "KillActor"):
                head.disk_full = word == "RegisterActor" and not restarts
            if word in ("EndActor reply", "KillActor reply") and not restarts:
                restarts += 1
                world.call_later(0.01, cluster.kill, "gcs")
                world.call_later(0.1, cluster.start_gcs)
            return True

        watch_sends(cluster, on_send)

    def body() -> Any:
        actor = Counter.remote()
        time.sleep(0.1)
        if is_killed:
            minray.kill(actor)
            return outcome_of(actor.add.remote())
        del actor
        return time.sleep(10)

    assert judged(body, strike, storage="gcs.db")[0] == (DEAD if is_killed else None) and restarts == 1


# --- G34, G35: constructors


@minray.remote(max_restarts=3)
class Failing:
    def __init__(self, ref: Any = None) -> None:
        print("made")
        raise ValueError("cannot be made")

    def work(self) -> int:
        return 1


@pytest.mark.parametrize("seed", SEEDS)
def test_g34_a_constructor_that_raises_fails_every_call_and_is_not_repeated(seed: int) -> None:
    def body() -> list[Any]:
        actor = Failing.remote()
        said = []
        for _ in range(2):
            try:
                minray.get(actor.work.remote())
            except ActorDiedError as error:
                said.append((error.actor_init_failed, "cannot be made" in str(error)))
        return said

    result, cluster = judged(body, breaking, seed=seed, faults=QUIET)
    assert result == [(True, True)] * 2 and printed(cluster) == ["made"]


def test_g34_g62_a_constructor_that_has_lost_the_owner_of_its_argument_cannot_run_again() -> None:
    @minray.remote(num_cpus=0, max_restarts=1)
    class Made:
        def __init__(self, large: bytes) -> None:
            print("made of", len(large))

    def first() -> None:
        actor = Made.options(name="n", namespace="x", lifetime="detached").remote(minray.put(bytes(1_000_000)))
        minray.get(actor.__ray_ready__.remote())

    def second() -> list[Any]:
        actor = minray.get_actor("n", "x")
        minray.kill(actor, no_restart=False)
        time.sleep(5)
        try:
            minray.get(actor.__ray_ready__.remote())
        except ActorDiedError as error:
            return [error.actor_init_failed, "OwnerDiedError" in str(error)]
        return ["alive"]

    with Cluster([{"num_cpus": 2}], show_output=False) as cluster:
        cluster.run(first)
        cluster.settle()
        assert cluster.run(second) == [True, True] and printed(cluster) == ["made of 1000000"]
        cluster.settle()
        assert judge.leftovers(cluster) == []


def test_g12_g34_a_constructor_whose_argument_fails_is_not_run() -> None:
    @minray.remote
    def fail() -> None:
        raise ValueError("no argument")

    def body() -> Any:
        actor = Failing.remote(fail.remote())
        try:
            minray.get(actor.work.remote())
        except ActorDiedError as error:
            return error.actor_init_failed, "no argument" in str(error)

    result, cluster = judged(body)
    assert result == (True, True) and printed(cluster) == []


@pytest.mark.parametrize("max_restarts", [0, 1, 3])
def test_g35_the_constructor_runs_once_more_than_max_restarts_with_the_same_arguments(max_restarts: int) -> None:
    @minray.remote
    def start() -> int:
        return 40

    def body() -> list[Any]:
        actor = Counter.options(max_restarts=max_restarts).remote(start.remote())
        counts = []
        for _ in range(max_restarts + 2):
            counts.append(outcome_of(actor.add.remote()))
            minray.kill(actor, no_restart=False)
            time.sleep(3)
        return counts

    result, cluster = judged(body)
    assert result == [41] * (max_restarts + 1) + [DEAD]
    assert printed(cluster).count("made 40") == max_restarts + 1


def test_g35_a_constructor_that_crashes_its_process_is_repeated_within_max_restarts() -> None:
    @minray.remote(max_restarts=2)
    class Crashing:
        def __init__(self) -> None:
            print("made")
            import os

            os._exit(1)

        def work(self) -> int:
            return 1

    result, cluster = judged(lambda: outcome_of(Crashing.remote().work.remote()))
    assert result == DEAD and printed(cluster) == ["made"] * 3


@pytest.mark.parametrize("seed", SEEDS)
def test_g35_g109_an_actor_of_a_lost_node_is_restarted_elsewhere(seed: int) -> None:
    nodes: list[dict[str, Any]] = [{"num_cpus": 1}, {"num_cpus": 1, "resources": {"r": 1}}, {"resources": {"r": 1}}]

    def body() -> list[Any]:
        actor = Counter.options(max_restarts=1, max_task_retries=-1, resources={"r": 1}, num_cpus=0).remote()
        counts = [minray.get(actor.add.remote())]
        time.sleep(3)
        return [*counts, minray.get(actor.add.remote())]

    result, cluster = judged(
        body,
        lambda cluster: cluster.after(2).node_of_actor().lose(),
        nodes=nodes,
        seed=seed,
        faults=FaultPlan({"delay": 0.1}),
    )
    assert result == [1, 1] and printed(cluster).count("made 0") == 2


def test_g37_a_call_without_retries_of_a_lost_node_is_unavailable() -> None:
    nodes: list[dict[str, Any]] = [{"num_cpus": 1}, {"num_cpus": 1, "resources": {"r": 1}}, {"resources": {"r": 1}}]

    def body() -> Any:
        actor = Counter.options(max_restarts=1, resources={"r": 1}, num_cpus=0).remote()
        minray.get(actor.add.remote())
        return outcome_of(actor.add.remote("slow", 100.0))

    assert judged(body, lambda cluster: cluster.after(2).node_of_actor().lose(), nodes=nodes)[0] == UNAVAILABLE
