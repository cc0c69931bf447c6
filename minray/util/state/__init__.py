"""The state of a cluster as a program sees it: its actors, tasks, objects, placement groups, nodes, workers and jobs.

Ray: python/ray/util/state/

No process collects this data in advance: the functions ask all processes, and return the state at this moment. Left out:
Ray's functions for logs, runtime environments and cluster events.
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

__all__ = [
    "get_actor",
    "get_job",
    "get_node",
    "get_objects",
    "get_placement_group",
    "get_task",
    "get_worker",
    "list_actors",
    "list_jobs",
    "list_nodes",
    "list_objects",
    "list_placement_groups",
    "list_tasks",
    "list_workers",
    "summarize_actors",
    "summarize_objects",
    "summarize_tasks",
]
