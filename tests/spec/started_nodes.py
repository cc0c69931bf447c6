"""``make chaos``, the second half: three nodes of ``minray start``, whose gcs, raylets and zygotes are struck at random.

    python -m tests.spec.started_nodes --seconds 600 --seed 1

The head keeps its tables in a file. Processes of the head and of the second node are killed, terminated, and stopped for a
while, some until their node is declared dead. What ends for good is started again, as an administrator would do
it. Workers are killed everywhere. A driver on the third node, whose raylet is spared, makes the work of ``mixed_work``.
Meanwhile short programs join the cluster on the head's machine, as users do.

What is asked: every answer is right, or an error that a strike explains; when the strikes end the resources return to their
totals; the detached actor can still be called; and ``minray stop`` leaves nothing.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import suppress
from pathlib import Path
from random import Random

import click
import psutil

import minray as ray
from minray.node.discovery import NodeFile, find_nodes, read_node_file
from tests import leaks
from tests.helpers import wait_for_condition
from tests.spec.mixed_work import EXPLAINED, GET_S, KINDS, Lasting, is_at_rest
from tests.spec.until_stopped import UntilStopped

CONFIG = (
    '{"health_check_timeout_ms": 2000, "health_check_failure_threshold": 3, "health_check_period_ms": 1000,'
    ' "gcs_rpc_server_reconnect_timeout_s": 40}'
)
STOPS_S = (0.2, 1.0, 3.0, 5.0, 15.0)
"""How long a process is stopped. After about nine seconds its node is declared dead."""
STRIKES_PER_S = 0.4
ROLES = {"head": ["gcs", "raylet", "raylet", "worker", "zygote"], "second": ["raylet", "zygote"], "third": ["worker"]}
"""Which processes of each node are struck."""
PROGRAM_S = 90.0
"""The longest that a short program may take."""
EXPLAINED_PROGRAM = re.compile(
    r"LocalRayletDiedError|ConnectionError|ActorDiedError|ActorUnavailableError|NodeDiedError|WorkerCrashedError|ObjectLostError"
)
PROGRAM = """
import sys
import minray as ray
from tests.spec.mixed_work import tree, Mortal
ray.init(sys.argv[1], log_to_driver=False)
assert ray.get(tree.remote(int(sys.argv[2]), 3), timeout=80) == 8 * int(sys.argv[2])
actor = Mortal.remote()
assert ray.get([actor.echo.remote(n) for n in range(5)], timeout=80) == [0, 1, 2, 3, 4]
"""


def minray(*arguments: str) -> str:
    done = subprocess.run([sys.executable, "-m", "minray", *arguments], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"minray {' '.join(arguments)}: {done.stderr}"
    return done.stdout


class Nodes:
    """The head, a node that is struck and a node that is spared."""

    def __init__(self) -> None:
        minray("start", "--head", "--num-cpus=2", f"--system-config={CONFIG}")
        self.head = find_nodes()[0].session_dir
        self.address = find_nodes()[0].gcs_address
        self.second = self.join()
        self.third = self.join()
        """Session directories of the three nodes."""

    def join(self) -> str:
        before = {file.session_dir for file in find_nodes()}
        minray("start", f"--address={self.address}", "--num-cpus=1")
        return next(file.session_dir for file in find_nodes() if file.session_dir not in before)

    def mend(self) -> list[str]:
        """Start again what has ended for good; returns what that was."""
        mended = []
        if self._file(self.head) is None:
            port = self.address.rpartition(":")[2]
            minray("start", "--head", "--num-cpus=2", f"--port={port}", f"--system-config={CONFIG}")
            self.head = next(file.session_dir for file in find_nodes() if file.is_head)
            mended.append("head")
        if self._file(self.second) is None:
            try:
                self.second = self.join()
                mended.append("second node")
            except AssertionError:  # unless the head was struck a moment ago: the next look starts it again first
                wait_for_condition(lambda: self._file(self.head) is None, timeout_s=60, message="the head has ended")
        return mended

    @staticmethod
    def _file(session_dir: str) -> NodeFile | None:
        return next((file for file in find_nodes() if file.session_dir == session_dir), None)

    def pids(self, session_dir: str) -> dict[str, list[int]]:
        """The processes of a node by role."""
        found: dict[str, list[int]] = {}
        for process in leaks.processes(Path(session_dir)):
            with suppress(OSError):
                name = Path(f"/proc/{process.pid}/comm").read_text().strip().removeprefix("minray:")
                found.setdefault(name, []).append(process.pid)
        return found


class Strikes(UntilStopped):
    """Strikes processes until it is told to stop."""

    def __init__(self, nodes: Nodes, dice: Random) -> None:
        self.count: Counter[str] = Counter()
        self.last_at = 0.0
        """When the head was last struck, or when the last stop of one of its processes ends."""
        self.history: list[tuple[float, str]] = []
        """All that was struck and started again, with its time; for the message about a wrong answer."""
        self.trouble: list[str] = []
        self._nodes = nodes
        self._dice = dice
        super().__init__()

    def _run(self) -> None:
        try:
            while not self._over.wait(self._dice.expovariate(STRIKES_PER_S)):
                self._strike()
                self._mend()
            self._mend()
        except BaseException as error:
            self.trouble.append(repr(error))
            raise

    def _mend(self) -> None:
        for what in self._nodes.mend():
            self._note(f"{what} started again")

    def _note(self, what: str) -> None:
        self.count[what] += 1
        self.history.append((time.monotonic(), what))

    def lately(self) -> str:
        """Return the last strikes, each with the seconds since then."""
        now = time.monotonic()
        return ", ".join(f"{what} {now - at:.0f} s ago" for at, what in self.history[-5:])

    def _strike(self) -> None:
        node = self._dice.choice(["head", "head", "second", "third"])
        role = self._dice.choice(ROLES[node])
        pids = self._nodes.pids(getattr(self._nodes, node)).get(role)
        if not pids:
            return
        pid, how = self._dice.choice(pids), self._dice.choice(["kill", "terminate", "stop"])
        stop_s = self._dice.choice(STOPS_S) if how == "stop" else 0.0
        if node == "head":
            self.last_at = time.monotonic() + stop_s
        self._note(f"{node}: {role} {how}{f' for {stop_s:g} s' if stop_s else ''}")
        with suppress(ProcessLookupError, psutil.Error):
            if how == "stop":
                process = psutil.Process(pid)
                process.suspend()
                self._over.wait(stop_s)
                process.resume()
            else:
                os.kill(pid, signal.SIGKILL if how == "kill" else signal.SIGTERM)
        if node == "head":
            self.last_at = time.monotonic()


class Programs(UntilStopped):
    """Short programs, one after the other, that join at the head's machine."""

    def __init__(self, nodes: Nodes, strikes: Strikes) -> None:
        self.count: Counter[str] = Counter()
        self.wrong: list[str] = []
        self._nodes = nodes
        self._strikes = strikes
        super().__init__()

    def _run(self) -> None:
        number = 0
        while not self._over.wait(0.5):
            number += 1
            if read_node_file(self._nodes.head) is None:
                continue  # the head has ended and is about to be started again
            begun = time.monotonic()
            try:
                program = [sys.executable, "-c", PROGRAM, self._nodes.head, str(number)]
                done = subprocess.run(program, capture_output=True, text=True, timeout=PROGRAM_S)
            except subprocess.TimeoutExpired:
                self.wrong.append(f"program {number} did not end in {PROGRAM_S:g} s")
                continue
            if done.returncode == 0:
                self.count["right"] += 1
                continue
            error = done.stderr.strip().splitlines()[-1] if done.stderr.strip() else f"exit code {done.returncode}"
            kind = error.partition(":")[0].rpartition(".")[2]
            self.count[kind] += 1
            was_struck = self._strikes.last_at > begun - 10
            if not (was_struck and EXPLAINED_PROGRAM.search(done.stderr)):
                lasted = f"program {number} (of {time.monotonic() - begun:.0f} s; {self._strikes.lately()})"
                self.wrong.append(f"{lasted}{'' if was_struck else ', without a strike'}: {error}")


def work(nodes: Nodes, strikes: Strikes, dice: Random, until: float, outcomes: Counter[str]) -> list[str]:
    """Make mixed work on the third node; returns what was wrong."""
    wrong = []
    kept = Lasting.options(name="kept", lifetime="detached", namespace="chaos").remote()
    assert ray.get(kept.echo.remote(1), timeout=GET_S) == 1
    while time.monotonic() < until and not strikes.trouble:
        kind = dice.choice(KINDS)
        try:
            kind(dice)
            number = dice.randrange(1000)
            assert ray.get(kept.echo.remote(number), timeout=GET_S) == number
            outcomes[f"{kind.__name__}: right"] += 1
        except EXPLAINED as error:
            outcomes[f"{kind.__name__}: {type(error).__name__}"] += 1
        except (AssertionError, ray.exceptions.RayError) as error:
            wrong.append(f"{kind.__name__}: {error!r}")
            print(wrong[-1], file=sys.stderr, flush=True)
            if len(wrong) > 5:
                break
    return wrong


@click.command()
@click.option("--seconds", default=600.0, help="How long work is made.")
@click.option("--seed", default=1, help="Decides what is struck when; not what then happens.")
def main(seconds: float, seed: int) -> None:
    """Exit code 1 if an answer was wrong, or the cluster did not come to rest, or left something.

    The logs of all nodes are kept then, and the last line says where.
    """
    directory = tempfile.mkdtemp(prefix="mrc-", dir="/tmp")
    os.environ["MINRAY_TMPDIR"] = directory
    wrong = _run(seconds, seed)
    left = leaks.describe(Path(directory))
    for line in [*wrong, *left]:
        print(line, file=sys.stderr)
    if wrong or left:
        sys.exit(f"the logs of this run are in {directory}; delete it when you have read them")
    shutil.rmtree(directory)


def _run(seconds: float, seed: int) -> list[str]:
    outcomes, nodes = Counter[str](), Nodes()
    ray.init(nodes.third, log_to_driver=False)
    strikes = Strikes(nodes, Random(seed + 1))
    programs = Programs(nodes, strikes)
    try:
        wrong = work(nodes, strikes, Random(seed), time.monotonic() + seconds, outcomes)
        programs.stop()
        strikes.stop()
        wrong += [*programs.wrong, *strikes.trouble]
        if strikes.trouble:  # What a node of the cluster could not be started for; without it nothing comes to rest.
            return wrong
        wait_for_condition(is_at_rest, timeout_s=90, message="free resources")
        kept = ray.get_actor("kept", namespace="chaos")
        assert ray.get(kept.echo.remote(7), timeout=GET_S) == 7
        ray.shutdown()
    finally:
        programs.stop()
        strikes.stop()
        minray("stop")
    for name, count in sorted(outcomes.items()):
        print(f"{count:6} {name}")
    print(f"programs: {dict(programs.count)}")
    print(f"strikes: {dict(sorted(strikes.count.items()))}; wrong: {len(wrong)}")
    return wrong


if __name__ == "__main__":
    main()
