"""Use of a machine and its processes between two questions; and the counts of workers that died."""

from __future__ import annotations

import asyncio

import pytest

from minray.common.machine_usage import MachineUsage, ProcessUsage, between
from minray.raylet import worker_deaths
from minray.raylet.node_usage import MOST_S, WAIT_S, UsageMeter
from minray.raylet.worker_deaths import TASK, WorkerDeaths
from tests.platform_record import FakeHost
from tests.rpc.fake_network import in_virtual_time, pass_time

ZERO = MachineUsage(
    cpu_count=2, cpu_busy_s=0.0, cpu_total_s=0.0, memory_used=0, memory_total=0, memory_shared=0, disk_used=0, disk_free=0,
    disk_read_bytes=0, disk_written_bytes=0, disk_reads=0, disk_writes=0, network_sent_bytes=0, network_received_bytes=0,
)  # fmt: skip


class BusyHost(FakeHost):
    """A machine with two CPUs, of which one works, and with a process that works half of the time."""

    def machine_usage(self) -> MachineUsage:
        now = asyncio.get_running_loop().time()
        return ZERO._replace(cpu_busy_s=now, cpu_total_s=2 * now, network_sent_bytes=int(1000 * now))

    def process_usage(self, pid: int) -> ProcessUsage | None:
        now = asyncio.get_running_loop().time()
        return ProcessUsage(cpu_s=now / 2, rss_bytes=10, shared_bytes=4, open_files=3, title="ray::f") if pid == 7 else None


@in_virtual_time
async def test_a_first_question_takes_a_quarter_second_and_the_next_none() -> None:
    meter, loop = UsageMeter(BusyHost()), asyncio.get_running_loop()
    began = loop.time()
    usage = await meter.measure([7, 8])
    assert loop.time() - began == pytest.approx(WAIT_S)
    assert usage.speeds.cpu_percent == pytest.approx(50) and usage.components.keys() == {7}
    assert usage.components[7].cpu_percent == pytest.approx(50)
    await pass_time(10)
    began = loop.time()
    assert (await meter.measure([7])).speeds.network_sent_bytes == pytest.approx(1000, rel=0.01)
    assert loop.time() == began


@in_virtual_time
async def test_a_measurement_of_long_ago_is_no_beginning() -> None:
    meter, loop = UsageMeter(BusyHost()), asyncio.get_running_loop()
    await meter.measure([7])
    await pass_time(MOST_S + 1)
    began = loop.time()
    await meter.measure([7])
    assert loop.time() > began


@in_virtual_time
async def test_of_a_process_that_was_not_measured_before_no_cpu_use_is_told() -> None:
    meter = UsageMeter(BusyHost())
    await meter.measure([])
    await pass_time(1)
    assert (await meter.measure([7])).components[7].cpu_percent is None


def test_a_counter_that_was_reset_counts_as_unchanged() -> None:
    speeds = between(ZERO._replace(disk_reads=10, cpu_busy_s=5.0), ZERO, 1.0)
    assert (speeds.disk_reads, speeds.cpu_percent) == (0, 0)


def test_names_of_dead_workers_are_bounded_and_every_death_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(worker_deaths, "MOST_NAMES", 3)
    deaths = WorkerDeaths()
    for number in range(10):
        deaths.on_eviction(TASK, f"task {number}")
    deaths.on_failure("exit code 3", "f")
    assert len(deaths.evictions) == 4 and deaths.evictions[TASK, ""] == 7 and deaths.evictions.total() == 10
    assert deaths.failures == {("exit code 3", "f"): 1}
