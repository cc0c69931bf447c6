"""The options of actor classes and their methods, and the task templates made of them.

Ray: python/ray/_common/ray_option_utils.py (actor_options), python/ray/actor.py (method)

An actor that requests nothing, or only ``memory``, needs one CPU to be placed and holds none while it lives. An actor that
requests any other resource holds it for life, and one CPU too unless ``num_cpus`` is given, as in Ray. Options are checked
like task options, with the same errors.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from minray import cloudpickle
from minray.api.signature import parameters_of
from minray.api.task_options import (
    BACKPRESSURE,
    DYNAMIC,
    FALLBACK,
    STREAMING,
    check_bool,
    check_each,
    check_integer,
    check_name,
    check_one_placement,
    check_retry_exceptions,
    given_options,
    located,
    make_shape,
    resource_amounts,
)
from minray.api.task_options import CHECKS as TASK_CHECKS
from minray.common.resources import CPU, GPU, resource_set
from minray.common.shown import check_encodable, shown
from minray.common.task_spec import ActorOptions, LeaseShape, RuntimeEnvInfo, SchedulingStrategy, TaskTemplate
from minray.errors.tracebacks import hides_from_pytest
from minray.protocol.actor import HandleSpec, MethodSpec

__tracebackhide__ = hides_from_pytest

MAX_ASYNC_CONCURRENCY = 1000
"""Number of calls that an async actor runs at once by default, as in Ray."""
METHOD_OPTIONS = "__ray_method_options__"
"""Attribute of a function in which ``@method`` stores its options."""
NOT_GIVEN = -2
"""Number of retries that means: the actor's own number applies. (-1 already means retries without limit.)"""


def _check_lifetime(name: str, value: Any) -> None:
    if value not in ("detached", "non_detached"):
        raise ValueError(f"{name} must be 'detached', 'non_detached' or None, not {shown(value)}")


def _check_actor_name(name: str, value: Any) -> None:
    check_name(name, value)
    if not value:
        raise ValueError(f"{name} must not be empty")


def _check_groups(name: str, value: Any) -> None:
    if not isinstance(value, Mapping) or not all(isinstance(group, str) for group in value):
        raise TypeError(f"{name} must be a dict from group name to how many calls it runs at once, not {shown(value)}")
    for group, limit in value.items():
        check_encodable(f"a group of {name}", group)
        check_integer(1)(f"{name}[{shown(group)}]", limit)


def _check_pending(name: str, value: Any) -> None:
    check_integer(-1)(name, value)
    if value == 0:
        raise ValueError(f"{name} must be at least 1, or -1 for no limit")


ACTOR_CHECKS: dict[str, Callable[[str, Any], None]] = {
    **{
        name: TASK_CHECKS[name]
        for name in (
            "num_cpus",
            "num_gpus",
            "memory",
            "resources",
            "accelerator_type",
            "scheduling_strategy",
            "label_selector",
            FALLBACK,
            "placement_group",
            "placement_group_bundle_index",
            "placement_group_capture_child_tasks",
            "runtime_env",
            "enable_task_events",
        )
    },
    "name": _check_actor_name,
    "namespace": _check_actor_name,
    "lifetime": _check_lifetime,
    "get_if_exists": check_bool,
    "max_restarts": check_integer(-1),
    "max_task_retries": check_integer(-1),
    "max_concurrency": check_integer(1),
    "concurrency_groups": _check_groups,
    "max_pending_calls": _check_pending,
    "allow_out_of_order_execution": check_bool,
}
"""The check of each option of a class. An option that is None has its default, and is not checked."""

METHOD_CHECKS: dict[str, Callable[[str, Any], None]] = {
    "num_returns": TASK_CHECKS["num_returns"],
    "max_task_retries": check_integer(-1),
    "retry_exceptions": check_retry_exceptions,
    "concurrency_group": check_name,
    "name": check_name,
    "enable_task_events": check_bool,
    BACKPRESSURE: TASK_CHECKS[BACKPRESSURE],
}
"""The check of each option of a method, in ``@minray.method(...)`` and ``.options(...)``. Only the latter takes a name."""


def check_actor_options(options: Mapping[str, Any], *, at_call: bool) -> None:
    """Check the options of a class; ``at_call`` says that they come from ``.options``.

    Raises ValueError for unknown names and bad values, TypeError for wrong types.
    """
    if at_call and "concurrency_groups" in options:
        raise ValueError("concurrency_groups must be given in @minray.remote(...), not in .options(...)")
    check_each(options, ACTOR_CHECKS, "an actor")
    if options.get("get_if_exists") and not options.get("name"):
        raise ValueError("get_if_exists=True needs a name")
    check_one_placement(options)


def check_method_options(options: Mapping[str, Any], *, at_call: bool) -> None:
    check_each(options, METHOD_CHECKS, "an actor's method", refused="" if at_call else "name")


def methods_of(actor_class: type) -> dict[str, Callable[..., Any]]:
    """Return the methods that can be called on actors of a class, by name."""
    members = inspect.getmembers(actor_class, inspect.isroutine)
    return {name: member for name, member in members if not _is_from_object(actor_class, name)}


def _is_from_object(actor_class: type, name: str) -> bool:
    return name in vars(object) and getattr(actor_class, name) is getattr(object, name, None) or name == "__init_subclass__"


def is_async_class(actor_class: type) -> bool:
    members = methods_of(actor_class).values()
    return any(inspect.iscoroutinefunction(member) or inspect.isasyncgenfunction(member) for member in members)


def make_handle_spec(actor_class: type, options: Mapping[str, Any]) -> HandleSpec:
    """Make the part of an actor's handle that describes its methods. Raises ValueError for contradictory options."""
    given = given_options(options)
    process = make_process_options(actor_class, given)
    is_plain = not process.is_async and process.max_concurrency == 1 and not process.groups
    out_of_order = given.get("allow_out_of_order_execution", not is_plain)
    if not out_of_order and not is_plain:
        kind = "async actor" if process.is_async else "actor with several threads"
        raise ValueError(f"allow_out_of_order_execution must not be False: an {kind} runs its calls in any order")
    groups = {name for name, _ in process.groups}
    is_recorded = given.get("enable_task_events", True)
    members = methods_of(actor_class).items()
    methods = [_method_spec(actor_class, name, member, groups, is_recorded) for name, member in members]
    return HandleSpec(
        class_name=actor_class.__name__,
        methods=methods,
        max_task_retries=given.get("max_task_retries", 0),
        max_pending_calls=given.get("max_pending_calls", -1),
        in_order=not out_of_order,
        is_async=process.is_async,
        groups=sorted(groups),
    )


def _method_spec(
    actor_class: type, name: str, member: Callable[..., Any], groups: set[str], is_recorded: bool
) -> MethodSpec:
    options = dict(getattr(member, METHOD_OPTIONS, {}))
    group = options.get("concurrency_group") or ""
    if group and group not in groups:
        raise ValueError(f"method {name} names the concurrency group {shown(group)}, which its class does not have")
    if options.get("num_returns") is None and (inspect.isgeneratorfunction(member) or inspect.isasyncgenfunction(member)):
        options["num_returns"] = STREAMING
    is_method = not inspect.ismethod(member) and not isinstance(inspect.getattr_static(actor_class, name), staticmethod)
    spec = MethodSpec(name, parameters=parameters_of(member, is_method), is_recorded=is_recorded)
    return with_method_options(spec, options)


def with_method_options(spec: MethodSpec, options: Mapping[str, Any]) -> MethodSpec:
    """Return a copy of ``spec`` with these options changed; the caller has checked them."""
    given = given_options(options)
    retry, types = spec.retry_exceptions, spec.retry_exception_types
    if "retry_exceptions" in given:
        classes = given["retry_exceptions"]
        retry = bool(classes)
        types = b"" if isinstance(classes, bool) or not classes else cloudpickle.dumps(tuple(classes))
    own = DYNAMIC if spec.is_dynamic else STREAMING if spec.is_streaming else spec.num_returns
    num_returns = given.get("num_returns", own)
    is_dynamic, is_streaming = num_returns == DYNAMIC, num_returns in (DYNAMIC, STREAMING)
    return MethodSpec(
        name=spec.name,
        num_returns=1 if is_streaming else num_returns,
        max_task_retries=given.get("max_task_retries", spec.max_task_retries),
        retry_exceptions=retry,
        retry_exception_types=types,
        concurrency_group=given.get("concurrency_group", spec.concurrency_group),
        is_streaming=is_streaming,
        most_unread=0 if is_dynamic else max(0, given.get(BACKPRESSURE, spec.most_unread)),
        parameters=spec.parameters,
        is_recorded=given.get("enable_task_events", spec.is_recorded),
        is_dynamic=is_dynamic,
    )


def make_process_options(actor_class: type, given: Mapping[str, Any]) -> ActorOptions:
    is_async = is_async_class(actor_class)
    limit = given.get("max_concurrency") or (MAX_ASYNC_CONCURRENCY if is_async else 1)
    groups = tuple(sorted((given.get("concurrency_groups") or {}).items()))
    return ActorOptions(limit, groups, is_async)


def make_constructor_template(
    class_id: bytes,
    actor_class: type,
    options: Mapping[str, Any],
    job_id: bytes,
    base_env: RuntimeEnvInfo,
    captured: SchedulingStrategy | None = None,
) -> tuple[TaskTemplate, list[tuple[str, int]]]:
    """Make the constructor's template, and the resources that must be free on a node to place the actor there.

    The template has the resources that the actor holds for life.
    """
    given = given_options(options)
    is_simple = not any(name in given for name in ("num_cpus", "num_gpus", "resources", "accelerator_type"))
    amounts = resource_amounts(given)
    for_life = {**amounts, CPU: 0, GPU: 0} if is_simple else amounts
    shape = make_shape(for_life, given, job_id, base_env, captured)
    placement = list(located(resource_set(amounts), shape.strategy))
    process = make_process_options(actor_class, given)
    name = f"{actor_class.__name__}.__init__"
    is_recorded = given.get("enable_task_events", True)
    return TaskTemplate(
        function_id=class_id,
        name=name,
        shape=shape,
        num_returns=1,
        max_retries=0,
        retry_exceptions=False,
        retry_exception_types=b"",
        max_calls=0,
        actor=process,
        is_recorded=is_recorded,
    ), placement


def make_method_template(spec: HandleSpec, method: MethodSpec, name: str | None, job_id: bytes) -> TaskTemplate:
    """Make a method's template. Its ``max_retries`` is how often a call may be retried (G38)."""
    retries = spec.max_task_retries if method.max_task_retries == NOT_GIVEN else method.max_task_retries
    shape = LeaseShape((), make_shape({}, {}, job_id, RuntimeEnvInfo()).strategy, RuntimeEnvInfo(), job_id)
    function_name = f"{spec.class_name}.{method.name}"
    return TaskTemplate(
        function_id=b"",
        name=name or function_name,
        shape=shape,
        num_returns=method.num_returns,
        max_retries=retries,
        retry_exceptions=method.retry_exceptions,
        retry_exception_types=method.retry_exception_types,
        max_calls=0,
        method=method.name,
        concurrency_group=method.concurrency_group,
        is_streaming=method.is_streaming,
        most_unread=method.most_unread,
        is_recorded=method.is_recorded,
        function_name=function_name if name and name != function_name else "",
        is_dynamic=method.is_dynamic,
    )
