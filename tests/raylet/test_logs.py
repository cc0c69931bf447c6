"""Output of workers: kept in files, and passed on in order to the driver whose work it is."""

from __future__ import annotations

import asyncio

from minray.protocol.base import Address
from minray.protocol.gcs import FinishJob
from minray.protocol.raylet import FlushLogs
from minray.raylet import log_monitor
from minray.simulation.logs import SimLog
from tests.raylet.scene import Scene, scenario


def text(scene: Scene) -> list[tuple[str, str]]:
    return [(name, line) for batch in scene.printed for name, line, _ in batch.lines]


@scenario(cpus=1)
async def test_output_reaches_the_driver_in_order_with_the_tasks_name(scene: Scene) -> None:
    _, reply = await scene.lease()
    worker = scene.worker(reply)
    worker.print("\x1ef\none\ntwo\n\x1eg\nthree\n")
    worker.print("four\n", "stderr")
    await scene.raylet().call(FlushLogs(scene.job_id))
    assert text(scene) == [("f", "one"), ("f", "two"), ("g", "three"), ("", "four")]
    assert [(batch.pid, batch.is_stderr) for batch in scene.printed] == [(worker.pid, False), (worker.pid, True)]
    assert [batch.sequence for batch in scene.printed] == [1, 2]
    files = {name.rpartition(".")[2]: text for name, text in scene.written().items()}
    assert files == {"out": "\x1ef\none\ntwo\n\x1eg\nthree\n", "err": "four\n"}
    name = f"worker-{worker.config.worker_id.hex()}-{scene.job_id.hex()}-{worker.pid}.out"
    assert sorted(scene.written())[1] == name


@scenario(cpus=1)
async def test_what_a_worker_prints_before_it_has_a_job_is_only_kept(scene: Scene) -> None:
    await scene.until(lambda: scene.alive())
    (worker,) = scene.alive()
    worker.print("early\n")
    await scene.settle()
    await scene.lease()
    worker.print("late\n")
    await scene.until(lambda: scene.printed)
    assert text(scene) == [("", "late")]
    assert next(iter(scene.written().values())) == "early\nlate\n"


@scenario(cpus=1)
async def test_the_last_words_of_a_dying_worker_arrive(scene: Scene) -> None:
    _, reply = await scene.lease()
    scene.worker(reply).print("no newline")
    scene.worker(reply).exit(1)
    await scene.until(lambda: scene.printed)
    assert text(scene) == [("", "no newline")]


@scenario(cpus=1)
async def test_many_lines_travel_in_few_batches(scene: Scene) -> None:
    _, reply = await scene.lease()
    lines = [f"line {number}" for number in range(1200)]
    scene.worker(reply).print("\n".join(lines) + "\n")
    await scene.until(lambda: len(text(scene)) == 1200)
    assert [line for _, line in text(scene)] == lines
    assert [batch.sequence for batch in scene.printed] == list(range(1, len(scene.printed) + 1))


@scenario(cpus=1)
async def test_output_of_a_job_that_is_not_known_here_waits_and_flushing_it_does_not_hang(scene: Scene) -> None:
    _, reply = await scene.lease(job_id=b"jobX")
    scene.worker(reply).print("hello\n")
    await scene.settle(0.1)
    await scene.raylet().call(FlushLogs(b"jobX"))
    assert scene.printed == []


@scenario(cpus=1)
async def test_nothing_is_forwarded_to_a_driver_that_is_gone(scene: Scene) -> None:
    _, reply = await scene.lease(job_id=b"gone")
    driver = Address(b"d" * 16, scene.node_id, "sim:nowhere")
    scene.raylets["head"]._log_monitor.on_job(b"gone", driver, True)
    scene.worker(reply).print("too late\n")
    await scene.settle()
    scene.worker(reply).print("much too late\n")
    began = asyncio.get_running_loop().time()
    await scene.raylet().call(FlushLogs(b"gone"))
    assert asyncio.get_running_loop().time() - began < 0.1
    assert scene.printed == []
    assert next(iter(scene.written().values())) == "too late\nmuch too late\n"


@scenario(cpus=1)
async def test_a_finished_jobs_output_is_not_waited_for(scene: Scene) -> None:
    await scene.lease()
    await scene.gcs.call(FinishJob(scene.job_id))
    began = asyncio.get_running_loop().time()
    await scene.raylet().call(FlushLogs(scene.job_id))
    assert asyncio.get_running_loop().time() - began < 0.1


@scenario(cpus=1)
async def test_nothing_is_kept_of_a_job_that_the_gcs_has_forgotten(scene: Scene) -> None:
    await scene.lease()
    await scene.gcs.call(FinishJob(scene.job_id))
    monitor = scene.raylets["head"]._log_monitor
    await scene.until(lambda: monitor._outboxes[scene.job_id].gone)
    scene.raylets["head"]._on_job(scene.job_id, None)
    assert monitor._outboxes == {}


@scenario(cpus=1)
async def test_a_slow_driver_is_told_how_much_it_has_missed(scene: Scene) -> None:
    _, reply = await scene.lease()
    monitor = scene.raylets["head"]._log_monitor
    worker = scene.worker(reply)
    for number in range(log_monitor.MAX_WAITING_LINES + 3):
        monitor.on_output(worker.config.worker_id, "stdout", str(number))
    note = "", "[3 lines were not forwarded; they are in /session/logs]"
    await scene.until(lambda: text(scene) and text(scene)[-1] == note)
    assert len(text(scene)) == log_monitor.MAX_WAITING_LINES + 1
    worker.print("next\n")
    await scene.until(lambda: text(scene)[-1] == ("", "next"))
    assert text(scene)[-2] == note, "it is told once"


@scenario(cpus=1)
async def test_few_batches_are_on_their_way_to_a_driver_that_does_not_answer(scene: Scene) -> None:
    scene.is_busy = True
    _, reply = await scene.lease()
    for number in range(2 * log_monitor.MAX_UNACKNOWLEDGED_BATCHES):
        scene.worker(reply).print(f"{number}\n", "stdout" if number % 2 else "stderr")
    await scene.settle()
    assert len(scene.printed) == log_monitor.MAX_UNACKNOWLEDGED_BATCHES


@scenario(cpus=1)
async def test_what_comes_before_the_pid_is_known_is_kept_under_the_right_name(scene: Scene) -> None:
    monitor = scene.raylets["head"]._log_monitor
    monitor.on_output(b"w" * 16, "stderr", "early")
    assert not scene.written()
    monitor.on_started(b"w" * 16, 7)
    assert scene.written() == {f"worker-{'77' * 16}-ffffffff-7.err": "early\n"}


@scenario(cpus=1)
async def test_a_full_disk_loses_the_files_and_nothing_else(scene: Scene) -> None:
    _, reply = await scene.lease()
    worker_id = scene.worker(reply).config.worker_id
    scene.logs.files[f"worker-{worker_id.hex()}-{scene.job_id.hex()}-{reply.pid}.out"] = FullDisk(0)
    scene.worker(reply).print("hello\n")
    await scene.until(lambda: scene.printed)
    assert text(scene) == [("", "hello")]


class FullDisk(SimLog):
    def write(self, text: str, heading: str = "", /) -> int:
        raise OSError("no space left on device")
