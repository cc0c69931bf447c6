"""Clusters whose nodes speak TLS: as they are started on the command line, and with certificates made as the page says."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy
import psutil
import pytest
from click.testing import CliRunner

import minray
from minray.cli.main import main
from minray.cli.tls import given_tls, take_web_files, tls_options
from minray.cluster_utils import Cluster
from minray.node.discovery import NodeFile, find_nodes, make_token, read_node_file, with_environment, write_token
from minray.platform.transport.handshake import Hello, encode
from minray.platform.transport.tls import TlsFiles, check
from minray.platform.transport.web_tls import WebFiles
from tests import leaks
from tests.cluster.command_line import CommandLine
from tests.helpers import wait_for_condition
from tests.platform.certificates import Authority, node_files

SECURITY_PAGE = Path(__file__).parents[2] / "docs" / "security.md"


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    """The files that docs/security.md makes, by its own commands."""
    directory = tmp_path_factory.mktemp("recipe")
    (commands,) = re.findall(r"```sh\n(.*?)```", SECURITY_PAGE.read_text(), re.DOTALL)
    subprocess.run(["sh", "-e", "-c", commands], cwd=directory, check=True, capture_output=True)
    return TlsFiles(str(directory / "node-1.crt"), str(directory / "node-1.key"), str(directory / "ca.crt"))


def test_the_recipe_of_the_page_makes_files_that_can_be_used(recipe: TlsFiles) -> None:
    check(recipe)
    assert not Path(recipe.key).stat().st_mode & 0o077


def options(files: TlsFiles) -> list[str]:
    return [f"--tls-cert={files.cert}", f"--tls-key={files.key}", f"--tls-ca={files.ca}"]


OVER_GRPC = os.environ.get("MINRAY_TRANSPORT") == "grpc"
PLAIN_GRPC = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\4\0\0\0\0\0"
"""How a gRPC client without TLS begins: HTTP/2's preface and empty settings. A server answers with its own settings."""


def is_refusal_by_tls(answer: bytes) -> bool:
    """Whether a listener has refused a peer without TLS: gRPC's with an alert or without a word, others in words."""
    return answer[:1] in (b"", b"\x15") if OVER_GRPC else b"tls" in answer


def listeners_without_tls(files: list[NodeFile]) -> list[int]:
    """Return the TCP ports of the nodes' processes that serve a peer which does not speak TLS."""
    open_ports = []
    greeting = PLAIN_GRPC if OVER_GRPC else encode(Hello(bytes(32), b"", bytes(16)))
    processes = {process.pid: process for file in files for process in leaks.processes(Path(file.session_dir))}
    ports = {
        each.laddr.port
        for process in processes.values()
        for each in process.net_connections("tcp")
        if each.status == psutil.CONN_LISTEN
    }
    assert len(ports) >= 2 * len(files), "raylets and workers listen"
    for port in ports:
        with socket.create_connection(("127.0.0.1", port)) as connection:
            connection.settimeout(10)
            connection.sendall(greeting)
            if not is_refusal_by_tls(connection.recv(1000)):
                open_ports.append(port)
    return open_ports


@minray.remote
class Holder:
    """Makes large values on one node."""

    def make(self, mebibytes: int) -> Any:
        return numpy.full((mebibytes, 2**20), 7, numpy.uint8)


def test_nodes_of_a_command_line_talk_over_tls(
    minray_command: CommandLine, recipe: TlsFiles, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    minray_command("start", "--head", "--num-cpus=1", *options(recipe))
    (head,) = nodes(minray_command)
    token = f"--token-file={head.session_dir}/token"
    at_head = f"--address={head.gcs_address}"

    monkeypatch.setenv("MINRAY_TMPDIR", str(minray_command.root / "e"))  # as on another machine
    refused = minray_command.run("start", at_head, token, "--num-cpus=1")
    why = "it speaks TLS, and this process does not:" if OVER_GRPC else "this cluster speaks TLS;"
    assert refused.returncode == 1 and f"{why} give --tls-cert" in refused.stderr
    foreign = Authority(tmp_path).sign("node")
    refused = minray_command.run("status", at_head, token, *options(foreign))
    assert refused.returncode == 1 and "a CA has signed it that is not in --tls-ca" in refused.stderr
    for name, path in zip(("CERT", "KEY", "CA"), (recipe.cert, recipe.key, recipe.ca), strict=True):
        monkeypatch.setenv(f"MINRAY_TLS_{name}", path)
    minray_command("start", at_head, token, "--num-cpus=1", '--resources={"there": 1}')
    assert "nodes alive: 2" in minray_command("status", at_head, token)
    (joined,) = nodes(minray_command, "e")
    assert joined.system_config.tls_key == recipe.key
    for name in ("CERT", "KEY", "CA"):
        monkeypatch.delenv(f"MINRAY_TLS_{name}")

    monkeypatch.setenv("MINRAY_TMPDIR", str(minray_command.root))
    with minray.init():
        holder = Holder.options(resources={"there": 1}).remote()
        assert minray.get(holder.make.remote(40)).sum() == 7 * 40 * 2**20
        assert listeners_without_tls([head, joined]) == []
    monkeypatch.setenv("MINRAY_TMPDIR", str(minray_command.root / "e"))
    minray_command("stop")


def nodes(command: CommandLine, folder: str = "") -> list[NodeFile]:
    """Return the nodes whose sessions are in a folder of the command line."""
    return [file for file in find_nodes() if Path(file.session_dir).parent == command.root / folder]


def test_certificates_and_the_authority_are_renewed_under_a_running_cluster(
    minray_command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = Authority(tmp_path / "old"), Authority(tmp_path / "new")
    files = old.sign("node")
    minray_command("start", "--head", "--num-cpus=1", *options(files))
    (head,) = nodes(minray_command)
    status = ("status", f"--address={head.gcs_address}", f"--token-file={head.session_dir}/token")
    monkeypatch.setenv("MINRAY_TMPDIR", str(minray_command.root / "e"))  # as on another machine
    visitor = old.sign("visitor")
    assert "nodes alive: 1" in minray_command(*status, *options(visitor))

    expired = old.sign("expired", days=-1)
    refused = minray_command.run(*status, *options(expired))
    assert refused.returncode == 1 and f"{expired.cert} (--tls-cert) is not valid" in refused.stderr
    assert "certificate has expired" in refused.stderr
    old.sign("node")  # in the place of the former one
    assert "nodes alive: 1" in minray_command(*status, *options(visitor))

    Path(files.ca).write_text(old.cert.read_text() + new.cert.read_text())
    assert "nodes alive: 1" in minray_command(*status, *options(replace(new.sign("visitor"), ca=files.ca)))
    renewed = new.sign("node")
    shutil.copy(renewed.key, files.key)
    shutil.copy(renewed.cert, files.cert)
    Path(files.ca).write_text(new.cert.read_text())
    refused = minray_command.run(*status, *options(replace(visitor, ca=str(new.cert))))
    assert refused.returncode == 1 and "a CA has signed it that is not in --tls-ca" in refused.stderr
    assert "nodes alive: 1" in minray_command(*status, *options(new.sign("visitor")))


def test_a_name_that_is_not_in_the_certificate_of_the_head_is_named_with_the_remedy(
    minray_command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = Authority(tmp_path).sign("node", extensions="subjectAltName=DNS:elsewhere,IP:127.0.0.1")
    minray_command("start", "--head", "--num-cpus=1", *options(files))
    (head,) = nodes(minray_command)
    port, token = head.gcs_address.rpartition(":")[2], f"--token-file={head.session_dir}/token"
    monkeypatch.setenv("MINRAY_TMPDIR", str(minray_command.root / "e"))
    checked = minray_command.run("check", f"--address=localhost:{port}", token, *options(files))
    assert checked.returncode == 1 and "certificate is not valid for 'localhost'" in checked.stdout
    assert "use the head's IP address, or a name that is in its certificate (subjectAltName)" in checked.stdout
    assert "nodes alive: 1" in minray_command("status", f"--address=127.0.0.1:{port}", token, *options(files))


def test_a_head_with_a_new_token_ends_the_nodes_that_have_the_old_one(
    minray_command: CommandLine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    for path in (old, new):
        write_token(path, make_token())
    head = minray_command.start_head(f"--token-file={old}", f"--storage={tmp_path}/tables.sqlite")
    at_head = f"--address={head.gcs_address}"
    monkeypatch.setenv("MINRAY_TMPDIR", str(minray_command.root / "e"))
    minray_command("start", at_head, f"--token-file={old}", "--num-cpus=1")
    (node,) = nodes(minray_command, "e")

    monkeypatch.setenv("MINRAY_TMPDIR", str(minray_command.root))
    minray_command("stop")
    port = f"--port={head.gcs_address.rpartition(':')[2]}"
    minray_command("start", "--head", "--num-cpus=1", port, f"--token-file={new}", f"--storage={tmp_path}/tables.sqlite")
    wait_for_condition(lambda: read_node_file(node.session_dir) is None, timeout_s=30, message="the node ends")
    log = Path(node.session_dir, "logs", "raylet.log").read_text()
    assert "the gcs is gone: " in log and "it refused: this process does not know its cluster token" in log

    monkeypatch.setenv("MINRAY_TMPDIR", str(minray_command.root / "e"))
    minray_command("start", at_head, f"--token-file={new}", "--num-cpus=1")
    assert "nodes alive: 2" in minray_command("status")
    minray_command("stop")


def test_nodes_talk_over_tls_with_grpc() -> None:
    files = node_files()
    config = {"transport": "grpc", "tls_cert": files.cert, "tls_key": files.key, "tls_ca": files.ca}
    cluster = Cluster(
        initialize_head=True,
        connect=True,
        head_node_args={"num_cpus": 1, "tcp_host": "127.0.0.1", "_system_config": config},
    )
    try:
        cluster.add_node(num_cpus=1, resources={"there": 1})
        holder = Holder.options(resources={"there": 1}).remote()
        assert minray.get(holder.make.remote(20)).sum() == 7 * 20 * 2**20
    finally:
        cluster.shutdown()


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda files: os.chmod(files.key, 0o644), "every user of this machine can read"),
        (lambda files: os.unlink(files.ca), "cannot read .*--tls-ca"),
        (lambda files: shutil.copy(node_files().cert, files.cert), "is not the key of"),
    ],
    ids=["open key", "no CA", "another certificate"],
)
def test_wrong_files_are_reported_before_anything_starts(
    minray_command: CommandLine, tmp_path: Path, spoil: Callable[[TlsFiles], None], words: str
) -> None:
    files = Authority(tmp_path).sign("node")
    spoil(files)
    refused = CliRunner().invoke(main, ["start", "--head", *options(files)])
    assert refused.exit_code == 1 and re.search(words, refused.output), refused.output
    assert len(refused.output.splitlines()) == 1
    assert minray_command.left() == []


# --- settings -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if "TLS" in name or name == "MINRAY_TRANSPORT"]:
        monkeypatch.delenv(name)


@pytest.mark.usefixtures("no_settings")
@pytest.mark.parametrize("ca", ["", "--tls-ca=/c"])
def test_a_certificate_without_a_ca_is_for_the_port_alone(ca: str) -> None:
    found = []

    @click.command()
    @tls_options
    def command() -> None:
        found.append((take_web_files(), given_tls()))

    CliRunner().invoke(command, ["--tls-cert=/a", "--tls-key=/b", *filter(None, [ca])], catch_exceptions=False)
    whole = {"tls_cert": "/a", "tls_key": "/b", "tls_ca": "/c"}
    assert found == [(None, whole) if ca else (WebFiles("/a", "/b"), {})]


@pytest.mark.usefixtures("no_settings")
def test_rays_variables_name_the_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_USE_TLS", "1")
    with pytest.raises(ValueError, match="is set, but no files are"):
        with_environment(None)
    monkeypatch.setenv("RAY_TLS_SERVER_CERT", "/a")
    monkeypatch.setenv("RAY_TLS_SERVER_KEY", "relative")
    monkeypatch.setenv("RAY_TLS_CA_CERT", "/c")
    found = {"tls_cert": "/a", "tls_key": os.path.abspath("relative"), "tls_ca": "/c"}
    assert with_environment(None) == found
    monkeypatch.setenv("MINRAY_TLS_CERT", "/own")
    assert with_environment(None) == found | {"tls_cert": "/own"}
    assert with_environment({"tls_ca": "/given"}) == found | {"tls_cert": "/own", "tls_ca": "/given"}


@pytest.mark.usefixtures("no_settings")
def test_tls_can_be_switched_off_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_TLS_SERVER_CERT", "/a")
    monkeypatch.setenv("RAY_USE_TLS", "0")
    assert with_environment(None) == {}
    assert with_environment({"tls_cert": "/b"}) == {"tls_cert": "/b"}
