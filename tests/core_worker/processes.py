"""Several processes that share objects, with real reference counters and a network that is as bad as it may be.

``Cluster`` plays the shell around the counter (``borrowing``, ``task_receiver``, ``core_worker``) one step at a time, so
that a test may let anything else happen in between. Requests and replies wait on links until they are delivered. A link
keeps order, but links do not wait for each other. A delivered request may arrive once more at any later time. Its reply may
be lost with the channel; then it is sent again. News of deaths takes its time too.

Every delivery checks S7: an owner frees an object only if nobody holds, borrows or carries it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.stored_object import StoredObject
from minray.protocol.base import Address
from minray.protocol.core_worker import Loan, RefInfo

Ref = tuple[bytes, Address]
OnAnswer = Callable[[Any], None]
"""Hears the reply, or None: the peer is dead."""


@dataclass(eq=False)
class Call:
    """A request, with the callback of the caller that waits for its answer."""

    sender: Process
    handle: Callable[[OnAnswer], None]
    """Runs at the receiver; may answer at once, later or never."""
    on_answer: OnAnswer
    carries: frozenset[bytes] = frozenset()
    """Objects that the sender passes on with this request."""
    answered: bool = False


@dataclass(eq=False)
class Task:
    """One task on a worker."""

    owner: Process
    worker: Process
    return_id: bytes
    held: list[Ref]
    frame: list[Ref] = field(default_factory=list)
    """ObjectRefs that its code has in its hands."""
    replies: list[OnAnswer] = field(default_factory=list)
    """Ways to answer: a push may have come more than once."""
    result: list[RefInfo] | None = None
    ended: bool = False
    push: Call | None = None
    is_given_up: bool = False
    """Whether the worker knows that the owner has given the task up."""


class Process:
    """One process: its counter, its values, its user's references."""

    def __init__(self, cluster: Cluster, name: str, node: str) -> None:
        self.cluster = cluster
        self.name = name
        self.address = Address(name.encode().ljust(16, b"."), node.encode().ljust(16, b"."), f"sim:{name}")
        self.counter = ReferenceCounter()
        self.values: dict[bytes, tuple[Ref, ...]] = {}
        """The memory store: what each value here contains."""
        self.refs: list[Ref] = []
        """ObjectRefs in the user's hands."""
        self.asking: set[bytes] = set()
        """Borrowed objects asked for."""
        self.askers: dict[bytes, list[Callable[[], None]]] = {}
        """Borrowed object that does not exist yet -> callbacks that wait for it here."""
        self.tasks: list[Task] = []
        """Tasks that run here."""
        self.alive = True
        self.cut_off: set[str] = set()
        """Processes whose words do not count any more, because they are known to be dead."""
        self._count = 0

    def new_id(self) -> bytes:
        self._count += 1
        return self.address.worker_id[:12] + self._count.to_bytes(4, "big")

    def owner_of(self, owner: Address) -> Address | None:
        return None if owner == self.address else owner

    # --- what the user does

    def put(self, inside: list[Ref]) -> Ref:
        object_id = self.new_id()
        self.counter.add_owned(object_id)
        self.refs.append((object_id, self.address))
        self.on_value(object_id, [RefInfo(inner, owner, b"") for inner, owner in inside])
        return object_id, self.address

    def make_ref(self, ref: Ref) -> None:
        """Unpickling has made another ObjectRef."""
        self.counter.add_local(ref[0], self.owner_of(ref[1]))

    def drop_ref(self, ref: Ref) -> None:
        effects = Effects()
        self.counter.remove_local([ref[0]], effects)
        self.apply(effects)

    def get(self, ref: Ref) -> None:
        """Look at a value: the references inside become the user's; one that is not here is asked for."""
        object_id, owner = ref
        if object_id in self.values:
            for inner in self.values[object_id]:
                self.make_ref(inner)
                self.refs.append(inner)
        elif owner != self.address:
            self.ask(object_id, self.cluster.at(owner))

    def ask(self, object_id: bytes, owner: Process) -> None:
        if object_id in self.asking:
            return
        self.asking.add(object_id)
        self.counter.add_question(object_id)
        question = self.new_id()

        def on_answer(infos: list[RefInfo] | None) -> None:
            self.asking.discard(object_id)
            effects = Effects()
            if infos:
                self.counter.receive_ticket(RefInfo(object_id, owner.address, question), effects)
            self.counter.remove_question(object_id, effects)
            self.apply(effects)
            if infos is not None:
                self.on_value(object_id, infos)

        self.cluster.send(self, owner, partial(owner.handle_get, object_id, self, question), on_answer)

    def submit(self, worker: Process, arguments: list[Ref], looked_into: list[Ref]) -> None:
        """Arguments whose values are here and which are passed at the top level travel with what is inside them."""
        return_id = self.new_id()
        self.counter.add_owned(return_id)
        self.refs.append((return_id, self.address))
        slots = [ref for ref in looked_into if ref[0] in self.values]
        held = [ref[0] for ref in arguments + slots]
        self.counter.add_submitted(held, [None] * len(held))
        carried = arguments + [inner for ref in slots for inner in self.values[ref[0]]]
        task = Task(self, worker, return_id, carried)

        def on_answer(infos: list[RefInfo] | None) -> None:
            self.on_value(return_id, infos or [])
            effects = Effects()
            self.counter.remove_submitted(held, effects)
            self.apply(effects)

        carries = frozenset(object_id for object_id, _ in carried)
        task.push = self.cluster.send(self, worker, partial(worker.handle_push, task), on_answer, carries)

    def delete(self, object_id: bytes) -> None:
        """The user frees a value: an error takes its place, which has no references inside."""
        if object_id in self.values:
            self.values[object_id] = ()

    def give_up(self, task: Task) -> None:
        """Fail a call that the actor does not answer; the actor lives, and hears of it."""
        assert task.push is not None
        self.cluster.forget(task.push)
        self.cluster.orphans.update(object_id for object_id, _ in task.held)
        task.push.on_answer(None)
        self.cluster.send(self, task.worker, partial(task.worker.handle_give_up, task), ignore)

    # --- what the shell does

    def on_value(self, object_id: bytes, infos: list[RefInfo]) -> None:
        effects = Effects()
        if self.counter.on_value(object_id, infos, self.address.worker_id, effects):
            self.values[object_id] = tuple((info.object_id, info.owner) for info in infos)
        self.apply(effects)
        for ask_again in self.askers.pop(object_id, ()):
            ask_again()

    def apply(self, effects: Effects) -> None:
        for object_id in effects.freed:
            self.values.pop(object_id, None)
            self.cluster.check_freed(self, object_id)
            for ask_again in self.askers.pop(object_id, ()):
                ask_again()
        for object_id, owner, tickets in effects.give_back:
            there = self.cluster.at(owner)
            self.cluster.send(self, there, partial(there.handle_remove_borrower, object_id, tickets), ignore)
        for (borrower, lender_id), loans in effects.doubtful.items():
            self.check_tickets(self.cluster.at(borrower), lender_id, loans)

    def check_tickets(self, borrower: Process, lender_id: bytes, loans: list[Loan]) -> None:
        def on_answer(missing: list[Loan] | None) -> None:
            effects = Effects()
            for loan in missing or ():
                self.counter.take_back(loan.object_id, [loan.ticket], effects)
            self.apply(effects)

        self.cluster.send(self, borrower, partial(borrower.handle_check_tickets, lender_id, loans), on_answer)

    def lend(self, refs: list[Ref], receiver: Address, then: Callable[[list[RefInfo]], None], name: bytes = b"") -> None:
        """Have tickets noted for all of these, then go on."""
        name = name or self.new_id()
        infos = [RefInfo(object_id, owner, name + bytes([index])) for index, (object_id, owner) in enumerate(refs)]
        waiting = [info for info in infos if info.owner != self.address]
        left = len(waiting)

        def on_answer(_done: Any) -> None:
            nonlocal left
            left -= 1
            if not left:
                then(infos)

        for info in infos:
            if info.owner == self.address:
                self.counter.lend(info.object_id, receiver, info.ticket, self.address)
        for info in waiting:
            owner = self.cluster.at(info.owner)
            noting = partial(owner.handle_add_borrower, info.object_id, info.ticket, receiver, self.address)
            self.cluster.send(self, owner, noting, on_answer)
        if not waiting:
            then(infos)

    def finish(self, task: Task, returned: list[Ref], kept: list[Ref]) -> None:
        """The code of a task has ended: it returns some references and leaves some in global variables."""
        task.ended = True
        results = list(returned)
        for ref in results:
            self.make_ref(ref)
        for ref in task.frame:
            if ref in kept:
                kept.remove(ref)
                self.refs.append(ref)
            else:
                self.drop_ref(ref)

        def answer(infos: list[RefInfo]) -> None:
            self.tasks.remove(task)
            effects = Effects()
            self.counter.remove_submitted([object_id for object_id, _ in task.held], effects)
            self.apply(effects)
            task.result = infos
            for reply in task.replies:
                reply(infos)
            if task.is_given_up:
                self.take_back_result(task)
            for ref in results:
                self.drop_ref(ref)

        def lend_results() -> None:
            self.lend(results, task.owner.address, answer)

        keep = self.counter.keep_after_task([object_id for object_id, _ in task.held])
        if keep:
            self.keep(keep, lend_results)
        else:
            lend_results()

    def take_back_result(self, task: Task) -> None:
        """Give back the tickets in an answer that its receiver never sees."""
        effects = Effects()
        for info in task.result or ():
            if info.owner == self.address:
                self.counter.take_back(info.object_id, [info.ticket], effects)
            else:
                effects.give_back.append((info.object_id, info.owner, [info.ticket]))
        self.apply(effects)

    def keep(self, refs: list[Ref], then: Callable[[], None]) -> None:
        def on_tickets(infos: list[RefInfo]) -> None:
            effects = Effects()
            for info in infos:
                self.counter.receive_ticket(info, effects)
            self.apply(effects)
            then()

        self.lend(refs, self.address, on_tickets)

    # --- what others ask

    def handle_add_borrower(
        self, object_id: bytes, ticket: bytes, borrower: Address, lender: Address, reply: OnAnswer
    ) -> None:
        self.counter.lend(object_id, borrower, ticket, lender)
        reply(True)

    def handle_remove_borrower(self, object_id: bytes, tickets: list[bytes], reply: OnAnswer) -> None:
        effects = Effects()
        self.counter.take_back(object_id, tickets, effects)
        self.apply(effects)
        reply(True)

    def handle_check_tickets(self, lender_id: bytes, loans: list[Loan], reply: OnAnswer) -> None:
        self.cut_off.add(self.cluster.by_id[lender_id].name)
        reply([loan for loan in loans if not self.counter.holds_ticket(loan)])

    def handle_get(self, object_id: bytes, requester: Process, question: bytes, reply: OnAnswer) -> None:
        before = self.counter.answer_to(object_id, question)
        here = self.values.get(object_id)
        inside = here if before is None else tuple((info.object_id, info.owner) for info in before.nested)
        if inside is None and self.counter.reference_of(object_id) is not None:
            ask_again = partial(self.handle_get, object_id, requester, question, reply)
            self.askers.setdefault(object_id, []).append(ask_again)
        elif not inside:
            reply([])
        else:
            answer = StoredObject(b"", (), False, [RefInfo(inner, owner, b"") for inner, owner in inside])
            if self.counter.lend(object_id, requester.address, question, self.address, answer):
                self.lend(list(inside), requester.address, reply, question)
            else:  # a late repetition, or a question of the dead
                reply([])

    def handle_give_up(self, task: Task, reply: OnAnswer) -> None:
        task.is_given_up = True
        self.take_back_result(task)
        reply(True)

    def handle_push(self, task: Task, reply: OnAnswer) -> None:
        if task.result is not None:
            reply(task.result)
        task.replies.append(reply)
        if len(task.replies) > 1:
            return
        self.tasks.append(task)
        self.counter.add_submitted([ref[0] for ref in task.held], [self.owner_of(ref[1]) for ref in task.held])
        for ref in task.held:
            self.make_ref(ref)
            task.frame.append(ref)

    def works_for(self, owner: Process) -> bool:
        return any(task.owner is owner for task in self.tasks)

    def hear_of_death(self, process: Process) -> None:
        self.cut_off.add(process.name)
        effects = Effects()
        self.counter.on_death(process.address.worker_id, effects)
        self.apply(effects)


class Cluster:
    """All processes and all that is on its way between them."""

    def __init__(self, names: Iterable[str]) -> None:
        self.processes = [Process(self, name, f"node-{name}") for name in names]
        self.by_id = {process.address.worker_id: process for process in self.processes}
        self.links: dict[tuple[str, str], deque[Callable[[], None]]] = {}
        self.late: list[tuple[Process, Call]] = []
        """Requests that have been delivered, and may be once more."""
        self.open: dict[Call, Process] = {}
        """Not answered yet, with their receivers."""
        self.orphans: set[bytes] = set()
        """Arguments of tasks that were given up: a worker that holds one without a ticket is not protected any more."""

    def at(self, address: Address) -> Process:
        return self.by_id[address.worker_id]

    def living(self) -> list[Process]:
        return [process for process in self.processes if process.alive]

    def pushed(self) -> list[Task]:
        """Tasks at workers whose owners wait for the answer."""
        tasks = [task for process in self.living() for task in process.tasks]
        return [task for task in tasks if task.push in self.open and task.owner.alive]

    # --- messages

    def send(
        self,
        sender: Process,
        receiver: Process,
        handle: Callable[[OnAnswer], None],
        on_answer: OnAnswer,
        carries: frozenset[bytes] = frozenset(),
    ) -> Call:
        call = Call(sender, handle, on_answer, carries)
        self.open[call] = receiver
        self._put(sender, receiver, partial(self._arrive, receiver, call))
        return call

    def forget(self, call: Call) -> None:
        """The sender does not wait for the answer any more."""
        call.answered = True
        self.open.pop(call, None)

    def _put(self, sender: Process, receiver: Process, delivery: Callable[[], None]) -> None:
        self.links.setdefault((sender.name, receiver.name), deque()).append(delivery)

    def _arrive(self, receiver: Process, call: Call) -> None:
        if not receiver.alive:
            self._put(receiver, call.sender, partial(self._answer, receiver, call, None))
            return
        if call.carries and not call.sender.alive:
            return  # a task of a dead owner: the raylet kills the worker that is leased to it
        self.late.append((receiver, call))
        call.handle(lambda reply: self._put(receiver, call.sender, partial(self._answer, receiver, call, reply)))

    def _answer(self, receiver: Process, call: Call, reply: Any) -> None:
        if call.answered or not call.sender.alive:
            return
        if receiver.name in call.sender.cut_off:
            reply = None
        self.forget(call)
        call.on_answer(reply)

    def busy_links(self) -> list[tuple[str, str]]:
        return sorted(link for link, messages in self.links.items() if messages)

    def deliver(self, link: tuple[str, str], reply_is_lost: bool = False) -> None:
        """Deliver the oldest message of a link; if it is a reply, it may be lost and its request be sent again."""
        assert self.links.get(link), f"nothing is on the way from {link[0]} to {link[1]}: it was not sent, or has arrived"
        delivery = self.links[link].popleft()
        if reply_is_lost and isinstance(delivery, partial) and delivery.func == self._answer:
            receiver, call = delivery.args[:2]
            if receiver.alive and not call.answered:
                self._put(call.sender, receiver, partial(self._arrive, receiver, call))
                return
        delivery()

    def repeat(self, index: int) -> None:
        """A request that has been delivered arrives once more, from a channel that its sender takes for broken."""
        receiver, call = self.late.pop(index)
        if receiver.alive and (call.sender.alive or not call.carries):
            call.handle(ignore)

    def kill(self, process: Process) -> None:
        """``kill -9``; the raylets kill what runs for it, and everyone hears of it in time."""
        doomed = self.doomed_with(process)
        for each in doomed:
            each.alive = False
        for each in doomed:
            for call in [call for call, receiver in self.open.items() if receiver is each]:
                self._put(each, call.sender, partial(self._answer, each, call, None))
            for other in self.living():
                self._put(each, other, partial(other.hear_of_death, each))

    def doomed_with(self, process: Process) -> list[Process]:
        """The process itself, all processes that work for it, and all that work for those."""
        doomed = [process]
        for each in doomed:
            doomed += [other for other in self.living() if other not in doomed and other.works_for(each)]
        return doomed

    # --- invariants

    def check_freed(self, process: Process, object_id: bytes) -> None:
        """S7, whenever anyone forgets an object: if it is the owner, then nobody else may have it."""
        if object_id[:12] != process.address.worker_id[:12]:
            return
        for other in self.living():
            reference = other.counter.reference_of(object_id)
            if reference is not None and (reference.held_tickets or object_id not in self.orphans):
                assert not reference.is_held(), f"{other.name} holds what {process.name} has freed"
        for call, receiver in self.open.items():
            carried = call.sender.alive and receiver.alive and object_id in call.carries - self.orphans
            assert not carried, f"{call.sender.name} sends what {process.name} has freed"

    def settle(self) -> None:
        """Deliver everything that is on its way, and end all tasks."""
        while self.busy_links() or any(process.tasks for process in self.living()):
            for link in self.busy_links():
                self.deliver(link)
            for process in self.living():
                for task in [task for task in process.tasks if not task.ended]:
                    process.finish(task, [], [])
        waiting = [ask for process in self.living() for askers in process.askers.values() for ask in askers]
        unanswered = [call for call, receiver in self.open.items() if call.sender.alive and receiver.alive]
        assert not unanswered and not waiting, "a call was never answered"

    def drop_everything(self) -> None:
        for process in self.living():
            refs, process.refs = process.refs, []
            for ref in refs:
                process.drop_ref(ref)


def ignore(_reply: Any) -> None:
    """For requests whose effect is all that matters, and for replies into the void."""
