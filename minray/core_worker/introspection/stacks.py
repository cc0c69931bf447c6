"""Describes the stacks of this process: where its threads are, and what the coroutines of its actor wait for.

Ray: python/ray/scripts/scripts.py (stack), which has py-spy look into each process from outside, as root

Here a process looks at itself. Its loop answers while user code is busy, unless user code holds the interpreter's lock.

Rules
  * A stack begins with the user's first frame, if there is one: the frames of minray that called it are left out. Frames of
    minray that user code has called, such as a waiting ``get``, are shown.
  * Minray's own threads are left out while they run no user code. Threads of a pool are left out while they wait for work.
  * Coroutines with the same name and lines are counted, not repeated.
  * No frame is kept after the answer, because frames hold the user's values.
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
"""Number of different coroutines that one answer describes, so that it fits into a message."""
OURS = "minray-"
"""Prefix of the names of minray's own threads."""
_POOLED = concurrent.futures.thread._worker.__code__
"""Code of the function in which a thread of a pool, such as an event loop's executor, waits for work."""
_UNNAMED = "Task-"
"""Prefix of the names that asyncio gives to tasks made without a name."""


def stacks_of(process: Process, received: Sequence[ReceivedTask], actor: ActorProcess | None) -> ProcessStacks:
    """Return this process's answer to a request for stacks.

    ``received`` are the tasks that were pushed to this process and have not been answered.
    """
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
    """Describe what these threads do, the main thread first, the others by name."""
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
    """Return the frames of a thread, the newest call last."""
    frames = []
    while innermost is not None:
        frames.append(innermost)
        innermost = innermost.f_back
    return frames[::-1]


def awaited_frames(task: asyncio.Task[Any]) -> list[FrameType]:
    """Return the frames of a task's coroutine and of the coroutines and generators that it awaits; none while it runs."""
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
    """Return the frames from the user's first one on; all frames if minray has not called user code in this stack."""
    files = [frame.f_code.co_filename for frame in frames]
    if task_executor.__file__ in files:
        for index in range(files.index(task_executor.__file__), len(files)):
            if not is_runtime(files[index]):
                return frames[index:]
    return frames


def describe(name: str, frames: list[FrameType], *, is_coroutine: bool) -> Stack:
    """Describe frames as data, with their source lines."""
    left_out = max(0, len(frames) - FRAMES)
    if left_out:
        frames = frames[: FRAMES // 2] + frames[-FRAMES // 2 :]
    lines = traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames)
    described = [StackFrame(line.filename, line.lineno or 0, line.name, line.line or "") for line in lines]
    return Stack(name=name, is_coroutine=is_coroutine, count=1, frames=described, left_out=left_out)


def _is_idle(name: str, frames: list[FrameType]) -> bool:
    """Whether a thread is minray's own and runs only minray's code, or belongs to a pool and waits for work."""
    if frames and frames[-1].f_code is _POOLED:
        return True
    if not name.startswith(OURS):
        return False
    return all(is_runtime(path) or path == threading.__file__ for path in (frame.f_code.co_filename for frame in frames))


def _name_of(task: asyncio.Task[Any]) -> str:
    name = task.get_name()
    return getattr(task.get_coro(), "__qualname__", name) if name.startswith(_UNNAMED) else name
