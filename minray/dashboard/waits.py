"""The wait-for graph: who waits for whom, made from the answers of ``why()``.

Ray: has no counterpart

The functions are pure. Each chain is the explanation of one task, call or driver, line by line. A line that names a task, a
call, a constructor or an actor leads on to that vertex. Any other line is a reason at which the chain ends: a resource that
others hold, a request that no node can satisfy, a task that runs.

A cycle is a group of vertices that all wait for each other: none of them goes on. A resource and its holders are no part of
cycles, because a holder that waits in ``get`` lends its CPUs out.

What we do not like about it yet: the chains are sentences, and this file reads them. A name that a user chose may look like
one of ours; at worst a vertex has a wrong name then.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

_NAMED = re.compile(r"(task|call|constructor) (.{1,200}?) \(([0-9a-f]{4}-\d+)\)")
"""A line about a task: its kind, its name and its short id."""
_ACTOR = re.compile(r"actor ([0-9a-f]{4}-\d+)(?: \((.{1,200}?)\))?(?=[, :]|$)")
_WAITS = re.compile(r"it waits for \d+ objects?$")
_INFEASIBLE = re.compile(
    r"(?:its lease )?(?:needs .*; (?:the most that a node has|no single node)|node affinity: )|.*\bno node (?:has|can)\b"
)
"""A reason that does not pass by waiting: no node has, or can have, what is needed."""
_HELD_BY = re.compile(r"in use by (.*)$")
_HOLDER = re.compile(r"\(pid (\d+)\)")
_OF_OBJECT = re.compile(r"[0-9a-f]{4}-\d+ (?:is ready|was lost)")
"""A line about an object itself; the next line says what it waits for."""
_LASTING = re.compile(r", for \d+(?:\.\d+)? s$")
"""The end of a line that changes each second."""
TASK, ACTOR, DRIVER, REASON = "task", "actor", "driver", "reason"


class Chain(NamedTuple):
    """The explanation of one task, actor or driver."""

    id: str
    """Vertex where the chain begins: a short id."""
    kind: str
    name: str
    lines: list[str]
    facts: dict[str, Any]
    """Further facts about that vertex, such as its whole id, state and pid."""


@dataclass
class WaitGraph:
    """Vertices and edges, as they become JSON."""

    vertices: dict[str, dict[str, Any]] = field(default_factory=dict)
    edges: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def add_vertex(self, id: str, kind: str, name: str, **facts: Any) -> str:
        vertex = self.vertices.setdefault(
            id, {"id": id, "kind": kind, "name": name, "is_infeasible": False, "in_cycle": False}
        )
        vertex.update({key: value for key, value in facts.items() if value is not None})
        return id

    def add_edge(self, source: str, target: str, text: str, kind: str = "waits") -> None:
        self.edges.setdefault((source, target), {"source": source, "target": target, "kind": kind, "text": text})


def build_graph(chains: Sequence[Chain], holders: dict[int, str] | None = None) -> dict[str, Any]:
    """Join the chains into one graph. ``holders``: vertices of the tasks that run, by the pid of their worker."""
    graph = WaitGraph()
    for chain in chains:
        graph.add_vertex(chain.id, chain.kind, chain.name, **chain.facts)
    for chain in chains:
        _add_chain(graph, chain, holders or {})
    cycles = find_cycles(graph.vertices, [pair for pair, edge in graph.edges.items() if edge["kind"] == "waits"])
    for cycle in cycles:
        for id in cycle:
            graph.vertices[id]["in_cycle"] = True
    return {"vertices": list(graph.vertices.values()), "edges": list(graph.edges.values()), "cycles": cycles}


def _add_chain(graph: WaitGraph, chain: Chain, holders: dict[int, str]) -> None:
    at, before = chain.id, ""
    for line in chain.lines:
        if named := _NAMED.match(line):
            at = _step(graph, at, graph.add_vertex(named[3], named[1], named[2]), before or line)
        elif actor := _ACTOR.match(line):
            at = _step(graph, at, graph.add_vertex(f"actor {actor[1]}", ACTOR, actor[2] or actor[1]), before or line)
        elif line != "..." and not _WAITS.match(line) and not _OF_OBJECT.match(line):
            _add_reason(graph, at, line, holders)
        before = line


def _step(graph: WaitGraph, at: str, to: str, text: str) -> str:
    """Go on to the next vertex of a chain; stay at one that the chain describes itself."""
    if to != at:
        graph.add_edge(at, to, text)
    return to


def _add_reason(graph: WaitGraph, at: str, line: str, holders: dict[int, str]) -> None:
    text = _LASTING.sub("", line)
    is_infeasible = bool(_INFEASIBLE.match(text))
    reason = graph.add_vertex(f"reason {text}", REASON, text, is_infeasible=is_infeasible)
    graph.add_edge(at, reason, text)
    if is_infeasible:
        graph.vertices[at]["is_infeasible"] = True
    if held := _HELD_BY.search(text):
        for pid in map(int, _HOLDER.findall(held[1])):
            if pid in holders:
                graph.add_edge(reason, holders[pid], f"held by process {pid}", "held_by")


def find_cycles(vertices: Iterable[str], edges: Iterable[tuple[str, str]]) -> list[list[str]]:
    """Return the groups of vertices that reach each other, and vertices that lead to themselves, each group sorted."""
    ahead: dict[str, list[str]] = {id: [] for id in vertices}
    back: dict[str, list[str]] = {id: [] for id in ahead}
    own = set()
    for source, target in edges:
        ahead[source].append(target)
        back[target].append(source)
        if source == target:
            own.add(source)
    finished: list[str] = []
    seen: set[str] = set()
    for id in ahead:
        _walk(id, ahead, seen, finished)
    seen.clear()
    groups = []
    for id in reversed(finished):
        group: list[str] = []
        _walk(id, back, seen, group)
        if len(group) > 1 or id in own and group:
            groups.append(sorted(group))
    return sorted(groups)


def _walk(start: str, ahead: dict[str, list[str]], seen: set[str], finished: list[str]) -> None:
    """Visit all that is reached from a vertex, and append each when all behind it was visited."""
    if start in seen:
        return
    seen.add(start)
    path = [(start, iter(ahead[start]))]
    while path:
        id, rest = path[-1]
        following = next((other for other in rest if other not in seen), None)
        if following is None:
            finished.append(id)
            path.pop()
        else:
            seen.add(following)
            path.append((following, iter(ahead[following])))
