"""Which of several nodes that would do: the policies, as functions without state.

Ray: src/ray/raylet/scheduling/policy/hybrid_scheduling_policy.h, spread_scheduling_policy.h

``hybrid`` packs until it spreads: nodes under the threshold are all equally good, so that work stays where it was
submitted; above it the emptier node is better. Among the best few one is drawn, so that many raylets with the same view
do not all run to the same node. ``spread`` goes round. Chance comes in as a function; ties are broken by node id.

Left out: Ray's avoidance of GPU nodes for work without GPUs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from minray.common.resources import CPU, MEMORY


def utilisation(total: Mapping[str, int], available: Mapping[str, int]) -> float:
    """The share in use of the scarcest of the resources that every node has."""
    shares = [1 - available.get(name, 0) / total[name] for name in (CPU, MEMORY) if total.get(name)]
    return max(shares, default=0.0)


def hybrid(
    nodes: Sequence[tuple[bytes, float]], preferred: bytes, threshold: float, candidates: int, random: Callable[[], float]
) -> bytes:
    """One of ``nodes`` (id and utilisation): the preferred one if none is better, else one of the ``candidates`` best."""
    scored = sorted((0.0 if used < threshold else used, node_id) for node_id, used in nodes)
    best = scored[0][0]
    if (best, preferred) in scored:
        return preferred
    chosen = scored[: max(1, candidates)]
    return chosen[int(random() * len(chosen))][1]


def spread(nodes: Sequence[bytes], last: bytes) -> bytes:
    """The node after ``last`` on the ring of ids; the ring may have changed since."""
    ring = sorted(nodes)
    return next((node_id for node_id in ring if node_id > last), ring[0])
