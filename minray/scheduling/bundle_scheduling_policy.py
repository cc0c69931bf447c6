"""Which node gets which bundle of a placement group: the four strategies, as functions without state.

Ray: src/ray/raylet/scheduling/policy/bundle_scheduling_policy.h

    STRICT_PACK     all on one node: the one that is left with least
    STRICT_SPREAD   each on a node of its own, or not at all
    PACK            as few nodes as possible: again and again the node that takes most of what is left
    SPREAD          each on a node of its own if there are enough, else on the node with fewest of them

All bundles are placed, or none. For STRICT_PACK, STRICT_SPREAD, and the first try of SPREAD the answer is exact: if there is
a way it is found. What PACK does is packing bins, which nobody does exactly; large bundles come first, and when taking most
at a time fails, each bundle is put where it fits most tightly.

Some bundles of a group may have a place already, when others have lost theirs with a node: STRICT_SPREAD and SPREAD stay
away from those nodes, PACK and STRICT_PACK go there first. Ties are broken by node id.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from minray.common.bundles import PACK, SPREAD, STRICT_PACK, STRICT_SPREAD
from minray.common.resources import CPU, GPU, ResourceSet, add, describe, fits, subtract

Bundles = Mapping[int, Mapping[str, int]]
"""What is to be placed, by index."""
Nodes = Mapping[bytes, Mapping[str, int]]
"""What the nodes have free."""
Places = dict[int, bytes]


def place(strategy: str, bundles: Bundles, nodes: Nodes, beside: Sequence[bytes] = ()) -> Places | None:
    """A node for each bundle; None if there is no room for all. ``beside``: where other bundles of the group are."""
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
    """What is harder to place is larger: GPUs, then how much there is of other things."""
    return bundle.get(GPU, 0), bundle.get(CPU, 0), sum(bundle.values())


def _left(free: Mapping[str, int], demand: Mapping[str, int]) -> int:
    """How much a node would have left of what is wanted: the less, the tighter the fit."""
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
    """A matching of bundles and nodes: a bundle without a node may send another one away, if that finds a new one."""
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
    """The bundles that a node can take, the first ones first."""
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
    """Why there is no place, for people; the nodes' free resources, or all that they have."""
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
