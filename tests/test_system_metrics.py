"""System metrics: what processes answer becomes families that Prometheus accepts, in both ways of writing them."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from minray.common.bundles import group_name
from minray.common.machine_usage import GpuUsage
from minray.observability.metric_definitions import DEFINITIONS, OWN_DEFINITIONS, WHERE, full_names
from minray.observability.metric_families import Family
from minray.observability.prometheus_exposition import exposition
from minray.observability.prometheus_text import text_of
from minray.observability.state_reader import ClusterFigures, ClusterMetrics
from minray.observability.system_metrics import families_of
from minray.protocol.actor import ALIVE, ActorInfo
from minray.protocol.base import Address
from minray.protocol.gcs import UNEXPECTED_TERMINATION, JobConfig, JobInfo, NodeInfo, NodeResources
from minray.protocol.metrics import GcsMetrics, NodeMetrics
from minray.protocol.state import MetricFamily, MetricSample, ProcessMetrics, SystemValue
from minray.raylet.node_metrics import gpu_values
from minray.rpc.request_meter import RequestMeter
from tests.metrics_page import PAGE, page_with_table
from tests.rpc.test_request_meter import message
from tests.util.exposition import parse

ROOT = Path(__file__).parent.parent
ODD = 'a "b" \\n\n{c="d"}, é \\'
Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def node(node_id: bytes, ip: str = "10.0.0.1", **fields: object) -> NodeInfo:
    address = Address(node_id, node_id, "sim:")
    values: dict[str, object] = {"resources_total": {}, "labels": {}, "is_head": False, **fields}
    return NodeInfo(node_id=node_id, name="n", ip=ip, hostname="h", address=address, **values)  # type: ignore[arg-type]


HEAD = node(b"head", is_head=True, session_dir="/tmp/minray-0/session_1")


def figures(**fields: object) -> ClusterFigures:
    values: dict[str, object] = {
        "metrics": ClusterMetrics([], []),
        "nodes": [HEAD, node(b"other")],
        "resources": [],
        "of_nodes": [],
        "gcs": GcsMetrics([]),
        "jobs": [],
        "actors": [],
        "groups": [],
        "silent": [],
        **fields,
    }
    return ClusterFigures(**values)  # type: ignore[arg-type]


def series(text: str) -> Series:
    """All series as prometheus_client's parser reads them; none stands twice."""
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    found = {(sample.name, tuple(sorted(sample.labels.items()))): sample.value for sample in samples}
    assert len(found) == len(samples)
    return found


def values(families: list[Family], name: str, *labels: str) -> dict[tuple[str, ...], float]:
    """Values of a family by some labels."""
    (family,) = [family for family in families if family.name == name]
    return {tuple(labels_of.get(label, "") for label in labels): value for _, labels_of, value in family.samples}


def hostile() -> ClusterFigures:
    """A cluster whose programs choose every name badly."""
    families = [
        MetricFamily("pages", "counter", ODD, [], [MetricSample({"site": ODD, "WorkerId": ODD, "le": "1"}, 2.0, [])]),
        MetricFamily("took", "histogram", "", [1.0], [MetricSample({"a-b": ODD}, 1.5, [0, 1])]),
        MetricFamily("took_count", "gauge", "", [], [MetricSample({}, 1.0, [])]),
        MetricFamily("tasks", "gauge", "", [], [MetricSample({"State": "RUNNING"}, 1.0, [])]),
        MetricFamily("__x", "gauge", "", [], [MetricSample({"__name__": "up"}, 1.0, [])]),
    ]
    system = [SystemValue("tasks", 3.0, {"State": "RUNNING", "Name": ODD, "Source": "owner", "IsRetry": "0"})]
    workers = [ProcessMetrics("10.0.0.1", worker, b"job1", families, system=system) for worker in (b"v", b"w")]
    actor = ActorInfo(b"actor".ljust(16), ALIVE, ODD, name="", namespace="", owner=HEAD.address)
    values = [SystemValue("component_rss_bytes", 5.0, {"Component": f"ray::{ODD}"}), SystemValue("node_cpu_count", 2.0)]
    values += [SystemValue("memory_manager_worker_eviction_total", 1.0, {"Type": "T", "Name": ODD})]
    of_nodes = [NodeMetrics(node_id, values) for node_id in (b"head", b"other", b"unknown")]
    return figures(metrics=ClusterMetrics(workers, []), actors=[actor], of_nodes=of_nodes)


def test_both_writers_say_the_same_whatever_programs_call_things() -> None:
    families = families_of(hostile())
    text = text_of(families)
    assert series(text) == series(exposition(families).decode())
    found = parse(text)
    assert found["ray_pages_total"].help == ODD and ("Name", ODD) in next(iter(found["ray_tasks"].samples))[1]
    assert {value for family in ("ray_tasks",) for value in found[family].samples.values()} == {3.0}
    assert not any(name == "up" for name, _ in series(text))


def test_help_and_type_stand_once_and_say_the_same_in_both() -> None:
    families = families_of(hostile())

    def heads(text: str) -> list[str]:
        return sorted(line for line in text.splitlines() if line.startswith("# TYPE"))

    plain, served = text_of(families), exposition(families).decode()
    assert heads(plain) == heads(served) and len(set(heads(plain))) == len(heads(plain))
    assert all(line.endswith("_total counter") for line in heads(plain) if line.endswith("counter"))


def test_nodes_with_one_address_are_told_apart() -> None:
    found = values(families_of(hostile()), "ray_node_cpu_count", "NodeId", "RayNodeType", "ip")
    assert found == {(b"head".hex(), "head", "10.0.0.1"): 2, (b"other".hex(), "worker", "10.0.0.1"): 2}


def test_gpus_of_a_node_are_told_apart() -> None:
    gpus = [GpuUsage(0, "NVIDIA H100", 87.0, 3 << 30, 80 << 30, 4e5, 61.0), GpuUsage(1, "old", None, 0, 1 << 30, None, None)]
    families = families_of(figures(of_nodes=[NodeMetrics(b"other", list(gpu_values(gpus)))]))
    assert values(families, "ray_node_gpus_utilization", "GpuIndex", "GpuDeviceName") == {("0", "NVIDIA H100"): 87}
    assert values(families, "ray_node_gram_used", "GpuIndex", "RayNodeType") == {("0", "worker"): 3072, ("1", "worker"): 0}
    assert values(families, "ray_node_gram_available", "GpuIndex") == {("0",): 77 * 1024, ("1",): 1024}
    assert values(families, "ray_node_gpus_available", "GpuIndex") == {("0",): 1, ("1",): 1}
    assert not [family.name for family in families_of(figures()) if "gpu" in family.name or "gram" in family.name]


def test_resources_of_living_nodes_are_divided_into_used_and_available() -> None:
    total = {"CPU": 40_000, "object_store_memory": 1000_0000, "node:10.0.0.1": 10_000}
    total[group_name("CPU", b"group".ljust(18))] = 10_000
    reports = [
        NodeResources(node_id, 1, total, {"CPU": 10_000, "object_store_memory": 1000_0000}, [])
        for node_id in (b"head", b"dead")
    ]
    store = NodeMetrics(b"head", [SystemValue("object_store_used_memory", 300.0)])
    nodes = [HEAD, node(b"dead", alive=False, death_reason=UNEXPECTED_TERMINATION)]
    families = families_of(figures(nodes=nodes, resources=reports, of_nodes=[store]))
    assert values(families, "ray_resources", "Name", "State") == {
        ("CPU", "AVAILABLE"): 1,
        ("CPU", "USED"): 3,
        ("object_store_memory", "AVAILABLE"): 700,
        ("object_store_memory", "USED"): 300,
    }
    assert values(families, "ray_cluster_failed_nodes", "node_type") == {("head",): 0, ("worker",): 1}


def test_jobs_actors_and_the_silent_are_counted() -> None:
    job = JobInfo(b"job1", HEAD.address, 1, JobConfig([], "", "", ""), start_time=5.0)
    over = JobInfo(b"job2", HEAD.address, 1, JobConfig([], "", "", ""), start_time=5.0, end_time=7.5)
    families = families_of(figures(jobs=[job, over], silent=["process 7"], metrics=ClusterMetrics([], [], left_out=4)))
    assert values(families, "ray_running_jobs") == {(): 1}
    assert values(families, "ray_job_duration_s", "JobId") == {(b"job2".hex(),): 2.5}
    assert values(families, "minray_silent_processes") == {(): 1} and values(families, "minray_values_left_out") == {(): 4}
    assert values(families, "ray_running_jobs", "SessionName") == {("session_1",): 1}


def test_a_cluster_without_answers_is_still_described() -> None:
    families = families_of(figures(nodes=[], gcs=None, silent=["the gcs"]))
    assert series(text_of(families)) == series(exposition(families).decode())


@pytest.mark.parametrize("name", sorted(DEFINITIONS | OWN_DEFINITIONS))
def test_a_definition_is_complete(name: str) -> None:
    definition = (DEFINITIONS | OWN_DEFINITIONS)[name]
    assert definition.about in WHERE and definition.unit and definition.meaning and not definition.meaning.endswith(".")
    assert re.fullmatch(r"[a-z][a-z0-9_]*", name) and (definition.kind != "counter" or name.endswith("_total"))
    assert bool(definition.values) == bool(definition.labels) or name == "job_duration_s"


def test_the_page_shows_the_definitions() -> None:
    assert PAGE.read_text() == page_with_table(PAGE.read_text()), "run: python -m tests.metrics_page"


def test_requests_of_nodes_and_of_the_gcs_are_told_apart_and_written_alike() -> None:
    meter = RequestMeter()
    meter.counting(lambda incoming: incoming.reply(b""))(message("Poll"))
    told = list(meter.values())
    families = families_of(figures(of_nodes=[NodeMetrics(b"other", told)], gcs=GcsMetrics(told)))
    assert series(text_of(families)) == series(exposition(families).decode())
    found = values(families, "ray_grpc_server_req_finished_total", "Component", "Method")
    assert found == {("raylet", "Poll"): 1, ("gcs_server", "Poll"): 1}
    (family,) = [family for family in families if family.name == "ray_grpc_server_req_process_time_ms"]
    assert sum(value for suffix, labels, value in family.samples if labels.get("le") == "+Inf") == 2


def test_programs_cannot_take_the_names_of_a_histogram_of_the_system() -> None:
    taken = MetricFamily("grpc_server_req_process_time_ms_sum", "gauge", "", [], [MetricSample({}, 1.0, [])])
    process = ProcessMetrics("10.0.0.1", b"w", b"job1", [taken])
    assert "is left out" in text_of(families_of(figures(metrics=ClusterMetrics([process], []))))


def names_in(text: str) -> set[str]:
    return set(re.findall(r"\b(?:ray|minray)_[a-z0-9_]+\b", text))


def test_the_dashboard_asks_for_metrics_that_exist_and_labels_that_they_have() -> None:
    dashboard = json.loads((ROOT / "deploy/grafana/minray.json").read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    queries = [target["expr"] for panel in panels for target in panel["targets"]]
    queries += [variable["definition"] for variable in dashboard["templating"]["list"] if "definition" in variable]
    assert len(panels) >= 20 and names_in(" ".join(queries)) <= full_names()
    for query in queries:
        for name, selectors in re.findall(r"((?:ray|minray)_[a-z0-9_]+)\{([^}]*)\}", query):
            definition = (OWN_DEFINITIONS | {f"ray_{key}": value for key, value in DEFINITIONS.items()})[
                name.removesuffix("_bucket")
            ]
            known = {"SessionName", "Version", *WHERE[definition.about], *definition.labels}
            assert set(re.findall(r"(\w+)[!=]=?~?\"", selectors)) <= known, query
        assert query.count("(") == query.count(")") and query.count("{") == query.count("}")
    ids = [panel["id"] for panel in dashboard["panels"]]
    assert len(set(ids)) == len(ids) and all(panel["description"] for panel in panels)


def test_the_example_for_prometheus_asks_where_the_command_serves() -> None:
    yaml = pytest.importorskip("yaml")
    config = yaml.safe_load((ROOT / "deploy/prometheus/prometheus.yml").read_text())
    (job,) = config["scrape_configs"]
    assert job["metrics_path"] == "/metrics" and job["authorization"]["type"] == "Bearer"
    assert job["metric_relabel_configs"] == [
        {"source_labels": ["NodeAddress"], "regex": "(.+)", "target_label": "instance"}
    ]
