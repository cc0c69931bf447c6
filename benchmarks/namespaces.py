"""Machines with slow links on this machine: network namespaces on a bridge. Needs Linux, root, and ``ip`` and ``tc``.

Each has an address and a link of its own, which carries so many bytes a second in either direction (a token bucket);
processors, memory and files are those of the machine that all of them share.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Self

import psutil

NETWORK = "10.213.77"
BURST = "1mb"
QUEUE = "50ms"


def why_not() -> str:
    """What is missing for namespaces here, or nothing."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    lacking = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if lacking:
        return f"network namespaces need {' and '.join(lacking)}"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return f"network namespaces are not allowed here ({tried.stderr.strip()})" if tried.returncode else ""


class Machines:
    """So many, with so slow links."""

    def __init__(self, count: int, bytes_per_s: float) -> None:
        mark = f"mr{os.getpid() % 100_000}"
        self._bridge = f"{mark}b"
        self._names = [f"{mark}n{number}" for number in range(count)]
        self._rate = f"{round(8 * bytes_per_s / 1e6)}mbit"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            _run("ip", "addr", "add", f"{NETWORK}.254/24", "dev", self._bridge)
            _run("ip", "link", "set", self._bridge, "up")
            for number, name in enumerate(self._names):
                _run("ip", "netns", "add", name)
                _run("ip", "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", name)
                _run("ip", "link", "set", name, "master", self._bridge, "up")
                _run("tc", *self._shaped(name))
                for words in (
                    ("ip", "addr", "add", f"{self.address(number)}/24", "dev", "eth0"),
                    ("ip", "link", "set", "eth0", "up"),
                    ("ip", "link", "set", "lo", "up"),
                    ("tc", *self._shaped("eth0")),
                ):
                    _run(*self._in(number), *words)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for process in reversed(self._processes):
            _end(process)
        for name in self._names:
            listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
            for pid in map(int, listed.split()):  # what those processes have left
                psutil.Process(pid).kill()
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)

    def address(self, number: int) -> str:
        return f"{NETWORK}.{number + 1}"

    def start(self, number: int, command: Sequence[Any], environment: dict[str, str]) -> None:
        """A process that lives as long as the machines."""
        full = [*self._in(number), *map(str, command)]
        self._processes.append(subprocess.Popen(full, env={**os.environ, **environment}, stdin=subprocess.DEVNULL))

    def wait_for_port(self, number: int, port: int, patience_s: float) -> None:
        """Until somebody listens there."""
        deadline = time.monotonic() + patience_s
        while True:
            try:
                socket.create_connection((self.address(number), port), timeout=patience_s).close()
                return
            except ConnectionError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def output(self, number: int, command: Sequence[Any], environment: dict[str, str]) -> str:
        """Of a process that ends by itself."""
        full = [*self._in(number), *map(str, command)]
        return subprocess.run(full, env={**os.environ, **environment}, stdout=subprocess.PIPE, text=True, check=True).stdout

    def _in(self, number: int) -> list[str]:
        return ["ip", "netns", "exec", self._names[number]]

    def _shaped(self, device: str) -> list[str]:
        bucket = ["tbf", "rate", self._rate, "burst", BURST, "latency", QUEUE]
        return ["qdisc", "add", "dev", device, "root", *bucket]


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Ask it to; after ten seconds do not ask any more."""
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
