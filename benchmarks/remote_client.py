"""A remote client of minray beside one of Ray: the same program, on the same machine, one after the other.

python -m benchmarks.remote_client [ROUNDS]

Each system starts a head of two CPUs with a client server on loopback. The program connects to it, and measures calls per
second and bytes per second. The best of ROUNDS rounds counts. The ratios say more than the figures: both systems have the
same cores.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator

PORT = {"minray": 23801, "ray": 23802}
MEGABYTES = 100
START_S = 60.0
"""Seconds that a head has to start."""
SYSTEMS = ("minray", "ray")


def measure(system: str, rounds: int) -> dict[str, float]:
    """Return the figures of one system, whose head runs."""
    ray = importlib.import_module(system)
    ray.init(f"ray://127.0.0.1:{PORT[system]}")
    import numpy as np

    @ray.remote
    def nothing() -> None:
        return None

    @ray.remote
    class Actor:
        def nothing(self) -> None:
            return None

    actor = Actor.remote()
    small, large = ray.put(1), np.zeros(MEGABYTES << 20, np.uint8)
    stored = ray.put(large)
    rows: dict[str, tuple[float, Callable[[], object]]] = {
        "tasks, one after the other (1/s)": (50, lambda: [ray.get(nothing.remote()) for _ in range(50)]),
        "tasks, submitted at once (1/s)": (500, lambda: ray.get([nothing.remote() for _ in range(500)])),
        "actor calls, one after the other (1/s)": (50, lambda: [ray.get(actor.nothing.remote()) for _ in range(50)]),
        "actor calls, submitted at once (1/s)": (500, lambda: ray.get([actor.nothing.remote() for _ in range(500)])),
        "put of a number (1/s)": (200, lambda: [ray.put(1) for _ in range(200)]),
        "get of a number (1/s)": (200, lambda: [ray.get(small) for _ in range(200)]),
        "put of 100 MiB (MiB/s)": (MEGABYTES, lambda: ray.put(large)),
        "get of 100 MiB (MiB/s)": (MEGABYTES, lambda: ray.get(stored)),
    }
    figures = {name: max(count / seconds(work) for _ in range(rounds)) for name, (count, work) in rows.items()}
    ray.shutdown()
    return figures


def seconds(work: Callable[[], object]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


@contextlib.contextmanager
def head(system: str) -> Iterator[dict[str, str]]:
    """Start a head, and give the environment for its programs."""
    with tempfile.TemporaryDirectory(prefix="mr") as place:
        environment = {**os.environ, "MINRAY_TMPDIR": place, "RAY_USAGE_STATS_ENABLED": "0"}
        environment |= {"RAY_AUTH_MODE": "disabled"}  # minray's token protects its own port, and costs one handshake
        module = "minray" if system == "minray" else "ray.scripts.scripts"
        options = ["--head", "--num-cpus=2", f"--ray-client-server-port={PORT[system]}"]
        if system == "ray":
            options += ["--include-dashboard=false", "--disable-usage-stats", "--port=23803"]
        command = [sys.executable, "-m", module, "start", "--block", *options]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment) as started:
            try:
                wait_for_server(PORT[system])
                yield environment
            finally:
                started.terminate()  # ``ray stop`` would end every cluster of this machine


def wait_for_server(port: int) -> None:
    """Wait until a client server listens."""
    deadline = time.monotonic() + START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1.0).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)


def main() -> None:
    if sys.argv[1:2] == ["measure"]:
        print(json.dumps(measure(sys.argv[2], int(sys.argv[3]))))
        return
    rounds = sys.argv[1] if len(sys.argv) > 1 else "3"
    found = {}
    for system in SYSTEMS:
        with head(system) as environment:
            command = [sys.executable, "-m", "benchmarks.remote_client", "measure", system, rounds]
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        found[system] = json.loads(done.stdout.splitlines()[-1])
    print("| | minray | ray | ratio |\n|---|---:|---:|---:|")
    for name, ours in found["minray"].items():
        theirs = found["ray"][name]
        print(f"| {name} | {ours:,.0f} | {theirs:,.0f} | {ours / theirs:.1f} |")


if __name__ == "__main__":
    main()
