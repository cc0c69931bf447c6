"""Needs of detached actors when all drivers have ended: exactly this may be left of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from types import MappingProxyType
from typing import Any, NamedTuple


class Needs(NamedTuple):
    """Resources and rows that living detached actors have in a cluster at rest."""

    rows: Mapping[bytes, Any] = MappingProxyType({})
    """Rows of the gcs, by actor."""
    constructors: Set[bytes] = frozenset()
    """Calls that their makers keep, because they may have to be made again,"""
    objects: Set[bytes] = frozenset()
    """and the arguments of these."""

    def leases_on(self, node_id: bytes) -> set[bytes]:
        return {row.lease_id for row in self.rows.values() if row.raylet is not None and row.raylet.node_id == node_id}


NOTHING = Needs()


def needs_of_detached(rows: Mapping[bytes, Any], cores: Sequence[Any]) -> Needs:
    """``rows``: of those that live."""
    calls = [
        each.task
        for core in cores
        for actor_id, each in core.submission.actors.creator._creations.items()
        if actor_id in rows
    ]
    return Needs(rows, {call.task_id for call in calls}, {object_id for call in calls for object_id in call.held_ids()})
