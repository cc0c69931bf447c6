"""Runs of pytest inside of tests: a file of tests, and what pytest says about it."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

import minray.in_process.world
import minray.testing.plugin
import minray.testing.ray_fixtures

assert minray.in_process.world and minray.testing  # A run inside of this process drops the modules that it has imported.

IS_INSTALLED = any(entry.name == "minray" for entry in entry_points(group="pytest11"))
"""Whether pytest finds the plugin by itself: not in an environment that was made before setup.cfg named it."""
FOUND = () if IS_INSTALLED else ("-p", "_minray_pytestplugin")
PLUGIN = (*FOUND, "-p", "no:asyncio")
"""Options that load the plugin, without pytest-asyncio."""
PROGRAM = """
import minray, pytest, threading, time

@minray.remote
def add(x, y=1):
    return x + y

@minray.remote
class Counter:
    def __init__(self):
        self.n = 0

    def add(self):
        self.n += 1
        return self.n
"""


def run(pytester: pytest.Pytester, text: str, *arguments: str, ini: str = "") -> pytest.RunResult:
    """Run tests inside this process; they may use ``add``, ``Counter`` and the imports of ``PROGRAM``."""
    _write(pytester, text, ini)
    return pytester.runpytest_inprocess(*PLUGIN, "-p", "no:xdist", "-p", "no:cacheprovider", *arguments)


def run_apart(pytester: pytest.Pytester, text: str, *arguments: str, ini: str = "") -> pytest.RunResult:
    """Run tests in a process of their own; beside pytest-asyncio if ``ini`` has its mode."""
    _write(pytester, text, ini)
    plugin = FOUND if "asyncio_mode" in ini else PLUGIN
    return pytester.runpytest_subprocess(*plugin, "-p", "no:cacheprovider", *arguments)


def _write(pytester: pytest.Pytester, text: str, ini: str) -> None:
    pytester.makeini(f"[pytest]\n{ini}")
    pytester.makepyfile(test_inner=PROGRAM + text)
