"""Run one process for each part and system, in turn: ``python -m benchmarks.runner PART SYSTEM SIZE FILE``.

Such a process writes each sample to the file as soon as it has it, one JSON list a line. So a system that fails, or takes
far longer than others, loses only the samples that it has not measured yet. The reason is printed and kept.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

import psutil

from benchmarks.document import Part, Sample, Size

PATIENCE = 4
"""Time limit of a process as a multiple of its expected time, to which three minutes are added."""
FAREWELL_S = 30
"""Seconds that a process has to end after SIGTERM before it is killed."""
LAST_LINES = 15
"""Number of lines of a failed process's output that are printed."""


class Outcome(NamedTuple):
    """The samples of a process, and the reason if it has failed."""

    samples: list[Sample]
    failure: str
    """Reason of a failure; empty if the process has measured all samples."""


def run(part: Part, system: str, size: Size) -> Outcome:
    """Measure a part on a system in a new process."""
    limit_s = 180 + PATIENCE * part.seconds[size]
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        results, errors = Path(folder, "results"), Path(folder, "errors")
        results.touch()
        with errors.open("wb") as stderr:
            command = [sys.executable, "-m", "benchmarks.runner", part.name, system, size.value, str(results)]
            environment = {**os.environ, "TMPDIR": folder, "RAY_TMPDIR": folder}
            process = subprocess.Popen(command, stdout=stderr, stderr=stderr, env=environment)
            failure = _finish(process, limit_s)
        samples = [Sample(*json.loads(line)) for line in results.read_text().splitlines()]
        if failure:
            said = errors.read_text(errors="replace").strip().splitlines()
            print("\n".join(["", f"{part.name}, {system}: {failure}", *said[-LAST_LINES:]]), file=sys.stderr)
            failure = _cause(said) or failure
    return Outcome(samples, failure)


def _finish(process: subprocess.Popen[bytes], limit_s: float) -> str:
    """Wait for a process, and end it with its children if it takes too long; return the reason of a failure, or ""."""
    try:
        code = process.wait(limit_s)
        return f"ended with code {code}" if code else ""
    except subprocess.TimeoutExpired:
        return f"was not ready after {limit_s:.0f} s"
    finally:
        if process.poll() is None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """End a process with SIGTERM, so that it cleans up; then kill it and its children if they are left."""
    children = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    try:
        process.wait(FAREWELL_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for child in children:
        if child.is_running():
            child.kill()


def exit_when_terminated() -> None:
    """Exit on SIGTERM with ``sys.exit``, so that this process cleans up, and ignore further SIGTERMs."""

    def end(*_: object) -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        sys.exit("was told to end")

    signal.signal(signal.SIGTERM, end)


def _cause(said: list[str]) -> str:
    """Return the last line of the output if it names an exception, else ""."""
    last = said[-1] if said else ""
    return last if "Error" in last or "Exception" in last else ""


def main() -> None:
    from benchmarks.documents import PARTS

    exit_when_terminated()
    name, system, size, path = sys.argv[1:]
    with open(path, "a", encoding="utf-8") as results:
        for sample in PARTS[name].measure(system, Size(size)):
            results.write(json.dumps(sample) + "\n")
            results.flush()


if __name__ == "__main__":
    main()
