"""Raylets and workers as the gcs sees them: they note what they are asked, and answer what a test has them say.

What is in ``ANSWERS`` is answered at once, unless a test puts something else into ``answers``; what has None there waits for
the test, which takes it with ``hears`` and answers by hand.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from typing import Any

from minray.platform.base import RemoteFailure
from minray.protocol.actor import ExitActor
from minray.protocol.base import DONE, Record, Request
from minray.protocol.core_worker import PushTask
from minray.protocol.gcs import CheckAlive
from minray.protocol.placement_group import (
    CommitBundles,
    CommitBundlesReply,
    PrepareBundles,
    PrepareBundlesReply,
    ReleaseUnusedBundles,
    RemoveBundles,
    ReturnBundles,
)
from minray.protocol.raylet import (
    CancelWorkerLease,
    DrainRaylet,
    DrainRayletReply,
    GetLeaseFailure,
    LeaseFailure,
    RequestWorkerLease,
    ReturnWorkerLease,
)
from minray.rpc.service import Call

Kind = type[Request[Any]]
Answer = Record | RemoteFailure | Callable[[Any], Record] | None
"""Perhaps a function of the request."""
ANSWERS: dict[Kind, Answer] = {
    CheckAlive: DONE,
    RequestWorkerLease: None,
    CancelWorkerLease: DONE,
    ReturnWorkerLease: DONE,
    GetLeaseFailure: LeaseFailure(known=False, dead=False),
    PushTask: None,
    ExitActor: DONE,
    PrepareBundles: PrepareBundlesReply(),
    CommitBundles: CommitBundlesReply([]),
    ReturnBundles: DONE,
    RemoveBundles: DONE,
    ReleaseUnusedBundles: DONE,
    DrainRaylet: DrainRayletReply(True),
}


class Neighbour:
    """One pretended process."""

    def __init__(self) -> None:
        self.answers = dict(ANSWERS)
        self.heard: list[Any] = []
        """All requests but health checks, in order."""
        self.checks = 0
        """How many health checks have come."""
        self._calls: dict[Kind, asyncio.Queue[tuple[Any, Call]]] = defaultdict(asyncio.Queue)

    async def hears(self, kind: Kind) -> tuple[Any, Call]:
        """The next request of this kind that no test has taken yet, and the way to answer it."""
        return await self._calls[kind].get()

    def count(self, kind: Kind) -> int:
        """How many of them it was asked."""
        return sum(isinstance(request, kind) for request in self.heard)

    def hear(self, request: Any, call: Call) -> Record | None:
        kind = type(request)
        if kind is CheckAlive:
            self.checks += 1
        else:
            self.heard.append(request)
            self._calls[kind].put_nowait((request, call))
        answer = self.answers[kind]
        if callable(answer):
            return answer(request)
        if not isinstance(answer, RemoteFailure):
            return answer
        call.fail(answer.kind, answer.message)
        return None


def _understand(kind: Kind) -> None:
    def handle(self: Neighbour, request: Any, call: Call) -> Record | None:
        return self.hear(request, call)

    handle.__annotations__["request"] = kind
    setattr(Neighbour, f"handle_{kind.__name__}", handle)


for _kind in ANSWERS:
    _understand(_kind)
