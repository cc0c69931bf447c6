"""A client server and its clients speak the transport that their cluster does not."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from minray.node.node import Node
from tests.remote_client.head import address_of, client_head

OF_CLUSTER = os.environ.get("MINRAY_TRANSPORT", "stream")
OTHER = {"stream": "grpc", "grpc": "stream"}[OF_CLUSTER]

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import minray
minray.init(sys.argv[1])

@minray.remote
class Counter:
    def __init__(self):
        self.sum = 0
    def add(self, value):
        self.sum += len(value)
        return self.sum

@minray.remote
def double(value):
    return value * 2

counter, large = Counter.remote(), minray.put(b"x" * 3_000_000)
sums = [minray.get(counter.add.remote(large)) for _ in range(2)]
print(minray.get(double.remote(4)), sums, len(minray.get(double.remote(large))))
minray.shutdown()
"""


@pytest.fixture(scope="module")
def head() -> Iterator[Node]:
    with client_head({"client_transport": OTHER}) as node:
        yield node


def run(address: str, transport: str) -> subprocess.CompletedProcess[str]:
    """Run the program as a client that speaks a transport."""
    environment = {**os.environ, "MINRAY_CLIENT_TRANSPORT": transport}
    command = [sys.executable, "-c", PROGRAM, address]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)


def test_a_client_speaks_the_transport_of_its_server(head: Node) -> None:
    ran = run(address_of(head.file), OTHER)
    assert (ran.stdout, ran.stderr) == ("8 [3000000, 6000000] 6000000\n", "")


def test_a_client_with_another_transport_than_its_server_is_told_what_to_set(head: Node) -> None:
    ran = run(address_of(head.file), OF_CLUSTER)
    assert ran.returncode == 1
    assert f"cannot connect to the client server at {head.file.client_server}: " in ran.stderr
    assert "set MINRAY_TRANSPORT (remote clients: MINRAY_CLIENT_TRANSPORT) to the transport of the other side" in ran.stderr


def test_a_server_in_the_foreground_says_what_clients_need_and_that_nothing_is_encrypted(head: Node) -> None:
    command = [sys.executable, "-m", "minray", "client-server", "--port=0", "--host=0.0.0.0", "--transport=grpc"]
    command.append(f"--address={head.file.session_dir}")
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as server:
        assert server.stdout is not None
        try:
            served, advice, warning = (server.stdout.readline() for _ in range(3))
            ran = run(served.split()[-1].replace("0.0.0.0", "127.0.0.1"), "grpc")
        finally:
            server.terminate()
    assert advice == "These programs need MINRAY_CLIENT_TRANSPORT=grpc in their environment.\n"
    assert "is not encrypted and not protected against changes" in warning
    assert ran.stdout.startswith("8 ") and server.returncode == 0
