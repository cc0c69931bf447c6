"""Runs a small program whose main thread is a worker's."""

from __future__ import annotations

import subprocess
import sys
import textwrap


def run_program(source: str) -> list[str]:
    """Run a program with a MainThreadUserCode ``code``, which serves in the end, and its ``loop``. Return its lines."""
    before = """
        import asyncio, os, signal, threading, time
        from minray.platform.threads.main_thread import MainThreadUserCode
        loop = asyncio.new_event_loop()
        code = MainThreadUserCode(loop)
        code.start_relief()
        from_loop = loop.call_soon_threadsafe
        started = threading.Event()
    """
    text = textwrap.dedent(before) + textwrap.dedent(source) + "\ncode.serve()\nloop.close()\nprint('over')"
    result = subprocess.run([sys.executable, "-W", "error", "-c", text], capture_output=True, text=True, timeout=60)
    assert result.returncode == 0 and result.stderr == "", result.stderr
    return result.stdout.splitlines()
