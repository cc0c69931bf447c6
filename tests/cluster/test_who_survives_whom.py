"""``kill -9`` of each kind of process, in a cluster of ``init()`` and in one of ``minray start``: what ends, what goes on.

The rows are those of the table in docs/architecture.md. What ends, ends within a second (and on a busy machine within
three): no process, socket or file of it is left but logs.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

import minray
from minray.exceptions import LocalRayletDiedError, WorkerCrashedError
from minray.node.cluster_client import end_gracefully
from minray.node.discovery import NodeFile, find_nodes, session_token
from tests import leaks
from tests.cluster.command_line import END_S, CommandLine, lines_with
from tests.cluster.programs import hold_and_tell, is_running, on, read_pid, states, stay, stay_at_first, where
from tests.helpers import wait_for_condition

DRIVER = """
import json
import sys
import minray
from tests.cluster.programs import stay, write_pid
minray.init(sys.argv[1], num_cpus=1 if sys.argv[1] == "local" else None, log_to_driver=False)
ref = stay.options(resources=json.loads(sys.argv[4])).remote(sys.argv[2])
write_pid(sys.argv[3])
minray.get(ref)
"""


class Driver:
    """A program that has started a cluster, or joined one, and whose only task stays."""

    def __init__(self, address: str, directory: Path, resources: str = "{}") -> None:
        task, program = directory / "task", directory / "program"
        arguments = [address, str(task), str(program), resources]
        self.process = subprocess.Popen([sys.executable, "-c", DRIVER, *arguments], stderr=subprocess.PIPE, text=True)
        read_pid(program)
        self.worker_pid = read_pid(task)

    def end(self) -> str:
        """Wait for it; returns what it complained about."""
        _, err = self.process.communicate(timeout=20)
        return err


@pytest.fixture(params=["memfd", "shared_memory"])
def own(
    request: pytest.FixtureRequest, minray_command: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Generator[Driver, None, None]:
    """A program with a cluster of its own, whose memory is of either kind."""
    before = leaks.shared_memory()
    monkeypatch.setenv("MINRAY_ARENA", request.param)
    driver = Driver("local", tmp_path)
    try:
        assert len(leaks.shared_memory() - before) == (request.param == "shared_memory")
        yield driver
    finally:
        driver.process.kill()
        driver.process.communicate()


def dead_sockets(file: NodeFile) -> list[str]:
    """The sockets of a node that nobody listens on."""
    dead = []
    for path in Path(file.session_dir, "sockets").iterdir():
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
            except ConnectionRefusedError:
                dead.append(path.name)
            except FileNotFoundError:
                continue  # it has been removed since the directory was read
    return dead


def node() -> NodeFile:
    return find_nodes()[0]


# --- A cluster of init() --------------------------------------------------------------------------------------------------


def test_init_a_killed_worker_is_replaced_and_its_task_tried_again(own: Driver, minray_command: CommandLine) -> None:
    os.kill(own.worker_pid, signal.SIGKILL)
    assert "WorkerCrashedError" in own.end()
    minray_command.wait_until_nothing_is_left()


def test_init_everything_ends_with_a_killed_driver(own: Driver, minray_command: CommandLine) -> None:
    own.process.kill()
    own.process.wait()
    minray_command.wait_until_nothing_is_left()


def test_init_a_driver_notices_that_its_raylet_was_killed(own: Driver, minray_command: CommandLine) -> None:
    os.kill(minray_command.pids(node())["raylet"], signal.SIGKILL)
    wait_for_condition(lambda: not is_running(own.worker_pid), END_S)
    assert "LocalRayletDiedError" in own.end()
    minray_command.wait_until_nothing_is_left()


@pytest.mark.parametrize("role", ["zygote", "gcs"])
def test_init_everything_ends_with_a_killed_zygote_or_gcs(own: Driver, minray_command: CommandLine, role: str) -> None:
    os.kill(minray_command.pids(node())[role], signal.SIGKILL)
    wait_for_condition(lambda: not leaks.files(minray_command.root), END_S)
    assert "LocalRayletDiedError" in own.end()
    minray_command.wait_until_nothing_is_left()


@pytest.mark.parametrize("own", ["shared_memory"], indirect=True)
def test_init_the_next_start_removes_the_memory_of_a_cluster_whose_processes_were_all_killed(
    own: Driver, minray_command: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared_memory = leaks.shared_memory()
    processes = leaks.processes(minray_command.root)
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for process in processes:
            process.send_signal(number)
    own.end()
    wait_for_condition(lambda: not any(process.is_running() for process in processes), END_S)
    assert leaks.shared_memory() == shared_memory
    monkeypatch.delenv("MINRAY_ARENA")
    minray.init("local", num_cpus=1)
    assert len(shared_memory - leaks.shared_memory()) == 1
    minray.shutdown()


# --- A cluster of minray start --------------------------------------------------------------------------------------------


@pytest.fixture
def head(minray_command: CommandLine) -> Generator[NodeFile, None, None]:
    """The head of a started cluster, connected to."""
    file = minray_command.start_head()
    minray.init(file.gcs_address)
    try:
        yield file
    finally:
        minray.shutdown()


def test_start_a_killed_worker_is_replaced_and_its_task_tried_again(head: NodeFile, tmp_path: Path) -> None:
    again = stay_at_first.remote(str(tmp_path / "first"))
    wait_for_condition((tmp_path / "first").exists)
    os.kill(read_pid(tmp_path / "first.pid"), signal.SIGKILL)
    assert minray.get(again, timeout=10) == head.node_id
    wait_for_condition(lambda: not dead_sockets(head), END_S)
    once = stay.remote(str(tmp_path / "once"))
    os.kill(read_pid(tmp_path / "once"), signal.SIGKILL)
    with pytest.raises(WorkerCrashedError, match="SIGKILL"):
        minray.get(once, timeout=10)


def test_start_the_job_of_a_killed_driver_ends_and_the_nodes_stay(
    head: NodeFile, minray_command: CommandLine, tmp_path: Path
) -> None:
    driver = Driver("auto", tmp_path)
    driver.process.kill()
    driver.end()
    wait_for_condition(lambda: not is_running(driver.worker_pid) and not dead_sockets(head), END_S)
    assert minray.get(where.remote(), timeout=10) == head.node_id


def test_start_the_job_of_a_killed_driver_ends_on_other_nodes_too(
    head: NodeFile, minray_command: CommandLine, tmp_path: Path
) -> None:
    other = minray_command.join(head, '--resources={"a": 1}')
    driver = Driver("auto", tmp_path, '{"a": 1}')
    driver.process.kill()
    driver.end()
    wait_for_condition(lambda: not is_running(driver.worker_pid) and not dead_sockets(other), END_S)
    assert minray.get(where.options(resources={"a": 1}).remote(), timeout=10) == other.node_id


@pytest.mark.parametrize("role", ["raylet", "zygote"])
def test_start_a_node_ends_with_its_raylet_or_zygote_and_others_go_on(
    head: NodeFile, minray_command: CommandLine, role: str
) -> None:
    other = minray_command.join(head, '--resources={"a": 1}')
    pids = minray_command.pids(other)
    worker_pid = minray.get(minray.remote(os.getpid).options(resources={"a": 1}).remote(), timeout=10)
    os.kill(pids[role], signal.SIGKILL)
    wait_for_condition(lambda: not leaks.describe(Path(other.session_dir)) and not is_running(worker_pid), END_S)
    wait_for_condition(lambda: states() == {head.node_id: True, other.node_id: False}, END_S)
    soft = where.options(scheduling_strategy=on(other.node_id, soft=True))
    assert minray.get(soft.remote(), timeout=10) == head.node_id


def test_start_the_gcs_and_other_nodes_go_on_without_the_heads_raylet(minray_command: CommandLine) -> None:
    head = minray_command.start_head()
    other = minray_command.join(head, '--resources={"a": 1}')
    os.kill(minray_command.pids(head)["raylet"], signal.SIGKILL)
    try:
        minray.init("auto")  # On the node that is left, or on the head's new one.
        wait_for_condition(lambda: {**states(), head.node_id: False, other.node_id: True} == states(), END_S)
        assert minray.get(where.options(resources={"a": 1}).remote(), timeout=10) == other.node_id
    finally:
        minray.shutdown()


def a_task_fails_with_its_raylet() -> bool:
    """Submit a task; it may still run on the worker that this driver has leased, until the raylet's death is known."""
    try:
        minray.get(where.remote(), timeout=10)
    except LocalRayletDiedError:
        return True
    return False


@pytest.mark.parametrize(
    ("storage", "arena"), [([], "memfd"), (["--storage="], "shared_memory")], ids=["file", "memory, shared_memory"]
)
def test_start_the_raylet_of_a_head_is_started_again_as_another_node(
    minray_command: CommandLine, storage: list[str], arena: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = leaks.shared_memory()
    monkeypatch.setenv("MINRAY_ARENA", arena)
    head = minray_command.start_head(*storage)
    minray.init(head.gcs_address)
    try:
        worker_pid = minray.get(minray.remote(os.getpid).remote(), timeout=10)
        os.kill(minray_command.pids(head)["raylet"], signal.SIGKILL)
        wait_for_condition(a_task_fails_with_its_raylet, END_S)
    finally:
        minray.shutdown()
    wait_for_condition(lambda: not is_running(worker_pid), END_S)
    minray.init("auto")
    try:
        again = minray.get(where.remote(), timeout=10)
        assert states() == {head.node_id: False, again: True} and again == find_nodes()[0].node_id
        large = minray.remote(lambda: bytes(10_000_000)).remote()
        assert len(minray.get(large, timeout=10)) == 10_000_000
        assert len(leaks.shared_memory() - before) == (arena == "shared_memory"), "that of the first raylet is gone"
        wait_for_condition(lambda: not dead_sockets(head), END_S)
    finally:
        minray.shutdown()
    assert lines_with(minray_command("status"), again[:8], "head", "alive")
    assert minray_command("stop") == "Stopped 1 node.\n"
    minray_command.wait_until_nothing_is_left()


def test_start_objects_of_a_raylet_that_was_started_again_are_spilled(
    minray_command: CommandLine, tmp_path: Path
) -> None:
    place = tmp_path / "spill"
    head = minray_command.start_head("--object-store-memory=20000000", f"--object-spilling-directory={place}")
    os.kill(minray_command.pids(head)["raylet"], signal.SIGKILL)
    minray.init("auto")
    try:
        refs = [minray.put(bytes(5_000_000)) for _ in range(8)]
        assert all(len(value) == 5_000_000 for value in minray.get(refs, timeout=20))
        assert list(place.glob("*/*"))
    finally:
        minray.shutdown()
    minray_command("stop")
    assert not list(place.iterdir())


def test_start_the_raylet_of_a_head_that_was_told_to_end_stays_away(minray_command: CommandLine) -> None:
    """As if ``minray stop`` had been interrupted before it ended the rest of the node."""
    head = minray_command.start_head()
    end_gracefully(head, session_token(head.session_dir), "enough")
    wait_for_condition(lambda: find_nodes()[0].departure)
    wanted = rf"has left the cluster \(asked to shut down: enough\).*minray stop --address={head.gcs_address}"
    with pytest.raises(ConnectionError, match=wanted):
        minray.init("auto")
    other = minray_command.join(head)
    minray.init("auto")
    try:
        assert minray.get(where.remote(), timeout=10) == other.node_id
    finally:
        minray.shutdown()


def test_g110_without_storage_everything_ends_with_the_gcs(minray_command: CommandLine) -> None:
    head = minray_command.start_head("--storage=")
    minray_command.join(head)
    minray.init(head.gcs_address)
    try:
        os.kill(minray_command.pids(head)["gcs"], signal.SIGKILL)
        minray_command.wait_until_nothing_is_left()
        with pytest.raises(LocalRayletDiedError):
            minray.get(where.remote(), timeout=10)
    finally:
        minray.shutdown()


def test_g110_with_storage_the_gcs_comes_back_and_nobody_has_noticed(
    head: NodeFile, minray_command: CommandLine, tmp_path: Path
) -> None:
    other = minray_command.join(head, '--resources={"a": 1}')
    gate = tmp_path / "gate"
    pids = [minray_command.pids(head)["gcs"]]
    before = states()
    running = hold_and_tell.options(resources={"a": 1}).remote(str(gate))
    wait_for_condition(lambda: minray.available_resources().get("a", 0) == 0)

    os.kill(pids[0], signal.SIGKILL)
    assert minray.get(where.remote(), timeout=10) == head.node_id  # Of a function that is known already or not.
    wait_for_condition(lambda: minray_command.pids(head).get("gcs", pids[0]) != pids[0])
    assert states() == before
    gate.touch()
    assert minray.get(running, timeout=10) == other.node_id
    assert "nodes alive: 2, dead: 0" in minray_command("status", f"--address={head.gcs_address}")
    third = minray_command.join(head, '--resources={"b": 1}')
    assert minray.get(where.options(resources={"b": 1}).remote(), timeout=10) == third.node_id


def test_g110_a_head_that_is_started_again_goes_on_with_its_cluster(minray_command: CommandLine) -> None:
    head = minray_command.start_head()
    port = head.gcs_address.rpartition(":")[2]
    other = minray_command.join(head, '--resources={"a": 1}')
    os.kill(head.zygote_pid, signal.SIGKILL)
    wait_for_condition(lambda: not leaks.describe(Path(head.session_dir)), END_S)
    again = minray_command.start_head(f"--port={port}")
    assert again.gcs_address == head.gcs_address
    minray.init(again.gcs_address)
    try:
        wait_for_condition(lambda: states() == {head.node_id: False, other.node_id: True, again.node_id: True})
        assert minray.get(where.options(resources={"a": 1}).remote(), timeout=10) == other.node_id
    finally:
        minray.shutdown()


def test_a_head_that_has_lost_its_tables_does_not_begin_a_new_cluster_unasked(minray_command: CommandLine) -> None:
    head = minray_command.start_head()
    port = head.gcs_address.rpartition(":")[2]
    os.kill(head.zygote_pid, signal.SIGKILL)
    wait_for_condition(lambda: not leaks.describe(Path(head.session_dir)), END_S)
    (tables,) = minray_command.root.glob("head_*/gcs.sqlite")
    for name in ("gcs.sqlite", "gcs.sqlite-wal"):
        tables.with_name(name).unlink(missing_ok=True)
    refused = minray_command.run("start", "--head", f"--port={port}")
    assert refused.returncode == 1 and f"{tables} has lost rows: it is empty, but" in refused.stderr
    assert f"Probably {tables} was emptied or removed" in refused.stderr
    assert not find_nodes()


def test_g111_a_node_without_its_gcs_ends_in_the_end(minray_command: CommandLine) -> None:
    head = minray_command.start_head('--system-config={"gcs_rpc_server_reconnect_timeout_s": 5}')
    other = minray_command.join(head)
    os.kill(head.zygote_pid, signal.SIGKILL)
    wait_for_condition(lambda: not leaks.describe(Path(head.session_dir)), END_S)
    assert is_running(other.zygote_pid)
    wait_for_condition(lambda: not leaks.describe(Path(other.session_dir)), 5 + END_S)
    log = Path(other.session_dir, "logs", "raylet.log").read_text()
    assert "the gcs was not reached for 5 s" in log


def test_what_was_killed_all_at_once_is_swept_by_the_next_start(minray_command: CommandLine) -> None:
    head = minray_command.start_head()
    for process in leaks.processes(Path(head.session_dir)):
        process.suspend()
    for process in leaks.processes(Path(head.session_dir)):
        process.kill()
    wait_for_condition(lambda: not leaks.processes(Path(head.session_dir)))
    assert leaks.files(Path(head.session_dir))
    minray_command.start_head("--storage=")
    assert not leaks.files(Path(head.session_dir))
