"""Makes a worker part of a job: it takes on the job's paths and the runtime environment of its first task, for good.

Ray: CoreWorker::HandlePushTask's first task, python/ray/_private/runtime_env/context.py

A worker serves one job, one runtime environment and the same GPUs all its life, because modules that were imported and
variables that were read cannot be taken back. Its raylet knows that, and leases it for nothing else. Until the first task
comes, the worker belongs to no job. First the directories of the environment are brought here (``packages``). The last step
is the job's setup hook: it runs in the thread that runs tasks, after paths and variables were set.

Without a working directory of its own, the environment has the driver's. On a node that lacks that one, a worker stays where
its raylet is.
"""

from __future__ import annotations

import importlib
import pickle
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from minray import cloudpickle
from minray.common.gpus import variables_of
from minray.common.task_spec import TaskTemplate
from minray.core_worker.execution.packages import directory_of, run_in_user_code
from minray.core_worker.ground.job_context import JobContext
from minray.core_worker.ground.process import Process
from minray.exceptions import RuntimeEnvSetupError
from minray.protocol.gcs import GetJob

MAX_TEXT_CHARACTERS = 10_000
"""Characters at which the text of a setup hook's exception is cut: every caller of an actor that could not begin gets it."""


async def take_on(process: Process, context: JobContext, template: TaskTemplate, gpus: Sequence[int]) -> None:
    """Enter the job and the runtime environment of this worker's first task, and hide all GPUs but those of its lease.

    Raises RuntimeEnvSetupError.
    """
    job = context.job
    if job is None:
        job = (await process.gcs.call(GetJob(template.shape.job_id))).job
        if job is None:
            raise RuntimeEnvSetupError(reason=f"the gcs does not know job {template.shape.job_id.hex()}")
        if job.is_over():
            raise RuntimeEnvSetupError(reason=f"job {template.shape.job_id.hex()} has finished")
        context.enter(job)
    environment, config, user_code = template.shape.runtime_env, job.config, process.platform.user_code
    uris = [*filter(None, [environment.working_dir]), *environment.py_modules]
    leading = [await directory_of(process, job.job_id, uri) for uri in uris]
    context.environment = environment
    working_dir = leading[0] if environment.working_dir else None
    if working_dir is None and config.working_dir and user_code.has_directory(config.working_dir):
        working_dir = config.working_dir
    env_vars = dict(environment.env_vars)
    env_vars |= variables_of(process.config.gpus, env_vars, gpus)
    try:
        user_code.enter_environment(leading, config.sys_path, working_dir, env_vars)
    except OSError as error:
        raise RuntimeEnvSetupError(reason=f"{error.strerror}: {error.filename}") from error
    if config.setup_hook:
        problem = await run_in_user_code(user_code, partial(run_hook, config.setup_hook))
        if problem is not None:
            text = str(problem)[:MAX_TEXT_CHARACTERS]
            raise RuntimeEnvSetupError(reason=f"worker_process_setup_hook raised {type(problem).__name__}: {text}")


def pack_hook(hook: Callable[[], Any] | str | None) -> bytes:
    """Pickle a setup hook, a function or the name of one, for ``JobConfig.setup_hook``; empty for None.

    Raises TypeError if the hook cannot be pickled.
    """
    if hook is None:
        return b""
    try:
        packed: bytes = cloudpickle.dumps(hook, 5)
    except Exception as error:
        raise TypeError(f"worker_process_setup_hook {hook!r} cannot be pickled: {error}") from error
    return packed


def run_hook(packed: bytes) -> None:
    """Call a setup hook that ``pack_hook`` has packed."""
    _hook_of(packed)()


def _hook_of(packed: bytes) -> Any:
    hook = pickle.loads(packed)
    if not isinstance(hook, str):
        return hook
    module, _, name = hook.rpartition(".")
    return getattr(importlib.import_module(module), name)
