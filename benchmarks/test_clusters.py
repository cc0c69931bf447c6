"""``python -m benchmarks.test_clusters``: the price of a cluster for each test, in time and in processor time.

    python -m benchmarks.test_clusters [--system local|processes|ray|distributed] [--tests N]

It prints medians over clusters that start and end in one process, each with a first task; of calls that wait for their
result; and the totals of a run of pytest in which each of N tests has a cluster, and calls one task. ``distributed`` is
``Client(processes=False)``: Dask's scheduler and workers in one process. Processor time is that of the process and of the
children that it has waited for. Compare it, where other programs use the machine.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

CLUSTERS = 50
CALLS = 500
TEXT = {
    "local": "import minray\n\n@minray.remote\ndef add(x):\n    return x + 1\n",
    "ray": "import pytest, ray\n\n@ray.remote\ndef add(x):\n    return x + 1\n\n@pytest.fixture\ndef cluster():\n"
    "    yield ray.init(address='local', num_cpus=4, include_dashboard=False, log_to_driver=False)\n    ray.shutdown()\n",
    "distributed": "import pytest\nfrom distributed import Client\n\ndef add(x):\n    return x + 1\n\n@pytest.fixture\n"
    "def cluster():\n    options = dict(processes=False, n_workers=4, threads_per_worker=1, dashboard_address=None)\n"
    "    with Client(**options) as client:\n"
    "        yield client\n",
}
"""Heads of the files of tests, by system."""
TEST = {
    "local": "def test_{0}(minray_local):\n    assert minray.get(add.remote({0})) == {1}\n",
    "ray": "def test_{0}(cluster):\n    assert ray.get(add.remote({0})) == {1}\n",
    "distributed": "def test_{0}(cluster):\n    assert cluster.submit(add, {0}).result() == {1}\n",
}
MODULES = {"ray": "ray", "distributed": "distributed"}


def add(x: int) -> int:
    return x + 1


def drivers(system: str) -> tuple[Callable[[], Any], Callable[[Any, int], int], Callable[[Any], None]]:
    """Return how a system starts, makes a call, and ends."""
    if system == "distributed":
        module = import_module("distributed")
        options = {"processes": False, "n_workers": 4, "threads_per_worker": 1, "dashboard_address": None}
        return (
            lambda: module.Client(**options),
            lambda client, number: int(client.submit(add, number, pure=False).result()),
            lambda client: client.close(),
        )
    api = import_module(MODULES.get(system, "minray"))
    function = api.remote(add)
    options = {"address": "local", "num_cpus": 4, "log_to_driver": False, "logging_level": "WARNING"}
    if system == "ray":
        options["include_dashboard"] = False
    elif system == "local":
        options["local_mode"] = True
    return (
        lambda: api.init(**options),
        lambda _, number: int(api.get(function.remote(number))),
        lambda _: api.shutdown(),
    )


def median_ms(values: list[float]) -> str:
    return f"{1000 * statistics.median(values):.2f} ms"


def measure_starts(system: str, clusters: int) -> None:
    """Print the medians of starts, first tasks, ends and calls."""
    start, call, end = drivers(system)
    walls: dict[str, list[float]] = {"start": [], "start, first task and end": [], "processor time of all three": []}
    for _ in range(clusters):
        cpu, began = time.process_time(), time.perf_counter()
        cluster = start()
        walls["start"].append(time.perf_counter() - began)
        assert call(cluster, 1) == 2
        end(cluster)
        walls["start, first task and end"].append(time.perf_counter() - began)
        walls["processor time of all three"].append(time.process_time() - cpu)
    for name, values in walls.items():
        third = max(1, len(values) // 3)
        print(f"{system}: {name}: {median_ms(values)} (first third {median_ms(values[:third])}, "
              f"last third {median_ms(values[-third:])})")  # fmt: skip
    cluster = start()
    for number in range(50):
        call(cluster, number)
    cpu, began = time.process_time(), []
    for number in range(CALLS):
        before = time.perf_counter()
        call(cluster, number)
        began.append(time.perf_counter() - before)
    cpu = time.process_time() - cpu
    end(cluster)
    print(f"{system}: a call that waits: median {median_ms(began)}, processor time {1000 * cpu / CALLS:.2f} ms")


def measure_tests(system: str, tests: int) -> None:
    """Print the time of a run of pytest, with a cluster for each test."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "test_many.py")
        kind = "local" if system == "processes" else system
        path.write_text(TEXT[kind] + "".join(f"\n\n{TEST[kind].format(n, n + 1)}" for n in range(tests)))
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--rootdir", folder]
        if kind == "local":
            command += ["-p", "_minray_pytestplugin", f"--minray-world={system}"]
        before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
        alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}  # No peer is measured with the plugins of others.
        ended = subprocess.run([*command, str(path)], capture_output=True, text=True, env=alone)
        wall_s, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        raise SystemExit(f"the run of pytest has failed:\n{ended.stdout[-2000:]}{ended.stderr[-2000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"{system}: {ended.stdout.strip().splitlines()[-1]}: {wall_s:.1f} s, processor time {cpu_s:.1f} s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--system", choices=["local", "processes", "ray", "distributed"], default="local")
    parser.add_argument("--tests", type=int, default=1000, help="how many tests have a cluster each")
    parser.add_argument("--clusters", type=int, default=CLUSTERS, help="how many clusters start for the medians")
    options = parser.parse_args()
    measure_starts(options.system, options.clusters)
    measure_tests(options.system, options.tests)


if __name__ == "__main__":
    main()
