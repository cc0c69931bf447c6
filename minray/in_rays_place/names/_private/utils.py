"""Facts about this machine, and small conversions.

Ray: python/ray/_private/utils.py, python/ray/_common/utils.py

Older programs import the functions of ``ray._common.utils`` from here, so they are here as well.
"""

from __future__ import annotations

import os
import threading

from minray.common.environment_variables import update_environment
from minray.in_rays_place.names._common.utils import (
    binary_to_hex,
    decode,
    get_or_create_event_loop,
    get_system_memory,
    hex_to_binary,
    import_attr,
    run_background_task,
)
from minray.platform.process.host import RealHost

__all__ = [
    "binary_to_hex",
    "decode",
    "get_or_create_event_loop",
    "get_system_memory",
    "hex_to_binary",
    "import_attr",
    "run_background_task",
]


def get_num_cpus(override_docker_cpu_warning: bool = False, truncate: bool = True) -> int:
    """Return the number of CPUs that this process may use, also in a container.

    Both arguments are accepted because Ray has them: there is no warning, and the number is whole.
    """
    return RealHost().cpu_count


def get_used_memory() -> int:
    """Return the bytes of memory in use, of the container or of the machine."""
    return RealHost().memory_usage()[0]


def estimate_available_memory() -> int:
    """Return the bytes of memory that are free, in the container or on the machine."""
    return get_system_memory() - get_used_memory()


def is_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()


def ensure_str(text: str | bytes, encoding: str = "utf-8", errors: str = "strict") -> str:
    """Return text as a str. Raises TypeError for anything but text."""
    if isinstance(text, bytes):
        return text.decode(encoding, errors)
    if not isinstance(text, str):
        raise TypeError(f"ensure_str takes a str or bytes, not {type(text).__name__}")
    return text


def update_envs(env_vars: dict[str, str]) -> None:
    """Set variables of this process's environment, as ``runtime_env={"env_vars": ...}`` does."""
    update_environment(os.environ, env_vars)
