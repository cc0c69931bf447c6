"""Readers of traces: what they take from a file, what they say they left out, and what they say of a wrong file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import minray
from minray import simulation
from minray.laboratory import program as lab_program
from minray.laboratory.program import perform
from minray.laboratory.traces.reading import failures_in, read, workload_of
from minray.laboratory.workload import NodeFailure, TraceActor, TraceError, TraceTask, encode
from tests.laboratory.worlds import load, run

SAMPLES = Path(__file__).with_name("samples")


def sample(name: str) -> Any:
    return json.loads((SAMPLES / name).read_text())


def written(folder: Path, content: Any) -> Path:
    path = folder / "trace.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_a_workflow_of_wfcommons() -> None:
    workload = read(SAMPLES / "wfcommons.json")
    assert workload.name == "three-steps"
    assert workload.notes == ("1 input files of 9000 bytes, which no task writes, are not read",)
    split, one, two, report = workload.tasks
    assert split == TraceTask("split_1", 1.5, (), (4000, 5000, 0), kind="split")
    assert one == TraceTask("count_1", 4, (("split_1", 0),), (10, 0), {"CPU": 2}, kind="count")
    assert two.inputs == (("split_1", 1),)
    # The report reads no file of the first task, but waits for it.
    assert report.inputs == (("count_1", 0), ("count_2", 0), ("split_1", 2))


def test_a_workflow_of_an_older_version_is_the_same(tmp_path: Path) -> None:
    whole = sample("wfcommons.json")
    specification, runs = whole["workflow"]["specification"], whole["workflow"]["execution"]["tasks"]
    sizes = {file["id"]: file["sizeInBytes"] for file in specification["files"]}
    flat = []
    for task, its in zip(specification["tasks"], runs, strict=True):
        files = [("input", name) for name in task["inputFiles"]] + [("output", name) for name in task["outputFiles"]]
        listed = [{"link": link, "name": name, "sizeInBytes": sizes[name]} for link, name in files]
        times = {"runtimeInSeconds": its["runtimeInSeconds"], "cores": its.get("coreCount", 1)}
        flat.append({"name": task["id"], "category": task["name"], "parents": task["parents"], "files": listed, **times})
    older = written(tmp_path, {"name": "three-steps", "schemaVersion": "1.4", "workflow": {"tasks": flat}})
    assert read(older) == read(SAMPLES / "wfcommons.json")
    flat[0]["files"][0]["link"] = "both"
    written(tmp_path, {"name": "three-steps", "workflow": {"tasks": flat}})
    with pytest.raises(TraceError, match=r"workflow.tasks\[0\].files\[0\].link is 'both'; it must be input or output"):
        read(older)


def test_a_graph_of_dagbench_has_a_size_for_each_edge() -> None:
    workload = read(SAMPLES / "dagbench.json")
    assert {task.id: (task.duration_s, task.inputs, task.outputs) for task in workload.tasks} == {
        "top": (2.0, (), (100, 7)),
        "left": (3.5, (("top", 0),), (5,)),
        "right": (1, (("top", 1),), (6,)),
        "end": (0.5, (("left", 0), ("right", 0)), (0,)),
    }
    assert workload.notes[1] == "the network in the file is not used; the cost model takes its place"


def test_a_timeline_has_the_tasks_at_the_times_of_their_start(tmp_path: Path) -> None:
    events = sample("timeline.json")
    expected = (TraceTask("0", 1.0, kind="cube"), TraceTask("1", 0.25, arrival_s=0.5, kind="square"))
    assert read(SAMPLES / "timeline.json").tasks == expected
    assert read(written(tmp_path, {"traceEvents": events})).tasks == expected


def test_the_timeline_of_a_run_is_a_trace(tmp_path: Path) -> None:
    def program() -> Any:
        nap = minray.remote(perform).options(name="nap")
        minray.get([nap.remote("one", 2.0, 0.0, [0]), nap.remote("other", 3.0, 0.0, [0])])
        return minray.timeline()

    workload = read(written(tmp_path, simulation.run(program, nodes=1)))
    assert sorted(round(task.duration_s, 2) for task in workload.tasks) == [2.0, 3.0]
    assert [(task.kind, task.arrival_s < 0.1) for task in workload.tasks] == [("nap", True)] * 2


def test_a_timeline_has_actors_too(tmp_path: Path) -> None:
    def event(name: str, ts: float, dur: float, actor: str | None) -> dict[str, Any]:
        return {"cat": f"task::{name}", "ph": "X", "ts": ts, "dur": dur, "args": {"actor_id": actor}}

    events = [
        event("Pool.__init__", 1_000_000, 500_000, "ab"),
        event("Pool.work", 2_000_000, 1_000_000, "ab"),
        event("Pool.work", 2_500_000, 500_000, "ab"),
        event("Pool.work", 3_000_000, 100_000, "ab"),
        event("Pool.__init__", 4_000_000, 900_000, "ab"),
        event("Old.look", 5_000_000, 100_000, "cd"),
        event("plain", 5_000_000, 100_000, None),
    ]
    workload = read(written(tmp_path, events))
    assert workload.actors == (TraceActor("ab", 0.0, start_s=0.5, concurrency=2), TraceActor("cd"))
    assert [(task.kind, task.actor, task.arrival_s) for task in workload.tasks] == [
        ("Pool.work", "ab", 1.0),
        ("Pool.work", "ab", 1.5),
        ("Pool.work", "ab", 2.0),
        ("Old.look", "cd", 4.0),
        ("plain", "", 4.0),
    ]
    assert len(workload.notes) == 2
    with pytest.raises(TraceError, match="has constructors of actors alone"):
        read(written(tmp_path, events[:1]))


def test_a_timeline_of_ray_names_actors_in_the_ids_of_tasks(tmp_path: Path) -> None:
    """`ray timeline` writes no ``actor_id``: a task's id is eight bytes of its own, and the id of its actor."""
    actor, none = "877bed278ef61f48c0116712" + "01000000", "f" * 24 + "01000000"

    def event(name: str, ts: float, task_id: str) -> dict[str, Any]:
        args = {"name": name, "task_id": task_id}
        return {"cat": f"task::{name}", "ph": "X", "ts": ts, "dur": 250_000.25, "tid": "worker:1d29", "args": args}

    events = [
        event("Pool.__init__", 1_000_000.5, "f" * 16 + actor),
        event("Pool.work", 2_000_000.5, "80e22aed7718a125" + actor),
        event("plain", 3_000_000.5, "32d950ec0ccf9d2a" + none),
        event("odd", 3_000_000.5, "no id of Ray"),
    ]
    workload = read(written(tmp_path, events))
    assert workload.actors == (TraceActor(actor, start_s=0.25000025),)
    assert [(task.kind, task.actor) for task in workload.tasks] == [("Pool.work", actor), ("plain", ""), ("odd", "")]


def test_the_timeline_of_a_run_with_actors_can_be_run_again(tmp_path: Path) -> None:
    """The actors, the order of their calls and the times are those of the run from which it was taken."""
    original = load("actors:width=2,depth=3,duration=2,durations=exponential", seed=5)

    def program() -> Any:
        values_s = dict.fromkeys((task.id for task in original.tasks), 0.0)
        lab_program.drive(original, values_s, 1, lambda task, now_s: None, lambda task, result: None)
        return minray.timeline()

    again = read(written(tmp_path, simulation.run(program, nodes=2)))
    assert len(again.actors) == 2 and len(again.tasks) == 7
    assert sorted(round(task.duration_s, 2) for task in again.tasks) == pytest.approx(
        sorted(task.duration_s for task in original.tasks), abs=0.02
    )
    record = run(again)
    assert len(record.executions) == 7
    begun = {each.task: each.start_s for each in record.executions}
    first_s = min(begun.values())
    assert all(begun[task.id] - first_s == pytest.approx(task.arrival_s, abs=0.5) for task in again.tasks)


def test_a_converted_trace_is_the_same_workload(tmp_path: Path) -> None:
    workload = read(SAMPLES / "wfcommons.json")
    assert read(written(tmp_path, encode(workload).decode())) == workload


WRONG: list[tuple[str, str, Any, str]] = [
    ("wfcommons.json", "workflow/specification/tasks/1/id", 7, "workflow.specification.tasks[1].id is 7; it must be a text"),
    ("wfcommons.json", "workflow/specification/tasks/1/parents", ["nobody"], "tasks[1].parents is 'nobody'; it must be"),
    ("wfcommons.json", "workflow/specification/tasks/0/outputFiles", ["gone"], "outputFiles is 'gone'; it must be the id"),
    ("wfcommons.json", "workflow/specification/files/0/sizeInBytes", -1, "files[0].sizeInBytes is -1; it must be a finite"),
    ("wfcommons.json", "workflow/execution/tasks/2/runtimeInSeconds", None, "tasks[2].runtimeInSeconds is missing"),
    ("wfcommons.json", "workflow/execution/tasks/2/id", "other", "'count_2'; it must be that of a task in workflow"),
    ("wfcommons.json", "workflow/execution", None, "the workflow has no execution, and so no run times"),
    ("wfcommons.json", "workflow/specification", None, "workflow has neither specification nor tasks"),
    ("wfcommons.json", "workflow", [], "workflow is []; it must be an object"),
    ("dagbench.json", "task_graph/tasks/0/cost", "much", "task_graph.tasks[0].cost is 'much'"),
    ("dagbench.json", "task_graph/tasks/0/name", "end", "task_graph.dependencies[0].source is 'top'; it must be the name"),
    ("dagbench.json", "task_graph/dependencies/3/target", "top", "wait for each other, top <- right <- top"),
    ("dagbench.json", "task_graph/tasks", {}, "task_graph.tasks is {}; it must be a list"),
    ("timeline.json", "0/dur", None, "traceEvents[0].dur is missing; it must be a number: the duration"),
    ("timeline.json", "0/ts", True, "traceEvents[0].ts is True"),
    ("timeline.json", "0/args", {"actor_id": 7}, "traceEvents[0].args.actor_id is 7; it must be a text"),
    ("timeline.json", "0/args", "none", "traceEvents[0].args is 'none'; it must be an object"),
    ("timeline.json", "0/dur", -5, "traceEvents[0].dur is -5; it must be a finite number from 0"),
]


@pytest.mark.parametrize(("name", "place", "value", "reason"), WRONG, ids=[f"{name}-{place}" for name, place, *_ in WRONG])
def test_a_wrong_file_is_refused_with_its_place(tmp_path: Path, name: str, place: str, value: Any, reason: str) -> None:
    content = sample(name)
    *way, last = [int(word) if word.isdigit() else word for word in place.split("/")]
    inner = content
    for word in way:
        inner = inner[word]
    inner[last] = value
    path = written(tmp_path, content)
    with pytest.raises(TraceError) as error:
        read(path)
    assert str(error.value).startswith(str(path)) and reason in str(error.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"workflow": {"spec', "is no JSON: Input data was truncated. It may be cut off"),
        ("", "is no JSON"),
        ("\x00\x01", "is no JSON"),
        ({"steps": []}, "has no known format. Known are: minray's own"),
        ("7", "has no known format"),
        ("[]", "has no events of the category task::NAME"),
        ({"format": "minray-workload", "version": 1}, "is no workload of minray"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, content: Any, reason: str) -> None:
    path = written(tmp_path, content)
    with pytest.raises(TraceError) as error:
        read(path)
    assert str(path) in str(error.value) and reason in str(error.value)


def test_a_word_that_is_neither_file_nor_load_is_refused() -> None:
    with pytest.raises(TraceError, match="ring:width=3 is neither a file nor a load; loads begin with single, chain"):
        workload_of("ring:width=3", 0)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="cannot read .*: Is a directory"):
        workload_of(str(tmp_path), 0)


def test_failures_of_nodes(tmp_path: Path) -> None:
    path = written(tmp_path, [{"node": 2, "down_s": 10, "up_s": 60}, {"node": 1, "down_s": 3.5}])
    assert failures_in(path) == (NodeFailure(2, 10, 60), NodeFailure(1, 3.5))
    path.write_text('[{"node": "n2", "down_s": 10}]')
    with pytest.raises(TraceError, match=r"no list of node failures: Expected `int`, got `str` - at `\$\[0\]\.node`. Write"):
        failures_in(path)
