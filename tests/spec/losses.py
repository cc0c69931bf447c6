"""Losses that the faults of a run may have caused, for the model to allow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from minray.raylet.start_failures import MAX_FAILED_IN_A_ROW
from minray.simulation.cluster import GCS
from minray.simulation.faults import (
    DELAYS_S,
    LONG_DELAYS_S,
    LONG_STALLS_S,
    LOUD,
    POSTHUMOUS_S,
    STALLS_S,
    SWITCHES_S,
    Key,
)
from tests.spec.charges import GCS_STALLS_S, PATIENCE_S, Charges
from tests.spec.model import HEARD_S, Losses
from tests.spec.scenario import World

MOMENT_S = 0.05
"""Virtual seconds after which a cancellation has reached its task, if nothing delays it."""
ENDS = ("crash", "memory", "spawn")
"""Loud faults that end a process, or keep it from starting. They count as silence only for the gcs, which comes back."""
ROOMY_BYTES = 4000
"""Bytes of an object store from which on no program has to wait for spilling."""


def losses_of(answers: Mapping[Key, int], world: World, charges: Charges | None = None) -> Losses:
    """Losses that the faults that struck may have caused; ``charges``: what they have struck."""
    crashed = crashed_by(answers)
    raylets = [name for name in crashed if name.startswith("raylet/")]
    workers = [name for name in crashed if name.startswith("worker/")]
    nodes = [key for key, answer in answers.items() if _may_end_a_node(key, answer)]
    preemptions = sum(move.leaves and not move.if_idle for move in world.moves)
    ended = sum(move.ends_work() for move in world.moves)
    killed = sum(move.dies for move in world.moves)
    may_lose_nodes = bool(raylets or nodes or ended or killed)
    may_lose_files = any(key[0] in ("disk_error", "torn_write") for key in answers)
    may_lack_room = 0 < world.store_bytes < ROOMY_BYTES and any(key[0] in ("disk_error", "disk_full") for key in answers)
    may_lose_objects = may_lose_files or (may_lose_nodes and world.inline_limit > 0)
    memory = sum(key[0] == "memory" for key in answers)
    deaths = len(raylets) + len(workers) + len(nodes) + ended + killed + memory
    unborn = sum(key[0] == "spawn" for key in answers)
    silence = any(key[0] in LOUD and (key[0] not in ENDS or key[1] == GCS) for key in answers)
    is_hopeless = 0 < unborn and unborn + deaths >= MAX_FAILED_IN_A_ROW
    stalled_s = sum(STALLS_S[answer] for key, answer in answers.items() if key[:2] == ("stall", GCS))
    silence = silence or stalled_s > GCS_STALLS_S or any(move.is_silent for move in world.moves)
    return Losses(
        deaths,
        may_lose_nodes,
        may_lose_objects,
        files=may_lose_files or not world.lineage or is_hopeless or (world.lineage_bytes > 0 and may_lose_objects),
        silence=silence,
        stored=world.inline_limit > 0,
        spilled=world.store_bytes > 0,
        preemptions=preemptions,
        memory=memory,
        room=may_lack_room,
        departures=any(move.leaves for move in world.moves),
        hopeless=is_hopeless,
        torn=may_lose_files,
        forgets_actors="maximum_gcs_destroyed_actor_cached_count" in world.bounds,
        forgets_tasks="task_events_max_num_task_in_gcs" in world.bounds,
        lag_s=_lag_s(answers),
        charges=charges,
    )


def _lag_s(answers: Mapping[Key, int]) -> float:
    """Seconds after which a cancellation has reached its task: what quiet faults have added to a moment, at most."""
    lag_s = MOMENT_S
    for key, answer in answers.items():
        if key[0] == "delay" and str(key[2]).startswith(("CancelTask", "connect")):
            lag_s += DELAYS_S[answer]
        elif key[0] == "stall":
            lag_s += STALLS_S[answer]
        elif key[0] == "switch":
            lag_s += SWITCHES_S[answer]
        elif key[0] in ("break", "slow_node"):
            return HEARD_S
    return min(lag_s, HEARD_S)


def crashed_by(answers: Iterable[Key]) -> list[str]:
    """Names of the processes that have crashed, at a step or at a message."""
    return [str(key[1]).partition(">")[0] for key in answers if key[0] in ("crash", "posthumous")]


def _may_end_a_node(key: Key, answer: int) -> bool:
    """Whether a fault may end a node or a process, or make it count as dead for processes that hear nothing of it."""
    kind = key[0]
    if kind == "posthumous":
        return POSTHUMOUS_S[answer] > PATIENCE_S and crashed_by([key]) == [GCS]
    if kind == "long_delay":
        return LONG_DELAYS_S[answer] > PATIENCE_S
    if kind == "long_stall":
        return LONG_STALLS_S[answer] > PATIENCE_S
    return kind in ("node_loss", "cut", "rift", "last_words")
