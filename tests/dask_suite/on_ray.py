"""minray's Dask scheduler on Ray: ``make dask-on-ray``, with a Python that has Ray.

The folder ``minray/util/dask`` is copied, each ``import minray as ray`` in it becomes ``import ray``, and the tests that run
it on minray run once more. Whatever the scheduler used beyond the public API would fail here.

One test is left out, a chain of 10,000 tasks submitted at once: Ray was not through with it after minutes, in which minray
needs seconds.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
IN_PLACE = ROOT / "tests" / "conformance" / "in_place"
"""Directory whose ``sitecustomize`` makes ``import minray`` import Ray, for helpers of the tests."""
PACKAGE = "dask_on_ray"

CONFTEST = """
import pytest, ray

@pytest.fixture(scope="module")
def cluster(request):
    ray.init(log_to_driver=False, include_dashboard=False, **request.module.INIT)
    yield
    ray.shutdown()
"""


def adapted(source: str) -> str:
    """Rewrite a program for Ray."""
    source = re.sub(r"^import minray as ray$", "import ray", source, flags=re.MULTILINE)
    return re.sub(r"\bminray\.util\.dask\b", PACKAGE, source)


def copy(to: Path) -> None:
    (to / PACKAGE).mkdir()
    for path in (ROOT / "minray/util/dask").glob("*.py"):
        text = adapted(path.read_text())
        if re.search(r"^\s*(import|from) minray", text, re.MULTILINE):
            raise SystemExit(f"{path} uses minray in another way than `import minray as ray`")
        (to / PACKAGE / path.name).write_text(text)
    (to / "test_dask.py").write_text(adapted((ROOT / "tests/real/test_dask.py").read_text()))
    (to / "conftest.py").write_text(CONFTEST)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("python", nargs="?", default=sys.executable, help="one that has Ray, Dask and pytest")
    parser.add_argument("-k", default="not test_get_stack_limit", help="only these tests, as pytest has it")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dask-on-ray-") as folder:
        copy(Path(folder))
        command = [options.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--tb=short", "-k", options.k, folder]
        path = os.pathsep.join([folder, str(IN_PLACE), str(ROOT)])
        return subprocess.run(command, cwd=folder, env={**os.environ, "PYTHONPATH": path}).returncode


if __name__ == "__main__":
    sys.exit(main())
