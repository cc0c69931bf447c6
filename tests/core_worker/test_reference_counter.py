"""Reference counting by scenario: who holds, who borrows, and what messages that are late, doubled or lost change.

Processes are those of ``processes.Cluster``: ``a`` owns, ``b`` passes on, ``c`` receives, unless a test says otherwise.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from minray.common.bounds import BOUNDS
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.protocol.base import Address
from minray.protocol.core_worker import Loan, RefInfo
from tests.core_worker.processes import Cluster, Process, Ref

OWN, OTHER, THIRD = (Address(name * 16, b"node-" + name, "sim:") for name in (b"o", b"b", b"c"))
X, Y, Z = b"x" * 28, b"y" * 28, b"z" * 28


@pytest.fixture
def counter() -> ReferenceCounter:
    return ReferenceCounter()


@pytest.fixture
def cluster() -> Cluster:
    return Cluster("abcd")


def let_time_pass(cluster: Cluster) -> None:
    while links := cluster.busy_links():
        cluster.deliver(links[0])


def pass_on(cluster: Cluster, owner: Process, worker: Process, ref: Ref) -> None:
    """``worker`` ends up with a reference of its own, kept from a task."""
    owner.submit(worker, [ref], [])
    let_time_pass(cluster)
    worker.finish(worker.tasks[0], [], [ref])
    owner.drop_ref(owner.refs.pop())
    let_time_pass(cluster)


# --- one process


def test_g58_an_object_lives_while_anything_here_holds_it(counter: ReferenceCounter) -> None:
    effects = Effects()
    counter.add_owned(X)
    counter.add_submitted([X], [None])
    counter.add_owned(Y)
    counter.on_value(Y, [RefInfo(X, OWN, b"")], OWN.worker_id, effects)
    counter.remove_local([X], effects)
    counter.remove_submitted([X], effects)
    assert effects.freed == [] and counter.reference_of(X) is not None
    counter.remove_local([Y], effects)
    assert effects.freed == [Y, X] and len(counter) == 0


def test_a_pinned_object_is_never_freed(counter: ReferenceCounter) -> None:
    effects = Effects()
    counter.add_owned(X)
    counter.pin(X)
    counter.remove_local([X], effects)
    assert effects.freed == []


def test_g60_a_chain_of_any_length_is_freed_at_once(counter: ReferenceCounter) -> None:
    """Each value contains the one before it; ten thousand are no deeper than one."""
    effects = Effects()
    ids = [number.to_bytes(28, "big") for number in range(10_000)]
    for before, after in zip([None, *ids], ids, strict=False):
        counter.add_owned(after)
        counter.on_value(after, [RefInfo(before, OWN, b"")] if before else [], OWN.worker_id, effects)
        if before:
            counter.remove_local([before], effects)
    assert effects.freed == []
    counter.remove_local([ids[-1]], effects)
    assert effects.freed == ids[::-1] and len(counter) == 0


def test_dropping_twice_is_a_bug_of_ours(counter: ReferenceCounter) -> None:
    counter.add_owned(X)
    counter.add_submitted([X], [None])
    counter.remove_local([X], Effects())
    with pytest.raises(AssertionError, match="dropped twice"):
        counter.remove_local([X], Effects())


def test_what_is_dropped_together_is_freed_together(counter: ReferenceCounter) -> None:
    effects = Effects()
    counter.add_owned(X)
    counter.add_owned(Y)
    counter.add_local(Y, None)
    counter.remove_local([X, Y], effects)
    assert effects.freed == [X]
    counter.remove_local([Y], effects)
    assert effects.freed == [X, Y] and len(counter) == 0


# --- the owner's side


def test_g58_a_lent_object_lives_until_the_last_ticket_is_back(counter: ReferenceCounter) -> None:
    effects = Effects()
    counter.add_owned(X)
    assert counter.lend(X, OTHER, b"t1", OWN) and counter.lend(X, THIRD, b"t2", OTHER)
    counter.remove_local([X], effects)
    assert counter.owns_borrowed()
    counter.take_back(X, [b"t1"], effects)
    assert effects.freed == []
    counter.take_back(X, [b"t2"], effects)
    assert effects.freed == [X] and not counter.owns_borrowed()


def test_g112_a_ticket_noted_late_or_twice_is_noted_once(counter: ReferenceCounter) -> None:
    effects = Effects()
    counter.add_owned(X)
    counter.lend(X, OTHER, b"t", OWN)
    counter.lend(X, OTHER, b"t", OWN)
    counter.take_back(X, [b"t"], effects)
    assert not counter.owns_borrowed()
    assert not counter.lend(X, OTHER, b"t", OWN)
    assert not counter.owns_borrowed()


def test_a_ticket_that_is_given_back_before_it_is_noted_is_void(counter: ReferenceCounter) -> None:
    """The AddBorrower is late: the borrower had the reference, and has dropped it."""
    counter.add_owned(X)
    counter.take_back(X, [b"t"], Effects())
    assert not counter.lend(X, OTHER, b"t", THIRD) and not counter.owns_borrowed()


def test_a_ticket_that_comes_home_is_spent_and_not_held(counter: ReferenceCounter) -> None:
    """A process passes a reference on to the owner of the object."""
    effects = Effects()
    counter.add_owned(X)
    counter.lend(X, OWN, b"t", OTHER)
    counter.receive_ticket(RefInfo(X, OWN, b"t"), effects)
    assert not counter.owns_borrowed() and not counter.holds_ticket(Loan(X, b"t"))


def test_what_is_freed_cannot_be_lent(counter: ReferenceCounter) -> None:
    counter.lend(X, OTHER, b"t", OTHER)
    assert counter.reference_of(X) is None


@pytest.mark.parametrize("dead", [OTHER.worker_id, OTHER.node_id])
def test_a_dead_borrower_or_its_dead_node_gives_everything_back(counter: ReferenceCounter, dead: bytes) -> None:
    effects = Effects()
    counter.add_owned(X)
    counter.lend(X, OTHER, b"t", OWN)
    counter.remove_local([X], effects)
    counter.on_death(THIRD.worker_id, effects)
    assert effects.freed == []
    counter.on_death(dead, effects)
    assert effects.freed == [X]


@pytest.mark.parametrize("dead", [OTHER.worker_id, OTHER.node_id])
@pytest.mark.parametrize(("borrower", "lender"), [(OTHER, THIRD), (THIRD, OTHER)])
def test_nothing_is_lent_to_the_dead_or_by_them(
    counter: ReferenceCounter, dead: bytes, borrower: Address, lender: Address
) -> None:
    counter.add_owned(X)
    counter.on_death(dead, Effects())
    counter.lend(X, borrower, b"t", lender)
    assert not counter.owns_borrowed()


# --- the borrower's side


def test_a_borrower_gives_its_tickets_back_when_it_holds_the_object_no_longer(counter: ReferenceCounter) -> None:
    effects = Effects()
    counter.add_local(X, OTHER)
    counter.receive_ticket(RefInfo(X, OTHER, b"t1"), effects)
    counter.receive_ticket(RefInfo(X, OTHER, b"t2"), effects)
    assert effects.give_back == []
    counter.remove_local([X], effects)
    assert effects.give_back == [(X, OTHER, [b"t1", b"t2"])] and effects.freed == [X]


def test_a_ticket_that_comes_too_late_goes_straight_back(counter: ReferenceCounter) -> None:
    effects = Effects()
    counter.receive_ticket(RefInfo(X, OTHER, b"t"), effects)
    assert effects.give_back == [(X, OTHER, [b"t"])] and len(counter) == 0


def test_a_borrower_does_not_hoard_tickets(counter: ReferenceCounter) -> None:
    """One is enough, however often the same reference comes in (into a global variable, say)."""
    effects = Effects()
    counter.add_local(X, OTHER)
    tickets = [bytes([number]) for number in range(BOUNDS.max_borrower_tickets + 1)]
    for ticket in tickets:
        counter.receive_ticket(RefInfo(X, OTHER, ticket), effects)
    reference = counter.reference_of(X)
    assert reference is not None and reference.held_tickets == tickets[-1:]
    assert effects.give_back == [(X, OTHER, tickets[:-1])]


def test_a_repeated_ticket_replaces_no_other() -> None:
    """An owner may have forgotten a ticket that comes again; nobody would have noted that the object is in use."""
    effects, counter = Effects(), ReferenceCounter(max_held_tickets=2)
    counter.add_local(X, OTHER)
    for ticket in (b"1", b"1", b"1", b"2", b"3", b"1", b"2", b"3"):
        counter.receive_ticket(RefInfo(X, OTHER, ticket), effects)
    reference = counter.reference_of(X)
    assert reference is not None and reference.held_tickets == [b"3"]
    assert effects.give_back == [(X, OTHER, [b"1", b"2"])]


def test_a_value_that_nobody_wants_gives_its_tickets_back(counter: ReferenceCounter) -> None:
    effects = Effects()
    assert not counter.on_value(X, [RefInfo(Y, OTHER, b"t")], OWN.worker_id, effects)
    assert effects.give_back == [(Y, OTHER, [b"t"])] and len(counter) == 0


def test_a_value_that_comes_twice_is_counted_once(counter: ReferenceCounter) -> None:
    effects = Effects()
    counter.add_local(X, OTHER)
    for ticket in (b"t1", b"t2"):
        assert counter.on_value(X, [RefInfo(Y, THIRD, ticket)], OWN.worker_id, effects)
    counter.remove_local([X], effects)
    assert effects.freed == [X, Y] and effects.give_back == [(Y, THIRD, [b"t1", b"t2"])]


HOLDS: dict[str, Callable[[ReferenceCounter], object]] = {
    "an ObjectRef": lambda counter: counter.add_local(X, OTHER),
    "another task": lambda counter: counter.add_submitted([X], [OTHER]),
    "a value": lambda counter: (
        counter.add_owned(Z),
        counter.on_value(Z, [RefInfo(X, OTHER, b"")], OWN.worker_id, Effects()),
    ),
    "a pin": lambda counter: counter.pin(X),
}


@pytest.mark.parametrize("hold", HOLDS.values(), ids=HOLDS)
def test_arguments_are_kept_after_the_task_only_where_something_else_holds_them(
    counter: ReferenceCounter, hold: Callable[[ReferenceCounter], object]
) -> None:
    effects = Effects()
    counter.add_submitted([X, Y], [OTHER, OTHER])
    hold(counter)
    assert counter.keep_after_task([X, Y]) == [(X, OTHER)]
    assert counter.needs_ticket(X)
    counter.receive_ticket(RefInfo(X, OTHER, b"t"), effects)
    assert counter.keep_after_task([X, Y]) == [] and not counter.needs_ticket(X)
    counter.remove_submitted([X, Y], effects)
    assert effects.freed == [Y] and effects.give_back == []


def test_a_question_holds_an_object_and_needs_a_ticket_like_any_other_holder(counter: ReferenceCounter) -> None:
    effects = Effects()
    counter.add_local(X, OTHER)
    counter.add_question(X)
    counter.remove_local([X], effects)
    assert counter.needs_ticket(X) and not counter.is_wanted(X)
    counter.remove_question(X, effects)
    assert not counter.needs_ticket(X) and effects.freed == [X]


# --- several processes


def test_g58_an_argument_outlives_its_submitter_interest(cluster: Cluster) -> None:
    a, b = cluster.processes[:2]
    ref = a.put([])
    a.submit(b, [ref], [])
    a.drop_ref(ref)
    let_time_pass(cluster)
    assert a.counter.reference_of(ref[0]) is not None
    b.finish(b.tasks[0], [], [])
    let_time_pass(cluster)
    assert a.counter.reference_of(ref[0]) is None


def test_g58_what_a_worker_keeps_from_a_task_stays_alive(cluster: Cluster) -> None:
    a, b = cluster.processes[:2]
    ref = a.put([])
    pass_on(cluster, a, b, ref)
    a.drop_ref(ref)
    let_time_pass(cluster)
    assert a.counter.reference_of(ref[0]) is not None
    b.drop_ref(ref)
    let_time_pass(cluster)
    assert a.counter.reference_of(ref[0]) is None and len(b.counter) == 0


def test_a_message_that_is_not_there_cannot_be_delivered(cluster: Cluster) -> None:
    """A lab's student reads this when a message was never sent."""
    with pytest.raises(AssertionError, match="nothing is on the way from a to c"):
        cluster.deliver(("a", "c"))


def test_g60_g65_a_reference_in_a_result_is_alive_however_late_the_reply(cluster: Cluster) -> None:
    a, b = cluster.processes[:2]
    a.submit(b, [], [])
    cluster.deliver(("a", "b"))
    task = b.tasks[0]
    ref = b.put([])
    task.frame.append(b.refs.pop())
    b.finish(task, [ref], [])
    assert b.counter.reference_of(ref[0]) is not None, "only the reply on its way holds it"
    let_time_pass(cluster)
    a.get(a.refs[0])
    assert a.refs[-1] == ref


def ask_for_nested(cluster: Cluster) -> tuple[Process, Process, Process, Ref, Ref]:
    """``b`` has a value of its own around a reference of ``a``; ``c`` is about to look into it."""
    a, b, c = cluster.processes[:3]
    inner = a.put([])
    pass_on(cluster, a, b, inner)
    outer = b.put([inner])
    pass_on(cluster, b, c, outer)
    for process, ref in ((a, inner), (b, inner), (b, outer)):
        process.drop_ref(ref)
    let_time_pass(cluster)
    c.get(outer)
    return a, b, c, inner, outer


def test_g65_a_third_party_passes_a_reference_on(cluster: Cluster) -> None:
    a, b, c, inner, outer = ask_for_nested(cluster)
    let_time_pass(cluster)
    c.get(outer)
    c.drop_ref(outer)
    let_time_pass(cluster)
    assert len(b.counter) == 0 and a.counter.reference_of(inner[0]) is not None
    c.drop_ref(inner)
    let_time_pass(cluster)
    assert len(a.counter) == len(c.counter) == 0


def test_g112_an_answer_that_is_lost_leaves_no_ticket_behind(cluster: Cluster) -> None:
    a, b, c, inner, outer = ask_for_nested(cluster)
    for link in (("c", "b"), ("b", "a"), ("a", "b")):
        cluster.deliver(link)
    cluster.deliver(("b", "c"), reply_is_lost=True)
    let_time_pass(cluster)
    c.drop_ref(outer)
    let_time_pass(cluster)
    assert len(a.counter) == len(b.counter) == len(c.counter) == 0


@pytest.fixture
def asked(cluster: Cluster) -> tuple[Process, Process, Ref, Ref]:
    """``c`` runs a call of ``a``, and has asked it for the argument, in which there is a reference."""
    a, _, c, _ = cluster.processes
    inner = a.put([])
    outer = a.put([inner])
    a.submit(c, [outer], [])
    let_time_pass(cluster)
    c.get(outer)
    cluster.deliver(("c", "a"))
    return a, c, inner, outer


def end_of_all(cluster: Cluster) -> None:
    cluster.settle()
    cluster.drop_everything()
    cluster.settle()
    assert [len(process.counter) for process in cluster.processes] == [0] * 4


@pytest.mark.parametrize("what", ["given up", "freed by the user"])
def test_g112_a_question_gets_its_answer_again_whatever_became_of_the_object(
    cluster: Cluster, asked: tuple[Process, Process, Ref, Ref], what: str
) -> None:
    a, c, inner, outer = asked
    cluster.deliver(("a", "c"), reply_is_lost=True)
    if what == "given up":
        a.give_up(c.tasks[0])
        for _ in (inner, outer):
            a.drop_ref(a.refs.pop(0))
    else:
        a.delete(outer[0])
    let_time_pass(cluster)
    assert c.values[outer[0]] == (inner,)
    end_of_all(cluster)


@pytest.mark.parametrize("is_deleted", [False, True])
def test_g112_a_late_repetition_of_a_question_takes_nothing_and_leaves_nothing(
    cluster: Cluster, asked: tuple[Process, Process, Ref, Ref], is_deleted: bool
) -> None:
    a, c, inner, outer = asked
    let_time_pass(cluster)
    c.get(outer)
    c.finish(c.tasks[0], [], [])
    a.drop_ref(a.refs.pop(0))
    if is_deleted:
        a.delete(outer[0])
    let_time_pass(cluster)
    assert c.refs == [inner] and a.counter.reference_of(outer[0]) is not None
    while cluster.late:
        cluster.repeat(0)
    let_time_pass(cluster)
    assert a.counter.reference_of(inner[0]) is not None
    end_of_all(cluster)


def test_g112_a_late_repetition_of_add_borrower_changes_nothing(cluster: Cluster) -> None:
    a, _, c, _, outer = ask_for_nested(cluster)
    let_time_pass(cluster)
    c.drop_ref(outer)
    let_time_pass(cluster)
    assert len(a.counter) == 0
    keeper = a.put([])
    while cluster.late:
        cluster.repeat(0)
    let_time_pass(cluster)
    assert [object_id for object_id, _ in a.counter.items()] == [keeper[0]] and not a.counter.owns_borrowed()


def test_a_ticket_whose_lender_died_before_passing_it_on_is_found_missing(cluster: Cluster) -> None:
    """``a`` has noted that ``b`` lends to ``c``, and ``b`` dies with its answer to ``c`` unsent."""
    a, b, c, inner, outer = ask_for_nested(cluster)
    for link in (("c", "b"), ("b", "a")):
        cluster.deliver(link)
    cluster.kill(b)
    let_time_pass(cluster)
    c.drop_ref(outer)
    let_time_pass(cluster)
    assert a.counter.reference_of(inner[0]) is None and len(c.counter) == 0


def test_a_ticket_whose_lender_died_after_passing_it_on_stays(cluster: Cluster) -> None:
    a, b, c, inner, outer = ask_for_nested(cluster)
    let_time_pass(cluster)
    c.get(outer)
    cluster.kill(b)
    let_time_pass(cluster)
    c.drop_ref(outer)
    let_time_pass(cluster)
    assert a.counter.reference_of(inner[0]) is not None
    c.drop_ref(inner)
    let_time_pass(cluster)
    assert len(a.counter) == len(c.counter) == 0


def test_who_has_called_a_ticket_missing_takes_it_no_more(cluster: Cluster) -> None:
    """The dead lender's answer is still on its way when ``c`` says that it has not come; it must not count then."""
    a, b, c, inner, outer = ask_for_nested(cluster)
    for link in (("c", "b"), ("b", "a"), ("a", "b")):
        cluster.deliver(link)
    cluster.kill(b)
    for link in (("b", "a"), ("a", "c"), ("c", "a")):
        cluster.deliver(link)
    assert a.counter.reference_of(inner[0]) is None
    let_time_pass(cluster)
    assert c.counter.reference_of(inner[0]) is None


def test_a_lend_to_a_process_that_is_known_to_be_dead_is_void(cluster: Cluster) -> None:
    """The news of ``c``'s death overtakes ``b``'s message that ``c`` is about to get a reference."""
    a, b, c, inner, _ = ask_for_nested(cluster)
    cluster.deliver(("c", "b"))
    cluster.kill(c)
    cluster.deliver(("c", "a"))
    let_time_pass(cluster)
    assert a.counter.reference_of(inner[0]) is None and len(b.counter) == 0


# --- lineage


def test_g67_what_a_worker_needs_to_make_its_results_again_gets_a_ticket(counter: ReferenceCounter) -> None:
    counter.add_submitted([X], [OTHER])
    counter.add_lineage([X])
    assert counter.keep_after_task([X]) == [(X, OTHER)]
    effects = Effects()
    counter.remove_submitted([X], effects)
    assert effects.freed == [] and counter.needs_ticket(X)
    counter.remove_lineage([X], effects)
    assert effects.freed == [X]


def test_g67_an_entry_without_a_value_cannot_be_lent(counter: ReferenceCounter) -> None:
    """The entry is known for lineage alone. A process that passes the reference on must be dead, and its ticket with it."""
    counter.add_owned(X).obstacle = None
    counter.add_lineage([X])
    effects = Effects()
    counter.remove_local([X], effects)
    counter.lend(X, OTHER, b"ticket", THIRD)
    assert effects.freed == [X] and not counter.is_in_scope(X) and counter.reference_of(X) is not None


def test_g67_a_lost_value_lets_go_of_what_was_inside_and_the_next_one_holds_its_own(counter: ReferenceCounter) -> None:
    effects = Effects()
    counter.add_owned(X)
    counter.on_value(X, [RefInfo(Y, OTHER, b"old")], OWN.worker_id, effects)
    counter.forget_value(X, effects)
    assert effects.freed == [Y] and effects.give_back == [(Y, OTHER, [b"old"])]
    assert counter.on_value(X, [RefInfo(Z, OTHER, b"new")], OWN.worker_id, effects)
    assert counter.reference_of(Y) is None and counter.reference_of(Z) is not None
