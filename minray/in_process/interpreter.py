"""Replaces functions of the standard library while an in-process cluster runs, so that they act on the calling worker.

Ray: has no counterpart

``os.getpid`` is an example: it returns the pid of the worker in whose context it is called. The program around the cluster,
which is its driver, gets the real functions.
All replacements are taken back when the last cluster ends.

Not replaced are names that were bound before the cluster began (``from time import sleep``), compiled code, the working
directory, and signal handlers, which Python sets in the program's main thread only.
"""

from __future__ import annotations

import importlib
import logging
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextvars import Context
from functools import partial, wraps
from typing import Any, Never, TypeVar

from minray.common.signals import SIGABRT, SIGKILL
from minray.exceptions import AsyncioActorExit
from minray.in_process import definitions, user_code
from minray.in_process.process import LocalProcess, current_process
from minray.platform.base import ProcessGone

Real = Callable[..., Any]
T = TypeVar("T")

SERVICES = ("minray.gcs", "minray.raylet")
"""Loggers of processes that write into a session's logs. Here they have the program's handlers, which show their errors
only, unless the program has set the level of such a logger. What users must hear comes to the driver on its own way."""
ENVIRONMENT = 5
"""Place of the environment among the arguments of ``fork_exec``: a list of ``name=value``; None: that of the program."""

_by_pid: dict[int, LocalProcess] = {}
"""The living processes of all clusters by pid, without drivers, whose pid is that of the program."""
_worlds = 0
"""Number of running clusters."""
_replaced: list[tuple[Any, str, Any]] = []
"""(owner, attribute, real value) of everything that is replaced now."""
_hushed: list[logging.Logger] = []
"""The loggers whose level is set while a cluster runs."""


def begin_world() -> None:
    """Count one more cluster. The first one replaces the functions."""
    global _worlds
    if not _worlds:
        _replace()
    _worlds += 1


def end_world() -> None:
    """Count one cluster less, whose threads have ended. With the last one the real functions come back."""
    global _worlds
    _worlds -= 1
    if not _worlds:
        definitions.unshare()
        while _replaced:
            owner, name, real = _replaced.pop()
            setattr(owner, name, real)
        while _hushed:
            _hushed.pop().setLevel(logging.NOTSET)


def note_start(process: LocalProcess) -> None:
    """Let ``os.kill`` find a process by its pid as long as the process lives."""
    if not process.is_program:
        _by_pid[process.pid] = process
        process.on_death.append(lambda: _by_pid.pop(process.pid, None))


def _sleep(real: Real, process: LocalProcess, seconds: float) -> None:
    if process.loop.is_loop_thread():
        real(seconds)
    else:
        user_code.sleep(seconds)


def _pause(real: Real, process: LocalProcess) -> None:
    """Replaces ``signal.pause``: wait for an interrupt or the end. Handlers of other signals do not end the wait."""
    user_code.sleep(threading.TIMEOUT_MAX)


def _exit(real: Real, process: LocalProcess, status: int) -> Never:
    process.exit(status)
    raise ProcessGone


def _getpid(real: Real, process: LocalProcess) -> int:
    return process.pid


def _getppid(real: Real, process: LocalProcess) -> int:
    return process.parent.pid if process.parent is not None else int(real())


def _kill(real: Real, process: LocalProcess | None, pid: int, number: int) -> None:
    """Replaces ``os.kill``, for pids of processes of a cluster inside this one."""
    victim = _by_pid.get(pid)
    if victim is None:
        real(pid, number)
    elif number == SIGKILL:
        victim.exit(None, SIGKILL)
    elif number:
        victim.on_signal(int(number))
    if victim is not None and victim is process and not victim.alive:
        raise ProcessGone


def _raise_signal(real: Real, process: LocalProcess, number: int) -> None:
    _kill(real, process, process.pid, number)


def _abort(real: Real, process: LocalProcess) -> None:
    _kill(real, process, process.pid, SIGABRT)


def _start(real: Real, process: LocalProcess, thread: threading.Thread) -> None:
    """Replaces ``Thread.start``: a thread that a worker's code starts belongs to that worker, and to no call of it."""
    if not process.loop.is_loop_thread():
        thread.run = partial(_run_in_process, process.context.copy(), thread.run)  # type: ignore[method-assign]
        process.user_threads.append(thread)
    real(thread)


def _run_in_process(context: Any, run: Callable[[], None]) -> None:
    try:
        context.run(run)
    except (ProcessGone, AsyncioActorExit, SystemExit):
        pass  # The process has ended, or this thread has asked for the end of its actor or of itself.


def _set_handler(real: Real, process: LocalProcess, number: int, handler: Any) -> Any:
    """Replaces ``signal.signal``: a worker's handlers are called for signals from inside this process only."""
    before = _handler_of(real, process, number)
    process.signal_handlers[int(number)] = handler
    return before


def _handler_of(_real: Real, process: LocalProcess, number: int) -> Any:
    default = _on_interrupt if number == signal.SIGINT else signal.SIG_DFL
    return process.signal_handlers.get(int(number), default)


def _on_interrupt(_number: int, _frame: Any) -> Never:
    """Stands for a worker's own handler of SIGINT. It is not Python's, which asyncio replaces."""
    raise KeyboardInterrupt


def _main_thread(real: Real, process: LocalProcess) -> Any:
    return process.main_thread or real()


def _at_exit(real: Real, process: LocalProcess, function: Callable[..., T], *args: Any, **kwargs: Any) -> Callable[..., T]:
    process.exit_handlers.append(partial(function, *args, **kwargs))
    return function


def _not_at_exit(real: Real, process: LocalProcess, function: Callable[..., Any]) -> None:
    process.exit_handlers[:] = [handler for handler in process.exit_handlers if handler.func != function]  # type: ignore


def _waiter(real: Real, process: LocalProcess) -> Any:
    """Replaces the lock on which ``Condition.wait`` waits, and with it ``Event``, ``Queue`` and ``Semaphore``."""
    return real() if process.loop.is_loop_thread() else user_code.WaiterLock()


def _simple_queue(real: Real, process: LocalProcess) -> Any:
    """Replaces ``SimpleQueue`` by the one that is written in Python, whose waits can be interrupted."""
    return queue._PySimpleQueue()  # type: ignore[attr-defined]


def _new_event_loop(real: Real, process: LocalProcess) -> Any:
    """Replaces ``asyncio.new_event_loop``: what a thread of compiled code hands to a worker's loop runs in that worker."""
    loop = real()
    hand_over = loop.call_soon_threadsafe

    def call_soon_threadsafe(callback: Callable[..., object], *args: Any, context: Context | None = None) -> Any:
        if context is None and current_process.get() is None:
            context = process.context.copy()
        return hand_over(callback, *args, context=context)

    loop.call_soon_threadsafe = call_soon_threadsafe
    return loop


def _fork(real: Real, process: LocalProcess) -> Never:
    """Replaces ``os.fork``: the child would be a copy of the whole program, its cluster and its test."""
    raise RuntimeError(
        "os.fork() in a task or actor of local_mode would copy the whole program; use subprocess, or multiprocessing with"
        " the start method 'spawn', or a cluster of processes (init() without local_mode)"
    )


def _exec(real: Real, process: LocalProcess, *_: Any) -> Never:
    """Replaces ``os.exec...``, which would put another program in the place of this one, its cluster and its test."""
    raise RuntimeError(
        "os.exec...() in a task or actor of local_mode would replace the whole program; use subprocess, or a cluster of"
        " processes (init() without local_mode)"
    )


def _start_program(real: Real, process: LocalProcess, *arguments: Any) -> Any:
    """Replaces ``fork_exec`` below ``subprocess`` and ``multiprocessing``: a child gets the variables of its worker."""
    given = list(arguments)
    if given[ENVIRONMENT] is None and process.environ is not None:
        given[ENVIRONMENT] = [b"=".join(variable) for variable in process.environ.items()]
    return real(*given)


def _system(real: Real, process: LocalProcess, command: str) -> int:
    """Replaces ``os.system``: a child gets the variables of its worker."""
    if process.environ is None:
        return int(real(command))
    code = subprocess.call(command, shell=True)
    return code << 8 if code >= 0 else -code


def _set_variable(real: Real, process: LocalProcess, *variable: Any) -> None:
    """Replaces ``os.putenv`` and ``os.unsetenv``: a worker with variables of its own does not change the program's."""
    if process.environ is None:
        real(*variable)


class _Environ(MutableMapping[Any, Any]):
    """Replaces the dict behind ``os.environ``: a worker may have variables of its own."""

    def __init__(self, real: dict[Any, Any]) -> None:
        self.real = real

    def _data(self) -> dict[Any, Any]:
        process = current_process.get()
        return self.real if process is None or process.environ is None else process.environ

    def __getitem__(self, name: Any) -> Any:
        return self._data()[name]

    def __setitem__(self, name: Any, value: Any) -> None:
        self._data()[name] = value

    def __delitem__(self, name: Any) -> None:
        del self._data()[name]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._data())

    def __len__(self) -> int:
        return len(self._data())


REPLACEMENTS: dict[str, dict[str, Callable[..., Any]]] = {
    "time": {"sleep": _sleep},
    "os": {
        "_exit": _exit,
        "abort": _abort,
        "execv": _exec,
        "execve": _exec,
        "fork": _fork,
        "forkpty": _fork,
        "getpid": _getpid,
        "getppid": _getppid,
        "putenv": _set_variable,
        "system": _system,
        "unsetenv": _set_variable,
    },
    "signal": {"raise_signal": _raise_signal, "signal": _set_handler, "getsignal": _handler_of, "pause": _pause},
    "asyncio": {"new_event_loop": _new_event_loop},
    "asyncio.events": {"new_event_loop": _new_event_loop},
    "atexit": {"register": _at_exit, "unregister": _not_at_exit},
    "subprocess": {"_fork_exec": _start_program},
    "threading": {"_allocate_lock": _waiter, "main_thread": _main_thread},
    "queue": {"SimpleQueue": _simple_queue},
    "cloudpickle.cloudpickle": {"_lookup_class_or_track": definitions.class_of},
}
"""Module and function -> its replacement, called with the real function, the calling process and the arguments."""
if "_posixsubprocess" in sys.modules:  # ``subprocess`` has imported it, on systems that have it.
    REPLACEMENTS["_posixsubprocess"] = {"fork_exec": _start_program}


def _dispatch(real: Real, replacement: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(real)
    def dispatched(*args: Any, **kwargs: Any) -> Any:
        process = current_process.get()
        if process is None or process.is_program:
            return real(*args, **kwargs)
        return replacement(real, process, *args, **kwargs)

    dispatched.__name__ = dispatched.__qualname__ = getattr(real, "__name__", "dispatched")
    return dispatched


def _replace() -> None:
    definitions.share()
    for place, functions in REPLACEMENTS.items():
        module = importlib.import_module(place)
        for name, replacement in functions.items():
            if hasattr(module, name):
                dispatched = _dispatch(getattr(module, name), replacement)
                dispatched.__module__, dispatched.__qualname__ = place, name  # It is pickled by this name.
                _set(module, name, dispatched)
    kill, start = os.kill, threading.Thread.start
    _set(os, "kill", lambda pid, number: _kill(kill, current_process.get(), pid, number))
    _set(threading.Thread, "start", lambda thread: _dispatch(start, _start)(thread))
    _set(os.environ, "_data", _Environ(os.environ._data))  # type: ignore[attr-defined]
    for logger in map(logging.getLogger, SERVICES):
        if logger.level == logging.NOTSET:
            logger.setLevel(max(logging.ERROR, logger.getEffectiveLevel()))
            _hushed.append(logger)


def _set(owner: Any, name: str, value: Any) -> None:
    _replaced.append((owner, name, getattr(owner, name)))
    setattr(owner, name, value)
