"""The cost of an idle node with and without each service that an operator may ask for.

``python -m benchmarks.idle_services [SECONDS]`` starts a head of one CPU once for each row, has it run one task, and counts
for SECONDS the processor time of the node's processes and of the service's own. Memory is what belongs to the service's
processes alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import psutil

MINRAY = [sys.executable, "-m", "minray"]
PROGRAM = """
import sys
import minray
minray.init(sys.argv[1], log_to_driver=False)

@minray.remote
def nothing():
    pass

minray.get(nothing.remote())
print("ready", flush=True)
sys.stdin.read()
"""
CLIENT_SERVER = "--ray-client-server-port=23811"
SETTLED_S = 3.0
"""Seconds that a node has to settle before it counts as idle."""


@contextmanager
def running(command: list[str], environment: dict[str, str], ready: str) -> Iterator[psutil.Process]:
    """Run a command until the block ends; begin the block when its output has this text."""
    program = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    assert program.stdout is not None
    try:
        while ready not in (line := program.stdout.readline()):
            if not line:
                raise RuntimeError(f"{' '.join(command)} has ended")
        yield psutil.Process(program.pid)
    finally:
        program.terminate()
        program.communicate()


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def name_of(process: psutil.Process) -> str:
    with open(f"/proc/{process.pid}/comm", encoding="utf-8") as file:
        return file.read().strip().removeprefix("minray:")


def used_s(processes: list[psutil.Process]) -> float:
    return sum(times.user + times.system for times in (process.cpu_times() for process in processes))


def measure(state: str, options: list[str], service: str, beside: list[str], is_driven: bool, seconds: float) -> None:
    """Print a row. ``service`` begins the name of the processes that serve; ``beside`` runs beside the head."""
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="mr"))
        environment = {**os.environ, "MINRAY_TMPDIR": folder}
        start = [*MINRAY, "start", "--head", "--block", "--num-cpus=1", *options]
        head = stack.enter_context(running(start, environment, "To look at it"))
        driver = [sys.executable, "-c", PROGRAM, "minray://127.0.0.1:23811" if is_driven else "auto"]
        with ExitStack() as first:
            (stack if is_driven else first).enter_context(running(driver, environment, "ready"))
        serving = []
        if beside:
            serving = family(stack.enter_context(running([*MINRAY, *beside], environment, "at http")))
        time.sleep(SETTLED_S)
        node = family(head)
        serving += [one for process in node if service and name_of(process).startswith(service) for one in family(process)]
        others = [process for process in node if process not in serving]
        before = used_s(others), used_s(serving)
        time.sleep(seconds)
        rest, own = used_s(others) - before[0], used_s(serving) - before[1]
        memory = sum(process.memory_full_info().uss for process in serving)
        names = len(serving)
    print(f"| {state} | {rest:.2f} s | {own:.2f} s | {names} | {memory / 1e6:.0f} MB |", flush=True)


def main() -> None:
    seconds = float(sys.argv[1]) if len(sys.argv) > 1 else 20.0
    print("| service | rest of the node | service | its processes | their own memory |\n|---|---:|---:|---:|---:|")
    measure("none", [], "", [], False, seconds)
    measure("dashboard", ["--include-dashboard", "--dashboard-port=0"], "dash", [], False, seconds)
    measure("`minray metrics --serve`", [], "", ["metrics", "--serve", "0"], False, seconds)
    measure("client server", [CLIENT_SERVER], "client_s", [], False, seconds)
    measure("client server with an idle client", [CLIENT_SERVER], "client_s", [], True, seconds)


if __name__ == "__main__":
    main()
