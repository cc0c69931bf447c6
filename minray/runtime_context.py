"""Where am I running? ``minray.get_runtime_context()``.

Ray: python/ray/runtime_context.py

Works in drivers and in tasks; ids are hexadecimal strings (in the dictionary of ``get`` they are ids), None where there is
none (a driver has no task).
"""

from __future__ import annotations

import os
from dataclasses import asdict
from typing import Any

from minray import worker
from minray.actor import ActorHandle, own_handle
from minray.common.bundles import plain
from minray.common.ids import ActorID, BaseID, JobID, NodeID, TaskID
from minray.common.labels import labels_of
from minray.common.resources import to_floats
from minray.core_worker.actor_api import ActorApi


class RuntimeContext:
    """What a driver or a task may know of itself."""

    def get(self) -> dict[str, Any]:
        """Of where this runs, without the ids that there are not."""
        ids: dict[str, tuple[type[BaseID], str | None]] = {
            "job_id": (JobID, self.get_job_id()),
            "node_id": (NodeID, self.get_node_id()),
            "task_id": (TaskID, self.get_task_id()),
            "actor_id": (ActorID, self.get_actor_id()),
        }
        known = {name: kind.from_hex(text) for name, (kind, text) in ids.items() if text is not None}
        return {**known, "namespace": self.namespace}

    def get_job_id(self) -> str:
        return worker.current_api().core.job_id.hex()

    def get_node_id(self) -> str:
        return worker.current_api().core.config.node_id.hex()

    def get_worker_id(self) -> str:
        return worker.current_api().core.config.worker_id.hex()

    def get_task_id(self) -> str | None:
        running = worker.current_api().core.executor.current
        return running.task_id.hex() if running is not None else None

    def get_actor_id(self) -> str | None:
        """Of the actor whose process this is, also in threads that it has started."""
        actor = worker.current_api().core.actor_receiver.actor
        return actor.actor_id.hex() if actor is not None else None

    def get_actor_name(self) -> str | None:
        """Empty for an actor without a name; None outside of actors."""
        api = worker.current_api()
        actor = api.core.actor_receiver.actor
        if actor is None:
            return None
        return next((info.name for info in ActorApi(api).all() if info.actor_id == actor.actor_id), "")

    @property
    def was_current_actor_reconstructed(self) -> bool:
        """Whether this is not the actor's first incarnation."""
        actor = worker.current_api().core.actor_receiver.actor
        return actor is not None and actor.constructor.attempt > 0

    @property
    def current_actor(self) -> ActorHandle:
        """A handle of the actor that asks; it does not keep it alive. Raises RuntimeError outside of actors."""
        return own_handle()

    def is_canceled(self) -> bool:
        """Whether the running call was cancelled (G45). RuntimeError in an async actor, whose coroutine is cancelled."""
        core = worker.current_api().core
        actor, running = core.actor_receiver.actor, core.executor.current
        if actor is not None and actor.options.is_async:
            raise RuntimeError("is_canceled() is for plain methods; in an async actor asyncio.CancelledError is raised")
        return running is not None and running.cancelled

    def get_task_name(self) -> str | None:
        running = worker.current_api().core.executor.current
        return running.header.template.name if running is not None else None

    def get_task_function_name(self) -> str | None:
        """Where what runs was defined: ``module.function``, ``module.Class.method``."""
        core = worker.current_api().core
        running = core.executor.current
        if running is None:
            return None
        template = running.header.template
        if template.method:
            return f"{_place_of(type(core.executor.actor))}.{template.method}"
        place = _place_of(core.functions.load(template.function_id))
        return place if template.actor is None else f"{place}.__init__"

    def get_assigned_resources(self) -> dict[str, float]:
        """The resources that the running task was given; empty in a driver."""
        core = worker.current_api().core
        actor, running = core.actor_receiver.actor, core.executor.current
        holder = actor.constructor if actor is not None else running
        return to_floats(plain(dict(holder.header.template.shape.resources))) if holder is not None else {}

    def get_node_labels(self) -> dict[str, str]:
        """The labels of the node where this runs."""
        api = worker.current_api()
        here = api.core.config.node_id
        return labels_of(here, next(node.labels for node in api.known_nodes() if node.node_id == here))

    def get_placement_group_id(self) -> str | None:
        """The placement group that the running task, or this actor, is in."""
        strategy = worker.current_api().placed()
        return strategy.group_id.hex() or None if strategy is not None else None

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether tasks submitted from here run in its placement group, unless they say otherwise."""
        return worker.current_api().captured() is not None

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """The logical GPUs that belong to the running task."""
        return {"GPU": [str(index) for index in get_gpu_ids()]}

    @property
    def namespace(self) -> str:
        return worker.current_api().core.namespace

    @property
    def gcs_address(self) -> str:
        return worker.current_api().core.config.gcs_endpoint

    @property
    def runtime_env(self) -> dict[str, Any]:
        """The runtime environment that tasks submitted from here inherit: what was given of it."""
        environment = worker.current_api().base_environment()
        fields: dict[str, Any] = {
            "env_vars": dict(environment.env_vars),
            "working_dir": environment.working_dir,
            "py_modules": list(environment.py_modules),
        }
        return {name: value for name, value in fields.items() if value}

    def get_runtime_env_string(self) -> str:
        """The same as JSON."""
        import json

        return json.dumps(self.runtime_env)

    def get_session_name(self) -> str:
        """The name of the node's session directory."""
        return os.path.basename(worker.current_api().core.config.session_dir)

    def get_temp_dir(self) -> str:
        """Where the sessions of this user are."""
        return os.path.dirname(worker.current_api().core.config.session_dir)

    def rpc_counters(self) -> dict[str, int]:
        """What this process has sent so far: ``requests``, ``replies``, ``frames``, ``bytes``, and ``tasks`` submitted."""
        core = worker.current_api().core
        return {**asdict(core.platform.network.counters), "tasks": core.tasks.submitted_count}


def _place_of(definition: Any) -> str:
    """A function goes by its name alone, as in Ray; what can be called and is neither that nor a class, by its class."""
    if not isinstance(definition, type) and hasattr(definition, "__name__"):
        return f"{definition.__module__}.{definition.__name__}"
    named = definition if isinstance(definition, type) else type(definition)
    return f"{named.__module__}.{named.__qualname__}"


def get_runtime_context() -> RuntimeContext:
    """The context of the calling driver or task; starts a local cluster if there is none."""
    worker.current_api()
    return RuntimeContext()


def get_gpu_ids() -> list[int]:
    """The logical GPUs of the running task; empty in a driver."""
    running = worker.current_api().core.executor.current
    return list(running.gpu_ids) if running is not None else []
