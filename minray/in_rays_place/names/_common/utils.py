"""Variables of the environment, imports by name, event loops and ids.

Ray: python/ray/_common/utils.py

Paths of Ray's temporary files and the merging of task options are left out: minray has others.
"""

from __future__ import annotations

import asyncio
import importlib
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from minray.platform.process.host import RealHost

N = TypeVar("N", int, float)
logger = logging.getLogger("minray")
_background_tasks: set[asyncio.Task[Any]] = set()
"""Running background tasks; asyncio itself keeps only weak references to tasks."""


def env_integer(key: str, default: int) -> int:
    """Return a variable of the environment as an int; the default if it is not set or no int."""
    return _env_number(int, key, default)


def env_float(key: str, default: float) -> float:
    """Return a variable of the environment as a float; the default if it is not set or no number."""
    return _env_number(float, key, default)


def _env_number(convert: Callable[[str], N], key: str, default: N) -> N:
    text = os.environ.get(key)
    try:
        return default if text is None else convert(text)
    except ValueError:
        logger.warning("environment variable %s=%r is not a number; %s is used instead", key, text, default)
        return default


def env_bool(key: str, default: bool) -> bool:
    """Return whether a variable of the environment is ``1`` or ``true``; the default if it is not set."""
    return os.environ[key].lower() in ("true", "1") if key in os.environ else default


def import_attr(full_path: str, *, reload_module: bool = False) -> Any:
    """Import ``module.attribute`` or ``module:attribute``, and return the attribute."""
    module_name, _, name = full_path.partition(":") if ":" in full_path else full_path.rpartition(".")
    module = importlib.import_module(module_name)
    if reload_module:
        module = importlib.reload(module)
    return getattr(module, name)


def load_class(path: str) -> type[Any]:
    """Import ``module.Class`` and return the class."""
    found: type[Any] = import_attr(path)
    return found


def get_or_create_event_loop() -> asyncio.AbstractEventLoop:
    """Return the running event loop, or else that of this thread, which is made if there is none."""
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        pass
    try:
        return asyncio.get_event_loop_policy().get_event_loop()
    except RuntimeError:
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)
        return loop


def run_background_task(coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    """Start a coroutine on the running loop, and keep its task alive until it ends."""
    task = get_or_create_event_loop().create_task(coroutine)
    _background_tasks.add(task)
    task.add_done_callback(_background_tasks.discard)
    return task


def binary_to_hex(identifier: bytes) -> str:
    return identifier.hex()


def hex_to_binary(hex_identifier: str) -> bytes:
    return bytes.fromhex(hex_identifier)


def decode(byte_str: bytes, allow_none: bool = False, encode_type: str = "utf-8") -> str:
    """Return bytes as text; None becomes "" with ``allow_none``. Raises ValueError for anything else."""
    if byte_str is None and allow_none:
        return ""
    if not isinstance(byte_str, bytes):
        raise ValueError(f"decode takes bytes, not {type(byte_str).__name__}")
    return byte_str.decode(encode_type)


def get_system_memory() -> int:
    """Return the bytes of memory that this process may use, of the container or of the machine."""
    return RealHost().memory_bytes
