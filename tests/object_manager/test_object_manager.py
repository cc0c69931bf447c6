"""A node that sends objects to others and fetches from them, between one store and pretended neighbours."""

from __future__ import annotations

import asyncio

import pytest

from minray.object_manager.push_manager import PushManager
from minray.object_store.allocator import ALIGNMENT
from minray.object_store.create_request_queue import Creation
from minray.object_store.object_entry import ObjectEntry, Spilled, SpillFile
from minray.protocol.core_worker import INLINED, LOST, NOT_MADE, UNKNOWN, LocationChange
from minray.protocol.object_store import (
    CHANGED,
    FREED,
    NO_ROOM,
    NOT_HERE,
    OWNER_DIED,
    PINNED,
    TASK_ARGUMENTS,
    WAIT,
    Pinned,
    Wanted,
)
from tests.object_manager.node import BLOCKS, HERE, OWNER, A, Node, Served, raylet, story
from tests.object_store.copies import WORKERS, object_id
from tests.rpc.fake_network import pass_time

B, C = object_id("b"), object_id("c")


def now() -> float:
    return asyncio.get_running_loop().time()


def busy(node: Node) -> Served:
    """The node sends as much as it may, until what is returned is let go of."""
    node.manager.pushes = PushManager(limit_bytes=ALIGNMENT)
    node.put(B)
    return node.serve(key=B)


@story
async def test_a_chunk_is_sent_as_it_is_and_keeps_its_copy_in_place(node: Node) -> None:
    entry = node.put(blocks=2, value=7)
    served = node.serve(start=1)
    assert served.replies == [bytes([7]) * ALIGNMENT]
    assert entry.in_use()
    served.let_go()
    assert not entry.in_use() and node.manager.pushes.bytes_in_flight == 0


@story
async def test_s5_a_chunk_whose_copy_has_gone_and_comes_again_is_not_sent_before_it_has_come(node: Node) -> None:
    """The copy has made room for others before the chunk's turn came, and is being fetched again."""
    others = busy(node)
    node.put(value=7, is_primary=False)
    served = node.serve()
    assert served.replies == []
    node.store.table.evict(A)
    node.want()
    await node.owner_says("x", turn=1)
    (chunk,) = node.take()
    others.let_go()
    await pass_time(0)
    assert served.replies == [None]
    chunk.answer(7)
    assert node.serve().replies == [bytes([7]) * ALIGNMENT]


@story
async def test_a_chunk_that_is_freed_before_its_turn_is_not_sent_and_those_behind_it_are(node: Node) -> None:
    others = busy(node)
    node.put(value=7)
    freed, behind = node.serve(), node.serve(key=B)
    node.store.table.free_object(A, 0)
    others.let_go()
    await pass_time(0)
    assert freed.replies == [None] and behind.replies == [bytes([1]) * ALIGNMENT]
    behind.let_go()
    assert node.manager.pushes.bytes_in_flight == 0


@story
async def test_of_what_is_not_here_or_has_no_such_bytes_nothing_is_sent(node: Node) -> None:
    assert node.serve().replies == [None]
    node.put(blocks=2, attempt=1)
    assert node.serve(attempt=0).replies == [None] == node.serve(attempt=2).replies
    for start, blocks in ((0, 3), (2, 1), (-1, 1), (1, 0)):
        strange = node.serve(start, blocks, attempt=1)
        assert strange.failures == ["bad-request"] and strange.replies == []


@story
async def test_what_a_worker_here_is_writing_is_not_sent(node: Node) -> None:
    assert node.store.table.create(A, 0, ALIGNMENT, OWNER, WORKERS[0], True) is not None
    assert node.serve().replies == [None]


@story
async def test_what_is_being_fetched_is_sent_on_as_it_comes_to_those_whose_turn_is_later(node: Node) -> None:
    node.want()
    await node.owner_says("x", blocks=2, turn=5)
    assert node.serve(turn=5).replies == node.serve(turn=4).replies == [None]
    first, both = node.serve(turn=6), node.serve(blocks=2, turn=6)
    chunks = node.take()
    chunks[0].answer(1)
    assert first.replies == [bytes([1]) * ALIGNMENT] and both.replies == []
    chunks[1].answer(2)
    assert both.replies == [bytes([1]) * ALIGNMENT + bytes([2]) * ALIGNMENT]


@story
async def test_who_waits_for_what_is_not_fetched_to_its_end_is_told_so(node: Node) -> None:
    node.want()
    await node.owner_says("x", turn=1)
    waiting = node.serve(turn=2)
    (chunk,) = node.take()
    node.store.table.free_object(A, 0)
    chunk.answer(None)
    await pass_time(1.0)
    assert waiting.replies == [None]
    assert node.store.table.allocator.used == 0


@story
async def test_what_is_on_disk_alone_is_sent_from_there(node: Node) -> None:
    entry = node.put()
    node.store.table.begin_spill(entry)
    node.store.table.end_spill(entry, Spilled(SpillFile(0, "file"), 0, []))
    node.store.table._reclaim(entry)
    node.manager.pushes = PushManager(limit_bytes=ALIGNMENT)
    first, second, third = (node.serve() for _ in range(3))
    (await node.disk.get()).set_result(memoryview(bytes([9]) * ALIGNMENT))
    await pass_time(0)
    assert first.replies == [bytes([9]) * ALIGNMENT] and second.replies == []
    first.let_go()
    (await node.disk.get()).set_result(None)
    await pass_time(0)
    assert second.replies == [None]
    assert third.replies == [] and node.manager.pushes.bytes_in_flight == ALIGNMENT
    await node.disk.get()
    assert node.store.table.is_spilled(entry), "it was not brought back for that"


@story
async def test_the_owner_hears_of_copies_that_made_room(node: Node) -> None:
    node.put(is_primary=False)
    node.store.table.evict(A)
    assert node.reports == [LocationChange(A, 0, False)]


@story
async def test_the_owner_hears_of_a_copy_before_it_hears_that_the_copy_made_room(node: Node) -> None:
    """No reader wants the copy any more when it is complete, and another request waits for its memory."""
    node.put(B, blocks=BLOCKS // 2)
    node.want()
    await node.owner_says("x", blocks=BLOCKS // 2)
    made: list[ObjectEntry | None] = []
    creation = Creation(C, 0, BLOCKS // 2 * ALIGNMENT, OWNER, WORKERS[0], is_primary=True)
    node.store.create(creation, lambda entry, _is_unwanted: made.append(entry))
    node.store.on_death(WORKERS[1])
    assert not made
    while chunks := node.take():
        for chunk in chunks:
            chunk.answer(1)
    await pass_time(0)
    assert made and made[0] is not None
    assert [(change.object_id, change.is_here) for change in node.reports] == [(A, True), (A, False)]


@story
async def test_a_closed_node_fetches_nothing(node: Node) -> None:
    node.want()
    await node.owner_says("x", blocks=2)
    await node.manager.close()
    await pass_time(0)
    assert node.store.table.allocator.used == 0 and node.reports == []
    node.want(B)
    await pass_time(0)
    assert node.questions.empty()


@story
async def test_a_closed_node_gives_back_memory_that_it_waited_for(node: Node) -> None:
    for number in range(BLOCKS):
        node.put(object_id(f"full-{number}"))
    node.want()
    await node.owner_says("x")
    await node.manager.close()
    await pass_time(0)
    node.store.table.free_object(object_id("full-0"), 0)
    await pass_time(2.5)
    assert node.store.table.allocator.used == (BLOCKS - 1) * ALIGNMENT


# --- Pulls ---


@story
async def test_an_object_comes_in_chunks_a_few_at_a_time_from_first_to_last(node: Node) -> None:
    answers = node.want()
    question = await node.owner_says("x", blocks=6)
    assert (question.object_id, question.receiver, question.number) == (A, HERE, 1)
    chunks = node.take()
    assert [chunk.chunk.start // ALIGNMENT for chunk in chunks] == [0, 1, 2, 3]
    chunks[2].answer(2)
    (fifth,) = node.take()
    for number, chunk in enumerate(chunks):
        if number != 2:
            chunk.answer(number)
    fifth.answer(4)
    (sixth,) = node.take()
    assert (sixth.chunk.start, answers) == (5 * ALIGNMENT, [])
    sixth.answer(5)
    await pass_time(0)
    assert [answer.status for answer in answers] == [PINNED] and node.holds() == bytes(range(6))
    assert node.reports == [LocationChange(A, 0, True, question.number)]
    assert len(node.manager.pulls) == 0 and node.questions.empty()


@story
async def test_the_last_chunk_may_be_shorter(node: Node) -> None:
    answers = node.want()
    await node.owner_says("x", size=ALIGNMENT + 1)
    assert [(chunk.chunk.size, len(chunk.into)) for chunk in node.asked] == [(ALIGNMENT, ALIGNMENT), (1, 1)]
    for chunk in node.take():
        chunk.answer(1)
    await pass_time(0)
    assert [answer.size for answer in answers] == [ALIGNMENT + 1]


@story
async def test_who_receives_it_before_us_is_asked_first_then_who_has_it(node: Node) -> None:
    node.want()
    receivers = [raylet("r"), raylet("s"), HERE]
    await node.owner_says("x", "y", receivers=receivers, turn=3)
    asked = []
    while node.asked:
        (chunk,) = node.take()
        asked.append(chunk.to.endpoint)
        assert chunk.chunk.turn == 3
        chunk.answer(None)
    assert asked == ["sim:s", "sim:r", "sim:y", "sim:x"]


@story
async def test_g66_what_did_not_come_is_asked_of_the_next_and_then_the_owner_again(node: Node) -> None:
    answers = node.want()
    await node.owner_says("x", "y", blocks=2, turn=1)
    first, second = node.take()
    first.answer(1)
    second.fail()
    (again,) = node.take()
    assert (again.to, again.chunk.start) == (raylet("x"), ALIGNMENT)
    again.answer(None)
    assert node.take() == [] == answers
    began = now()
    question = await node.owner_says("z", blocks=2, turn=7)
    assert (question.number, now() - began >= 0.1) == (2, True)
    (last,) = node.take()
    assert (last.chunk.start, last.chunk.turn) == (ALIGNMENT, 1), "it keeps what has come, and its turn"
    last.answer(2)
    await pass_time(0)
    assert node.holds() == bytes([1, 2]) and [answer.status for answer in answers] == [PINNED]
    assert node.reports == [LocationChange(A, 0, True, 2)]


@pytest.mark.parametrize(("status", "said"), [(UNKNOWN, FREED), (LOST, CHANGED), (INLINED, CHANGED)])
@story
async def test_a_reader_of_an_object_that_is_nowhere_is_told_why(node: Node, status: int, said: int) -> None:
    answers = node.want()
    await node.owner_says(status=status)
    assert [answer.status for answer in answers] == [said]
    assert len(node.manager.pulls) == 0 and node.reports == []


@story
async def test_g58_what_a_dead_owner_had_is_lost(node: Node) -> None:
    answers = node.want()
    await node.owner_is_dead()
    assert [(answer.status, answer.reason) for answer in answers] == [(OWNER_DIED, "dead")]


@story
async def test_g67_what_is_being_made_again_is_asked_for_less_and_less_often(node: Node) -> None:
    read, argument = node.want(), node.want(purpose=TASK_ARGUMENTS)
    pauses = []
    for _ in range(30):
        asked_at = now()
        await node.owner_says(status=NOT_MADE)
        pauses.append(now() - asked_at)
        assert [answer.status for answer in argument] == [NOT_HERE], "workers are needed to make it"
    assert pauses[2] < pauses[-1] <= 2.0 + 0.01 and pauses[-1] == pytest.approx(pauses[-2])
    assert read == []
    await node.owner_says("x", attempt=1)
    (chunk,) = node.take()
    chunk.answer(None)
    began = now()
    await node.owner_says("x", attempt=1)
    assert now() - began < 0.2
    (chunk,) = node.take()
    assert chunk.chunk.attempt == 1
    chunk.answer(3)
    await pass_time(0)
    assert [answer.status for answer in read] == [CHANGED], "it is not what was wanted, who asks its owner"


@story
async def test_g67_a_node_that_waits_for_what_is_made_again_says_that_it_receives_nothing(node: Node) -> None:
    node.want()
    question = await node.owner_says("x")
    (chunk,) = node.take()
    chunk.answer(None)
    assert node.reports == []
    await node.owner_says(status=NOT_MADE)
    assert node.reports == [LocationChange(A, 0, False, question.number)]
    assert node.store.table.allocator.used == 0


@story
async def test_g67_what_has_come_of_an_earlier_attempt_is_given_up(node: Node) -> None:
    node.want(attempt=1)
    first = await node.owner_says("x", blocks=2)
    chunks = node.take()
    waiting = node.serve(turn=2)
    chunks[0].answer(None)
    chunks[1].answer(None)
    await node.owner_says("x", blocks=3, attempt=1)
    assert waiting.replies == [None]
    for chunk in node.take():
        assert chunk.chunk.attempt == 1
        chunk.answer(8)
    await pass_time(0)
    assert node.holds() == bytes([8] * 3)
    assert node.reports == [LocationChange(A, 1, True, first.number + 1)]


@story
async def test_while_chunks_are_on_their_way_the_memory_of_a_freed_object_stays_taken(node: Node) -> None:
    node.want()
    question = await node.owner_says("x", "y", blocks=5)
    chunks = node.take()
    node.store.table.free_object(A, 0)
    chunks[0].answer(1)
    assert node.take() == [], "nothing more is asked for"
    await pass_time(1.0)
    assert node.store.table.allocator.used == 5 * ALIGNMENT and node.reports == []
    for chunk in chunks[1:]:
        chunk.answer(None)
    await pass_time(0)
    assert node.store.table.allocator.used == 0
    await node.owner_says(status=UNKNOWN)
    assert node.reports == [LocationChange(A, 0, False, question.number)]


@story
async def test_an_object_that_nobody_wants_any_more_comes_to_its_end(node: Node) -> None:
    """Otherwise the fetch would begin again for a reader that polls."""
    answers: list[Pinned] = []
    wanted = [Wanted(A, OWNER, b"polled", 0)]
    question = node.store.pin_together(WORKERS[1], wanted, WAIT, answers.extend)
    await node.owner_says("x", blocks=5)
    chunks = node.take()
    node.store.give_up(question)
    assert [answer.status for answer in answers] == [NOT_HERE]
    for chunk in chunks:
        chunk.answer(6)
    (last,) = node.take()
    last.answer(6)
    await pass_time(0)
    assert node.holds() == bytes([6] * 5) and len(node.manager.pulls) == 0


@story
async def test_g87_what_nobody_wants_when_its_turn_comes_is_not_fetched(node: Node) -> None:
    node.want(B)
    await node.owner_says("x", blocks=BLOCKS)
    answers: list[Pinned] = []
    question = node.store.pin_together(WORKERS[1], [Wanted(A, OWNER, b"polled", 0)], WAIT, answers.extend)
    await node.owner_says("x", blocks=BLOCKS)
    node.store.give_up(question)
    node.store.fail(B, Pinned(FREED))
    for chunk in node.take():
        chunk.answer(None)
    await pass_time(1.0)
    assert node.take() == [] and len(node.manager.pulls) == 0 and node.store.table.allocator.used == 0


@story
async def test_what_there_is_no_room_for_is_refused(node: Node) -> None:
    for number in range(BLOCKS):
        node.put(object_id(f"full-{number}"))
    answers = node.want()
    question = await node.owner_says("x", blocks=3)
    assert answers == []
    await pass_time(2.5)
    assert [(answer.status, answer.size) for answer in answers] == [(NO_ROOM, 3 * ALIGNMENT)]
    assert "192 bytes are wanted" in answers[0].reason
    assert node.reports == [LocationChange(A, 0, False, question.number)]


@story
async def test_a_node_that_nobody_knows_a_copy_of_says_that_it_receives_none(node: Node) -> None:
    """So that its owner can take the object for lost."""
    node.want()
    first = await node.owner_says(receivers=[raylet("r")])
    (chunk,) = node.take()
    chunk.answer(None)
    await pass_time(0)
    assert node.reports == [LocationChange(A, 0, False, first.number)]
    assert node.store.table.allocator.used == 0
    await node.owner_says()
    await node.owner_says("x")
    assert len(node.take()) == 1


@story
async def test_an_owner_who_believes_that_it_is_here_is_told_that_it_is_not(node: Node) -> None:
    node.want()
    await node.owner_says("x", "here")
    assert node.reports == [LocationChange(A, 0, False)]
    assert [chunk.to for chunk in node.take()] == [raylet("x")]


@story
async def test_g67_a_copy_that_is_made_here_meanwhile_ends_the_pull(node: Node) -> None:
    answers = node.want(attempt=1)
    question = await node.owner_says("x", blocks=1)
    (chunk,) = node.take()
    node.put(attempt=1, value=4)
    assert [answer.status for answer in answers] == [PINNED]
    chunk.answer(1)
    await pass_time(0.2)
    assert node.holds() == bytes([4]) and len(node.manager.pulls) == 0
    assert node.reports == [LocationChange(A, 0, False, question.number)]


@story
async def test_many_who_want_an_object_have_it_fetched_once(node: Node) -> None:
    answers = [node.want() for _ in range(3)]
    await node.owner_says("x")
    answers.append(node.want())
    (chunk,) = node.take()
    chunk.answer(1)
    await pass_time(0)
    assert [answer.status for one in answers for answer in one] == [PINNED] * 4 and node.questions.empty()


@story
async def test_what_has_made_room_is_fetched_again(node: Node) -> None:
    for number in range(2):
        node.want()
        question = await node.owner_says("x")
        (chunk,) = node.take()
        chunk.answer(number)
        await pass_time(0)
        assert node.holds() == bytes([number]) and question.number == number + 1
        node.store.unpin([f"pin {number + 1}".encode()])
        node.store.table.evict(A)
    assert node.holds() == b""
