"""Cost of a synchronous actor call, compared with a raw socket between two processes and with a plain gRPC server.

    python -m benchmarks.round_trip [--rounds 5] [--seconds 1]

A counter in another process of this machine adds one for each call, one call after the other:

* ``raw``: a blocking unix socket, eight bytes there and back, nothing else;
* ``grpc.aio``: a server and a client of grpc.aio over a unix socket, one unary method with bytes, no serialization;
* ``minray``: ``get(counter.add.remote())`` of an actor.

The three are measured in turn, in rounds, since only measurements of the same time can be compared. The program prints one
JSON object: for each the median microseconds per call and the calls per second of all rounds, and the ratios of the medians.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

WORD = 8
ADD = "/benchmark.Counter/Add"
LIMIT_S = 20.0


def serve_raw(path: str) -> None:
    """Count for one caller until it closes the connection."""
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        caller, _ = listener.accept()
    count = 0
    with caller:
        while caller.recv(WORD):
            count += 1
            caller.sendall(count.to_bytes(WORD, "big"))


async def serve_grpc(path: str) -> None:
    import grpc

    count = 0

    async def add(request: bytes, context: Any) -> bytes:
        nonlocal count
        count += 1
        return count.to_bytes(WORD, "big")

    server = grpc.aio.server()
    service, method = ADD[1:].split("/")
    handler = grpc.method_handlers_generic_handler(service, {method: grpc.unary_unary_rpc_method_handler(add)})
    server.add_generic_rpc_handlers((handler,))
    server.add_insecure_port(f"unix:{path}")
    await server.start()
    await server.wait_for_termination()


@contextlib.contextmanager
def server(kind: str, path: str) -> Iterator[None]:
    """Run a server process that listens at ``path``. Raises RuntimeError if it does not listen within LIMIT_S."""
    process = subprocess.Popen([sys.executable, "-m", "benchmarks.round_trip", "--serve", kind, path])
    try:
        deadline = time.monotonic() + LIMIT_S
        while not Path(path).exists():
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the {kind} server does not listen at {path}")
            time.sleep(0.01)
        yield
    finally:
        process.terminate()
        process.wait()


def calls_for(call: Callable[[], Any], seconds: float) -> float:
    """Return the microseconds per call, after 100 calls to warm up."""
    for _ in range(100):
        call()
    count, start = 0, time.perf_counter()
    while (elapsed := time.perf_counter() - start) < seconds:
        for _ in range(50):
            call()
        count += 50
    return elapsed / count * 1e6


def raw(path: str, seconds: float) -> float:
    with server("raw", path), socket.socket(socket.AF_UNIX) as caller:
        deadline = time.monotonic() + LIMIT_S
        while caller.connect_ex(path):
            if time.monotonic() > deadline:
                raise RuntimeError(f"nobody listens at {path}")

        def call() -> int:
            caller.sendall(bytes(WORD))
            return int.from_bytes(caller.recv(WORD), "big")

        return calls_for(call, seconds)


def grpc_aio(path: str, seconds: float) -> float:
    async def calls() -> float:
        import grpc

        async with grpc.aio.insecure_channel(f"unix:{path}") as channel:
            add = channel.unary_unary(ADD)
            for _ in range(100):
                await add(bytes(WORD), wait_for_ready=True)
            count, start = 0, time.perf_counter()
            while (elapsed := time.perf_counter() - start) < seconds:
                for _ in range(50):
                    await add(bytes(WORD))
                count += 50
            return elapsed / count * 1e6

    with server("grpc", path):
        return asyncio.run(calls())


def minray_actor(path: str, seconds: float) -> float:
    """Measure calls of an actor. ``path`` is not used; minray makes its own sockets."""
    import minray

    @minray.remote(num_cpus=0)
    class Counter:
        def __init__(self) -> None:
            self.count = 0

        def add(self) -> int:
            self.count += 1
            return self.count

    minray.init(num_cpus=1, logging_level="ERROR", log_to_driver=False)
    counter = Counter.remote()
    try:
        return calls_for(lambda: minray.get(counter.add.remote()), seconds)
    finally:
        minray.shutdown()


CONTESTANTS = {"raw": raw, "grpc.aio": grpc_aio, "minray": minray_actor}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0, help="length of each measurement")
    parser.add_argument("--serve", nargs=2, metavar=("KIND", "PATH"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        kind, path = options.serve
        return serve_raw(path) if kind == "raw" else asyncio.run(serve_grpc(path))
    times: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    for number in range(options.rounds):
        with tempfile.TemporaryDirectory() as directory:
            for name, measure in CONTESTANTS.items():
                times[name].append(measure(f"{directory}/{name}", options.seconds))
        print(f"round {number + 1} of {options.rounds}: {_shown(times, -1)}", file=sys.stderr)
    medians = {name: statistics.median(values) for name, values in times.items()}
    report = {
        "microseconds": {name: round(value, 1) for name, value in medians.items()},
        "calls per second": {name: [round(1e6 / value) for value in values] for name, values in times.items()},
        "minray / raw": round(medians["minray"] / medians["raw"], 2),
        "grpc.aio / minray": round(medians["grpc.aio"] / medians["minray"], 2),
    }
    print(json.dumps(report))


def _shown(times: dict[str, list[float]], index: int) -> str:
    return ", ".join(f"{name} {values[index]:.0f} us" for name, values in times.items())


if __name__ == "__main__":
    main()
