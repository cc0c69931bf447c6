"""Lets ``import ray`` import minray under the name of Ray, when this folder's parent comes first in the module path.

Ray: python/ray/__init__.py

This module replaces itself in ``sys.modules`` by minray. ``ray.x`` and ``minray.x`` are the same module. So classes and
exceptions are the same objects under both names, and pickles contain the name ``minray``. To import a part of Ray that
minray does not have raises a ModuleNotFoundError that says so. A program that only looks for it
(``importlib.util.find_spec``) finds nothing.

A module of minray is entered in ``sys.modules`` under its name in Ray as soon as it is loaded. Otherwise the import system
would import it again under that name and bind it to its parent package again. That could replace a function of the same name
(``ray.util.placement_group``).
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import minray

IMPORTING = "_find_and_load_unlocked"
"""The function of ``importlib._bootstrap`` that calls finders to import a module. Other callers of finders only look."""


class _Names(MetaPathFinder, Loader):
    """Imports ``ray.x.y`` as ``minray.x.y``."""

    def __init__(self) -> None:
        self._own_specs: dict[str, ModuleSpec | None] = {}
        """The modules' own specs, which the import system overwrites, by the name in Ray."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("ray."):
            return None
        parent, name = _place_of(fullname)
        found = getattr(parent, name, None)
        own = found.__spec__ if isinstance(found, ModuleType) else importlib.util.find_spec(f"{parent.__name__}.{name}")
        if own is not None:
            return ModuleSpec(fullname, self, is_package=own.submodule_search_locations is not None)
        if sys._getframe(2).f_code.co_name == IMPORTING:
            raise ModuleNotFoundError(f"{fullname} is not part of minray, which stands in Ray's place", name=fullname)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _module_for(spec.name)
        self._own_specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = self._own_specs.pop(module.__spec__.name)
        _share_modules()


def _module_for(ray_name: str) -> ModuleType:
    """Return the module of minray for a name in Ray that ``find_spec`` has found."""
    parent, name = _place_of(ray_name)
    found = getattr(parent, name, None)
    return found if isinstance(found, ModuleType) else importlib.import_module(f"{parent.__name__}.{name}")


def _place_of(ray_name: str) -> tuple[ModuleType, str]:
    """Return the package of minray that a name in Ray is in, and its name there."""
    parent_name, _, name = ray_name.removeprefix("ray.").rpartition(".")
    return importlib.import_module(f"minray.{parent_name}" if parent_name else "minray"), name


def _share_modules() -> None:
    """Enter all loaded modules of minray in ``sys.modules`` under their names in Ray."""
    sys.modules["ray"] = minray
    for name, module in list(sys.modules.items()):
        if name.startswith("minray."):
            sys.modules[name.removeprefix("min")] = module


sys.meta_path.insert(0, _Names())
_share_modules()
