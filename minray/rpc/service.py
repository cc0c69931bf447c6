"""The receiving side: objects with ``handle_<Record>`` methods answer requests.

Ray: src/ray/rpc/grpc_server.h, server_call.h

A handler takes ``(request, call)``. A plain ``def`` returns the reply and so answers at once, or returns None and answers
later through ``call.reply``. An ``async def`` may wait, and runs as a task named after the message and the id that it is
about.

Failures have two causes. A record that does not decode, or an unknown method, is the peer's mistake and is refused with a
reason. An exception in a handler is a bug of minray: it is logged with its traceback, and the caller gets ``internal``.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import cache
from typing import Any, cast, get_type_hints

import msgspec

from minray.common.decoding import MALFORMED
from minray.common.ids import short
from minray.common.peer_log import KNOWN_PEERS, PeerLog
from minray.common.task_set import TaskSet
from minray.platform.base import Buffer, Incoming, RecordTooLarge, RemoteFailure
from minray.protocol.base import Record, Request, decoder, encode, reply_class

logger = logging.getLogger(__name__)


class Call(msgspec.Struct, eq=False):
    """One request being served: the calling process, the request's buffers, and the way to answer."""

    _incoming: Incoming

    @property
    def peer(self) -> bytes:
        """Incarnation of the caller."""
        return self._incoming.peer

    @property
    def buffers(self) -> Sequence[Buffer]:
        return self._incoming.buffers

    def reply(self, record: Record, buffers: Sequence[Buffer] = ()) -> None:
        """Send the reply. If it cannot be encoded or is too large, that is a bug of minray, and the caller gets an error."""
        try:
            payload = encode(record)
        except Exception as error:
            self.refuse(error)
            return
        try:
            self._incoming.reply(payload, buffers)
        except RecordTooLarge as error:
            logger.error("cannot answer %s: %s", self._incoming.method, error)
            self.fail("too-large", str(error))

    def fail(self, kind: str, message: str) -> None:
        self._incoming.fail(RemoteFailure(kind, message))

    def refuse(self, error: Exception) -> None:
        """Answer with ``internal`` and log the exception, because the handler has failed."""
        method = self._incoming.method
        logger.error("handling %s failed", method, exc_info=error)
        self.fail("internal", f"{method}: {type(error).__name__}: {error}")


_Handler = tuple[Callable[[bytes], Any], Callable[[Any, Call], Any], bool]
"""Decoder of a message, its handler, and whether the handler is a coroutine function."""


class Dispatcher:
    """Calls the handler of each incoming message; ``network.listen`` takes it as its callback."""

    def __init__(self, *services: Any) -> None:
        self._tasks = TaskSet()
        self._peer_log = PeerLog(logger)
        self._services = [(service, _understood_by(cast(Hashable, type(service)))) for service in services]
        self._handlers: dict[str, _Handler] = {}
        """Handlers by message name, filled as messages arrive, since most processes receive few kinds of messages."""

    def __call__(self, incoming: Incoming) -> None:
        entry = self._handlers.get(incoming.method) or self._find(incoming.method)
        if entry is None:
            incoming.fail(RemoteFailure("unknown-method", f"{incoming.method[:100]!r} is not understood here"))
            return
        decode, handler, is_async = entry
        try:
            request = decode(incoming.payload)
        except MALFORMED as error:
            text = f"refused a malformed {incoming.method} from {short(incoming.peer)}: {error}"
            self._peer_log.warn(KNOWN_PEERS, text)
            incoming.fail(RemoteFailure("bad-request", f"{incoming.method}: {error}"))
            return
        call = Call(incoming)
        if is_async:
            self._tasks.begin(self._answer(handler, request, call), f"{incoming.method}({_subject(request)})")
            return
        try:
            reply = handler(request, call)
        except Exception as error:
            call.refuse(error)
        else:
            if reply is not None:
                call.reply(reply)

    def _find(self, method: str) -> _Handler | None:
        for service, understood in self._services:
            if method in understood:
                handler = getattr(service, f"handle_{method}")
                entry = decoder(understood[method]).decode, handler, inspect.iscoroutinefunction(handler)
                self._handlers[method] = entry
                return entry
        return None

    async def _answer(
        self, handler: Callable[[Record, Call], Coroutine[Any, Any, Record | None]], request: Record, call: Call
    ) -> None:
        try:
            reply = await handler(request, call)
        except Exception as error:
            call.refuse(error)
        else:
            if reply is not None:
                call.reply(reply)

    def close(self) -> None:
        """Cancel all handlers that are still running."""
        self._peer_log.close()
        self._tasks.cancel()


def prepare(*service_classes: type[Any], records: Sequence[type[Record]] = ()) -> None:
    """Fill the caches of request classes and decoders in the zygote, so that its forked children inherit them.

    They cover the messages of these services, their replies, and ``records``, which travel inside messages."""
    for record in records:
        decoder(record)
    for service_class in service_classes:
        for request_class in _understood_by(cast(Hashable, service_class)).values():
            decoder(request_class)
            decoder(reply_class(request_class))


@cache
def _understood_by(service_class: Any) -> dict[str, type[Request[Any]]]:
    """Return the request classes of a service's handlers, by name. It is cached, because resolving annotations is slow."""
    classes: dict[str, type[Request[Any]]] = {}
    for name, function in inspect.getmembers(service_class, inspect.isfunction):
        if name.startswith("handle_"):
            request_class = get_type_hints(function)["request"]
            assert request_class.__name__ == name.removeprefix("handle_"), name
            classes[request_class.__name__] = request_class
    return classes


def _subject(request: Record) -> str:
    """Return the id that a request is about, for its task's name: the first field, if that is an id or a text."""
    first = getattr(request, request.__struct_fields__[0]) if request.__struct_fields__ else None
    return short(first) if isinstance(first, bytes) else str(first) if isinstance(first, str) else ""
