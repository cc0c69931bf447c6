"""What a task is: a fixed part shared by all calls of one function with one set of options, and a part per call.

Ray: src/ray/common/task/task_spec.h

The fixed part, ``TaskTemplate``, is encoded once by the submitter and travels as opaque bytes inside every ``PushTask``;
the worker decodes it once and finds it again by those bytes. That keeps a call small and cheap: the part per call is an
id, an attempt number and the arguments.

A scheduling key is (resource shape, strategy, runtime environment, job): any function with the same needs may use the
worker, so that a cached scheduling decision serves many functions.
"""

from __future__ import annotations

import msgspec

DEFAULT_MAX_RETRIES = 3

NORMAL_TASK, ACTOR_CREATION_TASK, ACTOR_TASK = "NORMAL_TASK", "ACTOR_CREATION_TASK", "ACTOR_TASK"
"""The kinds of tasks, by the names of Ray's state API."""
STRATEGY_DEFAULT, STRATEGY_SPREAD, STRATEGY_AFFINITY, STRATEGY_PLACEMENT_GROUP = range(4)


class SchedulingStrategy(msgspec.Struct, frozen=True, array_like=True):
    """Where a task may run."""

    kind: int = STRATEGY_DEFAULT
    node_id: bytes = b""
    """For node affinity."""
    soft: bool = False
    """Affinity: whether another node will do when this one is dead or cannot ever hold the task (G102)."""
    group_id: bytes = b""
    """For a placement group, whose names the resources of the shape have (see ``common.bundles``)."""
    bundle_index: int = -1
    """-1: any of its bundles."""
    captures_children: bool = False
    """Whether tasks that a task submits run in the same group, unless they say otherwise."""


class LabelSelector(msgspec.Struct, frozen=True, array_like=True):
    """Which nodes will do, by their labels: terms of ``common.labels``."""

    hard: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """All must hold."""
    soft: tuple[tuple[str, str, tuple[str, ...]], ...] = ()
    """Nodes for which these hold are better."""


class RuntimeEnv(msgspec.Struct, frozen=True, array_like=True):
    """What a worker's process must look like. Paths are local and absolute; equal records share workers."""

    env_vars: tuple[tuple[str, str], ...] = ()
    """In the order in which they are set: they may refer to those before them."""
    working_dir: str = ""
    py_modules: tuple[str, ...] = ()


class LeaseShape(msgspec.Struct, frozen=True, array_like=True):
    """The scheduling key: everything that decides which worker can serve."""

    resources: tuple[tuple[str, int], ...]
    """Sorted, so that equal needs are equal keys."""
    strategy: SchedulingStrategy
    runtime_env: RuntimeEnv
    job_id: bytes
    labels: LabelSelector = LabelSelector()
    may_be_held_up: bool = False
    """Of generators with back-pressure. They have a worker cap of their own: one that is held up may wait for tasks with
    the same needs, those that its reader waits for before it reads on."""


class ActorOptions(msgspec.Struct, frozen=True, array_like=True):
    """How the process of an actor runs its calls."""

    max_concurrency: int = 1
    """So many calls of the default group at once (G53)."""
    groups: tuple[tuple[str, int], ...] = ()
    """Further concurrency groups, each with its own limit."""
    is_async: bool = False
    """It has coroutine methods: all its calls run on one event loop (G54)."""


class TaskTemplate(msgspec.Struct, frozen=True, array_like=True):
    """What all calls of one function with one set of options have in common."""

    function_id: bytes
    """Digest-free: 16 bytes naming the exported definition within its job."""
    name: str
    shape: LeaseShape
    num_returns: int
    max_retries: int
    retry_exceptions: bool
    """True: the executor says whether an exception is one of those to retry."""
    retry_exception_types: bytes
    """Pickled tuple of classes; empty: all exceptions."""
    max_calls: int
    method: str = ""
    """Of an actor: which is called; empty for functions and constructors."""
    concurrency_group: str = ""
    """Of a method: which of its actor's groups it runs in."""
    actor: ActorOptions | None = None
    """Of a constructor: how its process runs calls."""
    is_streaming: bool = False
    """A generator whose items are reported as they are yielded; its one return value says that it has ended."""
    most_unread: int = 0
    """Streaming: back-pressure, so many items at most may be unread; 0: any number."""
    is_recorded: bool = True
    """Its worker remembers when it has run, for whoever asks for a timeline."""
    function_name: str = ""
    """What runs, if ``name`` does not say so, because the user has chosen it."""

    def is_reconstructable(self) -> bool:
        """Whether a lost result may be made again by running the task again (G67, G70)."""
        return self.max_retries != 0


def kind_of(template: TaskTemplate) -> str:
    """Name the kind of a task, as Ray's state API does."""
    if template.method:
        return ACTOR_TASK
    return NORMAL_TASK if template.actor is None else ACTOR_CREATION_TASK
