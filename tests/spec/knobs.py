"""Knobs: bounds on memory and traffic that some worlds draw so small that programs of a few tasks reach them.

They are entries of ``SystemConfig``. A program must not notice them, except that it is slower.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

import msgspec

from tests.spec.scenario import World

SMALL: Mapping[str, tuple[int, ...]] = {
    "maximum_gcs_destroyed_actor_cached_count": (1, 3),
    "maximum_gcs_finished_job_cached_count": (1, 2),
    "maximum_gcs_removed_placement_group_cached_count": (1, 2),
    "publisher_max_removals": (0, 1, 3),
    "publisher_max_reply_bytes": (1, 300),
    "generator_max_reports_in_flight": (1, 2),
    "max_items_per_batch": (1, 2),
    "max_questions_per_message": (1, 2),
    "max_borrower_tickets": (1, 2),
    "max_known_placement_groups": (0, 1),
    "object_manager_max_bytes_in_flight": (1, 200),
    "object_manager_chunks_at_once": (1, 2),
    "object_manager_default_chunk_size": (16, 64),
    "drain_objects_at_once": (1, 2),
    "spill_checksum_bytes": (64, 128),
    "max_tasks_in_flight_per_worker": (1, 2),
    "max_pending_lease_requests_per_scheduling_category": (1, 2),
    "max_fused_object_count": (1, 2),
    "object_manager_lanes": (0, 1),
    "task_events_max_num_task_in_gcs": (1, 3),
}
"""Entry -> small values of it."""


FEW_REFERENCES: Mapping[str, int] = {"max_references_per_answer": 50}
"""A bound that a program notices, if it tells of a ``Bouquet``."""


def with_few_references(world: World, random: Random) -> World:
    """In most of the worlds, let an answer hold fewer references than a large ``Bouquet`` has."""
    bounds = FEW_REFERENCES if random.random() < 0.7 else {}
    return msgspec.structs.replace(world, bounds=world.bounds | bounds)


def with_small_bounds(world: World, random: Random) -> World:
    """In a sixth of the worlds, make some bounds small; in a third of these, all of them."""
    if random.random() >= 1 / 6:
        return world
    names = random.sample(list(SMALL), random.choice((1, 3, len(SMALL))))
    return msgspec.structs.replace(world, bounds={name: random.choice(SMALL[name]) for name in names})
