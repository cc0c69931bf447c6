"""Placement of a group's bundles on nodes: the four strategies, as functions without state.

Ray: src/ray/raylet/scheduling/policy/bundle_scheduling_policy.h

    STRICT_PACK     all on one node: the fitting node that is left with least
    STRICT_SPREAD   each on a node of its own, or not at all
    PACK            as few nodes as possible: repeatedly the node that takes most of the remaining bundles
    SPREAD          each on a node of its own if there are enough nodes, else on the node with fewest bundles of the group

All bundles are placed, or none. STRICT_PACK, STRICT_SPREAD, and the first try of SPREAD are exact: if a placement exists, it
is found. PACK is bin packing, for which no fast exact method is known, so it is a heuristic: large bundles come first. When
filling one node after the other fails, each bundle goes to the node where it fits most tightly.

When a node dies, some bundles of a group lose their places and others keep them. Then STRICT_SPREAD and SPREAD avoid the
nodes of the bundles that stay, and PACK and STRICT_PACK prefer them. Ties are broken by node id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minray.common.bundles import PACK, SPREAD, STRICT_PACK, STRICT_SPREAD
from minray.common.resources import CPU, GPU, ResourceSet, add, describe, fits, subtract

Bundles = Mapping[int, Mapping[str, int]]
"""Resources of the bundles to place, by index."""
Nodes = Mapping[bytes, Mapping[str, int]]
"""Free resources of the nodes, by node id."""
Places = dict[int, bytes]


def place(strategy: str, bundles: Bundles, nodes: Nodes, beside: Sequence[bytes] = ()) -> Places | None:
    """Choose a node for each bundle; return None if not all fit. ``beside``: the nodes of the group's other bundles."""
    order = sorted(bundles, key=lambda index: (_size(bundles[index]), -index), reverse=True)
    if strategy == STRICT_PACK:
        return _on_one_node(bundles, nodes, beside)
    if strategy == STRICT_SPREAD:
        return _on_different_nodes(bundles, {key: free for key, free in nodes.items() if key not in beside})
    if strategy == SPREAD:
        fresh = {key: free for key, free in nodes.items() if key not in beside}
        return _on_different_nodes(bundles, fresh) or _evenly(order, bundles, nodes, beside)
    assert strategy == PACK, strategy
    return _on_few_nodes(order, bundles, nodes, beside) or _tightly(order, bundles, nodes)


def _size(bundle: Mapping[str, int]) -> tuple[int, int, int]:
    """Return a sort key for the difficulty of placing a bundle: its GPUs, then its CPUs, then the sum of all amounts."""
    return bundle.get(GPU, 0), bundle.get(CPU, 0), sum(bundle.values())


def _left(free: Mapping[str, int], demand: Mapping[str, int]) -> int:
    """Return how much a node would have left of the demanded resources: the less, the tighter the fit."""
    return sum(free.get(name, 0) - amount for name, amount in demand.items())


def _on_one_node(bundles: Bundles, nodes: Nodes, beside: Sequence[bytes]) -> Places | None:
    demand: ResourceSet = {}
    for bundle in bundles.values():
        add(demand, bundle)
    fitting = [key for key in beside or nodes if key in nodes and fits(demand, nodes[key])]
    if not fitting:
        return None
    chosen = min(fitting, key=lambda key: (_left(nodes[key], demand), key))
    return dict.fromkeys(bundles, chosen)


def _on_different_nodes(bundles: Bundles, nodes: Nodes) -> Places | None:
    """Match bundles with nodes (augmenting paths): a bundle may displace another one if that one finds a new node."""
    holder: dict[bytes, int] = {}
    candidates = {
        index: sorted((key for key in nodes if fits(bundle, nodes[key])), key=lambda key: (_left(nodes[key], bundle), key))
        for index, bundle in bundles.items()
    }

    def seat(index: int, tried: dict[bytes, None]) -> bool:
        for key in candidates[index]:
            if key not in tried:
                tried[key] = None
                if key not in holder or seat(holder[key], tried):
                    holder[key] = index
                    return True
        return False

    if all(seat(index, {}) for index in sorted(bundles, key=lambda index: len(candidates[index]))):
        return {index: key for key, index in holder.items()}
    return None


def _on_few_nodes(order: Sequence[int], bundles: Bundles, nodes: Nodes, beside: Sequence[bytes]) -> Places | None:
    places: Places = {}
    left = list(order)
    unused = dict(nodes)
    while left:
        taken = {key: _fill(left, bundles, free) for key, free in unused.items()}
        if not any(taken.values()):
            return None
        chosen = max(sorted(taken), key=lambda key: (key in beside and bool(taken[key]), len(taken[key])))
        places |= dict.fromkeys(taken[chosen], chosen)
        left = [index for index in left if index not in places]
        del unused[chosen]
    return places


def _fill(order: Sequence[int], bundles: Bundles, free: Mapping[str, int]) -> list[int]:
    """Return the bundles that a node can take, tried in this order."""
    room = dict(free)
    taken = []
    for index in order:
        if fits(bundles[index], room):
            subtract(room, bundles[index])
            taken.append(index)
    return taken


def _tightly(order: Sequence[int], bundles: Bundles, nodes: Nodes) -> Places | None:
    room = {key: dict(free) for key, free in nodes.items()}
    places: Places = {}
    for index in order:
        fitting = [key for key in room if fits(bundles[index], room[key])]
        if not fitting:
            return None
        places[index] = chosen = min(fitting, key=lambda key: (_left(room[key], bundles[index]), key))
        subtract(room[chosen], bundles[index])
    return places


def _evenly(order: Sequence[int], bundles: Bundles, nodes: Nodes, beside: Sequence[bytes]) -> Places | None:
    room = {key: dict(free) for key, free in nodes.items()}
    places: Places = {}
    held = {key: sum(1 for other in beside if other == key) for key in nodes}
    for index in order:
        fitting = [key for key in room if fits(bundles[index], room[key])]
        if not fitting:
            return None
        places[index] = chosen = min(fitting, key=lambda key: (held[key], _left(room[key], bundles[index]), key))
        subtract(room[chosen], bundles[index])
        held[chosen] += 1
    return places


def explain(strategy: str, bundles: Bundles, nodes: Nodes, beside: Sequence[bytes] = ()) -> str:
    """Explain why there is no placement; ``nodes`` holds either free or total resources."""
    alone = [index for index, bundle in bundles.items() if not any(fits(bundle, free) for free in nodes.values())]
    if alone:
        bundle = bundles[alone[0]]
        most = {name: max((free.get(name, 0) for free in nodes.values()), default=0) for name in bundle}
        return f"no node has room for bundle {alone[0]}, {describe(bundle)}; the most that one has is {describe(most)}"
    if strategy == STRICT_PACK:
        where = "the node of the others" if beside else "one node"
        return f"the {len(bundles)} bundles do not fit on {where} together, and STRICT_PACK wants that"
    if strategy == STRICT_SPREAD:
        others = [key for key in nodes if key not in beside]
        fitting = sum(1 for key in others if any(fits(bundle, nodes[key]) for bundle in bundles.values()))
        return f"{len(bundles)} bundles want a node each (STRICT_SPREAD), and {fitting} nodes have room for any of them"
    return f"each of the {len(bundles)} bundles would fit somewhere, but not all of them at once"
