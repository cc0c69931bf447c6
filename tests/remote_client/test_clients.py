"""Remote clients of a real cluster: what they can do, whom a server refuses, and what a client leaves behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import minray
from minray.exceptions import GetTimeoutError, RayActorError, TaskCancelledError
from minray.node.node import Node
from minray.remote_client import link
from minray.util.state import list_objects
from tests.helpers import wait_for_condition
from tests.remote_client.head import address_of, client_head
from tests.remote_client.proxy import Proxy

GRACE_S = 2.0
"""Seconds for which a client of these tests may be away."""

pytestmark = pytest.mark.slow
whole = pytest.mark.skipif(os.environ.get("MINRAY_TEST_AS") != "client", reason="make test-client runs it")
"""Marks the tests that take long."""


@pytest.fixture(scope="module")
def head() -> Iterator[Node]:
    with client_head({"client_reconnect_grace_period_s": GRACE_S}) as node:
        yield node
        wait_for_condition(lambda: not drivers_of(node), message="all driver processes have ended")


@pytest.fixture
def client(head: Node) -> Iterator[Any]:
    """This process as a remote client."""
    try:
        yield minray.init(address_of(head.file), namespace="clients")
    finally:
        minray.shutdown()


def drivers_of(node: Node) -> list[psutil.Process]:
    """The driver processes of a head's client server."""
    server = psutil.Process(node.processes()["client_server"])
    return [child for child in server.children() if lives(child)]


def lives(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def in_use(node: Node) -> dict[str, float]:
    """The resources of a cluster that are in use, as a driver on its node sees them."""
    minray.init(node.file.session_dir)
    try:
        total, free = minray.cluster_resources(), minray.available_resources()
        return {name: amount - free.get(name, 0) for name, amount in total.items() if amount != free.get(name, 0)}
    finally:
        minray.shutdown()


@minray.remote
def double(value: Any) -> Any:
    return value * 2


@minray.remote
def numbers(count: int) -> Iterator[int]:
    yield from range(count)


@minray.remote
class Counter:
    def __init__(self, start: int = 0) -> None:
        self.count = start
        self.seen: list[int] = []

    def add(self, number: int) -> int:
        self.seen.append(number)
        self.count += 1
        return self.count

    def history(self) -> list[int]:
        return self.seen

    def wait_for_ever(self) -> None:
        import threading

        threading.Event().wait()


# --- what works ---------------------------------------------------------------------------------------------------------


def test_tasks_actors_values_generators_and_groups(client: Any) -> None:
    assert minray.get([double.remote(number) for number in range(20)]) == list(range(0, 40, 2))
    ref = minray.put([double.remote(3)])
    assert minray.get(minray.get(ref)[0]) == 6
    assert minray.get(double.remote(minray.put("ab"))) == "abab"
    counter = Counter.options(name="a counter").remote(10)
    assert minray.get([counter.add.remote(number) for number in range(3)]) == [11, 12, 13]
    assert minray.get(minray.get_actor("a counter").history.remote()) == [0, 1, 2]
    assert [minray.get(item) for item in numbers.remote(4)] == [0, 1, 2, 3]
    group = minray.util.placement_group([{"CPU": 1}])
    assert group.wait(30)
    minray.util.remove_placement_group(group)
    ready, rest = minray.wait([double.remote(1), counter.wait_for_ever.remote()], timeout=30)
    assert (len(ready), len(rest)) == (1, 1)
    with pytest.raises(GetTimeoutError):
        minray.get(rest, timeout=0.1)
    minray.kill(counter)
    with pytest.raises(RayActorError):
        minray.get(counter.history.remote())
    assert minray.nodes()[0]["IsHead"] and minray.cluster_resources()["CPU"] == 2
    assert minray.get_runtime_context().namespace == "clients"
    assert client._num_clients == 1 and client.python_version == sys.version.partition(" ")[0]


def test_an_exception_keeps_its_type_and_a_cancelled_task_ends(client: Any) -> None:
    class Odd(ValueError):
        pass

    @minray.remote
    def fails() -> None:
        raise Odd("no")

    @minray.remote
    def waits() -> None:
        import threading

        threading.Event().wait()

    with pytest.raises(Odd, match="no"):
        minray.get(fails.remote())
    waiting = waits.remote()
    minray.cancel(waiting)
    with pytest.raises(TaskCancelledError):
        minray.get(waiting)


@whole
def test_a_large_value_goes_both_ways_in_pieces_through_bounded_memory(client: Any, head: Node) -> None:
    values = [np.arange(16 * 1024 * 1024, dtype=np.uint8) for _ in range(4)]
    server = psutil.Process(head.processes()["client_server"])
    (driver,) = drivers_of(head)
    minray.get(minray.put(values[0]))
    before = private_bytes(server), private_bytes(driver)
    refs = [minray.put(value) for value in values] + [double.remote(minray.put(values[0]))]
    for value, got in zip([*values, values[0] * 2], minray.get(refs), strict=True):
        np.testing.assert_array_equal(got, value)
    assert not got.flags.writeable
    after = private_bytes(server), private_bytes(driver)
    assert all(late - early < 48 << 20 for early, late in zip(before, after, strict=True)), (before, after)


def private_bytes(process: psutil.Process) -> int:
    """Most memory of its own that a process has had, in bytes."""
    text = Path(f"/proc/{process.pid}/smaps_rollup").read_text()
    return 1024 * int(next(line for line in text.splitlines() if line.startswith("Anonymous")).split()[1])


@whole
def test_the_older_way_to_connect_and_two_clients_at_once(head: Node) -> None:
    program = f"""
        import minray as ray
        with ray.client({head.file.client_server!r}).namespace("a").connect() as context:
            assert ray.get_runtime_context().namespace == "a"
            print(ray.get_runtime_context().get_job_id(), context.ray_version == ray.__version__)
        assert not ray.is_initialized()
    """
    both = [start(program), start(program)]
    said = [one.communicate(timeout=60)[0].split() for one in both]
    assert [words[1] for words in said] == ["True", "True"] and said[0][0] != said[1][0]


@whole
def test_what_tasks_print_reaches_the_clients_terminal(head: Node) -> None:
    program = f"""
        import minray
        minray.init({address_of(head.file)!r})
        @minray.remote
        def speaks():
            print("from a task")
        minray.get(speaks.remote())
        minray.shutdown()
    """
    assert "from a task" in start(program).communicate(timeout=60)[0]


def start(program: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE, text=True)


@contextmanager
def running(program: str) -> Iterator[subprocess.Popen[str]]:
    """Run a program, and kill it at the end."""
    with start(program) as process:
        try:
            yield process
        finally:
            process.kill()


def test_an_awaited_call_costs_one_message_in_each_direction(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    counter = Counter.remote()
    assert minray.get(counter.add.remote(0)) == 1
    asked: list[Any] = []
    answered_late: list[Any] = []
    ask = link._ask

    def ask_and_count(channel: Any, request: Any, on_answer: Any, buffers: Any = ()) -> None:
        asked_at = time.monotonic()
        asked.append(request)

        def on_reply(*answer: Any) -> None:
            if time.monotonic() - asked_at >= GRACE_S / 4:
                answered_late.append(request)
            on_answer(*answer)

        ask(channel, request, on_reply, buffers)

    monkeypatch.setattr(link, "_ask", ask_and_count)
    for number in range(100):
        minray.get(counter.add.remote(number))
    monkeypatch.undo()
    # Some more carry other messages. Requests that stay open are answered after a quarter of the grace, and asked again.
    assert len(asked) - len(answered_late) < 150


# --- connections that break ---------------------------------------------------------------------------------------------


def test_a_connection_that_is_cut_for_a_while_loses_no_call_and_repeats_none(head: Node) -> None:
    proxy = Proxy(head.file.client_server)
    try:
        minray.init(f"ray://{proxy.address}")
        counter = Counter.remote()
        refs = [counter.add.remote(number) for number in range(100)]
        proxy.cut()
        refs += [counter.add.remote(number) for number in range(100, 200)]
        proxy.mend()
        assert minray.get(refs, timeout=60) == list(range(1, 201))
        assert minray.get(counter.history.remote()) == list(range(200))
        assert proxy.connections > 1
    finally:
        minray.shutdown()
        proxy.close()


@whole
def test_a_large_value_survives_a_cut(head: Node) -> None:
    proxy = Proxy(head.file.client_server)
    try:
        minray.init(f"minray://{proxy.address}")
        value = np.arange(64 * 1024 * 1024, dtype=np.uint8)
        done = double.remote(value)
        proxy.cut()
        proxy.mend()
        np.testing.assert_array_equal(minray.get(done, timeout=60), value * 2)
    finally:
        minray.shutdown()
        proxy.close()


@whole
def test_a_connection_that_stays_away_too_long_is_an_error_and_leaves_nothing(head: Node) -> None:
    proxy = Proxy(head.file.client_server)
    try:
        minray.init(f"minray://{proxy.address}")
        counter = Counter.remote()
        assert minray.get(counter.add.remote(1)) == 1
        proxy.cut()
        with pytest.raises(minray.exceptions.RayError, match="could not be reached"):
            minray.get(counter.wait_for_ever.remote(), timeout=60)
    finally:
        minray.shutdown()
        proxy.close()
    wait_for_condition(lambda: not drivers_of(head))
    wait_for_condition(lambda: in_use(head) == {})


# --- clients that end ---------------------------------------------------------------------------------------------------

HOLDS = """
    import minray, numpy, threading
    minray.init({address!r}, namespace="holds")
    @minray.remote(num_cpus=1)
    class Holder:
        def ping(self):
            return "here"
    holder, ref = Holder.remote(), minray.put(numpy.zeros(4 << 20, numpy.uint8))
    detached = Holder.options(name="stays", lifetime="detached", num_cpus=0).remote()
    print(minray.get([holder.ping.remote(), detached.ping.remote()]), flush=True)
    threading.Event().wait()
"""


def test_a_client_that_is_killed_leaves_only_what_is_detached(head: Node) -> None:
    with running(HOLDS.format(address=address_of(head.file))) as program:
        assert program.stdout is not None and program.stdout.readline() == "['here', 'here']\n"
        (driver,) = drivers_of(head)
        assert "CPU" in in_use(head)
    wait_for_condition(lambda: not drivers_of(head))
    wait_for_condition(lambda: not driver.is_running())
    wait_for_condition(lambda: in_use(head) == {})
    minray.init(address_of(head.file), namespace="holds")
    try:
        assert minray.get(minray.get_actor("stays").ping.remote()) == "here"
        minray.kill(minray.get_actor("stays"))
        assert list_objects() == []
    finally:
        minray.shutdown()


def test_a_client_that_disconnects_leaves_nothing_at_once(client: Any, head: Node) -> None:
    counter = Counter.remote()
    assert minray.get(counter.add.remote(0)) == 1
    (driver,) = drivers_of(head)
    minray.shutdown()
    wait_for_condition(lambda: not driver.is_running(), GRACE_S / 2)


@whole
def test_a_driver_process_that_is_killed_is_an_error_of_its_client_alone(client: Any, head: Node) -> None:
    counter = Counter.remote()
    assert minray.get(counter.add.remote(0)) == 1
    with running(HOLDS.format(address=address_of(head.file)).replace("stays", "stays too")) as other:
        assert other.stdout is not None and other.stdout.readline() == "['here', 'here']\n"
        own = next(driver for driver in drivers_of(head) if driver.create_time() == min_time(drivers_of(head)))
        own.send_signal(signal.SIGKILL)
        with pytest.raises(minray.exceptions.RayError, match="driver process of this client has ended|session has ended"):
            minray.get(counter.wait_for_ever.remote(), timeout=60)
        assert other.poll() is None
    minray.shutdown()
    minray.init(address_of(head.file), namespace="holds")
    minray.kill(minray.get_actor("stays too"))


def min_time(processes: list[psutil.Process]) -> float:
    return min(process.create_time() for process in processes)


# --- who is refused -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("__version__", "0.0.1", "the client has minray '0.0.1' and the cluster has minray"),
        ("python_version", lambda: "3.7", "the client runs Python '3.7' and the cluster Python '3"),
    ],
)
def test_another_version_is_refused_with_words(
    monkeypatch: pytest.MonkeyPatch, head: Node, name: str, value: Any, words: str
) -> None:
    monkeypatch.setattr(link, name, value)
    with pytest.raises(RuntimeError, match=words):
        minray.init(address_of(head.file))
    assert not minray.is_initialized()


def test_a_wrong_token_is_refused_with_words(monkeypatch: pytest.MonkeyPatch, head: Node) -> None:
    monkeypatch.setenv("MINRAY_TOKEN", "00" * 32)
    with pytest.raises(ConnectionError, match="does not know its cluster token"):
        minray.init(address_of(head.file))
    assert not minray.is_initialized()


def test_an_address_that_nobody_listens_at(head: Node) -> None:
    with pytest.raises(ConnectionError, match=r"cannot connect to the client server at 127\.0\.0\.1:1:"):
        minray.init("minray://127.0.0.1:1")
    with pytest.raises(ValueError, match=r"looks like minray://10\.0\.0\.1:10001"):
        minray.init("minray://")
    with pytest.raises(ValueError, match="num_cpus: only for a node"):
        minray.init(address_of(head.file), num_cpus=1)


def test_garbage_and_a_thousand_connections_disturb_nobody(client: Any, head: Node) -> None:
    server = psutil.Process(head.processes()["client_server"])
    before = private_bytes(server)
    host, _, port = head.file.client_server.rpartition(":")
    with ExitStack() as open_ones:
        for number in range(1000):
            stranger = open_ones.enter_context(socket.create_connection((host, int(port))))
            if number % 2:
                stranger.sendall(os.urandom(1000))
        assert minray.get([double.remote(number) for number in range(50)]) == list(range(0, 100, 2))
    assert private_bytes(server) - before < 128 << 20


def test_a_server_listens_on_loopback_and_only_when_asked(head: Node) -> None:
    server = psutil.Process(head.processes()["client_server"])
    listening = [one.laddr.ip for one in server.net_connections("tcp") if one.status == psutil.CONN_LISTEN]
    assert [ip.removeprefix("::ffff:") for ip in listening] == ["127.0.0.1"]
    assert os.path.exists(f"{head.file.session_dir}/logs/client_server.log")
