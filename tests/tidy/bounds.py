"""Bounds on memory and traffic that are constants and no settings, each with its reason.

A bound that no program of a campaign can reach is code that no campaign runs. So bounds are entries of ``SystemConfig``
(``minray/common/bounds.py``), which campaigns draw small (``tests/spec/knobs.py``). ``unlisted`` finds the others.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from tests.tidy import rules

WORDS = "MAX|MOST|[A-Z_]*(?:LIMIT|IN_FLIGHT|AT_ONCE|KEPT|CAPACITY)"
NAME = re.compile(rf"^_?(?:{WORDS})(?:_[A-Z_]*)?(?: *: *[^=]+)? = (?!\")", re.M)
"""The head of a line that gives a module a constant, not a string, whose name is that of a bound."""
ROOMS = (
    "simulation", "in_process", "testing", "util", "in_rays_place", "cli", "platform", "node", "dashboard", "remote_client",
    "laboratory",
)  # fmt: skip
ELSEWHERE = tuple(f"minray/{room}/" for room in ROOMS)
"""Folders without protocol: the other sides of the seam, and what uses minray's API. A simulation has no real side,
and tests of real processes reach these bounds."""

EARLY = "if it is forgotten too early, a late message about it counts as new (G112); only age makes forgetting safe"
READ = "bounds text, or a list, that people read; no other code depends on it"
RECORD = "follows from the largest record of the transports, or from a type"
CONSTANTS: Mapping[str, str] = {
    "minray/gcs/worker_manager.py MAX_WORKER_DEATHS": EARLY,
    "minray/raylet/ended_leases.py MAX_KEPT": EARLY,
    "minray/raylet/refusals.py MAX_DEAD_OWNERS": EARLY,
    "minray/common/tombstones.py MAX_TOMBSTONES": EARLY,
    "minray/core_worker/execution/task_receiver.py MAX_PAST_LEASES": EARLY,
    "minray/common/config.py TASK_RPC_INLINED_BYTES_LIMIT": RECORD,
    "minray/common/config.py MAX_DIRECT_CALL_OBJECT_SIZE": "the default of the setting of that name",
    "minray/protocol/state.py MOST_TASKS": RECORD,
    "minray/protocol/object_store.py MOST_ENTRIES": RECORD,
    "minray/api/task_options.py MOST_RETURNS": RECORD,
    "minray/api/html.py MOST_ROWS": READ,
    "minray/api/html.py MOST_LETTERS": READ,
    "minray/api/html.py MOST_UNBROKEN": READ,
    "minray/common/progress_bars.py MOST_BARS_OF_CELL": READ,
    "minray/common/progress_bars.py MOST_IDLE_PLACES": "bounds what one process draws on its own screen",
    "minray/common/resources.py MOST_INTEGER": RECORD,
    "minray/rpc/request_meter.py MOST_METHODS": "all services understand fewer methods; it bounds what peers make up",
    "minray/common/bundles.py BUNDLE_CAPACITY": "how many tasks and actors a bundle counts; not memory",
    "minray/api/actor_options.py MAX_ASYNC_CONCURRENCY": "Ray's default of an option of actors",
    "minray/object_manager/chunks.py MOST_CHUNKS": "a size of chunks, which object_manager_default_chunk_size decides",
    "minray/object_manager/chunks.py MOST_CHUNK_BYTES": "a size of chunks, which object_manager_default_chunk_size decides",
    "minray/core_worker/execution/actor_task_receiver.py MAX_HEADERS": "a cache; what is dropped is decoded again",
    "minray/core_worker/execution/task_receiver.py MAX_HEADERS": "a cache; what is dropped is decoded again",
    "minray/raylet/lease_machines.py MAX_PRESTART": "a default of num_prestart_workers",
    "minray/core_worker/submission/pipelining.py TINY_AT_ONCE": "how many tasks one message brings; more follow at once",
    "minray/raylet/start_failures.py MAX_FAILED_IN_A_ROW": "a number of failures, small already",
    "minray/raylet/resource_reporter.py MAX_PENDING_SHAPES": READ,
    "minray/raylet/log_monitor.py MAX_LINES_PER_BATCH": READ,
    "minray/raylet/log_monitor.py MAX_CHARACTERS_PER_BATCH": READ,
    "minray/raylet/log_monitor.py MAX_UNACKNOWLEDGED_BATCHES": READ,
    "minray/raylet/log_monitor.py MAX_WARNINGS": READ,
    "minray/raylet/log_monitor.py MAX_WAITING_LINES": READ,
    "minray/common/log_files.py MOST_CHARACTERS_OF_A_NAME": "a limit of file systems",
    "minray/protocol/logs.py MOST_LOG_FILES": READ,
    "minray/raylet/log_service.py MOST_SCANNED_BYTES": READ,
    "minray/raylet/log_service.py MOST_ATTEMPTS": "a number of attempts, small already",
    "minray/policies/guards.py MOST_REPORTS": READ,
    "minray/observability/log_reader.py MOST_DEAD_NAMED": READ,
    "minray/observability/log_reader.py MOST_NAMED": READ,
    "minray/observability/log_reader.py MOST_SEARCHED": READ,
    "minray/raylet/explanations.py MAX_HOLDERS": READ,
    "minray/api/unserializable.py MOST_NAMED": READ,
    "minray/common/peer_log.py MOST_PEERS": READ,
    "minray/common/shown.py MOST_SHOWN": READ,
    "minray/core_worker/introspection/explainer.py MAX_HOPS": READ,
    "minray/core_worker/introspection/metric_registry.py MOST_SERIES": READ,
    "minray/core_worker/introspection/actor_explainer.py MAX_NAMED": READ,
    "minray/core_worker/introspection/process_metrics.py MOST_REPORTED": READ,
    "minray/core_worker/records/ended_tasks.py MOST_NAMES": READ,
    "minray/observability/system_metrics.py MOST_JOBS": READ,
    "minray/observability/system_metrics.py MOST_CLASSES": READ,
    "minray/raylet/kept_metrics.py MOST_SERIES": READ,
    "minray/raylet/kept_metrics.py MOST_BYTES": RECORD,
    "minray/raylet/worker_deaths.py MOST_NAMES": READ,
    "minray/core_worker/introspection/task_account.py MAX_ERROR_CHARACTERS": READ,
    "minray/core_worker/introspection/stacks.py MOST_COROUTINES": READ,
    "minray/core_worker/ownership/call_sites.py MOST_FRAMES": READ,
    "minray/core_worker/user_threads/object_reader.py MOST_NAMED": READ,
    "minray/core_worker/submission/task_manager.py MOST_RECENT": READ,
    "minray/core_worker/execution/actor_instance.py MOST_WORDS": READ,
    "minray/core_worker/execution/task_profile.py MOST_EVENTS": READ,
    "minray/core_worker/execution/task_profile.py MOST_LABELS": "a cache; what is dropped is made again",
    "minray/core_worker/introspection/task_event_buffer.py MOST_REPORTED": READ,
    "minray/core_worker/execution/job_environment.py MAX_TEXT_CHARACTERS": READ,
    "minray/errors/packed_exception.py KEPT_TEXT_CHARACTERS": READ,
}
"""File and name of a bound -> why it is a constant."""


def bounds_of(root: Path) -> list[str]:
    """Files and names of all bounds that are constants. Times, whose names end in ``_S``, are none."""
    found = []
    for source in rules.sources(root):
        if source.path.startswith("minray/") and not source.path.startswith(ELSEWHERE):
            heads = (match.group().partition(" ")[0].rstrip(":") for match in NAME.finditer(source.text))
            found += [f"{source.path} {name}" for name in heads if not name.endswith("_S")]
    return found
