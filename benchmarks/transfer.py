"""Objects from node to node, beside raw sockets with as many streams, in turn and in one run.

    python -m benchmarks.transfer [--rounds N] [--mebibytes N] [--streams N ...]

Two nodes on this machine talk by TCP. A task on one of them makes an array; what is measured is a ``get`` of it on the
other: the first time its memory is fresh there (cold), then it is used again (warm). Raw sockets move as many bytes between
two processes, from warm memory to warm memory, with a thread for each stream on either side. Medians of the warm rounds; the
ratio is the median of the rounds' ratios. Below, the same array goes to one, two and three nodes at once. All nodes share
the cores of this machine, which is why more receivers take longer here; between machines it counts that no node sends more
than one copy, which ``tests/simulation/test_transfers.py`` asserts.

The table comes row by row on standard error, and in the end all of it as JSON.
"""

from __future__ import annotations

import argparse
import json
import mmap
import socket
import statistics
import subprocess
import sys
import threading
import time
from typing import Any, Self

import numpy as np

import minray
from minray.cluster_utils import Cluster

MEBIBYTE = 1 << 20
HOST = "127.0.0.1"
PAGE_BYTES = 4096


def warm_memory(size: int) -> memoryview:
    """Shared memory, as an arena is, whose pages were written before."""
    view = memoryview(mmap.mmap(-1, size))
    view[::PAGE_BYTES] = b"x" * len(view[::PAGE_BYTES])
    return view


def shares(view: memoryview, count: int) -> list[memoryview]:
    step = -(-len(view) // count)
    return [view[start : start + step] for start in range(0, len(view), step)]


def in_threads(function: Any, *arguments: Any) -> None:
    threads = [threading.Thread(target=function, args=pair) for pair in zip(*arguments, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def send_raw(port: int, streams: int, size: int) -> None:
    """The other process: sends its memory whenever it is asked for, until the connections end."""
    parts = shares(warm_memory(size), streams)
    connections = [socket.create_connection((HOST, port)) for _ in parts]
    while all(connection.recv(1) for connection in connections):
        in_threads(socket.socket.sendall, connections, parts)


def receive(connection: socket.socket, into: memoryview) -> None:
    while into:
        into = into[connection.recv_into(into) :]


class RawSockets:
    """A process that sends, and this one, which receives."""

    def __init__(self, streams: int, size: int) -> None:
        self._size = size
        self._parts = shares(warm_memory(size), streams)

    def __enter__(self) -> Self:
        with socket.create_server((HOST, 0)) as server:
            words = [str(word) for word in (server.getsockname()[1], len(self._parts), self._size)]
            self._sender = subprocess.Popen([sys.executable, "-m", "benchmarks.transfer", "--send", *words])
            self._connections = [server.accept()[0] for _ in self._parts]
        return self

    def __exit__(self, *_: object) -> None:
        for connection in self._connections:
            connection.close()
        self._sender.wait()

    def transfer(self) -> float:
        """Seconds."""
        begun = time.perf_counter()
        for connection in self._connections:
            connection.sendall(b"?")
        in_threads(receive, self._connections, self._parts)
        return time.perf_counter() - begun


class Nodes:
    """A node where arrays are made, and some that receive them; this process is a driver on the first of the latter."""

    def __init__(self, size: int, receivers: int = 1, **config: Any) -> None:
        self._size = size
        store = 2 * size + 64 * MEBIBYTE
        self._cluster = Cluster(True, False, {"tcp_host": HOST, "object_store_memory": store, "_system_config": config})
        for number in range(receivers):
            self._cluster.add_node(object_store_memory=store, resources={f"node {number}": 1})
        self._cluster.wait_for_nodes()
        self._receivers = receivers

    def __enter__(self) -> Self:
        self._cluster.connect()
        return self

    def __exit__(self, *_: object) -> None:
        minray.shutdown()
        self._cluster.shutdown()

    def transfer(self) -> float:
        """Seconds from node 0 to the driver's."""
        ref = _make.options(resources={"node 0": 1}).remote(self._size)
        minray.wait([ref], fetch_local=False)
        begun = time.perf_counter()
        minray.get(ref)
        return time.perf_counter() - begun

    def broadcast(self) -> float:
        """Seconds from the driver's node to all others."""
        readers = [_touch.options(resources={f"node {number}": 1}) for number in range(self._receivers)]
        minray.get([reader.remote(None) for reader in readers])
        ref = minray.put(np.ones(self._size, np.uint8))
        begun = time.perf_counter()
        minray.get([reader.remote(ref) for reader in readers])
        return time.perf_counter() - begun


@minray.remote
def _make(size: int) -> Any:
    return np.ones(size, np.uint8)


@minray.remote
def _touch(array: Any) -> None:
    """Nothing but having it."""


def compare(name: str, streams: int, size: int, rounds: int, **config: Any) -> dict[str, Any]:
    """One row."""
    with RawSockets(streams, size) as raw, Nodes(size, **config) as nodes:
        raw.transfer()
        cold_s = nodes.transfer()
        pairs = [(nodes.transfer(), raw.transfer()) for _ in range(rounds)]
    return {
        "row": name,
        "minray (GiB/s)": size / 2**30 / statistics.median(ours for ours, _ in pairs),
        "cold (GiB/s)": size / 2**30 / cold_s,
        "raw sockets (GiB/s)": size / 2**30 / statistics.median(raws for _, raws in pairs),
        "ratio": statistics.median(raws / ours for ours, raws in pairs),
        "worst": min(raws / ours for ours, raws in pairs),
        "best": max(raws / ours for ours, raws in pairs),
    }


def broadcast(receivers: int, size: int, rounds: int) -> float:
    with Nodes(size, receivers) as nodes:
        nodes.broadcast()
        return statistics.median(nodes.broadcast() for _ in range(rounds))


HEAD = f"{'':24}{'minray':>14}{'cold':>14}{'raw sockets':>14}{'ratio':>8}{'worst - best':>16}"


def line(row: dict[str, Any]) -> str:
    speeds = "".join(f"{row[f'{name} (GiB/s)']:>8.2f} GiB/s" for name in ("minray", "cold", "raw sockets"))
    return f"{row['row']:24}{speeds}{row['ratio']:>8.2f}{row['worst']:>9.2f} - {row['best']:.2f}"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.transfer")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--mebibytes", type=int, default=1024)
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--send", type=int, nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.send:
        send_raw(*options.send)
        return
    size = options.mebibytes * MEBIBYTE
    kinds: list[tuple[str, int, dict[str, Any]]] = [
        *((f"stream, {streams} connections", streams, {"object_manager_lanes": streams}) for streams in options.streams),
        ("stream, shared with all", 1, {"object_manager_lanes": 0}),
        ("gRPC", 1, {"transport": "grpc"}),
    ]
    rows = []
    print(HEAD, file=sys.stderr)
    for name, streams, config in kinds:
        rows.append(compare(name, streams, size, options.rounds, **config))
        print(line(rows[-1]), file=sys.stderr)
    seconds: dict[int, float] = {}
    for receivers in (1, 2, 3):
        seconds[receivers] = taken = broadcast(receivers, size, options.rounds)
        print(f"to {receivers} nodes at once: {taken:.2f} s, {taken / seconds[1]:.2f} x as to one", file=sys.stderr)
    print(json.dumps({"transfer": rows, "broadcast (s)": seconds}))


if __name__ == "__main__":
    main()
