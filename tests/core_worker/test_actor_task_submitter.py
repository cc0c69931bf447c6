"""Which call goes to which actor when, decided without a loop: order, retries, lost calls, streams, the dead and the lost.

``Caller`` is a submitter with a port that writes down what it is asked. What the gcs says is ``alive``, ``restarting`` and
``dead``; what the actor answers is ``answer``.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from minray.core_worker.records.pending_task import FAILED, FINISHED, PUSHED, WAITING, ActorClient, CallStream, PendingTask
from minray.core_worker.submission.actor_task_submitter import ActorTaskSubmitter
from minray.core_worker.submission.task_manager import TaskManager
from minray.protocol import actor as protocol
from minray.protocol.actor import ALIVE, DEAD, DEPENDENCIES_UNREADY, RESTARTING, ActorInfo, DeathCause
from tests.core_worker.parts import OWN, address, id_of, pending, prepare


class Caller:
    """One process that calls one actor."""

    def __init__(self, in_order: bool = True) -> None:
        self.tasks = TaskManager(None)
        self.submitter = ActorTaskSubmitter(self.tasks, self)
        self.client = ActorClient(id_of("actor"), OWN, in_order)
        self.names: dict[bytes, str] = {}
        self.pushed: list[str] = []
        """``1:2 a`` for call a as number 2 of stream 1; with a ``*`` if it keeps no order."""
        self.ended: dict[str, str] = {}
        """Call to how it ended."""
        self.discarded: list[str] = []
        self.given_up: list[tuple[int, list[int]]] = []
        """``a 0 of 1``: what attempt 0 of call a, which was pushed by stream 1, has made."""
        self.waits: list[CallStream] = []
        """For each of these ``on_no_verdict`` will be called, in this order."""

    # --- Actions

    def push(self, stream: CallStream, task: PendingTask, in_order: bool) -> None:
        name = self.names[task.task_id]
        self.pushed.append(f"{stream.number}:{task.sequence} {name}{'' if in_order else '*'}")

    def fail_dead(self, task: PendingTask, client: ActorClient) -> None:
        self.end(task, "dead")

    def fail_restarted(self, task: PendingTask, client: ActorClient, reason: str) -> None:
        self.end(task, "unavailable")

    def fail_unavailable(self, task: PendingTask, client: ActorClient, reason: str) -> None:
        self.end(task, "unavailable")

    def discard_attempt(self, task: PendingTask, stream: CallStream) -> None:
        self.discarded.append(f"{self.names[task.task_id]} {task.attempt} of {stream.number}")

    def give_up(self, stream: CallStream, sequences: list[int]) -> None:
        self.given_up.append((stream.number, sequences))

    def retry(self, task: PendingTask) -> None:
        self.submitter.on_task_ready(self.client, task)

    def wait_for_verdict(self, client: ActorClient, stream: CallStream) -> None:
        self.waits.append(stream)

    # --- what happens

    def end(self, task: PendingTask, how: str) -> None:
        self.tasks.move(task, FAILED)
        assert self.names[task.task_id] not in self.ended
        self.ended[self.names[task.task_id]] = how

    def submit(self, name: str, retries: int = 0, ready: bool = True) -> PendingTask:
        task = pending(prepare(name, client=self.client, max_retries=retries))
        self.names[task.task_id] = name
        self.tasks.add_task(task)
        self.submitter.on_submitted(self.client, task)
        if ready:
            self.submitter.on_task_ready(self.client, task)
        else:
            self.tasks.move(task, WAITING)
        return task

    def ready(self, task: PendingTask) -> None:
        self.submitter.on_task_ready(self.client, task)

    def cancel(self, task: PendingTask) -> None:
        task.cancelled = True
        self.end(task, "cancelled")
        self.submitter.on_task_ended(self.client)

    def hear(self, state: str, restarts: int, **fields: Any) -> None:
        info = ActorInfo(id_of("actor"), state, "A", "", "", OWN, False, -1, restarts, b"", **fields)
        self.submitter.on_info(self.client, info)

    def alive(self, restarts: int = 0) -> None:
        self.hear(ALIVE, restarts, address=address(f"actor-{restarts}"))

    def restarting(self, restarts: int = 1) -> None:
        self.hear(RESTARTING, restarts)

    def dead(self, restarts: int = 0) -> None:
        self.hear(DEAD, restarts, death=DeathCause(protocol.KILLED, "killed"))

    def unreachable(self) -> None:
        assert self.client.stream is not None
        self.submitter.on_unreachable(self.client, self.client.stream)

    def no_verdict(self) -> None:
        self.submitter.on_no_verdict(self.client, self.waits.pop(0))

    def answer(self, task: PendingTask, started: bool = True) -> None:
        assert isinstance(task.worker, CallStream)
        self.submitter.on_task_answered(task.worker, task)
        if started:
            self.tasks.move(task, FINISHED)
            self.ended[self.names[task.task_id]] = "value"
        else:
            self.submitter.on_task_ready(self.client, task)


# --- order


def test_calls_wait_until_the_actor_is_alive() -> None:
    caller = Caller()
    caller.submit("a")
    caller.hear(DEPENDENCIES_UNREADY, 0)
    caller.submit("b")
    assert caller.pushed == []
    caller.alive()
    caller.submit("c")
    assert caller.pushed == ["1:1 a", "1:2 b", "1:3 c"]


def test_g49_a_call_whose_argument_is_late_holds_up_those_behind_it() -> None:
    caller = Caller()
    caller.alive()
    caller.submit("a")
    late = caller.submit("late", ready=False)
    caller.submit("b")
    assert caller.pushed == ["1:1 a"]
    caller.ready(late)
    assert caller.pushed == ["1:1 a", "1:2 late", "1:3 b"]


def test_g49_a_call_that_is_cancelled_or_fails_before_its_turn_holds_up_nobody() -> None:
    caller = Caller()
    caller.alive()
    late = caller.submit("late", ready=False)
    caller.submit("b")
    caller.cancel(late)
    assert caller.pushed == ["1:1 b"] and caller.ended == {"late": "cancelled"}


def test_g51_an_actor_without_order_gets_calls_when_they_are_ready() -> None:
    caller = Caller(in_order=False)
    caller.alive()
    late = caller.submit("late", ready=False)
    caller.submit("b")
    caller.ready(late)
    assert caller.pushed == ["1:1 b*", "1:2 late*"]


def test_g51_an_actor_without_order_gets_what_was_ready_before_it_lived() -> None:
    caller = Caller(in_order=False)
    late = caller.submit("late", ready=False)
    caller.submit("b")
    caller.alive()
    caller.ready(late)
    assert caller.pushed == ["1:1 b*", "1:2 late*"]


# --- numbers


def test_the_actor_is_told_which_replies_have_come() -> None:
    caller = Caller()
    caller.alive()
    a, b, c, d = (caller.submit(name) for name in "abcd")
    stream = caller.client.stream
    assert stream is not None and stream.acknowledged() == 0
    caller.answer(c)
    caller.answer(b)
    assert stream.acknowledged() == 0
    assert stream.take_answered() == ((2, 3),) and stream.take_answered() == ()
    caller.answer(a)
    assert stream.acknowledged() == 3
    caller.answer(d)
    assert stream.acknowledged() == 4


def test_g56_a_call_that_was_given_back_is_made_again_without_order_and_for_free() -> None:
    caller = Caller()
    caller.alive()
    task = caller.submit("a")
    caller.submit("b")
    caller.answer(task, started=False)
    assert caller.pushed == ["1:1 a", "1:2 b", "1:3 a*"] and task.attempt == 0


# --- what lost calls leave behind


def test_l2_what_a_lost_call_has_made_is_discarded_whatever_becomes_of_it() -> None:
    caller = Caller()
    caller.alive()
    answered, cancelled = caller.submit("answered"), caller.submit("cancelled")
    caller.submit("once")
    caller.submit("twice", retries=1)
    caller.answer(answered)
    caller.cancel(cancelled)
    caller.restarting()
    assert caller.discarded == ["once 0 of 1", "twice 0 of 1"]
    caller.alive(1)
    caller.submit("waits", ready=False)
    caller.dead(1)
    assert caller.discarded[2:] == ["twice 1 of 2"]


def test_l2_what_a_call_made_that_could_not_be_reached_is_discarded() -> None:
    caller = Caller()
    caller.alive()
    caller.submit("a")
    caller.unreachable()
    assert caller.discarded == []
    caller.no_verdict()
    assert caller.discarded == ["a 0 of 1"] and caller.ended == {"a": "unavailable"}
    assert caller.given_up == [(1, [1])], "what is in its answer is nobody's"


# --- restarts


def test_g36_a_call_that_was_pushed_to_an_incarnation_that_died_fails() -> None:
    caller = Caller()
    caller.alive()
    caller.submit("a")
    caller.restarting()
    assert caller.ended == {"a": "unavailable"}
    caller.alive(1)
    assert caller.pushed == ["1:1 a"]


def test_g37_g52_a_call_with_retries_is_made_again_out_of_order() -> None:
    caller = Caller()
    caller.alive()
    a, late = caller.submit("a", retries=1), caller.submit("late", ready=False)
    caller.submit("b")
    caller.restarting()
    assert caller.ended == {} and a.retries_left == 0 and a.attempt == 1
    caller.alive(1)
    assert caller.pushed == ["1:1 a", "2:1 a*"]
    caller.ready(late)
    assert caller.pushed[2:] == ["2:2 late", "2:3 b"], "ray 50814: the new incarnation counts from one again"
    caller.restarting(2)
    assert caller.ended == dict.fromkeys(["a", "late", "b"], "unavailable")


def test_g37_a_call_that_is_made_while_the_actor_is_being_restarted_uses_one_retry() -> None:
    caller = Caller()
    caller.alive()
    caller.restarting()
    caller.submit("never")
    once = caller.submit("once", retries=1)
    forever = caller.submit("forever", retries=-1)
    assert caller.ended == {"never": "unavailable"} and (once.retries_left, forever.retries_left) == (0, -1)
    caller.alive(1)
    assert [push.split()[1] for push in caller.pushed] == ["once", "forever"]


def test_a_call_that_was_not_pushed_when_the_actor_died_needs_no_retry() -> None:
    caller = Caller()
    caller.alive()
    late, behind = caller.submit("late", ready=False), caller.submit("behind")
    caller.restarting()
    caller.alive(1)
    caller.ready(late)
    assert caller.pushed == ["1:1 late", "1:2 behind"] or caller.pushed == ["2:1 late", "2:2 behind"]
    assert behind.attempt == 0 and caller.ended == {}


def test_a_restart_that_is_heard_of_when_it_is_over_counts() -> None:
    """Subscribers may miss what lies between."""
    caller = Caller()
    caller.alive()
    caller.submit("a")
    caller.submit("b", retries=1)
    caller.alive(1)
    assert caller.ended == {"a": "unavailable"} and caller.pushed[2:] == ["2:1 b*"]


def test_old_news_change_nothing() -> None:
    caller = Caller()
    caller.alive(3)
    caller.submit("a")
    caller.restarting(2)
    assert caller.client.state == ALIVE and caller.ended == {} and caller.client.stream is not None


def test_g36_a_call_of_a_dead_actor_fails_now_and_later() -> None:
    caller = Caller()
    caller.alive()
    pushed, late = caller.submit("pushed", retries=-1), caller.submit("late", ready=False)
    caller.submit("behind")
    caller.dead()
    assert caller.ended == {"pushed": "dead", "behind": "dead"} and pushed.state == FAILED
    caller.ready(late)
    caller.submit("after", retries=-1)
    caller.alive(1)
    assert caller.ended == dict.fromkeys(["pushed", "behind", "late", "after"], "dead"), "G39b: dead is dead"
    assert caller.pushed == ["1:1 pushed"]


# --- out of reach


def test_g36_a_call_that_is_to_be_made_again_ends_with_its_actor() -> None:
    caller = Caller()
    caller.alive()
    caller.submit("a", retries=1)
    caller.restarting()
    assert caller.ended == {} and len(caller.client.retries) == 1
    caller.dead(1)
    assert caller.ended == {"a": "dead"} and not caller.client.retries


def test_g40_a_call_that_is_cancelled_before_it_is_made_again_is_not() -> None:
    caller = Caller()
    caller.alive()
    a = caller.submit("a", retries=1)
    caller.restarting()
    caller.cancel(a)
    caller.alive(1)
    assert caller.pushed == ["1:1 a"] and caller.ended == {"a": "cancelled"}


def test_g36_a_call_whose_arguments_come_again_when_its_actor_is_dead_is_not_kept() -> None:
    caller = Caller()
    caller.alive()
    a = caller.submit("a", retries=1)
    assert caller.client.stream is not None
    caller.submitter.on_task_answered(caller.client.stream, a)  # not begun: an argument is lost
    caller.tasks.move(a, WAITING)
    caller.dead()
    caller.ready(a)
    assert caller.ended == {"a": "dead"} and not caller.client.retries


def test_g39b_calls_of_an_actor_that_cannot_be_reached_are_unavailable_and_later_ones_may_succeed() -> None:
    caller = Caller()
    caller.alive()
    caller.submit("a")
    b = caller.submit("b", retries=1)
    caller.unreachable()
    caller.submit("c")
    assert len(caller.waits) == 1 and caller.ended == {}
    caller.no_verdict()
    assert caller.ended == {"a": "unavailable"} and b.attempt == 1
    assert caller.pushed[2:] == ["2:1 b*", "2:2 c"], "another stream, whose numbers have no holes"


def test_g39b_that_it_died_is_never_old_news() -> None:
    """The gcs does not know how often an actor was restarted that died long ago."""
    caller = Caller()
    caller.alive(3)
    caller.submit("a")
    caller.dead(0)
    assert caller.ended == {"a": "dead"}


def test_the_gcs_may_have_a_verdict_before_the_caller_loses_patience() -> None:
    caller = Caller()
    caller.alive()
    caller.submit("a", retries=1)
    caller.unreachable()
    caller.restarting()
    caller.no_verdict()
    caller.alive(1)
    assert caller.pushed == ["1:1 a", "2:1 a*"] and caller.ended == {}
    assert caller.client.failures == 0, "nobody needs more patience with it next time"


def test_the_dead_are_out_of_reach_first() -> None:
    caller = Caller()
    caller.alive()
    caller.submit("a", retries=5)
    caller.unreachable()
    caller.dead()
    caller.no_verdict()
    assert caller.ended == {"a": "dead"}


def test_patience_with_one_incarnation_does_not_run_out_for_the_one_before() -> None:
    """The news that the second one has died is late, and nothing is lost twice for it."""
    caller = Caller()
    caller.alive()
    caller.submit("a", retries=2)
    caller.unreachable()
    caller.restarting()
    caller.alive(1)
    caller.unreachable()
    caller.no_verdict()
    assert caller.pushed == ["1:1 a", "2:1 a*"] and caller.client.failures == 0
    caller.restarting(2)
    caller.alive(2)
    caller.no_verdict()
    assert caller.pushed[2:] == ["3:1 a*"] and caller.ended == {}


def test_patience_begins_anew_when_the_actor_answers() -> None:
    caller = Caller()
    caller.alive()
    caller.submit("a")
    for failures in (1, 2, 3):
        caller.unreachable()
        caller.no_verdict()
        assert caller.client.failures == failures
    caller.answer(caller.submit("b"))
    assert caller.client.failures == 0


def test_a_second_word_of_the_same_life_forgets_no_lost_call() -> None:
    caller = Caller()
    caller.alive()
    caller.submit("a")
    caller.unreachable()
    caller.alive()
    caller.no_verdict()
    assert caller.ended == {"a": "unavailable"}


def test_a_call_that_ended_while_it_was_lost_is_not_made_again() -> None:
    caller = Caller()
    caller.alive()
    task = caller.submit("a", retries=1)
    caller.unreachable()
    caller.end(task, "the cluster is gone")
    caller.no_verdict()
    assert caller.pushed == ["1:1 a"] and caller.ended == {"a": "the cluster is gone"}


# --- everything at once

STEP = st.tuples(
    st.sampled_from(
        ["submit", "submit", "late", "ready", "alive", "restarting", "dead", "lost", "no verdict", "answer", "answer",
         "give back", "cancel"],
    ),
    st.integers(0, 5),
)  # fmt: skip


@given(st.lists(STEP, max_size=40), st.booleans())
@settings(max_examples=300, deadline=None)
def test_g36_g37_g49_s8_whatever_happens_every_call_ends_once_in_order_and_within_its_retries(
    steps: list[tuple[str, int]], in_order: bool
) -> None:
    caller = Caller(in_order)
    calls: list[tuple[PendingTask, int]] = []
    restarts = 0
    for step, number in steps:
        waiting = [task for task, _ in calls if task.state is WAITING]
        pushed = [task for task, _ in calls if task.state is PUSHED and task.worker is not None]
        if step in ("submit", "late"):
            retries = number % 4 - 1
            calls.append((caller.submit(f"{len(calls)}", retries, ready=step == "submit"), retries))
        elif step == "ready" and waiting:
            caller.ready(waiting[number % len(waiting)])
        elif step == "cancel" and waiting:
            caller.cancel(waiting[number % len(waiting)])
        elif step == "alive":
            caller.alive(restarts)
        elif step == "restarting":
            restarts += 1
            caller.restarting(restarts)
        elif step == "dead" and number == 0:
            caller.dead(restarts)
        elif step == "lost" and caller.client.stream is not None:
            caller.unreachable()
        elif step == "no verdict" and caller.waits:
            caller.no_verdict()
        elif step in ("answer", "give back") and pushed:
            caller.answer(pushed[number % len(pushed)], started=step == "answer")
    expect_end(caller, calls, restarts)


def expect_end(caller: Caller, calls: list[tuple[PendingTask, int]], restarts: int) -> None:
    """When arguments, verdicts and answers come, nothing is left."""
    while any(task.state in (WAITING, PUSHED) for task, _ in calls) or caller.waits or caller.client.state == RESTARTING:
        for task, _ in calls:
            if task.state is WAITING:
                caller.ready(task)
        caller.alive(restarts)
        while caller.waits:
            caller.no_verdict()
        for task, _ in calls:
            if task.state is PUSHED:
                assert task.worker is not None, "a lost call that nobody decides about"
                caller.answer(task)
    caller.alive(restarts)
    for task, _ in calls:
        if task.state is PUSHED:
            caller.answer(task)
    assert len(caller.ended) == len(calls) and not caller.tasks.tasks
    assert not caller.client.queue and not caller.client.retries and not caller.client.lost
    for task, retries in calls:
        assert retries < 0 or task.attempt <= retries
    first = [int(push.split()[1]) for push in caller.pushed if not push.endswith("*")]
    assert first == sorted(first) and len(set(first)) == len(first)
    streams: dict[str, int] = {}
    for push in caller.pushed:
        stream, sequence = push.split()[0].split(":")
        assert int(sequence) == streams.get(stream, 0) + 1, "numbers of a stream have no holes"
        streams[stream] = int(sequence)
