"""Run the tests in copies of this checkout with difficult paths: ``make test-anywhere``.

Three mistakes pass in most checkouts. A test looks for ``/minray/`` in a text that names its own file. A path is not quoted.
A socket lies below the checkout, where its path is too long. So the tests that read output, errors and their own sources
run once more in a folder called minray and in one with a path of 150 characters. All tests run in a folder with a space.

A copy has the tracked files as they are now, also those that are not committed. The environment stays this one; PYTHONPATH
puts the copy before the checkout that is installed in it. Sessions are not below a checkout (see ``conftest.py``).
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

import click

CHECKOUT = Path(__file__).resolve().parents[1]
LONG_PATH_CHARACTERS = 150
"""Well above 107, the number of bytes that Linux allows for the path of a unix socket."""
READ_PATHS = [
    "tests/core_worker/test_actor_api.py",
    "tests/core_worker/test_call_sites.py",
    "tests/core_worker/test_stacks.py",
    "tests/platform/test_main_thread.py",
    "tests/raylet/test_last_words.py",
    "tests/real/test_output.py",
    "tests/real/test_results_and_errors.py",
    "tests/real/test_retries.py",
    "tests/real/test_seeing_processes.py",
    "tests/simulation/test_user_code.py",
    "tests/test_cloudpickle.py",
    "tests/test_exceptions.py",
    "tests/test_installation.py",
    "tests/test_ray_programs.py",
    "tests/test_stack_text.py",
    "tests/test_worker_output.py",
    "tests/tidy",
]
"""Tests of output, errors, call sites and sources, in which the path of the checkout may stand."""
TESTS = {"minray": READ_PATHS, "long": READ_PATHS, "space": ["tests"]}
"""Kind of place -> the tests that run there."""


def place(kind: str, below: Path) -> Path:
    """Return the path that a copy of this kind gets below a directory with a short path."""
    if kind == "long":
        return below / ("a-long-path-" * LONG_PATH_CHARACTERS)[: LONG_PATH_CHARACTERS - len(str(below)) - 1]
    return below / {"minray": "minray", "space": "a folder"}[kind]


def copy_checkout(source: Path, target: Path) -> None:
    """Copy the files of a checkout that git tracks and that are there."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=source, capture_output=True, text=True, check=True)
    for name in filter(None, listed.stdout.split("\0")):
        if (source / name).exists():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, target / name)


def run_tests(kind: str, pytest_arguments: Iterable[str]) -> bool:
    """Copy the checkout to a place of this kind and run its tests there; returns whether they pass."""
    with tempfile.TemporaryDirectory(prefix="minray-anywhere-") as directory:
        copy = place(kind, Path(directory))
        copy_checkout(CHECKOUT, copy)
        print(f"--- {kind}: {copy}", flush=True)
        began = time.monotonic()
        command = [sys.executable, "-m", "pytest", *TESTS[kind], *pytest_arguments]
        done = subprocess.run(command, cwd=copy, env={**os.environ, "PYTHONPATH": str(copy)})
        print(f"--- {kind}: {time.monotonic() - began:.0f} s", flush=True)
    return done.returncode == 0


@click.command()
@click.option("--place", "kinds", multiple=True, type=click.Choice(list(TESTS)), default=list(TESTS))
@click.argument("pytest_arguments", nargs=-1, type=click.UNPROCESSED)
def main(kinds: tuple[str, ...], pytest_arguments: tuple[str, ...]) -> None:
    """Run the tests in these places, one after the other, with these arguments of pytest."""
    failed = [kind for kind in kinds if not run_tests(kind, pytest_arguments)]
    if failed:
        raise click.ClickException(f"tests fail in these places: {', '.join(failed)}")


if __name__ == "__main__":
    main()
