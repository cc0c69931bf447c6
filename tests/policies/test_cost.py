"""A program without a policy of its own pays little for the hooks."""

from __future__ import annotations

from minray.policies.asking import evicted_copy, first_node, node_for, sorted_copies, sorted_sources
from minray.scheduling.cluster_resource_scheduler import NodeView
from tests.policies.questions import copies, node
from tests.scheduling.machines import request


class Unread:
    """Fails if it is read."""

    def __iter__(self) -> object:
        raise AssertionError("without a policy no question is made")


def test_without_a_policy_no_question_is_made() -> None:
    unread, here = Unread(), node("a", 1)
    assert node_for(None, "ARRIVED", request(1), here, unread, unread) is None  # type: ignore[arg-type]
    assert first_node(None, b"home", unread, lambda object_id: (0, ())) is None  # type: ignore[arg-type]
    assert evicted_copy(None, unread) is None  # type: ignore[arg-type]
    assert sorted_copies(None, unread) is unread  # type: ignore[type-var, arg-type]
    assert sorted_sources(None, b"a", b"x", [here, NodeView(b"b")], []) == [NodeView(b"b")]
    assert evicted_copy(None, copies(1)) is None
