"""The list of the tests of real clusters that local mode cannot pass: it is short, and true."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.real.not_local import NOT_LOCAL, names_of, reason_for

MOST_LISTED = 0.1
"""Largest share of the tests of ``tests/real`` that may be listed."""
CHECKOUT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def collected() -> list[str]:
    """The ids of all tests of ``tests/real``."""
    options = ["--collect-only", "-q", "-p", "no:xdist", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *options, "tests/real"]
    done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, env={**os.environ, "MINRAY_TRANSPORT": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    return [line for line in done.stdout.splitlines() if "::" in line]


@pytest.mark.slow
def test_at_most_a_tenth_of_the_tests_is_listed(collected: list[str]) -> None:
    listed = [node_id for node_id in collected if reason_for(node_id)]
    assert 0 < len(listed) <= MOST_LISTED * len(collected), f"{len(listed)} of {len(collected)} tests are listed"


@pytest.mark.slow
def test_each_entry_names_a_test_and_has_a_reason(collected: list[str]) -> None:
    existing = {name for node_id in collected for name in names_of(node_id)}
    assert sorted(NOT_LOCAL.keys() - existing) == []
    assert all(len(reason.split()) > 3 for reason in NOT_LOCAL.values())
