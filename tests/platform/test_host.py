"""The real host: what containers allow, from made-up control groups of both versions."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest

from minray.platform.process.host import MOST_FILES, RealHost, raise_file_limit

GIGABYTE = 1024**3


def host(root: Path, memberships: str, files: dict[str, str]) -> RealHost:
    """A host whose process is in the control groups ``memberships``, with ``files`` below /sys/fs/cgroup."""
    for name, text in {"proc/self/cgroup": memberships, **{f"sys/fs/cgroup/{name}": files[name] for name in files}}.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return RealHost(str(root))


@pytest.fixture(autouse=True)
def eight_cpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)), raising=False)


def test_no_control_groups(tmp_path: Path) -> None:
    real = RealHost(str(tmp_path))
    assert real.cpu_count == 8
    assert real.memory_bytes == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def test_this_machine() -> None:
    real = RealHost()
    assert real.hostname and real.memory_bytes > 0 and 1 <= real.cpu_count <= 8
    assert len(real.random_bytes(16)) == 16 and real.random_bytes(16) != real.random_bytes(16)
    assert 0 <= real.random() < 1 and real.time() > 1.6e9


@pytest.mark.parametrize(("quota", "expected"), [("max", 8), ("400000", 4), ("250000", 2), ("50000", 1), ("1600000", 8)])
def test_version_2_cpus(tmp_path: Path, quota: str, expected: int) -> None:
    assert host(tmp_path, "0::/job", {"job/cpu.max": f"{quota} 100000"}).cpu_count == expected


def test_version_2_the_tightest_level_holds(tmp_path: Path) -> None:
    quarter, half = str(GIGABYTE // 4), str(GIGABYTE // 2)
    limits = {"a/b/memory.max": "max", "a/memory.max": quarter, "memory.max": half, "cpu.max": "300000 100000"}
    found = host(tmp_path, "0::/a/b", limits)
    assert (found.memory_bytes, found.cpu_count) == (GIGABYTE // 4, 3)


def test_version_2_seen_from_inside_a_container(tmp_path: Path) -> None:
    """The group's path is the machine's, but its limits are at the mount."""
    assert host(tmp_path, "0::/docker/1f3c", {"cpu.max": "200000 100000"}).cpu_count == 2


def test_version_1(tmp_path: Path) -> None:
    memberships = "9:name=systemd:/\n5:cpu,cpuacct:/job\n4:memory:/job\n0::/"
    limits = {
        "cpu/job/cpu.cfs_quota_us": "200000",
        "cpu/job/cpu.cfs_period_us": "100000",
        "memory/job/memory.limit_in_bytes": str(GIGABYTE // 8),
    }
    found = host(tmp_path, memberships, limits)
    assert (found.cpu_count, found.memory_bytes) == (2, GIGABYTE // 8)


def test_version_1_seen_from_inside_a_container(tmp_path: Path) -> None:
    """The groups' paths are the machine's, nested as Kubernetes nests them, but their limits are at the mounts."""
    memberships = "5:cpu,cpuacct:/kubepods/burstable/pod7/1f3c\n4:memory:/kubepods/burstable/pod7/1f3c"
    limits = {
        "cpu/cpu.cfs_quota_us": "350000",
        "cpu/cpu.cfs_period_us": "100000",
        "memory/memory.limit_in_bytes": str(GIGABYTE // 8),
    }
    found = host(tmp_path, memberships, limits)
    assert (found.cpu_count, found.memory_bytes) == (3, GIGABYTE // 8)


def test_version_1_without_limits(tmp_path: Path) -> None:
    limits = {"cpu/cpu.cfs_quota_us": "-1", "memory/memory.limit_in_bytes": str(2**63 - 4096)}
    found = host(tmp_path, "5:cpu:/\n4:memory:/", limits)
    assert (found.cpu_count, found.memory_bytes) == (8, RealHost(str(tmp_path / "nothing")).memory_bytes)


@pytest.mark.parametrize(
    ("soft", "hard", "wanted"),
    [
        (1024, 524_288, 524_288),
        (1024, MOST_FILES * 1000, MOST_FILES),
        (256, resource.RLIM_INFINITY, MOST_FILES),
        (4096, 4096, None),
        (resource.RLIM_INFINITY, resource.RLIM_INFINITY, None),
    ],
)
def test_the_limit_of_open_files_is_raised_as_far_as_it_may_be(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, wanted: int | None
) -> None:
    asked: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    monkeypatch.setattr(resource, "setrlimit", lambda _, limits: asked.append(limits))
    assert raise_file_limit() == (wanted or soft)
    assert asked == ([] if wanted is None else [(wanted, hard)])


def test_a_limit_of_open_files_that_may_not_be_raised_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise ValueError("not allowed to raise maximum limit")

    monkeypatch.setattr(resource, "getrlimit", lambda _: (256, resource.RLIM_INFINITY))
    monkeypatch.setattr(resource, "setrlimit", refuse)
    assert raise_file_limit() == 256
