"""A driver or worker lets wait only what lacks something: rules of ``Progress``, which looks between two instants."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from minray.common.ids import short, task_of
from minray.core_worker.records.pending_task import FAILED, FINISHED, PUSHED, QUEUED, WAITING
from minray.core_worker.submission.normal_task_submitter import CHECK_S, STALL_S
from minray.protocol.actor import ALIVE, DEAD
from tests.simulation.insides import CALLS, SUBMITTER, Rule, looks_into

SLACK_S = 0.05
"""Seconds by which a process may be late with its timers; a slow node takes up to 10 ms for a step."""


@looks_into(SUBMITTER)
def queued_tasks(core: Any, now: float) -> Iterator[str]:
    """A task waits for a worker only while no worker of its key is idle and a worker was asked for."""
    submitter = core.submission.submitter
    for key in submitter._keys.values():
        if key.is_due:
            yield f"has not assigned {len(key.queue)} tasks in this turn"
            continue
        idle = [worker for worker in key.workers.values() if not worker.in_flight]
        usable = [worker for worker in idle if not (worker.closing or worker.stalled)]
        is_contended = now < submitter._revoked_until
        overdue = [one for one in usable if is_contended and now - one.granted_at > submitter._lease_timeout_s]
        if key.queue:
            if len(usable) > len(overdue):
                yield f"lets {len(key.queue)} tasks wait, and a worker that it has leased for them is idle"
            if len(key.requests) < min(len(key.queue), submitter._request_limit()):
                yield f"lets {len(key.queue)} tasks wait, and has asked for {len(key.requests)} workers"
        else:
            if open_requests := [request for request in key.requests.values() if not request.cancelled]:
                yield f"has no task that waits, and asks for {len(open_requests)} workers"
            late = [one for one in idle if now - one.idle_since > submitter._linger_s + SLACK_S]
            if late:  # news of other requests is heard by the keys one after the other, and meanwhile the others linger
                yield f"keeps {len(late)} idle workers, and no task waits"
        slow = [one for one in key.workers.values() if len(one.in_flight) > 1 and not one.stalled]
        if any(now - worker.progress_at > STALL_S + CHECK_S + SLACK_S for worker in slow):
            yield "lets tasks wait behind a slow one, and does not take them back"
        if dead := [worker for worker in idle if worker.closing]:
            yield f"keeps {len(dead)} idle workers that get no more tasks"


@looks_into(SUBMITTER, CALLS)
def states_of_tasks(core: Any, _now: float) -> Iterator[str]:
    """Each unfinished task is where its state says, and a cancelled one does not wait."""
    resolver = core.submission.resolver
    for task in core.submission.tasks.tasks.values():
        what = f"task {short(task.task_id)}"
        if task.cancelled and task.state in (WAITING, QUEUED):
            yield f"lets {what} wait, which was cancelled"
        elif task.state is WAITING and task.waiting_for is not None:
            if not resolver.missing_of(task):
                yield f"lets {what} wait for arguments, which are all here"
        elif task.state is PUSHED and task.worker is not None and task.prepared.template.actor is None:
            if task.worker.in_flight.get(task.sequence) is not task:
                yield f"has pushed {what} to a process that does not have it"
        elif task.state is QUEUED and task.prepared.template.actor is None and not _is_queued(core, task):
            yield f"has lost {what}, which waits in no queue"


def _is_queued(core: Any, task: Any) -> bool:
    client = task.prepared.client
    if client is not None:
        return task in client.queue or task in client.retries
    return any(task in key.queue for key in core.submission.submitter._keys.values())


@looks_into(CALLS)
def calls_of_actors(core: Any, _now: float) -> Iterator[str]:
    """A call waits only for its arguments, for those before it, or for news of its actor."""
    for actor_id in core.submission.actors.clients:
        client = core.submission.actors.clients.client_of(actor_id)
        if client is None:
            continue
        what, stream = f"of actor {short(actor_id)}", client.stream
        first = client.queue[0] if client.queue else None
        if client.state == DEAD:
            left = [*client.lost, *client.retries, *(task for task in client.queue if task.state is QUEUED)]
            if left:
                yield f"lets {len(left)} calls {what} wait, which is dead"
        elif stream is not None and not stream.is_lost:
            if client.retries or (first is not None and first.state is QUEUED):
                yield f"lets calls {what} wait, which can be reached"
        if first is not None and first.state in (FINISHED, FAILED):
            yield f"lets calls {what} wait behind one that is over"
        if client.info is not None and client.state != DEAD:
            if any(pushed_to.restarts < client.info.restarts for pushed_to in client.lost.values()):
                yield f"has not decided calls {what} that an earlier incarnation had"
            if client.state == ALIVE and stream is not None and stream.restarts != client.info.restarts:
                yield f"sends calls {what} to incarnation {stream.restarts}, and it is number {client.info.restarts}"


def awaited_objects(core: Any, _now: float) -> Iterator[str]:
    """No thread or task waits for a value that is here; the owner is asked for each value that is borrowed."""
    store, futures, references = core.store, core.futures, core.references
    asked = futures._asking | futures._probing.keys() | futures._looking.keys()
    for object_id, waiters in store._waiters.items():
        if object_id in store.objects:
            yield f"lets {len(waiters)} wait for {short(object_id)}, which is here"
            continue
        reference = references.reference_of(object_id)
        is_borrowed = reference is not None and reference.owner is not None
        is_open = any(not waiter.released for waiter in waiters)
        if is_open and is_borrowed and object_id not in asked and object_id not in core.submission.resolver._large:
            yield f"lets {len(waiters)} wait for {short(object_id)}, and does not ask its owner"
    if futures._following is not None:
        yield "has not asked all questions of this turn"


def batches(core: Any, _now: float) -> Iterator[str]:
    """An item of a batch is sent, or waits behind a message to the same receiver."""
    for sent in (core.borrowing._spent, core.directory._free, core.directory._promote):
        for receiver, batch in sent._batches.items():
            if not batch._is_open:
                yield f"lets {len(batch._waiting)} words for {short(receiver)} wait"


def generators(core: Any, _now: float) -> Iterator[str]:
    """A generator is held up only by its reader."""
    submission, tasks = core.submission, core.submission.tasks.tasks
    for task_id, stream in submission.generators.streams._streams.items():
        task = tasks.get(task_id)
        if not stream.waiting:
            continue
        if any(count <= stream.read for count, _ in stream.waiting):
            yield f"holds the generator {short(task_id)} up, though enough items are read"
        if task is None or not submission.generators.is_wanted(task_id):
            yield f"holds the generator {short(task_id)} up, of which it wants no items"
        elif task.has_lost_results:
            yield f"holds the generator {short(task_id)} up, whose items are lost and have to be made again"
    for stream in core.execution.generator_executor._waiting.values():
        what = f"the generator {short(stream.task.task_id)}"
        if stream.wake is None or stream.wake[0]():
            yield f"lets {what} wait, which may go on"
        elif stream.wake[0] == stream.may_go_on and stream.is_held_up() and not stream.is_asking:
            yield f"lets {what} wait, and does not ask its reader"
        if stream.queue and not stream.is_lending:
            yield f"has not reported {len(stream.queue)} items of {what}"


def received_tasks(core: Any, _now: float) -> Iterator[str]:
    """A task that was received waits only for its environment, its function, or its arguments."""
    receiver, actor_receiver = core.execution.receiver, core.execution.actor_receiver
    if receiver._waiting:
        first = receiver._waiting[0]
        if first.is_claimed() or receiver._is_ready(first):
            yield f"lets {len(receiver._waiting)} tasks wait, and the first can begin"
        elif not receiver._environment_ready and receiver._preparing is None:
            yield f"lets {len(receiver._waiting)} tasks wait, and does not prepare their environment"
    if receiver._blocked and (left := [one for one in receiver.unanswered() if not one.is_claimed()]):
        yield f"keeps {len(left)} tasks behind one that waits"
    for stream in actor_receiver._streams.values():
        first = stream.unbegun.get(stream.next)
        is_ending = actor_receiver.actor is not None and actor_receiver.actor.is_ending  # all of its calls are answered
        if first is not None and not is_ending and (first.is_claimed() or first.fetching is None):
            yield f"lets {len(stream.unbegun)} calls wait, and the first can begin"
        elif stream.unbegun and first is None and stream.hole_timer is None:
            yield f"lets {len(stream.unbegun)} calls wait for one before them, and will not give it up"
        if stream.is_orphaned and not stream.unanswered():
            yield f"keeps the calls of {short(stream.caller.worker_id)}, which is dead"
    actor = actor_receiver.actor
    for name, group in (actor._groups if actor is not None else {}).items():
        if group.waiting and group.running < group.limit:
            yield f"lets {len(group.waiting)} calls of group {name!r} wait, and runs {group.running} of {group.limit}"


def lost_objects(core: Any, _now: float) -> Iterator[str]:
    """A value of this process that a task waits for is there, is being made, or is looked for."""
    tasks, store = core.submission.tasks.tasks, core.store.objects
    for task in tasks.values():
        for object_id in task.waiting_for or () if task.state is WAITING else ():
            reference = core.references.reference_of(object_id)
            is_own = reference is not None and reference.owner is None
            if is_own and object_id not in store and task_of(object_id) not in tasks:
                yield f"lets task {short(task.task_id)} wait for {short(object_id)}, which nobody makes"


RULES: tuple[Rule, ...] = (
    queued_tasks, states_of_tasks, calls_of_actors, awaited_objects, batches, generators, received_tasks, lost_objects,
)  # fmt: skip
