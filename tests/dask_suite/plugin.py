"""Lets Dask's own tests compute on minray, counts their graphs, and marks those that cannot pass.

Dask's tests name their scheduler ("sync", "threads") or take the default of a collection: the named ones are replaced, and
the configuration comes before defaults. A test of ``EXCLUDED`` is expected to fail: if it passes, the list is wrong, and so
is the run.

``--on processes`` leaves out minray and puts Dask's own multi-process scheduler in the same place, for comparison.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any

import dask.base
import dask.multiprocessing
import pytest

import minray
from minray.util.dask import minray_dask_get
from tests.dask_suite.excluded import AT_TIMES, EXCLUDED


class Counting:
    """A scheduler that counts what it is given."""

    def __init__(self) -> None:
        self.get: Any = minray_dask_get
        self.graphs = 0
        self.persisted = 0

    def __call__(self, dsk: Any, keys: Any, **options: Any) -> Any:
        self.graphs += 1
        return self.get(dsk, keys, **options)

    @property
    def without_persist(self) -> Any:
        """Scheduler that Dask takes for one that returns values only."""
        return lambda dsk, keys, **options: self(dsk, keys, **options)

    def persist(self, collections: Any, **options: Any) -> Any:
        self.persisted += 1
        return minray_dask_get.persist(collections, **options)


scheduler = Counting()
tests = Counter[str]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--on", choices=["minray", "processes"], default="minray", help="what computes the graphs")
    parser.addoption("--graphs-at-least", type=int, default=0, help="fail if fewer graphs went through the scheduler")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--on") == "minray":
        replacement: Any = scheduler
        minray.init(num_cpus=2, log_to_driver=False)
    else:
        scheduler.get = dask.multiprocessing.get
        replacement = scheduler.without_persist
    dask.base.named_schedulers.update(dict.fromkeys(dask.base.named_schedulers, replacement))
    dask.config.set(scheduler=replacement)


def pytest_unconfigure() -> None:
    minray.shutdown()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        name = name_of(item)
        reason = EXCLUDED.get(name) or EXCLUDED.get(name.partition("[")[0])
        if reason:
            item.add_marker(pytest.mark.xfail(reason=reason, strict=name not in AT_TIMES))


def name_of(item: pytest.Item) -> str:
    """The module and the test, as EXCLUDED has them."""
    return f"{item.module.__name__.removeprefix('dask.')}::{item.name}"  # type: ignore[attr-defined]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, None, None]:
    before = scheduler.graphs + scheduler.persisted
    yield
    tests["computed" if scheduler.graphs + scheduler.persisted > before else "did not compute"] += 1


def pytest_sessionfinish(session: pytest.Session) -> None:
    if scheduler.graphs < session.config.getoption("--graphs-at-least"):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    on, least = config.getoption("--on"), config.getoption("--graphs-at-least")
    terminalreporter.write_line(
        f"{scheduler.graphs:,} graphs (at least {least:,} are required) and {scheduler.persisted:,} persisted collections"
        f" went through {on}, in {tests['computed']:,} tests; {tests['did not compute']:,} others computed nothing"
    )
