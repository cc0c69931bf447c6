"""Processes of a real cluster as programs see them: a timeline, stacks, metrics."""

from __future__ import annotations

import asyncio
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

import minray as ray
from minray.api import calls as worker
from minray.observability.stack_text import stack_text
from minray.util.metrics import Counter, Gauge, Histogram, metrics_text
from tests.helpers import wait_for_condition
from tests.real.support import PATIENCE_S, Files, Signal, run_driver
from tests.util.exposition import parse

pytestmark = pytest.mark.usefixtures("cluster")
CLOCKS_US = 100_000
"""Two clocks are read one after the other, and somebody may adjust one of them meanwhile."""


@ray.remote(max_retries=0)
def work(fails: bool = False) -> tuple[float, float]:
    """When it was here, in microseconds."""
    began = time.time()
    if fails:
        raise ValueError
    sum(range(100_000))
    return began * 1e6, time.time() * 1e6


@ray.remote(max_concurrency=2, num_cpus=0)
class Both:
    def __init__(self) -> None:
        self.meeting = threading.Barrier(2)

    def meet(self) -> None:
        self.meeting.wait()


def rows_of(trace: Any) -> dict[tuple[int, int], list[dict[str, Any]]]:
    """The events of a timeline, by node and row."""
    rows: dict[tuple[int, int], list[dict[str, Any]]] = {}
    for event in trace:
        if event["ph"] == "X":
            rows.setdefault((event["pid"], event["tid"]), []).append(event)
    return rows


def test_a_timeline_is_in_order_and_nothing_in_a_row_overlaps(tmp_path: Path) -> None:
    refs = {ref.task_id().hex(): ref for ref in [work.remote() for _ in range(10)]}
    failing, actor = work.remote(fails=True), Both.remote()
    ray.wait([failing, *[actor.meet.remote() for _ in range(4)]], num_returns=5)
    times = dict(zip(refs, ray.get(list(refs.values())), strict=True))
    path = tmp_path / "trace.json"
    assert ray.timeline(str(path)) is None
    trace = json.loads(path.read_text())
    rows = rows_of(trace)
    for row in rows.values():
        for event, after in zip(row, row[1:], strict=False):
            assert event["ts"] + event["dur"] <= after["ts"]
    by_id = {event["args"]["task_id"]: event for row in rows.values() for event in row}
    for task_id, (began_us, ended_us) in times.items():
        event = by_id[task_id]
        assert event["dur"] >= ended_us - began_us - CLOCKS_US
        assert event["ts"] - CLOCKS_US <= began_us and ended_us <= event["ts"] + event["dur"] + CLOCKS_US
    assert by_id[failing.task_id().hex()]["args"]["state"] == "FAILED"
    calls = [event for event in by_id.values() if event["name"] == "Both.meet"]
    assert len({event["tid"] for event in calls}) == 2, "two at a time"
    names = {event["args"]["name"] for event in trace if event["ph"] == "M"}
    assert {f"Node {ray.nodes()[0]['NodeManagerAddress']} {ray.nodes()[0]['NodeID'][:8]}"} < names
    assert by_id.keys() == {event["args"]["task_id"] for event in ray.timeline() or [] if event["ph"] == "X"}


PHASES = """
    import time
    ray.init(num_cpus=1, logging_level="ERROR")

    class Slow:
        def __reduce__(self):
            time.sleep(0.05)
            return Slow, ()

    @ray.remote
    def f(value):
        time.sleep(0.1)
        return Slow()

    @ray.remote
    class Asynchronous:
        async def f(self):
            return 1

    actor = Asynchronous.remote()
    ray.get([f.remote(ray.put(1)), actor.f.remote()])
    events = [event for event in ray.timeline() if event["ph"] == "X"]
    parts = [event for event in events if event["name"].startswith("task:")]
    whole = {event["args"]["task_id"]: event for event in events if event not in parts}
    for part in parts:
        task = whole[part["args"]["task_id"]]
        assert part["ts"] >= task["ts"] and part["ts"] + part["dur"] <= task["ts"] + task["dur"]
        if task["name"] == "f" and part["dur"] > 40_000:
            print(part["name"])
    print(len(parts), len(whole))
"""


def test_phases_of_tasks_are_shown_where_ray_is_asked_for_them() -> None:
    done = run_driver(PHASES, RAY_PROFILING="1")
    assert done.stdout.splitlines() == ["task:execute", "task:store_outputs", "9 3"], done.stderr
    assert run_driver(PHASES).stdout.splitlines() == ["0 3"]


def test_a_task_sees_itself_when_it_is_over() -> None:
    @ray.remote
    def look() -> list[str]:
        return [event["name"] for event in ray.timeline() or []]

    first, second = ray.get(look.remote()), ray.get(look.remote())
    assert second.count("look") == first.count("look") + 1


def test_a_timeline_can_only_be_written_where_there_is_room_for_it(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ray.timeline(str(tmp_path / "nowhere" / "trace.json"))


def stacks() -> tuple[str, Any]:
    """The text, and what was found."""
    api = worker.current_api()
    found = api.run_on_loop(lambda: worker.state_reader(api).stacks(PATIENCE_S))
    assert found.silent == []
    return stack_text(found), found


def running() -> dict[str, Any]:
    """The processes that run something, by its name."""
    return {name: process for process in stacks()[1].processes for name in process.running}


def stacks_of(running_name: str, thread: str) -> list[Any]:
    return [stack for stack in running()[running_name].stacks if stack.name == thread]


def test_busy_processes_say_where_they_are(files: Files) -> None:
    busy, blocked = files.signal("busy"), files.signal("blocked")

    @ray.remote
    def spin(started: Signal, go: Signal) -> None:
        started.set()
        while not go.is_set():
            sum(range(1000))

    @ray.remote(num_cpus=0)
    class Asynchronous:
        async def wait(self, event: asyncio.Event | None = None) -> None:
            await asyncio.Event().wait()

        async def block(self, started: Signal, go: Signal) -> None:
            started.set()
            go.wait()

    @ray.remote(num_cpus=0, max_concurrency=2)
    class Threaded:
        def get(self, refs: list[Any]) -> None:
            ray.get(refs[0])

    go, actor, threaded = files.signal("go"), Asynchronous.remote(), Threaded.remote()
    spinning = spin.remote(busy, go)
    waiting = [actor.wait.remote() for _ in range(3)]
    refs = [spinning, threaded.get.remote([spinning]), actor.block.remote(blocked, go)]
    busy.wait()
    blocked.wait()
    wait_for_condition(lambda: "Threaded.get" in running() and len(stacks_of("Threaded.get", "minray-call")[0].frames) > 1)
    text, found = stacks()
    by_name = running()
    spin_stack = by_name["spin"].stacks[0]
    assert spin_stack.name == "MainThread" and spin_stack.frames[0].function == "spin", "the user's frames, and no others"
    assert spin_stack.frames[0].source in ("while not go.is_set():", "sum(range(1000))")
    (main, *coroutines) = by_name["Asynchronous.block"].stacks
    assert (main.name, main.frames[0].function) == ("MainThread", "block")
    assert main.frames[0].source in ("started.set()", "go.wait()")
    assert [(one.name, one.count) for one in coroutines if one.is_coroutine and one.frames] == [("Asynchronous.wait", 3)]
    (call,) = stacks_of("Threaded.get", "minray-call")
    assert call.frames[0].source == "ray.get(refs[0])"
    (driver,) = [process for process in found.processes if process.is_driver]
    assert driver.pid == os.getpid() and any(frame.function == "stacks" for frame in driver.stacks[0].frames)
    assert "Coroutine Asynchronous.wait, 3 times" in text and "Coroutine Asynchronous.block: runs" in text
    assert "minray-relief" not in text and "minray-io" not in text
    go.set()
    ray.get(refs)
    for ref in waiting:
        ray.cancel(ref)
    ray.wait(waiting, num_returns=len(waiting))


def test_a_worker_without_a_task_waits_for_work() -> None:
    ray.get(work.remote())
    wait_for_condition(lambda: "\n  Thread MainThread: waits for work" in stacks()[0])


CALLS = Counter("calls", "Calls by kind.", tag_keys=("kind",))


@ray.remote
class Measuring:
    def __init__(self, seen: Histogram) -> None:
        self.seen = seen

    def call(self, value: float) -> str:
        CALLS.inc(tags={"kind": "actor"})
        self.seen.observe(value)
        worker_id: str = ray.get_runtime_context().get_worker_id()
        return worker_id

    def height(self) -> None:
        Gauge("height").set(5)


@ray.remote
def count(number: int) -> None:
    CALLS.inc(number, tags={"kind": "task"})


def test_what_drivers_tasks_and_actors_measure_is_in_one_text() -> None:
    actor = Measuring.remote(Histogram("seen", "Values.", boundaries=[1.0, 10.0]))
    actor_id = ray.get([actor.call.remote(value) for value in (0.5, 5, 50)])[0]
    ray.get([count.remote(number) for number in (1, 2, 3)])
    CALLS.inc(10, tags={"kind": "driver"})
    ray.get(actor.height.remote())
    found = parse(metrics_text())
    calls = found["ray_calls_total"]
    by_kind = dict.fromkeys(("actor", "task", "driver"), 0.0)
    for (_, labels), value in calls.samples.items():
        by_kind[dict(labels)["kind"]] += value
    assert by_kind == {"actor": 3, "task": 6, "driver": 10} and calls.help == "Calls by kind."
    context = ray.get_runtime_context()
    own = {"JobId": context.get_job_id(), "NodeAddress": ray.nodes()[0]["NodeManagerAddress"]}
    assert calls.value("ray_calls_total", kind="driver", WorkerId=context.get_worker_id(), **own) == 10
    assert found["ray_height"].value("ray_height", WorkerId=actor_id, Component="core_worker", **own) == 5
    buckets = [found["ray_seen"].value("ray_seen_bucket", le=bound) for bound in ("1.0", "10.0", "+Inf")]
    assert buckets == [1, 2, 3] and found["ray_seen"].value("ray_seen_sum", WorkerId=actor_id) == 55.5


@ray.remote
def standing() -> tuple[int, int, int]:
    """Niceness and OOM adjustment of this worker, and the niceness of a thread that is not the main one."""
    of_thread: list[int] = []
    thread = threading.Thread(target=lambda: of_thread.append(os.getpriority(os.PRIO_PROCESS, threading.get_native_id())))
    thread.start()
    thread.join()
    return os.nice(0), int(Path("/proc/self/oom_score_adj").read_text()), of_thread[0]


def standing_of(pid: int) -> tuple[int, int]:
    return os.getpriority(os.PRIO_PROCESS, pid), int(Path(f"/proc/{pid}/oom_score_adj").read_text())


def test_the_kernel_takes_memory_and_time_from_workers_before_others() -> None:
    here = standing_of(os.getpid())
    assert ray.get(standing.remote()) == (min(here[0] + 15, 19), 1000, min(here[0] + 15, 19))
    children = psutil.Process().children(recursive=True)
    others = [child for child in children if child.name() in ("minray:raylet", "minray:gcs")]
    assert len(others) == 2 and {standing_of(child.pid) for child in others} == {here}


def test_niceness_and_oom_adjustment_are_settings() -> None:
    program = """
        import os, pathlib

        @ray.remote
        def standing():
            return os.nice(0) - int(os.environ["NICENESS"]), int(pathlib.Path("/proc/self/oom_score_adj").read_text())

        with ray.init(num_cpus=1, _system_config={"worker_oom_score_adjustment": 300}):
            print(ray.get(standing.remote()))
    """
    done = run_driver(program, RAY_worker_niceness="0", NICENESS=str(os.nice(0)))
    assert done.stdout.strip() == "(0, 300)", done.stderr
