"""Where am I running? ``minray.get_runtime_context()``.

Ray: python/ray/runtime_context.py

Works in drivers and in tasks; ids are hexadecimal strings, None where there is none (a driver has no task).
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from minray import worker
from minray.common.bundles import plain
from minray.common.labels import labels_of
from minray.common.resources import to_floats


class RuntimeContext:
    """What a driver or a task may know of itself."""

    def get_job_id(self) -> str:
        return worker.current_api().core.job_id.hex()

    def get_node_id(self) -> str:
        return worker.current_api().core.config.node_id.hex()

    def get_worker_id(self) -> str:
        return worker.current_api().core.config.worker_id.hex()

    def get_task_id(self) -> str | None:
        running = worker.current_api().core.executor.current
        return running.task_id.hex() if running is not None else None

    def get_task_name(self) -> str | None:
        running = worker.current_api().core.executor.current
        return running.header.template.name if running is not None else None

    def get_task_function_name(self) -> str | None:
        return self.get_task_name()

    def get_assigned_resources(self) -> dict[str, float]:
        """The resources that the running task was given; empty in a driver."""
        running = worker.current_api().core.executor.current
        return to_floats(plain(dict(running.header.template.shape.resources))) if running is not None else {}

    def get_node_labels(self) -> dict[str, str]:
        """The labels of the node where this runs."""
        api = worker.current_api()
        here = api.core.config.node_id
        return labels_of(here, next(node.labels for node in api.known_nodes() if node.node_id == here))

    def get_placement_group_id(self) -> str | None:
        """The placement group that the running task is in."""
        running = worker.current_api().core.executor.current
        group_id = running.header.template.shape.strategy.group_id if running is not None else b""
        return group_id.hex() or None

    @property
    def should_capture_child_tasks_in_placement_group(self) -> bool:
        """Whether tasks that this one submits run in its placement group, unless they say otherwise."""
        return worker.current_api().captured() is not None

    def get_accelerator_ids(self) -> dict[str, list[str]]:
        """The logical GPUs that belong to the running task."""
        return {"GPU": [str(index) for index in get_gpu_ids()]}

    @property
    def namespace(self) -> str:
        job = worker.current_api().core.job
        return job.config.namespace if job is not None else ""

    @property
    def gcs_address(self) -> str:
        return worker.current_api().core.config.gcs_endpoint

    @property
    def runtime_env(self) -> dict[str, Any]:
        """The runtime environment that tasks submitted from here inherit."""
        environment = worker.current_api().base_environment()
        return {
            "env_vars": dict(environment.env_vars),
            "working_dir": environment.working_dir,
            "py_modules": list(environment.py_modules),
        }

    def rpc_counters(self) -> dict[str, int]:
        """What this process has sent so far: ``requests``, ``replies``, ``frames``, ``bytes``, and ``tasks`` submitted."""
        core = worker.current_api().core
        return {**asdict(core.platform.network.counters), "tasks": core.tasks.submitted_count}


def get_runtime_context() -> RuntimeContext:
    """The context of the calling driver or task; starts a local cluster if there is none."""
    worker.current_api()
    return RuntimeContext()


def get_gpu_ids() -> list[int]:
    """The logical GPUs of the running task; empty in a driver."""
    running = worker.current_api().core.executor.current
    return list(running.gpu_ids) if running is not None else []
