"""G104 to G107: groups are made as wholes, where their strategy wants them, and end with all that runs in them."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import pytest

import minray
from minray.common.ids import PlacementGroupID
from minray.simulation import FaultPlan
from minray.util import get_placement_group, placement_group, placement_group_table, remove_placement_group
from minray.util.placement_group import PlacementGroup, get_current_placement_group
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy, PlacementGroupSchedulingStrategy
from tests.seeds import seeds
from tests.simulation.interference import replay_requests, watch_sends
from tests.simulation.judge import Account, judged, kept, leftovers, outcome_of
from tests.simulation.roles import Cluster

WORDS = [
    "CreatePlacementGroup",
    "RemovePlacementGroup",
    "WaitPlacementGroup",
    "PrepareBundles",
    "CommitBundles",
    "ReturnBundles",
    "RemoveBundles",
    "ReleaseUnusedBundles",
]
BOTH_WAYS = [*WORDS, *[f"{word} reply" for word in WORDS]]


@minray.remote(max_retries=-1)
def where(seconds: float = 0.0) -> str:
    time.sleep(seconds)
    return minray.get_runtime_context().get_node_id()


@minray.remote
def hold(seconds: float) -> str:
    time.sleep(seconds)
    return "held"


def inside(group: PlacementGroup, index: int = -1) -> PlacementGroupSchedulingStrategy:
    return PlacementGroupSchedulingStrategy(group, index)


def state_of(group: PlacementGroup) -> str:
    return str(placement_group_table(group)["state"])


def nodes_of(group: PlacementGroup) -> list[str]:
    return list(placement_group_table(group)["bundles_to_node_id"].values())


def until(condition: Any) -> None:
    while not condition():
        time.sleep(0.05)


def breaking(cluster: Cluster) -> None:
    cluster.when(*BOTH_WAYS).break_channels(at_most=8, one_in=3)


# --- G104, G105


@pytest.mark.parametrize("seed", seeds(2))
def test_g105_bundles_get_nodes_with_their_labels_also_after_a_death(seed: int) -> None:
    zones = ["", "a", "b", "b"]
    nodes = [{"num_cpus": 4, "labels": {"zone": zone} if zone else {}} for zone in zones]

    def body() -> list[Any]:
        names = {node["NodeID"]: node["Labels"].get("zone") for node in minray.nodes()}
        group = placement_group([{"CPU": 1}] * 3, bundle_label_selector=[{"zone": "b"}, {"zone": "!b"}, {"zone": "in(a,b)"}])
        assert minray.get(group.ready()) == group
        before = [names[node_id] for node_id in nodes_of(group)]
        ran = [names[outcome_of(where.options(scheduling_strategy=inside(group, 0)).remote())]]
        first = nodes_of(group)[0]
        kept["node"] = next(node["NodeName"] for node in minray.nodes() if node["NodeID"] == first)
        kept["go"] = True
        until(lambda: nodes_of(group)[0] not in ("", first))
        impossible = placement_group([{"CPU": 1}], bundle_label_selector=[{"zone": "c"}])
        assert not impossible.wait(5)
        told = [before, ran, names[nodes_of(group)[0]], minray.why(impossible.ready())]
        for made in (group, impossible):
            remove_placement_group(made)
        return told

    def strike(cluster: Cluster) -> None:
        cluster.told("go").do(lambda: cluster.node(kept["node"]).lose())

    (before, ran, after, why), _ = judged(body, strike, seed=seed, nodes=nodes)
    assert before[0] == "b" and before[1] != "b" and before[2] in ("a", "b") and ran == ["b"] and after == "b"
    assert "no node has room for bundle 0, {CPU: 1, node with labels {zone: in(c)}: 1}" in why


@pytest.mark.parametrize("interfere", [breaking, replay_requests])
@pytest.mark.parametrize("seed", seeds(3))
def test_g104_g105_every_strategy_keeps_its_promise(seed: int, interfere: Any) -> None:
    accounts = []

    def strike(cluster: Cluster) -> None:
        interfere(cluster)
        accounts.append(Account(cluster))

    def body() -> list[Any]:
        counts = []
        for strategy in ("STRICT_PACK", "PACK", "SPREAD", "STRICT_SPREAD"):
            group = placement_group([{"CPU": 1}] * 3, strategy=strategy)
            assert minray.get(group.ready()) == group
            ran = [outcome_of(where.options(scheduling_strategy=inside(group, index)).remote()) for index in range(3)]
            assert ran == nodes_of(group)
            counts.append(sorted(Counter(ran).values()))
            remove_placement_group(group)
            until(lambda: minray.available_resources() == minray.cluster_resources())
        return counts

    nodes = [{"num_cpus": 3}] * 3
    assert judged(body, strike, seed=seed, nodes=nodes, faults=FaultPlan.quiet())[0] == [[3], [3], [1, 1, 1], [1, 1, 1]]
    assert accounts[0].problems == []


def test_g105_strict_pack_takes_one_node_and_strict_spread_another_for_each_bundle() -> None:
    def body() -> list[list[int]]:
        taken = []
        for strategy in ("STRICT_PACK", "STRICT_SPREAD"):
            group = placement_group([{"CPU": 1}] * 2, strategy=strategy)
            assert group.wait(10)
            taken.append(nodes_of(group))
            remove_placement_group(group)
        return [len(set(nodes)) for nodes in taken]

    assert judged(body, nodes=2)[0] == [1, 2]


@pytest.mark.parametrize("strategy", ["STRICT_PACK", "STRICT_SPREAD"])
def test_g105_a_strict_group_waits_for_the_node_that_it_needs(strategy: str) -> None:
    bundles = [{"CPU": 2.0}, {"CPU": 2.0}] if strategy == "STRICT_PACK" else [{"CPU": 1.0}] * 3

    def body() -> list[Any]:
        group = placement_group(bundles, strategy=strategy)
        ready, late = group.ready(), where.options(scheduling_strategy=inside(group)).remote()
        before = [state_of(group), outcome_of(ready, timeout=20), minray.available_resources()["CPU"]]
        reasons = [strategy in minray.why(late), "is PENDING" in minray.why(ready)]
        after = [outcome_of(ready) == group, outcome_of(late) in nodes_of(group), state_of(group)]
        remove_placement_group(group)
        return [*before, *reasons, *after]

    expected = ["PENDING", "GetTimeoutError", 4.0, True, True, True, True, "CREATED"]
    assert judged(body, lambda cluster: cluster.after(60).node("large").join(num_cpus=4))[0] == expected


@pytest.mark.parametrize("seed", seeds(4))
def test_g104_a_group_that_one_node_refuses_holds_nothing_on_the_others(seed: int) -> None:
    """The gcs hears late what is in use: it asks nodes that have no room any more."""

    def body() -> list[Any]:
        here = minray.get_runtime_context().get_node_id()
        there = NodeAffinitySchedulingStrategy(here, soft=False)
        until(lambda: minray.available_resources().get("CPU") == 4)
        busy = hold.options(num_cpus=2, scheduling_strategy=there).remote(30)
        time.sleep(0.01)
        group = placement_group([{"CPU": 2}, {"CPU": 2}], strategy="STRICT_SPREAD")
        time.sleep(10)
        states = [state_of(group), minray.available_resources()["CPU"]]
        states += [outcome_of(busy), group.wait(60), state_of(group)]
        remove_placement_group(group)
        return states

    def strike(cluster: Cluster) -> None:
        if seed:
            cluster.when(*BOTH_WAYS).break_channels(at_most=8)

    result, cluster = judged(body, strike, seed=seed)
    assert result == ["PENDING", 2.0, "held", True, "CREATED"]
    assert any(event.details[0] == "ReturnBundles" for event in cluster.trace.events if event.details)


@pytest.mark.parametrize("word", ["PrepareBundles", "PrepareBundles reply", "CommitBundles", "CommitBundles reply"])
@pytest.mark.parametrize("victim", ["raylet", "gcs"])
def test_g104_g107_a_death_in_the_middle_of_an_attempt(victim: str, word: str) -> None:
    """Whichever message it is that its sender or its receiver does not survive, the group is there in the end."""
    struck: list[str] = []

    def strike(cluster: Cluster) -> None:
        def look(end: Any, message: Any, sent: str) -> bool:
            ends = (end.pipe.source.name, end.pipe.target.name)
            found = [name for name in ends if name.startswith(victim) and name != "raylet/head"]
            if sent == word and found and not struck:
                struck.extend(found)
                cluster.after(0).process(found[0]).kill()
                if victim == "gcs":
                    cluster.after(5).gcs.start()
            return True

        watch_sends(cluster, look)

    def body() -> list[Any]:
        group = placement_group([{"CPU": 2}] * 2, strategy="STRICT_SPREAD")
        created = [group.wait(300), len(set(nodes_of(group)))]
        ran = {outcome_of(where.options(scheduling_strategy=inside(group, index)).remote()) for index in range(2)}
        alive = {node["NodeID"] for node in minray.nodes() if node["Alive"]}
        remove_placement_group(group)
        return [*created, len(ran), ran <= alive]

    result, _ = judged(body, strike, nodes=4, storage="gcs.db")
    assert result == [True, 2, 2, True] and len(struck) == 1


# --- G106


def test_g106_removing_a_group_ends_the_work_in_it_and_gives_its_resources_back() -> None:
    def body() -> list[Any]:
        group = placement_group([{"CPU": 2}])
        running = hold.options(scheduling_strategy=inside(group)).remote(1000)
        time.sleep(2)
        remove_placement_group(group)
        return [outcome_of(running), outcome_of(hold.options(num_cpus=2).remote(1), timeout=10)]

    assert judged(body, nodes=1)[0] == ["TaskPlacementGroupRemoved", "held"]


@pytest.mark.parametrize("interfere", [breaking, replay_requests])
@pytest.mark.parametrize("seed", seeds(2))
def test_g106_removing_a_group_ends_what_runs_and_what_waits_in_it(seed: int, interfere: Any) -> None:
    def body() -> list[Any]:
        group = placement_group([{"CPU": 1}] * 2, strategy="SPREAD")
        other = placement_group([{"CPU": 1}])
        running = [hold.options(scheduling_strategy=inside(group, index)).remote(1000) for index in (0, 1)]
        waiting = [hold.options(scheduling_strategy=inside(group)).remote(1000) for _ in range(2)]
        beside = hold.options(scheduling_strategy=inside(other)).remote(5)
        group.wait()
        time.sleep(1)
        remove_placement_group(group)
        remove_placement_group(group)
        late = hold.options(scheduling_strategy=inside(group)).remote(1)
        outcomes = [outcome_of(ref) for ref in [*running, *waiting, late, group.ready(), beside]]
        remove_placement_group(other)
        until(lambda: minray.available_resources() == minray.cluster_resources())
        return [*outcomes, state_of(group), group.wait(1)]

    removed = ["TaskPlacementGroupRemoved"]
    result, _ = judged(body, interfere, seed=seed, faults=FaultPlan.quiet())
    assert result == [*removed * 6, "held", "REMOVED", False]


@pytest.mark.parametrize("how", ["its end", "its death"])
def test_g106_a_group_ends_with_its_job_unless_it_is_detached(how: str) -> None:
    def creator() -> None:
        bound = placement_group([{"CPU": 1}])
        detached = placement_group([{"CPU": 1}], name="stays", lifetime="detached")
        minray.get([bound.ready(), detached.ready()])
        if how == "its death":
            time.sleep(1000)

    def survivor() -> list[Any]:
        until(lambda: Counter(row["state"] for row in placement_group_table().values()) == {"CREATED": 1, "REMOVED": 1})
        until(lambda: minray.available_resources()["CPU"] == 3)
        stays = get_placement_group("stays")
        ran = outcome_of(hold.options(scheduling_strategy=inside(stays)).remote(1))
        remove_placement_group(stays)
        return [ran]

    with Cluster([{"num_cpus": 2}] * 2, show_output=False) as cluster:
        cluster.start_driver(creator, "driver/x", namespace="ours")
        if how == "its death":
            cluster.after(20).process("driver/x").kill()
        assert cluster.wait_for(cluster.start_driver(survivor, "driver/y", namespace="ours")) == ["held"]
        cluster.settle(100)
        assert leftovers(cluster) == []


def test_g32_jobs_without_a_namespace_do_not_see_each_others_groups() -> None:
    """Unless one tells the other what its namespace is called."""

    def creator() -> str:
        placement_group([{"CPU": 1}], name="n", lifetime="detached").wait(10)
        Keeper.options(name="keeper", lifetime="detached").remote()
        return minray.get_runtime_context().namespace

    def other() -> list[Any]:
        with pytest.raises(ValueError):
            get_placement_group("n")
        keeper = minray.get_actor("keeper", first)
        return [placement_group([{"CPU": 1}], name="n").wait(10), outcome_of(keeper.make.remote())]

    with Cluster([{"num_cpus": 3}], show_output=False) as cluster:
        first = cluster.run(creator)
        assert cluster.run(other) == [True, None]


@minray.remote(num_cpus=0)
class Keeper:
    """Makes a group, and later runs something in it."""

    def make(self) -> None:
        self.group = placement_group([{"CPU": 1}], name="kept")
        minray.get(self.group.ready())

    def use(self) -> str:
        return str(minray.get(hold.options(scheduling_strategy=inside(self.group)).remote(1)))


@pytest.mark.parametrize("restarts", [False, True])
def test_g106_g26_a_group_of_a_detached_actor_ends_with_it_and_not_before(restarts: bool) -> None:
    def creator() -> None:
        keeper = Keeper.options(name="keeper", lifetime="detached").remote()
        minray.get(keeper.make.remote())

    def survivor() -> list[Any]:
        time.sleep(30)
        keeper = minray.get_actor("keeper")
        used = outcome_of(keeper.use.remote())
        state = state_of(get_placement_group("kept"))
        minray.kill(keeper)
        until(lambda: [row["state"] for row in placement_group_table().values()] == ["REMOVED"])
        return [used, state]

    with Cluster([{"num_cpus": 2}] * 2, show_output=False, storage="gcs.db") as cluster:
        cluster.wait_for(cluster.start_driver(creator, "driver/x", namespace="ours"))
        if restarts:
            cluster.after(10).gcs.restart()
        assert cluster.wait_for(cluster.start_driver(survivor, "driver/y", namespace="ours")) == ["held", "CREATED"]
        cluster.settle(100)
        assert leftovers(cluster) == []


def test_g106_a_group_of_a_driver_outlives_the_last_detached_actor_of_its_job() -> None:
    def body() -> list[Any]:
        keeper, group = Keeper.options(name="keeper", lifetime="detached").remote(), placement_group([{"CPU": 1}])
        minray.get(keeper.__ray_ready__.remote())
        minray.kill(keeper)
        time.sleep(1)
        ran = outcome_of(hold.options(scheduling_strategy=inside(group)).remote(1))
        remove_placement_group(group)
        return [ran]

    assert judged(body)[0] == ["held"]


def test_g106_a_group_that_still_waits_can_be_removed() -> None:
    def body() -> list[Any]:
        group = placement_group([{"CPU": 100}])
        ready, task = group.ready(), hold.options(scheduling_strategy=inside(group), num_cpus=100).remote(1)
        time.sleep(1)
        remove_placement_group(group)
        return [outcome_of(ready), outcome_of(task)]

    assert judged(body)[0] == ["TaskPlacementGroupRemoved"] * 2


# --- G107


@pytest.mark.parametrize("seed", seeds(3))
def test_g107_lost_bundles_move_while_work_on_the_others_goes_on(seed: int) -> None:
    def strike(cluster: Cluster) -> None:
        breaking(cluster)
        cluster.after(20 + 0.01 * seed).node("n1").lose()

    def body() -> list[Any]:
        group = placement_group([{"CPU": 2}] * 3, strategy="STRICT_SPREAD")
        group.wait(60)
        before = nodes_of(group)
        refs = [where.options(scheduling_strategy=inside(group, index), num_cpus=2).remote(40) for index in range(3)]
        ran = [outcome_of(ref) for ref in refs]
        after = nodes_of(group)
        remove_placement_group(group)
        moved = [index for index in range(3) if before[index] != after[index]]
        return [len(moved), [ran[index] == before[index] for index in range(3) if index not in moved], ran == after]

    assert judged(body, strike, nodes=4, seed=seed)[0] == [1, [True, True], True]


def test_g107_a_group_may_stay_partial_and_comes_before_those_that_wait_for_their_first_place() -> None:
    def strike(cluster: Cluster) -> None:
        cluster.after(20).node("n1").lose()
        cluster.after(200).node("n2").join(num_cpus=2)

    def body() -> list[Any]:
        first = placement_group([{"CPU": 2}] * 2, strategy="SPREAD")
        first.wait(10)
        second = placement_group([{"CPU": 2}])
        time.sleep(150)
        partial = [state_of(first), nodes_of(first).count("")]
        index = 1 - nodes_of(first).index("")
        partial.append(outcome_of(hold.options(scheduling_strategy=inside(first, index)).remote(1)))
        waits = [first.wait(100), state_of(first), state_of(second)]
        remove_placement_group(first)
        waits += [second.wait(10)]
        remove_placement_group(second)
        return partial + waits

    assert judged(body, strike)[0] == ["RESCHEDULING", 1, "held", True, "CREATED", "PENDING", True]


# --- G110, G112


@pytest.mark.parametrize("seed", seeds(4))
def test_g110_groups_survive_a_restart_of_the_gcs(seed: int) -> None:
    def strike(cluster: Cluster) -> None:
        for start in (2, 12, 22):
            cluster.after(start + 0.003 * seed).gcs.kill()
            cluster.after(start + 4).gcs.start()

    def body() -> list[Any]:
        kept = placement_group([{"CPU": 1}] * 2, strategy="SPREAD", name="kept")
        held = hold.options(scheduling_strategy=inside(kept, 0)).remote(40)
        for _ in range(40):
            group = placement_group([{"CPU": 1}, {"CPU": 1}], strategy="STRICT_SPREAD")
            assert group.wait(60)
            remove_placement_group(group)
            time.sleep(0.5)
        result = [state_of(kept), outcome_of(held), get_placement_group("kept") == kept]
        remove_placement_group(kept)
        return result

    plan = FaultPlan({"delay": 0.1, "unsynced": 0.5, "crash_prefix": 0.5})
    result, _ = judged(body, strike, seed=seed, faults=plan, storage="gcs.db")
    assert result == ["CREATED", "held", True]


@pytest.mark.parametrize("seed", seeds(6))
def test_g112_groups_of_any_kind_under_faults_of_any_kind(seed: int) -> None:
    def body() -> list[Any]:
        for number in range(8):
            strategy = ("PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD")[number % 4]
            group = placement_group([{"CPU": 1}] * (1 + number % 2), strategy=strategy)
            refs = [where.options(scheduling_strategy=inside(group), num_cpus=cpus).remote(0.2) for cpus in (1, 0, 0.5)]
            if number % 3:
                for ref in refs:
                    minray.get(ref)
            remove_placement_group(group)
            for ref in refs:
                outcome_of(ref)
        return []

    def strike(cluster: Cluster) -> None:
        cluster.after(1 + seed).gcs.restart(2)

    judged(body, strike, seed=seed, nodes=3, faults=FaultPlan.swarm(seed), storage="gcs.db")


# --- Child tasks


@minray.remote
def group_of_child(explicit: bool) -> list[Any]:
    context = minray.get_runtime_context()
    child = current.options(scheduling_strategy="DEFAULT") if explicit else current
    return [context.should_capture_child_tasks_in_placement_group, minray.get(child.remote())]


@minray.remote(num_cpus=0)
def current() -> PlacementGroup | None:
    return get_current_placement_group()


@pytest.mark.parametrize(
    ("captures", "explicit", "expected"), [(True, False, True), (True, True, False), (False, False, False)]
)
def test_children_of_a_task_in_a_group_run_there_if_it_captures_them(
    captures: bool, explicit: bool, expected: bool
) -> None:
    def body() -> list[Any]:
        group = placement_group([{"CPU": 1}])
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=captures)
        result = minray.get(group_of_child.options(scheduling_strategy=strategy).remote(explicit))
        remove_placement_group(group)
        return [result[0], result[1] == (group if expected else None)]

    assert judged(body)[0] == [captures, True]


# --- Actors


@minray.remote(num_cpus=1)
class Resident:
    """An actor that lives in a group."""

    def where(self) -> list[Any]:
        return [get_current_placement_group(), minray.get_runtime_context().get_node_id()]

    def child(self) -> PlacementGroup | None:
        group: PlacementGroup | None = minray.get(current.remote())
        return group


def test_actors_live_in_bundles_and_their_tasks_with_them_if_captured() -> None:
    def body() -> list[Any]:
        group = placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
        actors = [
            Resident.options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, index, bool(index))).remote()
            for index in range(2)
        ]
        places = minray.get([actor.where.remote() for actor in actors])
        children = minray.get([actor.child.remote() for actor in actors])
        homes = [place[1] for place in places] == nodes_of(group)
        for actor in actors:
            minray.kill(actor)
        remove_placement_group(group)
        return [homes, [place[0] == group for place in places], [child == group for child in children]]

    assert judged(body)[0] == [True, [True, True], [False, True]]


@pytest.mark.parametrize("restarts", [0, -1])
def test_g106_removing_a_group_kills_its_actors_also_those_that_may_restart(restarts: int) -> None:
    def body() -> list[Any]:
        group = placement_group([{"CPU": 1}])
        strategy = inside(group)
        lives, waits = (Resident.options(scheduling_strategy=strategy, max_restarts=restarts).remote() for _ in range(2))
        minray.get(lives.where.remote())
        waiting = waits.where.remote()
        time.sleep(1)
        remove_placement_group(group)
        outcomes = [outcome_of(waiting)]
        for actor in (lives, waits, Resident.options(scheduling_strategy=strategy).remote()):
            until(lambda actor=actor: outcome_of(actor.where.remote()) not in ("ActorUnavailableError", None))
            outcomes.append(outcome_of(actor.where.remote()))
        return outcomes

    gone = "ActorPlacementGroupRemoved"
    assert judged(body)[0] == [gone, gone if restarts else "ActorDiedError", gone, gone]


# --- the gcs hears of it while the program goes on


@minray.remote(num_cpus=0)
def awaits(group: PlacementGroup) -> bool:
    return group.wait(60)


@pytest.mark.parametrize("word", ["CreatePlacementGroup", "CreatePlacementGroup reply"])
@pytest.mark.parametrize("seed", seeds(3))
def test_g104_a_new_group_is_there_for_everybody_who_can_hear_of_it(seed: int, word: str) -> None:
    """Messages about it are lost with their channels, and nobody takes it for unknown, or removed."""

    def body() -> list[Any]:
        groups = [placement_group([{"CPU": 1}]) for _ in range(5)]
        states = [
            groups[0].wait(60),
            outcome_of(awaits.remote(groups[1])),
            outcome_of(where.options(scheduling_strategy=inside(groups[2])).remote()) in nodes_of(groups[2]),
            state_of(groups[3]) in ("PENDING", "PREPARED", "CREATED"),
            outcome_of(groups[4].ready()) == groups[4],
            len(placement_group_table()),
        ]
        for group in groups:
            remove_placement_group(group)
        return states + [state_of(group) for group in groups]

    strike = lambda cluster: cluster.when(word).break_channels(at_most=5, one_in=1)  # noqa: E731
    assert judged(body, strike, seed=seed, nodes=[{"num_cpus": 5}])[0] == [True] * 5 + [5] + ["REMOVED"] * 5


def test_g104_making_and_removing_many_groups_waits_for_nobody() -> None:
    """Not even while the gcs stands still; what was made and removed meanwhile is gone as a whole."""
    clusters = []

    def body() -> list[Any]:
        loop = clusters[0].world.loop
        loop.call_soon_threadsafe(loop.stall, clusters[0].processes["gcs"], 3.0)
        time.sleep(0.1)
        began = time.monotonic()
        for _ in range(20):
            remove_placement_group(placement_group([{"CPU": 1}]))
        took = [time.monotonic() - began < 0.1]
        first = placement_group([{"CPU": 1}], name="again")
        remove_placement_group(first)
        second = placement_group([{"CPU": 1}], name="again")
        took.append(time.monotonic() - began > 2.5)
        remove_placement_group(second)
        until(lambda: minray.available_resources() == minray.cluster_resources())
        return took + [{group["state"] for group in placement_group_table().values()}]

    assert judged(body, clusters.append, nodes=[{"num_cpus": 1}] * 2)[0] == [True, True, {"REMOVED"}]


@minray.remote(num_cpus=0)
def remove_by_name(name: str) -> None:
    remove_placement_group(get_placement_group(name))


@pytest.mark.parametrize("seed", seeds(3))
def test_g33a_who_hears_that_a_group_was_removed_finds_its_name_free(seed: int) -> None:
    def body() -> int:
        for _ in range(20):
            group = placement_group([{"CPU": 1}], name="again")
            minray.get([remove_by_name.remote("again")])
            with pytest.raises(ValueError, match="Failed to look up"):
                get_placement_group("again")
            assert state_of(group) == "REMOVED"
        return 20

    plan = FaultPlan({"delay": 0.5, "preempt": 0.2})
    assert judged(body, replay_requests, seed=seed, faults=plan)[0] == 20


@pytest.mark.parametrize("seed", seeds(3))
def test_g106_what_a_driver_removes_last_is_removed(seed: int) -> None:
    """The driver's farewell comes after the removal, also if that has to be said again."""
    with Cluster([{"num_cpus": 1}], seed) as cluster:
        cluster.run(lambda: placement_group([{"CPU": 1}], name="kept", lifetime="detached").wait(), 60)
        cluster.when("RemovePlacementGroup", "RemovePlacementGroup reply").break_channels(at_most=1, one_in=1)

        def removes() -> None:
            (group,) = placement_group_table().values()
            remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(group["placement_group_id"]))))

        cluster.run(removes)
        cluster.settle()
        assert cluster.run(minray.available_resources)["CPU"] == 1
