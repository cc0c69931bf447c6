"""The cluster of one node that the tests of a file share, as in tests/real; and tests that have to fail."""

from __future__ import annotations

import pytest

from tests.real.conftest import arena, cluster, files, node  # noqa: F401  (fixtures)
from tests.real.support import ON_RAY


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        marker = item.get_closest_marker("ray_issue")
        minray = marker.kwargs.get("minray", "") if marker else ""
        if minray.startswith("not yet") and not ON_RAY:
            item.add_marker(pytest.mark.xfail(strict=True, reason=minray))
