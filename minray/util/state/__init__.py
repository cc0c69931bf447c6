"""The state of a cluster as a program sees it: its actors, tasks, objects, placement groups, nodes, workers and jobs.

Ray: python/ray/util/state/

The functions ask all living processes, and return the state at this moment. The gcs keeps tasks of ended processes. Ray's
functions for runtime environments and cluster events are left out.
"""

from minray.util.state.api import (
    get_actor,
    get_job,
    get_node,
    get_objects,
    get_placement_group,
    get_task,
    get_worker,
    list_actors,
    list_jobs,
    list_nodes,
    list_objects,
    list_placement_groups,
    list_tasks,
    list_workers,
    summarize_actors,
    summarize_objects,
    summarize_tasks,
)
from minray.util.state.logs import get_log, list_logs

__all__ = [
    "get_actor",
    "get_job",
    "get_log",
    "get_node",
    "get_objects",
    "get_placement_group",
    "get_task",
    "get_worker",
    "list_actors",
    "list_jobs",
    "list_logs",
    "list_nodes",
    "list_objects",
    "list_placement_groups",
    "list_tasks",
    "list_workers",
    "summarize_actors",
    "summarize_objects",
    "summarize_tasks",
]
