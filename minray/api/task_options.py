"""The options of ``@minray.remote(...)`` and ``.options(...)``: their checks, and the task templates made of them.

Ray: python/ray/_common/ray_option_utils.py, docs "ray.remote"

Errors are Ray's: ValueError for an unknown name or a value out of range, TypeError for a wrong type. Options of Ray that
minray does not have are unknown names.

A task in a placement group requests resources of the group instead of a node's; ``make_shape`` gives them their names.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from minray import cloudpickle
from minray.api.placement_group import PlacementGroup, check_fits, check_placement_group_index
from minray.api.runtime_environment import check_runtime_env, merge_runtime_env
from minray.api.scheduling_strategies import (
    NodeAffinitySchedulingStrategy,
    NodeLabelSchedulingStrategy,
    PlacementGroupSchedulingStrategy,
)
from minray.common.bundles import ANY_BUNDLE, within
from minray.common.ids import PlacementGroupID
from minray.common.labels import parse_selector
from minray.common.resources import CPU, GPU, MEMORY, MOST_INTEGER, ResourceSet, resource_set, to_floats
from minray.common.shown import check_encodable, shown
from minray.common.task_spec import (
    DEFAULT_MAX_RETRIES,
    STRATEGY_AFFINITY,
    STRATEGY_DEFAULT,
    STRATEGY_PLACEMENT_GROUP,
    STRATEGY_SPREAD,
    LabelSelector,
    LeaseShape,
    RuntimeEnvInfo,
    SchedulingStrategy,
    TaskTemplate,
)
from minray.errors.tracebacks import hides_from_pytest, users_level

__tracebackhide__ = hides_from_pytest

STRATEGIES = "'DEFAULT', 'SPREAD', or a NodeAffinity-, NodeLabel- or PlacementGroupSchedulingStrategy"
FALLBACK = "fallback_strategy"
"""Ray's name of the option for label selectors that do where no node has room for ``label_selector``."""
STREAMING = "streaming"
"""Value of ``num_returns`` for a generator: each item is an object of its own as soon as it is yielded."""
DYNAMIC = "dynamic"
"""Value of ``num_returns`` for a generator whose items are known when it has ended: its value refers to all of them."""
BACKPRESSURE = "_generator_backpressure_num_objects"
"""Ray's name of the option for a generator's back-pressure: the most items that may be unread."""
MOST_RETURNS = 1_000_000
"""Largest ``num_returns``. A call makes all its references at once, and each costs memory."""
ACCELERATOR_AMOUNT = 0.001
"""Amount of the node resource ``accelerator_type:NAME`` that the option ``accelerator_type`` requests.

It is small, as in Ray, because the resource selects a node and does not limit the number of tasks there.
"""


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _check_amount(name: str, value: Any) -> None:
    if not _is_number(value):
        raise TypeError(f"{name} must be a number, not {type(value).__name__}")
    resource_set({CPU if name == "num_cpus" else GPU if name == "num_gpus" else MEMORY: value})


def _check_resources(name: str, value: Any) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} must be a dict from resource name to amount, not {type(value).__name__}")
    for key, amount in value.items():
        if not isinstance(key, str) or not _is_number(amount):
            raise TypeError(f"{name} maps names to numbers, but has {shown(key)}: {shown(amount)}")
        if key in (CPU, GPU):
            raise ValueError(f"{name} must not have {shown(key)}: use num_{key.lower()}s instead")
    resource_set(value)


def check_integer(least: int) -> Callable[[str, Any], None]:
    def check(name: str, value: Any) -> None:
        if not isinstance(value, int) or isinstance(value, bool):
            raise TypeError(f"{name} must be an int, not {type(value).__name__}")
        if value < least:
            raise ValueError(f"{name} must be at least {least}, but is {shown(value)}")
        if value > MOST_INTEGER:
            raise ValueError(f"{name} must be at most {MOST_INTEGER}, but is {shown(value)}")

    return check


def _check_num_returns(name: str, value: Any) -> None:
    if value == DYNAMIC:
        message = f'{name}="dynamic" is deprecated: use {name}="streaming", the default of generator functions'
        warnings.warn(message, DeprecationWarning, stacklevel=users_level())
    elif value != STREAMING:
        check_integer(0)(name, value)
        if value > MOST_RETURNS:
            limit = f'{MOST_RETURNS}, but is {shown(value)}; {name}="streaming" has no limit'
            raise ValueError(f"{name} must be at most {limit}")


def _check_backpressure(name: str, value: Any) -> None:
    check_integer(-1)(name, value)
    if value == 0:
        raise ValueError(f"{name} must be at least 1, or -1 for none, but is 0")


def check_retry_exceptions(name: str, value: Any) -> None:
    if isinstance(value, bool):
        return
    classes = isinstance(value, list | tuple) and all(isinstance(entry, type) for entry in value)
    if not classes or not all(issubclass(entry, Exception) for entry in value):
        raise TypeError(f"{name} must be True, False, or a list of exception classes, not {shown(value)}")


def check_name(name: str, value: Any) -> None:
    if not isinstance(value, str):
        raise TypeError(f"{name} must be a str, not {type(value).__name__}")
    check_encodable(name, value)


def _check_accelerator_type(name: str, value: Any) -> None:
    check_name(name, value)
    if not value:
        raise ValueError(f"{name} must not be empty")


def _check_strategy(name: str, value: Any) -> None:
    if isinstance(value, str):
        if value not in ("DEFAULT", "SPREAD"):
            raise ValueError(f"{name} must be {STRATEGIES}, not {shown(value)}")
    elif not isinstance(
        value, NodeAffinitySchedulingStrategy | NodeLabelSchedulingStrategy | PlacementGroupSchedulingStrategy
    ):
        raise TypeError(f"{name} must be {STRATEGIES}, not {type(value).__name__}")


def _check_group(name: str, value: Any) -> None:
    if not isinstance(value, PlacementGroup) and value != "default":
        raise TypeError(f"{name} must be a PlacementGroup, not {type(value).__name__}")


def _check_selector(name: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(text, str) for pair in value.items() for text in pair):
        wanted = "a dict from label to value, 'in(...)' or their opposites with '!'"
        raise TypeError(f"{name} must be {wanted}, not {shown(value)}")
    parse_selector(value)


def _check_fallbacks(name: str, value: Any) -> None:
    if not isinstance(value, list | tuple):
        raise TypeError(f"{name} must be a list of dicts such as {{'label_selector': {{...}}}}, not {shown(value)}")
    for number, option in enumerate(value):
        if not isinstance(option, Mapping) or option.keys() != {"label_selector"}:
            raise ValueError(f"{name}[{number}] must be a dict with 'label_selector' and nothing else, not {shown(option)}")
        if not isinstance(option["label_selector"], Mapping):
            raise ValueError(f"{name}[{number}]: label_selector must be a dict, not {option['label_selector']!r}")
        _check_selector(f"{name}[{number}]: label_selector", option["label_selector"])


def check_bool(name: str, value: Any) -> None:
    if not isinstance(value, bool):
        raise TypeError(f"{name} must be True or False, not {type(value).__name__}")


CHECKS: dict[str, Callable[[str, Any], None]] = {
    "num_cpus": _check_amount,
    "num_gpus": _check_amount,
    "memory": _check_amount,
    "resources": _check_resources,
    "accelerator_type": _check_accelerator_type,
    "num_returns": _check_num_returns,
    "max_retries": check_integer(-1),
    "retry_exceptions": check_retry_exceptions,
    "max_calls": check_integer(0),
    "name": check_name,
    "scheduling_strategy": _check_strategy,
    "label_selector": _check_selector,
    FALLBACK: _check_fallbacks,
    "placement_group": _check_group,
    "placement_group_bundle_index": check_integer(ANY_BUNDLE),
    "placement_group_capture_child_tasks": check_bool,
    "runtime_env": check_runtime_env,
    "enable_task_events": check_bool,
    BACKPRESSURE: _check_backpressure,
}
"""The check of each option. An option that is None has its default, and is not checked."""


def check_options(options: Mapping[str, Any], *, at_call: bool) -> None:
    """Check the options of a function; ``at_call`` says that they come from ``.options``.

    Raises ValueError for unknown names and bad values, TypeError for wrong types.
    """
    if at_call and "max_calls" in options:
        raise ValueError("max_calls must be given in @minray.remote(...), not in .options(...)")
    check_each(options, CHECKS, "a remote function")
    check_one_placement(options)


def check_each(
    options: Mapping[str, Any], checks: Mapping[str, Callable[[str, Any], object]], kind: str, *, refused: str = ""
) -> None:
    """Check every option that is not None. Raises ValueError for a name without a check, or the one ``refused``."""
    for name, value in options.items():
        check = checks.get(name)
        if check is None or name == refused:
            raise ValueError(f"{shown(name)} is not an option of {kind}; options are {', '.join(checks)}")
        if value is not None:
            check(name, value)


def check_one_placement(options: Mapping[str, Any]) -> None:
    """Raise ValueError for the deprecated option ``placement_group`` together with a scheduling strategy."""
    if isinstance(options.get("placement_group"), PlacementGroup) and options.get("scheduling_strategy") is not None:
        raise ValueError("scheduling_strategy and placement_group are given: use PlacementGroupSchedulingStrategy alone")


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are given. None means not given, except for ``placement_group``.

    ``placement_group=None`` means outside of any group, even that of the parent task.
    """
    given = {name: value for name, value in options.items() if value is not None}
    return {"placement_group": PlacementGroup.empty(), **given} if "placement_group" in options else given


def resource_amounts(given: Mapping[str, Any]) -> dict[str, float]:
    """Return the requested amount of each resource; one CPU unless ``num_cpus`` is given."""
    amounts: dict[str, float] = {CPU: given.get("num_cpus", 1), GPU: given.get("num_gpus", 0), **given.get("resources", {})}
    if "memory" in given:
        amounts[MEMORY] = given["memory"]
    if "accelerator_type" in given:
        amounts[f"accelerator_type:{given['accelerator_type']}"] = ACCELERATOR_AMOUNT
    return amounts


def make_shape(
    amounts: Mapping[str, float],
    given: Mapping[str, Any],
    job_id: bytes,
    base_env: RuntimeEnvInfo,
    captured: SchedulingStrategy | None = None,
) -> LeaseShape:
    """Make the lease shape of a task or an actor: what a worker must have to run it.

    ``captured``: the placement group of the running task, if its child tasks run there too. Raises ValueError for a bundle
    that does not exist, or that can never hold these amounts.
    """
    needs = resource_set(amounts)
    strategy = _strategy(given, needs, captured)
    env = merge_runtime_env(base_env, given.get("runtime_env"))
    return LeaseShape(
        resources=located(needs, strategy), strategy=strategy, runtime_env=env, job_id=job_id, labels=_labels(given)
    )


def located(needs: ResourceSet, strategy: SchedulingStrategy) -> tuple[tuple[str, int], ...]:
    """Return the needs, sorted, under the resource names of the strategy's placement group, if it has one."""
    if strategy.group_id:
        needs = within(strategy.group_id, strategy.bundle_index, needs)
    return tuple(sorted(needs.items()))


def make_template(
    function_id: bytes,
    function_name: str,
    options: Mapping[str, Any],
    job_id: bytes,
    base_env: RuntimeEnvInfo,
    captured: SchedulingStrategy | None = None,
) -> TaskTemplate:
    """Make the template of a function's tasks from its options. ``captured``: see ``make_shape``."""
    given = given_options(options)
    retry_exceptions = given.get("retry_exceptions", False)
    types_of = tuple(retry_exceptions) if not isinstance(retry_exceptions, bool) else ()
    is_dynamic = given.get("num_returns") == DYNAMIC
    is_streaming = is_dynamic or given.get("num_returns") == STREAMING
    most_unread = 0 if is_dynamic else max(0, given.get(BACKPRESSURE, 0))
    shape = make_shape(resource_amounts(given), given, job_id, base_env, captured)
    if is_streaming and most_unread:
        shape = msgspec.structs.replace(shape, may_be_held_up=True)
    name = given.get("name") or function_name
    return TaskTemplate(
        function_id=function_id,
        name=name,
        shape=shape,
        num_returns=1 if is_streaming else given.get("num_returns", 1),
        max_retries=given.get("max_retries", _default_max_retries()),
        retry_exceptions=bool(retry_exceptions),
        retry_exception_types=cloudpickle.dumps(types_of) if types_of else b"",
        max_calls=given.get("max_calls", 1 if given.get("num_gpus") else 0),
        is_streaming=is_streaming,
        most_unread=most_unread,
        is_recorded=given.get("enable_task_events", True),
        function_name=function_name if name != function_name else "",
        is_dynamic=is_dynamic,
    )


def _labels(given: Mapping[str, Any]) -> LabelSelector:
    hard, value = parse_selector(given.get("label_selector", {})), given.get("scheduling_strategy")
    fallbacks = [parse_selector(option["label_selector"]) for option in given.get(FALLBACK, ())]
    always, soft = (value.hard, value.soft) if isinstance(value, NodeLabelSchedulingStrategy) else ((), ())
    return LabelSelector((*hard, *always), soft, tuple((*terms, *always) for terms in fallbacks) if hard else ())


def _default_max_retries() -> int:
    text = os.environ.get("MINRAY_TASK_MAX_RETRIES") or os.environ.get("RAY_TASK_MAX_RETRIES")
    return int(text) if text else DEFAULT_MAX_RETRIES


def _strategy(given: Mapping[str, Any], needs: ResourceSet, captured: SchedulingStrategy | None) -> SchedulingStrategy:
    value = given.get("scheduling_strategy")
    if isinstance(value, NodeAffinitySchedulingStrategy):
        return SchedulingStrategy(STRATEGY_AFFINITY, bytes.fromhex(value.node_id), value.soft)
    if isinstance(value, str | NodeLabelSchedulingStrategy):
        return SchedulingStrategy(STRATEGY_SPREAD if value == "SPREAD" else STRATEGY_DEFAULT)
    if isinstance(value, PlacementGroupSchedulingStrategy):
        group = value.placement_group or PlacementGroup.empty()
        index, captures = value.placement_group_bundle_index, value.placement_group_capture_child_tasks
    else:
        group = given.get("placement_group", "default")
        index = given.get("placement_group_bundle_index", ANY_BUNDLE)
        captures = given.get("placement_group_capture_child_tasks")
        if group == "default":
            inherits = captured is not None and captures is not False
            group = PlacementGroup(PlacementGroupID(captured.group_id)) if inherits and captured else PlacementGroup.empty()
    check_placement_group_index(group, index)
    if group.is_empty:
        return SchedulingStrategy()
    check_fits(group, index, to_floats(needs))
    group._settle()
    return SchedulingStrategy(
        STRATEGY_PLACEMENT_GROUP,
        group_id=group.id.binary(),
        bundle_index=index,
        captures_children=captured is not None if captures is None else captures,
    )
