"""Requests of one process about placement groups, their order, and the callbacks that wait for answers.

``Asker`` is a core worker of which only the placement groups are real. ``peers`` has the requests to the gcs.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.submission.placement_groups import ASK_AGAIN_S, PlacementGroups
from minray.exceptions import LocalRayletDiedError, TaskPlacementGroupRemoved
from minray.platform.base import RemoteFailure
from minray.protocol.base import DONE
from minray.protocol.gcs import JobConfig, JobInfo
from minray.protocol.placement_group import (
    Bundle,
    CreatePlacementGroup,
    CreatePlacementGroupReply,
    GetPlacementGroup,
    PlacementGroupInfo,
    PlacementGroupReply,
    RemovePlacementGroup,
    WaitPlacementGroup,
)
from tests.core_worker.parts import JOB, OWN, object_id
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.core_worker.process_record import process_record
from tests.rpc.fake_network import pass_time, run, turns

BUNDLES = [{"CPU": 10_000}, {"CPU": 20_000}]
READY = object_id("ready")
FULL = RemoteFailure("storage-failed", "no space left")


class Asker:
    """See the head of this file."""

    def __init__(self) -> None:
        self.peers = RecordingPeers()
        self.process = process_record(self.peers)
        context = JobContext(OWN.worker_id)
        context.enter(JobInfo(JOB, OWN, 1, JobConfig([], "", "here", ""), 0.0))
        self.actor_id = b""
        self.owned: list[bytes] = []
        self.values: dict[bytes, Any] = {}
        """Values and exceptions that ``begin_ready`` has brought."""
        tables: Any = self
        self.groups = PlacementGroups(self.process, context, tables, tables, lambda: self.actor_id)

    def add_owned(self, object_id: bytes) -> None:
        self.owned.append(object_id)

    def on_value(self, object_id: bytes, value: StoredObject) -> None:
        assert object_id not in self.values
        self.values[object_id] = value

    put_error: Any = on_value

    def describe(self, name: str = "") -> PlacementGroupInfo:
        return self.groups.describe([Bundle(bundle) for bundle in BUNDLES], "PACK", name, detached=False)

    def create(self) -> PlacementGroupInfo:
        """As a user thread makes one without a name."""
        group = self.describe()
        self.groups.announce(group)
        self.groups.create(group)
        return group

    def begin(self, question: Any) -> asyncio.Task[Any]:
        return asyncio.get_running_loop().create_task(question, name="question")


def tell(story: Any) -> None:
    async def whole() -> None:
        await story(Asker())

    run(whole)


def about(group: PlacementGroupInfo, state: str, explanation: str = "") -> PlacementGroupReply:
    bundles = [Bundle(bundle, b"n" * 16 if state == "CREATED" else b"") for bundle in BUNDLES]
    info = PlacementGroupInfo(group.group_id, group.name, "here", "PACK", bundles, state, JOB, False)
    return PlacementGroupReply(info, explanation)


GONE = PlacementGroupReply(None, "")


def test_what_is_done_with_a_group_is_told_one_after_the_other() -> None:
    async def story(asker: Asker) -> None:
        group = asker.create()
        asker.groups.remove(group.group_id)
        creation = asker.peers.take(CreatePlacementGroup)
        assert creation.request.group is group
        creation.answer(CreatePlacementGroupReply())
        asker.peers.take(RemovePlacementGroup).answer(DONE)
        assert asker.peers.asked == []
        asker.groups.remove(group.group_id)
        asker.peers.take(RemovePlacementGroup)

    tell(story)


def test_all_who_wait_for_what_is_told_of_a_group_go_on() -> None:
    async def story(asker: Asker) -> None:
        group = asker.create()
        waiters = [asker.begin(asker.groups.settle(group.group_id)) for _ in range(2)]
        await turns()
        assert not any(waiter.done() for waiter in waiters)
        asker.peers.take(CreatePlacementGroup).answer(CreatePlacementGroupReply())
        await turns()
        assert all(waiter.done() for waiter in waiters)

    tell(story)


def test_others_may_hear_of_a_group_when_the_gcs_has() -> None:
    async def story(asker: Asker) -> None:
        group = asker.create()
        assert not asker.groups.is_known(group.group_id)
        asker.peers.take(CreatePlacementGroup).fail(FULL)
        await pass_time(ASK_AGAIN_S)
        assert not asker.groups.is_known(group.group_id)
        asker.groups.remove(group.group_id)
        asker.peers.take(CreatePlacementGroup).answer(CreatePlacementGroupReply())
        assert asker.groups.is_known(group.group_id), "although its end is not told yet"

    tell(story)


@pytest.mark.parametrize("question", ["create_named", "named"])
def test_before_names_are_used_the_gcs_knows_what_this_process_has_done(question: str) -> None:
    """A name is free as soon as its group was removed here."""

    async def story(asker: Asker) -> None:
        asker.groups.remove(b"one")
        asker.groups.remove(b"two")
        argument = asker.describe("name") if question == "create_named" else "name"
        asking = asker.begin(getattr(asker.groups, question)(argument))
        await turns()
        one, two = asker.peers.take_all(RemovePlacementGroup)
        assert asker.peers.asked == []
        two.fail(FULL)
        one.answer(DONE)
        await pass_time(ASK_AGAIN_S)
        two = asker.peers.take(RemovePlacementGroup)
        two.answer(DONE)
        await turns()
        if question == "named":
            request = asker.peers.take(GetPlacementGroup)
            assert (request.request.name, request.request.namespace) == ("name", "here")
            request.answer(GONE)
            assert await asking is None
        else:
            asker.peers.take(CreatePlacementGroup).answer(CreatePlacementGroupReply("the name is taken"))
            with pytest.raises(ValueError, match="the name is taken"):
                await asking

    tell(story)


def test_the_gcs_is_asked_about_a_group_when_it_knows_it() -> None:
    async def story(asker: Asker) -> None:
        group = asker.create()
        asking = asker.begin(asker.groups.get_group(group.group_id))
        await turns()
        asker.peers.take(CreatePlacementGroup).answer(CreatePlacementGroupReply())
        await turns()
        asker.peers.take(GetPlacementGroup).answer(about(group, "PENDING"))
        assert (await asking).state == "PENDING"

    tell(story)


def test_what_is_in_a_group_is_asked_once_unless_it_was_made_here() -> None:
    async def story(asker: Asker) -> None:
        group = asker.create()
        assert await asker.groups.bundles_of(group.group_id) == BUNDLES
        asker.peers.take(CreatePlacementGroup)
        foreign = asker.begin(asker.groups.bundles_of(b"foreign"))
        await turns()
        asker.peers.take(GetPlacementGroup).answer(about(group, "PENDING"))
        assert await foreign == BUNDLES
        assert await asker.groups.bundles_of(b"foreign") == BUNDLES
        forgotten = asker.begin(asker.groups.bundles_of(b"forgotten"))
        await turns()
        asker.peers.take(GetPlacementGroup).answer(GONE)
        assert await forgotten == []

    tell(story)


def test_of_groups_that_were_removed_or_are_too_many_it_is_forgotten_what_is_in_them() -> None:
    async def story(asker: Asker) -> None:
        asker.groups._max_known = 2
        group = asker.create()
        assert list(asker.groups._known) == [group.group_id]
        asker.groups.remove(group.group_id)
        assert asker.groups._known == {}
        asker.peers.take(CreatePlacementGroup).answer(CreatePlacementGroupReply())
        asker.peers.take(RemovePlacementGroup).answer(DONE)
        for name in (b"1", b"2", b"3"):
            asking = asker.begin(asker.groups.bundles_of(name))
            await turns()
            asker.peers.take(GetPlacementGroup).answer(about(group, "PENDING"))
            assert await asking == BUNDLES
        assert list(asker.groups._known) == [b"2", b"3"]

    tell(story)


def test_g33a_only_a_group_that_was_made_here_without_a_name_has_none_for_certain() -> None:
    async def story(asker: Asker) -> None:
        nameless = asker.describe()
        asker.groups.announce(nameless)
        assert not asker.groups.may_have_name(nameless.group_id), "a user thread has not posted it yet"
        asker.groups.create(nameless)
        asker.peers.take(CreatePlacementGroup).answer(CreatePlacementGroupReply(""))
        assert asker.groups.is_known(nameless.group_id) and not asker.groups.may_have_name(nameless.group_id)
        asker.groups.remove(nameless.group_id)
        named = asker.describe("name")
        creating = asker.begin(asker.groups.create_named(named))
        asker.peers.take(RemovePlacementGroup).answer(DONE)
        await turns()
        asker.peers.take(CreatePlacementGroup).answer(CreatePlacementGroupReply(""))
        await creating
        assert asker.groups.may_have_name(named.group_id) and asker.groups.may_have_name(b"foreign")

    tell(story)


def test_a_named_group_is_known_with_its_bundles() -> None:
    async def story(asker: Asker) -> None:
        group = asker.describe("name")
        asking = asker.begin(asker.groups.create_named(group))
        await turns()
        asker.peers.take(CreatePlacementGroup).answer(CreatePlacementGroupReply())
        await asking
        assert await asker.groups.bundles_of(group.group_id) == BUNDLES

    tell(story)


@pytest.mark.parametrize(("state", "is_there"), [("CREATED", True), ("REMOVED", False), ("", False)])
def test_who_waits_asks_until_it_is_decided(state: str, is_there: bool) -> None:
    """A gcs that answers badly is asked again after a pause."""

    async def story(asker: Asker) -> None:
        group = asker.create()
        waiting = asker.begin(asker.groups.wait_for_group(group.group_id, None))
        await turns()
        asker.peers.take(CreatePlacementGroup).answer(CreatePlacementGroupReply())
        await turns()
        asker.peers.take(WaitPlacementGroup).answer(about(group, "PENDING"))
        await turns()
        asker.peers.take(WaitPlacementGroup).fail(RemoteFailure("internal", "oops"))
        await turns()
        assert asker.peers.asked == []
        await pass_time(ASK_AGAIN_S)
        asker.peers.take(WaitPlacementGroup).answer(about(group, state) if state else GONE)
        assert await waiting is is_there

    tell(story)


def test_who_waits_no_longer_than_so_long_hears_that_it_is_not_there() -> None:
    async def story(asker: Asker) -> None:
        group = asker.create()
        assert await asker.groups.wait_for_group(group.group_id, 0.1) is False
        asker.peers.take(CreatePlacementGroup).answer(CreatePlacementGroupReply())
        await turns()
        assert asker.peers.asked == []

    tell(story)


@pytest.mark.parametrize(("state", "is_there"), [("CREATED", True), ("PENDING", False)])
def test_who_does_not_wait_is_told_how_it_is_now(state: str, is_there: bool) -> None:
    async def story(asker: Asker) -> None:
        group = asker.create()
        asker.peers.take(CreatePlacementGroup).answer(CreatePlacementGroupReply())
        looking = asker.begin(asker.groups.wait_for_group(group.group_id, 0))
        await turns()
        asker.peers.take(GetPlacementGroup).answer(about(group, state))
        assert await looking is is_there

    tell(story)


# --- ready


def begin_ready(asker: Asker) -> PlacementGroupInfo:
    group = asker.create()
    asker.peers.take(CreatePlacementGroup).answer(CreatePlacementGroupReply())
    asker.groups.begin_ready(READY, group.group_id, StoredObject(b"handle", (), False, ()))
    assert asker.owned == [READY] and asker.groups.group_awaited_by(READY) == group.group_id
    return group


def test_ready_has_its_value_when_the_group_is_there() -> None:
    async def story(asker: Asker) -> None:
        group = begin_ready(asker)
        await turns()
        asker.peers.take(WaitPlacementGroup).answer(about(group, "CREATED"))
        await turns()
        assert asker.values[READY].data == b"handle"
        assert asker.groups.group_awaited_by(READY) is None

    tell(story)


@pytest.mark.parametrize("is_forgotten", [False, True])
def test_ready_is_an_error_when_the_group_was_removed(is_forgotten: bool) -> None:
    async def story(asker: Asker) -> None:
        group = begin_ready(asker)
        await turns()
        asker.peers.take(WaitPlacementGroup).answer(GONE if is_forgotten else about(group, "REMOVED"))
        await turns()
        assert isinstance(asker.values[READY], TaskPlacementGroupRemoved)
        assert asker.groups.group_awaited_by(READY) is None

    tell(story)


def test_ready_is_an_error_when_the_gcs_is_gone() -> None:
    async def story(asker: Asker) -> None:
        begin_ready(asker)
        await turns()
        asker.peers.take(WaitPlacementGroup).fail(unreachable())
        await turns()
        assert isinstance(asker.values[READY], LocalRayletDiedError)
        assert asker.groups.group_awaited_by(READY) is None

    tell(story)


def test_ready_is_an_error_at_once_in_a_process_that_ends() -> None:
    async def story(asker: Asker) -> None:
        asker.process.is_exiting = True
        asker.groups.begin_ready(READY, b"group", StoredObject(b"handle", (), False, ()))
        assert isinstance(asker.values[READY], LocalRayletDiedError)
        await turns()
        assert asker.peers.asked == [] and asker.groups.group_awaited_by(READY) is None

    tell(story)


@pytest.mark.parametrize("ends", [False, True])
def test_nobody_waits_for_what_nobody_refers_to_or_when_all_ends(ends: bool) -> None:
    async def story(asker: Asker) -> None:
        begin_ready(asker)
        await turns()
        asker.peers.take(WaitPlacementGroup)
        if ends:
            asker.groups.close()
        else:
            asker.groups.forget([object_id("other"), READY])
        await turns()
        assert asker.groups.group_awaited_by(READY) is None
        assert len(asyncio.all_tasks()) == 1, "the story itself"
        assert asker.values == {} and asker.peers.asked == []

    tell(story)


# --- people want to know


def explain(asker: Asker, group_id: bytes) -> asyncio.Task[tuple[str, bool]]:
    return asker.begin(asker.groups.explain(group_id))


def test_a_group_is_explained_when_the_gcs_knows_it() -> None:
    async def story(asker: Asker) -> None:
        group = asker.create()
        explaining = explain(asker, group.group_id)
        await turns()
        asker.peers.take(CreatePlacementGroup).answer(CreatePlacementGroupReply())
        await turns()
        asker.peers.take(GetPlacementGroup).answer(about(group, "PENDING", "too much is in use"))
        text, is_there = await explaining
        assert text.endswith(", PACK) is PENDING, 0 of its 2 bundles have a place: too much is in use") and not is_there

    tell(story)


@pytest.mark.parametrize("state", ["CREATED", "REMOVED"])
def test_of_a_group_that_is_decided_there_is_no_more_to_say(state: str) -> None:
    async def story(asker: Asker) -> None:
        explaining = explain(asker, b"group" * 4)
        await turns()
        asker.peers.take(GetPlacementGroup).answer(about(asker.describe("name"), state, "nothing"))
        text, is_there = await explaining
        assert text.startswith("placement group 'name' (") and text.endswith(f"is {state}")
        assert is_there == (state == "CREATED")

    tell(story)


def test_a_group_that_is_not_known_or_cannot_be_asked_about_is_called_so() -> None:
    async def story(asker: Asker) -> None:
        explaining = explain(asker, b"group" * 4)
        await turns()
        asker.peers.take(GetPlacementGroup).answer(GONE)
        assert (await explaining)[0].endswith("does not exist (any more)")
        explaining = explain(asker, b"group" * 4)
        await turns()
        asker.peers.take(GetPlacementGroup).fail(unreachable())
        assert "the gcs cannot be asked" in (await explaining)[0]

    tell(story)
