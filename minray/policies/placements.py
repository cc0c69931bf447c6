"""Placements of bundles beside the default one.

Ray: src/ray/raylet/scheduling/policy/bundle_scheduling_policy.h has the four strategies alone

The default, all four strategies of Ray, is ``minray/scheduling/bundle_scheduling_policy.py``. A policy gets the same
question and may answer it for some strategies only.
"""

from __future__ import annotations

from collections.abc import Mapping

from minray.common.bundles import PACK, SPREAD
from minray.common.resources import fits, subtract
from minray.policies.protocols import BundleQuestion, PolicyHost


class EmptiestFirstPlacement:
    """Gives each bundle to the node that has most left of what it needs (worst fit); only for PACK and SPREAD.

    Large gaps stay on many nodes, and no node becomes full early. The default strategies fill nodes tightly instead.
    """

    def __init__(self, host: PolicyHost) -> None:
        pass

    def place_bundles(self, question: BundleQuestion) -> Mapping[int, bytes] | None:
        if question.strategy not in (PACK, SPREAD):
            return None
        room = {node_id: dict(free) for node_id, free in question.nodes.items()}
        places: dict[int, bytes] = {}
        for index, needs in question.bundles.items():
            fitting = [node_id for node_id in sorted(room) if fits(needs, room[node_id])]
            if not fitting:
                return None
            places[index] = max(fitting, key=lambda node_id: sum(room[node_id].get(name, 0) for name in needs))
            subtract(room[places[index]], needs)
        return places


PLACEMENTS = {"emptiest_first": EmptiestFirstPlacement}
"""Names in ``_system_config`` of the bundle policies beside the default."""
