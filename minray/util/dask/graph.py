"""A Dask graph, made plain: what has to run, in which order, with which options, and what is wrong with it.

Ray: python/ray/util/dask/scheduler_utils.py, optimizations.py

Dask hands over expressions, layered graphs or dictionaries, with nodes of today's task specification or tuples of older
days. ``prepare`` leaves nothing of that difference: nodes, only those that the wanted keys need, in the order of
``dask.order``, which walks towards finished results before it opens new branches, so that little is held at a time.

A task whose result is only ever taken apart is a *split*: everybody who depends on it takes one item, as the shuffles of
dataframes and the rechunking of arrays do. Its items become results of their own, so that the whole is never stored and
no task is needed to cut a piece from it (Dask-on-Ray has such an optimisation for one kind of shuffle).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import dask
from dask._task_spec import convert_legacy_graph
from dask.core import flatten
from dask.order import order
from dask.task_spec import Alias, DataNode, GraphNode, Task, TaskRef

from .futures import FutureKey

TAKES_ITEM = {("_operator", "getitem"), ("dask.array.chunk", "getitem")}
"""Modules and names of functions, so that nobody imports dask.array for a graph without arrays."""
MOST_ITEMS = 1000
"""A split with more of them is left as it is."""

ANNOTATION = "ray_remote_args"


@dataclass
class Graph:
    """What the wanted keys need."""

    nodes: dict[Any, Any]
    """Key -> node; a persisted dependency is a DataNode with its reference."""
    wanted: set[Any]
    order: list[Any]
    """All keys, dependencies first."""
    uses: dict[Any, int]
    """How many nodes depend on a key."""
    options: dict[Any, dict[str, Any]]
    """Options of remote functions, for the keys that have any."""
    splits: dict[Any, list[Any]] = field(default_factory=dict)
    """Key of a task -> the keys of the nodes that each take one item of its result."""


def prepare(dsk: Any, keys: Any, remote_args: Mapping[str, Any], *, may_split: bool = True) -> Graph:
    """Raises KeyError for a wanted key that is not there, ValueError for a dependency, RuntimeError for a cycle."""
    given = dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__()
    wanted = set(flatten([keys]))
    nodes, dependents = _needed(convert_legacy_graph(dict(given)), wanted)
    ranks = order(nodes)
    graph = Graph(
        nodes,
        wanted,
        sorted(nodes, key=ranks.__getitem__),
        {key: len(users) for key, users in dependents.items()},
        _options(dsk, nodes, remote_args),
    )
    if may_split:
        graph.splits = {key: users for key, users in dependents.items() if _is_split(key, users, graph)}
    return graph


def _needed(nodes: Mapping[Any, GraphNode], wanted: Iterable[Any]) -> tuple[dict[Any, GraphNode], dict[Any, list[Any]]]:
    """The nodes that the wanted keys depend on, and who depends on each."""
    needed: dict[Any, GraphNode] = {}
    dependents: dict[Any, list[Any]] = defaultdict(list)
    to_visit = list(wanted)
    while to_visit:
        key = to_visit.pop()
        if key in needed:
            continue
        node = needed[key] = _node(key, nodes, dependents)
        for dependency in node.dependencies:
            dependents[dependency].append(key)
            to_visit.append(dependency)
    return needed, dependents


def _node(key: Any, nodes: Mapping[Any, GraphNode], dependents: Mapping[Any, list[Any]]) -> GraphNode:
    if key in nodes:
        return nodes[key]
    if isinstance(key, FutureKey):
        return DataNode(key, key.ref)
    if key in dependents:
        raise ValueError(f"Missing dependency {key!r} for dependents {set(dependents[key])!r} in the Dask graph")
    raise KeyError(key)


def _options(dsk: Any, nodes: Iterable[Any], remote_args: Mapping[str, Any]) -> dict[Any, dict[str, Any]]:
    """Options by key: those of the call, of the annotations around it, of the annotations of layers; the last one wins."""
    current, by_key = dask.get_annotations(), _annotations(dsk)
    for names in (current, by_key):
        if "resources" in names:
            raise ValueError(
                'Dask\'s annotation resources={...} is for dask.distributed: use ray_remote_args={"resources": {...}} to say'
                " which resources a task needs"
            )
    general = {**remote_args, **current.get(ANNOTATION, {})}
    special = by_key.get(ANNOTATION, {})
    if not general and not special:
        return {}
    options = {key: {**general, **special.get(key, {})} for key in nodes}
    for key, chosen in options.items():
        if "num_returns" in chosen:
            raise ValueError(f"ray_remote_args of the Dask key {key!r} has num_returns: a Dask task has one result")
    return options


def _annotations(dsk: Any) -> dict[str, dict[Any, Any]]:
    """Annotation -> key -> value."""
    if hasattr(dsk, "__dask_annotations__"):
        found: dict[str, dict[Any, Any]] = dsk.__dask_annotations__()
        return found
    by_name: dict[str, dict[Any, Any]] = defaultdict(dict)
    for layer in getattr(dsk, "layers", {}).values():
        for name, value in (layer.annotations or {}).items():
            by_name[name].update(dict.fromkeys(layer, value) if not callable(value) else {key: value(key) for key in layer})
    return by_name


def _is_split(key: Any, users: list[Any], graph: Graph) -> bool:
    nodes, options = graph.nodes, graph.options
    return (
        1 < len(users) <= MOST_ITEMS
        and key not in graph.wanted
        and isinstance(nodes[key], Task)
        and all(takes_item(nodes[user]) and options.get(user) == options.get(key) for user in users)
    )


def takes_item(node: Any) -> bool:
    """Whether this node is ``result[something known]`` of the only one it depends on."""
    return (
        type(node) is Task
        and (getattr(node.func, "__module__", ""), getattr(node.func, "__name__", "")) in TAKES_ITEM
        and len(node.args) == 2
        and not node.kwargs
        and referred(node.args[0]) is not None
        and not isinstance(node.args[1], GraphNode | TaskRef)
    )


def referred(argument: Any) -> Any:
    """The key whose value this argument is; None if it is anything else."""
    if isinstance(argument, TaskRef):
        return argument.key
    return argument.target if type(argument) is Alias else None
