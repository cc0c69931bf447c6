"""The use of GPUs, told by a library that stands in for NVIDIA's on machines made of a few files."""

from __future__ import annotations

import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import pytest

from minray.common.machine_usage import GpuUsage
from minray.platform.process.devices import RealDevices
from minray.platform.process.gpu_meter import GpuMeter
from minray.platform.process.host import RealHost

GIGABYTE = 1 << 30
H100 = GpuUsage(0, "NVIDIA H100 80GB HBM3", 87.0, 60 * GIGABYTE, 80 * GIGABYTE, 412_000.0, 61.0)
CONSUMER = GpuUsage(1, "NVIDIA GeForce GT 710", None, GIGABYTE, 2 * GIGABYTE, None, None)


class Memory(NamedTuple):
    """Bytes, as the library tells them."""

    used: int
    total: int


class Rates(NamedTuple):
    """Percent, as the library tells them."""

    gpu: float


def library_of(*gpus: GpuUsage | None) -> Any:
    """A library that finds these GPUs; None is one that has fallen off its bus."""
    library: Any = ModuleType("pynvml")
    library.started = 0

    def start() -> None:
        library.started += 1

    def known(value: float | None) -> float:
        if value is None:
            raise RuntimeError("Not Supported")
        return value

    def handle(index: int) -> GpuUsage:
        gpu = gpus[index]
        if gpu is None:
            raise RuntimeError("GPU is lost")
        return gpu

    library.nvmlInit = start
    library.NVML_TEMPERATURE_GPU = 0
    library.nvmlDeviceGetCount = lambda: len(gpus)
    library.nvmlDeviceGetHandleByIndex = handle
    library.nvmlDeviceGetName = lambda gpu: gpu.name.encode() if gpu.number else gpu.name
    library.nvmlDeviceGetMemoryInfo = lambda gpu: Memory(gpu.memory_used, gpu.memory_total)
    library.nvmlDeviceGetUtilizationRates = lambda gpu: Rates(known(gpu.percent))
    library.nvmlDeviceGetPowerUsage = lambda gpu: known(gpu.power_milliwatts)
    library.nvmlDeviceGetTemperature = lambda gpu, sensor: known(gpu.temperature_celsius)
    return library


@pytest.fixture
def root(tmp_path: Path) -> str:
    """A machine with the device file of a GPU."""
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia0").touch()
    return str(tmp_path)


def install(monkeypatch: pytest.MonkeyPatch, library: Any) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", library)


def test_each_gpu_is_measured_and_what_it_does_not_tell_is_none(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    library = library_of(H100, CONSUMER)
    install(monkeypatch, library)
    meter = GpuMeter(RealDevices(root))
    assert meter.measure() == meter.measure() == (H100, CONSUMER) and library.started == 1


def test_a_lost_gpu_is_missing_alone(
    root: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    install(monkeypatch, library_of(None, CONSUMER))
    with caplog.at_level(logging.WARNING, "minray"):
        meter = GpuMeter(RealDevices(root))
        assert meter.measure() == meter.measure() == (CONSUMER,)
    assert [record.getMessage() for record in caplog.records] == ["GPU 0 is missing among the metrics: GPU is lost"]


def test_a_machine_without_gpus_never_asks_the_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidiactl").touch()  # The driver is there, but no GPU.
    library = library_of(H100)
    install(monkeypatch, library)
    assert GpuMeter(RealDevices(str(tmp_path))).measure() == () and library.started == 0


def test_without_the_library_there_are_no_figures(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, None)
    assert GpuMeter(RealDevices(root)).measure() == ()


def test_the_use_of_the_machine_includes_its_gpus(root: str, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, library_of(H100))
    assert RealHost(root).machine_usage().gpus == (H100,)
