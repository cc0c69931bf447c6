"""Scheduling policies: the choice among several suitable nodes, as functions without state.

Ray: src/ray/raylet/scheduling/policy/hybrid_scheduling_policy.h, spread_scheduling_policy.h

``hybrid`` packs up to a threshold and then spreads. Nodes under the threshold are all equally good, so that work stays where
it was submitted; above it the emptier node is better. One of the best few is drawn at random, so that many raylets with
the same view do not all choose the same node. ``spread`` takes the nodes in turn. The random function is an argument; ties
are broken by node id.

The speed of a node plays no part, as in Ray.

Left out: Ray's avoidance of GPU nodes for work without GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from minray.common.resources import CPU, MEMORY


def utilisation(total: Mapping[str, int], available: Mapping[str, int]) -> float:
    """Return the used share of CPU or memory, whichever is larger."""
    shares = [1 - available.get(name, 0) / total[name] for name in (CPU, MEMORY) if total.get(name)]
    return max(shares, default=0.0)


def hybrid(
    nodes: Sequence[tuple[bytes, float]], preferred: bytes, threshold: float, candidates: int, random: Callable[[], float]
) -> bytes:
    """Choose among ``nodes`` (id, utilisation): the preferred one if none is better, else one of the best ``candidates``."""
    scored = sorted((0.0 if used < threshold else used, node_id) for node_id, used in nodes)
    best = scored[0][0]
    if (best, preferred) in scored:
        return preferred
    chosen = scored[: max(1, candidates)]
    return chosen[int(random() * len(chosen))][1]


def spread(nodes: Sequence[bytes], last: bytes) -> bytes:
    """Return the node after ``last`` on the ring of ids; the ring may have changed since."""
    ring = sorted(nodes)
    return next((node_id for node_id in ring if node_id > last), ring[0])
