"""``python -m tests.ray_issues.on_ray``: the tests of this folder with Ray in minray's place. Needs an installed Ray.

As a plugin of pytest the file holds the tests against their markers. A test whose marker says ``wrong`` must fail, one that
says ``not run`` is skipped, and one that says ``wrong at times`` may do either. One whose minray is ``like Ray`` must pass.
Arguments are pytest's. With ``RAY_ISSUES_ALL=1`` nothing is skipped or expected to fail, which is how a new marker is found.
"""

from __future__ import annotations

import os
import sys

import pytest

from tests.conformance.__main__ import ENVIRONMENT, ROOT

FOLDER = ROOT / "tests" / "ray_issues"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("RAY_ISSUES_ALL"):
        return
    for item in items:
        marker = item.get_closest_marker("ray_issue")
        ray = marker.kwargs["ray"] if marker else "not run: not of Ray"
        expects_rays = marker is not None and marker.kwargs.get("minray", "").startswith("like Ray")
        if ray.startswith("not run"):
            item.add_marker(pytest.mark.skip(reason=ray))
        elif ray.startswith("wrong") and not expects_rays:
            item.add_marker(pytest.mark.xfail(strict=not ray.startswith("wrong at times"), reason=ray))


def main() -> None:
    named = [argument for argument in sys.argv[1:] if argument.partition("::")[0].endswith(".py")]
    files = named or [str(path) for path in sorted(FOLDER.glob("test_*.py"))]
    options = [argument for argument in sys.argv[1:] if argument not in named]
    os.chdir(ROOT)
    command = [sys.executable, "-m", "pytest", "-p", "tests.ray_issues.on_ray", "-W", "default", *files, *options]
    os.execve(sys.executable, command, {**os.environ, **ENVIRONMENT})


if __name__ == "__main__":
    main()
