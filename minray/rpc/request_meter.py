"""Counts the requests that a process receives, and how long it takes to answer them, by method.

Ray: src/ray/rpc/metrics.h, src/ray/rpc/server_call.h (LogProcessTime)

A meter stands between a listener and the dispatcher. It passes each message on with a note of the time, and counts when the
answer is sent. The gcs and the raylets have one. Workers have none: each task is a message for its worker, and the count
would be part of its time.

Rules
  * A message is handled as soon as it has arrived, so no time passes before its handling begins.
  * A message that is never answered, such as a notification whose handler returns nothing, is new and handled, but does not
    finish.
  * Peers choose the names of unknown methods. At most ``MOST_METHODS`` names are kept; the others count under an empty name.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import accumulate

from minray.common.clock import Clock
from minray.platform.base import Buffer, Incoming, OnIncoming, RemoteFailure
from minray.protocol.state import SystemValue

BOUNDARIES_MS = (0.1, 1.0, 10.0, 100.0, 1000.0, 10000.0)
"""Highest processing time of each bucket in milliseconds, as in Ray."""
LE = (*(repr(boundary) for boundary in BOUNDARIES_MS), "+Inf")
"""The boundaries as Prometheus's label ``le`` has them."""
MOST_METHODS = 500
"""Number of methods that are counted by name; all services together understand fewer."""


class _Method:
    """The figures of one method."""

    __slots__ = ("new", "succeeded", "failed", "nanoseconds", "buckets")

    def __init__(self) -> None:
        self.new = 0
        self.succeeded = 0
        self.failed = 0
        self.nanoseconds = 0
        """Sum of the times from arrival to answer."""
        self.buckets = [0] * len(LE)
        """Number of answers by that time."""


class _Metered:
    """A message on its way to the dispatcher: an ``Incoming`` that notes when it is answered."""

    __slots__ = ("method", "payload", "buffers", "peer", "_incoming", "_figures", "_arrived_at")

    def __init__(self, incoming: Incoming, figures: _Method) -> None:
        self.method = incoming.method
        self.payload = incoming.payload
        self.buffers = incoming.buffers
        self.peer = incoming.peer
        self._incoming = incoming
        self._figures: _Method | None = figures
        """None once it is answered."""
        self._arrived_at = Clock.perf_counter_ns()

    def reply(self, payload: bytes, buffers: Sequence[Buffer] = ()) -> None:
        self._incoming.reply(payload, buffers)
        self._count(True)

    def fail(self, failure: RemoteFailure) -> None:
        self._incoming.fail(failure)
        self._count(False)

    def _count(self, has_succeeded: bool) -> None:
        figures, self._figures = self._figures, None
        if figures is None:
            return
        took = Clock.perf_counter_ns() - self._arrived_at
        figures.nanoseconds += took
        figures.buckets[bisect_left(BOUNDARIES_MS, took / 1e6)] += 1
        if has_succeeded:
            figures.succeeded += 1
        else:
            figures.failed += 1


class RequestMeter:
    """Counts the messages of one process."""

    def __init__(self) -> None:
        self._methods: dict[str, _Method] = {}

    def counting(self, on_incoming: OnIncoming) -> OnIncoming:
        """Return a callback for ``network.listen`` that counts each message and passes it on."""
        return partial(self._on_incoming, on_incoming)

    def _on_incoming(self, on_incoming: OnIncoming, incoming: Incoming) -> None:
        figures = self._methods.get(incoming.method)
        if figures is None:
            name = incoming.method if len(self._methods) < MOST_METHODS else ""
            figures = self._methods.setdefault(name, _Method())
        figures.new += 1
        on_incoming(_Metered(incoming, figures))

    def values(self) -> Iterator[SystemValue]:
        """Return the figures under Ray's names."""
        for name, figures in self._methods.items():
            labels = {"Method": name}
            for kind, count in {
                "new": figures.new,
                "handling": figures.new,
                "finished": figures.succeeded + figures.failed,
                "succeeded": figures.succeeded,
                "failed": figures.failed,
            }.items():
                yield SystemValue(f"grpc_server_req_{kind}_total", float(count), labels)
            metric = "grpc_server_req_process_time_ms"
            for boundary, count in zip(LE, accumulate(figures.buckets), strict=True):
                yield SystemValue(metric, float(count), {**labels, "le": boundary}, "_bucket")
            yield SystemValue(metric, figures.nanoseconds / 1e6, labels, "_sum")
            yield SystemValue(metric, float(figures.succeeded + figures.failed), labels, "_count")
