"""Brings the directories of a runtime environment to this node: packages that the driver has uploaded.

Ray: download_and_unpack_package in python/ray/_private/runtime_env/packaging.py, which Ray's runtime env agent calls

A package is named by its content (``common/package_uri.py``), so a node that has unpacked it once has it for every worker
and every job of the session. A worker that finds no directory asks the gcs where the package is. A small package is in the
gcs itself. A large one is an object of the driver: the node's raylet fetches it once, from whichever node has a copy, and
all workers of the node read it in shared memory. The first of them unpacks it, and the others wait for that.

The directories go with the session. A job's entries in the gcs go with the job.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import partial
from typing import Any

from minray.common.package_uri import LOCAL, UPLOADED, name_in, package_name
from minray.core_worker.ground.process import Process
from minray.exceptions import RayError, RuntimeEnvSetupError
from minray.platform.base import Buffer, UserCode
from minray.protocol.base import decode, encode
from minray.protocol.gcs import KvGet, PackageInfo, job_namespace
from minray.values.object_ref import hooks

RESOURCES = "runtime_resources"
"""Folder of the session directory in which packages are unpacked; the name is Ray's."""


async def directory_of(process: Process, job_id: bytes, uri: str) -> str:
    """Return the directory of a URI on this node; fetch and unpack the package if need be.

    Raises RuntimeEnvSetupError, PlatformError.
    """
    user_code = process.platform.user_code
    if uri.startswith(LOCAL):
        directory = uri.removeprefix(LOCAL)
        if not user_code.has_directory(directory):
            raise RuntimeEnvSetupError(reason=f"{uri} must be a directory of every node, but {directory} is none here")
        return directory
    assert uri.startswith(UPLOADED), uri
    name = name_in(uri)
    directory = os.path.join(process.config.session_dir, RESOURCES, name)
    if not user_code.has_directory(directory):
        archive = await _fetch(process, job_id, uri)
        unpack = partial(user_code.unpack, archive, directory, partial(_check, archive, name))
        problem = await run_in_user_code(user_code, unpack)
        if problem is not None:
            raise RuntimeEnvSetupError(reason=f"{uri} cannot be unpacked to {directory}: {problem}")
    return directory


async def _fetch(process: Process, job_id: bytes, uri: str) -> Buffer:
    found = (await process.gcs.call(KvGet(job_namespace(job_id), uri.encode()))).value
    if found is None:
        raise RuntimeEnvSetupError(reason=f"job {job_id.hex()} has not uploaded {uri}, or has finished")
    info = decode(PackageInfo, found)
    if info.owner is None:
        return info.archive
    ref = hooks().unpickle_out_of_band(info.object_id, encode(info.owner))
    here, value = asyncio.Event(), ref.future()
    value.add_done_callback(lambda _: here.set())  # It does not refer to ``value``, whose bytes would stay pinned then.
    await here.wait()
    try:
        archive: Buffer = value.result()
    except RayError as error:
        raise RuntimeEnvSetupError(reason=f"{uri} cannot be fetched from its driver: {error}") from error
    return archive


def _check(archive: Buffer, name: str) -> None:
    if package_name(archive) != name:
        raise ValueError("its bytes are not those that its name is made of; they were damaged on the way")


async def run_in_user_code(user_code: UserCode, work: Callable[[], Any]) -> BaseException | None:
    """Run what may block in the main user thread; return the exception that it raises, if any."""
    problems: list[BaseException] = []
    over = asyncio.get_running_loop().create_future()

    def run() -> None:
        try:
            work()
        except BaseException as error:
            problems.append(error)

    user_code.run(run, lambda: over.set_result(None))
    await over
    return problems[0] if problems else None
