"""Placement groups on one node: handles and tables, work in bundles, removal, the errors of wrong groups (G104-G106)."""

from __future__ import annotations

import pickle
from typing import Any

import pytest

import minray as ray
from minray.exceptions import GetTimeoutError, RaySystemError, TaskPlacementGroupRemoved
from minray.util import placement_group, placement_group_table, remove_placement_group
from minray.util.placement_group import PlacementGroup, get_current_placement_group, get_placement_group
from minray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
from tests.helpers import wait_for_condition
from tests.real.conftest import all_resources_are_free
from tests.real.support import ON_RAY, Files, echo, hold, run_driver, words

pytestmark = pytest.mark.usefixtures("cluster")
INIT = {"num_gpus": 2, "namespace": "here"}


def inside(group: PlacementGroup | None, index: int = -1, captures: bool | None = None) -> dict[str, Any]:
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, index, captures)}


@ray.remote(num_cpus=0)
def whereabouts() -> tuple[Any, ...]:
    context = ray.get_runtime_context()
    group_id, resources = context.get_placement_group_id(), context.get_assigned_resources()
    return get_current_placement_group(), group_id, resources, ray.get_gpu_ids()


@ray.remote(num_cpus=0)
def parent(**options: Any) -> PlacementGroup | None:
    group: PlacementGroup | None = ray.get(whereabouts.options(**options).remote())[0]
    return group


@ray.remote(num_cpus=0)
class Resident:
    def group(self) -> PlacementGroup | None:
        return get_current_placement_group()


@ray.remote(num_cpus=0)
def parent_of_an_actor(**options: Any) -> PlacementGroup | None:
    group: PlacementGroup | None = ray.get(Resident.options(**options).remote().group.remote())
    return group


def test_g104_a_group_is_made_used_and_removed() -> None:
    group = placement_group([{"CPU": 1, "GPU": 1}, {"GPU": 0.5}], name="first")
    assert ray.get(group.ready(), timeout=30) == group and group.wait(30)
    assert group.bundle_specs == [{"CPU": 1, "GPU": 1}, {"GPU": 0.5}] and group.bundle_count == 2
    row = placement_group_table(group)
    assert row["state"] == "CREATED" and row["name"] == "first" and row["strategy"] == "PACK"
    assert set(row["bundles_to_node_id"].values()) == {ray.get_runtime_context().get_node_id()}
    assert placement_group_table()[group.id.hex()] == row and get_placement_group("first") == group
    whole = ray.get(whereabouts.options(num_gpus=1, num_cpus=1, **inside(group, 0)).remote())
    half = ray.get(whereabouts.options(num_gpus=0.5, **inside(group)).remote())
    assert whole[:3] == (group, group.id.hex(), {"CPU": 1.0, "GPU": 1.0})
    assert half[:3] == (group, group.id.hex(), {"GPU": 0.5})
    assert len(whole[3]) == len(half[3]) == 1
    remove_placement_group(group)
    assert placement_group_table(group)["state"] == "REMOVED"
    with pytest.raises(ValueError, match="first"):
        get_placement_group("first")
    wait_for_condition(all_resources_are_free)


def test_handles_travel_and_compare(files: Files) -> None:
    group = placement_group([{"CPU": 1}])
    copy = pickle.loads(pickle.dumps(group))
    assert copy == group and hash(copy) == hash(group) and copy != PlacementGroup.empty() and copy.bundle_count == 1
    assert ray.get(echo.remote(group)) == group
    assert ray.get(echo.remote([group.ready()]))[0] is not None
    assert PlacementGroup(group.id).bundle_specs == [{"CPU": 1.0}], "a handle without its bundles asks for them"
    remove_placement_group(group)


def test_a_reference_to_ready_can_be_waited_for_elsewhere() -> None:
    group = placement_group([{"CPU": 1}])
    assert ray.get(echo.remote(group.ready())) == group
    remove_placement_group(group)


def test_g104_a_group_without_room_waits(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    holder = hold.remote(started, release)
    started.wait()
    group, huge = placement_group([{"CPU": 2}]), placement_group([{"CPU": 3}])
    ready, late, never = group.ready(), echo.options(**inside(group)).remote(1), huge.ready()
    with pytest.raises(GetTimeoutError):
        ray.get(ready, timeout=0)
    assert not group.wait(0) and placement_group_table(group)["state"] == "PENDING"
    release.set()
    assert ray.get([holder, ready, late]) == [None, group, 1]
    for each in (group, huge):
        remove_placement_group(each)
    with pytest.raises(TaskPlacementGroupRemoved):
        ray.get(never)


@pytest.mark.skipif(ON_RAY, reason="asks why")
def test_a_group_without_room_says_for_what_it_waits(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    holder = hold.remote(started, release)
    started.wait()
    group = placement_group([{"CPU": 2}])
    ready, late = group.ready(), echo.options(**inside(group)).remote(1)
    wait_for_condition(lambda: "too much is in use: no node has room for bundle 0, {CPU: 2}" in ray.why(ready))
    assert "needs {CPU: 1} in any bundle of its placement group" in ray.why(late) and "PENDING" in ray.why(late)
    huge = placement_group([{"CPU": 3}])
    reference = huge.ready()
    assert "the cluster is too small" in ray.why(reference)
    release.set()
    ray.get([holder, ready, late])
    assert group.wait(0) and not huge.wait(0)
    for each in (group, huge):
        remove_placement_group(each)


def test_g106_removing_a_group_kills_what_runs_in_it_and_nothing_is_retried(files: Files) -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 1}])
    started, release = files.signal("started"), files.signal("release")
    running = hold.options(max_retries=-1, **inside(group, 0)).remote(started, release)
    waiting = hold.options(**inside(group, 0)).remote(started, release)
    beside = hold.options(num_cpus=0).remote(files.signal("beside"), release, "beside")
    started.wait()
    if not ON_RAY:
        wait_for_condition(lambda: "in use by" in ray.why(waiting))
    remove_placement_group(group)
    for ref in (running, waiting, echo.options(**inside(group)).remote(1)):
        with pytest.raises(TaskPlacementGroupRemoved):
            ray.get(ref, timeout=30)
    wait_for_condition(all_resources_are_free)
    release.set()
    assert ray.get(beside) == "beside"


@pytest.mark.parametrize("detached", [False, True])
def test_g106_a_group_of_another_driver_ends_with_it_unless_it_is_detached(node: Any, detached: bool) -> None:
    lifetime = "detached" if detached else None
    program = f"""
        from minray.util import placement_group
        ray.init(sys.argv[1], namespace="here", log_to_driver=False)
        group = placement_group([{{"CPU": 1}}], name="other", lifetime={lifetime!r})
        assert group.wait(30)
    """
    ended = run_driver(program, node.address_info["address"])
    assert ended.returncode == 0, ended.stderr
    if detached:
        other = get_placement_group("other")
        assert ray.get(echo.options(**inside(other)).remote(7)) == 7
        remove_placement_group(other)
    wait_for_condition(all_resources_are_free)
    with pytest.raises(ValueError, match="other"):
        get_placement_group("other")


def test_child_tasks_are_captured_if_the_strategy_says_so() -> None:
    group = placement_group([{"CPU": 1}])
    captures, leaves = inside(group, captures=True), inside(group)
    assert ray.get(parent.options(**captures).remote()) == group
    assert ray.get(parent.options(**leaves).remote()) is None
    assert ray.get(parent.options(**captures).remote(**inside(None))) is None
    assert ray.get(parent.options(**captures).remote(placement_group=None)) is None
    assert ray.get(parent_of_an_actor.options(**captures).remote()) == group
    assert ray.get(parent_of_an_actor.options(**captures).remote(placement_group=None)) is None
    assert ray.get(parent.options(**captures).remote(scheduling_strategy="SPREAD")) is None
    with pytest.raises(ValueError, match=words("cannot fit")):
        ray.get(parent.options(**captures).remote(num_gpus=1))
    remove_placement_group(group)


def test_the_deprecated_options_mean_the_same() -> None:
    group = placement_group([{"CPU": 1}, {"GPU": 1}])
    here = {"placement_group": group, "placement_group_bundle_index": 1}
    assert ray.get(whereabouts.options(num_gpus=1, **here).remote())[0] == group
    captures = parent.options(placement_group=group, placement_group_capture_child_tasks=True)
    assert ray.get(captures.remote()) == group
    with pytest.raises(ValueError, match="scheduling_strategy"):
        echo.options(placement_group=group, scheduling_strategy="SPREAD")
    remove_placement_group(group)


def test_a_strategy_and_a_deprecated_group_do_not_go_together_wherever_they_are_given() -> None:
    @ray.remote(scheduling_strategy="SPREAD")
    def spread() -> None: ...

    @ray.remote(scheduling_strategy="SPREAD")
    class Spread: ...

    group = placement_group([{"CPU": 1}])
    for decorated in (spread, Spread):
        with pytest.raises(ValueError, match="scheduling_strategy"):
            decorated.options(placement_group=group).remote()
    remove_placement_group(group)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([],), "must not be an empty list"),
        (({"CPU": 1},), "must be a list"),
        (([{}],), "empty dictionary"),
        (([{"CPU": 0, "GPU": 0}],), "only 0 values"),
        (([{"CPU": "1"}],), "from resource name to amount"),
        (([{"CPU": -1}],), "negative"),
        (([{"CPU": 1}], "TIGHT"), "Supported strategies"),
        (([{"CPU": 1}], "PACK", "", "for ever"), "'detached'"),
    ],
)
def test_wrong_groups_are_value_errors(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=words(message)):
        placement_group(*arguments)


def test_no_group_is_never_ready() -> None:
    with pytest.raises(ValueError, match="empty"):
        PlacementGroup.empty().ready()


def test_wrong_uses_are_value_errors() -> None:
    group = placement_group([{"CPU": 1}], name="mine")
    with pytest.raises((ValueError, RaySystemError), match="already"):
        placement_group([{"CPU": 1}], name="mine")
    with pytest.raises(ValueError, match="bundle index 1 is invalid"):
        echo.options(**inside(group, 1)).remote(1)
    with pytest.raises(ValueError, match="cannot fit into any bundle"):
        echo.options(num_cpus=2, **inside(group)).remote(1)
    with pytest.raises(ValueError, match="must be -1"):
        echo.options(**inside(None, 0)).remote(1)
    with pytest.raises(ValueError, match="non-empty"):
        get_placement_group("")
    with pytest.raises(TypeError):
        get_placement_group(5)  # type: ignore[arg-type]
    with pytest.raises((TypeError, AssertionError)):
        echo.options(**inside("mine")).remote(1)  # type: ignore[arg-type]
    remove_placement_group(group)


def test_bundles_may_want_labels() -> None:
    group = placement_group([{"CPU": 1}, {"CPU": 1}], bundle_label_selector=[{"zone": "!b"}, {}])
    assert group.wait(30)
    remove_placement_group(group)
    nowhere = placement_group([{"CPU": 1}], bundle_label_selector=[{"zone": "b"}])
    assert not nowhere.wait(0.2)
    remove_placement_group(nowhere)


WRONG_LABELS: list[Any] = [[], [{}], [{}, {}, {}], {"zone": "a"}, ["zone", "zone"], [{}, {"zone": 1}], [{}, {"zone": "a b"}]]


@pytest.mark.parametrize("wrong", WRONG_LABELS)
def test_wrong_labels_of_bundles_are_value_errors(wrong: Any) -> None:
    with pytest.raises(ValueError, match="label"):
        placement_group([{"CPU": 1}, {"CPU": 1}], bundle_label_selector=wrong)
