"""The mistake behind every witness in ``tests/regressions/``: it was made once, and can be made again.

A mistake is made again by taking its fix back in today's code, with as small a change as possible. Most mistakes were made
in minray. Where the model or the simulation had been wrong, the witness is of their false complaint.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.zoo.transplant import Mutation


@dataclass(frozen=True)
class Mistake:
    """A mistake that was there before a witness passed."""

    what: str
    prop: str
    """The property that the witness shows broken by it."""
    mutations: tuple[Mutation, ...]


INTAKE = "minray.core_worker.execution.task_intake"
SUBMISSION = "minray.core_worker.submission.task_submission"
READER = "minray.core_worker.user_threads.object_reader"
OUTCOMES = "minray.core_worker.submission.outcomes"
ACTORS = "minray.core_worker.submission.actor_manager"
REFERENCES = "minray.core_worker.ownership.reference_counter"
TASKS = "minray.core_worker.submission.task_manager"
CONNECTION = "minray.rpc.connection"
GCS = "minray.gcs.server"
OWN_ERROR = Mutation(CONNECTION, "answer_of", "del future", "pass")
WEAK_HANDLES = Mutation("minray.core_worker.submission.named_actors", "NamedActors._hold", "info.detached", "True")
"""Handles that are found by name do not count, and no owner is asked."""
FORGOTTEN_CONSTRUCTORS = Mutation(
    SUBMISSION, "TaskSubmission.fail_all", "self.actors.creator.forget_constructors()", "pass"
)

NO_TICKET_OF_A_QUESTION = (
    Mutation(
        "minray.core_worker.service",
        "CoreWorkerService._lend_nested",
        "borrowing.lend_as_owner(object_id, requester, question, own, stored)",
        "True",
    ),
    Mutation(
        "minray.core_worker.fetching.future_resolver",
        "FutureResolver._finish",
        "self._references.receive_ticket(RefInfo(request.object_id, question.owner, request.question), effects)",
        "pass",
    ),
)
"""An answer with references brings no ticket for the object that was asked for."""

MISTAKES = {
    "a_cancelled_task_still_asks": Mistake(
        "A task that was cancelled before it began let go of an argument that its process was still asking for.",
        "S7",
        (
            Mutation(
                INTAKE,
                "TaskIntake.answer_error",
                """
                if self._references.keep_after_task(task.held):
                    self._begin_answer(task, self._answer_slowly(task, execution, False))
                else:
                    self._answer_failed(task, execution, False)
                """,
                "self._answer_failed(task, execution, False)",
            ),
        ),
    ),
    "answered_before_its_results_were_dropped": Mistake(
        "A task that was cancelled while it stored its results answered before its raylet knew that they were dropped.",
        "L2",
        (
            Mutation("minray.core_worker.execution.return_values", "ReturnValues.discard", "parker.wait(None)", "pass"),
            Mutation(
                "minray.core_worker.fetching.store_provider",
                "StoreProvider.put",
                """
                if not self._client.is_own(owner):
                    dropped.wait(None)
                """,
                "pass",
            ),
        ),
    ),
    "asked_on_for_a_job_that_had_finished": Mistake(
        "A lease request that its raylet had cancelled was made again at once, as fast as it was refused.",
        "L5",
        (
            Mutation(
                "minray.core_worker.submission.lease_client",
                "LeaseClient._on_lease",
                "reply.kind == REJECTED or (reply.kind == CANCELLED and not request.cancelled)",
                "reply.kind == REJECTED",
            ),
        ),
    ),
    "asked_why_before_the_gcs_knew_that_an_argument_had_failed": Mistake(
        "Of an actor whose constructor could not begin, why said that no task makes it.",
        "L8",
        (
            Mutation(
                "minray.core_worker.introspection.explainer",
                "Explainer.explain",
                "self.actors.describe_here(task_of(object_id))",
                "None",
            ),
        ),
    ),
    "awaited_value_was_not_here": Mistake(
        "A large value that had been awaited was not ready for wait.",
        "G8",
        (Mutation(READER, "ObjectReader.future_of", "known.is_fetched = True", "pass"),),
    ),
    "call_began_without_its_arguments": Mistake(
        "A call without a place in the order began when its small arguments were here, and the large ones were not.",
        "G17",
        (
            Mutation(
                "minray.core_worker.execution.actor_task_receiver",
                "ActorTaskReceiver._on_ready",
                "not in_order and task.fetching is None and not task.is_claimed()",
                "not in_order and not task.is_claimed()",
            ),
        ),
    ),
    "cancelled_before_its_first_step": Mistake(
        "A coroutine that was cancelled before its first step had no end, and its call no answer.",
        "L1",
        (
            Mutation(
                "minray.core_worker.execution.actor_process",
                "UserLoop._on_done",
                "self._executor.end_unstarted(task)",
                "pass",
            ),
        ),
    ),
    "constructor_ended_twice_after_its_cluster": Mistake(
        "A driver that had lost its cluster ended the constructor of an actor once more when the gcs told of the actor.",
        "escaped",
        (FORGOTTEN_CONSTRUCTORS,),
    ),
    "constructor_ended_twice_with_its_cluster": Mistake(
        "A driver that had lost its cluster ended the constructor of an actor once more when its last handle went.",
        "escaped",
        (FORGOTTEN_CONSTRUCTORS,),
    ),
    "constructor_left_a_value": Mistake(
        "What a constructor returned was put into the object store, where nobody ever got it.",
        "L2",
        (
            Mutation(
                "minray.core_worker.execution.return_values",
                "ReturnValues.keep",
                """
                if template.actor is not None:
                    return []
                """,
                "pass",
            ),
        ),
    ),
    "constructor_was_cancelled_as_a_child": Mistake(
        "When a task was cancelled, so was the constructor of an actor that it had made.",
        "escaped",
        (
            Mutation(
                SUBMISSION,
                "TaskSubmission.cancel_children",
                "child.prepared.template.actor is None",
                "True",
            ),
        ),
    ),
    "death_went_with_its_gcs": Mistake(
        "A gcs did not store that a process had died: an owner that had lent to it never heard of it from the next gcs.",
        "S9",
        (
            Mutation(
                GCS,
                "GcsServer._store_death",
                """
                self._storage.put_worker_death(death)
                await self._storage.commit()
                """,
                "pass",
            ),
        ),
    ),
    "died_before_it_said_how_its_actor_is_made": Mistake(
        "A detached actor whose maker had died before he said how it is made was pending for ever, and kept its name.",
        "L1",
        (
            Mutation(
                "minray.gcs.gcs_actor_manager",
                "ActorRow.needs_owner",
                "not self.info.detached or self.info.state == DEPENDENCIES_UNREADY",
                "not self.info.detached",
            ),
        ),
    ),
    "exited_on_a_node_that_is_to_leave": Mistake(
        "The model: who exits on a node that is to leave used up a restart, unless it had to leave by a deadline.",
        "G35",
        (
            Mutation(
                "tests.spec.losses",
                "losses_of",
                "sum(move.leaves and not move.if_idle for move in world.moves)",
                "sum(move.ends_work() for move in world.moves)",
            ),
        ),
    ),
    "exiting_actor_waited_for_its_callers": Mistake(
        "An actor that was to end waited without limit for those who hold what it owns: they waited for a call of it.",
        "L1",
        (
            Mutation(
                "minray.core_worker.execution.actor_host",
                "ActorHost._end",
                "await self._until(self._is_through, ends_at)",
                "await self._until(self._is_through, 1e300)",
            ),
            Mutation("minray.core_worker.execution.actor_host", "ActorHost._end", "self._executor.wants_exit", "False"),
        ),
    ),
    "failed_call_kept_who_had_waited": Mistake(
        "The error of a call and the frames of those who had waited for it kept each other, and an actor's client stayed.",
        "L2",
        (OWN_ERROR,),
    ),
    "forgotten_before_its_owner_heard_of_its_death": Mistake(
        "An owner without a handle waited for ever for news of its actor, if this died and was forgotten between two polls.",
        "L2",
        (
            Mutation(
                "minray.core_worker.submission.actor_creator",
                "ActorCreator._end",
                "self._process.patient.ask_gcs(GetActor(actor_id, self._process.address), on_reply)",
                "pass",
            ),
        ),
    ),
    "given_up_answers_keep_no_references": Mistake(
        "The same of a call that was cancelled before it was sent, and whose actor was killed.",
        "L2",
        (OWN_ERROR,),
    ),
    "given_up_before_its_answer_came_again": Mistake(
        "A question whose answer was lost got another one, since its object was freed; the first answer's tickets stayed.",
        "L6",
        NO_TICKET_OF_A_QUESTION,
    ),
    "held_up_generator_kept_its_room": Mistake(
        "A generator that was held up kept the room of its arguments, which its reader needed in order to read on.",
        "L5",
        (
            Mutation(
                "minray.core_worker.execution.generator_executor",
                "GeneratorExecutor._on_change",
                "stream.end_loan is None and not stream.task.actor_id",
                "False",
            ),
        ),
    ),
    "item_moved_before_its_report": Mistake(
        "An item that a node handed over as it left, before the owner heard of it, counted as freed.",
        "G92",
        (
            Mutation(
                "minray.core_worker.ownership.object_locator",
                "ObjectLocator.answer",
                "NOT_MADE if self._is_item_to_come(object_id) else UNKNOWN",
                "UNKNOWN",
            ),
        ),
    ),
    "item_was_lost_before_its_generator_ended": Mistake(
        "An item that was lost while its generator ran had no task that could make it again when that had ended.",
        "G92",
        (
            Mutation(
                "minray.core_worker.submission.object_recovery_manager",
                "ObjectRecoveryManager.remember",
                "stored is not None or reference.obstacle is None or object_id in items",
                "stored is not None or reference.obstacle is None",
            ),
        ),
    ),
    "last_detached_actor_took_groups_along": Mistake(
        "When the last detached actor of a job died, its placement groups were removed, though the job went on.",
        "G17",
        (
            Mutation(
                GCS,
                "GcsServer.on_last_detached_actor",
                """
                if self.job_is_over(job_id):
                    self._group_scheduler.on_job_finished(job_id)
                    await self._actors.on_job_finished(job_id)
                """,
                """
                self._group_scheduler.on_job_finished(job_id)
                if self.job_is_over(job_id):
                    await self._actors.on_job_finished(job_id)
                """,
            ),
        ),
    ),
    "late_news_of_a_copy": Mistake(
        "News of copies that came once more, after later news, made their owner forget a copy, which then stayed.",
        "L2",
        (
            Mutation(
                "minray.core_worker.ownership.object_directory",
                "ObjectDirectory.on_update",
                "number <= self._heard.get(raylet.node_id, 0)",
                "False",
            ),
        ),
    ),
    "late_registration_took_a_free_name": Mistake(
        "The registration of an actor whose name was taken came once more when the name was free: now it had it, though its"
        " creator had been refused.",
        "L2",
        (
            Mutation(
                "minray.gcs.gcs_actor_manager",
                "GcsActorManager.namesake",
                """
                if actor.actor_id not in self._outbid and row is not None and row.info.actor_id != actor.actor_id:
                    remember(self._outbid, actor.actor_id, row.info)
                return self._outbid.get(actor.actor_id)
                """,
                "return row.info if row is not None and row.info.actor_id != actor.actor_id else None",
            ),
        ),
    ),
    "left_in_a_call_that_retries_its_exceptions": Mistake(
        "A call in which its actor exits was made again if its exceptions are, by the actor that was ending.",
        "G17",
        (
            Mutation(
                "minray.core_worker.execution.task_errors",
                "TaskErrors.failed",
                "not ends_actor and self._is_retryable(task, error)",
                "self._is_retryable(task, error)",
            ),
            Mutation(
                "minray.core_worker.execution.actor_task_receiver",
                "ActorTaskReceiver.on_executed",
                "execution is not None and execution.ends_actor",
                "False",
            ),
            Mutation("minray.core_worker.execution.actor_host", "ActorHost._end", "self._executor.wants_exit", "False"),
        ),
    ),
    "let_go_and_obtained_again": Mistake(
        "A named actor without handles was handed out until it had ended, and its new handle did not count (Ray #44083).",
        "G17",
        (
            WEAK_HANDLES,
            Mutation(
                "minray.gcs.actor_service",
                "ActorService.handle_EndActor",
                "await self._until_stored(request.actor_id, self._actors.ending_row)",
                "pass",
            ),
        ),
    ),
    "let_go_before_reading_on": Mistake(
        "The model: who reads on from a generator was given what he had read before, though he had let go of it.",
        "G11",
        (
            Mutation(
                "tests.spec.programs",
                "ReadOn.foresee",
                "generator.item_names()[len(generator.first_names(generator.read)) :]",
                "generator.item_names()",
            ),
        ),
    ),
    "let_go_by_a_borrower_and_obtained_again": Mistake(
        "A named actor was handed out by the gcs, which cannot know that the last handle has gone elsewhere (Ray #44083).",
        "G17",
        (WEAK_HANDLES,),
    ),
    "lost_answer_leaves_a_ticket": Mistake(
        "An object was freed while its owner was asked for it; if the answer was lost, the tickets in it were nobody's.",
        "L2",
        (
            Mutation(REFERENCES, "ReferenceCounter.add_question", "self._references[object_id].asked += 1", "pass"),
            Mutation(
                REFERENCES,
                "ReferenceCounter.remove_question",
                """
                reference = self._references[object_id]
                reference.asked -= 1
                self._maybe_free(object_id, reference, effects)
                """,
                "pass",
            ),
            *NO_TICKET_OF_A_QUESTION,
        ),
    ),
    "lost_copy_was_created_again": Mistake(
        "A request to create a copy that came once more, when the copy had been given up, created it again, and it stayed.",
        "L2",
        (
            Mutation(
                "minray.object_store.object_table",
                "ObjectTable.create",
                "self._freed.get(object_id, -1) >= attempt or (object_id, attempt, creator) in self._aborted",
                "self._freed.get(object_id, -1) >= attempt",
            ),
        ),
    ),
    "lost_items_of_a_call_that_was_never_sent_again": Mistake(
        "Lost items of a generator that failed before a worker had it again were never filled in.",
        "L1",
        (
            Mutation(
                "minray.core_worker.submission.object_recovery_manager",
                "ObjectRecoveryManager._run_again",
                """
                if task.stream is not None:
                    task.items_lost = dict.fromkeys(self._lost_items(task))
                """,
                "pass",
            ),
        ),
    ),
    "made_again_for_a_value_that_was_made_of_it": Mistake(
        "The model: a task whose value another call had taken was not to run again when the value of that call was lost.",
        "G16",
        (Mutation("tests.spec.model", "Model.most_losses", "own + self.lineage.most_remakings(task.name)", "own"),),
    ),
    "no_memory_after_the_last_retry": Mistake(
        "A task that was killed for its node's memory failed if its retries had been used up.",
        "G17",
        (
            Mutation(
                TASKS,
                "TaskManager.retry_after_memory",
                "task.prepared.template.max_retries == 0",
                "task.retries_left == 0",
            ),
        ),
    ),
    "planted_lease_never_returned": Mistake(
        "Planted, never made: leases are not given back.",
        "L2",
        (
            Mutation(
                "minray.core_worker.submission.lease_client",
                "LeaseClient.return_lease",
                "self._tell(worker.raylet, ReturnWorkerLease(worker.lease_id, kill_worker, reason))",
                "pass",
            ),
        ),
    ),
    "planted_retry_forgotten": Mistake(
        "Planted, never made: nothing is tried again.",
        "G17",
        (Mutation(TASKS, "TaskManager.begin_retry", "task.cancelled or task.retries_left == 0", "True"),),
    ),
    "read_on_with_items_that_held_less": Mistake(
        "The model: items that are read later were to hold what was at hand by then, not when their generator began.",
        "G60",
        (
            Mutation(
                "tests.spec.model",
                "Scope.foresee_items",
                "begun[0] if begun else frozenset(ref for ref in generator.refs if ref in self.sure)",
                "frozenset(ref for ref in generator.refs if ref in self.sure)",
            ),
        ),
    ),
    "refused_name_kept_who_asked": Mistake(
        "What the loop had refused to a user thread, and the frame that raised it, kept each other, and what callers held.",
        "L2",
        (Mutation("minray.core_worker.user_threads.port", "UserPort.run_on_loop", "del error", "pass"),),
    ),
    "restarted_gcs_was_taken_for_the_old_one": Mistake(
        "The simulation: a gcs that was started again had the identity of the one before.",
        "L2",
        (Mutation("minray.simulation.cluster", "SimCluster._new_gcs_identity", "self._gcs_count", "1"),),
    ),
    "result_of_a_killed_actor_stays": Mistake(
        "What a lost call had put into the store of its actor's node, or put there when its caller had given it up, stayed.",
        "L2",
        (
            Mutation(
                ACTORS,
                "ActorManager.discard_attempt",
                """
                if stream.raylet is not None:
                    self._outcomes.discard_attempt(task, stream.raylet)
                """,
                "pass",
            ),
        ),
    ),
    "stood_still_and_gave_its_raylet_up": Mistake(
        "Who had stood still for a minute while it connected gave its peer up, without another try.",
        "L2",
        (
            Mutation(
                CONNECTION, "Peer._connect", "gone or began + delay_s > deadline", "gone or loop.time() + delay_s > deadline"
            ),
        ),
    ),
    "the_last_answer_of_a_used_up_worker": Mistake(
        "A worker that had used up its calls ended by itself soon after its last answer, which may be lost on the way.",
        "G17",
        (
            Mutation(
                "minray.core_worker.execution.task_receiver",
                "TaskReceiver.begin_exit",
                "self.give_back_unstarted()",
                """
                self.give_back_unstarted()
                asyncio.get_running_loop().call_later(0.01, self._platform.processes.exit, 0)
                """,
            ),
        ),
    ),
}
"""By the name of the witness."""
