"""Definitions on their way: exported until the gcs has them, fetched once however many wait, unpickled where they run."""

from __future__ import annotations

from typing import Any

import cloudpickle
import pytest

from minray.core_worker.execution.function_manager import FETCH_AGAIN_S, FunctionManager
from minray.platform.base import RemoteFailure
from minray.protocol.gcs import KvGet, KvGetReply, KvPut, KvPutReply, job_namespace
from tests.core_worker.parts import JOB
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.rpc.fake_network import in_virtual_time, pass_time

FUNCTION = b"a function's id."
FAILURE = RemoteFailure("escaped", "the gcs has made a mistake")


class Process:
    """A process with a real function manager; the test is the gcs."""

    def __init__(self) -> None:
        self.gcs = RecordingPeers()
        peer: Any = self.gcs.local
        self.functions = FunctionManager(peer)
        self.exported = 0
        self.fetched: list[str] = []

    def export(self) -> None:
        def on_exported() -> None:
            self.exported += 1

        self.functions.export(JOB, FUNCTION, b"pickled", on_exported)

    def fetch(self, who: str) -> None:
        def on_fetched() -> None:
            assert self.functions.is_here(FUNCTION)
            self.fetched.append(who)

        self.functions.fetch_function(JOB, FUNCTION, on_fetched)

    def give_up_the_gcs(self) -> None:
        self.gcs.local.death = unreachable()


@in_virtual_time
async def test_a_definition_is_exported_when_the_gcs_says_so() -> None:
    process = Process()
    process.export()
    asked = process.gcs.take(KvPut)
    assert asked.request == KvPut(job_namespace(JOB), FUNCTION, b"pickled", True) and process.exported == 0
    asked.answer(KvPutReply(True))
    await pass_time(10)
    assert process.exported == 1 and process.gcs.asked == []


@in_virtual_time
async def test_an_export_is_tried_again_after_a_while_unless_the_gcs_is_gone() -> None:
    process = Process()
    process.export()
    process.gcs.take(KvPut).fail(FAILURE)
    await pass_time(FETCH_AGAIN_S - 0.1)
    assert process.gcs.asked == []
    await pass_time(0.2)
    asked = process.gcs.take(KvPut)
    assert asked.request == KvPut(job_namespace(JOB), FUNCTION, b"pickled", True)
    process.give_up_the_gcs()
    asked.fail(unreachable())
    await pass_time(10)
    assert process.exported == 0 and process.gcs.asked == []


@in_virtual_time
async def test_a_definition_is_asked_for_once_however_often_it_is_wanted() -> None:
    process = Process()
    process.fetch("first")
    process.fetch("second")
    asked = process.gcs.take(KvGet)
    assert asked.request == KvGet(job_namespace(JOB), FUNCTION) and not process.functions.is_here(FUNCTION)
    asked.answer(KvGetReply(cloudpickle.dumps(len)))
    assert process.functions.is_here(FUNCTION) and process.fetched == ["first"]
    await pass_time(10)
    assert process.gcs.asked == []


@in_virtual_time
@pytest.mark.parametrize("is_error", [True, False])
async def test_what_the_gcs_does_not_have_yet_is_asked_for_again_after_a_while(is_error: bool) -> None:
    process = Process()
    process.fetch("first")
    asked = process.gcs.take(KvGet)
    if is_error:
        asked.fail(FAILURE)
    else:
        asked.answer(KvGetReply(None))
    assert not process.functions.is_here(FUNCTION)
    await pass_time(FETCH_AGAIN_S - 0.1)
    assert process.gcs.asked == []
    await pass_time(0.2)
    process.gcs.take(KvGet).answer(KvGetReply(b"pickled"))
    assert process.fetched == ["first"]


@in_virtual_time
async def test_a_gcs_that_is_gone_is_not_asked_again() -> None:
    process = Process()
    process.fetch("first")
    process.give_up_the_gcs()
    process.gcs.take(KvGet).fail(unreachable())
    await pass_time(10)
    assert process.gcs.asked == [] and process.fetched == []


@in_virtual_time
async def test_while_it_is_about_to_be_asked_for_again_nobody_else_asks() -> None:
    """Otherwise it would come twice, and what came last would stay although nobody unpickles it any more."""
    process = Process()
    process.fetch("first")
    process.gcs.take(KvGet).answer(KvGetReply(None))
    process.fetch("second")
    assert process.gcs.asked == []
    await pass_time(FETCH_AGAIN_S)
    process.gcs.take(KvGet).answer(KvGetReply(cloudpickle.dumps(len)))
    assert process.functions.load(FUNCTION) is len
    await pass_time(2 * FETCH_AGAIN_S)
    assert process.gcs.asked == [] and process.fetched == ["first"] and process.functions._pickled == {}


@in_virtual_time
async def test_it_is_unpickled_once_and_stays_what_it_is() -> None:
    process = Process()
    process.fetch("first")
    process.gcs.take(KvGet).answer(KvGetReply(cloudpickle.dumps(lambda: None)))
    function = process.functions.load(FUNCTION)
    assert process.functions.load(FUNCTION) is function and process.functions.is_here(FUNCTION)
    assert process.functions._pickled == {}


@in_virtual_time
async def test_while_one_thread_unpickles_it_the_loop_may_look_for_it_at_any_moment() -> None:
    process = Process()

    class Watched(dict[bytes, Any]):
        def __setitem__(self, key: bytes, value: Any) -> None:
            super().__setitem__(key, value)
            assert process.functions.is_here(FUNCTION)

        def __delitem__(self, key: bytes) -> None:
            super().__delitem__(key)
            assert process.functions.is_here(FUNCTION)

    process.functions._functions, process.functions._pickled = Watched(), Watched()
    process.fetch("first")
    process.gcs.take(KvGet).answer(KvGetReply(cloudpickle.dumps(len)))
    assert process.functions.load(FUNCTION) is len


@in_virtual_time
async def test_what_cannot_be_unpickled_raises_each_time_it_is_tried() -> None:
    process = Process()
    process.fetch("first")
    process.gcs.take(KvGet).answer(KvGetReply(b"no pickle"))
    for _ in range(2):
        with pytest.raises(Exception, match="invalid load key"):
            process.functions.load(FUNCTION)
    assert process.functions.is_here(FUNCTION)
