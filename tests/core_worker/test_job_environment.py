"""A worker becomes part of a job: where it finds modules, where it works, its variables, and the hook that is called last.

``Worker`` is the process; the gcs is the test, and so is the thread that runs users' code.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from minray.common.ids import job_of
from minray.common.package_uri import package_name, uri_of
from minray.common.task_spec import RuntimeEnvInfo, TaskTemplate
from minray.core_worker.execution.job_environment import pack_hook, take_on
from minray.core_worker.ground.job_context import JobContext
from minray.exceptions import RuntimeEnvSetupError
from minray.platform.base import Buffer
from minray.protocol.base import encode
from minray.protocol.gcs import GetJob, GetJobReply, JobConfig, JobInfo, KvGet, KvGetReply, PackageInfo, job_namespace
from tests.core_worker.parts import JOB, OWN, address, template
from tests.core_worker.peers import RecordingPeers, unreachable
from tests.core_worker.process_record import process_record
from tests.core_worker.user_thread import WorkQueue
from tests.rpc.fake_network import in_virtual_time, turns

calls: list[str] = []
"""Hooks that were called."""


def hook() -> None:
    calls.append("hook")


def failing_hook() -> None:
    raise ValueError("not today")


def verbose_hook() -> None:
    raise ValueError(100_000 * "x")


def exiting_hook() -> None:
    raise SystemExit(3)


def interrupted_hook() -> None:
    raise KeyboardInterrupt


class Worker(WorkQueue):
    """See the head of this file."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = RecordingPeers()
        self.process = process_record(self.asked, user_code=self)
        self.context = JobContext(OWN.worker_id)
        self.entered: list[Any] = []
        self.has_directories = True
        self.is_in_the_way = False
        """Whether a directory cannot be entered."""
        self.unpacked: dict[str, bytes] = {}
        """Packages by directory."""

    def enter_environment(
        self, leading: Sequence[str], sys_path: Sequence[str], working_dir: str | None, env_vars: dict[str, str]
    ) -> None:
        if self.is_in_the_way:
            raise FileNotFoundError(2, os.strerror(2), working_dir)
        self.entered.append(([*leading, *sys_path], working_dir, env_vars))

    def has_directory(self, path: str) -> bool:
        return self.has_directories and not path.startswith("runtime_resources") or path in self.unpacked

    def unpack(self, archive: Buffer, directory: str, check: Callable[[], None]) -> None:
        check()
        self.unpacked[directory] = bytes(archive)

    # --- what a test says

    async def take_on(
        self, job: JobInfo | None = None, gpus: tuple[int, ...] = (), **environment: Any
    ) -> asyncio.Task[None]:
        """Take on the environment of a first task. The gcs knows this job."""
        taking = asyncio.get_running_loop().create_task(take_on(self.process, self.context, of(**environment), gpus))
        await turns()
        for asked in self.asked.take_all(GetJob):
            assert asked.request == GetJob(JOB)
            asked.answer(GetJobReply(job))
        await turns()
        return taking

    async def run_work(self) -> None:
        ((work, then),) = self.due
        self.due.clear()
        work()
        then()
        await turns()


def of(**environment: Any) -> TaskTemplate:
    made = template()
    shape = msgspec.structs.replace(made.shape, runtime_env=RuntimeEnvInfo(**environment))
    return msgspec.structs.replace(made, shape=shape)


def job(setup_hook: bytes = b"", working_dir: str = "") -> JobInfo:
    return JobInfo(JOB, address("driver"), 1, JobConfig(["/of-the-job"], working_dir, "", "", setup_hook), 1.0)


@in_virtual_time
async def test_a_worker_takes_on_the_job_of_its_first_task() -> None:
    worker = Worker()
    (await worker.take_on(job())).result()
    assert worker.context.job == job() and worker.context.job_id == JOB and worker.entered == [(["/of-the-job"], None, {})]
    assert job_of(worker.context.task_ids.next()) == JOB


@in_virtual_time
async def test_what_the_environment_says_comes_before_what_the_job_does() -> None:
    worker = Worker()
    environment = {"py_modules": ("local:///modules",), "working_dir": "local:///work", "env_vars": (("A", "1"),)}
    (await worker.take_on(job(working_dir="/of-the-driver"), **environment)).result()
    assert worker.entered == [(["/work", "/modules", "/of-the-job"], "/work", {"A": "1"})]
    assert worker.context.environment == RuntimeEnvInfo(**environment)  # type: ignore[arg-type]


@in_virtual_time
async def test_a_worker_is_shown_the_gpus_of_its_first_lease_with_the_other_variables() -> None:
    """The GPUs are no part of the environment that child tasks inherit."""
    worker = Worker()
    (await worker.take_on(job(), (1, 3), env_vars=(("A", "1"),))).result()
    assert worker.entered == [(["/of-the-job"], None, {"A": "1", "CUDA_VISIBLE_DEVICES": "1,3"})]
    assert worker.context.environment == RuntimeEnvInfo(env_vars=(("A", "1"),))


@in_virtual_time
async def test_without_one_of_its_own_a_worker_works_where_its_driver_does() -> None:
    worker = Worker()
    (await worker.take_on(job(working_dir="/of-the-driver"))).result()
    assert worker.entered == [(["/of-the-job"], "/of-the-driver", {})]


@in_virtual_time
async def test_a_worker_stays_where_it_is_if_its_node_lacks_the_drivers_directory() -> None:
    worker = Worker()
    worker.has_directories = False
    (await worker.take_on(job(working_dir="/of-the-driver"))).result()
    assert worker.entered == [(["/of-the-job"], None, {})]


@in_virtual_time
async def test_a_job_that_the_gcs_does_not_know_cannot_be_taken_on() -> None:
    worker = Worker()
    with pytest.raises(RuntimeEnvSetupError, match=f"the gcs does not know job {JOB.hex()}"):
        (await worker.take_on(None)).result()
    assert worker.entered == [] and worker.context.job_id == b"\0\0\0\0"
    (await worker.take_on(job())).result()
    assert worker.context.job == job()


@in_virtual_time
async def test_a_job_that_is_over_cannot_be_taken_on() -> None:
    """The hook of that job is forgotten."""
    worker = Worker()
    with pytest.raises(RuntimeEnvSetupError, match=f"job {JOB.hex()} has finished"):
        (await worker.take_on(msgspec.structs.replace(job(), end_time=2.0))).result()
    assert worker.entered == [] and worker.context.job is None
    (await worker.take_on(msgspec.structs.replace(job(), end_time=2.0, kept=True))).result()
    assert worker.context.job is not None and worker.context.job.kept


@in_virtual_time
async def test_a_directory_that_is_not_there_is_an_error_and_the_job_is_asked_for_once() -> None:
    worker = Worker()
    worker.is_in_the_way = True
    with pytest.raises(RuntimeEnvSetupError, match="No such file or directory: /gone"):
        (await worker.take_on(job(), working_dir="local:///gone")).result()
    worker.is_in_the_way, worker.has_directories = False, False
    with pytest.raises(RuntimeEnvSetupError, match="local:///gone must be a directory of every node"):
        await take_on(worker.process, worker.context, of(working_dir="local:///gone"), ())
    worker.has_directories = True
    await take_on(worker.process, worker.context, of(working_dir="local:///back"), ())
    assert worker.asked.asked == [] and worker.entered[0][1] == "/back"


@in_virtual_time
async def test_a_gcs_that_is_gone_is_nobodys_fault_here() -> None:
    worker = Worker()
    taking = asyncio.get_running_loop().create_task(take_on(worker.process, worker.context, of(), ()))
    await turns()
    worker.asked.take(GetJob).fail(unreachable())
    await turns()
    assert type(taking.exception()) is type(unreachable())


# --- packages

ARCHIVE = b"the bytes of a package"
NAME = package_name(ARCHIVE)


async def beginning(worker: Worker, uri: str = uri_of(NAME)) -> asyncio.Task[None]:
    """The worker begins to take on an environment with a package, and asks the gcs for it."""
    return await worker.take_on(job(), working_dir=uri)


@in_virtual_time
async def test_a_package_in_the_gcs_is_unpacked_in_the_user_thread_and_entered() -> None:
    worker = Worker()
    taking = await beginning(worker)
    asked = worker.asked.take(KvGet)
    assert asked.request == KvGet(job_namespace(JOB), uri_of(NAME).encode())
    asked.answer(KvGetReply(encode(PackageInfo(archive=ARCHIVE))))
    await turns()
    assert worker.unpacked == {} and not taking.done()
    await worker.run_work()
    taking.result()
    directory = f"runtime_resources/{NAME}"
    assert worker.unpacked == {directory: ARCHIVE} and worker.entered == [([directory, "/of-the-job"], directory, {})]
    assert worker.context.environment.working_dir == uri_of(NAME), "child tasks find the package by its name"


@in_virtual_time
async def test_a_package_that_the_node_has_is_not_asked_for() -> None:
    worker = Worker()
    worker.unpacked[f"runtime_resources/{NAME}"] = ARCHIVE
    (await beginning(worker)).result()
    assert worker.asked.take_all(KvGet) == [] and list(worker.due) == []


@in_virtual_time
async def test_a_package_that_nobody_has_uploaded_is_an_error_that_names_it() -> None:
    worker = Worker()
    taking = await beginning(worker)
    worker.asked.take(KvGet).answer(KvGetReply(None))
    await turns()
    with pytest.raises(RuntimeEnvSetupError, match=f"job {JOB.hex()} has not uploaded gcs://{NAME}.zip, or has finished"):
        taking.result()


@in_virtual_time
async def test_a_package_whose_bytes_are_not_those_of_its_name_is_not_unpacked() -> None:
    worker = Worker()
    taking = await beginning(worker)
    worker.asked.take(KvGet).answer(KvGetReply(encode(PackageInfo(archive=b"other bytes"))))
    await turns()
    await worker.run_work()
    with pytest.raises(RuntimeEnvSetupError, match="its bytes are not those that its name is made of"):
        taking.result()
    assert worker.unpacked == {} and worker.entered == []


# --- the hook


@in_virtual_time
@pytest.mark.parametrize("what", [hook, f"{__name__}.hook"])
async def test_the_hook_is_called_last_and_waited_for(what: Any) -> None:
    calls.clear()
    worker = Worker()
    taking = await worker.take_on(job(pack_hook(what)))
    assert len(worker.entered) == 1 and calls == [] and not taking.done()
    await worker.run_work()
    taking.result()
    assert calls == ["hook"]


@in_virtual_time
@pytest.mark.parametrize(
    ("what", "words"),
    [
        (failing_hook, "worker_process_setup_hook raised ValueError: not today"),
        (verbose_hook, "worker_process_setup_hook raised ValueError: x{10000}$"),
        (exiting_hook, "worker_process_setup_hook raised SystemExit: 3"),
        (interrupted_hook, "worker_process_setup_hook raised KeyboardInterrupt"),
        ("nowhere.hook", "worker_process_setup_hook raised ModuleNotFoundError: No module named 'nowhere'"),
        (f"{__name__}.nothing", "worker_process_setup_hook raised AttributeError: "),
    ],
)
async def test_a_hook_that_fails_is_why_no_task_can_run(what: Any, words: str) -> None:
    worker = Worker()
    taking = await worker.take_on(job(pack_hook(what)))
    await worker.run_work()
    with pytest.raises(RuntimeEnvSetupError, match=words):
        taking.result()


def test_a_hook_is_a_function_or_a_name_and_must_be_such_that_it_can_be_sent() -> None:
    assert pack_hook(None) == b"" and pack_hook("a.b") != b""
    with pytest.raises(TypeError, match="worker_process_setup_hook .* cannot be pickled: "):
        pack_hook((each for each in ()).__next__)
