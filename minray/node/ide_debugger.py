"""debugpy in workers: a driver that runs under debugpy has its workers attached to the same debugger.

Ray: python/ray/util/debugpy.py, where each worker listens on a TCP port when it meets a breakpoint

With ``"subProcess": true``, the default, debugpy follows a program's child processes: it changes the command with which each
starts. Workers are forked by a zygote, which must have one thread, so the zygote starts without debugpy
(``platform/process/processes.py``). Instead the driver passes on the address of its debug adapter. Each worker of its job
connects there before its first task, through the job's setup hook. The adapter then tells the editor, as for any child.

Rules
  * A worker waits at most ``ATTACH_S`` for the editor, and runs its tasks in any case.
  * The address is that at which debugpy's adapter waits for processes, on loopback. A worker on another machine says that
    it cannot reach it.

PyCharm has a debugger of its own, which a setup hook calls (``docs/debugging.md``).
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from minray.core_worker.execution.job_environment import pack_hook, run_hook

ATTACH_S = 10.0
"""Seconds that a worker waits for the editor before its first task."""
logger = logging.getLogger("minray")


class Adapter(NamedTuple):
    """The debug adapter to which a driver is connected."""

    host: str
    port: int
    access_token: str | None
    """The token with which the adapter proves itself to a process; None: it needs none."""
    client_access_token: str | None
    """The token with which a process proves itself to the adapter; None: it needs none."""
    driver_pid: int


def with_debugger(hook: Callable[[], Any] | str | None) -> Callable[[], Any] | str | None:
    """Return a setup hook that attaches the worker to the driver's debugger and then calls ``hook``.

    Without debugpy in this process, or with ``"subProcess": false``, return ``hook``. Raises TypeError if the hook cannot be
    pickled.
    """
    adapter = _adapter()
    return hook if adapter is None else partial(attach_worker, adapter, pack_hook(hook))


def _adapter() -> Adapter | None:
    """Return the adapter that debugs this process and its children; None if there is none."""
    pydevd = sys.modules.get("pydevd")
    if pydevd is None or "debugpy" not in sys.modules:
        return None
    setup = getattr(getattr(pydevd, "SetupHolder", None), "setup", None) or {}
    if not setup.get("client") or not setup.get("port") or not setup.get("multiprocess", True):
        return None
    return Adapter(
        host=setup["client"],
        port=setup["port"],
        access_token=setup.get("access-token"),
        client_access_token=setup.get("client-access-token"),
        driver_pid=os.getpid(),
    )


def attach_worker(adapter: Adapter, packed_hook: bytes) -> None:
    """Attach this worker to the debugger of its driver, and call the user's setup hook. Called in a worker's main thread."""
    try:
        _connect(adapter)
    except Exception as error:
        logger.warning("this worker is not debugged, because the driver's debugger cannot be reached: %s", error)
    if packed_hook:
        run_hook(packed_hook)


def _connect(adapter: Adapter) -> None:
    """Connect to the adapter with what debugpy gives to the children that it starts, and wait for the editor.

    ``debugpy.connect`` does not take the adapter's token, so this calls what lies below it, as debugpy does in its children.
    """
    import debugpy
    import debugpy.server.api  # prepares pydevd for the protocol of editors
    import pydevd

    pydevd.settrace(
        host=adapter.host,
        port=adapter.port,
        access_token=adapter.access_token,
        client_access_token=adapter.client_access_token,
        ppid=adapter.driver_pid,
        suspend=False,
        trace_only_current_thread=False,
        patch_multiprocessing=True,
        wait_for_ready_to_run=False,
    )
    late = threading.Timer(ATTACH_S, debugpy.wait_for_client.cancel)
    late.daemon = True
    late.start()
    debugpy.wait_for_client()
    late.cancel()
