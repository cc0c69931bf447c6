"""Calls that arrive at an actor: taken in once, begun in their callers' order, answered to everyone who asks.

``Actor`` is the worker of test_task_receiver.py with an actor in it: the test plays the callers (``call``) and the user
threads (``run_next``, or ``run_beside_next`` for an actor with several threads).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minray.common.task_spec import ActorOptions
from minray.core_worker.execution.actor_process import ActorProcess
from minray.core_worker.execution.actor_task_receiver import OVER_S, SILENT_S, ActorTaskReceiver
from minray.core_worker.records.stored_object import StoredObject
from minray.exceptions import ActorDiedError, TaskCancelledError
from minray.protocol.actor import ExitActor, GiveUpCalls, PushActorTask
from minray.protocol.base import Address, encode
from minray.protocol.core_worker import (
    ARGUMENT_FAILED,
    CANCELLED,
    FAILED,
    NOT_STARTED,
    OK,
    Argument,
    CancelTask,
    CancelTaskReply,
    PushTaskReply,
    RefInfo,
    TaskHeader,
    Value,
)
from minray.values.serialization import ArgumentSlot
from tests.core_worker.parts import WORKER, address, id_of, object_id, packed, received, stored, template
from tests.core_worker.test_task_receiver import NOBODY, THIRD, Asked, Worker
from tests.core_worker.user_thread import WorkQueue

ACTOR = id_of("actor")
WAIT_S = 30.0
PLAIN = ActorOptions()


class Clerk:
    """An instance of the user's class: it writes down what it is called with."""

    def __init__(self, lines: list[Any]) -> None:
        self.lines = lines

    def log(self, line: Any) -> Any:
        self.lines.append(line)
        return line

    def fail(self) -> None:
        raise ValueError("no")

    def leave(self) -> None:
        raise SystemExit


class Actor(Worker):
    """See the head of this file."""

    def __init__(self, options: ActorOptions = PLAIN) -> None:
        super().__init__()
        self.threads = WorkQueue()
        """Further user threads."""
        self.beside = self.threads.due
        self.ended: list[str] = []
        self.announced: list[Callable[[], None]] = []
        """Callbacks for the time when the gcs has heard that the actor is about to end."""
        self.refused: list[int] = []
        """Sequence numbers of the calls that will never begin."""
        self.asked_about: list[Address] = []
        constructor = received(template("A.__init__", actor=options), actor_id=ACTOR)
        myself: Any = self
        self.calls = ActorTaskReceiver(self.platform, self.executor, self.intake, myself, WAIT_S)
        self.calls.actor = ActorProcess(self.platform, self.executor, constructor, self.calls.on_executed)
        self.executor.actor = Clerk(self.log)

    def on_slow_answer(self, task: Any) -> None:
        self.calls.on_answered(task)

    def threads_beside(self, limit: int) -> WorkQueue:
        return self.threads

    def run_beside_next(self, index: int = 0) -> None:
        work, then = self.beside[index]
        del self.beside[index]
        self.act(work)
        self.act(then)

    def timers(self) -> int:
        """How many may still go off."""
        return sum(not timer.cancelled() for _, _, timer in self.loop._timers)

    def ask_about(self, caller: Address) -> None:
        self.asked_about.append(caller)

    def refuse(self, task: Any) -> None:
        self.refused.append(task.sequence)

    def announce_end(self, then: Callable[[], None]) -> None:
        self.announced.append(then)

    def end_actor(self, reason: str) -> None:
        assert self.calls.actor is not None
        if not self.calls.actor.is_ending:
            self.ended.append(reason)
            self.calls.actor.is_ending = True
            self.calls.stop_beginning()

    def call(
        self,
        sequence: int,
        caller: str = "owner",
        *,
        stream: int = 1,
        in_order: bool = True,
        acknowledged: int = 0,
        answered: Sequence[tuple[int, int]] = (),
        attempt: int = 0,
        method: str = "log",
        arguments: Sequence[Argument] = (),
        group: str = "",
        actor_id: bytes = ACTOR,
    ) -> Asked:
        """Call ``log`` with the caller's name and the sequence; arguments that are fetched take their place."""
        made = template(method, method=method, concurrency_group=group)
        args: tuple[Any, ...] = tuple(ArgumentSlot(index) for index in range(len(arguments)))
        if method == "log" and not args:
            args = (f"{caller} {sequence}",)
        self.last_call = PushActorTask(
            f"{caller}/{stream}/{sequence}".encode().ljust(24),
            actor_id,
            attempt,
            stream,
            sequence,
            in_order,
            acknowledged,
            tuple(answered),
            encode(TaskHeader(made, address(caller))),
            0,
            pickle.dumps((args, {}), 5) if args else b"",
            tuple(arguments),
        )
        return self.arrive(self.last_call)

    def arrive(self, request: PushActorTask) -> Asked:
        asked: Any = Asked()
        self.act(lambda: self.calls.handle_PushActorTask(request, asked))
        return asked

    def cancel_call(self, request: PushActorTask, recursive: bool = False) -> Any:
        return self.act(lambda: self.calls.cancel(CancelTask(request.task_id, request.attempt, False, recursive)))


@pytest.fixture
def actor() -> Iterator[Actor]:
    made = Actor()
    yield made
    made.loop.close()


@pytest.fixture
def threaded() -> Iterator[Actor]:
    made = Actor(ActorOptions(2, (("io", 1),)))
    yield made
    made.loop.close()


def late(name: str) -> Argument:
    return Argument(None, object_id(name), THIRD)


# --- order


def test_g49_calls_run_in_the_order_of_their_numbers_however_they_arrive(actor: Actor) -> None:
    asked = [actor.call(sequence) for sequence in (3, 1, 2)]
    actor.run_all()
    assert actor.log == ["owner 1", "owner 2", "owner 3"]
    assert [each.value for each in asked] == ["owner 3", "owner 1", "owner 2"]


def test_g49_g50_a_late_argument_holds_up_its_caller_alone(actor: Actor) -> None:
    first = actor.call(1, arguments=[late("a")])
    second = actor.call(2)
    actor.call(1, "other")
    actor.run_all()
    assert actor.log == ["other 1"] and second.status is None
    actor.argument_comes(stored(pickle.dumps("late value")))
    actor.run_all()
    assert actor.log == ["other 1", "late value", "owner 2"] and first.value == "late value"


def test_g51_g52_calls_that_keep_no_order_begin_when_they_can(actor: Actor) -> None:
    actor.call(1, in_order=False, arguments=[late("a")])
    actor.call(2, in_order=False)
    actor.run_all()
    actor.argument_comes(stored(pickle.dumps("late value")))
    actor.run_all()
    assert actor.log == ["owner 2", "late value"]


def test_g52_c1_a_retry_between_calls_in_order_holds_up_nobody(actor: Actor) -> None:
    actor.call(1)
    actor.call(2, in_order=False, arguments=[late("a")])
    actor.call(3)
    actor.run_all()
    assert actor.log == ["owner 1", "owner 3"]


def test_an_argument_that_was_lost_fails_its_call_and_not_those_behind_it(actor: Actor) -> None:
    first = actor.call(1, arguments=[late("a")])
    actor.call(2)
    actor.argument_comes(stored(packed(ValueError("lost")), is_error=True))
    actor.run_all()
    assert first.status == ARGUMENT_FAILED and actor.log == ["owner 2"]


# --- callers that die


def test_a_dead_caller_is_forgotten_when_its_calls_have_run(actor: Actor) -> None:
    for sequence in (1, 2):
        actor.call(sequence)
    late_push = actor.last_call
    actor.call(1, "other")
    actor.act(lambda: actor.calls.on_death(address("owner").worker_id))
    assert len(actor.calls.unanswered()) == 3
    actor.run_all()
    assert actor.log == ["owner 1", "owner 2", "other 1"]
    assert [stream.caller for stream in actor.calls._streams.values()] == [address("other")]
    assert actor.arrive(late_push).failures == ["stale-stream"] and not actor.due


@pytest.mark.parametrize("in_order", [True, False])
@pytest.mark.parametrize("end", ["cancelled", "fails", "is_missing"])
def test_a_dead_caller_is_forgotten_when_its_last_call_need_not_run(actor: Actor, end: str, in_order: bool) -> None:
    actor.call(1, in_order=in_order, arguments=[late("a")])
    actor.act(lambda: actor.calls.on_death(address("owner").worker_id))
    assert actor.calls._streams
    if end == "cancelled":
        actor.cancel_call(actor.last_call)
    elif end == "fails":
        actor.argument_comes(stored(packed(ValueError("lost")), is_error=True))
    else:
        actor.act(actor.misses.pop())
    actor.run_all()
    assert not actor.calls._streams and not actor.log


def test_a_dead_caller_is_forgotten_when_an_answer_has_waited_for_owners(actor: Actor) -> None:
    nested = [RefInfo(object_id("x"), THIRD, b"")]
    inside = StoredObject(b"", (), False, nested)
    clerk: Any = actor.executor.actor
    clerk.give = lambda: actor.make_refs(inside)
    actor.call(1, method="give")
    actor.run_all()
    actor.act(lambda: actor.calls.on_death(address("owner").worker_id))
    assert actor.lending.lent == [(object_id("x"), THIRD)] and actor.calls._streams
    actor.act(lambda: actor.lending.owners_answer.set_result(None))
    assert not actor.calls._streams


def test_callers_of_a_dead_node_are_forgotten_at_once_if_nothing_is_left_to_run(actor: Actor) -> None:
    actor.call(1)
    actor.run_all()
    actor.act(lambda: actor.calls.on_death(address("owner").node_id))
    assert not actor.calls._streams


def test_nothing_is_waited_for_from_a_dead_caller_whose_calls_were_cancelled(actor: Actor) -> None:
    actor.call(2)
    actor.cancel_call(actor.last_call)
    assert actor.timers() == 1
    actor.act(lambda: actor.calls.on_death(address("owner").worker_id))
    assert actor.timers() == 0 and not actor.calls._streams


def test_when_a_caller_comes_those_who_say_nothing_are_asked_about(actor: Actor) -> None:
    for caller in ("quiet", "busy"):
        actor.call(1, caller)
    actor.run_all()
    actor.calls._streams[address("quiet").worker_id].heard_at -= 2 * SILENT_S
    actor.call(2, "busy")
    assert actor.asked_about == []
    actor.call(1, "new")
    assert actor.asked_about == [address("quiet")]


# --- repetition


def test_g112_a_call_that_comes_twice_runs_once_and_is_answered_twice(actor: Actor) -> None:
    first = actor.call(1)
    second = actor.arrive(actor.last_call)
    actor.run_all()
    third = actor.arrive(actor.last_call)
    assert [first.value, second.value, third.value] == ["owner 1"] * 3 and actor.log == ["owner 1"]


def test_g112_a_reply_is_kept_until_its_caller_has_it(actor: Actor) -> None:
    requests = []
    for sequence in (1, 2, 3, 4):
        actor.call(sequence)
        requests.append(actor.last_call)
    actor.run_all()
    actor.call(5, acknowledged=1, answered=[(3, 3)])
    assert [actor.arrive(request).status for request in requests] == [None, OK, None, OK]
    actor.run_all()
    assert len(actor.log) == 5


def test_what_is_remembered_of_answered_calls_does_not_grow_with_their_number(actor: Actor) -> None:
    for sequence in range(1, 9):
        actor.call(sequence)
    actor.run_all()
    actor.call(9, acknowledged=1, answered=[(3, 3), (5, 8)])
    (stream,) = actor.calls._streams.values()
    assert len(stream.done) == 2
    actor.call(10, acknowledged=8)
    assert len(stream.done) == 0 and stream.tasks.keys() == {9, 10}


def test_only_so_many_headers_are_kept(actor: Actor) -> None:
    actor.calls._headers.most = 2
    kept = []
    for caller in "abcd":
        actor.call(1, caller)
        kept.append(len(actor.calls._headers))
    assert kept == [1, 2, 1, 2]


def test_the_numbers_of_a_stream_may_end_in_any_order(threaded: Actor) -> None:
    for sequence in (1, 2, 3):
        threaded.call(sequence, in_order=False)
    threaded.run_beside_next(1)
    threaded.call(4, in_order=False, answered=[(2, 2)])
    repeated = threaded.arrive(threaded.last_call)
    while threaded.beside:
        threaded.run_beside_next()
    assert threaded.log == [f"owner {n}" for n in (2, 1, 3, 4)] and repeated.status == OK


def test_s3_s10_a_call_for_another_actor_is_refused(actor: Actor) -> None:
    assert actor.call(1, actor_id=id_of("predecessor")).failures == ["no-such-actor"]
    assert not actor.due


# --- streams


def test_ray_50814_another_stream_begins_at_one_and_the_old_one_is_over(actor: Actor) -> None:
    old = actor.call(1)
    waiting = actor.call(3)
    stale = actor.last_call
    actor.call(1, stream=2)
    assert actor.arrive(stale).failures == ["stale-stream"]
    actor.run_all()
    assert actor.log == ["owner 1"], "what had not begun never will: its caller makes it again, if it may"
    assert old.status is None and waiting.status is None


def test_a_call_of_an_old_stream_that_is_running_is_waited_for(threaded: Actor) -> None:
    threaded.call(1, in_order=False)
    work, then = threaded.beside.popleft()
    threaded.act(work)
    threaded.call(1, stream=2, method="fail", in_order=False)
    threaded.run_beside_next()
    assert not threaded.calls.is_idle(), "its caller may have given it up, but it runs"
    threaded.act(then)
    assert threaded.calls.is_idle()


def test_a_stream_that_is_over_waits_for_no_number(actor: Actor) -> None:
    actor.call(3)
    assert actor.timers() == 1
    actor.call(1, stream=2)
    assert actor.timers() == 0


def test_arguments_of_a_dropped_stream_are_let_go(actor: Actor) -> None:
    actor.call(1, arguments=[late("a")])
    actor.call(1, stream=2)
    assert actor.freed == [object_id("a")]


@pytest.mark.parametrize("order", ["ANG", "NAG", "NGA", "AGN", "GAN", "GNA"])
def test_g58_references_in_an_answer_that_is_given_up_are_let_go(threaded: Actor, order: str) -> None:
    """An answer is Answered, its caller begins a New stream and says that the answer is Given up, in any order."""
    other, own = RefInfo(object_id("other"), THIRD, b"t1"), RefInfo(object_id("own"), WORKER, b"t2")
    threaded.references.add_owned(own.object_id)
    threaded.references.lend(own.object_id, address("owner"), own.ticket, WORKER)
    for sequence in (1, 2, 3):
        threaded.call(sequence, in_order=False)
    heard, lost, unheard = threaded.calls._streams[address("owner").worker_id].tasks.values()
    assert heard.claim() and lost.claim()
    threaded.intake.answer(heard, PushTaskReply(OK, [Value(b"", nested=[other])], 0), ())
    steps: dict[str, Callable[[], object]] = {
        "A": lambda: threaded.intake.answer(lost, PushTaskReply(OK, [Value(b"", nested=[other, own])], 0), ()),
        "N": lambda: threaded.call(1, stream=2, in_order=False),
        "G": lambda: threaded.act(lambda: threaded.calls.handle_GiveUpCalls(GiveUpCalls(address("owner"), 1, [2, 3, 4]))),
    }
    for step in order:
        steps[step]()
    assert threaded.lending.given_back == [(object_id("other"), THIRD, [b"t1"])], "the first answer was heard"
    assert not threaded.references._references[own.object_id].lent and unheard.reply is None
    steps["G"]()
    assert len(threaded.lending.given_back) == 1


@pytest.mark.parametrize("nested", [[], [RefInfo(object_id("other"), THIRD, b"t")]])
def test_a_stream_that_is_over_is_kept_for_references_in_its_answers_and_not_for_ever(threaded: Actor, nested: Any) -> None:
    """A caller that lets go of its handle, and has another later, begins a new stream too, without a word of the old one."""
    for stream in range(1, 11):
        threaded.call(1, stream=stream, in_order=False)
        (task,) = threaded.calls._streams[address("owner").worker_id].tasks.values()
        assert task.claim()
        threaded.intake.answer(task, PushTaskReply(OK, (Value(b"", nested=nested),), 0), ())
    assert len(threaded.calls._over) == (9 if nested else 0)
    threaded.let_time_pass(OVER_S + 1)
    for stream in range(11, 21):
        threaded.call(1, stream=stream, in_order=False)
    assert threaded.calls._over == {}


# --- holes


def test_g56_a_number_that_does_not_come_is_waited_for_and_then_those_behind_it_are_given_back(actor: Actor) -> None:
    actor.call(1)
    behind, further = actor.call(3), actor.call(4)
    actor.let_time_pass(WAIT_S - 1)
    assert (behind.status, further.status) == (None, None)
    actor.let_time_pass(2)
    assert (behind.status, further.status) == (NOT_STARTED, NOT_STARTED)
    actor.call(5)
    actor.run_all()
    assert actor.log == ["owner 1", "owner 5"]


def test_g56_what_fills_the_hole_in_time_keeps_the_order(actor: Actor) -> None:
    actor.call(2)
    actor.let_time_pass(WAIT_S / 2)
    assert actor.timers() == 1
    actor.call(1)
    assert actor.timers() == 0
    actor.let_time_pass(WAIT_S)
    actor.run_all()
    assert actor.log == ["owner 1", "owner 2"]


def test_g56_what_fills_the_hole_too_late_begins_at_once(actor: Actor) -> None:
    actor.call(2)
    actor.let_time_pass(WAIT_S + 1)
    actor.call(1)
    actor.run_all()
    assert actor.log == ["owner 1"]


def test_g56_a_number_whose_reply_has_come_is_no_hole(actor: Actor) -> None:
    """The reply was too large to be sent, or the first push is all that the caller ever heard of it."""
    actor.call(3, acknowledged=1, answered=[(2, 2)])
    actor.run_all()
    assert actor.log == ["owner 3"]


def test_g56_each_hole_is_waited_for(actor: Actor) -> None:
    actor.call(2)
    actor.call(5)
    actor.let_time_pass(WAIT_S - 1)
    actor.call(1)
    actor.let_time_pass(2)
    actor.run_all()
    assert actor.log == ["owner 1", "owner 2"]
    actor.call(3)
    actor.call(4)
    actor.run_all()
    assert actor.log == [f"owner {n}" for n in range(1, 6)]


def test_g56_a_hole_is_given_up_for_its_own_time_and_not_for_that_of_one_before(actor: Actor) -> None:
    actor.call(2)
    behind_another = actor.call(5)
    actor.let_time_pass(WAIT_S - 1)
    actor.call(1)
    actor.run_all()
    actor.call(6, acknowledged=2)
    actor.let_time_pass(2)
    assert behind_another.status is None
    actor.let_time_pass(WAIT_S)
    assert behind_another.status == NOT_STARTED


def test_g52_a_call_that_keeps_no_order_goes_back_when_its_argument_is_being_made_again(actor: Actor) -> None:
    asked = actor.call(1, in_order=False, arguments=[late("a")])
    actor.act(actor.misses.pop())
    assert (asked.status, asked.replies[0].missing) == (NOT_STARTED, (object_id("a"),))
    assert actor.freed == [object_id("a")]


# --- cancelling


def test_g40_a_call_that_has_not_begun_is_cancelled_and_holds_up_nobody(actor: Actor) -> None:
    first = actor.call(1, arguments=[late("a")])
    request = actor.last_call
    actor.call(2)
    assert actor.cancel_call(request, recursive=True) == CancelTaskReply(found=True, was_running=False)
    assert actor.cancelled_children == []
    actor.run_all()
    assert first.status == CANCELLED and isinstance(first.value, TaskCancelledError) and actor.log == ["owner 2"]


def test_g45_a_running_call_sees_a_flag_and_its_children_are_cancelled_too(actor: Actor) -> None:
    seen = []

    def look() -> str:
        request = actor.last_call
        assert actor.calls.cancel(CancelTask(request.task_id, 0, False, True)) is not None
        current = actor.executor.current
        assert current is not None
        seen.append(current.cancelled)
        return "done"

    actor.executor.actor.look = look
    asked = actor.call(1, method="look")
    actor.run_all()
    assert seen == [True] and actor.interrupts == []
    assert asked.status == CANCELLED and isinstance(asked.value, TaskCancelledError), "what it returns is lost"
    assert actor.cancelled_children == [(actor.last_call.task_id, False)]
    assert [task.task_id for task in actor.told_generators] == [actor.last_call.task_id]


def test_g45_what_a_running_call_notices_of_its_cancellation_is_up_to_its_process(actor: Actor) -> None:
    actor.call(1)
    (task,) = actor.calls.unanswered()
    assert task.claim() and actor.calls.actor is not None
    cancelled: list[Any] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(actor.calls.actor, "cancel_call", cancelled.append)
        assert actor.cancel_call(actor.last_call) == CancelTaskReply(found=True, was_running=True)
    assert cancelled == [task]


def test_g112_a_cancel_of_an_earlier_attempt_changes_nothing(actor: Actor) -> None:
    asked = actor.call(1, attempt=2)
    assert actor.act(lambda: actor.calls.cancel(CancelTask(actor.last_call.task_id, 1, False, False))) is None
    actor.run_all()
    assert asked.status == OK


def test_g43_what_has_ended_or_is_not_here_is_not_cancelled(actor: Actor) -> None:
    actor.call(1)
    actor.run_all()
    assert actor.cancel_call(actor.last_call) is None
    assert actor.act(lambda: actor.calls.cancel(CancelTask(b"elsewhere", 0, False, False))) is None


# --- ending


def test_c2_an_actor_that_exits_begins_nothing_any_more(actor: Actor) -> None:
    leaving = actor.call(1, method="leave")
    queued, repeated = actor.call(2), actor.last_call
    actor.run_all()
    (then,) = actor.announced
    actor.act(then)
    assert leaving.status == FAILED and actor.ended == ["it has exited"]
    after = actor.call(3)
    assert (queued.status, after.status, actor.arrive(repeated).status) == (None, None, None)
    assert actor.refused == [2, 3, 2], "they fail when the gcs knows that the actor exits"
    assert isinstance(leaving.value, ActorDiedError)
    assert actor.calls.is_idle() and actor.log == []


def test_g33a_who_has_ended_an_actor_is_answered_when_the_gcs_knows_that_it_ends(actor: Actor) -> None:
    leaving = actor.call(1, method="leave")
    actor.run_all()
    assert leaving.status is None and actor.ended == ["it has exited"] and not actor.calls.is_idle()
    (then,) = actor.announced
    actor.act(then)
    assert leaving.status == FAILED and actor.calls.is_idle()


def test_c2_what_an_actor_that_ends_has_not_begun_is_let_go_and_nothing_is_waited_for(actor: Actor) -> None:
    actor.call(1, arguments=[late("a")])
    actor.call(2, "other")
    assert actor.timers() == 1
    actor.act(lambda: actor.end_actor("it was told to"))
    assert sorted(actor.refused) == [1, 2]
    assert actor.freed == [object_id("a")] and actor.timers() == 0 and actor.calls.is_idle()


def test_c2_running_calls_of_an_actor_that_exits_finish(threaded: Actor) -> None:
    running = threaded.call(1, in_order=False)
    work, then = threaded.beside.popleft()
    threaded.act(work)
    threaded.call(2, method="leave", in_order=False)
    threaded.run_beside_next()
    threaded.act(threaded.announced.pop())
    assert threaded.ended and not threaded.calls.is_idle()
    threaded.act(then)
    assert running.value == "owner 1" and threaded.calls.is_idle()


def test_g24_the_gcs_asks_it_to_end_and_nobody_else_can(actor: Actor) -> None:
    actor.act(lambda: actor.calls.handle_ExitActor(ExitActor(id_of("another")), NOBODY))
    assert actor.ended == []
    actor.act(lambda: actor.calls.handle_ExitActor(ExitActor(ACTOR), NOBODY))
    assert actor.ended == ["there is no handle of it any more"]


# --- groups


def test_g53_a_group_runs_as_many_calls_as_its_limit_and_groups_do_not_wait_for_each_other(threaded: Actor) -> None:
    for sequence in range(1, 5):
        threaded.call(sequence, in_order=False)
    for sequence in (5, 6):
        threaded.call(sequence, in_order=False, group="io")
    assert len(threaded.beside) == 3, "two of the default group, one of the other"
    threaded.run_beside_next(2)
    threaded.run_beside_next(1)
    assert len(threaded.beside) == 3
    while threaded.beside:
        threaded.run_beside_next()
    assert threaded.log == [f"owner {n}" for n in (5, 2, 1, 6, 3, 4)]


# --- everything at once

ARRIVALS = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 6), st.booleans()), max_size=25)


@given(ARRIVALS, st.lists(st.integers(1, 6), unique=True, max_size=2))
@settings(max_examples=60, deadline=None)
def test_g49_g112_s8_in_whatever_order_and_however_often_calls_arrive_each_runs_once_in_its_order(
    arrivals: list[tuple[str, int, bool]], slow: list[int]
) -> None:
    """Some of their arguments are late."""
    actor = Actor()
    try:
        requests: dict[tuple[str, int], Any] = {}
        everything = [*arrivals, *((caller, sequence, True) for caller in "ab" for sequence in range(1, 7))]
        for caller, sequence, runs in everything:
            if (caller, sequence) in requests:
                actor.arrive(requests[caller, sequence])
            else:
                arguments = [late(f"{caller}{sequence}")] if sequence in slow else []
                actor.call(sequence, caller, arguments=arguments)
                requests[caller, sequence] = actor.last_call
            if runs:
                actor.run_all()
        while actor.fetches:
            key = actor.fetches[0][0].rstrip(b"-").decode()
            actor.argument_comes(stored(pickle.dumps(f"{key[0]} {key[1]}")))
        actor.run_all()
        for caller in "ab":
            assert [line for line in actor.log if line[0] == caller] == [f"{caller} {n}" for n in range(1, 7)]
        assert [actor.arrive(request).status for request in requests.values()] == [OK] * 12
    finally:
        actor.loop.close()
