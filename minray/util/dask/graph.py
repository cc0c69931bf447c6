"""Makes plain nodes of a Dask graph: the tasks that must run, their order and options; and checks the graph.

Ray: python/ray/util/dask/scheduler_utils.py, optimizations.py

Dask hands over expressions, layered graphs or dictionaries, with nodes of the current task specification or old-style
tuples. ``prepare`` turns all of them into the same form: the nodes that the wanted keys need, in the order of
``dask.order``. That order finishes results before it opens new branches, so that few values are held at a time.

A task is a *split* if every node that depends on it takes one item of its result, as in shuffles of dataframes and in the
rechunking of arrays. Its items become results of their own. So the whole result is never stored, and no task is needed to
take an item (Dask-on-Ray has such an optimisation for one kind of shuffle).

A *chain* is a row of tasks that each have one user, which needs nothing else. It becomes one task, so that what its links
hand on is never stored. Dask makes chains of array operations itself, but not of dataframe operations. A task that the user
has made with ``dask.delayed`` may end a chain and is in no other place of it: how much it does was the user's choice.
"""

from __future__ import annotations

import sys
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

LARGE_BYTES = 64 * 1024
"""Size in bytes above which an array among the arguments is put once for all tasks that have it."""
TAKES_ITEM = {("_operator", "getitem"), ("dask.array.chunk", "getitem")}
"""Functions that take an item, as (module, name), so that dask.array is not imported for a graph without arrays."""
MOST_ITEMS = 1000
"""The largest number of items of a split; a task with more is left as it is, since each item is an object."""

ANNOTATION = "ray_remote_args"


@dataclass
class Graph:
    """The nodes that the wanted keys need, with their order and options."""

    nodes: dict[Any, Any]
    """Key -> node. A persisted dependency is a DataNode with its reference."""
    wanted: set[Any]
    order: list[Any]
    """All keys, dependencies first."""
    uses: dict[Any, int]
    """Key -> number of nodes that depend on it."""
    options: dict[Any, dict[str, Any]]
    """Key -> options of the remote function, for the keys that have any."""
    splits: dict[Any, list[Any]] = field(default_factory=dict)
    """Key of a task -> the keys of the nodes that each take one item of its result."""


def prepare(
    dsk: Any, keys: Any, remote_args: Mapping[str, Any], *, may_split: bool = True, may_chain: bool = True
) -> Graph:
    """Make a ``Graph``. Raises KeyError for a missing wanted key, ValueError for a missing dependency, RuntimeError for a
    cycle."""
    given = dsk if isinstance(dsk, Mapping) else dsk.__dask_graph__()
    wanted = set(flatten([keys]))
    nodes, dependents = _needed(convert_legacy_graph(dict(given)), wanted)
    graph = Graph(nodes=nodes, wanted=wanted, order=[], uses={}, options=_options(dsk, nodes, remote_args))
    if may_split:
        graph.splits = {key: users for key, users in dependents.items() if _is_split(key, users, graph)}
    if may_chain:
        _chain(graph, dependents)
    ranks = order(nodes)
    graph.order = sorted(nodes, key=ranks.__getitem__)
    graph.uses = {key: len(users) for key, users in dependents.items()}
    return graph


def _needed(nodes: Mapping[Any, GraphNode], wanted: Iterable[Any]) -> tuple[dict[Any, GraphNode], dict[Any, list[Any]]]:
    """Return the nodes that the wanted keys depend on, and for each key the keys that depend on it."""
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
    """Return the options by key: those of the call, of annotations around it, and of layers. Later ones override."""
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
    """Return the annotations of layers: annotation -> key -> value."""
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


def _chain(graph: Graph, dependents: dict[Any, list[Any]]) -> None:
    """Replace each chain by one task, which has the key of its last link."""
    pieces = {piece for users in graph.splits.values() for piece in users}
    before = {
        users[0]: key
        for key, users in dependents.items()
        if len(users) == 1 and key not in pieces and _is_link(key, graph) and _is_only_link_of(users[0], key, graph)
    }
    for last in before.keys() - before.values():
        links = [last]
        while links[-1] in before:
            links.append(before[links[-1]])
        first = links[-1]
        graph.nodes[last] = Task.fuse(*(graph.nodes[link] for link in links))
        for link in links[1:]:
            del graph.nodes[link], dependents[link]
        for dependency in graph.nodes[last].dependencies:
            dependents[dependency] = [last if user == first else user for user in dependents[dependency]]


def _is_link(key: Any, graph: Graph) -> bool:
    """Whether a task may hand its result on within a chain: Dask made it, as the tuple in its key shows."""
    node = graph.nodes[key]
    return type(node) is Task and type(key) is tuple and key not in graph.wanted and not _has_large(node)


def _is_only_link_of(user: Any, key: Any, graph: Graph) -> bool:
    node = graph.nodes[user]
    return (
        type(node) is Task
        and set(node.dependencies) == {key}
        and graph.options.get(user) == graph.options.get(key)
        and not _has_large(node)
    )


def _has_large(node: Task) -> bool:
    """Whether a large array is among the arguments: it is put once for all tasks, but not for tasks within a chain."""
    return any(map(is_large_array, (*node.args, *node.kwargs.values())))


def is_large_array(value: Any) -> bool:
    """Whether numpy or torch made this value, and it is large; a library that nobody has imported made none."""
    numpy, torch = sys.modules.get("numpy"), sys.modules.get("torch")
    kinds = (getattr(numpy, "ndarray", None), getattr(torch, "Tensor", None))
    return type(value) in kinds and value.nbytes > LARGE_BYTES


def takes_item(node: Any) -> bool:
    """Whether this node takes an item, with a constant index, of the only node it depends on."""
    return (
        type(node) is Task
        and (getattr(node.func, "__module__", ""), getattr(node.func, "__name__", "")) in TAKES_ITEM
        and len(node.args) == 2
        and not node.kwargs
        and referred(node.args[0]) is not None
        and not isinstance(node.args[1], GraphNode | TaskRef)
    )


def referred(argument: Any) -> Any:
    """Return the key whose value this argument is; None if it is anything else."""
    if isinstance(argument, TaskRef):
        return argument.key
    return argument.target if type(argument) is Alias else None
