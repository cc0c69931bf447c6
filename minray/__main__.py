"""``minray`` and ``python -m minray``: the command line.

Ray: python/ray/scripts/scripts.py (its ``main``)

The commands are in ``minray.cli.main``. This file only calls them, so that importing that module runs nothing. The health
check comes first: probes run it all the time, and it needs little of what the other commands import.
"""

from __future__ import annotations

import sys

HEALTH_CHECK = "health-check"

__all__ = ["main"]


def main(prog_name: str | None = None) -> None:
    """Run the command that the process's arguments name."""
    if sys.argv[1:2] == [HEALTH_CHECK]:
        from minray.cli.health_check import main as check_health

        check_health(sys.argv[2:])
        return
    from minray.cli.main import main as run_command

    run_command(prog_name=prog_name)


if __name__ == "__main__":
    main(prog_name="minray")
