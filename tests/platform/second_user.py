"""A second user of this machine, for tests of what another user can do to this one.

Only root can be somebody else, so other users' runs skip these tests. The directory of ``shared_directory`` is like /tmp:
all users may make files there. A program of the second user imports what it needs while it is still this user, and becomes
``nobody`` when it calls ``become()``; with ``ready()`` it says that what it has prepared is there.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

NOBODY = 65534
needs_second_user = pytest.mark.skipif(os.geteuid() != 0, reason="only root can be a second user too")
PRELUDE = f"""
import os, sys
def become():
    os.setgroups([])
    os.setresgid({NOBODY}, {NOBODY}, {NOBODY})
    os.setresuid({NOBODY}, {NOBODY}, {NOBODY})
def ready():
    print("ready", flush=True)
"""


@contextmanager
def shared_directory(mode: int = 0o1777) -> Iterator[Path]:
    """A directory of root's that all users can reach, with a short path."""
    path = Path(tempfile.mkdtemp(prefix="minray-shared-", dir="/tmp"))
    path.chmod(mode)
    try:
        yield path
    finally:
        shutil.rmtree(path)


@contextmanager
def second_user(program: str, *arguments: object) -> Iterator[subprocess.Popen[str]]:
    """While the block runs, so does the program; it is asked to end by the end of its standard input."""
    process = subprocess.Popen(
        [sys.executable, "-c", PRELUDE + textwrap.dedent(program), *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "ready\n"
        yield process
    finally:
        process.communicate(timeout=30)
    assert process.returncode == 0
