"""A zygote program with small roles for the tests of processes: ``python zygote_roles.py DESCRIPTOR SESSION_DIR``.

Each function with the arguments ``(config, ends)`` is a role. Roles report as JSON through ``ends.ready``; those that take
``processes`` are coroutines of a process with a control link, as the raylet is.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable
from typing import Any

from minray.platform.base import JOURNAL_BYTES, SpawnFailed
from minray.platform.process.processes import ZygoteProcess, ZygoteProcesses
from minray.platform.process.zygote import serve
from minray.platform.process.zygote_child import ChildEnds
from tests.helpers import turn

FORKS_VARIABLE = "TEST_FORKS"
"""The number of forks that succeed before the system has no room for more."""
SLEEPER = [sys.executable, "-c", "import time; time.sleep(1000)"]


def run_role(role: str, config: bytes, ends: ChildEnds) -> None:
    globals()[role](config, ends)


def report(ends: ChildEnds, what: object) -> None:
    ends.ready(json.dumps(what).encode())


def wait_forever() -> None:
    while True:
        signal.pause()


# --- Children without children ---


def ends_with(config: bytes, ends: ChildEnds) -> None:
    sys.exit(int(config))


def returns(config: bytes, ends: ChildEnds) -> None:
    """A role that is done."""


def raises(config: bytes, ends: ChildEnds) -> None:
    raise ValueError(config.decode())


def prints(config: bytes, ends: ChildEnds) -> None:
    print(config.decode())
    print("to stderr", file=sys.stderr)


def holds(config: bytes, ends: ChildEnds) -> None:
    report(ends, os.getpid())
    wait_forever()


def tells_its_state(config: bytes, ends: ChildEnds) -> None:
    report(
        ends,
        {
            "descriptors": sorted(filter(_is_open, map(int, os.listdir("/proc/self/fd")))),
            "ready_descriptor": ends.ready_descriptor,
            "random": random.random(),
            "comm": open("/proc/self/comm").read().strip(),
            "stdin": os.readlink("/proc/self/fd/0"),
            "sigint_is_default": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
            "sigterm_is_default": signal.getsignal(signal.SIGTERM) is signal.SIG_DFL,
            "blocked_signals": len(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "modules": sorted(module for module in ("grpc", "numpy") if module in sys.modules),
        },
    )


def _is_open(descriptor: int) -> bool:
    """False for the descriptor of a listing that is over."""
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def has_subprocesses(config: bytes, ends: ChildEnds) -> None:
    """One in its own process group, one in a session of its own, one orphaned at birth in its own session."""
    orphan = subprocess.run(
        [sys.executable, "-c", "import subprocess, sys\n"
         "print(subprocess.Popen(sys.argv[1:], start_new_session=True, stdout=-3, stderr=-3).pid)", *SLEEPER],
        capture_output=True, check=True)  # fmt: skip
    children = [subprocess.Popen(SLEEPER), subprocess.Popen(SLEEPER, start_new_session=True)]
    report(ends, [os.getpid(), *(child.pid for child in children), int(orphan.stdout)])
    wait_forever()


def marks_and_holds(config: bytes, ends: ChildEnds) -> None:
    assert bytes(ends.marks) == bytes(64) and bytes(ends.journal[:4096]) == bytes(4096)
    assert len(ends.journal) == JOURNAL_BYTES
    ends.marks[:3] = config
    ends.journal[:11] = (11).to_bytes(8, "little") + config
    print("marked")
    wait_forever()


def prints_and_ends(config: bytes, ends: ChildEnds) -> None:
    for number in range(int(config)):
        print("line", number)
        print("error", number, file=sys.stderr)
    sys.exit(3)


def leaves_its_pipes(config: bytes, ends: ChildEnds) -> None:
    subprocess.Popen(SLEEPER, start_new_session=True)
    print("last words")


# --- Children with children ---


def control(config: bytes, ends: ChildEnds) -> None:
    """Runs the coroutine function that ``config`` names; what it returns is reported."""

    async def main() -> None:
        processes = ZygoteProcesses(ends)
        action: Callable[[ZygoteProcesses], Awaitable[Any]] = globals()[config.decode()]
        report(ends, await action(processes))
        await asyncio.Event().wait()

    asyncio.run(main())


class Output:
    """Collects lines; an event for each stream and line."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str]] = []
        self._more = asyncio.Event()

    def __call__(self, stream: str, line: str) -> None:
        self.lines.append((stream, line))
        self._more.set()

    async def wait_for(self, line: str) -> None:
        while ("stdout", line) not in self.lines:
            self._more.clear()
            await self._more.wait()

    def of(self, stream: str) -> list[str]:
        return [line for of_stream, line in self.lines if of_stream == stream]


async def spawn(processes: ZygoteProcesses, role: str, config: bytes = b"") -> tuple[ZygoteProcess, Output]:
    output = Output()
    return await processes.spawn(role, f"test/{role}", config, output), output


async def output_and_exit(processes: ZygoteProcesses) -> object:
    process, output = await spawn(processes, "prints_and_ends", b"30")
    status = await process.wait()
    return [status.code, status.signal, output.of("stdout"), output.of("stderr")]


async def much_output(processes: ZygoteProcesses) -> object:
    process, output = await spawn(processes, "prints_and_ends", b"20000")
    await process.wait()
    return [output.of("stdout") == [f"line {number}" for number in range(20000)], len(output.of("stderr"))]


async def marks_of_a_killed(processes: ZygoteProcesses) -> object:
    process, output = await spawn(processes, "marks_and_holds", b"abc")
    await output.wait_for("marked")
    living = bytes(process.marks[:3]).decode()
    os.kill(process.pid, signal.SIGKILL)
    status = await process.wait()
    after = bytes(process.marks[:3]).decode()
    # The slot is used again, and zeroed (the role asserts it); what we saw stays.
    heir, output = await spawn(processes, "marks_and_holds", b"xyz")
    await output.wait_for("marked")
    return [living, status.signal, after, heir.slot == process.slot, bytes(process.marks[:3]).decode()]


async def journal_of_a_killed(processes: ZygoteProcesses) -> object:
    process, output = await spawn(processes, "marks_and_holds", b"abc")
    await output.wait_for("marked")
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()
    heir, output = await spawn(processes, "marks_and_holds", b"xyz")
    await output.wait_for("marked")
    return [heir.slot == process.slot, len(process.journal), bytes(process.journal[8:]).decode()]


async def pipes_in_other_hands(processes: ZygoteProcesses) -> object:
    process, output = await spawn(processes, "leaves_its_pipes")
    started = asyncio.get_running_loop().time()
    status = await process.wait()
    return [status.code, output.of("stdout"), asyncio.get_running_loop().time() - started]


async def kill_twice(processes: ZygoteProcesses) -> object:
    process, _ = await spawn(processes, "marks_and_holds", b"abc")
    process.kill()
    status = await process.wait()
    process.kill()
    return [status.code, status.signal]


async def two_hold(processes: ZygoteProcesses) -> object:
    pids = []
    for _ in range(2):
        process, output = await spawn(processes, "marks_and_holds", b"abc")
        await output.wait_for("marked")
        pids.append(process.pid)
    return [os.getpid(), *pids]


async def cancelled_spawn(processes: ZygoteProcesses) -> object:
    spawning = asyncio.ensure_future(spawn(processes, "marks_and_holds", b"abc"))
    await turn()
    spawning.cancel()
    await asyncio.wait([spawning])
    while processes._children or processes._requests:
        await turn()
    descriptors = len(os.listdir("/proc/self/fd"))
    process, _ = await spawn(processes, "returns")
    await process.wait()
    return [spawning.cancelled(), len(os.listdir("/proc/self/fd")) - descriptors]


async def spawn_fails(processes: ZygoteProcesses) -> object:
    try:
        await spawn(processes, "returns")
    except SpawnFailed as error:
        return str(error)
    return "spawned"


async def many_at_once(processes: ZygoteProcesses) -> object:
    started = asyncio.get_running_loop().time()
    children = await asyncio.gather(*(spawn(processes, "marks_and_holds", b"abc") for _ in range(50)))
    spawned_s = asyncio.get_running_loop().time() - started
    await asyncio.gather(*(output.wait_for("marked") for _, output in children))
    for process, _ in children:
        process.kill()
    signals = [(await process.wait()).signal for process, _ in children]
    return [spawned_s, signals]


def main() -> None:
    if forks := os.environ.get(FORKS_VARIABLE):
        real_fork, left = os.fork, int(forks)

        def fork() -> int:
            nonlocal left
            if left == 0:
                raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))
            left -= 1
            return real_fork()

        os.fork = fork
    serve(int(sys.argv[1]), run_role, session_dir=sys.argv[2])


if __name__ == "__main__":
    main()
