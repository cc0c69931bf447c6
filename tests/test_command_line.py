"""The command line without a cluster: what goes wrong is an error of one line."""

from __future__ import annotations

import signal
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner

from minray.cli import main as cli
from minray.cli.state import ask
from minray.cli.status import cluster_facts, describe_cluster
from minray.platform.base import RemoteFailure
from minray.protocol.base import Address
from minray.protocol.gcs import NodeInfo, NodeResources


class Client:
    """A cluster whose answer is an error."""

    address = "there"

    def __init__(self, error: Exception) -> None:
        self.error = error

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def read(self, _question: Any) -> Any:
        raise self.error

    nodes = objects = lambda self: self.read(None)


ERRORS = [
    (RemoteFailure("too-large", "a reply of 9 bytes"), "Error: too-large: a reply of 9 bytes\n"),
    (TimeoutError(), "Error: the cluster does not answer in time\n"),
]


@pytest.mark.parametrize(("error", "said"), ERRORS)
@pytest.mark.parametrize("command", ["status", "memory"])
def test_a_cluster_that_fails_is_an_error_of_one_line(
    command: str, error: Exception, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli, "_client", lambda *_: Client(error))
    done = CliRunner().invoke(cli.main, [command])
    assert (done.exit_code, done.output) == (1, said)


def test_a_node_that_has_joined_since_the_nodes_were_listed_is_left_out() -> None:
    here = NodeInfo(b"h" * 16, "here", "", "", Address(b"", b"", "", ""), {"CPU": 10_000}, {}, True)
    waiting = [({"CPU": 20_000}, 3)]
    reports = {
        node_id: NodeResources(node_id, 1, {"CPU": 10_000}, {"CPU": 0}, waiting) for node_id in (here.node_id, b"n" * 16)
    }
    text = describe_cluster("there", [here], reports, {})
    assert [line.split() for line in text.splitlines() if "CPU: 2" in line] == [["CPU:", "2", "3", "here"]]
    facts = cluster_facts("there", [here], reports, {})
    assert facts["waiting"] == [{"node_id": here.node_id.hex(), "resources": {"CPU": 2.0}, "count": 3}]
    [node] = facts["nodes"]
    assert (node["node_id"], node["state"], node["answers"]) == (here.node_id.hex(), "ALIVE", False)
    assert (node["resources_total"], node["resources_available"]) == ({"CPU": 1.0}, {"CPU": 0.0})


@pytest.mark.parametrize("timeout", ["nan", "inf"])
def test_a_time_out_that_is_no_time_is_refused(timeout: str) -> None:
    done = CliRunner().invoke(cli.main, ["list", "tasks", "--timeout", timeout])
    refusal = f"Invalid value for '--timeout': timeout must be a finite number of seconds, got {timeout}."
    assert done.exit_code == 2 and refusal in done.output


def test_a_gcs_that_cannot_say_what_there_is_is_an_error_of_one_line() -> None:
    def connect(*_: Any) -> Any:
        return Client(RemoteFailure("too-large", "a reply of 9 bytes"))

    with pytest.raises(cli.click.ClickException, match="^too-large: a reply of 9 bytes$"):
        ask(connect, None, None, 1.0, lambda reader: reader.nodes(1.0))


INTERRUPTED_IMPORT = """
import os, signal, sys
import minray.__main__

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "minray.cli.logs":
            os.kill(os.getpid(), signal.SIGINT)

signal.signal(signal.SIGINT, signal.default_int_handler)
sys.meta_path.insert(0, Interrupt())
minray.__main__.main("minray")
"""


def test_an_interrupt_while_the_commands_are_imported_ends_the_process_without_a_word() -> None:
    done = subprocess.run([sys.executable, "-c", INTERRUPTED_IMPORT], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (-signal.SIGINT, "", "")
