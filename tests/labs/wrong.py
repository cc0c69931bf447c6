"""Plausible wrong solutions of each lab, as changes of the real file: mistakes that a careful student makes.

``make test-labs`` checks that each scores below 60 of 100 points, and the real file 100.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from labs.lab import load
from tests.zoo.transplant import Mutation


@dataclass(frozen=True)
class Wrong:
    """One wrong solution."""

    lab: str
    thought: str
    """The student's thought that leads to it."""
    symbol: str
    fragment: str
    replacement: str

    @property
    def mutation(self) -> Mutation:
        module = load(self.lab).file.removesuffix(".py").replace("/", ".")
        return Mutation(module, self.symbol, self.fragment, self.replacement)


def _lease_manager() -> Iterator[Wrong]:
    name, of = "01-lease-manager", "LocalLeaseManager"
    yield Wrong(name, "first come, first served is fair", f"{of}._rank", "self._held_by_owner[request.owner_id]", "0")
    yield Wrong(
        name,
        "if the best request of a shape may not run, its queue waits",
        f"{of}._best_of",
        "others = [request for request in queue.values() if request is not best and self._may_run(request)]",
        "others = []",
    )
    yield Wrong(
        name,
        "a lease that ends frees all that it holds, blocked or not",
        f"{of}.end",
        "self.set_blocked(lease_id, False)",
        "pass",
    )
    yield Wrong(
        name,
        "the worker cap holds for every task",
        f"{of}._best_of",
        "not best.for_actor and not self._is_deepest(best)",
        "not best.for_actor",
    )


def _reference_counter() -> Iterator[Wrong]:
    name, of = "02-reference-counter", "ReferenceCounter"
    yield Wrong(
        name,
        "an object that its owner does not hold is garbage",
        "Reference.is_in_scope",
        "bool(self.local or self.lent or self.asked)",
        "bool(self.local or self.asked)",
    )
    yield Wrong(
        name,
        "a ticket that never arrived here needs no tombstone",
        f"{of}.take_back",
        "remember(self._spent, ticket, None)",
        "pass",
    )
    yield Wrong(
        name,
        "a ticket that nobody has noted was never lent",
        f"{of}.take_back",
        "remember(self._spent, ticket, None)",
        "if reference is not None and ticket in (reference.lent or ()):\n    remember(self._spent, ticket, None)",
    )
    yield Wrong(
        name,
        "a question is no holder",
        f"{of}.needs_ticket",
        "reference.is_held()",
        "reference.is_wanted()",
    )
    yield Wrong(
        name,
        "a dead lender has sent what it promised",
        f"{of}.on_death",
        "effects.doubtful.setdefault((borrower, lender.worker_id), []).append(Loan(object_id, ticket))",
        "pass",
    )
    yield Wrong(
        name,
        "each arrival of a value holds what is inside it",
        f"{of}.on_value",
        "is_needed and reference is not None and not reference.nested",
        "is_needed and reference is not None",
    )


def _actor_submitter() -> Iterator[Wrong]:
    name, of = "03-actor-submitter", "ActorTaskSubmitter"
    yield Wrong(
        name,
        "a call that is pushed again keeps its place in the order",
        f"{of}._push",
        "client.in_order and not task.sequence",
        "client.in_order",
    )
    yield Wrong(
        name,
        "news of the gcs are never older than what is known",
        f"{of}.on_info",
        "known is not None and info.restarts < known.restarts and info.state != DEAD",
        "False",
    )
    yield Wrong(
        name,
        "a call whose turn it is not yet is skipped",
        f"{of}._flush",
        "return",
        "queue.popleft()",
    )
    yield Wrong(
        name,
        "what a lost call has left behind is gone with its process",
        f"{of}._retry_lost",
        "self._actions.discard_attempt(task, pushed_to)",
        "pass",
    )


def _pull_manager() -> Iterator[Wrong]:
    name, of = "04-pull-manager", "PullManager"
    yield Wrong(
        name,
        "a bundle begins when it fits, and else it waits",
        f"{of}._advance",
        "self._begun_count and not self._has_room(self.due_bytes + bundle.bytes)",
        "not self._has_room(self.due_bytes + bundle.bytes)",
    )
    yield Wrong(
        name,
        "the store knows what is taken",
        f"{of}._advance",
        "self._has_room(self.due_bytes + bundle.bytes)",
        "self._has_room(bundle.bytes)",
    )
    yield Wrong(
        name,
        "an object that is being made again is like one whose size is unknown",
        f"{of}.stall",
        "self._set_stalled(one, True)",
        "pass",
    )
    yield Wrong(
        name,
        "each bundle pays for all its objects",
        f"{of}._begin",
        "self._bundles[order].bytes -= one.size",
        "pass",
    )


def _spilling_policy() -> Iterator[Wrong]:
    name, of = "05-spilling-policy", "LocalObjectManager"
    yield Wrong(
        name,
        "memory is short as long as it is full",
        f"{of}._is_short",
        "self._table.unspilled_bytes - self._writing_bytes",
        "self._table.unspilled_bytes",
    )
    yield Wrong(
        name,
        "a batch that fails has written nothing",
        f"{of}.on_written",
        "zip(batch.entries, checksums, strict=False)",
        "zip(batch.entries, [] if has_failed else checksums, strict=False)",
    )
    yield Wrong(
        name,
        "a file that was written is kept",
        f"{of}.on_written",
        "needed > 0",
        "True",
    )
    yield Wrong(
        name,
        "a directory that has failed is full for good",
        f"{of}.release",
        "self._pauses.pop(file.directory, None)",
        "pass",
    )


def _submitter() -> Iterator[Wrong]:
    name, of = "07-submitter", "NormalTaskSubmitter"
    yield Wrong(
        name,
        "every task that waits needs a request",
        f"{of}.assign",
        "min(self._requests_per_task * len(key.queue), self._request_limit())",
        "self._requests_per_task * len(key.queue)",
    )
    yield Wrong(
        name,
        "a request that is redirected is made again, whoever waits",
        f"{of}.on_redirected",
        "if key.queue:\n    self._request(key, raylet, grant_or_reject)",
        "self._request(key, raylet, grant_or_reject)",
    )
    yield Wrong(
        name,
        "a lease lingers for its time, also when others wait",
        f"{of}._return_idle",
        "contended or left_s < TIMER_SLACK_S",
        "left_s < TIMER_SLACK_S",
    )
    yield Wrong(
        name,
        "a worker that has tasks to do is kept as long as there are tasks",
        f"{of}._may_take",
        "worker.closing or worker.stalled or self._is_overdue(worker, now)",
        "worker.closing or worker.stalled",
    )
    yield Wrong(
        name,
        "the best raylet is asked once, and the others are asked here",
        f"{of}.assign",
        "raylet = self._first_raylet(key)",
        "raylet = None if key.requests else self._first_raylet(key)",
    )
    yield Wrong(
        name,
        "a placement group is no strategy",
        f"{of}._first_raylet",
        "key.shape.strategy.kind == STRATEGY_DEFAULT",
        "key.shape.strategy.group_id or key.shape.strategy.kind == STRATEGY_DEFAULT",
    )
    yield Wrong(
        name,
        "the backlog is the queue",
        f"{of}._request",
        "max(0, len(key.queue) - len(key.requests) - 1)",
        "len(key.queue)",
    )


def _retries() -> Iterator[Wrong]:
    name, of = "08-retries", "TaskOutcomes"
    yield Wrong(
        name,
        "what a dead attempt has made died with it",
        f"{of}.on_died",
        "self.discard_attempt(task, raylet)",
        "pass",
    )
    yield Wrong(
        name,
        "a death for memory is a death",
        f"{of}.on_died",
        "failure is not None and failure.memory_total",
        "False",
    )
    yield Wrong(
        name,
        "a task whose worker dies was with it",
        f"{of}.on_died",
        "if task.state is not PUSHED:\n    return",
        "pass",
    )
    yield Wrong(
        name,
        "arguments that were there for the first attempt are there for the next",
        f"{of}.retry",
        "self._resolver.is_resolved(task)",
        "True",
    )
    yield Wrong(
        name,
        "what dies on a node that is to leave was preempted",
        f"{of}.on_died",
        "is_preempted if failure is None else failure.preempted",
        "is_preempted or failure is not None and failure.preempted",
    )
    yield Wrong(
        name,
        "a task that its user has cancelled fails as expected, whatever it answers",
        f"{of}.on_reply",
        "reply.status == FAILED and (task.prepared.client is None or is_raised_by_body(bytes(error.data)))",
        """
        reply.status == FAILED and not task.cancelled and (
            task.prepared.client is None or is_raised_by_body(bytes(error.data)))
        """,
    )
    yield Wrong(
        name,
        "whatever was not asked for is unexpected",
        f"{of}.on_reply",
        "reply.status == FAILED and (task.prepared.client is None or is_raised_by_body(bytes(error.data)))",
        "task.prepared.client is None or is_raised_by_body(bytes(error.data))",
    )


def _gcs_tables() -> Iterator[Wrong]:
    name, of = "09-gcs-tables", "GcsActorManager"
    yield Wrong(
        name,
        "a decision is true when it is made",
        f"{of}.ended_row",
        "return ActorRow(info, None, row.lease_id, row.raylet)",
        """
        ended = ActorRow(info, None, row.lease_id, row.raylet)
        self._rows[info.actor_id] = ended
        return ended
        """,
    )
    yield Wrong(
        name,
        "the gcs that has carried a kill out knows it",
        f"{of}.on_committed",
        "remember(self._kills, row.kill.kill_id, None)",
        "pass",
    )
    yield Wrong(
        name,
        "rows are stored in the order of their deaths",
        f"{of}.load",
        "sorted(rows, key=lambda row: (row.info.end_time, row.info.actor_id))",
        "list(rows)",
    )
    yield Wrong(
        name,
        "whoever dies leaves the name",
        f"{of}._forget_name",
        "self._named.get((info.namespace, info.name)) == info.actor_id",
        "(info.namespace, info.name) in self._named",
    )
    yield Wrong(
        name,
        "a restart is a restart, whatever the reason",
        f"{of}.lost_row",
        "info.may_restart(cause.preempted)",
        "info.may_restart()",
    )
    yield Wrong(
        name,
        "restarts are counted, so preemptions are, too",
        f"{of}.lost_row",
        "info.preemptions + cause.preempted",
        "info.preemptions",
    )
    yield Wrong(
        name,
        "who lives has not died",
        f"{of}.alive_row",
        "_with(row.info, ALIVE, address=address, raylet=row.raylet, pid=pid)",
        "_with(row.info, ALIVE, address=address, raylet=row.raylet, pid=pid, death=None)",
    )
    yield Wrong(
        name,
        "who is dead has no process",
        f"{of}.ended_row",
        "_with(row.info, DEAD, death=cause, end_time=now)",
        "_with(row.info, DEAD, death=cause, end_time=now, address=None, raylet=None, pid=0)",
    )


WRONG = [
    *_lease_manager(),
    *_reference_counter(),
    *_actor_submitter(),
    *_pull_manager(),
    *_spilling_policy(),
    *_submitter(),
    *_retries(),
    *_gcs_tables(),
]
