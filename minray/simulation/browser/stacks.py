"""The threads of simulated user code in a browser: stacks of WebAssembly that JavaScript suspends and resumes.

Python in a browser (Pyodide) has no threads. The simulation needs only two primitives of ``_thread``, since exactly one of
its threads runs at any time: a lock, and the start of a function beside its caller. JSPI (JavaScript Promise Integration)
offers both. A function that is called as ``promising`` gets a stack of its own, and ``run_sync`` suspends that stack until
a promise is resolved.

Rules
  * ``user_code`` takes its threads from here where ``sys.platform`` is ``emscripten``, and from ``_thread`` elsewhere.
  * All stacks share one thread of the interpreter. What belongs to a thread there is put away while a stack is suspended:
    its ident, asyncio's loops and task, and the hooks of async generators. A trace function belongs to one stack alone.
  * While a stack is suspended, asyncio's loop is the page's. Pyodide asks for it at each switch; without one it fails, and
    with user code's it would call that.
  * A new stack begins when its starter waits.
  * Nothing may walk the frames of suspended stacks, because other stacks use their memory meanwhile (Pyodide #6464). Python
    does so in automatic garbage collections, which are turned off here, and whenever its first or last trace function comes
    or goes (``steady_tracing``). Each run begins with a full collection (``garbage``), which does not.
  * A lock has at most one waiter, as a baton needs. Waits have no time limit: while user code runs, no timer can.
  * A stack that has ended leaves nothing behind. Otherwise each run in a page would be slower than the one before.
"""

from __future__ import annotations

import _thread
import asyncio
import gc
import itertools
import sys
import threading
from asyncio import tasks
from collections.abc import Callable, Generator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from js import Promise
from pyodide.code import run_js
from pyodide.ffi import run_sync

_begin: Any = run_js("(main) => { main.callPromising(); }")
"""Calls a function on a new stack soon, when the stack that runs now waits or ends."""
_idents = itertools.count(1_000_000)
"""Idents of stacks; large, so that none of them is the ident of the interpreter's only thread."""
_ident = threading.get_ident()
"""The ident of the stack that runs."""
_policy: Any = asyncio.events._get_event_loop_policy()  # type: ignore[attr-defined]
"""Holds the loop of ``asyncio.set_event_loop``, for all stacks."""
_page_loop = _policy.get_event_loop()
"""The loop with which Pyodide stands for the page's event loop."""


def get_ident() -> int:
    """Return the ident of the stack that runs; replaces ``threading.get_ident``."""
    return _ident


def get_native_id() -> int:
    """Return the id of the interpreter's only thread. Simulated threads show ids of their own, as in every world."""
    return 1


gc.disable()
threading.get_ident = get_ident
threading.get_native_id = _thread.get_native_id = get_native_id  # Python lacks these where it has no threads.


class StackLock:
    """A lock whose waiter is suspended: what the simulation needs of ``_thread.lock``."""

    def __init__(self) -> None:
        self._is_held = False
        self._resume: Any = None
        """Resolves the promise for which the waiter is suspended; None: there is no waiter."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        if self._is_held:
            assert blocking and self._resume is None, "a baton has one waiter"
            pledge = Promise.withResolvers()
            self._resume = pledge.resolve
            with put_away():
                run_sync(pledge.promise)
        self._is_held = True
        return True

    def release(self) -> None:
        assert self._is_held
        self._is_held = False
        resume, self._resume = self._resume, None
        if resume is not None:
            resume(None)


def start_new_thread(function: Callable[..., object], args: tuple[Any, ...]) -> int:
    """Call a function on a new stack as soon as this one waits; return the new stack's ident."""
    ident = next(_idents)

    def main() -> None:
        global _ident
        with put_away():  # A new stack begins with what belongs to the page, which would seem to be user code's.
            _ident = ident
            try:
                function(*args)
            finally:
                threading._active.pop(ident, None)  # type: ignore[attr-defined]

    _begin(main)
    return ident


@contextmanager
def put_away() -> Generator[None, None, None]:
    """Put away what belongs to the thread of this stack while another stack runs."""
    global _ident
    ident, hooks, loop = _ident, sys.get_asyncgen_hooks(), asyncio._get_running_loop()
    task = tasks._swap_current_task(loop, None) if loop is not None else None  # type: ignore[attr-defined]
    asyncio._set_running_loop(None)
    set_loop, _policy._default_loop = _policy._default_loop, _page_loop
    sys.set_asyncgen_hooks(None, None)
    try:
        yield
    finally:
        _ident = ident
        asyncio._set_running_loop(loop)
        if task is not None:
            tasks._swap_current_task(loop, task)  # type: ignore[attr-defined]
        sys.set_asyncgen_hooks(*hooks)
        _policy._default_loop = set_loop


@contextmanager
def steady_tracing() -> Generator[None, None, None]:
    """Let trace functions come and go while stacks are suspended; for code that has started no stack yet.

    A stack that waits all the time has a trace function, so that none of the others is the first or the last one.
    """
    has_begun, go, has_ended = StackLock(), StackLock(), StackLock()
    for lock in (has_begun, go, has_ended):
        lock.acquire()

    def keep() -> None:
        sys.settrace(_trace_nothing)
        has_begun.release()
        go.acquire()
        sys.settrace(None)
        has_ended.release()

    sys.settrace(_trace_nothing)
    start_new_thread(keep, ())
    has_begun.acquire()
    sys.settrace(None)
    try:
        yield
    finally:
        sys.settrace(_trace_nothing)
        go.release()
        has_ended.acquire()
        sys.settrace(None)


def _trace_nothing(_frame: FrameType, _event: str, _arg: Any) -> None:
    """Trace no function."""
