"""The text of ``minray stack``: the current stacks of the threads and coroutines of each process.

Ray: what py-spy prints for python/ray/scripts/scripts.py (stack)

The functions are pure: they turn the answers (``ClusterStacks``) into lines, which look like Python's own tracebacks. The
newest call is the last.
"""

from __future__ import annotations

from collections.abc import Iterator

from minray.common.ids import short
from minray.errors.tracebacks import FRAMES
from minray.observability.state_reader import ClusterStacks
from minray.protocol.gcs import NodeInfo
from minray.protocol.state import ProcessStacks, Stack


def stack_text(found: ClusterStacks) -> str:
    """Return the stacks of all processes as text, node by node, drivers first."""
    order = sorted(found.processes, key=lambda process: (process.node_id, not process.is_driver, process.pid))
    return "\n\n".join("\n".join(_process(process, found.nodes[process.node_id])) for process in order)


def _process(process: ProcessStacks, node: NodeInfo) -> Iterator[str]:
    kind = "Driver" if process.is_driver else "Worker"
    where = f"pid {process.pid}, node {node.name or short(node.node_id)} ({node.ip})"
    running = f": {', '.join(process.running)}" if process.running else ""
    yield f"{kind} {short(process.worker_id)}, {where}{running}"
    for stack in process.stacks:
        yield from _stack(stack)
    if process.left_out:
        yield f"  {process.left_out} further coroutines"


def _stack(stack: Stack) -> Iterator[str]:
    kind = "Coroutine" if stack.is_coroutine else "Thread"
    if not stack.frames:
        yield f"  {kind} {stack.name}: {'runs' if stack.is_coroutine else 'waits for work'}"
        return
    yield f"  {kind} {stack.name}{f', {stack.count} times' if stack.count > 1 else ''}"
    for number, frame in enumerate(stack.frames):
        if stack.left_out and number == FRAMES // 2:
            yield f"    ... {stack.left_out} frames ..."
        yield f'    File "{frame.filename}", line {frame.line}, in {frame.function}'
        if frame.source:
            yield f"      {frame.source}"
