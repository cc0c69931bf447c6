"""Where this package lies, and which of its modules have a property that others must know of.

Ray: python/ray/_private/utils.py (get_ray_site_packages)

A list of paths would be wrong without a word as soon as a file moves. So the files say it themselves, with a constant in
their global names, which every frame of theirs can be asked for.
"""

from __future__ import annotations

import os
import sys
from types import FrameType

DIRECTORY = os.path.dirname(str(sys.modules[__name__.partition(".")[0]].__file__))
"""The folder of the package, without a separator at its end."""
COUNTS_REFERENCES = "COUNTS_REFERENCES"
"""Name of the constant of modules whose frames count references and never block: an interrupt waits for their end."""
HOLDS_LOCKS = "HOLDS_LOCKS"
"""Name of the constant of modules whose frames may hold a lock: a simulated thread does not stop there."""


def has_mark(frame: FrameType, mark: str) -> bool:
    """Whether the frame belongs to a module that has the constant."""
    return frame.f_globals.get(mark) is True
