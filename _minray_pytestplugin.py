"""minray's plugin for pytest: its options, marks and fixtures. ``docs/testing.md`` describes them.

Ray: python/ray/tests/conftest.py, which is not part of the package

pytest imports this file in every run of an environment that has minray. So it lies beside the package and imports nothing
of it. ``minray/testing/plugin.py`` does the work, and is imported when a test asks for one of the fixtures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WORLDS = ("local", "processes", "simulation", "ray")
LEAKS = ("error", "warn", "off")
ACTIVE = "minray-testing"
"""Name of the plugin object that does the work."""
BEGUN = pytest.StashKey[bool]()
"""Whether the world of the run has begun."""
FIXTURES = {"minray_local", "minray_processes", "minray_cluster"}
ALIASES = {
    "ray_start_regular",
    "ray_start_regular_shared",
    "ray_start_2_cpus",
    "ray_start_cluster",
    "ray_start_cluster_head",
    "shutdown_only",
}
"""Fixtures with Ray's names, if the ini option ``minray_ray_fixtures`` asks for them."""
FAULTS = "minray_faults"
"""Marker of a test that runs under injected faults, and property of its report with the line for the summary."""
MARKS = (
    "minray_init(**arguments): arguments of minray.init for the fixtures of this test.",
    "minray_nodes(nodes, **arguments): the nodes of minray_cluster: how many, with the same arguments of Cluster.add_node "
    "for each, or a list of dicts.",
    f"minray_world(world): what the fixtures of this test start: {', '.join(WORLDS)}.",
    f'{FAULTS}(seeds=200, nodes=3, faults="swarm", budget=None, lose_driver=False, timeout=600, seconds=None): run the test '
    "in minray's simulation, once per seed, with faults that the seed draws.",
    f"minray_leaks(what): what happens if this test leaves something: {', '.join(LEAKS)}.",
)


def pytest_addoption(parser: pytest.Parser, pluginmanager: pytest.PytestPluginManager) -> None:
    # pytest rewrites the assertions of every file of a distribution with a plugin. minray's need no rewriting, which takes
    # seconds where byte code is not kept.
    getattr(pluginmanager.rewrite_hook, "_must_rewrite", set()).discard("minray")
    group = parser.getgroup("minray", "minray")
    group.addoption(
        "--minray-world", choices=WORLDS, help="What minray's fixtures, and init() in tests, start. [default: each its own]"
    )
    group.addoption(
        "--minray-leaks", choices=LEAKS, help="What happens if a test with a cluster leaves something. [default: error]"
    )
    group.addoption(
        "--minray-timeout",
        type=_seconds,
        metavar="SECONDS",
        help="Fail a test with a cluster after this time, and say what the cluster waits for.",
    )
    group.addoption("--minray-as-ray", action="store_true", help="`import ray` means minray, but not with the world ray.")
    group.addoption(
        "--minray-fault-seconds",
        type=_seconds,
        metavar="SECONDS",
        help="Begin no further seed of a test marked minray_faults after this time. [default: no limit]",
    )
    group.addoption(
        "--minray-fault-replay",
        type=Path,
        metavar="FILE",
        help="Run tests marked minray_faults with the faults of this file only.",
    )
    parser.addini("minray_faults_dir", "Directory of saved faults and pages of failing runs.", default=".minray_faults")
    parser.addini("minray_world", "As --minray-world.")
    parser.addini("minray_leaks", "As --minray-leaks.")
    parser.addini("minray_leaks_allow", "Regular expressions: leaks whose line matches one are allowed.", type="linelist")
    parser.addini("minray_timeout", "As --minray-timeout.")
    parser.addini("minray_as_ray", "As --minray-as-ray.", type="bool", default=False)
    parser.addini("minray_ray_fixtures", "Offer fixtures with the names that Ray's tests use.", type="bool", default=False)


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0 < seconds < 1e9:
        raise ValueError(text)
    return seconds


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Begin the world of the run before a conftest.py imports minray or Ray."""
    _begin(early_config, early_config.known_args_namespace)


def pytest_configure(config: pytest.Config) -> None:
    for mark in MARKS:
        config.addinivalue_line("markers", mark)
    setting(config, "leaks", LEAKS)
    limit_s(config)
    _begin(config, config.option)  # A plugin of -p hears of the conftests too late in the workers of pytest-xdist.
    if config.getini("minray_ray_fixtures"):
        from minray.testing import ray_fixtures

        config.pluginmanager.register(ray_fixtures, "minray-ray-fixtures")


def _begin(config: pytest.Config, options: Any) -> None:
    """Begin the world of the run, once. ``options``: the options of the command line, as far as they are known."""
    world = setting(config, "world", WORLDS, options)
    as_ray = options.minray_as_ray or config.getini("minray_as_ray")
    if config.stash.get(BEGUN, False) or not (world or as_ray):
        return
    config.stash[BEGUN] = True
    from minray.testing.run_world import begin

    begin(config, world, as_ray)


def setting(config: pytest.Config, name: str, choices: tuple[str, ...], options: Any = None) -> str | None:
    """Return an option of the command line, else the ini option of this name, else None. Raises UsageError."""
    given = getattr(config.option if options is None else options, f"minray_{name}")
    found: str | None = given or config.getini(f"minray_{name}") or None
    if found is not None and found not in choices:
        raise pytest.UsageError(f"minray_{name} must be one of {', '.join(choices)}, not {found!r}")
    return found


def limit_s(config: pytest.Config) -> float | None:
    """Return the seconds that a test with a cluster may take; None: any. Raises UsageError."""
    given: float | None = config.getoption("minray_timeout")
    text = str(config.getini("minray_timeout"))
    try:
        return given or (_seconds(text) if text else None)
    except ValueError:
        raise pytest.UsageError(f"minray_timeout must be a number of seconds above 0, not {text!r}") from None


def pytest_itemcollected(item: pytest.Item) -> None:
    """Start the work of minray's plugin with the first test that uses one of its fixtures, or its faults."""
    names: list[str] | None = getattr(item, "fixturenames", None)
    if item.get_closest_marker(FAULTS) is not None and not item.config.pluginmanager.has_plugin("minray-faults"):
        from minray.testing import fault_plugin

        item.config.pluginmanager.register(fault_plugin, "minray-faults")
    if names is None or FIXTURES.union(_aliases(item.config)).isdisjoint(names):
        return
    _working(item.config).prepare(item, names)


def _aliases(config: pytest.Config) -> set[str]:
    return ALIASES if config.pluginmanager.has_plugin("minray-ray-fixtures") else set()


def _working(config: pytest.Config) -> Any:
    """Return the plugin object that does the work."""
    working = config.pluginmanager.get_plugin(ACTIVE)
    if working is None:
        from minray.testing.plugin import WorkingPlugin

        chosen = setting(config, "world", WORLDS), setting(config, "leaks", LEAKS) or "error"
        working = WorkingPlugin(config, chosen, limit_s(config))
        config.pluginmanager.register(working, ACTIVE)
    return working


@pytest.fixture
def _minray_watch(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Watches what the test leaves. It is set up before all other fixtures of the test, and ends after them."""
    with _working(request.config).watching(request.node) as watch:
        yield watch


@pytest.fixture
def minray_local(request: pytest.FixtureRequest, _minray_watch: Any) -> Iterator[Any]:
    """A cluster for this test, inside its process, and connected; gives what ``init`` returns."""
    with _minray_watch.own_cluster(getattr(request, "param", None)) as cluster:
        yield cluster.context


@pytest.fixture(scope="session")
def minray_processes(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A cluster of processes for all tests, connected; gives what ``init`` returns. Each test ends what it has left."""
    with _working(request.config).shared_cluster() as cluster:
        yield cluster.context


@pytest.fixture
def minray_cluster(request: pytest.FixtureRequest, _minray_watch: Any) -> Iterator[Any]:
    """A ``Cluster`` of the nodes of the mark ``minray_nodes``, inside this process, and connected."""
    with _minray_watch.own_cluster(with_nodes=True) as cluster:
        yield cluster.cluster


def pytest_report_header(config: pytest.Config) -> str | None:
    world = setting(config, "world", WORLDS)
    return None if world is None else f"minray: tests run in the world {world!r}"


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Say how many seeds marked tests have run: with -v, or if the time was over before all were run."""
    lines = [
        value
        for reports in terminalreporter.stats.values()
        for report in reports
        if getattr(report, "when", "") == "call"
        for name, value in report.user_properties
        if name == FAULTS
    ]
    if lines:
        terminalreporter.section("minray faults")
        for line in lines:
            terminalreporter.write_line(line)
