"""Requests that are asked until the other side answers or is known to be dead."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from minray.platform.base import PlatformError, RemoteFailure
from minray.protocol.base import DONE
from minray.protocol.core_worker import Loan, RemoveBorrower
from minray.protocol.gcs import GetWorkerDeath, GetWorkerDeathReply, WorkerDeath
from minray.rpc.connection import PeerUnreachable
from minray.rpc.patient_caller import ASK_AGAIN_S, PatientCaller
from tests.core_worker.parts import address
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.rpc.fake_network import pass_time, run, turns

THERE = address("there")
REQUEST = RemoveBorrower(b"borrower", [Loan(b"object", b"ticket")])
DEATH = WorkerDeath(THERE.worker_id, THERE.node_id, 5, "it was killed")


class Scene:
    """One patient caller that has asked something."""

    def __init__(self) -> None:
        self.peers = RecordingPeers()
        peers: Any = self.peers
        self.patient = PatientCaller(peers, peers.local)
        self.answers: list[Any] = []
        self.certain: list[bool] = []
        """For each answer that is an error: whether that was certain when it came."""
        self.patient.send(THERE, REQUEST, self.on_answer)

    def on_answer(self, reply: Any, error: PlatformError | None, _buffers: Any) -> None:
        self.answers.append(reply or error)
        self.certain += [error.is_certain] if isinstance(error, PeerUnreachable) else []

    def is_silent(self) -> None:
        self.peers.take(RemoveBorrower).fail(unreachable(is_certain=False))


def test_an_answer_is_an_answer() -> None:
    scene = Scene()
    asked = scene.peers.take(RemoveBorrower)
    assert asked.address == THERE
    asked.answer(DONE)
    assert scene.answers == [DONE] and scene.peers.asked == []


@pytest.mark.parametrize("error", [unreachable(), RemoteFailure("internal", "oops")])
def test_a_certain_error_is_an_answer_too(error: PlatformError) -> None:
    scene = Scene()
    scene.peers.take(RemoveBorrower).fail(error)
    assert scene.answers == [error] and scene.peers.asked == []


def test_silence_is_waited_out() -> None:
    async def story() -> None:
        scene = Scene()
        for _ in range(10):
            scene.is_silent()
            verdict = scene.peers.take(GetWorkerDeath)
            assert verdict.request == GetWorkerDeath(THERE.worker_id, THERE.node_id)
            verdict.answer(GetWorkerDeathReply(None))
            await turns()
            assert scene.peers.asked == scene.answers == []
            await pass_time(2 * ASK_AGAIN_S)
        scene.peers.take(RemoveBorrower).answer(DONE)
        assert scene.answers == [DONE]

    run(story)


def test_what_is_asked_again_has_the_buffers_that_it_had_at_first() -> None:
    async def story() -> None:
        scene = Scene()
        scene.peers.asked.clear()
        scene.patient.send(THERE, REQUEST, scene.on_answer, [b"one", b"two"])
        for _ in range(2):
            asked = scene.peers.take(RemoveBorrower)
            assert asked.buffers == [b"one", b"two"]
            asked.fail(unreachable(is_certain=False))
            scene.peers.take(GetWorkerDeath).answer(GetWorkerDeathReply(None))
            await pass_time(2 * ASK_AGAIN_S)

    run(story)


def test_g62_who_is_silent_is_dead_when_the_gcs_says_so() -> None:
    scene = Scene()
    scene.is_silent()
    scene.peers.take(GetWorkerDeath).answer(GetWorkerDeathReply(DEATH))
    (error,) = scene.answers
    assert isinstance(error, PeerUnreachable) and scene.certain == [True] and str(error) == "it was killed"


def test_without_a_gcs_silence_is_all_there_is_to_say() -> None:
    scene = Scene()
    scene.is_silent()
    scene.peers.take(GetWorkerDeath).fail(unreachable())
    (error,) = scene.answers
    assert isinstance(error, PeerUnreachable) and not error.is_certain


@pytest.mark.parametrize("before_the_verdict", [True, False])
def test_nothing_is_asked_again_after_the_end(before_the_verdict: bool) -> None:
    async def story() -> None:
        scene = Scene()
        scene.is_silent()
        verdict = scene.peers.take(GetWorkerDeath)
        if before_the_verdict:
            scene.patient.close()
        verdict.answer(GetWorkerDeathReply(None))
        scene.patient.close()
        await pass_time(2 * ASK_AGAIN_S)
        assert scene.peers.asked == scene.answers == []

    run(story)


@pytest.mark.parametrize("death", [DEATH, None])
def test_what_the_gcs_says_after_the_end_is_no_answer_any_more(death: WorkerDeath | None) -> None:
    scene = Scene()
    scene.is_silent()
    scene.patient.close()
    verdict = scene.peers.take(GetWorkerDeath)
    if death is not None:
        verdict.answer(GetWorkerDeathReply(death))
    else:
        verdict.fail(unreachable())
    assert scene.answers == []


def test_coroutines_call_patiently_too() -> None:
    async def story() -> None:
        scene = Scene()
        scene.peers.asked.clear()
        calling = [asyncio.ensure_future(scene.patient.call(THERE, REQUEST)) for _ in range(3)]
        await turns()
        answered, failed, given_up = scene.peers.asked
        calling[2].cancel()
        await turns()
        answered.answer(DONE)
        failed.fail(unreachable())
        given_up.answer(DONE)
        assert await calling[0] == DONE
        with pytest.raises(PeerUnreachable):
            await calling[1]
        assert calling[2].cancelled()

    run(story)


def test_the_gcs_is_told_again_until_it_hears_or_is_gone() -> None:
    async def story() -> None:
        scene = Scene()
        scene.peers.asked.clear()
        telling = GetWorkerDeath(THERE.worker_id, THERE.node_id)
        for end in (GetWorkerDeathReply(None), unreachable()):
            scene.answers.clear()
            scene.patient.send_to_gcs(telling, scene.on_answer)
            for _ in range(3):
                scene.peers.take(GetWorkerDeath).fail(RemoteFailure("internal", "oops"))
                assert scene.peers.asked == scene.answers == []
                await pass_time(1.1 * ASK_AGAIN_S)
            asked = scene.peers.take(GetWorkerDeath)
            assert asked.address is None and asked.request == telling
            asked.fail(end) if isinstance(end, PlatformError) else asked.answer(end)
            assert scene.answers == [end]

    run(story)


def test_one_that_is_closed_passes_no_answer_of_the_gcs_on() -> None:
    scene = Scene()
    scene.peers.asked.clear()
    scene.patient.send_to_gcs(GetWorkerDeath(THERE.worker_id, THERE.node_id), scene.on_answer)
    scene.patient.close()
    scene.peers.take(GetWorkerDeath).answer(GetWorkerDeathReply(None))
    assert scene.answers == []


def test_one_that_is_closed_tells_the_gcs_nothing_more() -> None:
    async def story() -> None:
        scene = Scene()
        scene.peers.asked.clear()
        telling = GetWorkerDeath(THERE.worker_id, THERE.node_id)
        scene.patient.send_to_gcs(telling, scene.on_answer)
        scene.peers.take(GetWorkerDeath).fail(RemoteFailure("internal", "oops"))
        scene.patient.close()
        await pass_time(2 * ASK_AGAIN_S)
        assert scene.peers.asked == scene.answers == []

    run(story)
