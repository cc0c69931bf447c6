"""One process for each part and system, in turn: ``python -m benchmarks.runner PART SYSTEM SIZE FILE``.

Such a process writes its samples into the file, one JSON list a line, as soon as it has them. So a system that fails, or
takes far longer than others, loses only what it has not done yet, and says why.
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
"""A process is given up after so many times as long as it should take, and three minutes."""
FAREWELL_S = 30
"""A process that is told to end has so long for it."""
LAST_LINES = 15


class Outcome(NamedTuple):
    """What a process has measured, and why it has not measured more."""

    samples: list[Sample]
    failure: str
    """Empty if it has come to its end."""


def run(part: Part, system: str, size: Size) -> Outcome:
    """Measure in a process of its own."""
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
    """Wait for a process, and end it with its children when it takes too long."""
    try:
        code = process.wait(limit_s)
        return f"ended with code {code}" if code else ""
    except subprocess.TimeoutExpired:
        return f"was not ready after {limit_s:.0f} s"
    finally:
        if process.poll() is None:
            _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    """Let it clean up; then end whatever is left of it."""
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
    """Clean up on SIGTERM too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit("was told to end"))


def _cause(said: list[str]) -> str:
    """The line with the exception, if that is how it ended."""
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
