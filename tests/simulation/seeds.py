"""How many seeds a test is run with: all of them by `make test-seeds`, every third by `make test`."""

from __future__ import annotations

import os


def seeds(count: int) -> range:
    """``count`` seeds, if all are wanted."""
    return range(0, count, 1 if os.environ.get("MINRAY_TEST_SEEDS") == "all" else 3)
