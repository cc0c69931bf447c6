"""A worker's main thread: it runs users' code, and the loop while there is none to run.

Ray: CoreWorker::RunTaskExecutionLoop and its io_service thread, which hand every task to and fro; python/ray/_raylet.pyx

One thread reads, runs and answers a task that comes to an idle worker, because waking another thread costs as much as the
rest of a small task. When the main thread stays in user code for longer, a second thread, the *relief*, runs the loop. The
thread that runs the loop holds the lock ``_lead``; it *leads*:

  * The main thread leads when it comes out of user code. If the relief leads then, the main thread asks it to stop.
  * The relief leads if the main thread has been away for two ticks, or at once when something is posted while no thread
    leads.

Rules
  * No callback waits for good. The relief goes to sleep after some time without user code, but only if the main thread is
    not away; the main thread wakes it before it goes away. A callback that is posted in between waits two ticks at most.
  * The SIGINT handler raises KeyboardInterrupt, in the main thread, and only if the interrupt still applies there. A stray
    SIGINT does nothing. The signal is repeated until the handler has run at a good moment. A destructor is a bad one, since
    it would swallow the exception; so is code that counts references.
  * SIGTERM raises SystemExit in the task that runs in the main thread, and then ends the process, after the user's clean-up.
    A second SIGTERM ends the process at once. In forked copies of the process SIGTERM has its default effect.
  * A signal handler of user code may raise at any time. While one is installed, the main thread does not lead: it waits for
    work beside the relief. An exception that such a handler raises after its task is logged. To notice handlers, the worker
    replaces ``signal.signal``.
  * Without work the main thread waits awake for a moment, if its last task came alone and soon (``spinning``).
  * Children that a task leaves behind are reaped soon after they and the task have ended (``left_children``).
  * The loop is asyncio's own: to begin and end a run in a main thread, uvloop takes 24 us and asyncio's loop 4 us.
"""

from __future__ import annotations

import _thread
import asyncio
import functools
import importlib
import logging
import os
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from types import FrameType
from typing import Any, TypeVar

from minray.common.clock import Clock
from minray.common.environment_variables import update_environment
from minray.common.package import COUNTS_REFERENCES, has_mark
from minray.platform.base import Buffer
from minray.platform.process import left_children, sigterm
from minray.platform.process.limits import start_thread
from minray.platform.threads.threads_beside import ThreadsBeside
from minray.platform.threads.user_code import TURN_S, LoopBorder
from minray.platform.threads.user_event_loop import UserEventLoop

logger = logging.getLogger(__name__)
T = TypeVar("T")

TICK_S = 0.002
"""Seconds between the relief's checks whether the main thread is away: short tasks end within it, undisturbed."""
QUIET_TICKS = 20
"""Number of ticks without user code after which the relief goes to sleep: an idle worker must not use the CPU."""
INSIST_S, INSIST_LIMIT_S = 0.01, 1.0
"""The first and the longest pause, in seconds, between two signals for one interrupt; it doubles each time."""
DEFERRED_S = 0.003
"""The pause, in seconds, after a signal that came at a bad moment: such moments are short."""
REAP_S = 0.5
"""Seconds between looks at the children that user code has left behind, while there are any."""
COLLECT_S = 0.5
"""Seconds from ``collect_later`` to the collection, so that many failures share one; more if collecting takes long."""
MOST_COLLECTING = 0.05
"""The largest share of a worker's time that such collections may take."""
TERMINATED = "this process was told to end (SIGTERM)"
_POSTING = (LoopBorder.post.__code__, LoopBorder.post_later.__code__, LoopBorder.drop.__code__)

Work = Callable[[], None]


class MainThreadUserCode(LoopBorder):
    """Implements ``base.UserCode`` for a worker. The main thread makes this object and calls ``serve``."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        assert threading.current_thread() is threading.main_thread()
        self._main_thread_id = threading.get_ident()
        loop.time = Clock.monotonic  # type: ignore[method-assign]
        self._works: deque[tuple[Callable[..., None], Callable[..., None] | None, tuple[Any, ...]]] = deque()
        """Work for the main thread, as (work, callback for the loop afterwards, arguments of both)."""
        self._stopping = False
        self._over = True
        """Whether the relief is not needed: before ``start_relief``, and once ``serve`` ends."""
        self._relief = threading.Thread(target=self._relieve, name="minray-relief", daemon=True)
        self._lead = _thread.allocate_lock()
        """Held by the thread that runs the loop."""
        self._away = False
        """Whether the main thread is in user code, or waits beside the relief."""
        self._pieces = 0
        """How many pieces of work the main thread has run since it led last."""
        self._rounds = 0
        """How often the main thread has gone into user code."""
        self._alarm = _thread.allocate_lock()
        """Released to wake the relief."""
        self._alarm.acquire()
        self._relief_sleeps = False
        """Whether the relief sleeps until its alarm, instead of looking every tick."""
        self._event_loop: UserEventLoop | None = None
        self._interrupts: deque[Callable[[], bool]] = deque()
        """Interrupts that the main thread has not examined yet, or has put off."""
        self._deferred = False
        """Whether the last signal came at a bad moment."""
        self._is_exposed = False
        """Whether user code has a signal handler installed."""
        self._will_collect = False
        """Whether a collection was asked for and has not begun."""
        self._collect_after_s = COLLECT_S
        self._will_reap = False
        """Whether the reaping of children is planned and has not begun."""
        self._bell = _thread.allocate_lock()
        """Released when there is work for the main thread while it waits beside the relief."""
        self._bell.acquire()
        self._is_in_task: Callable[[], bool] = _no
        self._end: Work = _nothing
        """Ends the process after SIGTERM, when the main thread is free."""
        self.on_idle: Work = _nothing
        """Called in the main thread when it begins to wait for work."""
        self._pid = 0
        """The pid of the process that handles SIGTERM here; a forked copy has another."""
        signal.signal(signal.SIGINT, self._on_interrupt)

    # --- the main thread

    def end_on_signal(self, is_in_task: Callable[[], bool], end: Work) -> None:
        """From now on let SIGTERM end this process in an orderly way: ``end`` is called in the main thread."""
        self._is_in_task, self._end = is_in_task, end
        self._pid = os.getpid()
        signal.signal(signal.SIGTERM, self._on_terminate)
        os.register_at_fork(after_in_child=self._forget_signal)

    def start_relief(self) -> None:
        """Start the relief. Raises RuntimeError if the system allows no more threads, so call it before others rely on this
        process."""
        self._over = False
        start_thread(self._relief)

    def begin(self, beginning: Coroutine[Any, Any, T]) -> T:
        """Run the loop until the coroutine has ended; return its result, or raise its exception.

        Work that comes meanwhile waits for ``serve``.
        """
        task = self._loop.create_task(beginning)
        task.add_done_callback(lambda _: self._loop.stop())
        while not task.done():
            self._loop.run_forever()
        return task.result()

    def serve(self) -> None:
        """Run work and the loop in the main thread until ``stop``. Call ``start_relief`` before."""
        signal.signal, install = self._watch_handlers(signal.signal), signal.signal
        while self._works or not self._stopping:
            self._run_works()
            if left_children.are_left():
                self._reap_later()
            if self._is_exposed:
                self._wait_for_work()
            else:
                self._lead_main()
        signal.signal = install
        self._over = True
        _release(self._alarm)
        self._take_lead()  # If the relief leads, it would not notice ``_over``.
        self._lead.release()
        self._relief.join()
        if self._event_loop is not None:
            self._event_loop.end()

    def stop(self) -> None:
        """From any thread: let ``serve`` return after the queued work."""
        self._stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        _release(self._bell)

    def _run_works(self) -> None:
        """Run queued work until a turn's time is over; the last piece may take longer."""
        self._pieces = 0
        if not self._works:
            return
        self._rounds += 1
        self._away = True
        if self._relief_sleeps:
            _release(self._alarm)
        until = Clock.monotonic() + TURN_S
        while self._works:
            work, then, args = self._works.popleft()
            self._pieces += 1
            work(*args)
            if then is not None:
                self.follow(then, *args)
            if Clock.monotonic() > until:
                break
        self._away = False

    def _lead_main(self) -> None:
        """Run the loop until there is work, but for at least one turn."""
        if self._works and self._lead.locked():
            return
        self._take_lead()
        try:
            if self._has_posted():
                # The loop's next turn would call these first too, but takes longer to begin.
                asyncio._set_running_loop(self._loop)
                try:
                    self._drain()
                finally:
                    asyncio._set_running_loop(None)
            if self._works or self._stopping:
                self._loop.call_soon(self._loop.stop)
            else:
                self.on_idle()
                if self._pieces == 1:  # A caller that sends several tasks at once is in no hurry.
                    self.spinner.begin()
            self._loop.run_forever()
            if self._works:
                self.spinner.end()
        finally:
            self._lead.release()

    def _take_lead(self) -> None:
        """Take the lead; if the relief has it, ask it to stop and wait for that."""
        if not self._lead.acquire(False):
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._lead.acquire()

    def _watch_handlers(self, install: Callable[..., Any]) -> Callable[..., Any]:
        """Wrap ``signal.signal`` so that ``_is_exposed`` says whether user code has a handler installed."""

        @functools.wraps(install)
        def watching(signal_number: int, handler: Any) -> Any:
            before = install(signal_number, handler)
            handlers, ours = map(signal.getsignal, signal.valid_signals()), (self._on_interrupt, self._on_terminate)
            self._is_exposed = any(callable(each) and each not in ours for each in handlers)
            return before

        return watching

    def _wait_for_work(self) -> None:
        """Wait for work while the relief leads."""
        self.on_idle()
        self._away = True
        _release(self._alarm)
        while not self._works and not self._stopping:
            try:
                self._bell.acquire()
            except (Exception, KeyboardInterrupt):
                logger.warning("a signal handler of user code raised after its task had ended", exc_info=True)
        self._away = False

    # --- the relief

    def _relieve(self) -> None:
        quiet_ticks = 0
        while not self._over:
            rounds = self._rounds
            self._alarm.acquire(True, TICK_S)
            if self._away:
                if (self._waking or self._rounds == rounds) and self._lead.acquire(False):
                    try:
                        if self._has_posted():
                            self._loop.call_soon(self._drain)
                        if not self._over:
                            self._loop.run_forever()
                    finally:
                        self._lead.release()
            quiet_ticks = quiet_ticks + 1 if self._rounds == rounds else 0
            if quiet_ticks > QUIET_TICKS:
                self._relief_sleeps = True
                if not self._away and not self._over:
                    self._alarm.acquire()
                self._relief_sleeps = False
                quiet_ticks = 0

    # --- from the loop, or anywhere

    def run(self, work: Callable[..., None], then: Callable[..., None] | None = None, *args: Any) -> None:
        self._works.append((work, then, args))
        if threading.get_ident() == self._main_thread_id:
            self._loop.stop()
        elif self._is_exposed:
            _release(self._bell)

    def _wake(self) -> None:
        super()._wake()
        if not self._lead.locked():
            _release(self._alarm)

    def follow(self, then: Callable[..., None], *args: Any) -> None:
        self._posted.append((then, args))
        if self._lead.locked() and not self._waking:
            self._waking = True
            self._loop.call_soon_threadsafe(self._drain)

    def threads_beside(self, limit: int) -> ThreadsBeside:
        return ThreadsBeside(self.post, limit, self._on_idle_thread)

    def _on_idle_thread(self) -> None:
        if left_children.are_left():
            self._reap_later()

    def run_event_loop(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        def begin() -> None:
            self._event_loop = UserEventLoop(self, self._loop, self.spinner)
            asyncio.set_event_loop(self._event_loop)
            self._event_loop.call_soon_threadsafe(on_open, self._event_loop)

        self.run(begin)

    def run_event_loop_beside(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        def main() -> None:
            loop = asyncio.new_event_loop()
            asyncio.set_event_loop(loop)
            loop.call_soon(on_open, loop)
            loop.run_forever()

        threading.Thread(target=main, name="minray-event-loop", daemon=True).start()

    def collect_later(self, at_once: bool = False) -> None:
        if at_once:
            self.post(self._begin_collection)
        elif not self._will_collect:
            self._will_collect = True
            self.post(self._plan_collection)

    def _plan_collection(self) -> None:
        self._loop.call_later(self._collect_after_s, self._begin_collection)

    def _begin_collection(self) -> None:
        """Collect in the main thread, or beside it while that is in user code: a task may wait for what garbage keeps."""
        if self._away:
            threading.Thread(target=self._collect, name="minray-garbage", daemon=True).start()
        else:
            self.run(self._collect)

    def _collect(self) -> None:
        """Collect garbage now; called in a thread where users' destructors may block."""
        self._will_collect = False
        began = Clock.monotonic()
        self.collect_garbage()
        self._collect_after_s = max(COLLECT_S, (Clock.monotonic() - began) / MOST_COLLECTING)

    def _reap_later(self) -> None:
        if not self._will_reap:
            self._will_reap = True
            self.post(self._plan_reaping)

    def _plan_reaping(self) -> None:
        self._loop.call_later(REAP_S, self.run, self._reap)

    def _reap(self) -> None:
        """Reap children; ``serve`` looks again if some are left."""
        self._will_reap = False
        left_children.reap()

    def interrupt(self, applies: Callable[[], bool]) -> None:
        self._interrupts.append(applies)
        self._insist(INSIST_S)

    def has_directory(self, path: str) -> bool:
        return os.path.isdir(path)

    def unpack(self, archive: Buffer, directory: str, check: Callable[[], None]) -> None:
        from minray.platform.storage import packages  # Few workers need zip files; the others do not wait for this import.

        packages.unpack(archive, directory, check)

    def enter_environment(
        self, leading: Sequence[str], sys_path: Sequence[str], working_dir: str | None, env_vars: dict[str, str]
    ) -> None:
        if working_dir is not None:
            os.chdir(working_dir)
        update_environment(os.environ, env_vars)
        if "TZ" in env_vars:
            time.tzset()
        of_driver = [entry for entry in sys_path if entry not in sys.path]
        of_variable = os.environ["PYTHONPATH"].split(os.pathsep) if "PYTHONPATH" in env_vars else []
        of_variable = [os.path.abspath(entry) for entry in of_variable if entry]
        sys.path[:] = dict.fromkeys([*leading, *of_driver, *of_variable, *sys.path])
        importlib.invalidate_caches()

    def _insist(self, again_s: float) -> None:
        """Send SIGINT again and again until the handler has run.

        One signal is not enough: if it comes just before a system call blocks, it does not end that call. A handler of user
        code does not report that it has run, so the signal is then repeated until the interrupt no longer applies.
        """
        is_ours = signal.getsignal(signal.SIGINT) == self._on_interrupt
        if not is_ours and not any(applies() for applies in list(self._interrupts)):
            self._interrupts.clear()
        if self._interrupts:
            pause_s = DEFERRED_S if self._deferred else again_s
            self._deferred = False
            signal.pthread_kill(self._main_thread_id, signal.SIGINT)
            self.post(self._insist_later, pause_s, min(again_s * 2, INSIST_LIMIT_S))

    def _insist_later(self, pause_s: float, again_s: float) -> None:
        self._loop.call_later(pause_s, self._insist, again_s)

    def _on_interrupt(self, signal_number: int, frame: FrameType | None) -> None:
        applying = []
        while self._interrupts:
            applies = self._interrupts.popleft()
            if applies():
                applying.append(applies)
        if applying and is_bad_moment(frame):
            self._interrupts.extend(applying)
            self._deferred = True
        elif applying:
            raise KeyboardInterrupt

    def _on_terminate(self, signal_number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._pid:  # a copy that has not come to ``_forget_signal`` yet
            sigterm.end_copy()
            return
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._works.appendleft((self._end, None, ()))
        self._loop.call_soon_threadsafe(self._loop.stop)
        _release(self._bell)
        if self._is_in_task():
            raise SystemExit(TERMINATED)

    def _forget_signal(self) -> None:
        """Give SIGTERM back, in a copy that user code has forked. Its main thread is the thread that forked."""
        if signal.getsignal(signal.SIGTERM) == self._on_terminate:
            sigterm.give_back()


def _no() -> bool:
    return False


def _nothing() -> None:
    """Do nothing: the default of the functions that a process may set."""


def _release(lock: _thread.LockType) -> None:
    """Release a lock that may be released already, to wake the thread that waits for it or will."""
    try:
        lock.release()
    except RuntimeError:
        pass  # It is released already.


def is_bad_moment(frame: FrameType | None) -> bool:
    """Whether an exception here would be swallowed, or leave a reference counted that nobody holds."""
    if frame is not None and has_mark(frame, COUNTS_REFERENCES):
        return True
    while frame is not None and frame.f_code.co_name != "__del__" and frame.f_code not in _POSTING:
        frame = frame.f_back
    return frame is not None
