"""Finds the modules of Ray: in minray, among the names that only Ray has, or among those that a program pretends to have.

Ray: has no counterpart

``ray.x`` is found in this order.

1. ``minray.x``. Both names are the same module, so classes and exceptions are the same objects under both, and pickles
   contain the name ``minray``.
2. ``minray.in_rays_place.names.x``: private modules of Ray, and others that minray does not show its own users.
3. A module that the program asked to pretend (``minray/in_rays_place/pretended.py``).

For any other module an import raises a ModuleNotFoundError that says so. A program that only looks for the module
(``importlib.util.find_spec``) finds nothing.

Rules
  * A module is entered in ``sys.modules`` under its name in Ray as soon as it is loaded. Otherwise the import system would
    import it again under that name and bind it to its parent package again. That could replace a function of the same
    name (``ray.util.placement_group``).
  * Modules that are packages in Ray and files here get an empty search path. So this finder is asked for their parts.
  * ``from ray import tune`` makes Python look for ``minray.tune``, because that is the name of the package. So this finder
    also answers for names in minray that minray does not have.
"""

from __future__ import annotations

import importlib
import logging
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder
from types import ModuleType
from typing import Any

import minray
import minray.experimental
import minray.util
from minray.in_rays_place import names
from minray.in_rays_place.names._private import worker
from minray.in_rays_place.pretended import PretendedModule, is_pretended
from minray.node.init import RayContext
from minray.runtime_context import RuntimeContext

IMPORTING = "_find_and_load_unlocked"
"""The function of ``importlib._bootstrap`` that calls finders to import a module. Other callers of finders only look."""
PACKAGES_IN_RAY = ("cloudpickle", "internal", "runtime_env", "util.joblib")
"""Files of minray that are packages in Ray."""
IMPORTED_WITH_RAY = (
    "_private",
    "_raylet",
    "experimental.internal_kv",
    "experimental.tqdm_ray",
    "util.annotations",
    "util.client",
)
"""Modules that a program may use after a mere ``import ray``, because Ray imports them itself."""
RAY_VERSION = "2.60.0"
"""Version of Ray whose names are here. Programs compare it to choose between the names of several versions."""
ATTRIBUTES: tuple[tuple[ModuleType | type, str, object], ...] = (
    (minray, "__version__", RAY_VERSION),
    (RayContext, "ray_version", RAY_VERSION),
    (minray, "logger", logging.getLogger("minray")),
    (RuntimeContext, "worker", worker.global_worker),
)
"""(owner, name, value) of attributes that modules and classes of minray have in Ray's place alone."""
HIDDEN = [(owner, name, vars(owner)[name]) for owner, name, _ in ATTRIBUTES if name in vars(owner)]
"""(owner, name, value) of minray's own attributes that have the same names."""
EXTENDED = (minray, minray.experimental, minray.util)
"""Modules that get attributes of ``names``."""


class _PickledAsRay(ModuleType):
    """The class of modules that have more attributes in Ray's place.

    They are pickled by their names in Ray. So a worker that is sent a function with ``ray`` among its globals imports Ray's
    names as well.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return importlib.import_module, (self.__name__.removeprefix("min"),)


class RayFinder(MetaPathFinder, Loader):
    """Imports ``ray.x.y`` as ``minray.x.y``, or as one of the two substitutes."""

    def __init__(self) -> None:
        self._own_specs: dict[str, ModuleSpec | None] = {}
        """The modules' own specs, which the import system overwrites, by the name in Ray."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.startswith("minray.") and _file_of(fullname) is None:
            ray_name = fullname.removeprefix("min")
        elif fullname.startswith("ray."):
            ray_name = fullname
        else:
            return None
        own = _spec_of(ray_name)
        if own is not None:
            return ModuleSpec(fullname, self, is_package=own.submodule_search_locations is not None)
        if is_pretended(ray_name):
            return ModuleSpec(fullname, self, is_package=True)
        if sys._getframe(2).f_code.co_name == IMPORTING:
            raise ModuleNotFoundError(f"{ray_name} is not part of minray, which stands in Ray's place", name=ray_name)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        ray_name = f"ray.{spec.name.partition('.')[2]}"
        own = _spec_of(ray_name)
        if own is None:
            known = sys.modules.get(ray_name)
            return known if known is not None else sys.modules.setdefault(ray_name, PretendedModule(ray_name))
        module = importlib.import_module(own.name)
        self._own_specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        if not isinstance(module, PretendedModule):
            module.__spec__ = self._own_specs.pop(module.__spec__.name)
            share_modules()


def _spec_of(ray_name: str) -> ModuleSpec | None:
    """Return the spec of the module of minray that a name in Ray means; None if there is none."""
    path = ray_name.removeprefix("ray.")
    return _file_of(f"{minray.__name__}.{path}") or _file_of(f"{names.__name__}.{path}")


def _file_of(name: str) -> ModuleSpec | None:
    """Return the spec of a file of minray, found without this finder; None if there is none."""
    package = name.rpartition(".")[0]
    loaded = sys.modules.get(package)
    if loaded is not None and loaded.__name__ == package:
        return PathFinder.find_spec(name, getattr(loaded, "__path__", []))
    found = _file_of(package)
    return PathFinder.find_spec(name, found.submodule_search_locations or []) if found is not None else None


def share_modules() -> None:
    """Enter all loaded modules of minray in ``sys.modules`` under their names in Ray."""
    sys.modules["ray"] = minray
    loaded = sorted(sys.modules.items(), key=lambda item: item[0])  # packages come before their modules
    for name, module in loaded:
        if name.startswith("minray."):
            sys.modules.setdefault(name.removeprefix("min"), module)
            if name.removeprefix("minray.") in PACKAGES_IN_RAY:
                vars(module).setdefault("__path__", [])
    for name, module in loaded:
        if name.startswith(f"{names.__name__}."):
            _share_name(f"ray{name.removeprefix(names.__name__)}", module)


def _share_name(ray_name: str, module: ModuleType) -> None:
    """Enter a module of ``names``, and bind it to its package; a module of minray with this name comes first."""
    if sys.modules.setdefault(ray_name, module) is module:
        package, _, name = ray_name.rpartition(".")
        setattr(sys.modules[package], name, module)


def install() -> None:
    """Let ``import ray`` mean minray in this process from now on."""
    sys.meta_path.insert(0, RayFinder())
    share_modules()
    for name in IMPORTED_WITH_RAY:
        importlib.import_module(f"ray.{name}")
    for owner, attribute, value in ATTRIBUTES:
        setattr(owner, attribute, value)
    for module in EXTENDED:
        module.__class__ = _PickledAsRay


def uninstall() -> None:
    """Take back ``install``, and remove what it has bound to the packages of minray. Do nothing if it was not called."""
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, RayFinder)]
    for name, module in list(sys.modules.items()):
        is_own = name.startswith("minray.") and module.__name__ == name
        if name == "ray" or name.startswith(("ray.", "minray.")) and not is_own:
            del sys.modules[name]
            package, _, attribute = name.rpartition(".")
            parent = sys.modules.get(package if package.startswith("min") else f"min{package}")
            if f"min{name.removeprefix('min')}" not in sys.modules and getattr(parent, attribute, None) is module:
                delattr(parent, attribute)
    for owner, attribute, _ in ATTRIBUTES:
        if attribute in vars(owner):
            delattr(owner, attribute)
    for owner, attribute, value in HIDDEN:
        setattr(owner, attribute, value)
    for module in EXTENDED:
        module.__class__ = ModuleType
    for name in PACKAGES_IN_RAY:
        if f"minray.{name}" in sys.modules:
            vars(sys.modules[f"minray.{name}"]).pop("__path__", None)
