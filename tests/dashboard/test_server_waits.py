"""The wait-for graph from explanations: vertices, edges, cycles, and needs that nothing can meet."""

from __future__ import annotations

from typing import Any

from minray.dashboard.waits import Chain, build_graph, find_cycles


def graph(*chains: Chain, holders: dict[int, str] | None = None) -> dict[str, Any]:
    return build_graph(chains, holders)


def task(id: str, name: str, *lines: str, **facts: Any) -> Chain:
    return Chain(id=id, kind="task", name=name, lines=[f"task {name} ({id}) {lines[0]}", *lines[1:]], facts=facts)


def edges(found: dict[str, Any]) -> set[tuple[str, str, str]]:
    return {(edge["source"], edge["target"], edge["kind"]) for edge in found["edges"]}


def test_a_chain_leads_from_a_task_to_what_it_waits_for() -> None:
    found = graph(
        task(
            "aa00-2",
            "sum_up",
            "waits for 2 arguments",
            "task load (aa00-1) waits for a worker: needs CPU: 1",
            "waits for CPU on node head: 1 of 1 in use by train (pid 7)",
        )
    )
    names = {vertex["id"]: vertex["name"] for vertex in found["vertices"]}
    assert names["aa00-2"] == "sum_up" and names["aa00-1"] == "load"
    reason = "reason waits for CPU on node head: 1 of 1 in use by train (pid 7)"
    assert edges(found) == {("aa00-2", "aa00-1", "waits"), ("aa00-1", reason, "waits")}
    assert found["cycles"] == [] and not any(vertex["is_infeasible"] for vertex in found["vertices"])


def test_the_holder_of_a_resource_is_joined_and_is_no_cycle() -> None:
    runs = task("aa00-1", "train", "runs on worker pid=7, node ab, for 3.0 s", "it waits for 1 object",
                "task load (aa00-2) waits for a worker: needs CPU: 1",
                "waits for CPU on node head: 1 of 1 in use by train (pid 7)")  # fmt: skip
    found = graph(runs, holders={7: "aa00-1"})
    assert ("aa00-1", "aa00-2", "waits") in edges(found)
    assert any(target == "aa00-1" and kind == "held_by" for _, target, kind in edges(found))
    assert found["cycles"] == [], "a task that waits in get lends its CPU out"


def test_calls_that_wait_for_each_other_are_a_cycle() -> None:
    first = Chain(id="aa00-2", kind="call", name="b", lines=[
        "call b (aa00-2) was sent to actor bb00-1 (B), which lives in pid=2, node x", "it runs", "it waits for 1 object",
        "call a (cc00-3) was sent to actor aa00-1 (A), which lives in pid=1, node x",
        "it waits for its turn: start runs, 0 calls wait before it", "it waits for 1 object",
        "call b (aa00-2) again: they wait for each other, and none will go on"], facts={})  # fmt: skip
    found = graph(first)
    assert found["cycles"] == [["aa00-2", "cc00-3"]]
    assert {vertex["id"] for vertex in found["vertices"] if vertex["in_cycle"]} == {"aa00-2", "cc00-3"}


def test_a_need_that_no_node_can_meet_is_marked_with_all_reasons() -> None:
    reasons = [
        "needs GPU: 1; no node has GPU",
        "needs CPU: 99; the most that a node has is CPU: 4",
        "needs CPU: 1, GPU: 1; no single node has all of it",
        "its lease needs GPU: 1; no node has GPU",
        "node affinity: there is no node abcd",
    ]
    for reason in reasons:
        found = graph(task("aa00-1", "f", "waits for a worker: needs much", reason))
        assert [vertex["is_infeasible"] for vertex in found["vertices"]] == [True, True], reason


def test_equal_reasons_are_one_vertex_although_their_seconds_differ() -> None:
    found = graph(task("aa00-1", "f", "waits", "sleeps, for 1.0 s"), task("aa00-2", "g", "waits", "sleeps, for 2.5 s"))
    assert [vertex["id"] for vertex in found["vertices"] if vertex["kind"] == "reason"] == ["reason sleeps"]


def test_a_name_like_our_own_words_makes_no_error() -> None:
    name = "task x (aa00-9) <script>alert(1)</script>"
    found = graph(
        Chain(id="aa00-1", kind="task", name=name, lines=[f"task {name} (aa00-1) waits for 1 argument", "...", ""], facts={})
    )
    assert found["vertices"][0]["name"] == name


def test_lines_about_objects_are_no_reasons() -> None:
    lines = ["aa00-1 was lost and is being made again", "task f (aa00-1) waits for a worker: needs CPU: 1"]
    found = graph(
        Chain(id="aa00-1", kind="task", name="f", lines=lines, facts={}),
        Chain(id="aa00-2", kind="task", name="g", lines=["aa00-2 is ready"], facts={}),
    )
    assert [vertex["id"] for vertex in found["vertices"]] == ["aa00-1", "aa00-2"] and found["edges"] == []


def test_cycles_of_any_length_and_number_are_found() -> None:
    ring = [(str(number), str((number + 1) % 5000)) for number in range(5000)]
    assert [len(cycle) for cycle in find_cycles(map(str, range(5000)), ring)] == [5000], "without recursion"
    pairs = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "c"), ("e", "e"), ("f", "a")]
    assert find_cycles("abcdef", pairs) == [["a", "b"], ["c", "d"], ["e"]]
    assert find_cycles("abc", [("a", "b"), ("b", "c"), ("a", "c")]) == []
