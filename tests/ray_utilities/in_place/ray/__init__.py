"""minray in Ray's place, with Ray's own utilities on top of it, as they are in the Ray that is installed.

Only what these take from Ray's private modules, and minray does not have, is made here: a note that a library is used,
and a file with an address.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

import minray
import minray.in_rays_place.ray
import minray.util

UTILITIES = ("actor_pool", "queue", "multiprocessing", "joblib", "dask", "annotations")


def _installed_ray() -> Path:
    folders = [Path(entry) / "ray" for entry in sys.path]
    return next(folder for folder in folders if (folder / "util" / "actor_pool.py").exists())


class _Utilities(MetaPathFinder):
    """Finds ``ray.util.x`` and what is in it where Ray is installed."""

    def __init__(self) -> None:
        self._folder = _installed_ray()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        parts = fullname.split(".")
        if parts[:2] != ["ray", "util"] or len(parts) < 3 or parts[2] not in UTILITIES:
            return None
        place = self._folder.joinpath(*parts[1:])
        if place.is_dir():
            return spec_from_file_location(fullname, place / "__init__.py", submodule_search_locations=[str(place)])
        return spec_from_file_location(fullname, place.with_suffix(".py"))


def _stand_in(name: str, **members: Any) -> ModuleType:
    module = ModuleType(name)
    vars(module).update(members, __path__=[])
    sys.modules[name] = module
    return module


def _record_library_usage(name: str) -> None: ...


_usage_lib = _stand_in("ray._common.usage.usage_lib", record_library_usage=_record_library_usage)
_common: Any = import_module("ray._common")
_common.usage = _stand_in("ray._common.usage", usage_lib=_usage_lib)
_utils: Any = import_module("ray._private.utils")
_utils.read_ray_address = lambda *_: None
_util: Any = minray.util
_util.log_once = lambda key: False
sys.meta_path.insert(0, _Utilities())
for _name in UTILITIES:
    for _loaded in [name for name in sys.modules if f"{name}.".startswith(f"ray.util.{_name}.")]:
        del sys.modules[_loaded]
    import_module(f"ray.util.{_name}")
