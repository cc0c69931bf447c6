"""Nodes that come and go while a program runs: new ones join, some are told to leave, some come back to their address.

A node that is told to leave without a deadline costs nobody anything, but if it has to go at a certain time, what runs there
then is lost (G21, G35). Others die, when they work or hold something. The head stays.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from minray.common.ids import return_id, task_of
from minray.protocol.gcs import IDLE_TERMINATION, PREEMPTION
from minray.raylet.placement_group_resource_manager import PREPARED
from minray.simulation import SimCluster
from minray.simulation.cluster import HEAD
from tests.simulation.leaving import ask_to_leave
from tests.spec.stage import Record

MOMENTS: dict[str, Callable[[Any], object]] = {
    "": lambda raylet: True,
    "works": lambda raylet: raylet._broker.entries,
    "holds": lambda raylet: raylet._departure._to_hand_over(),
    "item": lambda raylet: items_of(raylet) >= 1,
    "items": lambda raylet: items_of(raylet) >= 3,
    "prepares": lambda raylet: any(state == PREPARED for _, state in raylet.groups.bundles.states.items()),
    "hosts": lambda raylet: list(raylet.groups.bundles.all()),
    "several": lambda raylet: sum(1 for _ in raylet.store.table.primaries()) >= 2,
}
"""Word -> whether it is the moment for a node to leave or die: at once, when somebody has leased a worker there, when it
holds a value that somebody elsewhere owns, when it keeps some that a generator has yielded there, when bundles are put aside
there, or are there, or when it keeps two values of any kind."""
PATIENCE_S = 10.0
LOOK_EVERY_S = 0.01
OPERATOR = "operator"
"""The name of the driver that asks nodes to leave."""


def items_of(raylet: Any) -> int:
    """How many objects this node has to keep that are not the first of their tasks."""
    return sum(entry.object_id >= return_id(task_of(entry.object_id), 2) for entry in raylet.store.table.primaries())


class Move(Record, frozen=True):
    """Of one node."""

    node: int
    """Its number. One that joins is there already, and has died or left; or it is new. The head is 0, which stays; if that
    dies, it is the first of the others for which it is the moment."""
    at_s: float = 0.0
    """Seconds after the drivers have begun."""
    leaves: bool = False
    """Whether it is told to leave; otherwise it joins."""
    when: str = ""
    """One of ``MOMENTS``: for that it waits then, if it leaves or dies, but no longer than ``PATIENCE_S``."""
    remaining_s: float = 0.0
    """When it must have left; 0: when nobody needs it any more."""
    if_idle: bool = False
    """Whether it is to leave only if nobody uses it at that moment."""
    dies: bool = False
    """Whether its raylet is killed, and everything there with it."""
    is_silent: bool = False
    """Whether nobody is told that it dies: it is lost like a machine without power."""

    def name(self) -> str:
        return f"n{self.node}"

    def ends_work(self) -> bool:
        """Whether what runs there may be lost with it, at no cost."""
        return self.leaves and self.remaining_s > 0 and not self.if_idle


class Traffic:
    """All moves of one run."""

    def __init__(self, cluster: SimCluster, nodes: Sequence[dict[str, Any]], moves: Sequence[Move]) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._moves = sorted((move for move in moves if move.node > 0 or move.dies), key=lambda move: move.at_s)
        self._to_come = sum(not move.leaves for move in self._moves)
        """Those that are asked nobody."""
        self._operator: Any = None

    def begin(self) -> None:
        for move in self._moves:
            if move.dies:
                self._call_later(move.at_s, self._maybe_kill, move, round(PATIENCE_S / LOOK_EVERY_S))
            elif not move.leaves:
                self._call_later(move.at_s, self._join, move)
        if any(move.leaves for move in self._moves):
            self._operator = self._cluster.start_driver(self._send_away, OPERATOR)

    def is_over(self) -> bool:
        """Whether all that were to join or die have done so, and all that are to leave know it, or nobody can be asked."""
        return self._to_come == 0 and (self._operator is None or self._operator.done())

    def end(self) -> None:
        if self._operator is not None and self._operator.done():
            self._operator.exception()  # with which it may have ended; then they stay

    def stayed(self) -> list[str]:
        """Nodes that were to leave, and have not although nobody needs them any more."""
        alive = self._cluster.alive()
        raylets = [(name, raylet) for name, raylet in self._cluster.raylets.items() if f"raylet/{name}" in alive]
        return [f"L1: node {name} was to leave, and stays" for name, raylet in raylets if raylet._broker.leaving is not None]

    def _call_later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        self._cluster.world.loop.world.call_later(delay_s, callback, *args)

    def _maybe_kill(self, move: Move, looks: int) -> None:
        """Once it is the moment, or after so many looks."""
        alive = self._cluster.alive()
        names = [move.name()] if move.node else [name for name in self._cluster.raylets if name != HEAD]
        there = [name for name in names if f"raylet/{name}" in alive]
        due = [name for name in there if looks == 0 or MOMENTS[move.when](self._cluster.raylets[name])]
        if there and not due:
            self._call_later(LOOK_EVERY_S, self._maybe_kill, move, looks - 1)
            return
        self._to_come -= 1
        if due and move.is_silent:
            self._cluster.world.lose_node(due[0])
        elif due:
            self._cluster.kill(f"raylet/{due[0]}")

    def _join(self, move: Move) -> None:
        self._to_come -= 1
        name = move.name()
        if f"raylet/{name}" not in self._cluster.alive():
            self._cluster.add_node(name, **self._nodes[move.node % len(self._nodes)])

    def _send_away(self) -> None:
        """The operator's program."""
        begun = time.monotonic()
        for move in self._moves:
            if move.leaves:
                time.sleep(max(0.0, begun + move.at_s - time.monotonic()))
                if self._waits_for(move):
                    reason = IDLE_TERMINATION if move.if_idle else PREEMPTION
                    ask_to_leave(move.name(), reason, move.remaining_s)

    def _waits_for(self, move: Move) -> bool:
        """Until it is the moment, or too late; False: there is no such node."""
        until = time.monotonic() + PATIENCE_S
        while (raylet := self._cluster.raylets.get(move.name())) is not None and time.monotonic() < until:
            if MOMENTS[move.when](raylet):
                break
            time.sleep(LOOK_EVERY_S)
        return raylet is not None
