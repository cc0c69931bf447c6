"""The border between the loop's thread and the threads that run users' code, in real processes.

Ray: src/ray/core_worker/core_worker.h (its io_service thread)

A driver has one IO thread with a uvloop loop, on which its CoreWorker lives (``IoThread``). Its other threads are the
user's own (``DriverUserCode``); minray changes nothing about them, least of all signal handlers. Workers differ: see
``main_thread``.

Rules
  * ``post`` takes no lock, so that it may be called anywhere, also by a destructor in the middle of another ``post``.
    It relies on single operations of deque and attributes being atomic.
  * A callback posted for later never overtakes one posted earlier, so that a reference is counted before it is dropped.
  * No wake-up is lost: ``_waking`` is cleared before the queues are read, and set after something was added to them.
  * Times of threads and of the loop can be compared: both are the monotonic clock. (uvloop's own ``time`` stands still
    between turns of the loop, so user threads do not read it.)
"""

from __future__ import annotations

import _thread
import asyncio
import atexit
import gc
import os
import sys
import threading
import time
import warnings
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import ExitStack, suppress
from types import FrameType
from typing import Any, Generic, TypeVar

from minray.common.clock import Clock
from minray.common.thread_frames import frames_of_other_threads
from minray.platform.base import WOULD_BLOCK, Buffer, Threads
from minray.platform.process.limits import start_thread
from minray.platform.threads.spinning import Spinner
from minray.platform.transport.stream_connection import Outbox

Result = TypeVar("Result")
POSTS_PER_TURN = 100
"""Number of posted callbacks that are called before IO has its turn, so that messages of the first ones leave soon."""
YIELD_S = 1e-6
"""Seconds that a driver's thread sleeps, as short as possible, after ``POSTS_PER_TURN`` posts of which the loop has called
none. The loop gets the interpreter's lock meanwhile. Otherwise it would get that lock, and begin the first callback, only
after 5 ms. (Workers do not sleep: where tasks submit tasks, all cores are busy already.)"""
DROPS_AT_ONCE = 1000
"""Number of dropped names reported before callbacks posted for later in the meantime: a million names may wait."""
TURN_S = 0.0005
"""Seconds after which a worker's loop gets a turn between pieces of user code in its main thread. So the answer to one piece
need not wait for the others."""
_sleep = time.sleep
"""The function of ``time``, kept here because tests replace that."""
STOP_S = 5.0
"""Seconds that the loop's tasks may take to end when they are cancelled."""


class LockParker:
    """Implements ``base.Parker``: waiting is one acquire of a raw lock. Once released, it stays released."""

    __slots__ = ("_lock", "_make_error", "_released")

    def __init__(self) -> None:
        self._lock = _thread.allocate_lock()
        """Held until ``release``."""
        self._lock.acquire()
        self._released = False
        self._make_error: Callable[[], Exception] | None = None
        """Makes the error that ``wait`` raises after ``fail``; None before."""

    def wait(self, timeout_s: float | None) -> bool:
        if not self._released:
            seconds = -1 if timeout_s is None else min(max(timeout_s, 0.0), threading.TIMEOUT_MAX)
            if not self._lock.acquire(True, seconds):
                return False
        if self._make_error is not None:
            raise self._make_error()
        return True

    def release(self) -> None:
        if not self._released:
            self._released = True
            try:
                self._lock.release()
            except RuntimeError:
                pass  # Two threads released it at once.

    def fail(self, make_error: Callable[[], Exception]) -> None:
        self._make_error = make_error
        self.release()


class BorderParker(LockParker):
    """A parker for a thread that waits for the loop. If the loop ends meanwhile, ``wait`` raises an error."""

    __slots__ = ("_border",)

    def __init__(self, border: LoopBorder) -> None:
        super().__init__()
        self._border = border

    def wait(self, timeout_s: float | None) -> bool:
        border, is_released = self._border, False
        try:
            border.parked.add(self)
            is_released = border.on_closed is not None or super().wait(timeout_s)
        finally:
            border.parked.discard(self)
            if not is_released:
                border.spinner.give_up()
        if border.on_closed is not None:
            raise border.on_closed()
        return is_released

    def release(self) -> None:
        self._border.parked.discard(self)
        self._border.spinner.end()
        super().release()


class VisitedParker(BorderParker):
    """The parker of a driver's main thread: a visit interrupts its wait (``DriverUserCode.visit``)."""

    __slots__ = ("_visits",)

    def __init__(self, border: DriverUserCode) -> None:
        super().__init__(border)
        self._visits = border.visits

    def wait(self, timeout_s: float | None) -> bool:
        border = self._border
        assert isinstance(border, DriverUserCode)
        until = None if timeout_s is None else Clock.monotonic() + timeout_s
        before, border.visited = border.visited, self
        try:
            while True:
                while self._visits and not self._released:
                    self._visits.popleft()()
                left_s = None if until is None else until - Clock.monotonic()
                if not super().wait(left_s) or self._released:
                    return self._released
        finally:
            border.visited = before

    def knock(self) -> None:
        """From the loop: let the thread look for visits."""
        with suppress(RuntimeError):  # It looks already.
            self._lock.release()


class LoopBorder:
    """The way to the loop for any thread: the common part of drivers' and workers' ``UserCode``."""

    gives_way = False
    """Whether threads that post a lot let the loop have the interpreter now and then."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._posted: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """Posted callbacks that have not been called."""
        self._posted_later: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        """Callbacks posted for later that have not been called."""
        self._dropped: deque[bytes] = deque()
        """Names given to ``drop`` that ``on_dropped`` has not received."""
        self.on_dropped: Callable[[Sequence[bytes]], None] = _ignore
        self._later_due = 0
        """Number of callbacks for later that are due; called when ``_before_later`` is zero or less."""
        self._dropped_due = 0
        """Number of dropped names that are due; reported after those callbacks."""
        self._before_later = 0
        """Number of earlier posted callbacks that still have to be called first."""
        self._waking = False
        """Whether ``_drain`` is scheduled."""
        self.outbox: Outbox | None = None
        """Holds the messages that posted callbacks send; written out when they have been called."""
        self.spinner = Spinner(loop)
        """Keeps the loop awake while threads wait for short calls."""
        self.parked: set[BorderParker] = set()
        """Parkers on which threads wait and that are not released."""
        self.on_closed: Callable[[], Exception] | None = None
        """Set once the loop calls no callbacks any more: makes the error that waiting threads raise."""

    def post(self, callback: Callable[..., None], *args: Any) -> None:
        """Call back on the loop soon. A closed loop calls no callbacks."""
        self._posted.append((callback, args))
        if not self._waking:
            self._begin_waking()
        elif self.gives_way and not len(self._posted) % POSTS_PER_TURN and not self.is_loop_thread():
            _sleep(YIELD_S)

    def post_later(self, callback: Callable[..., None], *args: Any) -> None:
        self._posted_later.append((callback, args))
        if not self._waking:
            self._begin_waking()

    def drop(self, name: bytes) -> None:
        self._dropped.append(name)
        if not self._waking:
            self._begin_waking()

    def _begin_waking(self) -> None:
        try:
            self._waking = True
            self._wake()
        except RuntimeError:
            self._posted.clear()
            self._posted_later.clear()
            self._dropped.clear()
            self._waking = False
        except BaseException:  # a KeyboardInterrupt anywhere in here: the next post must wake the loop again
            self._waking = False
            raise

    def _wake(self) -> None:
        """Have ``_drain`` called on the loop."""
        self._loop.call_soon_threadsafe(self._drain)

    def parker(self) -> BorderParker:
        self.refuse_on_loop()
        return BorderParker(self)

    def refuse_on_loop(self) -> None:
        """Raise RuntimeError on the loop: the caller is about to wait for the loop, which would be a deadlock."""
        if self.is_loop_thread():
            raise RuntimeError(WOULD_BLOCK)

    def future(self) -> Future[Any]:
        return Future()

    def time(self) -> float:
        return Clock.monotonic()

    def collect_garbage(self) -> None:
        if gc.isenabled():
            gc.collect()

    def run_exit_handlers(self) -> None:
        atexit._run_exitfuncs()

    def is_loop_thread(self) -> bool:
        return asyncio._get_running_loop() is self._loop

    def threads(self) -> list[tuple[str, FrameType | None]]:
        names = {thread.ident: thread.name for thread in threading.enumerate()}
        frames: dict[int, FrameType | None] = {**frames_of_other_threads(), threading.get_ident(): None}
        return [(names.get(ident, f"thread {ident}"), frame) for ident, frame in frames.items()]

    def _drain(self) -> None:
        """Call the callbacks posted until now. Those posted meanwhile wait for the next turn, so that IO has its share."""
        self._waking = False
        if self.outbox is not None:
            self.outbox.hold()
        if not self._later_due and not self._dropped_due:
            self._dropped_due = min(len(self._dropped), DROPS_AT_ONCE)
            self._later_due = len(self._posted_later)
            self._before_later = len(self._posted)
        try:
            self._before_later -= self._call(self._posted, len(self._posted))
        finally:
            if self.outbox is not None:
                self.outbox.flush()
        if self._before_later <= 0:
            self._later_due -= self._call(self._posted_later, self._later_due)
            if self._dropped_due and not self._later_due:
                self._tell_of_dropped()
        if self._has_posted() and not self._waking:
            self._waking = True
            self._loop.call_soon(self._drain)
        elif self.parked:
            self.spinner.begin()

    def _has_posted(self) -> bool:
        """Whether any callback or dropped name waits."""
        return bool(self._posted or self._posted_later or self._dropped)

    def _call(self, posted: deque[tuple[Callable[..., None], tuple[Any, ...]]], most: int) -> int:
        """Call at most ``most`` of the oldest callbacks, and at most ``POSTS_PER_TURN``; return how many."""
        count = min(most, POSTS_PER_TURN)
        for _ in range(count):
            callback, args = posted.popleft()
            try:
                callback(*args)
            except Exception as error:
                self._loop.call_exception_handler({"message": f"posted {callback!r} failed", "exception": error})
        return count

    def _tell_of_dropped(self) -> None:
        names = [self._dropped.popleft() for _ in range(min(self._dropped_due, POSTS_PER_TURN))]
        self._dropped_due -= len(names)
        try:
            self.on_dropped(names)
        except Exception as error:
            self._loop.call_exception_handler({"message": "on_dropped failed", "exception": error})


def _ignore(_names: Sequence[bytes]) -> None:
    """Do nothing: no reference counter is set."""


class DriverUserCode(LoopBorder):
    """Implements ``base.UserCode`` for a driver, whose threads are the user's own and only post and wait."""

    gives_way = True

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(loop)
        self.futures: set[Future[Any]] = set()
        """Futures that are not done."""
        self.receives_visits = False
        """Whether the main thread may be visited."""
        self.visits: deque[Callable[[], None]] = deque()
        """Visits that the main thread has not begun."""
        self.visited: VisitedParker | None = None
        """The parker on which the main thread waits; None while it does not wait."""
        self._collector: threading.Thread | None = None

    def future(self) -> Future[Any]:
        future: Future[Any] = Future()
        self.futures.add(future)
        if self.on_closed is not None:
            self._fail(future, self.on_closed())
        else:
            future.add_done_callback(self.futures.discard)
        return future

    def parker(self) -> BorderParker:
        if self.receives_visits and threading.current_thread() is threading.main_thread():
            self.refuse_on_loop()
            return VisitedParker(self)
        return super().parker()

    def visit(self, call: Callable[[], None]) -> None:
        """From the loop: have the main thread call this in the middle of its wait, or of its next one."""
        self.visits.append(call)
        if self.visited is not None:
            self.visited.knock()

    def close(self, on_closed: Callable[[], Exception]) -> None:
        """Report that the loop has ended: threads that wait, now or later, raise ``on_closed()``."""
        self.on_closed = on_closed
        for parker in list(self.parked):
            parker.release()
        with ExitStack() as stack:  # A SystemExit of a user's callback ends this thread only after all futures have failed.
            for future in list(self.futures):
                stack.callback(self._fail, future, on_closed())

    def _fail(self, future: Future[Any], error: Exception) -> None:
        """Fail a future, unless another thread does so at the same moment."""
        with suppress(KeyError):
            self.futures.remove(future)
            if future.set_running_or_notify_cancel():
                future.set_exception(error)

    def run(self, work: Callable[..., None], then: Callable[..., None] | None = None, *args: Any) -> None:
        raise RuntimeError("a driver has no thread that runs work")

    def threads_beside(self, limit: int) -> Threads:
        raise RuntimeError("a driver has no threads that run work")

    def follow(self, then: Callable[..., None], *args: Any) -> None:
        raise RuntimeError("a driver has no thread that runs work")

    def run_event_loop(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        raise RuntimeError("a driver has no thread that runs an event loop")

    def run_event_loop_beside(self, on_open: Callable[[asyncio.AbstractEventLoop], None]) -> None:
        raise RuntimeError("a driver has no thread that runs an event loop")

    def collect_later(self, at_once: bool = False) -> None:
        """Collect in a thread of its own: users' threads may be busy for ever, and the loop must not block in
        destructors."""
        if self._collector is None or not self._collector.is_alive():
            self._collector = threading.Thread(target=self.collect_garbage, name="minray-garbage", daemon=True)
            self._collector.start()

    def interrupt(self, applies: Callable[[], bool]) -> None:
        raise RuntimeError("a driver's threads are not ours to interrupt")

    def has_directory(self, path: str) -> bool:
        raise RuntimeError("a driver has no runtime environment to set up")

    def unpack(self, archive: Buffer, directory: str, check: Callable[[], None]) -> None:
        raise RuntimeError("a driver has no runtime environment to set up")

    def enter_environment(
        self, leading: Sequence[str], sys_path: Sequence[str], working_dir: str | None, env_vars: dict[str, str]
    ) -> None:
        raise RuntimeError("a driver's environment is not ours to change")


class _Errand(Generic[Result]):
    """A coroutine that the loop runs for a thread, which waits for its end.

    ``asyncio.run_coroutine_threadsafe`` will not do. The lock of its future is held for a moment by the thread that waits.
    If that is the main thread, Ctrl-C can interrupt it between taking the lock and the ``with`` that would return it. The
    loop then waits for the lock for ever. Here the loop never waits: it releases a lock that only the thread acquires.
    """

    def __init__(self, coroutine: Coroutine[Any, Any, Result]) -> None:
        self._coroutine = coroutine
        self._task: asyncio.Task[Result] | None = None
        """The running coroutine. Only the loop has it: a callback of asyncio's runs where the last reference to a task is
        dropped, and an interrupt in such a callback is lost."""
        self._results: list[Result] = []
        """The result, once there is one."""
        self._error: BaseException | None = None
        self.over = _thread.allocate_lock()
        """Free when the coroutine has ended."""
        self.over.acquire()

    def begin(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._coroutine)
        self._task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[Result]) -> None:
        self._task = None
        if task.cancelled():
            self._error = CancelledError()  # that of concurrent.futures: the waiting thread itself is not cancelled
        elif (error := task.exception()) is not None:
            self._error = error
        else:
            self._results.append(task.result())
        self.over.release()

    def give_up(self) -> None:
        """On the loop: cancel the coroutine, unless it has ended."""
        if self._task is not None:
            self._task.cancel()

    def result(self) -> Result:
        """Return the result, after ``over``, or raise the coroutine's exception."""
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # Its traceback has this frame.
        return self._results[0]


class IoThread:
    """A daemon thread with a loop of its own."""

    def __init__(
        self,
        name: str = "minray-io",
        is_lasting: bool = False,
        make_loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        """``is_lasting``: several users share the thread. Their ``stop`` does nothing; each ends the tasks it has begun.

        ``make_loop`` makes the loop; None: a uvloop where that is installed.
        """
        self.loop = (make_loop or _new_loop)()
        self.before_end: Callable[[], None] | None = None
        """Called in the thread when it is stopped, after its tasks have ended."""
        self._is_lasting = is_lasting
        self._thread = threading.Thread(target=self._main, name=name, daemon=True)
        try:
            start_thread(self._thread)
        except RuntimeError:
            self.loop.close()
            raise

    def run(self, coroutine: Coroutine[Any, Any, Result], timeout_s: float | None = None) -> Result:
        """From another thread: run a coroutine to its end and return its result.

        Raises TimeoutError after ``timeout_s``. Any exception in this thread cancels the coroutine. KeyboardInterrupt may
        come at any step.
        """
        assert threading.current_thread() is not self._thread, "this would wait for itself"
        errand = _Errand(coroutine)
        self.loop.call_soon_threadsafe(errand.begin)
        try:
            if not errand.over.acquire(timeout=-1 if timeout_s is None else timeout_s):
                raise TimeoutError
        except BaseException:
            self.loop.call_soon_threadsafe(errand.give_up)
            raise
        return errand.result()

    def stop(self) -> None:
        """Cancel every task, end the thread, close the loop; may be called again."""
        if self._is_lasting or self.loop.is_closed():
            return
        try:
            self.run(_cancel_all(), STOP_S)
        finally:
            self.halt()

    def halt(self) -> None:
        """End the thread and close the loop, whose tasks have ended."""
        if self.before_end is not None:
            self.loop.call_soon_threadsafe(self.before_end)
        self.join()
        if not self._thread.is_alive():
            with warnings.catch_warnings():  # Connections that still wait for their peer's goodbye end here.
                warnings.simplefilter("ignore", ResourceWarning)
                self.loop.close()

    def join(self) -> None:
        """Stop the loop, and wait until the thread has ended."""
        if self._thread.is_alive():
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join(STOP_S)

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()


def _new_loop() -> asyncio.AbstractEventLoop:
    open_standard_streams()
    try:
        import uvloop
    except ImportError:
        if sys.platform != "win32":  # for which there is no uvloop
            text = "uvloop is not installed; minray will be slower with asyncio's own loop"
            warnings.warn(text, RuntimeWarning, stacklevel=3)
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


def open_standard_streams() -> None:
    """Open the standard streams that a daemon has closed, as /dev/null, so that no other file gets their numbers.

    A child's own standard streams would replace such a file, and libuv aborts the process when it closes such a file.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # It gets the lowest free descriptor, which is this one.


def close_output() -> None:
    """Write out what threads have printed, also lines without an end, at the end of a process."""
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # user code may have put anything in their place
            stream.close()


async def _cancel_all() -> None:
    """Cancel all tasks except this one and wait for them, since a task may need a turn or two to clean up."""
    tasks = asyncio.all_tasks() - {task for task in [asyncio.current_task()] if task is not None}
    for task in tasks:
        task.cancel()
    if tasks:
        await asyncio.wait(tasks)
    await asyncio.get_running_loop().shutdown_asyncgens()
