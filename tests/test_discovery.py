"""Which nodes on this machine an address means; how they are found is tested with real ones, in tests/cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from minray import discovery
from minray.common.config import SystemConfig
from minray.discovery import NodeFile, nodes_of, runtime_root


def node(gcs_address: str) -> NodeFile:
    return NodeFile(
        node_id="ab",
        node_ip="127.0.0.1",
        node_name="head",
        gcs_endpoint=f"tcp:{gcs_address}",
        gcs_address=gcs_address,
        raylet_endpoint="unix:/s/raylet",
        socket_dir="unix:/s",
        tcp_host="",
        session_dir=f"/sessions/{gcs_address}",
        is_head=True,
        detached=True,
        system_config=SystemConfig(),
        zygote_pid=1,
    )


@pytest.mark.parametrize(
    ("given", "known"),
    [
        ("127.0.0.1:80", "127.0.0.1:80"),
        ("localhost:80", "127.0.0.1:80"),
        ("127.0.0.1:80", "localhost:80"),
        ("[::1]:80", "::1:80"),
        ("::1:80", "[::1]:80"),
        ("tcp:[::1]:80", "::1:80"),
        ("/sessions/[::1]:80", "[::1]:80"),
    ],
)
def test_an_address_has_several_spellings(given: str, known: str, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes = [node("127.0.0.1:81"), node("[::2]:80"), node(known)]
    monkeypatch.setattr(discovery, "find_nodes", lambda: nodes)
    assert nodes_of(given) == [nodes[2]] and nodes_of("host:80") == []


def test_a_relative_directory_is_the_same_wherever_a_program_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MINRAY_TMPDIR", "sessions")
    assert runtime_root() == tmp_path / "sessions"
