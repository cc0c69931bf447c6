"""``minray start``, ``status`` and ``stop``: clusters that outlive the program that began them, over TCP with the token."""

from __future__ import annotations

import os
import signal
import socket
import stat
import time
from collections.abc import Generator
from pathlib import Path

import pytest
from click.testing import CliRunner

import minray
from minray.cli.main import main
from minray.common.config import SystemConfig
from minray.node import cluster_client
from minray.node.discovery import find_nodes, with_environment
from minray.platform.transport.endpoints import own_address
from tests import leaks
from tests.cluster.command_line import CommandLine, lines_with
from tests.cluster.programs import hold, where
from tests.helpers import wait_for_condition

NO_TOKEN = "0" * 64


def status() -> str:
    """Run ``minray status`` in this process and return its output."""
    done = CliRunner().invoke(main, ["status"])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture
def connected(minray_command: CommandLine) -> Generator[CommandLine, None, None]:
    """Disconnects this process at the end."""
    yield minray_command
    minray.shutdown()


# --- What works ---------------------------------------------------------------------------------------------------------


def test_a_cluster_is_started_joined_used_looked_at_and_stopped(connected: CommandLine, tmp_path: Path) -> None:
    said = connected("start", "--head", "--num-cpus=1", "--node-name=first")
    head = find_nodes()[0]
    assert f"minray start --address={head.gcs_address} --token-file=FILE" in said
    assert f"{head.session_dir}/token" in said
    assert Path(head.session_dir, "token").read_text().strip() not in said
    spilling = tmp_path / "spilled"
    description = ['--resources={"disk": 2}', "--labels=zone=b", "--node-ip-address=127.0.0.2"]
    description.append(f"--object-spilling-directory=file://{spilling}")
    other = connected.join(head, "--node-name=second", *description)
    assert other.gcs_endpoint == f"tcp:{head.gcs_address}"
    assert [path.name for path in spilling.iterdir()] == [f"minray_{Path(other.session_dir).name}_0"]

    minray.init()
    zones = {node["NodeName"]: node["Labels"].get("zone") for node in minray.nodes()}
    assert zones == {"first": None, "second": "b"}
    gate = tmp_path / "gate"
    holding = hold.options(resources={"disk": 2}).remote(str(gate))
    waiting = where.options(resources={"disk": 1}).remote()
    rare = where.options(resources={"rare": 3}).remote()

    job_id = minray.get_runtime_context().get_job_id()
    wait_for_condition(lambda: lines_with(status(), "rare: 3", "1") and lines_with(status(), "disk: 1", "1"))
    wait_for_condition(lambda: lines_with(status(), "leased", "second", job_id))
    assert f"Cluster {head.gcs_address}; nodes alive: 2, dead: 0" in status()
    seen = status()
    assert lines_with(seen, head.node_id[:8], "first", "alive", "0 of 1", "head")
    assert lines_with(seen, other.node_id[:8], "second", "127.0.0.2", "alive", "1 of 1")
    assert lines_with(seen, "disk", "2", "2")
    gate.touch()
    assert minray.get([holding, waiting]) == [None, other.node_id]
    del rare
    minray.shutdown()

    assert connected("stop") == "Stopped 2 nodes.\n"
    connected.wait_until_nothing_is_left()
    assert not any(spilling.iterdir())
    assert connected("stop") == "No node was running.\n"


def test_a_node_that_leaves_says_so_and_status_shows_it(minray_command: CommandLine) -> None:
    head = minray_command.start_head()
    other = minray_command.join(head)
    cluster_client.end_gracefully(other, bytes.fromhex(Path(other.session_dir, "token").read_text()), "enough")
    assert lines_with(status(), other.node_id[:8], "dead", "asked to shut down: enough")
    wait_for_condition(lambda: [file.node_id for file in find_nodes()] == [head.node_id])


def test_a_cluster_is_stopped_by_force(minray_command: CommandLine) -> None:
    minray_command.join(minray_command.start_head())
    assert minray_command("stop", "--force") == "Stopped 2 nodes.\n"
    minray_command.wait_until_nothing_is_left()


def test_stop_leaves_the_clusters_of_programs_alone(connected: CommandLine) -> None:
    minray.init("local", num_cpus=1)
    assert connected("stop") == "No node was running.\n"
    assert minray.get(where.remote(), timeout=10) == minray.nodes()[0]["NodeID"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_blocking_start_ends_its_node_when_it_is_asked_to(minray_command: CommandLine, number: signal.Signals) -> None:
    with minray_command.popen("start", "--head", "--num-cpus=1", "--block") as process:
        assert process.stdout is not None
        wait_for_condition(lambda: "To look at it" in process.stdout.readline())
        process.send_signal(number)
        assert process.wait(10) == 0
    minray_command.wait_until_nothing_is_left()


def test_a_blocking_start_ends_with_its_node(minray_command: CommandLine) -> None:
    with minray_command.popen("start", "--head", "--num-cpus=1", "--block", "--storage=") as process:
        wait_for_condition(find_nodes)
        os.kill(minray_command.pids(find_nodes()[0])["gcs"], signal.SIGKILL)
        out, err = process.communicate(timeout=10)
    assert process.returncode == 1
    assert "The node has ended" in err
    minray_command.wait_until_nothing_is_left()


def test_the_token_comes_from_a_file_or_the_environment(
    minray_command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    token = "ab" * 32
    (tmp_path / "token").write_text(token)
    monkeypatch.setenv("RAY_TOKEN", token)
    head = minray_command.start_head()
    assert Path(head.session_dir, "token").read_text().strip() == token
    assert stat.S_IMODE(Path(head.session_dir, "token").stat().st_mode) == 0o600
    monkeypatch.delenv("RAY_TOKEN")

    # As on another machine: nothing is known of the head.
    elsewhere = minray_command.root / "e"
    monkeypatch.setenv("MINRAY_TMPDIR", str(elsewhere))
    refused = minray_command.run("start", f"--address={head.gcs_address}")
    assert refused.returncode == 1 and "is not known here" in refused.stderr
    minray_command("start", f"--address={head.gcs_address}", f"--token-file={tmp_path}/token", "--num-cpus=1")
    assert "nodes alive: 2" in minray_command("status", f"--address={head.gcs_address}")
    monkeypatch.setenv("MINRAY_TOKEN", token)
    monkeypatch.setenv("RAY_ADDRESS", head.gcs_address)
    assert "nodes alive: 2" in minray_command("status")
    minray.init()
    assert len(minray.nodes()) == 2
    minray.shutdown()
    minray_command("stop")


def test_no_process_of_a_node_has_its_token_in_the_environment(
    connected: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = "ab" * 32
    monkeypatch.setenv("MINRAY_TOKEN", token)
    monkeypatch.setenv("RAY_TOKEN", token)
    head = connected.start_head()
    minray.init()
    assert token not in minray.get(minray.remote(lambda: dict(os.environ)).remote()).values()
    environments = [process.environ() for process in leaks.processes(Path(head.session_dir)) if process.pid != os.getpid()]
    assert len(environments) >= 4 and not any(token in environment.values() for environment in environments)


@pytest.mark.parametrize("is_open", [True, False])
def test_start_warns_a_user_who_opens_a_node_to_a_network(minray_command: CommandLine, is_open: bool) -> None:
    address = own_address("192.0.2.1") if is_open else "127.0.0.1"
    head_says = minray_command("start", "--head", "--num-cpus=0", f"--node-ip-address={address}")
    head = find_nodes()[0]
    node_says = minray_command(
        "start", f"--address={head.gcs_address}", f"--node-ip-address={address}", f"--token-file={head.session_dir}/token"
    )
    for said in (head_says, node_says):
        assert ("not encrypted and not protected against changes" in said) == is_open
    assert ("listens on loopback only" in head_says) != is_open


def test_settings_of_the_environment_become_the_clusters(connected: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_get_warning_s", "3.5")
    head = connected.start_head('--system-config={"task_retry_delay_ms": 7}')
    monkeypatch.delenv("RAY_get_warning_s")
    other = connected.join(head)
    for file in (head, other):
        assert (file.system_config.get_warning_s, file.system_config.task_retry_delay_ms) == (3.5, 7)


def test_switches_that_rays_messages_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_DEDUP_LOGS", "0")
    monkeypatch.setenv("RAY_IGNORE_UNHANDLED_ERRORS", "1")
    config = SystemConfig.from_overrides(with_environment(None))
    assert (config.log_deduplication_window_s, config.report_unseen_errors) == (0, False)
    assert with_environment({"report_unseen_errors": True})["report_unseen_errors"]


def test_the_version_is_shown() -> None:
    assert minray.__version__ in CliRunner().invoke(main, ["--version"]).output


# --- What goes wrong: within seconds, in one line, and without leaving anything behind ------------------------------------


def fails(minray_command: CommandLine, *arguments: str) -> str:
    """Run it in this process; returns what it complained about."""
    began = time.monotonic()
    done = CliRunner().invoke(main, arguments)
    assert done.exit_code in (1, 2), done.output
    assert time.monotonic() - began < 8
    assert minray_command.left() == []
    return done.output


def test_a_port_in_use(minray_command: CommandLine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert f"127.0.0.1:{port}: Address already in use" in fails(minray_command, "start", "--head", f"--port={port}")


def test_a_second_head_at_the_same_port(minray_command: CommandLine) -> None:
    head = minray_command.start_head()
    port = head.gcs_address.rpartition(":")[2]
    refused = minray_command.run("start", "--head", f"--port={port}")
    assert refused.returncode == 1
    assert f"Error: a cluster of yours runs at {head.gcs_address} already (session {head.session_dir})" in refused.stderr
    assert f"`minray stop --address={head.gcs_address}` ends it" in refused.stderr
    assert "nodes alive: 1" in status() and "Other clusters" not in status()


def test_a_second_cluster_says_which_one_programs_take_and_either_can_be_stopped(
    connected: CommandLine, caplog: pytest.LogCaptureFixture
) -> None:
    first = connected.start_head()
    said = connected("start", "--head", "--num-cpus=1")
    second = find_nodes()[-1]
    assert f"Other clusters run on this machine: {first.gcs_address}." in said
    assert f"take that of the newest node, {second.gcs_address}" in said
    assert f"minray stop --address={second.gcs_address}" in said
    assert lines_with(status(), "Other clusters run on this machine", first.gcs_address)
    with caplog.at_level("INFO", "minray"), minray.init():
        assert minray.get_runtime_context().gcs_address == second.gcs_endpoint
    assert f"joins that of the newest node, {second.gcs_address}" in caplog.text
    chosen = CliRunner().invoke(main, ["status", f"--address={first.gcs_address}"]).output
    assert f"Cluster {first.gcs_address}" in chosen and lines_with(chosen, "Other clusters", second.gcs_address)
    joined = connected.join(first)
    assert connected("stop", f"--address={first.gcs_address}") == "Stopped 2 nodes.\n"
    assert [file.node_id for file in find_nodes()] == [second.node_id] and joined.node_id not in status()
    assert [path.name for path in connected.root.glob("head_*")] == [f"head_{second.gcs_address.replace(':', '_')}"]
    refused = connected.run("stop", f"--address={first.gcs_address}")
    assert refused.returncode == 1 and f"running here: {second.gcs_address}" in refused.stderr
    assert connected("stop") == "Stopped 1 node.\n"


def test_stop_forgets_the_head_at_an_address_that_was_killed(minray_command: CommandLine) -> None:
    head = minray_command.start_head()
    os.kill(head.zygote_pid, signal.SIGKILL)
    wait_for_condition(lambda: not find_nodes())
    assert minray_command("stop", f"--address={head.gcs_address}") == "No node was running.\n"
    assert not list(minray_command.root.glob("head_*"))


def test_an_address_that_is_not_of_this_machine(minray_command: CommandLine) -> None:
    assert "192.0.2.1" in fails(minray_command, "start", "--head", "--node-ip-address=192.0.2.1")


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["start"], "give either --head or --address"),
        (["start", "--head", "--address=h:1"], "give either --head or --address"),
        (["start", "--address=h:1", "--storage=x"], "are for the head"),
        (["start", "--address=nonsense"], "'nonsense' is not an address"),
        (["start", "--head", "--node-ip-address=0.0.0.0"], "is not one address"),
        (["start", "--head", "--resources=[1]"], "is not a JSON object"),
        (["start", "--head", "--resources={"], "is not JSON"),
        (["start", "--head", "--labels=zone"], "'zone' is not a label such as zone=a"),
        (["start", "--head", '--resources={"CPU": 1}'], "has an argument of its own"),
        (["start", "--head", '--resources={"a": "b"}'], "must be a number"),
        (["start", "--head", "--num-gpus=1.5"], "must be a whole number"),
        (["start", "--head", '--system-config={"no_such": 1}'], "has no entry 'no_such'"),
        (["status"], "no running cluster was found on this machine"),
        (["status", "--address=127.0.0.1:1"], "is not known here"),
        (["status", "--address=nonsense"], "'nonsense' is not an address"),
    ],
)
def test_arguments_that_make_no_sense(minray_command: CommandLine, arguments: list[str], complaint: str) -> None:
    assert complaint in fails(minray_command, *arguments)


@pytest.mark.parametrize("command", ["start", "status"])
def test_nobody_at_the_address(minray_command: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    monkeypatch.setenv("MINRAY_TOKEN", NO_TOKEN)
    said = fails(minray_command, command, "--address=127.0.0.1:1")
    assert "the cluster at 127.0.0.1:1 cannot be reached" in said
    assert "Connection refused" in said


def test_a_host_that_does_not_exist(minray_command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRAY_TOKEN", NO_TOKEN)
    monkeypatch.setattr(cluster_client, "TIMEOUT_S", 2.0)  # a busy resolver takes its time
    assert "the cluster at no.such.invalid:1 c" in fails(minray_command, "start", "--address=no.such.invalid:1")


def test_a_listener_that_is_silent(minray_command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRAY_TOKEN", NO_TOKEN)
    monkeypatch.setattr(cluster_client, "TIMEOUT_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        assert f"the cluster at {address} does not answer" in fails(minray_command, "start", f"--address={address}")


def test_a_listener_that_is_no_minray(minray_command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRAY_TOKEN", NO_TOKEN)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        with minray_command.popen("start", f"--address={address}") as process:
            connection, _ = server.accept()
            with connection:
                connection.sendall(b"SSH-2.0-OpenSSH_9.2\r\n")
                out, err = process.communicate(timeout=10)
    assert process.returncode == 1
    assert ("does not answer" if os.environ.get("MINRAY_TRANSPORT") == "grpc" else "not a minray peer") in err
    assert minray_command.left() == []


@pytest.mark.parametrize("command", ["start", "status"])
def test_a_wrong_token(minray_command: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str) -> None:
    head = minray_command.start_head()
    monkeypatch.setenv("MINRAY_TMPDIR", str(minray_command.root / "e"))
    monkeypatch.setenv("MINRAY_TOKEN", NO_TOKEN)
    began = time.monotonic()
    refused = minray_command.run(command, f"--address={head.gcs_address}")
    assert refused.returncode == 1
    assert "does not know its cluster token" in refused.stderr
    assert time.monotonic() - began < 8


@pytest.mark.parametrize(
    ("content", "complaint"),
    [(None, "No such file"), (b"\xff\xfe", "is not a cluster token"), (b"abc", "is not a cluster token")],
)
def test_an_unreadable_token(minray_command: CommandLine, tmp_path: Path, content: bytes | None, complaint: str) -> None:
    path = tmp_path / "token"
    if content is not None:
        path.write_bytes(content)
    for where_to in ("--head", "--address=127.0.0.1:1"):
        assert complaint in fails(minray_command, "start", where_to, f"--token-file={path}")


def test_a_token_file_holds_for_a_cluster_of_this_machine_too(minray_command: CommandLine, tmp_path: Path) -> None:
    head = minray_command.start_head()
    token = tmp_path / "token"
    token.write_text(NO_TOKEN)
    for where_to in ((), (f"--address={head.gcs_address}",)):
        refused = minray_command.run("status", *where_to, f"--token-file={token}")
        assert (refused.returncode, "does not know its cluster token" in refused.stderr) == (1, True), refused.stderr


def test_a_directory_too_long_for_sockets(minray_command: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MINRAY_TMPDIR", str(minray_command.root / ("x" * 80)))
    assert "is too long for unix sockets" in fails(minray_command, "start", "--head")


def test_a_directory_that_others_may_write(
    minray_command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared").chmod(0o1777)
    monkeypatch.setenv("MINRAY_TMPDIR", str(tmp_path / "shared"))
    assert "others may write to" in fails(minray_command, "start", "--head")
    assert stat.S_IMODE((tmp_path / "shared").stat().st_mode) == 0o1777


def test_a_storage_that_is_none(minray_command: CommandLine, tmp_path: Path) -> None:
    (tmp_path / "letter").write_text("Dear reader, " * 100)
    refused = minray_command.run("start", "--head", f"--storage={tmp_path}/letter")
    assert refused.returncode == 1
    assert "the gcs could not be started" in refused.stderr and "letter" in refused.stderr
    assert minray_command.left() == []


# --- Drivers that want to join --------------------------------------------------------------------------------------------


def test_a_driver_joins_by_any_name_of_the_cluster(connected: CommandLine) -> None:
    head = connected.start_head()
    port = head.gcs_address.rpartition(":")[2]
    for name in ("auto", head.gcs_address, f"localhost:{port}", head.gcs_endpoint, head.session_dir, None):
        with minray.init(name) as context:
            assert context["node_id"] == head.node_id
    with pytest.raises(ValueError, match=r"num_cpus, _node_name: only for a node that init\(\) starts, but it joins"):
        minray.init(num_cpus=2, _node_name="mine")
    with pytest.raises(ValueError, match="^_system_config: only for"):
        minray.init("auto", _system_config={"get_warning_s": 1.0})


def test_a_driver_that_finds_no_cluster(minray_command: CommandLine) -> None:
    with pytest.raises(ConnectionError, match="no running cluster was found"):
        minray.init("auto")
    with pytest.raises(ConnectionError, match=r"minray start --address=127.0.0.1:1$"):
        minray.init("127.0.0.1:1")
    with pytest.raises(RuntimeError, match="set .MINRAY_TOKEN to the content of the token file"):
        minray.init("ray://127.0.0.1:1")


def test_a_driver_never_joins_a_foreign_cluster(connected: CommandLine, monkeypatch: pytest.MonkeyPatch) -> None:
    head = connected.start_head()
    monkeypatch.setenv("MINRAY_TMPDIR", str(connected.root / "e"))
    for name in ("auto", head.gcs_address, head.session_dir):
        with pytest.raises(ConnectionError):
            minray.init(name)
    monkeypatch.setenv("MINRAY_TMPDIR", str(connected.root))
    Path(head.session_dir, "token").write_text(NO_TOKEN)
    began = time.monotonic()
    with pytest.raises(ConnectionError, match="does not know its cluster token"):
        minray.init("auto")
    assert time.monotonic() - began < 3
    assert not minray.is_initialized()
    Path(head.session_dir, "token").unlink()
    with pytest.raises(ConnectionError, match=r"cannot read the cluster's token .*No such file"):
        minray.init("auto")
