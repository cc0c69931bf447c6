"""What a node sends to others, and fetches from them, between one store and pretended neighbours."""

from __future__ import annotations

from minray.object_manager.push_manager import PushManager
from minray.object_store.allocator import ALIGNMENT
from minray.protocol.object_store import PINNED
from tests.object_manager.node import A, Node, Served, story
from tests.object_store.copies import object_id
from tests.rpc.fake_network import pass_time

B = object_id("b")


def busy(node: Node) -> Served:
    """The node sends as much as it may, until what is returned is let go of."""
    node.manager._pushes = PushManager(limit_bytes=ALIGNMENT)
    node.put(B)
    return node.serve(key=B)


@story
async def test_a_chunk_is_sent_as_it_is_and_keeps_its_copy_in_place(node: Node) -> None:
    entry = node.put(blocks=2, value=7)
    served = node.serve(start=1)
    assert served.replies == [bytes([7]) * ALIGNMENT]
    assert entry.in_use()
    served.let_go()
    assert not entry.in_use() and node.manager._pushes.bytes_in_flight == 0


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
async def test_an_object_is_fetched_and_read(node: Node) -> None:
    answers = node.want()
    await node.owner_says("x", blocks=2)
    for chunk in node.take():
        chunk.answer(5)
    await pass_time(0)
    assert [answer.status for answer in answers] == [PINNED]
    assert node.holds() == bytes([5, 5])
