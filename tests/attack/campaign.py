"""An attack on all listening sockets of a living cluster, which must not notice it.

    python -m tests.attack.campaign --frames 100000 --seed 1 [--transport grpc]

Half of the frames come from strangers without the token, half from peers that know it and break every rule. Meanwhile an
honest program runs, all of whose answers must be right. Judged at the end:

  * nothing was let in without the token: no state has changed, nothing was unpickled;
  * every spoiled message of a peer with the token was refused with an answer;
  * the processes of the cluster live, and hold no more memory and no more descriptors than before;
  * the log has a bounded number of lines, and no traceback.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import pickle
import random
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from minray.common.config import SystemConfig
from minray.node.cluster_client import ClusterClient
from minray.node.discovery import NodeFile, find_nodes, session_token
from minray.protocol.base import encode
from minray.protocol.gcs import KvKeys, KvPut
from tests import leaks
from tests.attack import stream
from tests.helpers import wait_for_condition

NAMESPACE = "attack"
MOST_GROWTH_BYTES = 48 * 1024 * 1024
"""How much larger a process may be after the attack: caches of decoders, arenas of the allocator."""
MOST_DESCRIPTORS = 20
MOST_LINES = 3000
"""Most lines in all logs of the session, whatever the number of frames."""
ATTACKERS = 4
"""Number of threads of the attacker on the stream transport; most of their time they wait for an answer."""
IDLE_S = 15.0
"""Seconds after which connections of strangers that say nothing have been cut off."""


class Bomb:
    """Makes a file when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.path),)


@dataclass
class Figures:
    frames: int = 0
    connections: int = 0
    seconds: float = 0.0
    rounds: int = 0
    """Rounds of the honest program."""
    growth: dict[str, int] = field(default_factory=dict)
    """Bytes by which each process has grown."""
    lines: int = 0
    """Lines in the logs."""
    endpoints: int = 0

    def describe(self) -> str:
        growth = ", ".join(f"{name} {size / 2**20:+.1f} MiB" for name, size in self.growth.items())
        return (
            f"{self.frames} frames on {self.connections} connections to {self.endpoints} sockets in {self.seconds:.0f} s; "
            f"the honest program went {self.rounds} rounds, all answers right; {self.lines} lines in the logs; {growth}"
        )


class Victim:
    """A cluster of ``minray start``, with an honest program that runs on it."""

    def __init__(self, root: Path, transport: str) -> None:
        self._environment = {**os.environ, "MINRAY_TMPDIR": str(root), "MINRAY_TRANSPORT": transport}
        self._minray("start", "--head", "--num-cpus=2")
        os.environ["MINRAY_TMPDIR"] = str(root)
        self.file: NodeFile = find_nodes()[0]
        self.token = session_token(self.file.session_dir)
        self._config = SystemConfig(transport=transport)
        program = [sys.executable, "-m", "tests.attack.honest", self.file.gcs_address]
        self._terminal = root.parent / "terminal"
        with self._terminal.open("w") as terminal:
            self._honest = subprocess.Popen(
                program, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=terminal, text=True
            )
        assert self._honest.stdout is not None
        self.actor_pid = int(self._honest.stdout.readline())

    def _minray(self, *arguments: str) -> None:
        subprocess.run([sys.executable, "-m", "minray", *arguments], env=self._environment, check=True, capture_output=True)

    def processes(self) -> dict[str, psutil.Process]:
        """The processes that must survive, by name: gcs, raylet, zygote, the actor of the honest program, and it itself."""
        found = {"driver": psutil.Process(self._honest.pid), "actor": psutil.Process(self.actor_pid)}
        for process in leaks.processes(Path(self.file.session_dir)):
            with suppress(OSError):
                name = Path(f"/proc/{process.pid}/comm").read_text().strip().removeprefix("minray:")
                if name in ("gcs", "raylet", "zygote"):
                    found[name] = process
        return found

    def endpoints(self) -> list[str]:
        """All sockets on which a process of the cluster listens now."""
        paths = [f"unix:{path}" for path in Path(self.file.session_dir, "sockets").iterdir()]
        ports = set()
        for process in [*leaks.processes(Path(self.file.session_dir)), psutil.Process(self._honest.pid)]:
            with suppress(psutil.Error):
                ports |= {c.laddr for c in process.net_connections("tcp") if c.status == psutil.CONN_LISTEN}
        return sorted(paths) + sorted(f"tcp:{host}:{port}" for host, port in ports)

    def state(self) -> tuple[list[bytes], list[str], list[int]]:
        """Return all that strangers might change: values, nodes with their states, numbers of jobs, actors and groups."""
        with ClusterClient(self.file.gcs_endpoint, self.token, self._config) as client:
            keys = client._ask(client._gcs, KvKeys(NAMESPACE, b"")).keys
            nodes = [f"{node.node_id.hex()} {node.alive}" for node in client.nodes()]
            jobs = len(client.read(lambda reader: reader.jobs(5.0)))
            actors = len(client.read(lambda reader: reader.actors(5.0)))
            groups = len(client.read(lambda reader: reader.placement_groups(5.0)))
        return list(keys), sorted(nodes), [jobs, actors, groups]

    def log(self) -> list[str]:
        """The lines of all logs, and what the honest program's user has seen."""
        logs = [*Path(self.file.session_dir, "logs").glob("*.log*"), self._terminal]
        return [line for path in logs for line in path.read_text(errors="replace").splitlines()]

    def end_honest_program(self) -> int:
        """Let it end; returns its number of rounds. Raises AssertionError if one of its answers was wrong."""
        out, _ = self._honest.communicate("", timeout=120)
        assert self._honest.returncode == 0, f"the honest program ended so:\n{self._terminal.read_text()[-2000:]}"
        return int(out)

    def close(self) -> None:
        self._honest.kill()
        self._honest.communicate()
        self._minray("stop")


@contextmanager
def victim(transport: str) -> Iterator[tuple[Victim, Path]]:
    before = os.environ.get("MINRAY_TMPDIR")
    with tempfile.TemporaryDirectory(prefix="mra-", dir="/tmp") as directory:
        attacked = Victim(Path(directory, "m"), transport)
        try:
            yield attacked, Path(directory)
        finally:
            attacked.close()
            if before is not None:
                os.environ["MINRAY_TMPDIR"] = before


def attack(frames: int, seed: int, transport: str) -> Figures:
    """Attack a cluster with this number of frames, and judge. Raises AssertionError with what was wrong."""
    figures, wrong = Figures(), list[bytes]()
    with victim(transport) as (attacked, directory):
        bomb = pickle.dumps(Bomb(directory / "detonated"))
        put = encode(KvPut(NAMESPACE, b"key", bomb, True))
        endpoints = attacked.endpoints()
        figures.endpoints = len(endpoints)
        _strike(attacked, endpoints, frames // 10, seed, transport, put, figures, wrong)  # caches are filled
        processes, state = attacked.processes(), attacked.state()
        sizes = {name: process.memory_info().rss for name, process in processes.items()}
        descriptors = {name: process.num_fds() for name, process in processes.items()}
        begun = time.monotonic()
        _strike(attacked, endpoints, frames, seed + 1, transport, put, figures, wrong)
        figures.seconds = time.monotonic() - begun
        assert not wrong, f"refused too little: {sorted(set(wrong))[:10]}"
        for name, process in processes.items():
            assert process.is_running() and process.status() != psutil.STATUS_ZOMBIE, f"{name} has ended"
        assert attacked.state() == state, f"state {attacked.state()}, before {state}"
        assert not (directory / "detonated").exists(), "a stranger's bytes were unpickled"
        for name, process in processes.items():
            figures.growth[name] = process.memory_info().rss - sizes[name]
        assert max(figures.growth.values()) < MOST_GROWTH_BYTES, figures.describe()

        def is_closed() -> bool:
            return all(processes[name].num_fds() <= count + MOST_DESCRIPTORS for name, count in descriptors.items())

        wait_for_condition(is_closed, IDLE_S, "connections of the attacker are closed")
        figures.rounds = attacked.end_honest_program()
        log = attacked.log()
        figures.lines = len(log)
        assert len(log) < MOST_LINES, f"{len(log)} lines, most of them like {log[len(log) // 2][:300]}"
        tracebacks = [line for line in log if re.search(r"Traceback|Error: ", line)]
        assert not tracebacks, tracebacks[:5]
    return figures


def _strike(
    attacked: Victim,
    endpoints: list[str],
    frames: int,
    seed: int,
    transport: str,
    put: bytes,
    figures: Figures,
    wrong: list[bytes],
) -> None:
    if transport == "grpc":
        asyncio.run(_strike_grpc(attacked, endpoints, frames, random.Random(seed), put, figures, wrong))
        return
    forbidden = stream.batch([1, "KvPut", put, []])

    def strike(number: int) -> tuple[int, int]:
        """Send a share of the frames; return the number of frames and of connections."""
        chance = random.Random(seed * ATTACKERS + number)
        sent = connections = 0
        while sent * ATTACKERS < frames:
            endpoint = chance.choice(endpoints)
            connections += 1
            with suppress(OSError):  # a worker has ended since
                if chance.random() < 0.5 or "/sockets/s-" in endpoint or "/sockets/f-" in endpoint:
                    sent += stream.as_a_stranger(endpoint, chance, forbidden)
                else:
                    sent += stream.with_the_token(endpoint, attacked.token, chance, wrong)
        return sent, connections

    with ThreadPoolExecutor(ATTACKERS) as attackers:
        for sent, connections in attackers.map(strike, range(ATTACKERS)):
            figures.frames += sent
            figures.connections += connections


async def _strike_grpc(
    attacked: Victim,
    endpoints: list[str],
    frames: int,
    chance: random.Random,
    put: bytes,
    figures: Figures,
    wrong: list[bytes],
) -> None:
    from tests.attack import grpc_calls

    forbidden = msgspec.msgpack.encode((1, 1, put, ()))
    end = figures.frames + frames
    spoken = [endpoint for endpoint in endpoints if "/sockets/s-" not in endpoint and "/sockets/f-" not in endpoint]
    while figures.frames < end:
        endpoint = chance.choice(spoken)
        kind = chance.random()
        try:
            if kind < 0.2:  # not even HTTP/2
                figures.frames += stream.as_a_stranger(endpoint, chance, stream.batch([1, "KvPut", put, []]))
            elif kind < 0.6:
                figures.frames += await grpc_calls.as_a_stranger(endpoint, chance, forbidden, wrong)
            else:
                figures.frames += await grpc_calls.with_a_ticket(endpoint, attacked.token, chance, wrong)
        except (OSError, TimeoutError):
            figures.frames += 1  # a worker has ended since
        figures.connections += 1


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--frames", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--transport", choices=("stream", "grpc"), default="")
    arguments = parser.parse_args()
    for transport in [arguments.transport] if arguments.transport else ["stream", "grpc"]:
        print(f"{transport}, seed {arguments.seed}: ", end="", flush=True)
        print(attack(arguments.frames, arguments.seed, transport).describe(), flush=True)


if __name__ == "__main__":
    main()
