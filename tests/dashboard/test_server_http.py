"""The dashboard's server on a real cluster: what each path answers, and to whom."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

import minray
from minray.dashboard.access import SECURITY_HEADERS
from minray.dashboard.tables import COLUMNS
from tests.dashboard.site import OwnSite, next_event, own_node
from tests.helpers import wait_for_condition
from tests.util.exposition import parse

PATHS = [
    "/", "/page/index.html", "/metrics", "/api/cluster", "/api/tasks/summary", "/api/waits", "/api/why/00", "/api/timeline",
    "/api/stacks", "/api/logs", "/api/metrics/history", "/api/events", "/favicon.ico", "/nothing", "/api/control/kill",
    *(f"/api/{name}" for name in COLUMNS),
]  # fmt: skip


@pytest.fixture(scope="module")
def site() -> Generator[OwnSite, None, None]:
    minray.init(num_cpus=2, log_to_driver=False, logging_level="ERROR")
    site = OwnSite(own_node())
    try:
        yield site
    finally:
        site.close()
        minray.shutdown()


@minray.remote
def add(a: int, b: int) -> int:
    return a + b


@minray.remote
def wait_for(gate: str) -> int:
    wait_for_condition(Path(gate).exists, timeout_s=60)
    return os.getpid()


@minray.remote(num_cpus=0)
class Counter:
    def pid(self) -> int:
        return os.getpid()

    def call(self, other: Any, *further: Any) -> Any:
        return minray.get(other.call.remote(*further)) if further else minray.get(other.pid.remote())


@pytest.mark.parametrize("path", PATHS)
def test_without_the_token_every_path_is_401(site: OwnSite, path: str) -> None:
    for method in ("GET", "POST", "DELETE"):
        answer = site.visit(path, method)
        assert answer.status == 401 and "needs its token" in answer.json["error"]
        assert SECURITY_HEADERS.items() <= dict(answer.headers.items()).items()
    assert site.visit(f"{path}?token=0123").status == 401


def test_one_visit_with_the_token_sets_the_cookie_and_hides_the_token(site: OwnSite) -> None:
    answer = site.visit(f"/?token={site.token}&view=tasks")
    assert (answer.status, answer.headers["Location"]) == (303, "/?view=tasks")
    cookie = answer.headers["Set-Cookie"]
    assert cookie.startswith(site.cookie) and all(word in cookie for word in ("HttpOnly", "SameSite=Strict", "Path=/"))
    page = site.get("/")
    assert page.status == 200 and page.headers["Content-Type"] == "text/html; charset=utf-8"
    assert site.get("/", If_None_Match=page.headers["ETag"]).status == 304
    assert "no-store" in site.get("/api/cluster").headers["Cache-Control"]


def test_a_location_leads_to_no_other_host(site: OwnSite) -> None:
    for path in (f"//evil.example/?token={site.token}", f"///evil.example/x?token={site.token}"):
        answer = site.visit(path)
        assert answer.headers.get("Location", "/").startswith("/") and not answer.headers.get("Location", "/").startswith(
            "//"
        )


def test_a_foreign_host_name_is_refused(site: OwnSite) -> None:
    assert site.get("/api/cluster", Host="evil.example").status == 421


def test_a_reader_with_the_token_in_a_header_gets_metrics(site: OwnSite) -> None:
    answer = site.visit("/metrics", Authorization=f"Bearer {site.token}")
    assert answer.status == 200 and answer.headers["Content-Type"].startswith("text/plain")
    parse(answer.body.decode())


def test_the_tables_show_what_runs(site: OwnSite, tmp_path: Path) -> None:
    counter = Counter.options(name="counter").remote()
    pid = minray.get(counter.pid.remote())
    gate = tmp_path / "gate"
    running = [wait_for.options(name="waits").remote(str(gate)) for _ in range(2)]
    large = minray.put(bytes(1_000_000))
    try:
        wait_for_condition(lambda: len(site.rows("/api/tasks?filter=state=running&filter=name=waits")) == 2)
        (node,) = site.rows("/api/nodes")
        assert (node["state"], node["health"], node["cpu_total"], node["num_drivers"]) == ("ALIVE", "healthy", 2.0, 1)
        wait_for_condition(lambda: site.rows("/api/nodes")[0]["cpu_used"] == 2.0)
        assert node["store_total"] > 0
        (actor,) = site.rows("/api/actors?filter=name=counter&filter=state=alive")
        assert actor["pid"] == pid and actor["class_name"] == "Counter"
        wait_for_condition(lambda: site.rows(f"/api/workers?filter=pid={pid}")[0]["actor_id"] == actor["actor_id"])
        assert site.rows("/api/workers?filter=worker_type=driver")[0]["pid"] == os.getpid()
        assert site.rows("/api/jobs")[0]["status"] == "RUNNING"
        (held,) = site.rows(f"/api/objects?filter=object_id={large.hex()}")
        assert held["object_size"] >= 1_000_000 and held["owner"] == f"driver {os.getpid()}" and held["copies"]
        task = site.rows("/api/tasks?filter=name=waits&limit=1")[0]
        assert site.get(f"/api/tasks/{task['task_id'][:20]}").json["row"]["name"] == "waits"
        (sums,) = [row for row in site.get("/api/tasks/summary").json["rows"] if row["name"] == "wait_for"]
        assert sums["states"] == {"RUNNING": 2}
        part = site.get("/api/tasks?search=waits&limit=1").json
        assert (len(part["rows"]), part["matching"], part["limit"]) == (1, 2, 1) and part["total"] >= 3
        assert part["columns"] == list(COLUMNS["tasks"]) and part["silent"] == [] and part["left_out"] == 0
        lines = site.get(f"/api/why/{task['task_id']}").json["lines"]
        assert lines[0].startswith("task waits (") and "runs on worker" in lines[0]
        (stacks,) = site.get(f"/api/stacks?process={task['worker_pid']}").json["processes"]
        assert stacks["running"] == ["waits"] and any(stack["frames"] for stack in stacks["stacks"])
        assert len(site.get("/api/stacks").json["processes"]) >= 4
    finally:
        gate.touch()
    minray.get(running)
    minray.kill(counter)


def test_an_unknown_thing_is_an_error_in_words(site: OwnSite) -> None:
    for path, status, words in [
        ("/api/nothing", 404, "there is no table 'nothing'"),
        ("/api/tasks?sort=colour", 400, "no column 'colour'"),
        ("/api/tasks?limit=x", 400, "limit must be"),
        ("/api/tasks/ffff", 404, "none of the tasks has the id ffff"),
        ("/api/why/ffff", 404, "no task, object, actor or placement group"),
        ("/api/stacks?process=ffff", 404, "no living process"),
        ("/api/events?tables=nothing", 400, "there is no table 'nothing'"),
        ("/page/../access.py", 404, "nothing at"),
        ("/page/%2e%2e%2faccess.py", 404, "no such file"),
        ("/x", 404, "there is nothing at '/x'"),
    ]:
        answer = site.get(path)
        assert answer.status == status and words in answer.json["error"], (path, answer.body)


def test_the_graph_shows_needs_that_nothing_can_meet_and_calls_in_a_circle(site: OwnSite) -> None:
    impossible = add.options(resources={"unobtainium": 1}).remote(1, 2)
    after = add.remote(impossible, 1)
    first, second = Counter.remote(), Counter.remote()
    circle = first.call.remote(second, first)
    try:

        def found() -> bool:
            graph = site.get("/api/waits").json
            vertices = {vertex["id"]: vertex for vertex in graph["vertices"]}
            marked = [vertex for vertex in vertices.values() if vertex["is_infeasible"] and vertex["kind"] == "reason"]
            names = {vertices[id]["name"] for cycle in graph["cycles"] for id in cycle}
            return any("unobtainium" in vertex["name"] for vertex in marked) and "Counter.call" in names

        wait_for_condition(found, timeout_s=20)
    finally:
        minray.kill(first)
        minray.kill(second)
        minray.cancel(impossible)
    for ref in (circle, after):
        with pytest.raises(minray.exceptions.RayError):
            minray.get(ref)


def test_a_page_hears_that_a_table_has_changed(site: OwnSite) -> None:
    with site.stream("/api/events?tables=actors,tasks") as stream:
        assert stream.headers["Content-Type"] == "text/event-stream"
        assert next_event(stream)["cluster"]["is_connected"]
        wait_for_condition(lambda: "actors" in site.server.news._seen)
        counter = Counter.remote()
        minray.get(counter.pid.remote())
        changed: set[str] = set()
        while "actors" not in changed:
            changed |= set(next_event(stream)["tables"])
        minray.kill(counter)
    wait_for_condition(lambda: len(site.server.news) == 0 or site.server.news._task is None, timeout_s=20)


def test_ten_clients_cost_the_cluster_as_much_as_one(site: OwnSite) -> None:
    before = site.server.state.shared.questions
    began = time.monotonic()
    for _ in range(10):
        assert site.get("/api/objects").status == 200
    seconds = time.monotonic() - began
    assert site.server.state.shared.questions - before <= 2 + 3 * seconds, "at most one answer a second, and the census"


def test_a_timeline_is_a_download(site: OwnSite) -> None:
    minray.get(add.remote(1, 2))
    answer = site.get("/api/timeline")
    assert "attachment" in answer.headers["Content-Disposition"]
    assert any(event["name"] == "add" for event in answer.json["traceEvents"])


def test_a_timeline_of_the_newest_tasks_says_how_many_are_left_out(site: OwnSite) -> None:
    minray.get([add.remote(1, number) for number in range(30)])
    paths = ("/api/timeline?limit=10", "/api/timeline")
    wait_for_condition(lambda: min(site.get(path).json["total"] for path in paths) >= 30)
    answer = site.get("/api/timeline?limit=10").json
    shown = [event for event in answer["traceEvents"] if event["ph"] == "X"]
    file = site.get("/api/timeline").json
    every = [event for event in file["traceEvents"] if event["ph"] == "X"]
    assert len(shown) == 10 and answer["left_out"] == answer["total"] - 10 and file["total"] == len(every)
    earliest, tenth_last = (sorted(event["ts"] + event["dur"] for event in events)[-10] for events in (shown, every))
    assert earliest >= tenth_last - 1000, "two questions compute the wall clock's time anew, some microseconds apart"
    assert (file["left_out"], file["notes"], file["silent"]) == (0, [], []) and file["total"] >= 30


@pytest.mark.parametrize("limit", ["0", "-1", "x", "20001", ""])
def test_a_limit_of_a_timeline_is_a_number(site: OwnSite, limit: str) -> None:
    answer = site.get(f"/api/timeline?limit={limit}")
    assert answer.status == 400 and "limit must be a whole number from 1 to 20000" in answer.json["error"]


def test_the_history_has_samples(site: OwnSite) -> None:
    facts = site.get("/api/metrics/history").json
    assert facts["samples"][0]["series"]["nodes"] == 1 and facts["samples"][0]["series"].keys() == facts["units"].keys()


def test_a_change_is_carried_out(site: OwnSite, tmp_path: Path) -> None:
    counter = Counter.remote()
    minray.get(counter.pid.remote())
    answer = site.change("kill", actor_id=counter._actor_id.hex())
    assert answer.status == 200, answer.body
    with pytest.raises(minray.exceptions.RayActorError):
        minray.get(counter.pid.remote())
    ref = wait_for.remote(str(tmp_path / "never"))
    wait_for_condition(lambda: site.rows("/api/tasks?filter=state=running&filter=name=wait_for"))
    (task,) = site.rows("/api/tasks?filter=state=running&filter=name=wait_for")
    assert site.change("cancel", task_id=task["task_id"]).status == 200
    with pytest.raises(minray.exceptions.TaskCancelledError):
        minray.get(ref, timeout=30)


@pytest.mark.parametrize(
    ("kind", "fields", "status", "words"),
    [
        ("explode", {}, 404, "there are cancel, kill and drain"),
        ("kill", {}, 400, "missing required field `actor_id`"),
        ("kill", {"actor_id": "zz"}, 400, "is no id"),
        ("kill", {"actor_id": "00" * 16}, 404, "no actor has the id"),
        ("kill", {"actor_id": "00", "extra": 1}, 400, "unknown field `extra`"),
        ("cancel", {"task_id": "00" * 24}, 404, "no living process has a task"),
        ("drain", {"node_id": "00" * 16}, 404, "no node has the id"),
        ("drain", {"node_id": 5}, 400, "Expected `str`"),
    ],
)
def test_a_wrong_change_changes_nothing(site: OwnSite, kind: str, fields: dict[str, Any], status: int, words: str) -> None:
    answer = site.change(kind, **fields)
    assert answer.status == status and words in answer.json["error"], answer.body


def test_a_change_from_elsewhere_is_refused(site: OwnSite) -> None:
    headers = {"Cookie": site.cookie, "Origin": "http://evil.example", "X_Minray_Dashboard": "1"}
    assert site.visit("/api/control/kill", "POST", b"{}", **headers).status == 403
    assert site.visit("/api/control/kill", "POST", b"{}", Cookie=site.cookie).status == 403
    assert site.visit("/api/control/kill", "POST", bytes(70_000), Cookie=site.cookie).status == 403


def test_a_hung_worker_is_named_and_the_others_answer(site: OwnSite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(site.server.state, "timeout_s", 0.5)
    counter = Counter.options(name="hangs").remote()
    pid = minray.get(counter.pid.remote())
    os.kill(pid, signal.SIGSTOP)
    try:

        def is_named() -> bool:
            answer = site.get("/api/tasks")
            assert answer.status == 200
            return any(f"process {pid} " in name for name in answer.json["silent"])

        wait_for_condition(is_named, timeout_s=20)
        assert site.rows("/api/actors?filter=name=hangs")[0]["state"] == "ALIVE"
        assert site.get(f"/api/stacks?process={pid}").json == {"processes": [], "silent": [f"process {pid}"]}
    finally:
        os.kill(pid, signal.SIGCONT)
    minray.kill(counter)


def test_a_node_shows_its_machine(site: OwnSite) -> None:
    (node,) = site.rows("/api/nodes")
    assert node["ram_total"] > node["ram_used"] > 0 and node["disk_total"] > 0 and node["cpu_percent"] is not None


def test_logs_are_listed_read_searched_and_followed(site: OwnSite) -> None:
    @minray.remote
    def say(text: str) -> None:
        print(text)

    minray.get(say.remote("first words <b>"))
    (raylet,) = site.rows("/api/logs?filter=file=raylet.log")
    node_id = raylet["node_id"]
    assert raylet["group"] == "raylet" and raylet["size"] >= 0

    def read(search: str) -> list[str]:
        files = [row["file"] for row in site.rows("/api/logs?filter=group=worker_out&limit=1000")]
        answers = [site.get(f"/api/logs/{node_id}/{file}?tail=100&search={search}").json["lines"] for file in files]
        return [line for lines in answers for line in lines]

    wait_for_condition(lambda: read("FIRST") == ["first words <b>"])
    assert read("nobody-said-this") == []
    file = next(
        row["file"]
        for row in site.rows("/api/logs?filter=group=worker_out&limit=1000")
        if site.get(f"/api/logs/{node_id}/{row['file']}?search=first").json["lines"]
    )
    with site.stream(f"/api/logs/{node_id}/{file}/follow?tail=1") as stream:
        assert next_event(stream)["lines"][-1] == "first words <b>"


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("NODE/..%2f..%2ftoken", 404),
        ("NODE/%2fetc%2fpasswd", 404),
        ("NODE/..%2fnode.json", 404),
        ("NODE/nothing.log", 404),
        ("NODE/%00", 404),
        ("ffff/raylet.log", 404),
        ("NODE/raylet.log?tail=-1", 400),
        ("NODE/raylet.log?tail=x", 400),
        ("NODE/raylet.log/follow?tail=9999999", 400),
    ],
)
def test_no_other_file_is_read(site: OwnSite, path: str, status: int) -> None:
    node_id = site.rows("/api/nodes")[0]["node_id"]
    answer = site.get(f"/api/logs/{path.replace('NODE', node_id)}")
    assert answer.status == status and "error" in answer.json, answer.body
