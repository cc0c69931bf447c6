"""A cluster of one node for a whole module of tests, which must be at rest after each of them."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

import minray
from tests.helpers import wait_for_condition
from tests.real import not_client
from tests.real.not_local import reason_for
from tests.real.support import ON_RAY, Files, left_in_driver

CPUS = 2
AS_CLIENT = os.environ.get("MINRAY_TEST_AS") == "client"
"""Whether the tests of this folder run in a remote client (``make test-client``)."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    own = [item for item in items if item.path.parent == Path(__file__).parent]
    if os.environ.get("MINRAY_TRANSPORT") == "local":
        for item in own:
            if reason := reason_for(item.nodeid):
                item.add_marker(pytest.mark.skip(reason=reason))
    if AS_CLIENT:
        for item in own:
            if reason := not_client.reason_for(item.nodeid, getattr(item, "fixturenames", ())):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="module")
def arena() -> str:
    """Return the kind of the node's memory, empty for the default. A module with parameters of its own replaces this."""
    return ""


@pytest.fixture(scope="module")
def node(request: pytest.FixtureRequest, arena: str) -> Iterator[Any]:
    """Start minray and return the context of ``init``. A module may have ``INIT``, arguments of its own."""
    arguments = {"num_cpus": CPUS, **getattr(request.module, "INIT", {})}
    if arena:
        arguments["_system_config"] = {**arguments.get("_system_config", {}), "arena": arena}
    if ON_RAY:
        arguments |= {"include_dashboard": False, "_system_config": None}
    with ExitStack() as head:
        if AS_CLIENT:
            context = _init_as_client(head, arguments)
        else:
            context = minray.init(**arguments)
        try:
            yield context
            if not request.session.testsfailed and not ON_RAY:
                wait_for_condition(all_resources_are_free, message="all resources are free at the end of the module")
        finally:
            minray.shutdown()


def _init_as_client(head: ExitStack, arguments: dict[str, Any]) -> Any:
    """Start a head, and connect to it as a remote client; ``head`` ends it."""
    from tests.remote_client.head import address_of, client_head

    of_the_program = {name: arguments.pop(name) for name in ("namespace", "runtime_env") if name in arguments}
    system_config = arguments.pop("_system_config", None)
    options = {name.removeprefix("_"): value for name, value in arguments.items()}
    node = head.enter_context(client_head(system_config, **options))
    return minray.init(address_of(node.file), **of_the_program)


@pytest.fixture
def files(tmp_path: Path) -> Iterator[Files]:
    """Signals and journals; what still waits when the test ends is let go."""
    made = Files(tmp_path)
    yield made
    made.set_all()


@pytest.fixture
def cluster(node: Any, files: Files) -> Iterator[Any]:
    """The module's cluster; after the test this driver must own, hold and await nothing that it did not before."""
    before = set(left_in_driver())
    yield node
    files.set_all()
    gc.collect()
    with suppress(AssertionError):
        wait_for_condition(lambda: before.issuperset(left_in_driver()), timeout_s=30)
    if left := set(left_in_driver()) - before:
        pytest.fail("left in the driver:\n" + "\n".join(sorted(left)), pytrace=False)


def all_resources_are_free() -> bool:
    available, total = minray.available_resources(), minray.cluster_resources()
    return all(available.get(name) == amount for name, amount in total.items())
