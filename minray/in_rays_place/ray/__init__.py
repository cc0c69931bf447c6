"""What ``import ray`` finds when this folder's parent leads the path: minray, under the name of Ray.

Ray: python/ray/__init__.py

The module that is imported here takes itself out of the table of modules and leaves minray there. ``ray.x`` is ``minray.x``,
the same module, so that classes and exceptions are one and the same whichever name a program uses, and what is pickled
says ``minray``. A part of Ray that minray does not have is a ModuleNotFoundError that says so, an ImportError as ever.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

import minray


class _Names(MetaPathFinder, Loader):
    """Imports ``ray.x.y`` as ``minray.x.y``."""

    def __init__(self) -> None:
        self._own_specs: dict[str, ModuleSpec | None] = {}
        """What the import system writes over, by the name in Ray."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith("ray."):
            return None
        return ModuleSpec(fullname, self, is_package=hasattr(_module_for(fullname), "__path__"))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _module_for(spec.name)
        self._own_specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = self._own_specs.pop(module.__spec__.name)


def _module_for(ray_name: str) -> ModuleType:
    """Raises ModuleNotFoundError."""
    parent_name, _, name = ray_name.removeprefix("ray.").rpartition(".")
    parent = importlib.import_module(f"minray.{parent_name}" if parent_name else "minray")
    found = getattr(parent, name, None)
    if isinstance(found, ModuleType):
        return found
    own_name = f"{parent.__name__}.{name}"
    try:
        return importlib.import_module(own_name)
    except ModuleNotFoundError as error:
        if error.name != own_name:
            raise
        raise ModuleNotFoundError(f"{ray_name} is not part of minray, which stands in Ray's place", name=ray_name) from None


sys.meta_path.insert(0, _Names())
sys.modules["ray"] = minray
