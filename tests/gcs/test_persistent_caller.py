"""Requests that the gcs repeats until they are answered or their receiver is dead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minray.gcs.persistent_caller import ASK_AGAIN_S, PersistentCaller
from minray.platform.base import PlatformError, RemoteFailure
from minray.protocol.base import DONE, Address
from minray.protocol.raylet import CancelWorkerLease
from tests.core_worker.parts import address
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.rpc.fake_network import pass_time, run, turns

THERE = address("there")
REQUEST = CancelWorkerLease(b"lease")


class Scene:
    """One caller that has asked something."""

    def __init__(self, is_dead: bool = False) -> None:
        self.peers = RecordingPeers()
        self.is_dead = is_dead
        peers: Any = self.peers
        caller = PersistentCaller(peers, self.knows_as_dead)
        self.asking = asyncio.ensure_future(caller.call(THERE, REQUEST))

    def knows_as_dead(self, process: Address) -> bool:
        assert process == THERE
        return self.is_dead


@pytest.mark.parametrize("error", [unreachable(is_certain=False), RemoteFailure("internal", "oops")])
def test_it_asks_again_until_it_is_answered(error: PlatformError) -> None:
    async def story() -> None:
        scene = Scene()
        for _ in range(10):
            await turns()
            scene.peers.take(CancelWorkerLease).fail(error)
            await pass_time(0.9 * ASK_AGAIN_S)
            assert scene.peers.asked == []
            await pass_time(0.2 * ASK_AGAIN_S)
        scene.peers.take(CancelWorkerLease).answer(DONE)
        assert await scene.asking == DONE

    run(story)


def test_who_refuses_the_connection_is_dead() -> None:
    async def story() -> None:
        scene = Scene()
        await turns()
        scene.peers.take(CancelWorkerLease).fail(unreachable())
        assert await scene.asking is None and scene.peers.asked == []

    run(story)


def test_nobody_asks_the_dead() -> None:
    async def story() -> None:
        scene = Scene(is_dead=True)
        assert await scene.asking is None and scene.peers.asked == []

    run(story)


def test_who_is_silent_is_asked_until_its_death_is_known() -> None:
    async def story() -> None:
        scene = Scene()
        await turns()
        scene.peers.take(CancelWorkerLease).fail(unreachable(is_certain=False))
        scene.is_dead = True
        await pass_time(2 * ASK_AGAIN_S)
        assert await scene.asking is None and scene.peers.asked == []

    run(story)
