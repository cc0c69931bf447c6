"""Descriptions of tasks: a fixed part shared by all calls of one function with one set of options, and a part per call.

Ray: src/ray/common/task/task_spec.h

The fixed part, ``TaskTemplate``, is encoded once by the submitter and travels as opaque bytes inside every ``PushTask``;
the worker decodes it once and finds it again by those bytes. That keeps a call small and cheap: the part per call is an
id, an attempt number and the arguments.

A lease shape is resources, strategy, labels, runtime environment, job, and whether the task is a generator with
back-pressure. A scheduling key (Ray: SchedulingKey) is a shape and the task's large arguments. Tasks of any functions, if
their keys are equal, may use the same worker. So one cached scheduling decision serves many functions.
"""

from __future__ import annotations

import msgspec

DEFAULT_MAX_RETRIES = 3

NORMAL_TASK, ACTOR_CREATION_TASK, ACTOR_TASK = "NORMAL_TASK", "ACTOR_CREATION_TASK", "ACTOR_TASK"
"""The kinds of tasks, by the names of Ray's state API."""
STRATEGY_DEFAULT, STRATEGY_SPREAD, STRATEGY_AFFINITY, STRATEGY_PLACEMENT_GROUP = range(4)


class SchedulingStrategy(msgspec.Struct, frozen=True, array_like=True):
    """Says where a task may run."""

    kind: int = STRATEGY_DEFAULT
    node_id: bytes = b""
    """Affinity: the wanted node."""
    soft: bool = False
    """Affinity: whether another node is acceptable when this one is dead or can never hold the task (G102)."""
    group_id: bytes = b""
    """Placement group of the task; the shape's resources then have reserved names (see ``common.bundles``)."""
    bundle_index: int = -1
    """Bundle of the group in which the task runs; -1: any."""
    captures_children: bool = False
    """Whether child tasks run in the same group unless their options say otherwise."""


class LabelSelector(msgspec.Struct, frozen=True, array_like=True):
    """Says which nodes are acceptable by their labels, in terms of ``common.labels``."""

    hard: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Terms that must all hold."""
    soft: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Terms that a preferred node satisfies."""
    fallbacks: tuple[tuple[tuple[str, str, tuple[str, ...]], ...], ...] = ()
    """Sets of terms that do instead of ``hard``, the best first, where no node has room for the ones before."""


class RuntimeEnvInfo(msgspec.Struct, frozen=True, array_like=True):
    """Describes the process that a task needs. Directories are URIs (``package_uri``); tasks with equal records share
    workers."""

    env_vars: tuple[tuple[str, str], ...] = ()
    """Environment variables in the order in which they are set: one may refer to those before it."""
    working_dir: str = ""
    py_modules: tuple[str, ...] = ()


class LeaseShape(msgspec.Struct, frozen=True, array_like=True):
    """The needs of a task that decide which worker can run it; with its large arguments they are its scheduling key."""

    resources: tuple[tuple[str, int], ...]
    """Needed amounts by name, sorted so that equal needs make equal keys."""
    strategy: SchedulingStrategy
    runtime_env: RuntimeEnvInfo
    job_id: bytes
    labels: LabelSelector = LabelSelector()
    may_be_held_up: bool = False
    """Whether the task is a generator with back-pressure.

    Such generators have their own worker cap: one that is held up waits for its reader, and that reader may wait for tasks
    with the same needs."""


class ActorOptions(msgspec.Struct, frozen=True, array_like=True):
    """Says how the process of an actor runs its calls."""

    max_concurrency: int = 1
    """Most calls of the default concurrency group that run at once (G53)."""
    groups: tuple[tuple[str, int], ...] = ()
    """Further concurrency groups, each with its own limit of simultaneous calls."""
    is_async: bool = False
    """Whether the actor has coroutine methods; then all its calls run on event loops (G54)."""


class TaskTemplate(msgspec.Struct, frozen=True, array_like=True):
    """The part of a task that all calls of one function with one set of options share."""

    function_id: bytes
    """16 bytes that name the exported definition within its job; they are no digest of it."""
    name: str
    shape: LeaseShape
    num_returns: int
    max_retries: int
    retry_exceptions: bool
    """Whether exceptions of user code are retried; the executor decides which, by ``retry_exception_types``."""
    retry_exception_types: bytes
    """Pickled tuple of the exception classes to retry; empty: all exceptions."""
    max_calls: int
    method: str = ""
    """Actor's method that is called; empty for functions and constructors."""
    concurrency_group: str = ""
    """Concurrency group of the actor in which a method runs."""
    actor: ActorOptions | None = None
    """Constructor only: how the actor's process runs calls."""
    is_streaming: bool = False
    """Whether the task is a generator whose items are reported as they are yielded; its one return value is its end."""
    most_unread: int = 0
    """Streaming: most unread items before back-pressure holds the generator up; 0: any number."""
    is_recorded: bool = True
    """Whether the worker records when the task ran, for ``timeline``."""
    function_name: str = ""
    """Name of the function if ``name`` is one that the user chose; else empty."""
    is_dynamic: bool = False
    """Streaming: whether the task's one value refers to all items, so that no generator is read."""

    def is_reconstructable(self) -> bool:
        """Tell whether a lost result may be reconstructed by running the task again (G67, G70)."""
        return self.max_retries != 0


def kind_of(template: TaskTemplate) -> str:
    """Name the kind of a task, as Ray's state API does."""
    if template.method:
        return ACTOR_TASK
    return NORMAL_TASK if template.actor is None else ACTOR_CREATION_TASK
