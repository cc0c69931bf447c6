"""How late a loop is, told by a loop that is kept busy."""

from __future__ import annotations

import asyncio
import time

from minray.common.loop_lag import event_loop_lag_ms

BUSY_S = 0.03


def keep_busy() -> None:
    until = time.monotonic() + BUSY_S
    while time.monotonic() < until:
        pass


def test_a_busy_loop_is_late_and_an_idle_one_is_not() -> None:
    async def measure(busy: bool) -> float:
        if busy:
            asyncio.get_running_loop().call_soon(keep_busy)
        return await event_loop_lag_ms()

    assert asyncio.run(measure(True)) >= BUSY_S * 1000 > min(asyncio.run(measure(False)) for _ in range(5))
