"""The machine and the versions of software on which a run is measured."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

import psutil

PACKAGES = ("minray", "ray", "dask", "distributed", "grpcio", "numpy", "pandas", "pyarrow", "msgspec", "uvloop", "gymnasium")


def description() -> dict[str, Any]:
    """Return the machine, the versions of packages, and the commit of this code."""
    return {
        "processor": _processor(),
        "cores": os.cpu_count(),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": [round(load, 2) for load in os.getloadavg()],
        "versions": {name: version for name in PACKAGES if (version := _version(name))},
        "commit": _commit(),
        "begun": time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime()),
    }


def sentence(machine: dict[str, Any]) -> str:
    """Return the description of a machine as one line of text."""
    versions = ", ".join(f"{name} {version}" for name, version in machine["versions"].items())
    loads = ", ".join(str(load) for load in machine["load_before"])
    return (
        f"{machine['cores']} cores ({machine['processor']}), {machine['memory_gib']} GiB, {machine['system']}, "
        f"Python {machine['python']}; {versions}; commit {machine['commit']}; begun {machine['begun']}, "
        f"when the load averages were {loads}"
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    return next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.machine())


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return ""


def _commit() -> str:
    command = ["git", "-C", str(Path(__file__).parent), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
