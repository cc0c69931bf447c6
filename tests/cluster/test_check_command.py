"""``minray check``: a machine that can join, and each reason why it cannot."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from minray.cli import check as checking
from minray.cli.main import main
from minray.node.cluster_client import ClusterClient
from minray.node.discovery import make_token, session_token, write_token
from minray.protocol.gcs import CheckJoinReply
from tests.cluster.command_line import CommandLine, lines_with

PROTOCOL = [] if os.environ.get("MINRAY_TRANSPORT") == "grpc" else ["protocol"]
"""The step that looks at the first bytes of a stream; gRPC's come inside HTTP/2."""


def checked(*arguments: str, exit_code: int = 0) -> str:
    done = CliRunner().invoke(main, ["check", *arguments])
    assert done.exit_code == exit_code, done.output
    return done.output


@pytest.fixture
def address(minray_command: CommandLine) -> Any:
    head = minray_command.start_head()
    yield head.gcs_address
    minray_command("stop")


def test_a_machine_that_can_join_has_no_failure(address: str, tmp_path: Path, minray_command: CommandLine) -> None:
    for arguments in ([f"--address={address}"], []):
        text = checked(*arguments)
        for what in ("port", *PROTOCOL, "handshake", "Python", "version", "clock", "way back", "disk", "open files"):
            assert lines_with(text, what), text
        assert "failed" not in text


def test_a_wrong_token_is_named_and_never_said(address: str, tmp_path: Path, minray_command: CommandLine) -> None:
    wrong = tmp_path / "token"
    write_token(wrong, make_token())
    text = checked(f"--address={address}", f"--token-file={wrong}", exit_code=1)
    assert lines_with(text, "failed", "handshake", "does not know its cluster token")
    assert "copy the head's token file again" in text and wrong.read_text().strip() not in text
    refused = minray_command.run("start", f"--address={address}", f"--token-file={wrong}")
    assert refused.returncode == 1 and f"To find out why: minray check --address={address}" in refused.stderr


def test_other_versions_clocks_and_firewalls_are_named(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def other(client: ClusterClient, host: str) -> tuple[CheckJoinReply, float]:
        return CheckJoinReply(time=0.0, python="3.99", version="9.9", unreachable="tcp:1.2.3.4:5 does not answer"), 1e9

    monkeypatch.setattr(ClusterClient, "check_join", other)
    text = checked(f"--address={address}", exit_code=1)
    assert lines_with(text, "failed", "Python", "the head runs Python 3.99") and "use Python 3.99 here" in text
    assert lines_with(text, "failed", "the head runs minray 9.9") and "pip install minray==9.9" in text
    assert lines_with(text, "warning", "clock", "ahead of the head's")
    assert lines_with(text, "failed", "way back", "tcp:1.2.3.4:5 does not answer") and "open all TCP ports" in text


def test_the_head_says_why_it_cannot_connect_back(address: str) -> None:
    (file,) = [node for node in checking.started_nodes() if node.is_head]
    with ClusterClient(file.gcs_endpoint, session_token(file.session_dir), file.system_config) as client:
        assert client.check_join("127.0.0.1")[0].unreachable == "" and abs(client.check_join("")[1]) < 60
    text = checked(f"--address={address}", "--node-ip-address=192.0.2.77", exit_code=1)
    assert lines_with(text, "failed", "way back", "nothing can listen at 192.0.2.77")


def test_without_a_cluster_the_machine_is_checked_alone(minray_command: CommandLine, tmp_path: Path) -> None:
    text = checked(exit_code=1)
    assert lines_with(text, "failed", "no cluster is named, and none runs here") and lines_with(text, "ok", "disk")
    text = checked("--address=127.0.0.1:1", exit_code=1)
    assert lines_with(text, "failed", "no process listens at 127.0.0.1:1")
    assert "is not an address" in checked("--address=nonsense", exit_code=1)
    missing = checked("--address=127.0.0.1:1", f"--token-file={tmp_path}/none", exit_code=1)
    assert os.fspath(tmp_path) not in missing, "the first failure is told, and the port comes first"
