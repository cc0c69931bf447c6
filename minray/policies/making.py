"""Makes the policies that are not the default ones: minray's own, and those of programs.

Ray: none, its policies are fixed (src/ray/raylet/scheduling/policy/composite_scheduling_policy.h)

Rule: ``names`` imports this file only for a cluster that names such a policy. Most processes never do.
"""

from __future__ import annotations

import asyncio
import importlib
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, NamedTuple

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
)
from minray.policies.orders import EVICTIONS, LOCALITIES, SPILLS, TRANSFERS
from minray.policies.placements import PLACEMENTS
from minray.policies.protocols import LocalityPolicy, PolicyHost, Warn
from minray.policies.schedulers import SCHEDULERS

FOLDER_HINT = "; put its folder into PYTHONPATH, or say `python -m minray` there, since `minray` alone does not look there"
"""The remedy when a policy's module is not found: a command looks beside its file, not where it is called."""
ENTRY_POINTS = "minray.policies"
"""Group of the entry points that name policies."""


class Hook(NamedTuple):
    """One of the six decisions that a policy can make."""

    method: str
    """Method that a policy of this kind must have."""
    guard: Callable[..., Any]
    """Class that asks such a policy, and survives its failures."""
    built_in: Mapping[str, Callable[[PolicyHost], Any]]
    """Policies of minray beside the default one, by name."""


HOOKS = {
    "scheduling_policy": Hook("choose_node", GuardedScheduling, SCHEDULERS),
    "locality_policy": Hook("choose_first_node", GuardedLocality, LOCALITIES),
    "eviction_policy": Hook("choose_copy", GuardedEviction, EVICTIONS),
    "spill_policy": Hook("order_copies", GuardedSpill, SPILLS),
    "transfer_policy": Hook("order_sources", GuardedTransfer, TRANSFERS),
    "bundle_policy": Hook("place_bundles", GuardedBundles, PLACEMENTS),
}
"""The hooks by their entries in ``_system_config``."""


def guarded(setting: str, name: str, platform: Platform, warn: Warn | None) -> Any:
    """Make a policy that never raises. Raises ValueError if there is none of this name, or it cannot be made."""
    return HOOKS[setting].guard(setting, name, made(setting, name, host_of(platform)), warn)


def late_locality(name: str, platform: Platform) -> LocalityPolicy:
    """Return a locality policy that is made at the first question.

    A worker learns where a program's modules are with its first task. If the policy cannot be imported then, the questions
    count as failed ones.
    """
    return GuardedLocality("locality_policy", name, cache(lambda: made("locality_policy", name, host_of(platform))))


def host_of(platform: Platform) -> PolicyHost:
    return PolicyHost(platform.host.random, lambda: asyncio.get_running_loop().time())


def made(setting: str, name: str, host: PolicyHost) -> Any:
    """Make the policy of this name. Raises ValueError."""
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
                known = ", ".join(map(repr, [getattr(SystemConfig(), setting), *HOOKS[setting].built_in]))
                raise LookupError(
                    f"it is none of {known}, and no installed package has an entry point of group {ENTRY_POINTS} with this "
                    'name; another policy is written as "package.module:attribute"'
                )
            found = matching[0].load()
    except Exception as error:  # A module may raise anything when it is imported.
        kind = "" if type(error) is LookupError else f"{type(error).__name__}: "
        hint = FOLDER_HINT if isinstance(error, ModuleNotFoundError) else ""
        raise ValueError(f"{_entry(setting, name)} could not be imported: {kind}{error}{hint}") from error
    if not callable(found):
        raise ValueError(f"{_entry(setting, name)} is {shown(found)}, which cannot be called to make a policy")
    return found  # type: ignore[no-any-return]


def _entry(setting: str, name: str) -> str:
    return f"_system_config: {setting} {shown(name)}"
