"""A test function as the driver of a simulated cluster, without faults: the world ``simulation``.

Ray: has no counterpart

Only the function itself runs in the simulation. Its fixtures are set up before, outside of it, so they cannot use the
cluster: ``refusing_outside`` gives an error that says so. All happens in virtual time, and alike in every run.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Never

import pytest

from minray.api import calls
from minray.testing.worlds import Described

LIMIT_S = 600.0
"""Virtual seconds that a test may take."""
QUIET = {"log_to_driver", "logging_level", "ignore_reinit_error"}
"""Arguments of ``init`` that change nothing in a simulation."""


class NoNodes:
    """Stands for the ``Cluster`` of a test in the simulation, whose nodes are all there when the test begins."""

    def __getattr__(self, name: str) -> Never:
        raise RuntimeError(
            f"cluster.{name}: the nodes of a simulated test are those of its mark minray_nodes; run this test in the world "
            "local or processes"
        )


def run_test(item: pytest.Function, described: Described) -> None:
    """Run a test function to its end. Raises what it raises, with a note about the run."""
    from minray.simulation.arguments import DESCRIBED
    from minray.simulation.cluster import SimCluster  # Few test runs simulate anything.

    arguments = dict(described.arguments)
    config: Mapping[str, Any] = arguments.pop("_system_config", None) or {}
    namespace: str = arguments.pop("namespace", None) or ""
    of_node = {name: value for name, value in arguments.items() if name not in QUIET}
    unknown = sorted({*of_node, *(name for node in described.nodes or () for name in node)} - DESCRIBED)
    if unknown:
        pytest.fail(f"{unknown[0]} has no meaning in the simulation; run this test in the world local", pytrace=False)
    nodes: Sequence[Mapping[str, Any]] = [{"num_cpus": 4, **of_node, **node} for node in described.nodes or [{}]]
    values = {name: item.funcargs[name] for name in item._fixtureinfo.argnames}
    program = program_of(item, item.obj, values)
    with SimCluster(nodes, system_config=config) as cluster:
        cluster.wait_for(cluster.start_driver(program, namespace=namespace), LIMIT_S)
        cluster.settle()


def program_of(item: pytest.Function, function: Callable[..., Any], arguments: Mapping[str, Any]) -> Callable[[], Any]:
    """Return a test function with its fixtures' values, as a program without arguments."""
    if type(item).__module__.startswith("pytest_asyncio"):  # It has wrapped the coroutine in an event loop of its own.
        function = inspect.unwrap(function)
    call = functools.partial(function, **arguments)
    return (lambda: asyncio.run(call())) if inspect.iscoroutinefunction(function) else call


@contextmanager
def refusing_outside() -> Iterator[None]:
    """Until the block ends, refuse to start a cluster for a call that is made outside of the simulation."""

    def refuse() -> None:
        raise RuntimeError(
            "with the world simulation only the test function itself runs in the cluster, and this call was made outside of "
            "it, by a fixture perhaps: make the call in the test, or run it in the world local"
        )

    before, calls.auto_init = calls.auto_init, refuse
    try:
        yield
    finally:
        calls.auto_init = before
