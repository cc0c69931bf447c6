"""``minray`` and ``python -m minray``: the command line.

Ray: python/ray/scripts/scripts.py (its ``main``)

The commands are in ``minray.cli.main``; this file is only their door, so that importing them runs nothing.
"""

from minray.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main(prog_name="minray")
