"""Asks owners for the values of borrowed references.

Ray: src/ray/core_worker/future_resolver.h

There is one open question per object, however many threads wait. It is a long poll, repeated while the value is wanted in
this process, and it holds the reference until it is answered. If the owner is dead, the value becomes an OwnerDiedError
(G62). If the owner refuses because the value with its references is too large for a message, it becomes a RaySystemError.

The first question of a turn is sent at once. The later ones are sent at the turn's end, all for one owner in one message
(``GetObjects``), which is answered at once. An object that does not exist by then is asked for in a question of its own,
which waits at the owner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from minray.common.ids import short
from minray.core_worker.ground.process import Process
from minray.core_worker.ownership.memory_store import MemoryStore
from minray.core_worker.ownership.reference_counter import Effects, ReferenceCounter
from minray.core_worker.records.stored_object import StoredObject
from minray.core_worker.records.values import from_value
from minray.exceptions import ObjectLostError, OwnerDiedError, RayError, RaySystemError, ReferenceCountingAssertionError
from minray.platform.base import PlatformError, RemoteFailure
from minray.protocol.base import Address
from minray.protocol.core_worker import (
    FREED,
    LARGE,
    PENDING,
    GetObject,
    GetObjects,
    ObjectQuestion,
    ObjectReplies,
    ObjectReply,
    RefInfo,
)
from minray.protocol.object_store import Place
from minray.rpc.batch import by_receiver, portions

OnLarge = Callable[[Place | None], None]
"""Function that is told the place of the first copy; None if the value is not in the object store."""

POLL_TIMEOUT_S = 60.0
"""Seconds that a question waits at the owner before it is repeated; long, so that waiting costs few messages."""
ANY_SIZE = -1
"""Value of ``inline_limit`` that asks for a value whatever its size."""


class _OwnerQuestion(NamedTuple):
    """One question to an owner, unchanged until it is answered, however often it is repeated."""

    owner: Address
    request: GetObject
    """The question alone in a message. Its ``inline_limit`` is ``ANY_SIZE`` if the value is sent whatever its size."""


class FutureResolver:
    """Asks owners for values on behalf of one process."""

    def __init__(
        self,
        process: Process,
        references: ReferenceCounter,
        store: MemoryStore,
        on_object: Callable[[bytes, StoredObject], None],
        on_lost: Callable[[bytes, RayError], None],
        apply: Callable[[Effects], None],
    ) -> None:
        self._max_questions = process.config.system_config.max_questions_per_message
        self._patient = process.patient
        self._own = process.address
        self._references = references
        self._store = store
        self._on_object = on_object
        """Function called with a value that has arrived."""
        self._on_lost = on_lost
        """Function called with the error of a value that will never arrive."""
        self._apply = apply
        """Function that carries out the effects of releasing a question's object."""
        self._asking: set[bytes] = set()
        """Ids of objects asked for in any size; the memory store has their waiters."""
        self._probing: dict[bytes, list[OnLarge]] = {}
        """Objects asked for if they are small, each with functions to call if the value exists but is large."""
        self._looking: dict[bytes, list[Callable[[], None]]] = {}
        """Objects asked for if they exist now, each with functions to call if the value does not exist."""
        self._question_count = 0
        """Number of questions so far, from which their names are made."""
        self._following: list[_OwnerQuestion] | None = None
        """Questions of this turn after the first; None if none was asked yet."""

    def fetch(self, object_id: bytes, owner: Address) -> None:
        """Bring the value here, whatever its size."""
        if object_id not in self._asking:
            self._asking.add(object_id)
            self._ask_soon(self._new_question(object_id, owner, ANY_SIZE))

    def look(self, object_id: bytes, owner: Address, on_pending: Callable[[], None]) -> None:
        """Bring the value here if it exists; ``on_pending`` is called if it does not exist at present."""
        waiting = self._looking.setdefault(object_id, [])
        waiting.append(on_pending)
        if len(waiting) == 1:
            self._ask(self._new_question(object_id, owner, ANY_SIZE, 0.0))

    def probe(self, object_id: bytes, owner: Address, inline_limit: int, on_large: OnLarge) -> None:
        """Bring the value here if it is small; ``on_large`` is called if it exists and is large."""
        waiting = self._probing.setdefault(object_id, [])
        waiting.append(on_large)
        if len(waiting) == 1:
            self._ask_soon(self._new_question(object_id, owner, inline_limit))

    def open_requests(self) -> int:
        return len(self._asking) + len(self._probing) + len(self._looking)

    def _new_question(
        self, object_id: bytes, owner: Address, inline_limit: int, timeout_s: float = POLL_TIMEOUT_S
    ) -> _OwnerQuestion:
        self._references.add_question(object_id)
        self._question_count += 1
        name = b"?" + self._own.worker_id[:12] + self._question_count.to_bytes(8, "big")
        return _OwnerQuestion(owner, GetObject(object_id, self._own, inline_limit, timeout_s, question=name))

    def _ask_soon(self, question: _OwnerQuestion) -> None:
        if self._following is None:
            self._following = []
            asyncio.get_running_loop().call_soon(self._ask_following)
            self._ask(question)
        else:
            self._following.append(question)

    def _ask_following(self) -> None:
        following, self._following = self._following or [], None
        for owner, questions in by_receiver((question, question.owner) for question in following):
            for portion in portions(questions, self._max_questions):
                requests = [one.request for one in portion]
                asked = [ObjectQuestion(one.object_id, one.inline_limit, one.question) for one in requests]
                self._patient.send(owner, GetObjects(self._own, asked), partial(self._on_answers, portion))

    def _on_answers(
        self,
        questions: Sequence[_OwnerQuestion],
        answer: ObjectReplies | None,
        error: PlatformError | None,
        buffers: Sequence[Any],
    ) -> None:
        if isinstance(error, RemoteFailure) and len(questions) > 1:  # each may fit into an answer of its own
            for question in questions:
                self._ask(question)
            return
        start = 0
        for index, question in enumerate(questions):
            reply = answer.replies[index] if answer is not None else None
            end = start + (reply.value.buffer_count if reply is not None and reply.value is not None else 0)
            self._on_answer(question, reply, error, buffers[start:end])
            start = end

    def _ask(self, question: _OwnerQuestion) -> None:
        self._patient.send(question.owner, question.request, partial(self._on_answer, question))

    def _on_answer(
        self, question: _OwnerQuestion, reply: ObjectReply | None, error: PlatformError | None, buffers: Sequence[Any]
    ) -> None:
        object_id, timeout_s = question.request.object_id, question.request.timeout_s
        is_pending = reply is not None and reply.status == PENDING
        if is_pending and timeout_s and self._references.is_wanted(object_id):
            asyncio.get_running_loop().call_soon(self._ask, question)
            return
        looking = [] if timeout_s else self._looking[object_id]
        probing = self._probing.get(object_id, [])
        self._finish(question, reply)
        if isinstance(error, RemoteFailure):
            reason = f"the owner of object {short(object_id)} cannot send it: {error}"
            self._on_lost(object_id, RaySystemError(reason=reason))
        elif reply is None:
            self._on_lost(object_id, _lost(OwnerDiedError, question, str(error)))
        elif is_pending:
            for on_pending in looking:
                on_pending()
        elif reply.status == LARGE:
            for on_large in probing:
                on_large(reply.place)
        elif reply.status == FREED or reply.value is None:
            reason = f"its owner does not know object {short(object_id)} any more"
            self._on_lost(object_id, _lost(ReferenceCountingAssertionError, question, reason))
        else:
            self._on_object(object_id, from_value(reply.value, buffers))

    def _finish(self, question: _OwnerQuestion, reply: ObjectReply | None) -> None:
        """End a question; keep the ticket that came with references inside the value, while the object is held here."""
        request, effects = question.request, Effects()
        if reply is not None and reply.value is not None and reply.value.nested:
            self._references.receive_ticket(RefInfo(request.object_id, question.owner, request.question), effects)
        self._references.remove_question(request.object_id, effects)
        self._apply(effects)
        if not request.timeout_s:
            del self._looking[request.object_id]
        elif request.inline_limit == ANY_SIZE:
            self._asking.discard(request.object_id)
        else:
            self._probing.pop(request.object_id, None)


def _lost(kind: type[ObjectLostError], question: _OwnerQuestion, reason: str) -> ObjectLostError:
    return kind(object_id_hex=question.request.object_id.hex(), owner=question.owner.endpoint, reason=reason)
