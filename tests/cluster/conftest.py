"""Fixtures that end with their test: connected clusters, and a command line with its own directory of sessions."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Generator
from pathlib import Path

import pytest

from minray.cluster_utils import Cluster
from minray.platform.process.session import live_sessions
from tests.cluster.command_line import CommandLine
from tests.cluster.not_local import reason_for
from tests.helpers import wait_for_condition


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if os.environ.get("MINRAY_TRANSPORT") == "local":
        for item in items:
            if item.path.parent == Path(__file__).parent and (reason := reason_for(item.nodeid)):
                item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(params=["", "127.0.0.1"], ids=["unix", "tcp"])
def cluster(request: pytest.FixtureRequest) -> Generator[Cluster, None, None]:
    """A head with one CPU, connected to; over unix sockets and over TCP."""
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1, "tcp_host": request.param})
    try:
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def head() -> Generator[Cluster, None, None]:
    """Start a connected cluster with one node, over unix sockets only."""
    cluster = Cluster(initialize_head=True, connect=True, head_node_args={"num_cpus": 1})
    try:
        yield cluster
    finally:
        cluster.shutdown()


@pytest.fixture
def minray_command(monkeypatch: pytest.MonkeyPatch) -> Generator[CommandLine, None, None]:
    root = Path(os.environ["MINRAY_TMPDIR"], "c")
    root.mkdir(parents=True, mode=0o700, exist_ok=True)
    monkeypatch.setenv("MINRAY_TMPDIR", str(root))
    for name in ("MINRAY_ADDRESS", "RAY_ADDRESS", "MINRAY_TOKEN", "RAY_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    command = CommandLine(root)
    try:
        yield command
    finally:
        for zygote_pid in live_sessions(str(root)).values():
            os.kill(zygote_pid, signal.SIGTERM)
        wait_for_condition(lambda: not live_sessions(str(root)))
        for head in root.glob("head_*"):
            shutil.rmtree(head)
        command.wait_until_nothing_is_left()
