"""The options of functions, classes and methods, as type checkers and editors know them.

Ray: the overloads of ray.remote in python/ray/_private/worker.py

The names are those that ``CHECKS``, ``ACTOR_CHECKS`` and ``METHOD_CHECKS`` check at run time; a test compares them.
``num_returns`` is not among a function's options here: the type of its result depends on it, so the overloads name it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

AnyStrategy = Any
"""A scheduling strategy: "DEFAULT", "SPREAD" or an instance of one of the strategies."""
Retry = bool | Sequence[type[Exception]]


class OptionsOfBoth(TypedDict, total=False):
    """Options that functions and classes share."""

    num_cpus: float | None
    num_gpus: float | None
    memory: float | None
    resources: Mapping[str, float] | None
    accelerator_type: str | None
    name: str | None
    scheduling_strategy: AnyStrategy
    label_selector: Mapping[str, str] | None
    fallback_strategy: Sequence[Mapping[str, Any]] | None
    placement_group: Any
    placement_group_bundle_index: int | None
    placement_group_capture_child_tasks: bool | None
    runtime_env: Mapping[str, Any] | None
    enable_task_events: bool | None


class OptionsOfTask(OptionsOfBoth, total=False):
    """Options of a function in ``.options(...)``."""

    max_retries: int | None
    retry_exceptions: Retry | None
    _generator_backpressure_num_objects: int | None


class OptionsOfActorClass(OptionsOfBoth, total=False):
    """Options of a class in ``.options(...)``."""

    namespace: str | None
    lifetime: str | None
    get_if_exists: bool | None
    max_restarts: int | None
    max_task_retries: int | None
    max_concurrency: int | None
    max_pending_calls: int | None
    allow_out_of_order_execution: bool | None


class OptionsOfRemote(OptionsOfTask, OptionsOfActorClass, total=False):
    """Options in ``@remote(...)``, which may be for a function or a class."""

    max_calls: int | None
    concurrency_groups: Mapping[str, int] | None


class OptionsOfMethod(TypedDict, total=False):
    """Options of a method in ``@method(...)`` and ``.options(...)``."""

    max_task_retries: int | None
    retry_exceptions: Retry | None
    concurrency_group: str | None
    name: str | None
    enable_task_events: bool | None
    _generator_backpressure_num_objects: int | None
