"""Simulated machines with slow links: network namespaces on a bridge. They need Linux, root, ``ip`` and ``tc``.

Each simulated machine has an address and a link of its own. A token bucket limits the bytes per second of the link in each
direction. All of them share the processors, the memory and the files of the real machine.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any, Self

import psutil

NETWORK = "10.213.77"
GATEWAY = f"{NETWORK}.254"
BURST = "1mb"
QUEUE = "50ms"


def why_not() -> str:
    """Return why namespaces cannot be made here, or ""."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "network namespaces need root on Linux"
    lacking = [tool for tool in ("ip", "tc") if shutil.which(tool) is None]
    if lacking:
        return f"network namespaces need {' and '.join(lacking)}"
    tried = subprocess.run(["unshare", "--net", "true"], capture_output=True, text=True, check=False)
    return f"network namespaces are not allowed here ({tried.stderr.strip()})" if tried.returncode else ""


class Machines:
    """A number of simulated machines whose links carry ``bytes_per_s`` in each direction."""

    def __init__(self, count: int, bytes_per_s: float) -> None:
        mark = f"mr{os.getpid() % 100_000}"
        self._bridge = f"{mark}b"
        self._names = [f"{mark}n{number}" for number in range(count)]
        self._rate = f"{round(8 * bytes_per_s / 1e6)}mbit"
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Self:
        try:
            _run("ip", "link", "add", self._bridge, "type", "bridge")
            _run("ip", "addr", "add", f"{GATEWAY}/24", "dev", self._bridge)
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
                    ("ip", "route", "add", "default", "via", GATEWAY),  # by which Ray finds its own address
                    ("tc", *self._shaped("eth0")),
                ):
                    _run(*self._in(number), *words)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for name in reversed(self._names):
            listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False).stdout
            _end([int(pid) for pid in listed.split()])
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        for process in self._processes:
            process.wait()
        subprocess.run(["ip", "link", "del", self._bridge], capture_output=True, check=False)

    def address(self, number: int) -> str:
        return f"{NETWORK}.{number + 1}"

    def start(self, number: int, command: Sequence[Any], environment: dict[str, str]) -> None:
        """Start a process on a machine without waiting for it; it is ended with the machines."""
        full = [*self._in(number), *map(str, command)]
        self._processes.append(subprocess.Popen(full, env={**os.environ, **environment}, stdin=subprocess.DEVNULL))

    def run(self, number: int, command: Sequence[Any], environment: dict[str, str]) -> None:
        """Run a command on a machine until it ends; it may leave processes in the background, as ``ray start`` does."""
        full = [*self._in(number), *map(str, command)]
        subprocess.run(full, env={**os.environ, **environment}, stdin=subprocess.DEVNULL, check=True)

    def wait_for_port(self, number: int, port: int, patience_s: float) -> None:
        """Wait until a process listens at this port. Raises ConnectionError after ``patience_s`` seconds."""
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
        """Run a command on a machine; return its output. Raises RuntimeError with its last line of stderr if it fails."""
        full = [*self._in(number), *map(str, command)]
        done = subprocess.run(full, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
        sys.stderr.write(done.stderr)
        if done.returncode:
            raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"code {done.returncode}")
        return done.stdout

    def _in(self, number: int) -> list[str]:
        return ["ip", "netns", "exec", self._names[number]]

    def _shaped(self, device: str) -> list[str]:
        bucket = ["tbf", "rate", self._rate, "burst", BURST, "latency", QUEUE]
        return ["qdisc", "add", "dev", device, "root", *bucket]


def _run(*words: str) -> None:
    subprocess.run(words, check=True)


def _end(pids: list[int]) -> None:
    """End processes with SIGTERM, and with SIGKILL after ten seconds."""
    living = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    for process in living:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.terminate()
    for process in psutil.wait_procs(living, timeout=10)[1]:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
