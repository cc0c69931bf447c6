"""Settings of any size: a cluster starts, and tasks run, with thousands of names, paths and variables."""

from __future__ import annotations

from typing import Any

import pytest

from tests.real.support import run_driver

PROGRAM = """
    settings = eval(sys.argv[1])
    sys.path += [f"/a/directory/that/does/not/exist/{number}" for number in range(int(sys.argv[2]))]
    ray.init(num_cpus=1, log_to_driver=False, **settings)

    @ray.remote
    def look():
        import os, sys
        return len([name for name in os.environ if name.startswith("OF_TEST_")]), len(sys.path) > 5_000

    (node,) = ray.nodes()
    selector = {"label-7": "x"} if "labels" in settings else {}
    resources = {"name-7": 1} if "resources" in settings else {}
    print(len(node["Resources"]) > 9000, len(node["Labels"]) > 9000)
    print(*ray.get(look.options(resources=resources, label_selector=selector).remote()))
"""


@pytest.mark.parametrize(
    ("settings", "paths", "told"),
    [
        ("{'resources': {f'name-{number}': 1 for number in range(10_000)}}", 0, ["True", "False", "0", "False"]),
        ("{'labels': {f'label-{number}': 'x' for number in range(10_000)}}", 0, ["False", "True", "0", "False"]),
        ("{}", 5_000, ["False", "False", "0", "True"]),
        (
            "{'runtime_env': {'env_vars': {f'OF_TEST_{number}': '1' for number in range(10_000)}}}",
            0,
            ["False", "False", "10000", "False"],
        ),
        ("{'_node_name': 100_000 * 'n', 'namespace': 1_000_000 * 's'}", 0, ["False", "False", "0", "False"]),
    ],
    ids=["resources", "labels", "sys.path", "env_vars", "names"],
)
def test_a_cluster_starts_with_huge_settings(settings: str, paths: int, told: list[str]) -> None:
    done: Any = run_driver(PROGRAM, settings, str(paths))
    assert (done.returncode, done.stdout.split()) == (0, told), done.stderr[-2000:]
