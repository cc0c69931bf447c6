"""The real tier: programs on real clusters under real faults. Its faults strike, and its judge sees planted mistakes."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click
import msgspec
import pytest

from minray.node.discovery import runtime_root
from tests.helpers import wait_for_condition
from tests.seeds import long
from tests.spec.actors import Create
from tests.spec.programs import Body, Drop, Exit, Get, Leave, Program, Put, Sleep, Submit
from tests.spec.real_cluster import HARMLESS_S, PROXY, TCP, UNIX, Shape, in_order_of_writing
from tests.spec.real_faults import (
    CUT,
    FILL,
    HOLD,
    JOIN,
    KILL,
    LAST_WORDS,
    LEAVE,
    NODE,
    RAYLET,
    RESET,
    RESET_ALL,
    STOP,
    TEAR,
    ZYGOTE,
    Fault,
    losses,
)
from tests.spec.real_proxy import Proxies
from tests.spec.real_sockets import close_connections
from tests.spec.real_tier import campaign, in_simulation, real_scenario_of
from tests.spec.real_trial import SCENARIOS_PER_CLUSTER, RealScenario, RealTier
from tests.spec.scenario import Node, World, read_witness
from tests.spec.strategies import scenario_of

needs_pidfd_getfd = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lends descriptors")
PLANTED = """
import threading
from minray.core_worker.submission.lease_client import LeaseClient
from tests.spec import programs, real_driver
{mistake}
real_driver.main()
"""


@pytest.fixture(autouse=True)
def sessions(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give each test a directory of its own, in which nothing may be left at the end of a cluster."""
    monkeypatch.setenv("MINRAY_TMPDIR", os.path.join(os.environ["MINRAY_TMPDIR"], "t"))


def neighbours(first: int) -> list[RealScenario]:
    """Scenarios that share one cluster, from this seed on."""
    return [real_scenario_of(first + number) for number in range(SCENARIOS_PER_CLUSTER)]


def is_quick(scenario: RealScenario) -> bool:
    return len(scenario.program.tasks()) < 15 and all(fault.for_s <= HARMLESS_S for fault in scenario.faults)


@pytest.mark.parametrize("wire", [UNIX, pytest.param(PROXY, marks=long), pytest.param(TCP, marks=long)])
def test_a_few_programs_keep_the_guarantees_under_real_faults(wire: str) -> None:
    first = next(seed for seed in range(0, 1000, SCENARIOS_PER_CLUSTER) if real_scenario_of(seed).shape.wire == wire)
    quick = [scenario for scenario in neighbours(first) if is_quick(scenario)][:3]
    with RealTier() as tier:
        statistics, failure = campaign(tier, quick, seconds=60)
        assert failure is None, failure.describe()
        assert tier.close() == []
    assert statistics.scenarios == len(quick) == 3


# --- Drawing scenarios


def test_a_seed_decides_its_scenario_which_is_json() -> None:
    for seed in range(30):
        scenario = real_scenario_of(seed)
        assert RealScenario.from_json(scenario.to_json()) == scenario == real_scenario_of(seed)
        assert in_simulation(scenario, 0).is_feasible()


def test_a_witness_with_an_unknown_field_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "witness.json"
    path.write_text('{"program": {"drivers": []}, "faults": [{"kind": "kill", "after": 3}]}')
    with pytest.raises(click.UsageError, match="is no witness: Object contains unknown field `after`"):
        read_witness(path, RealScenario.from_json)


def test_every_kind_of_fault_is_drawn_and_few_are_deadly() -> None:
    drawn = [(scenario.faults, scenario.shape) for scenario in map(real_scenario_of, range(400))]
    every = [fault for faults, _ in drawn for fault in faults]
    kinds = {KILL, STOP, RESET, RESET_ALL, HOLD, CUT, LAST_WORDS, TEAR, FILL, LEAVE, JOIN}
    assert {fault.kind for fault in every} == kinds
    assert {losses(faults, shape).deaths for faults, shape in drawn} == {0, 1, 2}
    assert not any(fault.is_deadly and fault.role in (RAYLET, ZYGOTE, NODE) and not fault.node for fault in every)


IN_SIMULATION_ONLY = (
    "Look", "Founding", "Endowment", "Grumbling", "Hooked", "Spoiled", "Homecoming", "Contest", "Burdens", "Luggage",
    "Benches", "Line", "Booths", "Homeless", "Smuggled", "Tower", "Inquiry", "Customs", "Bouquet",
    "Overtaken", "Fickle", "Held", "Stopped", "Poured", "Crowd", "Hasty", "Rush", "Remade", "Brief",
    "Census",
)  # fmt: skip
"""Operations that only the simulation can judge or afford.

``Look`` is judged by the virtual times of a run. After the loss of a founder, ``Founding`` sleeps for longer than a real
program may take. ``Grumbling`` makes Python print tracebacks, which the judge of a real run finds in the logs.
``Hooked`` and ``Spoiled`` need a job with a setup hook, which the drivers of a real run do not have. ``Homecoming`` joins
again with an ``init`` that names no cluster. ``Endowment``, ``Contest``, ``Burdens``, ``Benches``, ``Line``, and
those after it have not been tried on a real cluster. The packages of ``Luggage`` are no archives that a real node could
unpack.
"""
PLAIN = {"Order": "Submit", "Settle": "Create", "Ask": "Call", "Glance": "Wait"}
"""Operations with rare options -> the operations whose fields they have."""


def features(drawn: Iterable[tuple[Program, tuple[int, ...]]]) -> set[str]:
    """Parts of programs and of the places of their drivers: kinds of records with the fields that they fill."""
    found: set[str] = set()

    def look(tree: Any) -> None:
        if isinstance(tree, dict):
            kind = tree.get("kind")
            found.update(f"{kind if key in ('kind', 'wishes') else PLAIN.get(kind, kind)}.{key}" for key in tree)
        for branch in tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list | tuple) else ():
            look(branch)

    for program, homes in drawn:
        look(msgspec.to_builtins(program))
        found |= {f"a driver ends: {type(driver.end).__name__}" for driver in program.drivers}
        found |= {"a driver is not on the head"} if any(homes) else set()
        found.add(f"{sum(map(can_be_real, program.drivers))} drivers")
    return found


def can_be_real(driver: Body) -> bool:
    """Whether a driver is there for more than operations of the simulation alone."""
    kinds = {type(operation).__name__ for operation in driver.operations}
    return not kinds or not kinds.issubset(IN_SIMULATION_ONLY)


@long
def test_the_real_tier_draws_every_part_of_programs_that_the_campaign_draws() -> None:
    simulated = [scenario_of(seed) for seed in range(300)]
    real = [real_scenario_of(seed) for seed in range(300)]
    wanted = features((one.program, one.world.homes) for one in simulated)
    missing = wanted - features((one.program, one.homes) for one in real)
    assert {part for part in missing if part.partition(".")[0] not in IN_SIMULATION_ONLY} == set()
    shapes = [real_scenario_of(seed * SCENARIOS_PER_CLUSTER).shape for seed in range(300)]
    assert {likeness(one.world) for one in simulated} - set(map(likeness, shapes)) == set()
    assert {bool(shape.retry_pause_ms) for shape in shapes} == {False, True}


def likeness(place: World | Shape) -> tuple[object, ...]:
    """Features by which worlds and clusters are compared. Workers that spill have work in a small store only."""
    return bool(place.inline_limit), place.store_bytes, bool(place.store_bytes and place.io_workers), len(place.nodes)


# --- The judge


def verdict_codes(mistake: str, *operations: Put | Submit | Get | Sleep | Drop) -> set[str]:
    """Return the numbers of the problems of a program whose driver process has this mistake."""
    command = [sys.executable, "-c", PLANTED.format(mistake=mistake)]
    with RealTier(command, patience_s=2.0) as tier:
        return tier.run(RealScenario(Program((Body(operations),)))).codes


def test_a_lease_that_is_not_returned_is_seen() -> None:
    mistake = "LeaseClient.return_lease = lambda *_: None"
    assert "L3" in verdict_codes(mistake, Submit("task", Body()), Get("get", ("task",)))


def test_a_wrong_history_is_seen() -> None:
    mistake = "programs.Get.perform = lambda get, stage: {'of': ['a', 'b'], 'values': ['b', 'a']}"
    assert "G6" in verdict_codes(mistake, Put("a"), Put("b"), Get("get", ("a", "b")))


def test_a_reference_that_is_kept_is_seen() -> None:
    mistake = "kept = []; programs.Drop.perform = lambda drop, stage: kept.append(stage.refs['a']) or {'of': []}"
    assert "L2" in verdict_codes(mistake, Put("a"), Drop("drop", "a"))


@long
def test_a_reference_that_a_worker_keeps_is_seen() -> None:
    mistake = """
import minray
@minray.remote
def keep(name, body, nested):
    __import__("builtins").kept = minray.put(name)
    return name, {}
programs.execute = keep
"""
    assert "L2" in verdict_codes(mistake, Submit("task", Body()), Get("get", ("task",)))


@long
def test_a_program_that_does_not_end_and_a_traceback_in_a_log_are_seen() -> None:
    mistake = "programs.Sleep.perform = lambda sleep, stage: threading.Event().wait()"
    assert "L1" in verdict_codes(mistake, Sleep("sleep", 0.0))
    mistake = "programs.Sleep.perform = lambda sleep, stage: threading.Thread(target=lambda: 1 / 0).start() or {'of': []}"
    assert "escaped" in verdict_codes(mistake, Sleep("sleep", 0.0))


@long
def test_a_driver_that_loses_its_node_without_a_fault_is_seen() -> None:
    mistake = "real_driver.DriverProcess.do_is_homeless = lambda self: True"
    assert "L1" in verdict_codes(mistake, Put("a"))


@long
def test_drivers_that_leave_exit_or_die_with_their_node_are_not_judged() -> None:
    work = Submit("task", Body()), Get("get", ("task",)), Submit("long", Body((Sleep("sleep", 30.0),)))
    named = [tuple(msgspec.structs.replace(one, name=f"{one.name}{n}") for one in work) for n in range(2)]
    drivers = Body(named[0], Leave()), Body(named[1], Exit(3)), Body((Sleep("night", 30.0),))
    shape, fault = Shape((Node(), Node())), Fault(KILL, NODE, at_s=0.1, node=1)
    with RealTier() as tier:
        verdict = tier.run(RealScenario(Program(drivers), shape, homes=(0, 0, 1), faults=(fault,)))
        assert verdict.ok and verdict.struck == (fault,)
        assert len(verdict.histories) == 1  # That of the driver that has left, which is not judged.
        assert tier.close() == []


@long
def test_farewells_wait_for_tasks_that_still_make_detached_actors() -> None:
    """A task that no driver waits for makes an actor when its driver is through."""
    create = Create("actor", called="named", detached=True, num_cpus=0)
    program = Program((Body((Submit("task", Body((Sleep("sleep", 0.2), create))),)),))
    with RealTier() as tier:
        assert tier.run(RealScenario(program)).problems == ()
        assert tier.close() == []


def test_lines_of_an_actor_from_before_its_restart_come_first(tmp_path: Path) -> None:
    first, second = tmp_path / "worker-b.out", tmp_path / "worker-a.out"
    for written_at, path in enumerate((first, second)):
        path.touch()
        os.utime(path, (written_at, written_at))
    assert in_order_of_writing({second: "3\n", first: "1\n2\n"}) == ["1", "2", "3"]


def test_a_file_that_a_cluster_leaves_behind_is_seen() -> None:
    with RealTier() as tier:
        assert tier.run(RealScenario(Program((Body((Put("a"),)),)))).ok
        forgotten = runtime_root() / "forgotten"
        forgotten.touch()
        assert tier.close() == [f"L7: left behind: file {forgotten}"]
    forgotten.unlink()


# --- The faults


@needs_pidfd_getfd
def test_connections_of_another_process_are_closed_and_the_process_lives(tmp_path: Path) -> None:
    path = str(tmp_path / "listener")
    words = "s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); print(s.recv(9), flush=True); sys.stdin.read()"
    program = f"import socket, sys; {words}"
    pipe = subprocess.PIPE
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        with subprocess.Popen([sys.executable, "-c", program, path], stdin=pipe, stdout=pipe, text=True) as process:
            connection, _ = listener.accept()
            with connection:
                assert close_connections(process.pid) == 1
                assert connection.recv(9) == b""
            assert process.stdout is not None and process.stdout.readline() == "b''\n"
            assert process.poll() is None
            process.communicate()


@pytest.fixture
def echo(tmp_path: Path) -> Iterator[Path]:
    """Path of a listener that sends all bytes back."""
    path = tmp_path / "w-1"
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(path))
    listener.listen()

    def serve() -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with connection:
                while data := connection.recv(100):
                    connection.sendall(data)

    thread = threading.Thread(target=serve)
    thread.start()
    yield path
    listener.shutdown(socket.SHUT_RDWR)
    thread.join()
    listener.close()


def connected(path: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.settimeout(10)
    connection.connect(str(path))
    return connection


def test_a_proxy_passes_on_holds_back_and_cuts(echo: Path) -> None:
    proxies = Proxies()
    try:
        proxies.put_before_all_of(echo.parent)
        assert proxies.listeners(echo.parent) == [echo]
        with connected(echo) as connection:
            connection.sendall(b"first")
            assert connection.recv(100) == b"first"
            proxies.hold(echo)
            connection.sendall(b"second")
            connection.setblocking(False)
            with pytest.raises(BlockingIOError):
                connection.recv(100)
            connection.settimeout(10)
            proxies.release([echo])
            assert connection.recv(100) == b"second"
            proxies.cut(echo)
            assert connection.recv(100) == b""
        with connected(echo) as late:
            assert late.recv(100) == b""
        proxies.release([echo])
        with connected(echo) as again:
            again.sendall(b"third")
            assert again.recv(100) == b"third"
    finally:
        proxies.close()


def test_a_proxy_goes_with_its_listener_and_gives_its_place_back(tmp_path: Path) -> None:
    proxies = Proxies()
    try:
        for name in ("dying", "w-living"):
            with socket.socket(socket.AF_UNIX) as listener:
                listener.bind(str(tmp_path / name))
                listener.listen()
                proxies.put_before_all_of(tmp_path)
                assert tmp_path / name in proxies.listeners(tmp_path)
                if name == "w-living":
                    proxies.step_aside(tmp_path / name)
                    with connected(tmp_path / name), listener.accept()[0]:
                        assert proxies.listeners(tmp_path) == [tmp_path / "dying"]
        with connected(tmp_path / "dying") as connection:
            assert connection.recv(100) == b""
        wait_for_condition(lambda: not (tmp_path / "dying").exists())
        assert [path.name for path in tmp_path.iterdir()] == ["w-living"]
    finally:
        proxies.close()
