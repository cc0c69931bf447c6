"""Finds and makes the policies that ``_system_config`` names.

Ray: none, its policies are fixed (src/ray/raylet/scheduling/policy/composite_scheduling_policy.h)

A name is one of these, tried in this order:

  * a policy that minray has (``random``);
  * a path to a class or function (``package.module:attribute``), which every process of the cluster must be able to import;
  * an entry point of the group ``minray.policies``, which an installed package brings.

The default of each policy is part of the room that decides. For it no policy is made: the result is None.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple, TypeVar

from minray.common.config import SystemConfig
from minray.common.shown import shown
from minray.platform.base import Platform
from minray.policies.guards import (
    GuardedBundles,
    GuardedEviction,
    GuardedLocality,
    GuardedScheduling,
    GuardedSpill,
    GuardedTransfer,
    Warn,
)
from minray.policies.orders import EVICTIONS, LOCALITIES, SPILLS, TRANSFERS
from minray.policies.placements import PLACEMENTS
from minray.policies.protocols import PolicyHost
from minray.policies.schedulers import SCHEDULERS

G = TypeVar("G")
ENTRY_POINTS = "minray.policies"
"""Group of the entry points that name policies."""


class Hook(NamedTuple):
    """One of the six decisions that a policy can make."""

    method: str
    """Method that a policy of this kind must have."""
    built_in: Mapping[str, Callable[[PolicyHost], Any]]
    """Policies of minray beside the default one, by name."""


HOOKS = {
    "scheduling_policy": Hook("choose_node", SCHEDULERS),
    "locality_policy": Hook("choose_first_node", LOCALITIES),
    "eviction_policy": Hook("choose_copy", EVICTIONS),
    "spill_policy": Hook("order_copies", SPILLS),
    "transfer_policy": Hook("order_sources", TRANSFERS),
    "bundle_policy": Hook("place_bundles", PLACEMENTS),
}
"""The hooks by their entries in ``_system_config``."""
DEFAULTS: dict[str, str] = {setting: getattr(SystemConfig(), setting) for setting in HOOKS}
"""Name of the default policy of each hook."""


def scheduling_policy(config: SystemConfig, platform: Platform, warn: Warn | None = None) -> GuardedScheduling | None:
    """Make the scheduling policy of a raylet; return None for the default. Raises ValueError as ``check_policies``."""
    return _guarded("scheduling_policy", GuardedScheduling, config, platform, warn)


def locality_policy(config: SystemConfig, platform: Platform) -> GuardedLocality | None:
    """Make the locality policy of an owner; return None for the default.

    It is imported at the first question: a worker learns where a program's modules are with its first task. If it cannot be
    imported then, the questions count as failed ones.
    """
    name = config.locality_policy
    if name == DEFAULTS["locality_policy"]:
        return None
    return GuardedLocality("locality_policy", name, cache(lambda: _made("locality_policy", name, _host_of(platform))))


def eviction_policy(config: SystemConfig, platform: Platform, warn: Warn | None = None) -> GuardedEviction | None:
    """Make the eviction policy of a raylet; return None for the default. Raises ValueError as ``check_policies``."""
    return _guarded("eviction_policy", GuardedEviction, config, platform, warn)


def spill_policy(config: SystemConfig, platform: Platform, warn: Warn | None = None) -> GuardedSpill | None:
    """Make the spill policy of a raylet; return None for the default. Raises ValueError as ``check_policies``."""
    return _guarded("spill_policy", GuardedSpill, config, platform, warn)


def transfer_policy(config: SystemConfig, platform: Platform, warn: Warn | None = None) -> GuardedTransfer | None:
    """Make the transfer policy of a raylet; return None for the default. Raises ValueError as ``check_policies``."""
    return _guarded("transfer_policy", GuardedTransfer, config, platform, warn)


def bundle_policy(config: SystemConfig, platform: Platform, warn: Warn | None = None) -> GuardedBundles | None:
    """Make the bundle policy of the gcs; return None for the default. Raises ValueError as ``check_policies``."""
    return _guarded("bundle_policy", GuardedBundles, config, platform, warn)


def check_policies(config: SystemConfig) -> None:
    """Raise ValueError if a policy of this configuration does not exist, cannot be imported or made, or lacks its method.

    A node checks that before it starts any process.
    """
    for setting in HOOKS:
        _made(setting, getattr(config, setting), PolicyHost(random=float, now=float))


def has_foreign_policies(config: SystemConfig) -> bool:
    """Tell whether a policy of this configuration is not minray's own, so that it has to be imported."""
    names = {setting: getattr(config, setting) for setting in HOOKS}
    return any(name != DEFAULTS[setting] and name not in HOOKS[setting].built_in for setting, name in names.items())


def _guarded(
    setting: str, guard: Callable[..., G], config: SystemConfig, platform: Platform, warn: Warn | None
) -> G | None:
    name = getattr(config, setting)
    policy = _made(setting, name, _host_of(platform))
    return None if policy is None else guard(setting, name, policy, warn)


def _host_of(platform: Platform) -> PolicyHost:
    return PolicyHost(platform.host.random, lambda: asyncio.get_running_loop().time())


def _made(setting: str, name: str, host: PolicyHost) -> Any:
    """Make the policy of this name; return None for the default."""
    if name == DEFAULTS[setting]:
        return None
    hook = HOOKS[setting]
    factory = hook.built_in.get(name) or _imported(setting, name)
    method = hook.method
    try:
        policy = factory(host)
    except Exception as error:
        raise ValueError(f"{_entry(setting, name)} could not be made: {type(error).__name__}: {error}") from error
    if not callable(getattr(policy, method, None)):
        raise ValueError(f"{_entry(setting, name)} makes {shown(policy)}, which has no method {method}")
    return policy


def _imported(setting: str, name: str) -> Callable[[PolicyHost], Any]:
    """Import a policy that is not minray's. Raises ValueError."""
    try:
        if ":" in name:
            module, _, attribute = name.partition(":")
            if module == "__main__":
                raise ImportError("other processes cannot import __main__; give the name of the file's module")
            found: Any = importlib.import_module(module)
            for part in attribute.split("."):
                found = getattr(found, part)
        else:
            from importlib.metadata import entry_points  # It brings forty modules, and few programs need it.

            matching = list(entry_points(group=ENTRY_POINTS, name=name))
            if not matching:
                known = ", ".join(map(repr, [DEFAULTS[setting], *HOOKS[setting].built_in]))
                raise LookupError(
                    f"it is none of {known}, and no installed package has an entry point of group {ENTRY_POINTS} with this "
                    'name; another policy is written as "package.module:attribute"'
                )
            found = matching[0].load()
    except Exception as error:  # A module may raise anything when it is imported.
        kind = "" if type(error) is LookupError else f"{type(error).__name__}: "
        raise ValueError(f"{_entry(setting, name)} could not be imported: {kind}{error}") from error
    if not callable(found):
        raise ValueError(f"{_entry(setting, name)} is {shown(found)}, which cannot be called to make a policy")
    return found  # type: ignore[no-any-return]


def _entry(setting: str, name: str) -> str:
    return f"_system_config: {setting} {shown(name)}"
