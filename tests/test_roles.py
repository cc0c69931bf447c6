"""Children of the zygote: what they find prepared, and how they report failures."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys

import pytest

import minray
from minray.common.config import SystemConfig, WorkerConfig
from minray.node import roles
from minray.platform.process.host import RealHost
from minray.platform.process.zygote_child import ChildEnds
from minray.platform.threads.main_thread import MainThreadUserCode
from minray.protocol.base import decoder

WORKER = WorkerConfig(bytes(16), bytes(16), "", "unix:/nowhere", "unix:/nowhere", "", "", "", False, SystemConfig())


def decoders_made() -> int:
    return decoder.cache_info().misses


class Counter:
    def decoders_made(self) -> int:
        return decoders_made()


def test_a_worker_makes_no_decoder_that_its_zygote_could_have_made() -> None:
    """Each would be 0.1 MB of every worker, and a millisecond of its first task."""
    program = (
        "from minray.node.roles import prepare_children; from minray.protocol.base import decoder;"
        "prepare_children(); print(decoder.cache_info().misses)"
    )
    prepared = int(subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout)
    with minray.init(num_cpus=2, log_to_driver=False):
        counter = minray.remote(Counter).remote()
        assert minray.get([minray.remote(decoders_made).remote(), counter.decoders_made.remote()]) == [prepared] * 2


def test_a_reason_that_is_no_text_arrives() -> None:
    """Names of files may be anything."""
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader:
        ends = ChildEnds("raylet", "", *[memoryview(b"")] * 4, None, write_end)
        roles._tell_ready(ends, "failed", "/tmp/\udcff")
        assert json.loads(reader.read()) == ["failed", r"/tmp/\udcff"]


def test_a_long_reason_is_cut_so_that_it_arrives() -> None:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as reader:
        ends = ChildEnds("raylet", "", *[memoryview(b"")] * 4, None, write_end)
        roles._tell_ready(ends, "failed", 1_000_000 * "\udcff")
        assert json.loads(reader.read()) == ["failed", r"\udcff" * (5000 // 6) + r"\udcff"[: 5000 % 6]]


def test_a_worker_that_gets_no_thread_does_not_join_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the number of processes is limited. It would be given a task, and die of it without having begun it."""

    class NoThreadLeft(MainThreadUserCode):
        def start_relief(self) -> None:
            raise RuntimeError("can't start new thread")

    def joins(*args: object) -> None:
        raise AssertionError("it joins")

    monkeypatch.setattr(roles, "MainThreadUserCode", NoThreadLeft)
    monkeypatch.setattr(roles, "CoreWorker", joins)
    loop, handler = asyncio.new_event_loop(), signal.getsignal(signal.SIGINT)
    monkeypatch.setattr(asyncio, "new_event_loop", lambda: loop)
    ends = ChildEnds("worker", "", memoryview(bytearray(64)), *[memoryview(b"")] * 3, None, None)
    try:
        with pytest.raises(RuntimeError, match="can't start new thread"):
            roles._run_worker(WORKER, roles.Heritage(b"", RealHost()), ends)
    finally:
        signal.signal(signal.SIGINT, handler)
        loop.close()
