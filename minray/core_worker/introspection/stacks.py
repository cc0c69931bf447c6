"""The stacks of this process: where its threads are, and what the coroutines of its actor wait for.

Ray: python/ray/scripts/scripts.py (stack), which has py-spy look into each process from outside, as root

Here a process looks at itself. Its loop answers while user code is busy, unless that holds the interpreter's lock.

Rules
  * What is shown begins with the user's code, if there is any: how minray came to call that is left out. What minray does
    on the user's behalf, such as waiting in a ``get``, is shown.
  * Threads of minray's own are left out while they run nothing of the user's, and so are a pool's that have nothing to run.
  * Coroutines that do the same are counted, not repeated.
  * Frames are let go at once: they hold values of the user's.
"""

from __future__ import annotations

import asyncio
import concurrent.futures.thread
import threading
import traceback
from collections import Counter
from collections.abc import Sequence
from types import FrameType
from typing import Any

import msgspec

from minray.core_worker.execution import task_executor
from minray.core_worker.execution.actor_process import ActorProcess
from minray.core_worker.ground.process import Process
from minray.core_worker.records.received_task import ReceivedTask
from minray.errors.tracebacks import FRAMES, is_runtime
from minray.protocol.state import ProcessStacks, Stack, StackFrame

MOST_COROUTINES = 1000
"""Number of different coroutines that one answer describes."""
OURS = "minray-"
"""How the names of minray's own threads begin."""
_POOLED = concurrent.futures.thread._worker.__code__
"""Where a thread of a pool, such as that of an event loop, waits for work."""
_UNNAMED = "Task-"
"""How asyncio names tasks to which nobody gives a name."""


def stacks_of(process: Process, received: Sequence[ReceivedTask], actor: ActorProcess | None) -> ProcessStacks:
    """The answer of this process. ``received``: the tasks that were sent to it and have no answer yet."""
    running = [task.header.template.name for task in received if task.is_claimed()]
    coroutines, left_out = coroutine_stacks(actor.coroutines() if actor is not None else [])
    stacks = thread_stacks(process.platform.user_code.threads()) + coroutines
    config, pid = process.config, process.platform.processes.pid
    return ProcessStacks(
        node_id=config.node_id,
        worker_id=config.worker_id,
        pid=pid,
        is_driver=config.is_driver,
        running=running,
        stacks=stacks,
        left_out=left_out,
    )


def thread_stacks(threads: Sequence[tuple[str, FrameType | None]]) -> list[Stack]:
    """The main thread is the first, the others follow by name."""
    found = []
    for name, innermost in threads:
        frames = thread_frames(innermost)
        if not _is_idle(name, frames):
            found.append(describe(name, users_part(frames), is_coroutine=False))
    return sorted(found, key=lambda stack: (stack.name != "MainThread", stack.name))


def coroutine_stacks(tasks: Sequence[asyncio.Task[Any]]) -> tuple[list[Stack], int]:
    """Describe what these tasks wait for, by name, and count those that are left out."""
    counts: Counter[Any] = Counter()
    stacks: dict[Any, Stack] = {}
    for task in tasks:
        name, frames = _name_of(task), users_part(awaited_frames(task))
        key = name, tuple((id(frame.f_code), frame.f_lineno) for frame in frames)
        counts[key] += 1
        if key not in stacks and len(stacks) < MOST_COROUTINES:
            stacks[key] = describe(name, frames, is_coroutine=True)
    found = [msgspec.structs.replace(stack, count=counts[key]) for key, stack in stacks.items()]
    left_out = sum(count for key, count in counts.items() if key not in stacks)
    return sorted(found, key=lambda stack: (stack.name, [frame.line for frame in stack.frames])), left_out


def thread_frames(innermost: FrameType | None) -> list[FrameType]:
    """The newest call is the last one."""
    frames = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.f_back
    return frames[::-1]


def awaited_frames(task: asyncio.Task[Any]) -> list[FrameType]:
    """Frames of a coroutine, of what it awaits, and so on, while these are coroutines or generators; none while it runs."""
    frames: list[FrameType] = []
    awaited: Any = task.get_coro()
    if getattr(awaited, "cr_running", False):
        return frames
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            frames.append(frame)
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)
    return frames


def users_part(frames: list[FrameType]) -> list[FrameType]:
    """From the user's first frame on, where minray has called the user's code; all if it has not, or not yet."""
    files = [frame.f_code.co_filename for frame in frames]
    if task_executor.__file__ in files:
        for index in range(files.index(task_executor.__file__), len(files)):
            if not is_runtime(files[index]):
                return frames[index:]
    return frames


def describe(name: str, frames: list[FrameType], *, is_coroutine: bool) -> Stack:
    """As data, with what is written there."""
    left_out = max(0, len(frames) - FRAMES)
    if left_out:
        frames = frames[: FRAMES // 2] + frames[-FRAMES // 2 :]
    lines = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)
    described = [StackFrame(line.filename, line.lineno or 0, line.name, line.line or "") for line in lines]
    return Stack(name=name, is_coroutine=is_coroutine, count=1, frames=described, left_out=left_out)


def _is_idle(name: str, frames: list[FrameType]) -> bool:
    """Whether a thread is one of minray's own and runs nothing but minray, or waits in a pool for something to do."""
    if frames and frames[-1].f_code is _POOLED:
        return True
    if not name.startswith(OURS):
        return False
    return all(is_runtime(path) or path == threading.__file__ for path in (frame.f_code.co_filename for frame in frames))


def _name_of(task: asyncio.Task[Any]) -> str:
    name = task.get_name()
    return getattr(task.get_coro(), "__qualname__", name) if name.startswith(_UNNAMED) else name
