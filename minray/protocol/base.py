"""What all messages share: records, requests, addresses, and how they become bytes.

Ray: src/ray/protobuf/common.proto

Records are MessagePack arrays (``array_like``), so that names cost no bytes; fields may only be added at the end, with a
default. A request class is ``class Ping(Request[Pong])``: the reply's class is found from there, for decoding and for
the type checker alike.
"""

from __future__ import annotations

from functools import cache
from typing import Any, Generic, TypeVar, get_args

import msgspec


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base of everything that crosses a process border."""


R = TypeVar("R", bound=Record)


class Request(Record, Generic[R], frozen=True, array_like=True, gc=False):
    """A message that is answered by an ``R``. Every request may be repeated without changing the outcome (G112)."""



class Done(Record, frozen=True):
    """The reply that says only: received and acted upon."""


DONE = Done()


class Address(Record, frozen=True):
    """Where a process is reached, and which incarnation is meant (S10)."""

    worker_id: bytes
    """The incarnation: every process has one, also a raylet (its node id) and the gcs."""
    node_id: bytes
    endpoint: str
    """The unix socket (or simulated name), for processes on the same machine."""
    tcp_endpoint: str = ""
    """For other machines; empty when the cluster does not leave this machine."""

    def endpoint_from(self, node_id: bytes) -> str:
        """How a process of ``node_id`` gets here: unix sockets within a node, and wherever there is no TCP at all."""
        return self.tcp_endpoint if self.tcp_endpoint and node_id != self.node_id else self.endpoint

    def __hash__(self) -> int:
        return hash(self.worker_id)


@cache
def reply_class(request: type[Request[Any]]) -> type[Record]:
    """The reply's class of a request class."""
    for base in request.__dict__["__orig_bases__"]:
        arguments = get_args(base)
        if arguments:
            reply = arguments[0]
            assert isinstance(reply, type) and issubclass(reply, Record), request
            return reply
    raise AssertionError(f"{request.__name__} does not name its reply")


_encoder = msgspec.msgpack.Encoder()
encode = _encoder.encode


@cache
def decoder(record: type[R]) -> msgspec.msgpack.Decoder[R]:
    return msgspec.msgpack.Decoder(record)


def decode(record: type[R], payload: bytes) -> R:
    """Raises msgspec.DecodeError (its subclass ValidationError included) for anything but a well-formed record."""
    value: R = decoder(record).decode(payload)
    return value
