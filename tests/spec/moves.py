"""Nodes that come and go while a program runs: some join, some are told to leave, some die, some come back to their address.

A node that is told to leave without a deadline costs no retries. If it has a deadline, the tasks and actors that run there
then are lost (G21, G35). A node may also be killed while it works or holds values. The head is never told to leave.
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
from tests.spec.stage import ZONE, Record

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
"""Word -> whether a node leaves or dies now.

  * empty: at once
  * works: a worker of the node is leased
  * holds: the node holds a value that a process elsewhere owns
  * item, items: the node keeps one or three items that a generator has yielded there
  * prepares: the node has prepared a bundle of a placement group, and not committed it
  * hosts: the node has any bundle
  * several: the node keeps primary copies of two values of any kind
"""
PATIENCE_S = 10.0
"""Virtual seconds that a move waits at most for its moment."""
LOOK_EVERY_S = 0.01
"""Virtual seconds between two looks."""
OPERATOR = "operator"
"""The name of the driver that asks nodes to leave."""


def items_of(raylet: Any) -> int:
    """Number of primary copies on this node that are not the first object of their task."""
    return sum(entry.object_id >= return_id(task_of(entry.object_id), 2) for entry in raylet.store.table.primaries())


class Move(Record, frozen=True):
    """One change of one node: it joins, leaves or dies."""

    node: int
    """Number of the node. A node that joins is new, or an old one that has died or left. The head, 0, never moves: a death
    of node 0 strikes the first other node for which it is the moment."""
    at_s: float = 0.0
    """Seconds after the drivers have begun."""
    leaves: bool = False
    """Whether it is told to leave; if it neither leaves nor dies, it joins."""
    when: str = ""
    """The one of ``MOMENTS`` that a leave or a death waits for, at most ``PATIENCE_S``."""
    remaining_s: float = 0.0
    """Seconds until the deadline of a leave; 0: no deadline, it leaves when no process needs it any more."""
    if_idle: bool = False
    """Whether it leaves only if no process uses it at that moment."""
    dies: bool = False
    """Whether its raylet is killed, and all processes of the node with it."""
    is_silent: bool = False
    """Whether its death breaks no connection: the node is lost like a machine without power."""
    zone: str = ""
    """Value of the label ``ZONE`` of a node that joins; empty: as the node in whose place it joins."""

    def name(self) -> str:
        return f"n{self.node}"

    def ends_work(self) -> bool:
        """Whether tasks that run there may be lost with the node, at no cost to their retries."""
        return self.leaves and self.remaining_s > 0 and not self.if_idle


class Traffic:
    """All moves of one run."""

    def __init__(self, cluster: SimCluster, nodes: Sequence[dict[str, Any]], moves: Sequence[Move]) -> None:
        self._cluster = cluster
        self._nodes = nodes
        self._moves = sorted((move for move in moves if move.node > 0 or move.dies), key=lambda move: move.at_s)
        self._to_come = sum(not move.leaves for move in self._moves)
        """Number of joins and deaths that are still to come. The operator asks for leaves instead."""
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
        """Whether all joins and deaths have happened, and the operator has asked every leaving node, or has ended."""
        return self._to_come == 0 and (self._operator is None or self._operator.done())

    def end(self) -> None:
        if self._operator is not None and self._operator.done():
            self._operator.exception()  # read, so that it is not logged; nodes that it has not asked stay

    def stayed(self) -> list[str]:
        """Nodes that were told to leave, and have not left although no process needs them any more."""
        alive = self._cluster.alive()
        raylets = [(name, raylet) for name, raylet in self._cluster.raylets.items() if f"raylet/{name}" in alive]
        return [f"L1: node {name} was to leave, and stays" for name, raylet in raylets if raylet._broker.leaving is not None]

    def _call_later(self, delay_s: float, callback: Callable[..., None], *args: Any) -> None:
        self._cluster.world.loop.world.call_later(delay_s, callback, *args)

    def _maybe_kill(self, move: Move, looks: int) -> None:
        """Kill the node if it is the moment or no looks are left; otherwise look again later."""
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
            labels = {"labels": {ZONE: move.zone}} if move.zone else {}
            self._cluster.add_node(name, **(self._nodes[move.node % len(self._nodes)] | labels))

    def _send_away(self) -> None:
        """Ask nodes to leave, one after the other: the operator's program."""
        begun = time.monotonic()
        for move in self._moves:
            if move.leaves:
                time.sleep(max(0.0, begun + move.at_s - time.monotonic()))
                if self._waits_for(move):
                    reason = IDLE_TERMINATION if move.if_idle else PREEMPTION
                    ask_to_leave(move.name(), reason, move.remaining_s)

    def _waits_for(self, move: Move) -> bool:
        """Wait until it is the moment, or ``PATIENCE_S`` are over. False: there is no such node."""
        until = time.monotonic() + PATIENCE_S
        while (raylet := self._cluster.raylets.get(move.name())) is not None and time.monotonic() < until:
            if MOMENTS[move.when](raylet):
                break
            time.sleep(LOOK_EVERY_S)
        return raylet is not None
