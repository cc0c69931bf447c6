"""Coverage of runs: the places where loud faults have struck, and the state transitions seen at all and after a fault.

A place is a kind of point: the role of the process that is struck, and the task or message at which it is struck.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

from minray.core_worker.records import object_ref_streams
from minray.core_worker.submission import task_manager
from minray.gcs import gcs_actor_manager, gcs_node_manager, job_manager, placement_group_manager
from minray.object_store.object_table import COPY_STATES
from minray.raylet import placement_group_resource_manager
from minray.raylet.worker_pool import WORKER_STATES
from minray.scheduling.lease import LEASE_STATES
from minray.simulation.faults import LOUD, Key
from minray.simulation.trace import FAULT, STATE
from tests.spec.verdict import Verdict

TABLES: Mapping[str, Mapping[str, tuple[str, ...]]] = {
    "job": job_manager.TRANSITIONS,
    "node": gcs_node_manager.TRANSITIONS,
    "actor": gcs_actor_manager.TRANSITIONS,
    "placement group": placement_group_manager.TRANSITIONS,
    "bundle": placement_group_resource_manager.TRANSITIONS,
    "lease": LEASE_STATES,
    "worker": WORKER_STATES,
    "task": task_manager.TRANSITIONS,
    "stream": object_ref_streams.TRANSITIONS,
    "copy": COPY_STATES,
}
"""Name of a state machine in traces -> its transitions."""
Place = tuple[str, str]
Transition = tuple[str, str, str]
"""The table, the old state and the new one."""


def place_of(key: Key) -> Place:
    """Turn ``("crash", "worker/1f3c", "connect(w-1f3c)", 2)`` into ``("worker", "connect")``."""
    return re.sub(r"/\w+", "", key[1]), re.sub(r"\(.*", "", key[2]) if len(key) > 2 and isinstance(key[2], str) else ""


def all_transitions() -> list[Transition]:
    return [(name, old, new) for name, table in TABLES.items() for old, news in table.items() for new in news]


class Coverage:
    """Counts of places and transitions, for all runs that were added."""

    def __init__(self) -> None:
        self.places: dict[str, Counter[Place]] = {kind: Counter() for kind in LOUD}
        self.transitions: Counter[Transition] = Counter()
        """Transition -> the number of runs that showed it."""
        self.after_faults: Counter[Transition] = Counter()
        """Transition -> the number of runs that showed it after a fault."""

    def add(self, verdict: Verdict) -> None:
        for key in verdict.answers:
            if key[0] in self.places:
                self.places[key[0]][place_of(key)] += 1
        seen: set[Transition] = set()
        after: set[Transition] = set()
        is_after = False
        for event in verdict.trace.events:
            if event.kind == FAULT:
                is_after = True
            elif event.kind == STATE:
                name, _, old, new = event.details
                if name in TABLES:
                    (after if is_after else seen).add((name, old, new))
        self.transitions.update(seen | after)
        self.after_faults.update(after)

    def merge(self, other: Coverage) -> None:
        for kind, places in other.places.items():
            self.places[kind].update(places)
        self.transitions.update(other.transitions)
        self.after_faults.update(other.after_faults)

    def line(self) -> str:
        """Summary in one line."""
        known = all_transitions()
        places = " ".join(f"{kind} {len(places)}" for kind, places in self.places.items() if places)
        seen = sum(one in self.transitions for one in known)
        after = sum(one in self.after_faults for one in known)
        return f"places struck: {places}; transitions: {seen} of {len(known)}, {after} after a fault"

    def tables(self) -> str:
        """Tables: for each transition the number of runs that showed it, for each place the number of faults there."""
        rows = [f"{'transition':<64} {'runs':>6} {'after a fault':>14}"]
        for name, old, new in all_transitions():
            one = name, old, new
            words = f"{name}: {old or 'new'} -> {new or 'gone'}"
            rows.append(f"{words:<64} {self.transitions[one]:>6} {self.after_faults[one]:>14}")
        kinds = [kind for kind, places in self.places.items() if places]
        rows += ["", f"{'who':<16} {'where':<34} " + " ".join(f"{kind:>11}" for kind in kinds)]
        for place in sorted({place for places in self.places.values() for place in places}):
            cells = (str(self.places[kind][place] or "") for kind in kinds)
            rows.append(f"{place[0]:<16} {place[1]:<34} " + " ".join(f"{cell:>11}" for cell in cells))
        return "\n".join(row.rstrip() for row in rows)
