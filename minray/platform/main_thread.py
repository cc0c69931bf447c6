"""A worker's main thread: it runs users' code, and the loop while there is none to run.

Ray: CoreWorker::RunTaskExecutionLoop and its io_service thread, which hand every task to and fro; python/ray/_raylet.pyx

A task that comes to an idle worker is read, run and answered by one thread, because waking another one costs as much as
the rest of a small task. While the main thread is away in a user's code for longer, a second one, the *relief*, runs the
loop. So one of the two *leads* at any time, whoever holds ``_lead``:

  * The main thread, when it comes out of user code: it asks the relief to stop if that leads.
  * The relief, if the main thread has been away for two ticks, or at once when something is posted while nobody leads.

Rules
  * Nothing waits for good while nobody leads: after a while without user code the relief goes to sleep, but only if the
    main thread is not away, and that wakes it when it goes away. What is posted in between waits two ticks at most.
  * KeyboardInterrupt is raised by the SIGINT handler, in the main thread, and only if the interrupt still applies there; a
    stray SIGINT does nothing. The signal is repeated until the handler has run, at a moment when that ends the task and
    nothing else: not in a destructor (which would swallow it), not while a reference is being made.
  * SIGTERM ends what runs in the main thread by SystemExit, and then the process, after the user's clean-up; a second one
    ends it at once. Forked copies of it do without.
  * While user code has a signal handler of its own installed, which may raise at any time, the main thread does not lead:
    it waits for work beside the relief. What such a handler raises after its task is logged. To know of handlers, the
    worker puts its own function in the place of ``signal.signal``.
  * While there is no work the main thread waits awake for a moment, if its last task came alone and soon (``spinning``).
  * The loop is asyncio's own: uvloop takes 24 us to begin and end a run in a main thread, asyncio's 4 us.
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
from minray.platform import sigterm
from minray.platform.threads_beside import ThreadsBeside
from minray.platform.user_code import TURN_S, LoopBorder
from minray.platform.user_event_loop import UserEventLoop

logger = logging.getLogger(__name__)
T = TypeVar("T")

TICK_S = 0.002
"""How often the relief looks whether the main thread is away."""
QUIET_TICKS = 20
"""So many ticks without user code, and the relief goes to sleep."""
INSIST_S, INSIST_LIMIT_S = 0.01, 1.0
"""The first and the longest pause between two signals for one interrupt."""
DEFERRED_S = 0.003
"""And the pause after one that came at a bad moment."""
COLLECT_S = 0.5
"""So long after user code has failed garbage is collected; longer, where that takes much time."""
MOST_COLLECTING = 0.05
"""So large a part of the time."""
TERMINATED = "this process was told to end (SIGTERM)"
_PACKAGE = os.path.dirname(os.path.dirname(__file__))
_COUNTING = frozenset(
    os.path.join(_PACKAGE, *file.split("/"))
    for file in (
        "object_ref.py",
        "core_worker/actor_api.py",
        "core_worker/generator_reader.py",
        "core_worker/outgoing_stream.py",
        "core_worker/results.py",
        "core_worker/user_api.py",
    )
)
"""Files of minray whose own frames count references, and never block."""
_POSTING = (LoopBorder.post.__code__, LoopBorder.post_later.__code__, LoopBorder.drop.__code__)

Work = Callable[[], None]


class MainThreadUserCode(LoopBorder):
    """A worker's user code: the main thread, where this object is made and ``serve`` is called."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        assert threading.current_thread() is threading.main_thread()
        self._main_thread_id = threading.get_ident()
        loop.time = Clock.monotonic  # type: ignore[method-assign]
        self._works: deque[tuple[Callable[..., None], Callable[..., None] | None, tuple[Any, ...]]] = deque()
        """What the main thread will run, and what is then called on the loop."""
        self._stopping = False
        self._over = True
        """``serve`` needs no relief."""
        self._relief = threading.Thread(target=self._relieve, name="minray-relief", daemon=True)
        self._lead = _thread.allocate_lock()
        """Held by the thread that runs the loop."""
        self._away = False
        """The main thread is in user code."""
        self._pieces = 0
        """How many works it has run since it has led."""
        self._rounds = 0
        """How often it has gone there."""
        self._alarm = _thread.allocate_lock()
        """Released to wake the relief."""
        self._alarm.acquire()
        self._relief_sleeps = False
        """It does not even look from time to time."""
        self._event_loop: UserEventLoop | None = None
        self._interrupts: deque[Callable[[], bool]] = deque()
        """Interrupts that the main thread has not looked at, or has put off."""
        self._deferred = False
        """Whether the last signal came at a bad moment."""
        self._is_exposed = False
        """User code has installed a signal handler."""
        self._will_collect = False
        """A collection has been asked for, and has not begun."""
        self._collect_after_s = COLLECT_S
        self._bell = _thread.allocate_lock()
        """Released when there is work for a main thread that does not lead."""
        self._bell.acquire()
        self._is_in_task: Callable[[], bool] = _no
        self._end: Work = _nothing
        """What ends the process, when it was told to and the main thread is free."""
        self._pid = 0
        """The process that has taken SIGTERM."""
        signal.signal(signal.SIGINT, self._on_interrupt)

    # --- the main thread

    def end_on_signal(self, is_in_task: Callable[[], bool], end: Work) -> None:
        """From now on SIGTERM ends this process in an orderly way: by ``end``, in the main thread."""
        self._is_in_task, self._end = is_in_task, end
        self._pid = os.getpid()
        signal.signal(signal.SIGTERM, self._on_terminate)
        os.register_at_fork(after_in_child=self._forget_signal)

    def start_relief(self) -> None:
        """Before anybody counts on this process: it may have no thread left to it, which raises RuntimeError."""
        self._over = False
        self._relief.start()

    def begin(self, beginning: Coroutine[Any, Any, T]) -> T:
        """Run the loop until this has ended; returns its result, or raises its exception. Work that comes meanwhile, which
        stops the loop, waits for ``serve``."""
        task = self._loop.create_task(beginning)
        task.add_done_callback(lambda _: self._loop.stop())
        while not task.done():
            self._loop.run_forever()
        return task.result()

    def serve(self) -> None:
        """Run work and the loop in the main thread, until ``stop``; ``start_relief`` comes first."""
        signal.signal, install = self._watch_handlers(signal.signal), signal.signal
        while self._works or not self._stopping:
            self._run_works()
            if self._is_exposed:
                self._wait_for_work()
            else:
                self._lead_main()
        signal.signal = install
        self._over = True
        _release(self._alarm)
        self._take_lead()  # In case the relief has it, and would not learn that all is over.
        self._lead.release()
        self._relief.join()
        if self._event_loop is not None:
            self._event_loop.end()

    def stop(self) -> None:
        """From any thread: let ``serve`` return after what is queued."""
        self._stopping = True
        self._loop.call_soon_threadsafe(self._loop.stop)
        _release(self._bell)

    def _run_works(self) -> None:
        """Run what is queued, but not for longer than a turn and a piece."""
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
        """Run the loop until there is work, but for one turn in any case."""
        if self._works and self._lead.locked():
            return
        self._take_lead()
        try:
            if self._has_posted():
                # It would come first in the loop's turn too, but that takes longer to begin.
                asyncio._set_running_loop(self._loop)
                try:
                    self._drain()
                finally:
                    asyncio._set_running_loop(None)
            if self._works or self._stopping:
                self._loop.call_soon(self._loop.stop)
            elif self._pieces == 1:  # What sends several at once is in no hurry.
                self.spinner.begin()
            self._loop.run_forever()
            if self._works:
                self.spinner.end()
        finally:
            self._lead.release()

    def _take_lead(self) -> None:
        """Lead, when the relief has stopped."""
        if not self._lead.acquire(False):
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._lead.acquire()

    def _watch_handlers(self, install: Callable[..., Any]) -> Callable[..., Any]:
        """Notice the signal handlers that user code has."""

        @functools.wraps(install)
        def watching(signal_number: int, handler: Any) -> Any:
            before = install(signal_number, handler)
            handlers, ours = map(signal.getsignal, signal.valid_signals()), (self._on_interrupt, self._on_terminate)
            self._is_exposed = any(callable(each) and each not in ours for each in handlers)
            return before

        return watching

    def _wait_for_work(self) -> None:
        """Wait while the relief leads."""
        self._away = True
        _release(self._alarm)
        while not self._works and not self._stopping:
            try:
                self._bell.acquire()
            except (Exception, KeyboardInterrupt):
                logger.warning("a signal handler raised when its task was over", exc_info=True)
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
        return ThreadsBeside(self.post, limit)

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

    def collect_later(self) -> None:
        if not self._will_collect:
            self._will_collect = True
            self.post(self._plan_collection)

    def _plan_collection(self) -> None:
        self._loop.call_later(self._collect_after_s, self.run, self._collect)

    def _collect(self) -> None:
        """In the main thread, where users' destructors may block."""
        self._will_collect = False
        began = Clock.monotonic()
        self.collect_garbage()
        self._collect_after_s = max(COLLECT_S, (Clock.monotonic() - began) / MOST_COLLECTING)

    def interrupt(self, applies: Callable[[], bool]) -> None:
        self._interrupts.append(applies)
        self._insist(INSIST_S)

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
        """Signal until the handler has run: a signal that comes just before a system call blocks does not end that call.

        A handler of the user's does not say that it has run: then until what it was meant for is over.
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
        if applying and _is_bad_moment(frame):
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
        """In a copy that user code has forked, whose main thread is the one that has forked."""
        if signal.getsignal(signal.SIGTERM) == self._on_terminate:
            sigterm.give_back()


def _no() -> bool:
    return False


def _nothing() -> None:
    """Nobody cleans up."""


def _release(lock: _thread.LockType) -> None:
    """Let the one go who waits for it, or who will."""
    try:
        lock.release()
    except RuntimeError:
        pass  # It is released already.


def _is_bad_moment(frame: FrameType | None) -> bool:
    """Whether an exception here would be swallowed, or leave something counted that nobody has."""
    if frame is not None and frame.f_code.co_filename in _COUNTING:
        return True
    while frame is not None and frame.f_code.co_name != "__del__" and frame.f_code not in _POSTING:
        frame = frame.f_back
    return frame is not None
