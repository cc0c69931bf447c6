"""Reads what this machine tells about its devices: names in directories, small files, and NVIDIA's own tools.

Ray: python/ray/_private/thirdparty/pynvml, a copy of NVIDIA's library for Python

``minray/node/accelerators.py`` decides what to ask. Nothing here raises: what cannot be read is not there.
"""

from __future__ import annotations

import importlib
import logging
import os
import subprocess
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

SMI_TIMEOUT_S = 20.0
"""Seconds that ``nvidia-smi`` has. It takes one or two for each GPU whose driver is not loaded yet."""
logger = logging.getLogger("minray")


def has_nvidia_gpu(names: Iterable[str]) -> bool:
    """Tell whether these names of /dev show a GPU of NVIDIA: ``nvidia0`` and so on, or ``dxg`` in WSL."""
    return any(name == "dxg" or (name.startswith("nvidia") and name[len("nvidia") :].isdecimal()) for name in names)


class RealDevices:
    """This machine's devices. Tests pass a ``root`` other than / to find /dev, /proc and /sys in."""

    def __init__(self, root: str = "/") -> None:
        self._root = Path(root)

    def names(self, directory: str) -> list[str]:
        """Return the names in a directory, sorted; empty if there is none."""
        try:
            return sorted(os.listdir(self._root / directory.lstrip("/")))
        except OSError:
            return []

    def text(self, path: str) -> str:
        """Return the text of a file; empty if it cannot be read."""
        try:
            return (self._root / path.lstrip("/")).read_text(errors="replace")
        except OSError:
            return ""

    def nvml_products(self) -> list[str] | None:
        """Return the product names of NVIDIA's GPUs by index, as the library ``pynvml`` tells them; None without it."""
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # The package of the name pynvml asks to install nvidia-ml-py instead.
                nvml: Any = importlib.import_module("pynvml")
            nvml.nvmlInit()
        except Exception as error:
            logger.debug("pynvml does not tell the GPUs of this machine: %r", error)
            return None
        try:
            handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
            return [name.decode() if isinstance(name, bytes) else name for name in map(nvml.nvmlDeviceGetName, handles)]
        except Exception as error:
            logger.warning("pynvml could not tell the GPUs of this machine, other sources are asked: %s", error)
            return None
        finally:
            nvml.nvmlShutdown()

    def smi_products(self) -> list[str]:
        """Return the product names of NVIDIA's GPUs by index, as the program ``nvidia-smi`` tells them; empty without it."""
        from shutil import which  # It imports all compressors, which a driver on a machine without GPUs need not have.

        program = which("nvidia-smi")
        if program is None:
            return []
        command = [program, "--query-gpu=name", "--format=csv,noheader"]
        try:
            told = subprocess.run(command, capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=True).stdout
        except (OSError, subprocess.SubprocessError) as error:
            logger.warning("nvidia-smi could not tell the GPUs of this machine: %s", error)
            return []
        return [line.strip() for line in told.splitlines() if line.strip()]
