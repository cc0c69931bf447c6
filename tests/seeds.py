"""How many cases of long tests are run: all of them by `make test-seeds`, a part of them by `make test`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

import pytest

T = TypeVar("T")

WANTS_ALL = os.environ.get("MINRAY_TEST_SEEDS") == "all"
long = pytest.mark.skipif(not WANTS_ALL, reason="takes long; make test-seeds runs it")


def seeds(count: int) -> range:
    """``count`` seeds, if all are wanted."""
    return range(0, count, 1 if WANTS_ALL else 3)


def sample(cases: Sequence[T], first: int = 0) -> Sequence[T]:
    """All cases, if all are wanted; else every ninth, from one of the first nine."""
    return cases if WANTS_ALL else cases[first::9]
