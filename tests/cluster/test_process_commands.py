"""``minray timeline``, ``stack``, ``metrics``: what processes do, have done and have measured, seen from outside of them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

import minray
from minray.cli.main import main
from minray.node.discovery import find_nodes
from minray.util.metrics import Gauge, metrics_text
from tests.cluster.command_line import CommandLine, lines_with
from tests.helpers import wait_for_condition
from tests.util.exposition import parse


def told(*arguments: str) -> str:
    """Run a command in this process and return its output."""
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code == 0, done.output
    return done.output


def complaint(*arguments: str) -> str:
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code in (1, 2)
    return done.output


@minray.remote
def work() -> int:
    return sum(range(10_000))


@pytest.fixture
def connected(minray_command: CommandLine) -> Generator[CommandLine, None, None]:
    """A cluster, and this process its driver."""
    minray_command.start_head("--node-name=first")
    minray.init()
    yield minray_command
    minray.shutdown()
    minray_command("stop")


def test_a_timeline_is_written_where_one_says_or_where_temporary_files_are(
    connected: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minray.get([work.remote() for _ in range(5)])
    path = tmp_path / "trace.json"
    said = told("timeline", "-o", str(path))
    assert said.startswith(f"5 tasks and calls of 1 workers are written to {path}\n") and "ui.perfetto.dev" in said
    events = [event for event in json.loads(path.read_text()) if event["ph"] == "X"]
    assert [event["name"] for event in events] == ["work"] * 5 and all(event["dur"] > 0 for event in events)
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))
    assert "minray-timeline-" in told("timeline")
    (written,) = tmp_path.glob("minray-timeline-*-*-*_*-*-*.json")
    assert len(json.loads(written.read_text())) == len(json.loads(path.read_text()))
    assert "No such file or directory" in complaint("timeline", "-o", str(tmp_path / "nowhere" / "trace.json"))


@minray.remote
def wait_for(gate: str, started: str) -> int:
    Path(started).touch()
    wait_for_condition(Path(gate).exists, timeout_s=60)
    return os.getpid()


@contextmanager
def stopped(pid: int) -> Generator[None, None, None]:
    """A process that does not answer."""
    os.kill(pid, signal.SIGSTOP)
    try:  # it may answer until it has noticed
        wait_for_condition(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED)
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def test_what_everybody_does_is_shown_and_who_does_not_answer_is_named(connected: CommandLine, tmp_path: Path) -> None:
    waiting = wait_for.remote(str(tmp_path / "gate"), str(tmp_path / "started"))
    wait_for_condition((tmp_path / "started").exists)
    seen = told("stack")
    (head,) = [line for line in lines_with(seen, ": wait_for") if line.startswith("Worker ")]
    pid = int(head.split("pid ")[1].partition(",")[0])
    assert lines_with(seen, "Driver", f"pid {os.getpid()}", "node first") and "Thread MainThread" in seen
    assert lines_with(seen, f'File "{__file__}"', "in wait_for")
    with stopped(pid):
        seen = told("stack", "--timeout=0.5")
        late = told("timeline", "--timeout=0.5", "-o", str(tmp_path / "trace.json"))
    assert lines_with(seen, f"process {pid} of node", "does not answer.") and head not in seen
    assert lines_with(late, f"process {pid} of node", "does not answer.") and (tmp_path / "trace.json").exists()
    (tmp_path / "gate").touch()
    assert minray.get(waiting) == pid


@minray.remote
def measure(value: float) -> int:
    Gauge("height", "How high it is.").set(value)
    return os.getpid()


def test_metrics_are_printed_as_prometheus_reads_them(connected: CommandLine) -> None:
    pid = minray.get(measure.remote(2.5))
    found = parse(told("metrics"))
    family = found["ray_height"]
    assert (family.kind, family.help, list(family.samples.values())) == ("gauge", "How high it is.", [2.5])
    assert list(parse(metrics_text())) == ["ray_height"]
    assert found.keys() == parse(connected("metrics")).keys()
    assert found["ray_tasks"].value("ray_tasks", State="FINISHED", Name="measure") == 1
    rows = found["ray_component_rss_bytes"].samples
    assert {dict(labels)["Component"] for _, labels in rows} == {"raylet", "gcs", "driver", "ray::IDLE"}
    assert all(value > 0 for value in rows.values()) and 0 <= found["ray_node_cpu_utilization"].value(
        "ray_node_cpu_utilization", RayNodeType="head"
    ) <= 100
    with stopped(pid):
        assert lines_with(told("metrics", "--timeout=0.5"), f"process {pid} of node", "does not answer.")


@contextmanager
def serving(command: CommandLine, *arguments: str) -> Generator[tuple[str, subprocess.Popen[str]], None, None]:
    """``minray metrics --serve 0``, with the address where it serves."""
    process = command.popen("metrics", "--serve=0", *arguments)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().split()[3].rstrip(","), process
    finally:
        process.terminate()
        process.communicate(timeout=30)


def page(url: str, token: str) -> str:
    request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
        return str(answer.read().decode())


def queried() -> set[str]:
    """Names of all metrics that the dashboard for Grafana asks for."""
    dashboard = (Path(__file__).parent.parent.parent / "deploy/grafana/minray.json").read_text()
    return set(re.findall(r"\b(?:ray|minray)_[a-z0-9_]+\b", dashboard))


def test_metrics_are_served_with_the_token_and_are_those_that_are_printed(connected: CommandLine) -> None:
    minray.get(measure.remote(2.5))
    token = (Path(next(file for file in find_nodes()).session_dir) / "token").read_text().strip()
    with serving(connected) as (url, process):
        assert url.startswith("http://127.0.0.1:") and url.endswith("/metrics")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            page(url, token[::-1])
        served = page(url, token)
        names = {family.name for family in text_string_to_metric_families(served)}
        printed = {family.name for family in text_string_to_metric_families(connected("metrics"))}
        assert names == printed
        known = {sample.name for family in text_string_to_metric_families(served) for sample in family.samples}
        assert re.search(r'ray_grpc_server_req_finished_total{.*Component="gcs_server".*Method="RegisterJob"', served)
        assert re.search(r'ray_grpc_server_req_finished_total{.*Component="raylet".*Method="RequestWorkerLease"', served)
        of_gpus = {name for name in queried() if name.startswith(("ray_node_gpu", "ray_node_gram"))}
        seldom = of_gpus | {"ray_memory_manager_worker_eviction_total", "ray_node_manager_unexpected_worker_failure_total"}
        assert queried() - known <= seldom | {"ray_actors"}, "what a panel asks for exists"
        assert 'ray_height{' in served
    assert process.returncode == 0, "SIGTERM ends it in order"


def test_a_server_of_metrics_says_when_the_cluster_is_gone(minray_command: CommandLine) -> None:
    file = minray_command.start_head()
    token = (Path(file.session_dir) / "token").read_text().strip()
    with serving(minray_command) as (url, _):
        page(url, token)
        minray_command("stop")
        with pytest.raises(urllib.error.HTTPError, match="503") as gone:
            page(url, token)
        assert b"the cluster does not answer" in gone.value.read()


def test_without_its_library_serving_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    assert "pip install 'minray[dashboard]'" in complaint("metrics", "--serve=0")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["stack"], "no running cluster was found on this machine"),
        (["metrics"], "no running cluster was found on this machine"),
        (["stack", "--timeout=0"], "0.0 is not in the range"),
        (["stack", "--address=nonsense"], "nonsense"),
        (["timeline", "--token-file=nowhere", "--address=127.0.0.1:9"], "nowhere"),
    ],
)
def test_arguments_that_make_no_sense(minray_command: CommandLine, arguments: list[str], words: str) -> None:
    assert words in complaint(*arguments)


def test_without_a_cluster_nothing_is_written(minray_command: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    assert "no running cluster was found on this machine" in complaint("timeline", "-o", str(path))
    assert not path.exists()
