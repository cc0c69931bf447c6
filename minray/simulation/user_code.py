"""User code of a simulated process: the side of the seam that runs it in ``user_thread``'s threads.

Rules
  * Threads beside the main one run an actor's calls. For threads that user code starts itself an error is raised
    (see ``interpreter``).
  * With ``switch`` a thread may also give way between two lines of minray's own code (``switches``).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import copy
import os
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

from minray.common.environment_variables import update_environment
from minray.common.thread_frames import frames_of_other_threads
from minray.platform.base import WOULD_BLOCK, Buffer, ProcessGone
from minray.simulation.loop import SimProcess
from minray.simulation.switches import Switches
from minray.simulation.user_thread import SimParker, UserThread, environment_of, this_thread, threads_of


class SimThreads:
    """Implements ``base.Threads`` with simulated user threads."""

    def __init__(self, process: SimProcess, main: UserThread, limit: int) -> None:
        self._process = process
        self._main = main
        self._limit = limit
        self._threads: list[UserThread] = []

    def run(self, work: Callable[..., None], then: Callable[..., None], *args: Any) -> None:
        thread = next((thread for thread in self._threads if thread.has_no_work()), None)
        if thread is None:
            assert len(self._threads) < self._limit, "more work at once than was announced"
            thread = UserThread(self._process, self._main.trace)
            self._threads.append(thread)
        thread.environ, thread.working_dir = self._main.environ, self._main.working_dir
        thread.add_work(work, then, *args)


class SimUserCode:
    """Implements ``base.UserCode`` for a simulated process."""

    def __init__(
        self,
        process: SimProcess,
        preempt: Callable[[int], bool] = lambda ordinal: False,
        switch: Callable[[str, int], float | None] | None = None,
        directories: dict[str, bytes] | None = None,
    ) -> None:
        """``switch``: the ``choose`` of ``Switches``; None: no switches, which is faster."""
        self._process = process
        self._preempt = preempt
        """Called at the n-th ``post`` of a user thread; returns whether the loop runs right then."""
        self.thread = UserThread(process, None if switch is None else Switches(switch).on_call)
        """The main user thread."""
        self._held: list[tuple[Any, ...]] | None = None
        """Work that came between ``hold`` and ``serve``; None: work is run as it comes."""
        self.on_dropped: Callable[[Sequence[bytes]], None] = lambda _names: None
        self._directories = {} if directories is None else directories
        """Packages that are unpacked on this machine, by directory."""

    def renewed(self) -> SimUserCode:
        """Return the same threads for another connection of the process; references of this one are dropped in silence."""
        other = copy.copy(self)
        self.on_dropped = other.on_dropped = lambda _names: None
        return other

    def hold(self) -> None:
        """Let work wait for ``serve``, as in a real worker work waits until that has started completely."""
        self._held = []

    def serve(self) -> None:
        held, self._held = self._held or [], None
        for work in held:
            self.thread.add_work(*work)

    def run(self, work: Callable[..., None], then: Callable[..., None] | None = None, *args: Any) -> None:
        if self._held is not None:
            self._held.append((work, then, *args))
        else:
            self.thread.add_work(work, then, *args)

    def threads_beside(self, limit: int) -> SimThreads:
        return SimThreads(self._process, self.thread, limit)

    def collect_later(self, at_once: bool = False) -> None:
        """Do nothing: if minray itself keeps objects in a cycle, that must be noticed."""

    def collect_garbage(self) -> None:
        """Do nothing, as ``collect_later``."""

    def run_exit_handlers(self) -> None:
        """Do nothing: exit handlers belong to this interpreter, not to the simulated process."""

    def run_event_loop(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        """Run the event loop as a piece of work that never ends: no other work runs in this thread beside it."""
        self.run(lambda: _run_event_loop(on_open))

    def run_event_loop_beside(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        self.threads_beside(1).run(lambda: _run_event_loop(on_open), lambda: None)

    def follow(self, then: Callable[..., None], *args: Any) -> None:
        self.post(then, *args)

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        if not self._process.alive:
            return
        self._process.call_soon(callback, *args)
        thread = this_thread()  # It belongs to another process if an object of this one is freed there.
        if thread is not None and thread.process is self._process and self._preempt(self._process.next_ordinal("post")):
            thread.give_way()

    def post_later(self, callback: Callable[..., None], *args: Any) -> None:
        self.post(callback, *args)

    def drop(self, name: bytes) -> None:
        """Post each name on its own, so that anything may happen in between.

        The caller is a ``__del__``, which cannot raise: a thread that is unwound meanwhile ends at its next border.
        """
        with contextlib.suppress(ProcessGone):
            self.post(self.on_dropped, [name])

    def parker(self) -> SimParker:
        thread = this_thread()
        if thread is None and self.is_loop_thread():
            raise RuntimeError(WOULD_BLOCK)
        assert thread is not None and thread.process is self._process, "only user threads of this process can wait"
        return SimParker(thread)

    def future(self) -> concurrent.futures.Future[Any]:
        return concurrent.futures.Future()

    def interrupt(self, applies: Callable[[], bool]) -> None:
        self.thread.interrupt(applies)

    def time(self) -> float:
        return self._process.time()

    def is_loop_thread(self) -> bool:
        return self._process.loop.is_loop_thread()

    def threads(self) -> list[tuple[str, FrameType | None]]:
        """Return the threads that run user code; each is at a border."""
        frames = frames_of_other_threads()
        here = threads_of(self._process)
        names = ["MainThread" if thread is self.thread else "minray-call" for thread in here]
        return list(zip(names, (None if one.has_no_work() else frames.get(one.ident) for one in here), strict=True))

    def has_directory(self, path: str) -> bool:
        return path in self._directories or os.path.isdir(path)

    def unpack(self, archive: Buffer, directory: str, check: Callable[[], None]) -> None:
        """Note that the machine has the directory; nothing is written."""
        if directory not in self._directories:
            check()
            self._directories[directory] = bytes(archive)

    def enter_environment(
        self, leading: Sequence[str], sys_path: Sequence[str], working_dir: str | None, env_vars: dict[str, str]
    ) -> None:
        """Set working directory and variables. ``leading`` and ``sys_path`` have no effect: all processes share modules."""
        if working_dir is not None:
            if working_dir not in self._directories:
                os.stat(working_dir)
            self.thread.working_dir = working_dir
        with environment_of(self.thread):
            update_environment(os.environ, env_vars)


def _run_event_loop(on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    loop.call_soon(on_open, loop)
    try:
        loop.run_forever()
    finally:
        loop.close()
