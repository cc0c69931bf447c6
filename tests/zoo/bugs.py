"""The zoo: bugs that Ray and Dask have had, each made again in minray by a small mutation, and what must catch it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.zoo.transplant import Mutation

WITNESSES = Path(__file__).with_name("witnesses")


@dataclass(frozen=True)
class Bug:
    """One inmate."""

    name: str
    there: str
    """The effect in the system that the bug comes from."""
    here: str
    """The effect of the mutation in minray."""
    prop: str
    """The property that must be seen broken."""
    scenario: str
    """The scenario of ``tests/zoo/scenarios.py`` that looks for it."""
    mutations: tuple[Mutation, ...]

    @property
    def witness(self) -> Path:
        """The smallest scenario that shows it, if the campaign has found one; see ``tests/zoo/witness.py``."""
        return WITNESSES / f"{self.name}.json"


BROKER = "minray.raylet.lease_broker"
RECEIVER = "minray.core_worker.execution.task_receiver"
SUBMITTER = "minray.core_worker.submission.normal_task_submitter"

BUGS = [
    Bug(
        "ray-55469",
        "A retried ReturnWorkerLease named the worker, not the lease, and freed the lease that the worker had by then.",
        "The raylet remembers which worker a lease had, and a return ends whatever lease that worker has now.",
        "S2",
        "mix",
        (
            Mutation(
                "minray.raylet.lease_scheduler",
                "LeaseScheduler._grant",
                "entry.worker = worker",
                """
                entry.worker = worker
                worker.__class__.leases = getattr(worker.__class__, "leases", {})
                worker.__class__.leases[entry.request.lease_id] = worker
                """,
            ),
            Mutation(
                BROKER,
                "LeaseBroker.give_back",
                """
                if entry is None:
                    return
                """,
                """
                if entry is None:
                    had = getattr(Worker, "leases", {}).get(lease_id)
                    others = (other for other in self.entries.values() if had is not None and other.worker is had)
                    entry = next(others, None)
                if entry is None:
                    return
                lease_id = entry.request.lease_id
                """,
            ),
        ),
    ),
    Bug(
        "ray-9286",
        "A gcs that was restarted had forgotten the leases it held for actors; nobody returned them.",
        "A restarted gcs does not watch the drivers of the jobs that it has loaded: what they lease stays theirs for ever.",
        "L3",
        "mix",
        (
            Mutation(
                "minray.gcs.server",
                "GcsServer.start",
                """
                for job in (*self._jobs.running(), *unmourned):
                    self._watch_driver(job)
                """,
                "pass",
            ),
        ),
    ),
    Bug(
        "ray-18552",
        "A borrower was added to the owner's table after the message that removed it had come: the object was never freed.",
        "A repeated AddBorrower whose ticket was given back already is noted again.",
        "L2",
        "mix",
        (
            Mutation(
                "minray.core_worker.ownership.reference_counter",
                "ReferenceCounter.lend",
                "reference is None or not reference.is_in_scope() or ticket in self._spent",
                "reference is None or not reference.is_in_scope()",
            ),
        ),
    ),
    Bug(
        "ray-63405",
        "An owner was redirected to a node that had died, and asked there without a deadline.",
        "A peer that never answers is tried for ever.",
        "L1",
        "mix",
        (
            Mutation(
                "minray.rpc.connection",
                "Peer._connect",
                "gone or began + delay_s > deadline",
                "gone",
            ),
        ),
    ),
    Bug(
        "ray-8791",
        "An owner that knew of a node's death before a task's reply from there came noted the result on the dead node, and"
        " never made it again.",
        "A first copy is noted whether or not its node is known to be dead.",
        "L5",
        "late_result",
        (
            Mutation(
                "minray.core_worker.ownership.object_directory",
                "ObjectDirectory.add_location",
                """
                if place.raylet.node_id in self._dead_nodes:
                    self._forget_node([object_id], place.raylet.node_id)
                """,
                "pass",
            ),
        ),
    ),
    Bug(
        "ray-24359",
        "A task that was cancelled when it had been pushed but had not begun was dropped by its worker without an answer.",
        "The worker forgets the task, and does not answer its push.",
        "L1",
        "mix",
        (
            Mutation(
                RECEIVER,
                "TaskReceiver.handle_CancelTask",
                """
                if self._intake.cancel_unstarted(task):
                    self._pump()
                    return CancelTaskReply(True, False)
                """,
                """
                task.cancelled = True
                if task.claim():
                    self._intake.release(task)
                    del self.lease.tasks[task.sequence]
                    self._pump()
                    return CancelTaskReply(True, False)
                """,
            ),
        ),
    ),
    Bug(
        "ray-17369",
        "An actor was killed between its lease request and the reply: the worker that was granted leaked.",
        "When an owner dies, only the leases that have been granted are taken back; its requests go on waiting.",
        "L3",
        "mix",
        (
            Mutation(
                BROKER,
                "LeaseBroker._reclaim_where",
                "applies(entry)",
                "entry.worker is not None and applies(entry)",
            ),
        ),
    ),
    Bug(
        "ray-17369-actor",
        "An actor was killed between its lease request and the reply: the worker that was granted leaked.",
        "The gcs gives back the lease of a dead actor only if the actor has ever lived.",
        "L3",
        "actors",
        (
            Mutation(
                "minray.gcs.actor_service",
                "ActorService._return_lease",
                "not row.lease_id or row.raylet is None",
                "not row.lease_id or row.raylet is None or row.info.address is None",
            ),
        ),
    ),
    Bug(
        "ray-9286-actor",
        "A gcs that was restarted had forgotten the leases it held for actors; nobody returned them.",
        "A restarted gcs asks for a new worker for an actor that is being created, not for the one that it has asked for.",
        "L3",
        "actors",
        (
            Mutation(
                "minray.gcs.actor_scheduler",
                "ActorScheduler._lease",
                "row.lease_id, row.raylet, False",
                'b"", None, False',
            ),
        ),
    ),
    Bug(
        "ray-50814",
        "Calls that were made again kept old sequence numbers; the actor refused them as stale, again and again.",
        "A call that is made again keeps its number, which the actor has dealt with already.",
        "L5",
        "actors",
        (
            Mutation(
                "minray.core_worker.submission.actor_task_submitter",
                "ActorTaskSubmitter._push",
                """
                task.sequence = stream.next_sequence
                stream.next_sequence += 1
                """,
                """
                task.sequence = task.sequence or stream.next_sequence
                stream.next_sequence = max(stream.next_sequence, task.sequence) + 1
                """,
            ),
        ),
    ),
    Bug(
        "ray-24359-actor",
        "A task that was cancelled when it had been pushed but had not begun was dropped by its worker without an answer.",
        "An actor forgets a call that was cancelled before its turn, and does not answer its push.",
        "L1",
        "actors",
        (
            Mutation(
                "minray.core_worker.execution.actor_task_receiver",
                "ActorTaskReceiver._cancel",
                """
                if self._intake.cancel_unstarted(task):
                    self._pump(stream)
                    return CancelTaskReply(True, False)
                """,
                """
                task.cancelled = True
                if task.claim():
                    self._intake.release(task)
                    del stream.tasks[task.sequence]
                    self._pump(stream)
                    return CancelTaskReply(True, False)
                """,
            ),
        ),
    ),
    Bug(
        "ray-62093",
        "A leased worker that was killed because its owner had died skipped the cleanup of its lease.",
        "The exit of a worker that the raylet itself has doomed does not end its lease.",
        "L3",
        "mix",
        (
            Mutation(
                BROKER,
                "LeaseBroker.on_worker_exit",
                "entry is not None",
                "entry is not None and not worker.doom",
            ),
        ),
    ),
    Bug(
        "ray-11789",
        "All IO workers were restoring objects, for which there was no memory before others were spilled: for that there was"
        " no IO worker.",
        "An object that is to be restored takes the place of a file that may be written, from the moment it is asked for.",
        "L1",
        "spills",
        (
            Mutation(
                "minray.object_store.store",
                "ObjectStore._restore",
                "self._line_up(Restoration(entry), partial(self._on_room_for, entry))",
                """
                self.table.restoring = getattr(self.table, "restoring", 0) + 1
                self._line_up(Restoration(entry), partial(self._on_room_for, entry))
                """,
            ),
            Mutation(
                "minray.object_store.store",
                "ObjectStore._on_room_for",
                "made is not None",
                "setattr(self.table, 'restoring', self.table.restoring - 1) is None and made is not None",
            ),
            Mutation(
                "minray.raylet.local_object_manager",
                "LocalObjectManager.assign",
                "self.writing < self._config.max_io_workers",
                "self.writing + getattr(self._table, 'restoring', 0) < self._config.max_io_workers",
            ),
        ),
    ),
    Bug(
        "dask-6159",
        "A fetch was cancelled and then wanted again; the task stayed in the state that remembered its cancellation.",
        "When a cancelled lease request ends, nobody looks whether tasks have come meanwhile that count on it.",
        "L1",
        "mix",
        (
            Mutation(
                SUBMITTER,
                "NormalTaskSubmitter.on_request_ended",
                "self.assign(key, now)",
                """
                if not request.cancelled:
                    self.assign(key, now)
                """,
            ),
        ),
    ),
    Bug(
        "dask-5480",
        "A handler's exception closed the stream between two processes; after the reconnect, messages were missing.",
        "Calls that were open when a channel broke are not made again on the next one, and nobody hears of it.",
        "L1",
        "mix",
        (
            Mutation(
                "minray.rpc.connection",
                "_Call.__call__",
                "self.peer.send_again(self)",
                "self.peer.open()",
            ),
        ),
    ),
    Bug(
        "own-lost-home",
        "None: a check of minray's own, which no other test needs.",
        "A driver that has lost its raylet forgets its workers, but not that tasks are with them; then their answers come.",
        "error",
        "lost_home",
        (Mutation("minray.core_worker.records.leased_worker", "KeyQueue.forget_workers", "task.worker = None", "pass"),),
    ),
    Bug(
        "own-no-ticket",
        "None: what the whole of reference counting rests on.",
        "An owner that passes a reference on notes no ticket for the receiver, who then waits for what is freed.",
        "S7",
        "mix",
        (
            Mutation(
                "minray.core_worker.ownership.borrowing",
                "Borrowing.lend_now",
                """
                for info in infos:
                    self.lend_as_owner(info.object_id, receiver, info.ticket, self._own)
                """,
                "pass",
            ),
        ),
    ),
    Bug(
        "own-loose-future",
        "None: minray's own, which lost what was awaited with `await f.remote()`, if it was large and on another node.",
        "A future does not hold its reference while its value is brought.",
        "G17",
        "campaign",
        (
            Mutation(
                "minray.core_worker.user_threads.object_reader",
                "ObjectReader.future_of",
                "self._fetcher.fetch([LargeObject.known(ref._id, ref._owner, stored)], on_fetched)",
                """
                self._fetcher.fetch(
                    [LargeObject.known(ref._id, ref._owner, stored)],
                    lambda values: self._finish(result, self._fetcher.as_stored(values[0])),
                )
                """,
            ),
        ),
    ),
    Bug(
        "own-late-raise",
        "None: minray's own, which left results in the store when a generator raised after the last of them.",
        "What a generator has filled before it raises is not discarded.",
        "L2",
        "campaign",
        (
            Mutation(
                "minray.core_worker.execution.return_values",
                "ReturnValues._fill",
                """
                try:
                    if next(generator, generator) is not generator:
                        raise ValueError(f"task {name} has num_returns={count}, but yielded more objects")
                except BaseException:
                    self.discard(task, results)
                    raise
                """,
                "next(generator, generator)",
            ),
        ),
    ),
    Bug(
        "ray-45791",
        "A gcs that was restarted took the actors that a detached actor had made for dead, because their job had finished.",
        "What a detached actor makes when its job has finished ends at once; what it has made before, in a restarted gcs.",
        "G25",
        "rare",
        (
            Mutation(
                "minray.gcs.actor_service",
                "ActorService._missed_end",
                "self._surroundings.job_is_over(_job(row))",
                "not row.info.detached and self._surroundings._jobs.is_over(_job(row))",
            ),
        ),
    ),
    Bug(
        "ray-42942",
        "A placement group was removed while a worker was being started for a lease in it: only workers that were there"
        " were killed.",
        "When a placement group is removed, only the leases that have been granted end; its requests go on waiting.",
        "G106",
        "campaign",
        (
            Mutation(
                BROKER,
                "LeaseBroker.on_group_removed",
                "entry.request.shape.strategy.group_id == group_id",
                "entry.worker is not None and entry.request.shape.strategy.group_id == group_id",
            ),
        ),
    ),
    Bug(
        "ray-8822",
        "The definitions of functions and actors were kept for ever when the drivers that had exported them were gone.",
        "The gcs does not drop the values of a job that ends.",
        "L2",
        "campaign",
        (
            Mutation(
                "minray.gcs.server",
                "GcsServer._commit_end",
                "self._drop_values(protocol.job_namespace(job.job_id))",
                "pass",
            ),
        ),
    ),
    Bug(
        "ray-16476",
        "What was spilled was counted as in memory for ever.",
        "A copy that has been written to disk still counts as one that must stay in memory.",
        "L2",
        "campaign",
        (
            Mutation(
                "minray.object_store.object_table",
                "ObjectTable.end_spill",
                "self.unspilled_bytes -= entry.size",
                "pass",
            ),
        ),
    ),
    Bug(
        "own-lost-slot",
        "None: a line of minray's own, which no program of the campaign had reached.",
        "A call that was cancelled while it waited for its turn among coroutines takes up a place for ever.",
        "L1",
        "campaign",
        (Mutation("minray.core_worker.execution.actor_process", "UserLoop._begin", "self._follow(then, task)", "pass"),),
    ),
]
