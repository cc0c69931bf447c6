"""Workers that are killed when memory runs out: the policy by itself, and when it is asked."""

from __future__ import annotations

import errno
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from minray.raylet.memory_monitor import GIB, Candidate, MemoryMonitor, choose_victim, describe_choice
from tests.rpc.fake_network import in_virtual_time, pass_time


def worker(number: int, *, leased_at: float | None = None, retriable: bool = True, memory: int = 100) -> Candidate:
    lease_id = b"" if leased_at is None else b"lease %d" % number
    return Candidate(b"w%d" % number, 1000 + number, lease_id, retriable, leased_at or 0.0, memory)


def test_g89_idle_workers_go_first_and_the_largest_of_them() -> None:
    idle = [worker(1, memory=5), worker(2, memory=50), worker(3, memory=20)]
    assert choose_victim([worker(4, leased_at=9.0, memory=1000), *idle]) == idle[1]


def test_g89_what_can_be_done_again_goes_before_what_cannot_and_the_newest_first() -> None:
    workers = [
        worker(1, leased_at=1.0),
        worker(2, leased_at=2.0),
        worker(3, leased_at=3.0, retriable=False),
        worker(4, leased_at=4.0, retriable=False),
    ]
    victims = []
    while workers:
        victim = choose_victim(workers)
        assert victim is not None
        workers.remove(victim)
        victims.append(victim.pid - 1000)
    assert victims == [2, 1, 4, 3]


def test_nobody_is_chosen_where_nobody_is() -> None:
    assert choose_victim([]) is None


CANDIDATES = st.lists(
    st.builds(
        worker,
        st.integers(1, 50),
        leased_at=st.none() | st.floats(0, 100),
        retriable=st.booleans(),
        memory=st.integers(0, 1 << 40),
    ),
    unique_by=lambda one: one.worker_id,
)


@given(CANDIDATES)
def test_g89_the_choice_does_not_depend_on_the_order_and_keeps_the_ranks(candidates: list[Candidate]) -> None:
    victim = choose_victim(candidates)
    assert victim == choose_victim(candidates[::-1])
    for other in candidates:
        assert victim is not None
        if victim.lease_id:
            assert other.lease_id, "an idle worker is spared"
            assert victim.retriable or not other.retriable
            assert victim.retriable != other.retriable or victim.leased_at >= other.leased_at
        else:
            assert other.lease_id or victim.memory_bytes >= other.memory_bytes


def test_the_choice_is_told_with_its_reason_and_the_others() -> None:
    victim, other = worker(1, leased_at=2.0, memory=3 << 30), worker(2, leased_at=1.0, retriable=False, memory=1 << 30)
    told = describe_choice(victim, [victim, other])
    assert "pid=1001, 3.00 GiB" in told and "its task or actor can be rerun" in told and "pid=1002 1.00 GiB" in told


# --- When it looks ------------------------------------------------------------------------------------------------------


class Node:
    """A host with ``used`` of 100 GiB in use, and the workers that its monitor has killed."""

    def __init__(self, used: int, period_s: float = 1.0) -> None:
        self.used = used * GIB
        self.workers: list[Candidate] | None = [worker(1)]
        self.killed: list[tuple[Candidate, str, int, int]] = []
        self.looked = 0
        host: Any = self
        self.monitor = MemoryMonitor(host, threshold=0.9, period_s=period_s, workers=self)
        self.monitor.start()

    def memory_usage(self) -> tuple[int, int]:
        self.looked += 1
        if self.used < 0:
            raise OSError(errno.EMFILE, "Too many open files")
        return self.used, 100 * GIB

    def candidates(self) -> list[Candidate] | None:
        return self.workers

    def kill(self, victim: Candidate, reason: str, used: int, total: int) -> None:
        self.killed.append((victim, reason, used, total))
        self.workers = None


@in_virtual_time
async def test_g89_who_has_to_go_is_killed_when_more_than_the_threshold_is_in_use() -> None:
    node = Node(used=90)
    await pass_time(2.5)
    assert (node.looked, node.killed) == (2, [])
    node.used = 91 * GIB
    await pass_time(1.0)
    ((victim, reason, used, total),) = node.killed
    assert (victim, used, total) == (worker(1), 91 * GIB, 100 * GIB)
    assert reason.startswith("the node has 91.00 of 100.00 GiB in use, more than 90%; worker ")
    node.monitor.close()


@in_virtual_time
async def test_g89_nobody_else_is_killed_while_a_victim_dies() -> None:
    node = Node(used=95)
    await pass_time(5.5)
    assert (node.looked, len(node.killed)) == (5, 1)
    node.workers = []
    await pass_time(1.0)
    assert len(node.killed) == 1, "nobody is left"
    node.workers = [worker(2)]
    await pass_time(1.0)
    assert [victim for victim, *_ in node.killed] == [worker(1), worker(2)]
    node.monitor.close()
    await pass_time(5.0)
    assert node.looked == 7


@in_virtual_time
async def test_a_monitor_that_cannot_look_looks_again(caplog: pytest.LogCaptureFixture) -> None:
    node = Node(used=-1)
    await pass_time(2.5)
    assert node.looked == 2 and "Too many open files" in caplog.text
    node.used = 95 * GIB
    await pass_time(1.0)
    assert len(node.killed) == 1
    node.monitor.close()


@in_virtual_time
async def test_a_monitor_without_a_period_never_looks() -> None:
    node = Node(used=95, period_s=0.0)
    await pass_time(100.0)
    assert node.looked == 0
    node.monitor.close()
