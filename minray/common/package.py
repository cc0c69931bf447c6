"""Where this package lies, which of its modules have a property that others must know of, and names imported at first use.

Ray: python/ray/_private/utils.py (get_ray_site_packages)

A list of paths would be wrong without a word as soon as a file moves. So the files say it themselves, with a constant in
their global names, which every frame of theirs can be asked for.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from types import FrameType
from typing import Any

DIRECTORY = os.path.dirname(str(sys.modules[__name__.partition(".")[0]].__file__))
"""The folder of the package, without a separator at its end."""
COUNTS_REFERENCES = "COUNTS_REFERENCES"
"""Name of the constant of modules whose frames count references and never block: an interrupt waits for their end."""
HOLDS_LOCKS = "HOLDS_LOCKS"
"""Name of the constant of modules whose frames may hold a lock: a simulated thread does not stop there."""


def has_mark(frame: FrameType, mark: str) -> bool:
    """Whether the frame belongs to a module that has the constant."""
    return frame.f_globals.get(mark) is True


def imported_at_first_use(package: str, places: Mapping[str, str]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` for a package, which imports a name when it is first used, and keeps it.

    ``places``: name -> its module, or ``module:attribute``. The function raises AttributeError for any other name.
    """

    def import_name(name: str) -> Any:
        if name not in places:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, _, attribute = places[name].partition(":")
        found = getattr(import_module(module), attribute) if attribute else import_module(module)
        setattr(sys.modules[package], name, found)
        return found

    return import_name
