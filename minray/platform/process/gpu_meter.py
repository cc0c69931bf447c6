"""Measures the NVIDIA GPUs of this machine with NVIDIA's library ``pynvml``, for the system metrics.

Ray: python/ray/dashboard/modules/reporter/gpu_providers.py (NvidiaGpuProvider)

Rules
  * A machine without device files of GPUs is asked nothing else, and pays for one listing of a directory.
  * Without ``pynvml`` (``pip install nvidia-ml-py``) the GPUs have no figures. ``nvidia-smi`` would take a second each time.
  * The library is loaded and opened once. A GPU that fails to answer is missing; the others are measured.
  * All GPUs of the machine are measured, whichever of them the node may use, as in Ray.
"""

from __future__ import annotations

import importlib
import logging
import warnings
from contextlib import suppress
from typing import Any

from minray.common.machine_usage import GpuUsage
from minray.platform.process.devices import RealDevices, has_nvidia_gpu

logger = logging.getLogger("minray")


class GpuMeter:
    """The GPUs of one machine, measured as often as it is asked."""

    def __init__(self, devices: RealDevices) -> None:
        self._library = _open_library() if has_nvidia_gpu(devices.names("/dev")) else None
        self._lost: set[int] = set()
        """Indices of GPUs that did not answer, so that the log names each once."""

    def measure(self) -> tuple[GpuUsage, ...]:
        """Return the use of each GPU that answers, by index; empty without GPUs or without the library."""
        if self._library is None:
            return ()
        try:
            count = self._library.nvmlDeviceGetCount()
        except Exception as error:
            logger.warning("pynvml cannot count the GPUs of this machine: %s", error)
            return ()
        return tuple(usage for index in range(count) if (usage := self._one(index)) is not None)

    def _one(self, index: int) -> GpuUsage | None:
        library: Any = self._library
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            name, memory = library.nvmlDeviceGetName(handle), library.nvmlDeviceGetMemoryInfo(handle)
        except Exception as error:
            if index not in self._lost:
                self._lost.add(index)
                logger.warning("GPU %d is missing among the metrics: %s", index, error)
            return None
        percent = power = celsius = None
        with suppress(Exception):  # Some GPUs for consumers do not tell these.
            percent = float(library.nvmlDeviceGetUtilizationRates(handle).gpu)
        with suppress(Exception):
            power = float(library.nvmlDeviceGetPowerUsage(handle))
        with suppress(Exception):
            celsius = float(library.nvmlDeviceGetTemperature(handle, library.NVML_TEMPERATURE_GPU))
        return GpuUsage(
            number=index,
            name=name.decode() if isinstance(name, bytes) else name,
            percent=percent,
            memory_used=int(memory.used),
            memory_total=int(memory.total),
            power_milliwatts=power,
            temperature_celsius=celsius,
        )


def _open_library() -> Any:
    """Return the library ``pynvml``, ready to be asked; None if it is not installed, or finds no driver."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # The package of the name pynvml asks to install nvidia-ml-py instead.
            library = importlib.import_module("pynvml")
        library.nvmlInit()
    except Exception as error:
        logger.info("GPUs have no metrics, because pynvml does not tell them: %r", error)
        return None
    return library
