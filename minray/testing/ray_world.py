"""Real Ray in minray's place, so that tests that say ``import minray`` run on Ray: ``--minray-world=ray``.

Ray: the installed package

``install`` makes ``import minray.x`` mean ``import ray.x``, in this process and, by the runtime environment of ``start``, in
Ray's workers. The modules below ``minray.testing`` stay as they are. Tests that say ``import ray`` need nothing of this.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

OURS, RAYS = "minray", "ray"
STAYS = "minray.testing"
"""The part of minray that tests use, whatever runs their clusters."""
HOOK = f"{__name__}.install"
DEFAULTS = {"num_cpus": 4, "include_dashboard": False, "log_to_driver": False}
"""Arguments of Ray's ``init``: the CPUs of a ``LocalCluster``, and without parts that take long to start."""
CONFIG = "_system_config"


class _RaysNames(MetaPathFinder, Loader):
    """Imports ``minray.x.y`` as ``ray.x.y``."""

    def __init__(self) -> None:
        self._own_specs: dict[str, ModuleSpec | None] = {}
        """Specs of Ray's modules while Python gives them another."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname.partition(".")[0] != OURS or _stays(fullname):
            return None
        module = importlib.import_module(fullname.replace(OURS, RAYS, 1))
        return ModuleSpec(fullname, self, is_package=hasattr(module, "__path__"))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(spec.name.replace(OURS, RAYS, 1))
        self._own_specs[spec.name] = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        """Register imported modules under both names. A second import would hide a function of the same name."""
        assert module.__spec__ is not None
        module.__spec__ = self._own_specs.pop(module.__spec__.name)
        for name, inner in list(sys.modules.items()):
            if name.startswith(f"{module.__name__}."):
                sys.modules.setdefault(name.replace(RAYS, OURS, 1), inner)


def _stays(name: str) -> bool:
    return name == STAYS or name.startswith(f"{STAYS}.")


def install() -> None:
    """Put Ray in minray's place. Raises ModuleNotFoundError if Ray is not installed. May be called again."""
    if any(isinstance(finder, _RaysNames) for finder in sys.meta_path):
        return
    importlib.import_module(RAYS)
    for name in [name for name in sys.modules if name.partition(".")[0] == OURS and not _stays(name)]:
        del sys.modules[name]
    sys.meta_path.insert(0, _RaysNames())
    importlib.import_module(OURS)


class RayCluster:
    """A cluster of real Ray for a test, with the methods of ``LocalCluster``."""

    def __init__(self, nodes: Sequence[Mapping[str, Any]], is_alone: bool, arguments: Mapping[str, Any]) -> None:
        """``is_alone``: whether ``init`` starts the node, so that there is no ``Cluster``."""
        self.context: Any = None
        self.cluster: Any = None
        self._nodes = nodes
        self._is_alone = is_alone
        self._arguments = dict(arguments)

    def start(self) -> None:
        """Start Ray. What only minray knows of ``_system_config`` is not passed on."""
        ray: Any = importlib.import_module(RAYS)
        arguments = {name: value for name, value in self._arguments.items() if name != CONFIG}
        environment = {"worker_process_setup_hook": HOOK, **(arguments.pop("runtime_env", None) or {})}
        if self._is_alone:
            self.context = ray.init(address="local", runtime_env=environment, **{**DEFAULTS, **arguments})
            return
        self.cluster = importlib.import_module("ray.cluster_utils").Cluster()
        for node in self._nodes:
            self.cluster.add_node(**node)
        self.context = ray.init(address=self.cluster.address, runtime_env=environment, log_to_driver=False, **arguments)

    def stop(self) -> list[str]:
        """End Ray. Its session's directory is Ray's own affair."""
        importlib.import_module(RAYS).shutdown()
        if self.cluster is not None:
            self.cluster.shutdown()
        self.context = self.cluster = None
        return []
