"""``minray`` on the command line, and what is there of the nodes it has started."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from minray.node.discovery import NodeFile, find_nodes
from tests import leaks
from tests.helpers import wait_for_condition

END_S = 5.0
"""How long what must end may take; the design says one second, on a machine that is not busy with tests."""


class CommandLine:
    """``minray`` in processes of its own; tests in this process see the same sessions."""

    def __init__(self, root: Path) -> None:
        self.root = root
        """Where the sessions are."""

    def popen(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-m", "minray", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        with self.popen(*arguments) as process:
            out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(arguments, process.returncode, out, err)

    def __call__(self, *arguments: str) -> str:
        """Run a command and return its output. Raises AssertionError if it fails."""
        done = self.run(*arguments)
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout

    def start_head(self, *arguments: str) -> NodeFile:
        self("start", "--head", "--num-cpus=1", *arguments)
        return next(file for file in find_nodes() if file.is_head)

    def join(self, head: NodeFile, *arguments: str) -> NodeFile:
        before = {file.node_id for file in find_nodes()}
        self("start", f"--address={head.gcs_address}", "--num-cpus=1", *arguments)
        return next(file for file in find_nodes() if file.node_id not in before)

    def pids(self, file: NodeFile) -> dict[str, int]:
        """The processes of a node by role; of several workers one."""
        found = {}
        for process in leaks.processes(Path(file.session_dir)):
            found[Path(f"/proc/{process.pid}/comm").read_text().strip().removeprefix("minray:")] = process.pid
        return found

    def left(self) -> list[str]:
        """Processes and files that are left of all sessions, except logs."""
        return leaks.describe(self.root)

    def wait_until_nothing_is_left(self) -> None:
        try:
            wait_for_condition(lambda: not self.left(), END_S)
        except AssertionError as error:
            raise AssertionError(f"left after {END_S} s: {self.left()}") from error


def lines_with(text: str, *words: str) -> list[str]:
    """The lines of a text that have all of these words."""
    return [line for line in text.splitlines() if all(word in line for word in words)]
