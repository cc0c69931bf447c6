"""Waits, programs and actors for tests.

Ray: python/ray/_common/test_utils.py

Checks of Ray's telemetry and a fake S3 bucket are left out.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

from minray.remote_function import remote

__all__ = ["Semaphore", "SignalActor"]

DRIVER_TIMEOUT_S = 300.0
"""Seconds that a program has by default, before it is killed."""


@remote(num_cpus=0)
class SignalActor:
    """An actor in which others wait until ``send`` is called."""

    def __init__(self) -> None:
        self._ready = asyncio.Event()
        self._waiting = 0

    def send(self, clear: bool = False) -> None:
        """Let those go on that wait; with ``clear`` let later ones wait again."""
        self._ready.set()
        if clear:
            self._ready.clear()

    async def wait(self, should_wait: bool = True) -> None:
        if should_wait:
            self._waiting += 1
            await self._ready.wait()
            self._waiting -= 1

    async def cur_num_waiters(self) -> int:
        return self._waiting


@remote(num_cpus=0)
class Semaphore:
    """An actor with a semaphore."""

    def __init__(self, value: int = 1) -> None:
        self._semaphore = asyncio.Semaphore(value)

    async def acquire(self) -> None:
        await self._semaphore.acquire()

    async def release(self) -> None:
        self._semaphore.release()

    async def locked(self) -> bool:
        return self._semaphore.locked()


def wait_for_condition(
    condition_predictor: Callable[..., bool],
    timeout: float = 10,
    retry_interval_ms: float = 100,
    raise_exceptions: bool = False,
    **kwargs: Any,
) -> None:
    """Call a function until it returns something true. Raises RuntimeError after ``timeout`` seconds.

    The function's exceptions count as false, unless ``raise_exceptions``.
    """
    deadline, last = time.monotonic() + timeout, ""
    while time.monotonic() <= deadline:
        try:
            if condition_predictor(**kwargs):
                return
        except Exception as error:
            if raise_exceptions:
                raise
            last = f" Last exception: {error!r}"
        time.sleep(retry_interval_ms / 1000)
    raise RuntimeError(f"The condition wasn't met before the timeout expired.{last}")


async def async_wait_for_condition(
    condition_predictor: Callable[..., bool | Awaitable[bool]],
    timeout: float = 10,
    retry_interval_ms: float = 100,
    **kwargs: Any,
) -> None:
    """Do the same on an event loop, for a function or a coroutine function."""
    deadline, last = time.monotonic() + timeout, ""
    while time.monotonic() <= deadline:
        try:
            found = condition_predictor(**kwargs)
            if await found if isinstance(found, Awaitable) else found:
                return
        except Exception as error:
            last = f" Last exception: {error!r}"
        await asyncio.sleep(retry_interval_ms / 1000)
    raise RuntimeError(f"The condition wasn't met before the timeout expired.{last}")


def run_string_as_driver(
    driver_script: str,
    env: dict[str, str] | None = None,
    encode: str = "utf-8",
    timeout: float | None = DRIVER_TIMEOUT_S,
) -> str:
    """Run a text as a program of its own, in which ``import ray`` means the same, and return what it prints.

    Raises subprocess.CalledProcessError if it fails, subprocess.TimeoutExpired if it is killed after ``timeout`` seconds.
    """
    environ = {**(os.environ if env is None else env), "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = subprocess.run(
        [sys.executable, "-"],
        input=driver_script.encode(encode),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=timeout,
        env=environ,
        check=False,
    )
    output = done.stdout.decode(encode)
    if done.returncode:
        print(output)
        raise subprocess.CalledProcessError(done.returncode, done.args, output, None)
    return output
