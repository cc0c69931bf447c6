"""The port through which user threads reach their process: its loop, and the parts of the core worker that they may use.

Ray: CoreWorkerProcess::GetCoreWorker in src/ray/core_worker/core_worker_process.h, which hands out the whole core worker

``CoreWorker`` makes the port when all its parts exist. A field that a user thread may use directly says so; for the others
the thread posts to the loop. If it needs an answer, it runs a coroutine there (``run_on_loop``).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

import msgspec

from minray.core_worker.execution.task_execution import TaskExecution
from minray.core_worker.fetching.store_provider import LargeValues
from minray.core_worker.fetching.value_fetcher import ValueFetcher
from minray.core_worker.fetching.waiting_threads import WaitingThreads
from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.call_sites import CallSites
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.object_deletion import ObjectDeletion
from minray.core_worker.ownership.object_locator import ObjectLocator
from minray.core_worker.ownership.objects import Objects
from minray.core_worker.ownership.reference_counter import ReferenceCounter
from minray.core_worker.records.user_calls import call_for
from minray.core_worker.submission.named_actors import NamedActors
from minray.core_worker.submission.placement_groups import PlacementGroups
from minray.core_worker.submission.task_submission import TaskSubmission
from minray.errors.tracebacks import hides_from_pytest
from minray.exceptions import LocalRayletDiedError, RaySystemError
from minray.platform.base import PlatformError
from minray.protocol.base import Address
from minray.protocol.state import StateAnswers
from minray.rpc.connection import PeerUnreachable

__tracebackhide__ = hides_from_pytest

COUNTS_REFERENCES = True
"""See ``common/package.py``: an interrupt waits until these frames have counted."""


class ExplainInTime(Protocol):
    """Explanations for users, within a few seconds even if a process does not answer."""

    async def explain_in_time(self, object_id: bytes, owner: Address) -> list[str]:
        """Explain why an object is not ready."""

    async def explain_actor_in_time(self, actor_id: bytes, owner: Address) -> list[str]:
        """Explain what an actor does, or what its creation waits for."""


class UserPort(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of a process that user threads may reach."""

    process: Process
    """Safe in any thread."""
    context: JobContext
    """The job of this process; safe in any thread."""
    drop_ref: Callable[[bytes], None]
    """Function that the destructor of an ObjectRef calls, in any thread."""
    # --- objects
    store: MemoryStore
    """User threads look values up in its ``objects``, and put their own values there."""
    references: ReferenceCounter
    objects: Objects
    """``make_refs`` is safe in any thread."""
    call_sites: CallSites | None
    """Records where references are made; None if that is switched off. Safe in any thread."""
    provider: LargeValues
    """``put`` is safe in any thread."""
    fetcher: ValueFetcher
    """``get`` waits in the calling thread."""
    waiting: WaitingThreads
    """``must_fetch`` and ``follow`` are safe in any thread."""
    locator: ObjectLocator
    deletion: ObjectDeletion
    # --- tasks and actors
    submission: TaskSubmission
    """Submits tasks; ``actors.client`` is safe in any thread."""
    execution: TaskExecution
    """Runs tasks here, and the actor of this process: ``actor_receiver.actor``. ``executor.current`` is safe in any thread,
    and ``functions.load`` is called in user threads."""
    named_actors: NamedActors
    placement_groups: PlacementGroups
    """``describe``, ``announce`` and ``is_known`` are safe in any thread."""
    # --- explanations and state
    explainer: ExplainInTime
    answers: StateAnswers
    """This process's answers when the state of the whole cluster is asked for."""
    begin_reports: Callable[[], None]
    """Begins to report what programs record to the raylet; safe in any thread. Called once the API is connected, because
    a simulated process has its own metrics from then on."""

    def run_on_loop(self, make_coroutine: Callable[[], Any]) -> Any:
        """Run a coroutine on the core worker's loop and park for its result.

        Raises RaySystemError if the cluster does not answer, or answers with a failure.
        """
        user_code = self.process.platform.user_code
        parker = user_code.parker()
        outcome: list[Any] = []

        async def run() -> None:
            try:
                outcome.append((await make_coroutine(), None))
            except asyncio.CancelledError:
                outcome.append((None, LocalRayletDiedError(reason="this driver has left its cluster")))
            except PeerUnreachable as error:
                outcome.append((None, RaySystemError(reason=f"the cluster does not answer: {error}")))
            except PlatformError as error:
                outcome.append((None, RaySystemError(reason=f"the request to the cluster failed: {error}")))
            except Exception as error:
                outcome.append((None, error))
            parker.release()

        user_code.post(call_for, parker, lambda: self.process.begin(run(), "user_call"))
        parker.wait(None)
        result, error = outcome.pop()
        try:
            if error is not None:
                raise error
            return result
        finally:
            del error  # its traceback refers to this frame: the cycle would keep everything alive that the callers hold
