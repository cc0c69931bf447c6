"""Finds and makes the policies that ``_system_config`` names.

Ray: none, its policies are fixed (src/ray/raylet/scheduling/policy/composite_scheduling_policy.h)

A name is one of these, tried in this order:

  * a policy that minray has (``random``);
  * a path to a class or function (``package.module:attribute``), which every process of the cluster must be able to import;
  * an entry point of the group ``minray.policies``, which an installed package brings.

The default of each policy is part of the room that decides. For it no policy is made: the result is None.
"""

from __future__ import annotations

from typing import Any

from minray.common.config import SystemConfig
from minray.platform.base import Platform
from minray.policies.protocols import (
    BundlePolicy,
    EvictionPolicy,
    LocalityPolicy,
    PolicyHost,
    SchedulingPolicy,
    SpillPolicy,
    TransferPolicy,
    Warn,
)

SETTINGS = (
    "scheduling_policy", "locality_policy", "eviction_policy", "spill_policy", "transfer_policy", "bundle_policy"
)  # fmt: skip
"""Entries of ``_system_config`` that name policies."""
DEFAULTS: dict[str, str] = {setting: getattr(SystemConfig(), setting) for setting in SETTINGS}
"""Name of the default policy of each hook."""


def scheduling_policy(config: SystemConfig, platform: Platform, warn: Warn) -> SchedulingPolicy | None:
    """Make the scheduling policy of a raylet; return None for the default. Raises ValueError as ``check_policies``."""
    policy: SchedulingPolicy | None = _guarded("scheduling_policy", config, platform, warn)
    return policy


def locality_policy(config: SystemConfig, platform: Platform) -> LocalityPolicy | None:
    """Make the locality policy of an owner; return None for the default. It is imported at the first question."""
    name = config.locality_policy
    if name == DEFAULTS["locality_policy"]:
        return None
    from minray.policies.making import late_locality

    return late_locality(name, platform)


def eviction_policy(config: SystemConfig, platform: Platform, warn: Warn) -> EvictionPolicy | None:
    """Make the eviction policy of a raylet; return None for the default. Raises ValueError as ``check_policies``."""
    policy: EvictionPolicy | None = _guarded("eviction_policy", config, platform, warn)
    return policy


def spill_policy(config: SystemConfig, platform: Platform, warn: Warn) -> SpillPolicy | None:
    """Make the spill policy of a raylet; return None for the default. Raises ValueError as ``check_policies``."""
    policy: SpillPolicy | None = _guarded("spill_policy", config, platform, warn)
    return policy


def transfer_policy(config: SystemConfig, platform: Platform, warn: Warn) -> TransferPolicy | None:
    """Make the transfer policy of a raylet; return None for the default. Raises ValueError as ``check_policies``."""
    policy: TransferPolicy | None = _guarded("transfer_policy", config, platform, warn)
    return policy


def bundle_policy(config: SystemConfig, platform: Platform) -> BundlePolicy | None:
    """Make the bundle policy of the gcs; return None for the default. Raises ValueError as ``check_policies``."""
    policy: BundlePolicy | None = _guarded("bundle_policy", config, platform, None)
    return policy


def check_policies(config: SystemConfig) -> None:
    """Raise ValueError if a policy of this configuration does not exist, cannot be imported or made, or lacks its method.

    A node checks that before it starts any process.
    """
    named = _named(config)
    if named:
        from minray.policies.making import made

        for setting, name in named.items():
            made(setting, name, PolicyHost(random=float, now=float))


def has_foreign_policies(config: SystemConfig) -> bool:
    """Tell whether a policy of this configuration is not minray's own, so that it has to be imported."""
    named = _named(config)
    if not named:
        return False
    from minray.policies.making import HOOKS

    return any(name not in HOOKS[setting].built_in for setting, name in named.items())


def _named(config: SystemConfig) -> dict[str, str]:
    """Return the policies of a configuration that are not the default ones."""
    names = {setting: getattr(config, setting) for setting in SETTINGS}
    return {setting: name for setting, name in names.items() if name != DEFAULTS[setting]}


def _guarded(setting: str, config: SystemConfig, platform: Platform, warn: Warn | None) -> Any:
    name = _named(config).get(setting)
    if name is None:
        return None
    from minray.policies.making import guarded

    return guarded(setting, name, platform, warn)
