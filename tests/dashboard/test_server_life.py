"""The life of a dashboard: with a head, in the foreground, killed, restarted, and nothing of it when nobody asks."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

import minray
from minray.dashboard import process
from minray.in_rays_place.names._private.worker import get_dashboard_url
from minray.node.node import NodeOptions, start_node
from tests.cluster.command_line import CommandLine
from tests.cluster.conftest import minray_command  # noqa: F401  (a fixture)
from tests.dashboard.site import Site, own_node
from tests.helpers import wait_for_condition

pytestmark = pytest.mark.slow


def site_at(text: str) -> Site:
    """Read the address with its token off a text."""
    found = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=([0-9a-f]{64})", text)
    assert found is not None, text
    return Site(int(found[1]), found[2])


def pid_of_dashboard() -> int | None:
    """Find the living dashboard of this process's cluster."""
    for child in psutil.Process(own_node().zygote_pid).children():
        try:
            if Path(f"/proc/{child.pid}/comm").read_text().strip() == "minray:dashboard"[:15]:
                return child.pid
        except OSError:
            continue
    return None


@pytest.fixture
def disconnected() -> Generator[None, None, None]:
    yield
    minray.shutdown()


def test_a_programs_dashboard_ends_with_it_and_survives_its_own_death(
    disconnected: None, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "minray"):
        context = minray.init(num_cpus=1, include_dashboard=True, dashboard_port=0)
    site = site_at(caplog.text)
    assert context.dashboard_url == get_dashboard_url() == f"127.0.0.1:{site.port}"
    assert site.get("/api/cluster").json["nodes_alive"] == 1
    pid = pid_of_dashboard()
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    wait_for_condition(lambda: pid_of_dashboard() not in (None, pid))
    wait_for_condition(lambda: context.dashboard_url != f"127.0.0.1:{site.port}")
    again = Site(int(context.dashboard_url.rpartition(":")[2]), site.token)
    assert again.get("/api/cluster").json["is_connected"]
    pid = pid_of_dashboard()
    minray.shutdown()
    assert context.dashboard_url == ""
    wait_for_condition(lambda: pid is not None and not psutil.pid_exists(pid))


def test_nothing_of_it_is_there_unless_asked_for() -> None:
    program = (
        "import sys, minray, minray.cli.main; minray.init(num_cpus=1, log_to_driver=False)\n"
        "found = minray.get(minray.remote(lambda: sorted(sys.modules)).remote()) + sorted(sys.modules)\n"
        "assert minray.init(ignore_reinit_error=True).dashboard_url == ''\n"
        "print([name for name in found if name.partition('.')[0] == 'aiohttp' or name == 'minray.dashboard.server'])\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout.strip() == "[]", done.stderr


def test_without_its_packages_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "find_spec", lambda name: None)
    with pytest.raises(RuntimeError, match=r"pip install 'minray\[dashboard\]'"):
        minray.init(include_dashboard=True)


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"dashboard_port": 70_000}, ValueError, "dashboard_port must be from 0 to 65535"),
        ({"dashboard_port": "8265"}, TypeError, "dashboard_port must be an int"),
        ({"dashboard_host": 5}, TypeError, "dashboard_host must be a str"),
        ({"dashboard_host": "203.0.113.1"}, RuntimeError, "cannot listen at 203.0.113.1"),
        ({"local_mode": True}, ValueError, "which local_mode does not have"),
    ],
)
def test_wrong_arguments_start_nothing(arguments: dict[str, object], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        minray.init(include_dashboard=True, **arguments)  # type: ignore[arg-type]
    assert not minray.is_initialized()


def test_a_head_with_a_dashboard_says_where_and_takes_it_along(minray_command: CommandLine) -> None:  # noqa: F811
    said = minray_command("start", "--head", "--num-cpus=1", "--include-dashboard", "--dashboard-port=0")
    site = site_at(said)
    assert site.get("/api/nodes").json["total"] == 1 and site.visit("/").status == 401
    taken = minray_command.run("dashboard", f"--port={site.port}")
    assert taken.returncode == 1 and f"cannot listen at 127.0.0.1:{site.port}" in taken.stderr
    minray_command("stop")
    minray_command.wait_until_nothing_is_left()


def test_a_head_that_is_started_again_without_a_dashboard_has_none(disconnected: None, tmp_path: Path) -> None:
    def url_of(has_one: bool) -> str:
        options = NodeOptions(num_cpus=1, storage=str(tmp_path / "tables"), include_dashboard=has_one, dashboard_port=0)
        node = start_node(options)
        try:
            context = minray.init(node.file.session_dir, log_to_driver=False)
            wait_for_condition(lambda: bool(context.dashboard_url) == has_one)
            return str(context.dashboard_url)
        finally:
            minray.shutdown()
            node.close()

    assert url_of(True) and not url_of(False)


def test_a_dashboard_in_the_foreground_finds_a_head_that_was_started_again(
    minray_command: CommandLine,  # noqa: F811
) -> None:
    head = minray_command.start_head()
    with minray_command.popen("dashboard", "--port=0") as dashboard:
        assert dashboard.stdout is not None
        said = "".join(dashboard.stdout.readline() for _ in range(3))
        site = site_at(said)
        try:
            assert site.get("/api/cluster").json["is_connected"]
            with site.stream("/api/events?tables=nodes") as stream:
                os.kill(head.zygote_pid, signal.SIGKILL)
                wait_for_condition(lambda: not site.get("/api/cluster").json["is_connected"], timeout_s=20)
                assert (
                    site.get("/api/nodes").status == 503 and "cannot be reached" in site.get("/api/cluster").json["trouble"]
                )
                port = head.gcs_address.rpartition(":")[2]
                minray_command("start", "--head", "--num-cpus=1", f"--port={port}")
                wait_for_condition(lambda: site.get("/api/cluster").json["is_connected"], timeout_s=20)
                assert stream.status == 200, "the page's own stream has survived"
        finally:
            dashboard.send_signal(signal.SIGINT)
        assert dashboard.wait(20) == 0
    minray_command("stop")
