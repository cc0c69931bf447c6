"""The gcs lets wait only what lacks something: rules of ``Progress``, which looks between two instants."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from minray.common.ids import short
from minray.common.resources import fits
from minray.gcs.placement_group_manager import CREATED, PENDING, PREPARED, REMOVED, RESCHEDULING
from minray.protocol.actor import DEAD


def groups_that_fit(gcs: Any, now: float) -> Iterator[str]:
    """A placement group waits only if its bundles fit nowhere, or for the pause after a refusal."""
    scheduler, manager = gcs._group_scheduler, gcs._groups
    if not scheduler._generation:
        return
    waiting = [group for group in manager.all() if group.state in (PENDING, RESCHEDULING)]
    waiting = [group for group in waiting if group.group_id not in scheduler._attempts]
    free = scheduler._free() if waiting else {}
    for group in waiting:
        retry = scheduler._retries.get(group.group_id)
        if (retry is None or now >= retry.at) and scheduler._choose_places(group, free) is not None:
            yield f"lets the placement group {short(group.group_id)} wait, which fits"
        elif retry is not None and now < retry.at and scheduler._timer is None:
            yield f"lets the placement group {short(group.group_id)} wait, and will not try it again"
    for group in manager.all():
        if group.state == PREPARED and group.group_id not in scheduler._attempts:
            yield f"does not open the bundles of placement group {short(group.group_id)}, which are reserved"


def promises_of_attempts(gcs: Any, _now: float) -> Iterator[str]:
    """Resources are promised only to attempts that are under way, and to bundles that are reserved."""
    scheduler, manager = gcs._group_scheduler, gcs._groups
    for promised in scheduler._promised.values():
        for group_id in promised:
            group = manager.get(group_id)
            is_waiting = group is not None and group.state == PENDING
            if is_waiting and group_id not in scheduler._attempts:  # others may have lost bundles since
                yield f"counts resources as promised to placement group {short(group_id)}, which has no attempt"


def waiters_for_groups(gcs: Any, _now: float) -> Iterator[str]:
    """No request waits for a placement group that is ready or removed."""
    for group_id, waiters in gcs._group_scheduler._waiters.items():
        group = gcs._groups.get(group_id)
        is_decided = group is None or group.state in (CREATED, REMOVED)
        if is_decided and group_id not in gcs._group_scheduler._attempts and any(not one.done() for one in waiters):
            yield f"lets requests wait for placement group {short(group_id)}, which is {group and group.state}"


def actors_without_nodes(gcs: Any, _now: float) -> Iterator[str]:
    """An actor waits for a node only if no node can ever hold it; somebody creates each actor that is to live."""
    scheduler, nodes = gcs._actors._scheduler, gcs._nodes.open_nodes()
    rows = {row.info.actor_id: row for row in gcs._actors.rows()}
    for actor_id in scheduler._without_node:
        row = rows.get(actor_id)
        if row is None or row.info.state == DEAD or row.creation is None:
            yield f"looks for a node for the actor {short(actor_id)}, which is over"
        elif any(fits(dict(row.creation.placement), node.resources_total) for node in nodes):
            yield f"holds the actor {short(actor_id)} for impossible, and a node could hold it"


def polls(gcs: Any, _now: float) -> Iterator[str]:
    """A poll waits only if its channel has no news."""
    for channel, topic in gcs._publisher._topics.items():
        if topic.changed_at and next(reversed(topic.changed_at.values())) > topic.version:
            yield f"has news on channel {channel} of which its version does not tell"


RULES: tuple[Callable[[Any, float], Iterator[str]], ...] = (
    groups_that_fit, promises_of_attempts, waiters_for_groups, actors_without_nodes, polls,
)  # fmt: skip
