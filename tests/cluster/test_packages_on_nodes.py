"""The directories of a job reach nodes that do not have them: the original is gone before the second node starts a task."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest

import minray
from minray.cluster_utils import Cluster
from minray.exceptions import RuntimeEnvSetupError
from tests.helpers import wait_for_condition

LARGE = 6 << 20
"""Bytes of a package that is not kept in the gcs, but in the object store."""


def project(tmp_path: Path, size: int) -> dict[str, object]:
    working, modules = tmp_path / "working", tmp_path / "modules" / "a_package_of_mine"
    for folder in (working, modules):
        folder.mkdir(parents=True)
    (working / "data.bin").write_bytes(os.urandom(size))
    (modules / "__init__.py").write_text("value = 'package'\n")
    return {"working_dir": str(working), "py_modules": [str(modules)]}


@minray.remote
def look() -> tuple[str, str, int, str]:
    import a_package_of_mine  # type: ignore[import-not-found]

    size = os.stat("data.bin").st_size
    return minray.get_runtime_context().get_node_id(), os.getcwd(), size, a_package_of_mine.value


@minray.remote
class Looker:
    def look(self) -> tuple[int, str]:
        return os.stat("data.bin").st_size, os.getcwd()


@pytest.fixture(params=["", "127.0.0.1"], ids=["unix", "tcp"])
def nodes(request: pytest.FixtureRequest) -> Generator[Cluster, None, None]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "tcp_host": request.param})
    try:
        cluster.add_node(num_cpus=4, resources={"there": 4})
        yield cluster
    finally:
        minray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("size", [100, LARGE], ids=["small", "large"])
def test_a_node_without_the_directory_gets_it(nodes: Cluster, tmp_path: Path, size: int) -> None:
    minray.init(address=nodes.address, runtime_env=project(tmp_path, size))
    shutil.rmtree(tmp_path / "working")
    shutil.rmtree(tmp_path / "modules")
    there = [look.options(resources={"there": 1}).remote() for _ in range(4)]
    found = set(minray.get([look.remote(), *there]))
    (node,) = nodes.worker_nodes
    ours = {row for row in found if row[0] == node.node_id}
    ((_, directory, seen, value),) = ours
    assert directory.startswith(node.session_dir) and (seen, value) == (size, "package")
    folder = Path(directory).parent
    left = [path.name for path in folder.iterdir() if not path.name.endswith(".lock")]
    assert len(left) == 2 and os.stat(folder).st_mode & 0o777 == 0o700, "one copy of each package, whoever has unpacked it"
    nodes.remove_node(node)
    assert not os.path.exists(directory)


@pytest.mark.slow
def test_an_actor_that_outlives_its_job_starts_again_where_the_directory_has_never_been(
    nodes: Cluster, tmp_path: Path
) -> None:
    minray.init(address=nodes.address, namespace="ours", runtime_env=project(tmp_path, 100))
    options = {"lifetime": "detached", "name": "looker", "max_restarts": 1, "resources": {"there": 1}}
    actor = Looker.options(**options).remote()
    assert minray.get(actor.look.remote())[0] == 100
    minray.shutdown()
    shutil.rmtree(tmp_path / "working")
    (first,) = nodes.worker_nodes
    second = nodes.add_node(num_cpus=1, resources={"there": 1})
    nodes.remove_node(first, allow_graceful=False)
    minray.init(address=nodes.address, namespace="ours")
    actor = minray.get_actor("looker")

    def is_there() -> bool:
        try:
            size, directory = minray.get(actor.look.remote())
        except minray.exceptions.ActorUnavailableError:
            return False
        return size == 100 and directory.startswith(second.session_dir)

    wait_for_condition(is_there, message="the actor runs on the second node")
    minray.kill(actor)


@pytest.mark.slow
def test_a_large_package_whose_driver_has_ended_is_an_error_that_says_so(nodes: Cluster, tmp_path: Path) -> None:
    minray.init(address=nodes.address, namespace="ours", runtime_env=project(tmp_path, LARGE))
    options = {"lifetime": "detached", "name": "looker", "max_restarts": 1, "resources": {"there": 1}}
    assert minray.get(Looker.options(**options).remote().look.remote())[0] == LARGE
    minray.shutdown()
    minray.init(address=nodes.address, namespace="ours")
    actor = minray.get_actor("looker")
    (first,) = nodes.worker_nodes
    nodes.add_node(num_cpus=1, resources={"there": 1})
    nodes.remove_node(first, allow_graceful=False)

    def error() -> str:
        try:
            minray.get(actor.look.remote())
        except RuntimeEnvSetupError as problem:
            return str(problem)
        except minray.exceptions.ActorUnavailableError:
            return ""
        raise AssertionError("the package is still there")

    wait_for_condition(lambda: "cannot be fetched from its driver" in error())


def test_a_node_without_the_drivers_current_directory_runs_its_tasks(nodes: Cluster, tmp_path: Path) -> None:
    before = os.getcwd()
    here = tmp_path / "here"
    here.mkdir()
    os.chdir(here)
    try:
        minray.init(address=nodes.address)
    finally:
        os.chdir(before)
    here.rmdir()
    assert minray.get(minray.remote(os.getcwd).options(resources={"there": 1}).remote()) not in ("", str(here))
