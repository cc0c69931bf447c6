"""The table of placement groups by itself."""

from __future__ import annotations

import msgspec
import pytest

from minray.common.state_table import InvalidTransition
from minray.gcs.placement_group_manager import (
    CREATED,
    PENDING,
    PREPARED,
    REMOVED,
    RESCHEDULING,
    PlacementGroupManager,
)
from minray.protocol.placement_group import Bundle, PlacementGroupInfo

N1, N2 = b"1" * 16, b"2" * 16
JOB = b"job1"


def group(name: str, *, called: str = "", bundles: int = 2, detached: bool = False) -> PlacementGroupInfo:
    group_id = name.encode().ljust(18, b"-")
    return PlacementGroupInfo(group_id, called, "", "PACK", [Bundle({"CPU": 1})] * bundles, "", JOB, detached)


def commit(groups: PlacementGroupManager, record: PlacementGroupInfo | None) -> PlacementGroupInfo:
    assert record is not None
    groups.on_committed(record)
    return record


def created(groups: PlacementGroupManager, info: PlacementGroupInfo, attempt: int = 1) -> PlacementGroupInfo:
    commit(groups, groups.create(info))
    commit(groups, groups.prepare(info.group_id, {0: N1, 1: N2}, attempt))
    return commit(groups, groups.commit(info.group_id, []))


def states(groups: PlacementGroupManager) -> list[str]:
    return [info.state for info in groups.all()]


def test_a_group_is_created_once_and_removed_once() -> None:
    groups = PlacementGroupManager(None)
    info = created(groups, group("a"))
    assert info.state == CREATED and info.nodes() == [N1, N2] and info.unplaced() == {}
    assert groups.create(group("a")) is None
    assert commit(groups, groups.remove(info.group_id)).state == REMOVED
    assert groups.remove(info.group_id) is None and groups.create(group("a")) is None
    assert groups.prepare(info.group_id, {}, 2) is None and groups.commit(info.group_id, []) is None


def test_a_decision_changes_nothing_until_it_is_committed() -> None:
    groups = PlacementGroupManager(None)
    assert groups.create(group("a")) is not None
    assert groups.all() == [] and not groups.has_waiting()


def test_g107_a_lost_node_leaves_the_other_bundles_where_they_are() -> None:
    groups = PlacementGroupManager(None)
    info = created(groups, group("a"))
    assert groups.on_node(N1) == [info.group_id]
    lost = commit(groups, groups.lose_node(info.group_id, N1))
    assert lost.state == RESCHEDULING and lost.nodes() == [N2] and lost.unplaced() == {0: {"CPU": 1}}
    assert groups.lose_node(info.group_id, N1) is None
    assert commit(groups, groups.lose_node(info.group_id, N2)).unplaced().keys() == {0, 1}
    commit(groups, groups.prepare(info.group_id, {0: N2, 1: N2}, 2))
    whole = commit(groups, groups.commit(info.group_id, []))
    assert whole.state == CREATED and whole.on_node(N2) == [(0, 2), (1, 2)]


def test_g107_groups_that_have_lost_bundles_come_first_then_the_oldest() -> None:
    groups = PlacementGroupManager(None)
    for name in ("a", "b"):
        commit(groups, groups.create(group(name)))
    for name in ("c", "d"):
        commit(groups, groups.lose_node(created(groups, group(name)).group_id, N1))
    assert [info.group_id[:1] for info in groups.waiting()] == [b"c", b"d", b"a", b"b"]


def test_a_bundle_that_a_node_does_not_have_any_more_is_placed_anew() -> None:
    groups = PlacementGroupManager(None)
    info = commit(groups, groups.create(group("a")))
    commit(groups, groups.prepare(info.group_id, {0: N1, 1: N2}, 7))
    record = groups.commit(info.group_id, [(1, 6)])
    assert record is not None and record.state == CREATED, "an older attempt's bundle is none of ours"
    assert commit(groups, groups.commit(info.group_id, [(1, 7)])).unplaced().keys() == {1}


def test_a_name_belongs_to_one_group_until_that_is_removed() -> None:
    groups = PlacementGroupManager(None)
    first = created(groups, group("a", called="x"))
    assert "already" in groups.refusal(group("b", called="x")) and groups.refusal(group("a", called="x")) == ""
    assert groups.refusal(msgspec.structs.replace(group("d", called="x"), namespace="elsewhere")) == ""
    assert groups.named("x", "") == first and groups.named("x", "elsewhere") is None
    commit(groups, groups.remove(first.group_id))
    assert groups.refusal(group("c", called="x")) == "" and groups.named("x", "") is None
    assert "already" in groups.refusal(group("b", called="x")), "its request has come again, and nobody would have it"


def test_g106_detached_groups_do_not_end_with_their_job() -> None:
    groups = PlacementGroupManager(None)
    created(groups, group("a"))
    created(groups, group("b", detached=True))
    assert groups.of_job(JOB) == [group("a").group_id] and groups.of_job(b"job2") == []


def test_removed_groups_are_forgotten_in_the_end_and_do_not_come_back() -> None:
    groups = PlacementGroupManager(None, max_removed_groups=1)
    for name in ("a", "b"):
        commit(groups, groups.create(group(name)))
        commit(groups, groups.remove(group(name).group_id))
    assert [info.group_id for info in groups.all()] == [group("b").group_id]
    assert groups.create(group("a")) is None, "a late repetition"


def test_g110_the_tables_of_a_gcs_that_ended_are_taken_over() -> None:
    before, after = PlacementGroupManager(None), PlacementGroupManager(None)
    for name in ("a", "b", "c"):
        created(before, group(name, called=name))
    commit(before, before.lose_node(group("b").group_id, N1))
    commit(before, before.remove(group("c").group_id))
    commit(before, before.create(group("d")))
    commit(before, before.create(group("e")))
    commit(before, before.prepare(group("e").group_id, {0: N1, 1: N1}, 5))
    after.load(before.all())
    assert after.all() == before.all() and states(after) == [CREATED, RESCHEDULING, REMOVED, PENDING, PREPARED]
    assert after.waiting() == before.waiting() and after.prepared() == [group("e").group_id]
    assert after.named("a", "") == before.named("a", "") and after.named("c", "") is None


def test_a_step_that_the_table_does_not_have_is_a_bug() -> None:
    groups = PlacementGroupManager(None)
    info = commit(groups, groups.create(group("a")))
    with pytest.raises(InvalidTransition, match="PENDING -> CREATED"):
        groups.on_committed(msgspec.structs.replace(info, state=CREATED))
