"""The receiving side: objects with ``handle_<Record>`` methods answer requests.

Ray: src/ray/rpc/grpc_server.h, server_call.h

A handler takes ``(request, call)``. A plain ``def`` returns the reply and so answers at once, or returns None and answers
later through ``call.reply``; an ``async def`` may wait, and runs as a task named after the message and the id that it is
about. What goes wrong: a record that does not decode, or an unknown method, is the peer's mistake and is refused in
words; an exception in a handler is our bug, is logged with its traceback, and the caller hears ``internal``.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Callable, Coroutine, Hashable, Sequence
from functools import cache
from typing import Any, cast, get_type_hints

import msgspec

from minray.common.ids import short
from minray.platform.base import Buffer, Incoming, RecordTooLarge, RemoteFailure
from minray.protocol.base import Record, Request, decoder, encode, reply_class

logger = logging.getLogger(__name__)


class Call(msgspec.Struct, eq=False):
    """One request being served: who asks, what came beside it, and the way to answer."""

    _incoming: Incoming

    @property
    def peer(self) -> bytes:
        """The asking incarnation."""
        return self._incoming.peer

    @property
    def buffers(self) -> Sequence[Buffer]:
        return self._incoming.buffers

    def reply(self, record: Record, buffers: Sequence[Buffer] = ()) -> None:
        """A reply that cannot be written or carried is our bug too, and the caller must hear of it."""
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
        """The handler has failed."""
        method = self._incoming.method
        logger.error("handling %s failed", method, exc_info=error)
        self.fail("internal", f"{method}: {type(error).__name__}: {error}")


_Handler = tuple[Callable[[bytes], Any], Callable[[Any, Call], Any], bool]
"""How a message is decoded, who handles it, and whether that is a coroutine."""


class Dispatcher:
    """Calls the handler of each incoming message; give it to ``network.listen``."""

    def __init__(self, *services: Any) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._services = [(service, _understood_by(cast(Hashable, type(service)))) for service in services]
        self._handlers: dict[str, _Handler] = {}
        """By name of the message; only of what has come so far, since most processes hear few kinds of messages."""

    def __call__(self, incoming: Incoming) -> None:
        entry = self._handlers.get(incoming.method) or self._find(incoming.method)
        if entry is None:
            incoming.fail(RemoteFailure("unknown-method", f"{incoming.method!r} is not understood here"))
            return
        decode, handler, is_async = entry
        try:
            request = decode(incoming.payload)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            logger.warning("refused a malformed %s from %s: %s", incoming.method, incoming.peer.hex()[:8], error)
            incoming.fail(RemoteFailure("bad-request", f"{incoming.method}: {error}"))
            return
        call = Call(incoming)
        if is_async:
            name = f"{incoming.method}({_subject(request)})"
            answering = self._answer(handler, request, call)
            task = asyncio.get_running_loop().create_task(answering, name=name)
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
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
        """Stop what is being handled."""
        for task in list(self._tasks):
            task.cancel()


def prepare(*service_classes: type[Any], records: Sequence[type[Record]] = ()) -> None:
    """In a process that forks those who need it, look up what Dispatchers of such services and their callers must know, and
    how ``records`` are read, which travel inside of messages."""
    for record in records:
        decoder(record)
    for service_class in service_classes:
        for request_class in _understood_by(cast(Hashable, service_class)).values():
            decoder(request_class)
            decoder(reply_class(request_class))


@cache
def _understood_by(service_class: Any) -> dict[str, type[Request[Any]]]:
    """The request classes of a service's handlers, by name; looked up once, because resolving annotations is slow."""
    classes: dict[str, type[Request[Any]]] = {}
    for name, function in inspect.getmembers(service_class, inspect.isfunction):
        if name.startswith("handle_"):
            request_class = get_type_hints(function)["request"]
            assert request_class.__name__ == name.removeprefix("handle_"), name
            classes[request_class.__name__] = request_class
    return classes


def _subject(request: Record) -> str:
    """The id that a request is about, for its task's name: its first field, if that is an id."""
    first = getattr(request, request.__struct_fields__[0]) if request.__struct_fields__ else None
    return short(first) if isinstance(first, bytes) else str(first) if isinstance(first, str) else ""
