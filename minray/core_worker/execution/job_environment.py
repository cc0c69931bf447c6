"""A worker becomes part of a job: it takes on the job's paths and the runtime environment of its first task, for good.

Ray: CoreWorker::HandlePushTask's first task, python/ray/_private/runtime_env/context.py

A worker serves one job and one runtime environment all its life, because modules that were imported and variables that were
read cannot be taken back. Its raylet knows that, and leases it to nobody else. Until the first task comes it is nobody's.
The last step is the job's setup hook, in the thread that runs tasks, when paths and variables are there.
"""

from __future__ import annotations

import asyncio
import importlib
import pickle
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from minray import cloudpickle
from minray.common.ids import TaskIdFactory
from minray.common.task_spec import TaskTemplate
from minray.exceptions import RuntimeEnvSetupError
from minray.protocol.gcs import GetJob

if TYPE_CHECKING:
    from minray.core_worker.core_worker import CoreWorker

MAX_TEXT_CHARACTERS = 10_000
"""So much is said of what a hook has raised: it goes to everybody who calls an actor that it has kept from beginning."""


async def take_on(core: CoreWorker, template: TaskTemplate) -> None:
    """Raises RuntimeEnvSetupError."""
    if core.job is None:
        job = (await core.gcs.call(GetJob(template.shape.job_id))).job
        if job is None:
            raise RuntimeEnvSetupError(reason=f"the gcs does not know job {template.shape.job_id.hex()}")
        if job.is_over():
            raise RuntimeEnvSetupError(reason=f"job {template.shape.job_id.hex()} has finished")
        core.job = job
        core.job_id = template.shape.job_id
        core.task_ids = TaskIdFactory(core.config.worker_id, core.job_id)
    environment, config = template.shape.runtime_env, core.job.config
    core.environment = environment
    leading = [*filter(None, [environment.working_dir]), *environment.py_modules]
    working_dir = environment.working_dir or config.working_dir or None
    try:
        core.platform.user_code.enter_environment(leading, config.sys_path, working_dir, dict(environment.env_vars))
    except OSError as error:
        raise RuntimeEnvSetupError(reason=f"{error.strerror}: {error.filename}") from error
    if config.setup_hook:
        await _run_hook(core, config.setup_hook)


def pack_hook(hook: Callable[[], Any] | str | None) -> bytes:
    """A function, or the name of one, as ``JobConfig.setup_hook``; raises TypeError for what cannot be pickled."""
    if hook is None:
        return b""
    try:
        packed: bytes = cloudpickle.dumps(hook, 5)
    except Exception as error:
        raise TypeError(f"worker_process_setup_hook {hook!r} cannot be pickled: {error}") from error
    return packed


async def _run_hook(core: CoreWorker, packed: bytes) -> None:
    failures: list[str] = []
    over = asyncio.get_running_loop().create_future()

    def run() -> None:
        try:
            _hook_of(packed)()
        except BaseException as error:
            text = str(error)[:MAX_TEXT_CHARACTERS]
            failures.append(f"worker_process_setup_hook raised {type(error).__name__}: {text}")

    core.platform.user_code.run(run, lambda: over.set_result(None))
    await over
    if failures:
        raise RuntimeEnvSetupError(reason=failures[0])


def _hook_of(packed: bytes) -> Any:
    hook = pickle.loads(packed)
    if not isinstance(hook, str):
        return hook
    module, _, name = hook.rpartition(".")
    return getattr(importlib.import_module(module), name)
