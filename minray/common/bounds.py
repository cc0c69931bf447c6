"""Bounds on memory and traffic that no ordinary program reaches; the first part of ``SystemConfig``.

Ray: src/ray/common/ray_config_def.h

Each part reads its bounds once, when it is made. Campaigns of the simulation draw them small, so that programs of a few
tasks meet the code behind them. ``tests/tidy/bounds.py`` lists the bounds that are constants, each with the reason.
"""

from __future__ import annotations

import msgspec


class Bounds(msgspec.Struct, frozen=True):
    """Bounds with their units. The entries that Ray has too have Ray's names."""

    maximum_gcs_destroyed_actor_cached_count: int = 1000
    """Number of dead actors that the gcs keeps with all their data, for late callers and the state API (Ray: 100,000)."""
    maximum_gcs_finished_job_cached_count: int = 1000
    """Number of finished jobs that the gcs keeps for the state API."""
    maximum_gcs_removed_placement_group_cached_count: int = 1000
    """Number of removed placement groups that the gcs keeps for late questions and the state API."""
    publisher_max_removals: int = 10_000
    """Number of removed keys that a channel of the gcs remembers; a subscriber that missed older ones gets a snapshot."""
    publisher_max_reply_bytes: int = 8 * 1024 * 1024
    """Most bytes of entries in one answer to a subscriber; more go into several answers, each with at least one entry."""
    generator_max_reports_in_flight: int = 64
    """Most items that a streaming generator reports ahead of its owner's answers; then it waits."""
    max_items_per_batch: int = 10_000
    """Most items of a batched notification, such as freed objects; ten thousand tickets of borrowers are about a MB."""
    max_questions_per_message: int = 1000
    """Most values about which a process asks their owner in one message."""
    max_references_per_answer: int = 250_000
    """Most references that the results of one call, or one item of a generator, may hold. They travel inside one record,
    which may take 64 MiB; 450,000 references have exceeded that."""
    max_borrower_tickets: int = 100
    """Number of tickets for one object at which a borrower gives the older ones back: one is enough to hold the object."""
    max_known_placement_groups: int = 1000
    """Number of placement groups whose bundles a process remembers; it asks the gcs again about others."""
    object_manager_max_bytes_in_flight: int = 2 << 30
    """Most bytes of objects that a node sends at a time (G88)."""
    object_manager_chunks_at_once: int = 4
    """Most chunks of one object for which a node has asked others, and which have not arrived."""
    drain_objects_at_once: int = 8
    """Most objects that a leaving node hands over at a time."""
    spill_checksum_bytes: int = 1 << 20
    """Bytes of a spilled object that have a checksum of their own, so that a part can be read and trusted alone."""


BOUNDS = Bounds()
"""The default bounds."""
