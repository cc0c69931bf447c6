"""The tables of the state API, as programs and the inquirer ask for them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from minray.util.state import (
    list_actors,
    list_jobs,
    list_nodes,
    list_objects,
    list_placement_groups,
    list_tasks,
    list_workers,
)

TABLES: Mapping[str, Callable[..., Sequence[Any]]] = {
    "actors": list_actors,
    "jobs": list_jobs,
    "nodes": list_nodes,
    "objects": list_objects,
    "placement groups": list_placement_groups,
    "tasks": list_tasks,
    "workers": list_workers,
}
"""Table -> the function that lists it."""
MANY = 10_000
"""Most rows that are asked for."""


def rows_of(table: str) -> list[dict[str, Any]]:
    """Return all rows of a table as dicts; raise RayStateApiException if a process does not answer."""
    return [row.asdict() for row in TABLES[table](limit=MANY)]
