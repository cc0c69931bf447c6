"""``minray`` and ``python -m minray``: the command line.

Ray: python/ray/scripts/scripts.py (its ``main``)

The commands are in ``minray.cli.main``. This file only calls them, so that importing that module runs nothing. The health
check comes first: probes run it all the time, and it needs little of what the other commands import.

While the commands are imported, Ctrl-C ends the process at once, like any program without a handler. Python's own handler
would raise KeyboardInterrupt inside an import: people see a traceback, and msgspec can crash while it makes a class.
"""

from __future__ import annotations

import signal
import sys

HEALTH_CHECK = "health-check"

__all__ = ["main"]


def main(prog_name: str | None = None) -> None:
    """Run the command that the process's arguments name."""
    if sys.argv[1:2] == [HEALTH_CHECK]:
        from minray.cli.health_check import main as check_health

        check_health(sys.argv[2:])
        return
    is_pythons = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if is_pythons:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from minray.cli.main import main as run_command

    if is_pythons:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run_command(prog_name=prog_name)


if __name__ == "__main__":
    main(prog_name="minray")
