"""The fixtures, marks and worlds of the pytest plugin.

Ray: python/ray/tests/conftest.py has such fixtures; nothing there tests them
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

import minray
from tests.testing.runs import PLUGIN, run, run_apart

pytest_plugins = ["pytester"]
ROOT = Path(__file__).parents[2]


def test_minray_local_is_a_cluster_in_this_process(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
SEEN = []

def test_one(minray_local):
    add.options(name="x").remote(1)
    assert minray.get(add.remote(1)) == 2
    assert minray_local["address"].startswith("local:")
    SEEN.append(minray_local["node_id"])
    assert minray.cluster_resources()["CPU"] == 4

@pytest.mark.minray_init(num_cpus=2, namespace="mine")
def test_two(minray_local):
    assert minray_local["node_id"] not in SEEN
    assert minray.cluster_resources()["CPU"] == 2
    assert minray.get_runtime_context().namespace == "mine"
""",
    )
    result.assert_outcomes(passed=2)
    assert not minray.is_initialized()


def test_a_closer_mark_replaces_single_arguments(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
pytestmark = pytest.mark.minray_init(num_cpus=1, resources={"disk": 2})

@pytest.mark.minray_init(num_cpus=3)
def test_one(minray_local):
    resources = minray.cluster_resources()
    assert (resources["CPU"], resources["disk"]) == (3, 2)
""",
    )
    result.assert_outcomes(passed=1)


@pytest.mark.slow
def test_minray_processes_lives_on_and_is_reset(pytester: pytest.Pytester) -> None:
    result = run_apart(
        pytester,
        """
import os

NODES = []

@pytest.fixture(scope="module")
def shared(minray_processes):
    return Counter.remote()

@pytest.mark.minray_leaks("off")
def test_one(shared):
    NODES.append(minray.nodes()[0]["NodeID"])
    assert minray.get(shared.add.remote()) == 1
    Counter.options(name="left", lifetime="detached", num_cpus=1).remote()
    from minray.util.placement_group import placement_group
    assert placement_group([{"CPU": 2}]).wait(10)

def test_two(shared):
    assert [node["NodeID"] for node in minray.nodes()] == NODES
    assert minray.get(shared.add.remote()) == 2
    with pytest.raises(ValueError):
        minray.get_actor("left")
    assert minray.get(add.options(num_cpus=4).remote(1)) == 2

def test_in_another_world(minray_local):
    assert minray_local["address"].startswith("local:")

def test_three(minray_processes):
    assert not minray_processes["address"].startswith("local:")
    assert minray.get(add.remote(1)) == 2
""",
    )
    result.assert_outcomes(passed=4)
    assert not minray.is_initialized()


def test_minray_cluster_has_the_nodes_of_its_mark(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.minray_nodes(3, num_cpus=2)
def test_number(minray_cluster):
    assert [node["Resources"]["CPU"] for node in minray.nodes()] == [2, 2, 2]
    minray_cluster.add_node(resources={"gpu_memory": 4})
    assert minray.cluster_resources()["gpu_memory"] == 4

@pytest.mark.minray_init(namespace="mine")
@pytest.mark.minray_nodes([{"num_cpus": 1}, {"num_cpus": 0, "resources": {"disk": 1}}])
def test_list(minray_cluster):
    assert minray.get(add.options(resources={"disk": 1}, num_cpus=0).remote(1)) == 2
    assert minray.get_runtime_context().namespace == "mine"

def test_none(minray_cluster):
    assert len(minray.nodes()) == 1
""",
    )
    result.assert_outcomes(passed=3)


@pytest.mark.parametrize(
    ("mark", "words"),
    [
        ("minray_init(4)", "*minray_init takes keyword arguments only*4*"),
        ('minray_world("mars")', "*minray_world takes one of local, processes, simulation, ray*"),
        ('minray_leaks("loud")', "*minray_leaks takes one of error, warn, off*"),
        ("minray_nodes(0)", "*minray_nodes takes a number or a list of dicts*"),
        ("minray_init(num_cpus=2)", "*num_cpus belongs to minray_nodes*"),
    ],
)
def test_wrong_marks_are_refused(pytester: pytest.Pytester, mark: str, words: str) -> None:
    result = run(pytester, f"\n@pytest.mark.{mark}\ndef test_one(minray_cluster):\n    pass\n")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([words])


def test_a_test_runs_in_the_simulation(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.minray_init(num_cpus=1, namespace="mine")
@pytest.mark.minray_world("simulation")
def test_time(minray_local, tmp_path):
    before = time.time()
    time.sleep(300)
    assert time.time() - before > 299
    assert minray.get(add.remote(1)) == 2
    assert minray.get_runtime_context().namespace == "mine"
    assert tmp_path.is_dir()

@pytest.mark.minray_world("simulation")
@pytest.mark.minray_nodes(2, num_cpus=2)
def test_nodes(minray_cluster):
    assert len(minray.nodes()) == 2
    with pytest.raises(RuntimeError, match="minray_nodes"):
        minray_cluster.add_node()

@pytest.mark.minray_world("simulation")
async def test_coroutine(minray_local):
    assert await add.remote(1) == 2

@pytest.mark.minray_world("simulation")
def test_fails(minray_local):
    assert minray.get(add.remote(1)) == 3

@pytest.mark.minray_world("simulation")
def test_skips(minray_local):
    pytest.skip("no")

@pytest.fixture
def early(minray_local):
    return add.remote(1)

@pytest.mark.minray_world("simulation")
def test_fixture(early):
    pass
""",
    )
    result.assert_outcomes(passed=3, failed=1, skipped=1, errors=1)
    result.stdout.fnmatch_lines(["*only the test function itself runs in the cluster*", "*assert 2 == 3*"])


def test_the_world_of_a_run_holds_for_init_and_cluster_too(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
from minray.cluster_utils import Cluster

def test_init():
    with minray.init(num_cpus=1) as context:
        assert context["address"].startswith("local:")

def test_cluster():
    cluster = Cluster(initialize_head=True)
    try:
        assert cluster.address.startswith("local:")
    finally:
        cluster.shutdown()

def test_shared(minray_processes):
    assert minray_processes["address"].startswith("local:")
""",
        "--minray-world=local",
    )
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines(["minray: tests run in the world 'local'"])
    assert "MINRAY_TRANSPORT" not in os.environ


@pytest.mark.slow
def test_a_mark_beats_the_world_of_the_run(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.minray_world("processes")
def test_one(minray_local):
    import os
    assert not minray_local["address"].startswith("local:")

    @minray.remote
    def pid():
        return os.getppid()

    assert minray.get(pid.remote()) != os.getpid()
""",
        "--minray-world=local",
    )
    result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("ini", "words"),
    [
        ("minray_world = mars", "*minray_world must be one of local, processes, simulation, ray, not 'mars'*"),
        ("minray_leaks = loud", "*minray_leaks must be one of error, warn, off, not 'loud'*"),
        ("minray_timeout = soon", "*minray_timeout must be a number of seconds above 0, not 'soon'*"),
        ("minray_leaks_allow = (", "*minray_leaks_allow: '(' is no regular expression*"),
    ],
)
def test_wrong_settings_are_refused(pytester: pytest.Pytester, ini: str, words: str) -> None:
    result = run(pytester, "\ndef test_one(minray_local):\n    pass\n", ini=f"{ini}\n")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([words])


def test_minray_local_takes_arguments_as_a_parameter(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
@pytest.mark.parametrize("minray_local", [{"num_cpus": 1}, {"num_cpus": 8}], indirect=True)
def test_one(minray_local, request):
    assert minray.cluster_resources()["CPU"] == request.node.callspec.params["minray_local"]["num_cpus"]
""",
    )
    result.assert_outcomes(passed=2)


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed here")
def test_the_world_ray_needs_ray(pytester: pytest.Pytester) -> None:
    result = run_apart(pytester, "\ndef test_one(minray_local):\n    pass\n", "--minray-world=ray")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*real Ray, which is not installed here: pip install ray*"])


@pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray")
def test_the_world_ray_runs_a_test_on_ray(pytester: pytest.Pytester) -> None:
    result = run_apart(
        pytester,
        """
from minray.util.queue import Queue

def test_one(minray_local):
    assert minray.__name__ == "ray" and Queue.__module__ == "ray.util.queue"
    assert minray.get(add.remote(1)) == 2
    assert minray.cluster_resources()["CPU"] == 4

@pytest.mark.minray_world("simulation")
def test_two(minray_local):
    pass
""",
        "--minray-world=ray",
    )
    result.assert_outcomes(passed=1, skipped=1)


def test_import_ray_means_minray_if_asked_for(pytester: pytest.Pytester) -> None:
    pytester.makeconftest("import ray\n")  # pytest imports it before it configures plugins.
    result = run_apart(
        pytester,
        """
import ray
from ray.util import ActorPool

@ray.remote
def double(x):
    return 2 * x

def test_one(minray_local):
    assert ray.init is minray.init
    assert ray.get(double.remote(2)) == 4
""",
        ini="minray_as_ray = true\n",
    )
    result.assert_outcomes(passed=1)


def test_rays_names_of_fixtures_on_demand(pytester: pytest.Pytester) -> None:
    text = """
@pytest.mark.parametrize("ray_start_regular", [{"num_cpus": 3}], indirect=True)
def test_regular(ray_start_regular):
    assert minray.cluster_resources()["CPU"] == 3

def test_two_cpus(ray_start_2_cpus):
    assert minray.cluster_resources()["CPU"] == 2

def test_own(shutdown_only):
    assert minray.init(num_cpus=1)["address"].startswith("local:")

def test_cluster(ray_start_cluster):
    ray_start_cluster.add_node(num_cpus=1)
    minray.init(address=ray_start_cluster.address)
    ray_start_cluster.add_node(num_cpus=2)
    assert minray.cluster_resources()["CPU"] == 3

def test_head(ray_start_cluster_head):
    assert minray.get(add.remote(1)) == 2
"""
    run(pytester, text).assert_outcomes(errors=5)
    run(pytester, text, ini="minray_ray_fixtures = true\n").assert_outcomes(passed=5)
    assert not minray.is_initialized()


@pytest.mark.slow
def test_a_module_shares_ray_start_regular_shared(pytester: pytest.Pytester) -> None:
    result = run(
        pytester,
        """
def test_one(ray_start_regular_shared):
    Counter.options(name="mine").remote()
    assert minray.cluster_resources()["CPU"] == 1

def test_two(ray_start_regular_shared):
    with pytest.raises(ValueError):
        minray.get_actor("mine")
""",
        "--minray-world=local",
        ini="minray_ray_fixtures = true\n",
    )
    result.assert_outcomes(passed=2)


def test_other_test_runs_import_nothing_of_minray(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import sys\n\ndef test_one():\n    assert not [name for name in sys.modules if name == 'minray']\n")
    pytester.runpytest_subprocess(*PLUGIN).assert_outcomes(passed=1)


def test_the_plugin_is_an_entry_point() -> None:
    assert "pytest11 =\n    minray = _minray_pytestplugin" in (ROOT / "setup.cfg").read_text()
