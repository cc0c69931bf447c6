"""Measures how late an event loop is: how long something that is ready waits for its turn.

Ray: src/ray/common/asio/instrumented_io_context.cc (LagProbeLoop)

Ray measures it all the time. Here it is measured when somebody asks for metrics, and one turn of the loop tells little about
the others. A loop that is late whenever it is asked has too much to do.
"""

from __future__ import annotations

import asyncio


async def event_loop_lag_ms() -> float:
    """Return the milliseconds from asking the running loop for a turn to that turn. uvloop counts whole ones."""
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    await asyncio.sleep(0)
    return (loop.time() - asked_at) * 1000
