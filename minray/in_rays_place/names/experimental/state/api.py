"""The state API under its name before Ray 2.7.

Ray: python/ray/experimental/state/api.py

All names of ``minray/util/state`` are here.
"""

from minray.util.state import *  # noqa: F403
