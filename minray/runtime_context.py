"""Where am I running? ``minray.get_runtime_context()``.

Ray: python/ray/runtime_context.py

It works in drivers, tasks and actors. Methods return ids as hexadecimal strings; the dictionary of ``get`` contains id
objects. An id that does not exist is None: a driver has no task id.
"""

from __future__ import annotations

import os
import warnings
from typing import Any, TypeVar

import msgspec

from minray.actor import ActorHandle, own_handle
from minray.api import calls as worker
from minray.common.bundles import plain
from minray.common.gpus import ids_of
from minray.common.ids import ActorID, BaseID, JobID, NodeID, PlacementGroupID, TaskID
from minray.common.labels import labels_of
from minray.common.resources import to_floats
from minray.core_worker.user_threads.actor_api import ActorApi

__all__ = ["RuntimeContext", "get_gpu_ids", "get_runtime_context"]

T = TypeVar("T")


class RuntimeContext:
    """The ids, resources and other facts of the running driver, task or actor."""

    def get(self) -> dict[str, Any]:
        """Return ``job_id``, ``node_id``, ``task_id``, ``actor_id`` (id objects) and ``namespace``; ids that are None are
        left out."""
        ids: dict[str, tuple[type[BaseID], str | None]] = {
            "job_id": (JobID, self.get_job_id()),
            "node_id": (NodeID, self.get_node_id()),
            "task_id": (TaskID, self.get_task_id()),
            "actor_id": (ActorID, self.get_actor_id()),
        }
        known = {name: kind.from_hex(text) for name, (kind, text) in ids.items() if text is not None}
        return {**known, "namespace": self.namespace}

    @property
    def job_id(self) -> JobID:
        """The id of the job. Deprecated: use ``get_job_id``."""
        return JobID.from_hex(_instead_of("job_id", self.get_job_id()))

    @property
    def node_id(self) -> NodeID:
        """The id of this process's node. Deprecated: use ``get_node_id``."""
        return NodeID.from_hex(_instead_of("node_id", self.get_node_id()))

    @property
    def task_id(self) -> TaskID | None:
        """The id of the running task; None in a driver. Deprecated: use ``get_task_id``."""
        found = _instead_of("task_id", self.get_task_id())
        return TaskID.from_hex(found) if found is not None else None

    @property
    def actor_id(self) -> ActorID | None:
        """The id of this process's actor; None outside of actors. Deprecated: use ``get_actor_id``."""
        found = _instead_of("actor_id", self.get_actor_id())
        return ActorID.from_hex(found) if found is not None else None

    @property
    def current_placement_group_id(self) -> PlacementGroupID | None:
        """The id of the running task's placement group, or None. Deprecated: use ``get_placement_group_id``."""
        found = _instead_of("placement_group_id", self.get_placement_group_id(), "current_placement_group_id")
        return PlacementGroupID.from_hex(found) if found is not None else None

    def get_job_id(self) -> str:
        return worker.current_api().job_id.hex()

    def get_node_id(self) -> str:
        return worker.current_api().config.node_id.hex()

    def get_worker_id(self) -> str:
        return worker.current_api().config.worker_id.hex()

    def get_task_id(self) -> str | None:
        running = worker.current_api().running
        return running.task_id.hex() if running is not None else None

    def get_actor_id(self) -> str | None:
        """Return the id of this process's actor, also in threads that the actor has started; None outside of actors."""
        actor = worker.current_api().actor
        return actor.actor_id.hex() if actor is not None else None

    def get_actor_name(self) -> str | None:
        """Return the name of this process's actor: "" if it has none, None outside of actors."""
        api = worker.current_api()
        actor = api.actor
        if actor is None:
            return None
        return next((info.name for info in ActorApi(api).all() if info.actor_id == actor.actor_id), "")

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether the actor has been restarted: this process is not its first one."""
        actor = worker.current_api().actor
        return actor is not None and actor.constructor.attempt > 0

    @property
    def current_actor(self) -> ActorHandle[Any]:
        """A handle of this process's actor that does not keep it alive. Raises RuntimeError outside of actors."""
        return own_handle()

    def is_canceled(self) -> bool:
        """Return whether the running task or call was cancelled.

        Raises RuntimeError in an async actor, where the coroutine is cancelled instead.
        """
        api = worker.current_api()
        actor, running = api.actor, api.running
        if actor is not None and actor.options.is_async:
            raise RuntimeError("is_canceled() is for plain methods; in an async actor asyncio.CancelledError is raised")
        return running is not None and running.cancelled

    def get_task_name(self) -> str | None:
        running = worker.current_api().running
        return running.header.template.name if running is not None else None

    def get_task_function_name(self) -> str | None:
        """Return the qualified name of the running definition: ``module.function`` or ``module.Class.method``.

        Returns None in a driver.
        """
        api = worker.current_api()
        running = api.running
        if running is None:
            return None
        template = running.header.template
        if template.method:
            return f"{_place_of(type(api.actor_object))}.{template.method}"
        place = _place_of(api.definition(template.function_id))
        return place if template.actor is None else f"{place}.__init__"

    def get_assigned_resources(self) -> dict[str, float]:
        """Return the amounts of resources that the running task or actor holds; empty in a driver."""
        api = worker.current_api()
        actor, running = api.actor, api.running
        holder = actor.constructor if actor is not None else running
        return to_floats(plain(dict(holder.header.template.shape.resources))) if holder is not None else {}

    def get_node_labels(self) -> dict[str, str]:
        """Return the labels of this process's node."""
        api = worker.current_api()
        here = api.config.node_id
        return labels_of(here, next(node.labels for node in worker.known_nodes() if node.node_id == here))

    def get_placement_group_id(self) -> str | None:
        """Return the id (hex) of the placement group of the running task or actor; None outside of any group."""
        strategy = worker.current_api().placed()
        return strategy.group_id.hex() or None if strategy is not None else None

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether child tasks run in the placement group of the running task, unless their options say otherwise."""
        return worker.current_api().captured() is not None

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """Return the ids of the running task's GPUs: ``{"GPU": ["0", "1"]}``."""
        return {"GPU": [str(gpu_id) for gpu_id in get_gpu_ids()]}

    @property
    def namespace(self) -> str:
        return worker.current_api().namespace

    @property
    def gcs_address(self) -> str:
        return worker.current_api().config.gcs_endpoint

    @property
    def runtime_env(self) -> dict[str, Any]:
        """The runtime environment that child tasks inherit; only fields that were given."""
        environment = worker.current_api().base_environment()
        fields: dict[str, Any] = {
            "env_vars": dict(environment.env_vars),
            "working_dir": environment.working_dir,
            "py_modules": list(environment.py_modules),
        }
        return {name: value for name, value in fields.items() if value}

    def get_runtime_env_string(self) -> str:
        """Return ``runtime_env`` as JSON."""
        import json

        return json.dumps(self.runtime_env)

    def get_session_name(self) -> str:
        """The name of the node's session directory."""
        return os.path.basename(worker.current_api().config.session_dir)

    def get_temp_dir(self) -> str:
        """Return the directory that contains this user's session directories."""
        return os.path.dirname(worker.current_api().config.session_dir)

    def rpc_counters(self) -> dict[str, int]:
        """Return counts of what this process has sent so far: ``requests``, ``replies``, ``frames``, ``bytes``, ``tasks``.

        ``tasks`` counts the tasks that it has submitted.
        """
        counters, submitted = worker.current_api().counters()
        return {**msgspec.structs.asdict(counters), "tasks": submitted}


def _instead_of(name: str, value: T, deprecated: str = "") -> T:
    """Warn that a property of the context is deprecated, and return its value."""
    message = f"RuntimeContext.{deprecated or name} is deprecated: use get_{name}() instead, which returns the id as hex"
    warnings.warn(message, DeprecationWarning, stacklevel=3)
    return value


def _place_of(definition: Any) -> str:
    """Return ``module.name``. As in Ray a function has its plain name, and a callable instance has its class's name."""
    if not isinstance(definition, type) and hasattr(definition, "__name__"):
        return f"{definition.__module__}.{definition.__name__}"
    named = definition if isinstance(definition, type) else type(definition)
    return f"{named.__module__}.{named.__qualname__}"


def get_runtime_context() -> RuntimeContext:
    """Return the context of the calling driver, task or actor; start a local cluster if this process is not connected."""
    worker.current_api()
    return RuntimeContext()


def get_gpu_ids() -> list[int] | list[str]:
    """Return the ids of the running task's GPUs; empty in a driver.

    They are indices, or str if CUDA_VISIBLE_DEVICES (or HIP_VISIBLE_DEVICES) was set where the node was started.
    """
    api = worker.current_api()
    running = api.running
    return ids_of(api.config.gpus, dict(api.base_environment().env_vars), running.gpu_ids) if running is not None else []
