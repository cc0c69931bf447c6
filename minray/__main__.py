"""``minray`` and ``python -m minray``: the command line.

Ray: python/ray/scripts/scripts.py (its ``main``)

The commands are in ``minray.cli.main``. This file only calls them, so that importing that module runs nothing.
"""

from minray.cli.main import main

__all__ = ["main"]

if __name__ == "__main__":
    main(prog_name="minray")
