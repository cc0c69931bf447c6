"""Actors that exit although some of their calls never end: their processes end, and later calls fail (C2, G28, G29)."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

import minray as ray
from minray.exceptions import RayActorError
from tests.helpers import wait_for_condition
from tests.real.support import Files, Journal, Signal, is_alive

pytestmark = pytest.mark.usefixtures("cluster")
INIT = {"_system_config": {"actor_graceful_shutdown_timeout_ms": 500}}


class Ending:
    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    def pid(self) -> int:
        return os.getpid()

    def block(self, begun: Signal) -> None:
        begun.set()
        threading.Event().wait()

    def __ray_shutdown__(self) -> None:
        self.journal.note("cleaned up")


class Threaded(Ending):
    def hang(self, begun: Signal) -> None:
        self.block(begun)

    def leave(self) -> None:
        ray.actor.exit_actor()


class Grouped(Threaded):
    """Blocks a thread of a concurrency group."""

    @ray.method(concurrency_group="io")
    def hang(self, begun: Signal) -> None:
        self.block(begun)


class Async(Ending):
    async def hang(self, begun: Signal) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.journal.note("cancelled")

    async def leave(self) -> None:
        ray.actor.exit_actor()


class Stubborn(Async):
    """Has a coroutine that swallows its cancellation."""

    async def hang(self, begun: Signal) -> None:
        begun.set()
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.journal.note("went on")


class AsyncGrouped(Async):
    @ray.method(concurrency_group="io")
    async def hang(self, begun: Signal) -> None:
        self.block(begun)


KINDS: dict[str, tuple[type, dict[str, Any], list[str]]] = {
    "threaded": (Threaded, {"max_concurrency": 3}, []),
    "grouped": (Grouped, {"concurrency_groups": {"io": 1}}, []),
    "async": (Async, {}, ["cancelled", "cleaned up"]),
    "stubborn": (Stubborn, {}, ["went on"]),
    "blocked loop of a group": (AsyncGrouped, {"concurrency_groups": {"io": 1}}, []),
}


@pytest.mark.slow
@pytest.mark.parametrize("end", ["leave", "__ray_terminate__", "kill"])
@pytest.mark.parametrize("kind", KINDS)
def test_c2_g28_g29_an_actor_ends_although_a_call_never_does(kind: str, end: str, files: Files) -> None:
    definition, options, expected = KINDS[kind]
    begun, journal = files.signal(), files.journal()
    actor = ray.remote(max_restarts=0, **options)(definition).remote(journal)
    pid = ray.get(actor.pid.remote())
    hanging = actor.hang.remote(begun)
    begun.wait()
    if end == "kill":
        ray.kill(actor)
        expected = []
    else:
        with pytest.raises(RayActorError):
            ray.get(getattr(actor, end).remote(), timeout=20)
    for ref in (actor.pid.remote(), hanging):
        with pytest.raises(RayActorError):
            ray.get(ref, timeout=20)
    wait_for_condition(lambda: not is_alive(pid))
    assert journal.lines() == expected
