"""Ray in minray's place, so that the tests of minray's public API judge Ray: ``minray.x`` is ``ray.x``.

Python imports this when it starts with this folder in ``PYTHONPATH``: in the tests, their programs and Ray's workers.
Nothing of minray is imported then. A test that asks for what only minray has fails at that.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType


class _Names(MetaPathFinder, Loader):
    """Imports ``minray.x.y`` as ``ray.x.y``."""

    def __init__(self) -> None:
        self._own_specs: dict[str, ModuleSpec | None] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != "minray":
            return None
        return ModuleSpec(fullname, self, is_package=hasattr(_module_for(fullname), "__path__"))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = _module_for(spec.name)
        self._own_specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Register imported modules under both names. Imported again, one would hide the function of its name."""
        assert module.__spec__ is not None
        module.__spec__ = self._own_specs.pop(module.__spec__.name)
        for name, inner in list(sys.modules.items()):
            if name.startswith(f"{module.__name__}."):
                sys.modules.setdefault(name.replace("ray", "minray", 1), inner)


def _module_for(name: str) -> ModuleType:
    return importlib.import_module(name.replace("minray", "ray", 1))


sys.meta_path.insert(0, _Names())
