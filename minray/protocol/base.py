"""Basis of all messages: records, requests, addresses, and their encoding as bytes.

Ray: src/ray/protobuf/common.proto

Records are MessagePack arrays (``array_like``), so that field names cost no bytes; fields may only be added at the end, with
a default. A request class is ``class Ping(Request[Pong])``: the decoder and the type checker both take the reply's class
from there.
"""

from __future__ import annotations

from functools import cache
from typing import Annotated, Any, Generic, TypeVar, get_args

import msgspec

Count = Annotated[int, msgspec.Meta(ge=0)]
"""A number of things; a message with a negative one is malformed."""
Finite = Annotated[float, msgspec.Meta(ge=-1e300, le=1e300)]
"""A time. NaN would spoil the order of the event loop's timers, all of them."""


class Record(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Base class of all messages and of the records inside them."""


R = TypeVar("R", bound=Record)


class Request(Record, Generic[R], frozen=True, array_like=True, gc=False):
    """Base class of messages that are answered by an ``R``. Repeating a request never changes the outcome (G112)."""



class Done(Record, frozen=True):
    """The reply that says only that the request was received and acted upon."""


DONE = Done()


class Address(Record, frozen=True):
    """Says where a process is reached, and which incarnation is meant (S10)."""

    worker_id: bytes
    """Id of the incarnation; every process has one, also a raylet (its node id) and the gcs."""
    node_id: bytes
    endpoint: str
    """Path of the unix socket (or simulated name), for processes on the same machine."""
    tcp_endpoint: str = ""
    """TCP endpoint for other machines; empty when the cluster is on one machine."""

    def endpoint_from(self, node_id: bytes) -> str:
        """Return the endpoint for a process of ``node_id``: TCP from another node if there is any, else the unix socket."""
        return self.tcp_endpoint if self.tcp_endpoint and node_id != self.node_id else self.endpoint

    def __hash__(self) -> int:
        return hash(self.worker_id)


@cache
def reply_class(request: type[Request[Any]]) -> type[Record]:
    """Return the class of the reply to a request class."""
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
    """Decode a record; raise one of ``common.decoding.MALFORMED`` if the bytes are malformed."""
    value: R = decoder(record).decode(payload)
    return value
