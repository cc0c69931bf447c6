"""The text of ``minray stack``."""

from __future__ import annotations

from typing import Any

import pytest

from minray.observability import stack_text
from minray.observability.state_reader import ClusterStacks
from minray.protocol.base import Address
from minray.protocol.gcs import NodeInfo
from minray.protocol.state import ProcessStacks, Stack, StackFrame


def frame(line: int, source: str = "") -> StackFrame:
    return StackFrame("program.py", line, "f", source)


def process(name: str, *stacks: Stack, node: bytes = b"node-b", is_driver: bool = False, **more: Any) -> ProcessStacks:
    known = {"running": [], "left_out": 0, **more}
    return ProcessStacks(node, name.encode(), 7, is_driver, known["running"], list(stacks), known["left_out"])


def text(*processes: ProcessStacks) -> list[str]:
    known = ((b"node-a", "first", "10.0.0.1"), (b"node-b", "", "10.0.0.2"))
    nodes = {
        node_id: NodeInfo(node_id, name, ip, "host", Address(node_id, node_id, ""), {}, {}, False)
        for node_id, name, ip in known
    }
    return stack_text.stack_text(ClusterStacks(nodes, list(processes), [])).splitlines()


def test_a_stack_looks_like_a_traceback() -> None:
    worker = process("w", Stack("MainThread", False, 1, [frame(3, "g()"), frame(9)]), running=["f", "A.m"])
    assert text(worker) == [
        f"Worker {b'w'.hex()}, pid 7, node {b'node-b'.hex()[:8]} (10.0.0.2): f, A.m",
        "  Thread MainThread",
        '    File "program.py", line 3, in f',
        "      g()",
        '    File "program.py", line 9, in f',
    ]


def test_threads_without_work_coroutines_that_run_and_many_that_wait() -> None:
    idle, running = Stack("MainThread", False, 1, []), Stack("A.f", True, 1, [])
    many = Stack("A.g", True, 30, [frame(1)])
    assert text(process("w", idle, running, many, left_out=5))[1:] == [
        "  Thread MainThread: waits for work",
        "  Coroutine A.f: runs",
        "  Coroutine A.g, 30 times",
        '    File "program.py", line 1, in f',
        "  5 further coroutines",
    ]


def test_where_frames_are_missing_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack_text, "FRAMES", 4)
    lines = text(process("w", Stack("t", False, 1, [frame(line) for line in (1, 2, 3, 4)], 17)))
    assert [line.split(",")[1] if "File" in line else line for line in lines[2:]] == [
        " line 1",
        " line 2",
        "    ... 17 frames ...",
        " line 3",
        " line 4",
    ]


def test_processes_stand_by_node_and_drivers_come_first() -> None:
    found = text(process("w1"), process("w2", node=b"node-a"), process("d", is_driver=True))
    assert [line.partition(",")[0] for line in found if line] == [
        f"Worker {b'w2'.hex()}",
        f"Driver {b'd'.hex()}",
        f"Worker {b'w1'.hex()}",
    ]
    assert text() == []
