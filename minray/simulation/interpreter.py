"""Replaces functions of the standard library, so that they have a simulated meaning inside simulated processes.

User code calls ``time.sleep``, ``os._exit``, ``print``, ``asyncio.run``. While a world runs, the functions in the tables
below check who calls. Simulated user code gets the simulated meaning. Simulated code on the loop, which may not block, gets
the time but no sleep. All other code (the test runner, its plugins) gets the real function.

Functions without a simulated meaning yet (threads, child processes, sockets) raise an error by name. Otherwise a run could
not be repeated. ``random`` is one generator for all simulated processes, seeded per world: the seed also decides the order
in which they draw. So is the one behind ``numpy.random.rand``, if numpy.random is imported. Other unseeded generators,
``secrets`` among them, take the process's entropy.

Names of the user's modules (``from time import sleep``) get the replacements too, and lose them when the world ends.

Not simulated are functions kept elsewhere (a default argument, an attribute of a class, a name of a package), except
methods of classes (``datetime.now``, ``Event.wait``); locks made before the world began, for example by a module; CPU time;
files; and compiled code that asks the system.
"""

from __future__ import annotations

import contextlib
import contextvars
import ctypes
import gc
import importlib
import os
import sys
from collections.abc import Callable, Generator, Mapping
from datetime import UTC
from types import BuiltinFunctionType, ClassMethodDescriptorType, ModuleType
from typing import Any, Never, TextIO, TypeVar

from minray.common.signals import SIGABRT
from minray.errors.tracebacks import is_runtime
from minray.simulation.locks import SimLock, SimSimpleQueue, reentrant_lock, wait_for_notice
from minray.simulation.loop import NotSimulated, SimProcess, current_process
from minray.simulation.refusal import is_library, refusal
from minray.simulation.user_event_loop import SimulatedUserLoop
from minray.simulation.user_thread import SimParker, this_thread

EPOCH_S = 1_700_000_000.0
"""The wall clock, in seconds since the epoch, when a world begins."""

CLOUDPICKLE = "cloudpickle.cloudpickle"
"""The module that tracks classes pickled by value, so that a process makes each only once; here the world tracks them."""

IMMUTABLE_TYPE = 1 << 8
"""The flag ``Py_TPFLAGS_IMMUTABLETYPE`` of a Python type."""

NO_PARENT = 1
"""The pid that ``os.getppid`` shows when the parent has died."""
WALL_CLOCKS = ("CLOCK_REALTIME", "CLOCK_TAI")
PROCESSOR_CLOCKS = ("CLOCK_PROCESS_CPUTIME_ID", "CLOCK_THREAD_CPUTIME_ID", "CLOCK_PROF")
"""Clocks of ``time.clock_gettime`` that show CPU time. Clocks in neither list count as monotonic."""

T = TypeVar("T")
Real = Callable[..., Any]


def wall_time(process: SimProcess) -> float:
    """Return what ``time.time()`` shows in a process: the same in all processes of a world, unlike their monotonic
    clocks."""
    return EPOCH_S + process.time() - process.clock_offset_s


def _monotonic(real: Real, process: SimProcess) -> float:
    return process.time()


def _is_clock(clock: int, names: tuple[str, ...]) -> bool:
    """Whether a clock is one of these. Not every system has all of them."""
    time = importlib.import_module("time")
    return clock in [getattr(time, name, None) for name in names]


def _clock(real: Real, process: SimProcess, clock: int) -> float:
    """Replaces ``time.clock_gettime``. CPU time is the real one, as with ``time.process_time``."""
    shown: float = real(clock)  # raises for a number that is no clock
    if clock < 0 or _is_clock(clock, PROCESSOR_CLOCKS):
        return shown
    return wall_time(process) if _is_clock(clock, WALL_CLOCKS) else process.time()


def _clock_ns(real: Real, process: SimProcess, clock: int) -> int:
    shown: int = real(clock)
    if clock < 0 or _is_clock(clock, PROCESSOR_CLOCKS):
        return shown
    return int((wall_time(process) if _is_clock(clock, WALL_CLOCKS) else process.time()) * 1e9)


def _sleep(real: Real, process: SimProcess, seconds: float) -> None:
    thread = this_thread()
    if thread is None:
        raise NotSimulated("time.sleep on the loop would block it for ever")
    thread.sleep(seconds)


def _exit(real: Real, process: SimProcess, code: int) -> None:
    thread = this_thread()
    if thread is None:
        process.exit(code)
    else:
        thread.die(code, None)


def _kill(real: Real, process: SimProcess, pid: int, signal: int) -> None:
    victim = next((p for p in process.loop.processes if p.pid == pid and p.alive and p.node == process.node), None)
    if victim is None:
        raise ProcessLookupError(f"no simulated process has pid {pid}")
    thread = this_thread()
    if signal == 0:
        return
    if victim is process and thread is not None:
        thread.die(None, int(signal))
    else:
        victim.exit(None, int(signal))


def _raise_signal(real: Real, process: SimProcess, signal: int) -> None:
    _kill(real, process, process.pid, signal)


def _abort(real: Real, process: SimProcess) -> None:
    _kill(real, process, process.pid, SIGABRT)


def _getppid(real: Real, process: SimProcess) -> int:
    """Replaces ``os.getppid``. A worker's parent is its raylet. Other processes have the world, which does not die."""
    parent = process.parent
    return parent.pid if parent is not None and parent.alive else NO_PARENT


def _native_id(real: Real, process: SimProcess) -> int:
    thread = this_thread()
    return process.pid if thread is None else thread.native_id


def _hostname(real: Real, process: SimProcess) -> str:
    return process.node or str(real())


def _os_uname(real: Real, process: SimProcess) -> Any:
    system, _, *others = found = real()
    return type(found)((system, process.node, *others)) if process.node else found


def _platform_uname(real: Real, process: SimProcess) -> Any:
    """Replaces ``platform.uname``. The real one runs outside of the simulation, since Python caches its result for all code,
    and finds the processor's name by a child process."""
    outside = contextvars.Context()
    found = outside.run(real)
    if not process.node:
        return found
    shown = type(found)(found.system, process.node, found.release, found.version, found.machine)
    vars(shown)["processor"] = outside.run(lambda: found.processor)
    return shown


def _getcwd(real: Real, process: SimProcess) -> str:
    thread = this_thread()
    return thread.working_dir if thread is not None and thread.working_dir is not None else str(real())


def _chdir(real: Real, process: SimProcess, path: str) -> None:
    thread = this_thread()
    if thread is None:
        raise NotSimulated("os.chdir on the loop")
    os.stat(path)
    thread.working_dir = os.path.join(os.getcwd(), path)


def _urandom(real: Real, process: SimProcess, count: int) -> bytes:
    return process.random_bytes(count) if process.random_bytes is not None else bytes(real(count))


def _getrandom(real: Real, process: SimProcess, size: int, flags: int = 0) -> bytes:
    return _urandom(lambda count: real(count, flags), process, size)


def _urandom_number(process: SimProcess) -> int | None:
    """Return a seed for a generator that was given none; None if the process has no entropy yet."""
    return None if process.random_bytes is None else int.from_bytes(process.random_bytes(16), "big")


def _seed_shared(real: Real, process: SimProcess, a: Any = None, version: int = 2) -> None:
    real(_urandom_number(process) if a is None else a, version)


def _seed(real: Real, process: SimProcess, generator: Any, a: Any = None, version: int = 2) -> None:
    real(generator, _urandom_number(process) if a is None else a, version)


def _time_tuple(real: Real, process: SimProcess, seconds: float | None = None) -> Any:
    return real(wall_time(process) if seconds is None else seconds)


def _time_text(real: Real, process: SimProcess, *given: Any) -> Any:
    """Replaces ``time.asctime([t])`` and ``time.strftime(format[, t])``."""
    has_time = bool(given) and not isinstance(given[-1], str)
    return real(*given) if has_time else real(*given, importlib.import_module("time").localtime())


def _now(real: Real, process: SimProcess, kind: Any, tz: Any = None) -> Any:
    return kind.fromtimestamp(wall_time(process), tz)


def _utcnow(real: Real, process: SimProcess, kind: Any) -> Any:
    return kind.fromtimestamp(wall_time(process), UTC).replace(tzinfo=None)


def _lock(real: Real, process: SimProcess) -> Any:
    return real() if this_thread() is None else SimLock()


def _reentrant_lock(real: Real, process: SimProcess) -> Any:
    return real() if this_thread() is None else reentrant_lock()


def _wait_for_notice(real: Real, process: SimProcess, condition: Any, timeout: float | None = None) -> bool:
    return wait_for_notice(condition, timeout)


def _new_event_loop(real: Real, process: SimProcess) -> Any:
    thread = this_thread()
    if thread is None:
        raise NotSimulated("a second event loop on the loop")
    return SimulatedUserLoop(thread)


def _await_future(real: Real, process: SimProcess, future: Any, timeout: float | None = None) -> Any:
    """Replaces ``concurrent.futures.Future.result`` and ``exception``, which then wait at a border."""
    thread = this_thread()
    if thread is not None and not future.done():
        parker = SimParker(thread)
        future.add_done_callback(lambda _: parker.release())
        parker.wait(timeout)
    try:
        return real(future, 0)
    finally:
        del future  # see _dispatch


def _name_class(real: Real, process: SimProcess, given: Any) -> Any:
    """Return the name under which cloudpickle tracks a class that it pickles by value, to recognize it later.

    cloudpickle's own names are random and kept as long as the interpreter: a second world would draw none.
    """
    names = process.loop.class_names
    name = names.setdefault(given, f"{len(names):032x}")
    process.classes.setdefault(name, given)
    return name


def _class_named(real: Real, process: SimProcess, name: str | None, made: Any) -> Any:
    """Return this process's class of a name that cloudpickle has unpickled: the known one, or else the one just made.

    A process never gets another process's class.
    """
    if name is None:
        return made
    known = process.classes.setdefault(name, made)
    process.loop.class_names[known] = name
    return known


def _init(real: Real, process: SimProcess, address: str | None = None, **options: Any) -> Any:
    """Replaces ``minray.init``: a simulated driver joins before its program begins, and again if it has left."""
    if process.on_init is not None:
        process.on_init()
    return importlib.import_module("minray.node.init").RayContext({"address": address or "simulated"})


def _shutdown(real: Real, process: SimProcess) -> None:
    """Replaces ``minray.shutdown``. A driver that does not call it leaves when its program has ended."""
    if process.on_shutdown is not None:
        process.on_shutdown()


MEANINGS: dict[str, dict[str, Callable[..., Any]]] = {
    "time": {
        "sleep": _sleep,
        "time": lambda real, process: wall_time(process),
        "time_ns": lambda real, process: int(wall_time(process) * 1e9),
        "monotonic": _monotonic,
        "monotonic_ns": lambda real, process: int(process.time() * 1e9),
        "perf_counter": _monotonic,
        "perf_counter_ns": lambda real, process: int(process.time() * 1e9),
        "clock_gettime": _clock,
        "clock_gettime_ns": _clock_ns,
        "localtime": _time_tuple,
        "gmtime": _time_tuple,
        "ctime": _time_tuple,
        "asctime": _time_text,
        "strftime": _time_text,
    },
    "datetime:datetime": {"now": _now, "utcnow": _utcnow},
    "random": {"_urandom": _urandom, "seed": _seed_shared},
    "random:Random": {"seed": _seed},
    "threading": {"Lock": _lock, "RLock": _reentrant_lock, "get_native_id": _native_id, "_time": _monotonic},
    "_thread": {"get_native_id": _native_id},
    "queue": {"time": _monotonic},
    "threading:Condition": {"wait": _wait_for_notice},
    "minray.common.clock:Clock": {"perf_counter_ns": lambda real, process: int(process.time() * 1e9)},
    "os": {
        "_exit": _exit,
        "kill": _kill,
        "abort": _abort,
        "getpid": lambda real, process: process.pid,
        "getppid": _getppid,
        "uname": _os_uname,
        "getcwd": _getcwd,
        "chdir": _chdir,
        "urandom": _urandom,
        "getrandom": _getrandom,
    },
    "signal": {"raise_signal": _raise_signal},
    "socket": {"gethostname": _hostname},
    "platform": {"uname": _platform_uname},
    CLOUDPICKLE: {"_get_or_create_tracker_id": _name_class, "_lookup_class_or_track": _class_named},
    "asyncio": {"new_event_loop": _new_event_loop},
    "asyncio.events": {"new_event_loop": _new_event_loop},
    "minray": {"init": _init, "shutdown": _shutdown},
    "minray.node.init": {"init": _init, "shutdown": _shutdown},
    "concurrent.futures:Future": {"result": _await_future, "exception": _await_future},
}
"""Module (or class) and function -> its replacement, called with the real function, the calling process and the arguments.

``threading`` and ``queue`` measure time-outs with ``time.monotonic`` under names of their own, which are replaced too."""

CLASSES: dict[str, dict[str, type]] = {"queue": {"SimpleQueue": SimSimpleQueue}}
"""Module and class -> its replacement."""

INSTEAD_OF_THREADS = "use tasks, an actor, or coroutines"
INSTEAD_OF_CHILDREN = "use a task, or run it before the simulation"
INSTEAD_OF_SOCKETS = "let tasks and actors talk, or test what needs a network on a real cluster"
INSTEAD_OF_POLLING = "use time.sleep to wait, and let tasks and actors talk"
INSTEAD_OF_PIPES = "use a queue between threads of an actor, and let tasks and actors talk"
INSTEAD_OF_ALARMS = "use the timeout of minray.get and minray.wait, or asyncio.timeout"
INSTEAD_OF_SIGNALS = "use time.sleep to wait, or a threading.Event; signals of simulated processes only kill"
INSTEAD_OF_KILLING = "use os.kill with the pid of a simulated process"

NOT_SIMULATED = {
    "threading:Thread": {"start": INSTEAD_OF_THREADS},
    "_thread": {"start_new_thread": INSTEAD_OF_THREADS},
    "subprocess:Popen": {"__init__": INSTEAD_OF_CHILDREN},
    "multiprocessing.process:BaseProcess": {"start": INSTEAD_OF_CHILDREN},
    "os": {
        **dict.fromkeys(("fork", "forkpty", "system", "execv", "execve"), INSTEAD_OF_CHILDREN),
        **dict.fromkeys(("posix_spawn", "posix_spawnp"), INSTEAD_OF_CHILDREN),
        **dict.fromkeys(("pipe", "pipe2", "eventfd"), INSTEAD_OF_PIPES),
        "killpg": INSTEAD_OF_KILLING,
    },
    "signal": {
        **dict.fromkeys(("alarm", "setitimer"), INSTEAD_OF_ALARMS),
        **dict.fromkeys(("pause", "sigwait", "sigwaitinfo", "sigtimedwait"), INSTEAD_OF_SIGNALS),
        "pthread_kill": INSTEAD_OF_KILLING,
    },
    "select": dict.fromkeys(("select", "poll", "epoll", "devpoll", "kqueue"), INSTEAD_OF_POLLING),
    "selectors:_BaseSelectorImpl": {"__init__": INSTEAD_OF_POLLING},
    "socket:socket": {"__init__": INSTEAD_OF_SOCKETS},
    "socket": dict.fromkeys(("getaddrinfo", "gethostbyname", "gethostbyname_ex", "gethostbyaddr"), INSTEAD_OF_SOCKETS),
    "time": dict.fromkeys(("clock_settime", "clock_settime_ns"), "let time pass with time.sleep"),
    "uuid": {"uuid1": "use uuid.uuid4, which the seed decides"},
}
"""Class (or module) and function that simulated code may not call -> advice what to do instead."""

OF_THE_SYSTEM = {"os", "select", "signal", "time"}
"""Modules that lack some functions on some systems."""


class _ReplacedBuiltin(staticmethod):  # type: ignore[type-arg]
    """The replacement of a builtin function: no method as an attribute of a class (``Formatter.converter = time.gmtime``).

    A function that is pickled by value takes it along by its name.
    """

    def __reduce__(self) -> str:
        name: str = self.__name__
        return name


def _dispatch(place: str, name: str, meaning: Callable[..., Any]) -> Any:
    """Return the replacement of a function, which has ``meaning`` for simulated code only."""
    real = vars(_owner(place))[name]
    of_class = isinstance(real, ClassMethodDescriptorType)

    def dispatched(*args: Any, **kwargs: Any) -> Any:
        try:
            process = current_process.get()
            if process is not None:
                return meaning(real, process, *args, **kwargs)
            return real.__get__(None, args[0])(*args[1:], **kwargs) if of_class else real(*args, **kwargs)
        finally:  # An exception that one of the arguments holds would keep this frame, and it the argument, as in CPython.
            del args, kwargs

    dispatched.__module__, _, kind = place.partition(":")
    dispatched.__name__ = name
    dispatched.__qualname__ = f"{kind}.{name}" if kind else name
    if of_class:
        return classmethod(dispatched)
    return _ReplacedBuiltin(dispatched) if isinstance(real, BuiltinFunctionType) else dispatched


def _refuse(what: str, instead: str) -> Callable[..., Any]:
    def refuse(real: Real, process: SimProcess, *args: Any, **kwargs: Any) -> Never:
        raise refusal(f"{what} inside the simulated process {process.name}: {instead}")

    return refuse


class _RedirectedStream:
    """Replaces ``sys.stdout`` or ``sys.stderr``. Text that a simulated process writes goes to its ``on_text``."""

    def __init__(self, name: str, real: TextIO) -> None:
        self._name = name
        self._real = real

    def write(self, text: str) -> int:
        process = current_process.get()
        if process is None or process.on_text is None:
            return self._real.write(text)
        if process.alive:  # Otherwise its threads are being unwound; an event loop of user code may still write then.
            process.on_text(self._name, text)
        return len(text)

    def writelines(self, lines: list[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


def _owner(place: str) -> Any:
    """Import and return ``module`` or ``module:Class``."""
    module_name, _, class_name = place.partition(":")
    module = importlib.import_module(module_name)
    return getattr(module, class_name) if class_name else module


def _set(owner: Any, name: str, value: Any) -> None:
    """Set an attribute, also of a compiled class such as ``datetime``, whose attributes cannot be set normally."""
    if isinstance(owner, type) and owner.__flags__ & IMMUTABLE_TYPE:
        (attributes,) = gc.get_referents(owner.__dict__)
        attributes[name] = value
        ctypes.pythonapi.PyType_Modified(ctypes.py_object(owner))
    else:
        setattr(owner, name, value)


def _entries(table: Mapping[str, Mapping[str, T]]) -> Generator[tuple[str, str, T], None, None]:
    """Yield (place, name, value) of a table's entries, except functions that this system does not have."""
    for place, values in table.items():
        for name, value in values.items():
            if place not in OF_THE_SYSTEM or name in vars(_owner(place)):
                yield place, name, value


def _replacements() -> Generator[tuple[Any, str, Any], None, None]:
    """Yield (owner, attribute, new value) of everything that is replaced."""
    for place, name, meaning in _entries(MEANINGS):
        getattr(_owner(place), name)  # imports a name of ``minray`` that nothing has used before
        yield _owner(place), name, _dispatch(place, name, meaning)
    for place, name, instead in _entries(NOT_SIMULATED):
        refuse = _refuse(f"{place.replace(':', '.')}.{name}", instead)
        yield _owner(place), name, _dispatch(place, name, refuse)
    for place, name, stand_in in _entries(CLASSES):
        yield _owner(place), name, stand_in
    yield sys, "stdout", _RedirectedStream("stdout", sys.stdout)
    yield sys, "stderr", _RedirectedStream("stderr", sys.stderr)


def _rebind(replacements: Mapping[int, Any]) -> None:
    """Replace values of names in the user's modules: id of a value -> what takes its place."""
    for module in list(sys.modules.values()):
        filename = getattr(module, "__file__", None)
        if filename is not None and not is_runtime(filename) and not is_library(filename):
            names = vars(module)
            names.update({name: replacements[id(value)] for name, value in names.items() if id(value) in replacements})


@contextlib.contextmanager
def simulated_meanings(seed: int) -> Generator[None, None, None]:
    """Replace the functions above while the context is open. An interpreter can run one world at a time."""
    random: Any = importlib.import_module("random")
    numpy_random: Any = sys.modules.get("numpy.random")
    random_state = random.getstate()
    random.seed(seed)
    numpy_state = numpy_random.get_state() if numpy_random is not None else None
    if numpy_random is not None:
        numpy_random.seed(seed % (1 << 32))
    before: list[tuple[Any, str, Any]] = []
    try:
        for owner, name, replacement in _replacements():
            before.append((owner, name, vars(owner)[name]))
            _set(owner, name, replacement)
        pairs = [(real, vars(owner)[name]) for owner, name, real in before if isinstance(owner, ModuleType)]
        _rebind({id(real): replacement for real, replacement in pairs})
        try:
            yield
        finally:
            _rebind({id(replacement): real for real, replacement in pairs})
    finally:
        for owner, name, real in reversed(before):
            _set(owner, name, real)
        random.setstate(random_state)
        if numpy_random is not None:
            numpy_random.set_state(numpy_state)
