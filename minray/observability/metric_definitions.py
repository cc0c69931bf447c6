"""Definitions of the system metrics: Ray's names, with kind, labels, unit and exact meaning.

Ray: src/ray/raylet/metrics.h, src/ray/gcs/metrics.h, src/ray/core_worker/metrics.h, src/ray/object_manager/metrics.h,
python/ray/dashboard/modules/reporter/reporter_agent.py

A metric is here if minray knows its value exactly. ``docs/metrics.md`` shows this table, and a test compares both. A process
that reports a value gives it the name without ``ray_``. Ray calls some numbers that only grow gauges, though their names end
with ``_total``; here they are counters. A number that only grows under another name stays a gauge, as in Ray, because a
counter's name must end with ``_total``.

These metrics of Ray are left out, since nothing in minray measures them: single operations of event loops
(``ray_operation_*``), latencies of health checks and of the gcs's storage, percentiles of placement times. Throughput of
spilling, TPUs and swap are left out, too.
"""

from __future__ import annotations

from typing import NamedTuple

from minray.protocol.state import COUNTER, GAUGE, HISTOGRAM

PREFIX = "ray_"
NODE, COMPONENT, RAYLET, GCS, WORKER = "node", "component", "raylet", "gcs", "worker"
"""The part of the cluster that a metric is about; it decides which labels say where a value comes from."""
WHERE = {
    NODE: ("ip", "NodeAddress", "NodeId", "IsHeadNode", "RayNodeType"),
    COMPONENT: ("Component", "ip", "NodeAddress", "NodeId"),
    RAYLET: ("Component", "NodeAddress", "NodeId"),
    GCS: ("Component", "NodeAddress"),
    WORKER: ("Component", "JobId", "NodeAddress", "WorkerId"),
}
"""Labels that say where a value comes from. All metrics also have ``SessionName`` and ``Version``."""


ENDINGS = BUCKET, SUM, COUNT = "_bucket", "_sum", "_count"
"""Endings of the names of a histogram's series."""


class MetricMeaning(NamedTuple):
    """Defines one system metric."""

    about: str
    """NODE, COMPONENT, RAYLET, GCS or WORKER."""
    meaning: str
    unit: str = ""
    labels: tuple[str, ...] = ()
    """Labels beside those of ``WHERE``."""
    kind: str = GAUGE
    values: str = ""
    """Possible values of the label that divides the metric."""


OF_GPU = ("GpuIndex", "GpuDeviceName")
"""Labels of a value of one GPU."""
EACH_GPU = "A value for each GPU"
PURPOSES = "`Get`, `Wait`, `TaskArgs`"

DEFINITIONS: dict[str, MetricMeaning] = {
    # --- tasks, actors, jobs, placement groups
    "tasks": MetricMeaning(
        WORKER,
        "Tasks in a state. Their owner counts them; where they run, the executor counts them and subtracts them from"
        " SUBMITTED_TO_WORKER, so that a sum by state is right. FINISHED and FAILED are all that have ended so far",
        "tasks",
        ("State", "Name", "Source", "IsRetry"),
        values="Ray's names of the states; `Source`: `owner`, `executor`; `IsRetry`: `0`, `1`",
    ),
    "actors": MetricMeaning(
        GCS,
        "Actors in a state. `gcs`: all that the gcs knows, by class. `executor`: living ones by what they do, with the"
        " labels of their worker",
        "actors",
        ("State", "Name", "Source", "JobId"),
        values="Ray's names of the states; of `executor`: `ALIVE_IDLE`, `ALIVE_RUNNING_TASKS`",
    ),
    "gcs_actors_count": MetricMeaning(
        GCS,
        "Actors that the gcs knows. Dead ones are known until they are forgotten",
        "actors",
        ("State",),
        values="`Created`, `Destroyed`, `Unresolved`, `Pending`",
    ),
    "placement_groups": MetricMeaning(
        GCS,
        "Placement groups that the gcs knows. Removed ones are known until they are forgotten",
        "groups",
        ("State",),
        values="`PENDING`, `PREPARED`, `CREATED`, `RESCHEDULING`, `REMOVED`",
    ),
    "gcs_placement_group_count": MetricMeaning(
        GCS,
        "Placement groups that exist, and those of them that have no place yet. Infeasible ones count as pending",
        "groups",
        ("State",),
        values="`Registered`, `Pending`",
    ),
    "running_jobs": MetricMeaning(GCS, "Jobs whose driver has not ended", "jobs"),
    "job_duration_s": MetricMeaning(
        GCS, "Time from start to end of each of the last 100 finished jobs", "seconds", ("JobId",)
    ),
    "gcs_task_manager_task_events_stored": MetricMeaning(
        GCS, "Tasks of ended processes, and failed tasks, that the gcs keeps", "tasks"
    ),
    "gcs_task_manager_task_events_dropped": MetricMeaning(
        GCS, "Tasks that the gcs does not keep because there were too many", "tasks"
    ),
    "cluster_active_nodes": MetricMeaning(GCS, "Living nodes", "nodes", ("node_type",), values="`head`, `worker`"),
    "cluster_failed_nodes": MetricMeaning(
        GCS,
        "Known dead nodes that were lost, not asked to end or drained",
        "nodes",
        ("node_type",),
        values="`head`, `worker`",
    ),
    # --- logical resources
    "resources": MetricMeaning(
        RAYLET,
        "Logical resources of a node. For `object_store_memory`, the used part is what objects take",
        "units of the resource",
        ("Name", "State"),
        values="`State`: `USED`, `AVAILABLE`",
    ),
    # --- machines
    "node_cpu_utilization": MetricMeaning(
        NODE, "Use of all CPUs of the machine since the previous question, or over a quarter second", "percent"
    ),
    "node_cpu_count": MetricMeaning(NODE, "Logical CPUs of the machine", "CPUs"),
    "node_mem_used": MetricMeaning(
        NODE, "Memory in use of the machine, or of the control group that limits the node, whichever is fuller", "bytes"
    ),
    "node_mem_available": MetricMeaning(NODE, "The rest of that memory", "bytes"),
    "node_mem_total": MetricMeaning(NODE, "All of that memory", "bytes"),
    "node_mem_shared_bytes": MetricMeaning(NODE, "Shared memory of the machine in use, such as the object stores", "bytes"),
    "node_mem_used_host": MetricMeaning(NODE, "Memory in use of the whole machine", "bytes"),
    "node_mem_total_host": MetricMeaning(NODE, "Memory of the whole machine", "bytes"),
    "node_disk_usage": MetricMeaning(NODE, "Used part of the file system at `/`", "bytes"),
    "node_disk_free": MetricMeaning(NODE, "Free part of the file system at `/`", "bytes"),
    "node_disk_utilization_percentage": MetricMeaning(NODE, "Used part of the file system at `/`", "percent"),
    "node_disk_io_read": MetricMeaning(NODE, "Bytes read from all disks since the machine started", "bytes"),
    "node_disk_io_write": MetricMeaning(NODE, "Bytes written to all disks since the machine started", "bytes"),
    "node_disk_io_read_count": MetricMeaning(NODE, "Read operations since the machine started", "operations"),
    "node_disk_io_write_count": MetricMeaning(NODE, "Write operations since the machine started", "operations"),
    "node_disk_io_read_speed": MetricMeaning(NODE, "Speed of reading, measured like the use of CPUs", "bytes per second"),
    "node_disk_io_write_speed": MetricMeaning(NODE, "Speed of writing, measured like the use of CPUs", "bytes per second"),
    "node_disk_read_iops": MetricMeaning(NODE, "Read operations per second", "operations per second"),
    "node_disk_write_iops": MetricMeaning(NODE, "Write operations per second", "operations per second"),
    "node_network_sent": MetricMeaning(NODE, "Bytes sent on all interfaces but the loopback", "bytes"),
    "node_network_received": MetricMeaning(NODE, "Bytes received on all interfaces but the loopback", "bytes"),
    "node_network_send_speed": MetricMeaning(NODE, "Speed of sending, measured like the use of CPUs", "bytes per second"),
    "node_network_receive_speed": MetricMeaning(
        NODE, "Speed of receiving, measured like the use of CPUs", "bytes per second"
    ),
    "node_gpus_available": MetricMeaning(
        NODE, "1, for a GPU of the machine that NVIDIA's library finds", "GPUs", OF_GPU, values=EACH_GPU
    ),
    "node_gpus_utilization": MetricMeaning(
        NODE,
        "Share of the last moments in which the GPU worked; missing if the GPU does not tell",
        "percent",
        OF_GPU,
        values=EACH_GPU,
    ),
    "node_gram_used": MetricMeaning(NODE, "Memory of the GPU in use", "MiB", OF_GPU, values=EACH_GPU),
    "node_gram_available": MetricMeaning(NODE, "The rest of that memory", "MiB", OF_GPU, values=EACH_GPU),
    "node_gpu_power_milliwatts": MetricMeaning(
        NODE, "Power that the GPU draws", "milliwatts", OF_GPU, values=EACH_GPU
    ),
    "node_gpu_temperature_celsius": MetricMeaning(
        NODE, "Temperature of the GPU", "degrees Celsius", OF_GPU, values=EACH_GPU
    ),
    # --- processes
    "component_cpu_percentage": MetricMeaning(
        COMPONENT, "Use of CPUs by all processes of this name; 100 is one CPU", "percent"
    ),
    "component_rss_bytes": MetricMeaning(COMPONENT, "Resident memory of these processes, with what they share", "bytes"),
    "component_rss_mb": MetricMeaning(COMPONENT, "The same in megabytes (10^6 bytes)", "MB"),
    "component_shared_bytes": MetricMeaning(COMPONENT, "Part of it that they may share with others", "bytes"),
    "component_uss_bytes": MetricMeaning(COMPONENT, "Resident memory without the shared part", "bytes"),
    "component_uss_mb": MetricMeaning(COMPONENT, "The same in megabytes (10^6 bytes)", "MB"),
    "component_num_fds": MetricMeaning(COMPONENT, "Open file descriptors of these processes", "descriptors"),
    # --- scheduling
    "io_context_event_loop_lag_ms": MetricMeaning(
        RAYLET,
        "Time from asking the event loop of a raylet or of the gcs for a turn to that turn, when the metrics were asked for",
        "milliseconds",
        ("Name",),
        values="`raylet`, `gcs_server`",
    ),
    **{
        f"grpc_server_req_{name}_total": MetricMeaning(
            RAYLET,
            f"Requests to the gcs and to raylets{more}, over either transport",
            "requests",
            ("Method",),
            kind=COUNTER,
            values="`Method`: the name of the message, such as `RequestWorkerLease`",
        )
        for name, more in {
            "new": " that have arrived",
            "handling": " whose handling has begun, which is at once",
            "finished": " that were answered",
            "succeeded": " that were answered with a reply",
            "failed": " that were answered with an error",
        }.items()
    },
    "grpc_server_req_process_time_ms": MetricMeaning(
        RAYLET,
        "Time from the arrival of such a request to its answer, which may be waited for",
        "milliseconds",
        ("Method",),
        kind=HISTOGRAM,
        values="Buckets up to 0.1, 1, 10, 100, 1,000 and 10,000 ms",
    ),
    "scheduler_tasks": MetricMeaning(
        RAYLET,
        "Lease requests and leases of a node: no node chosen, waiting for large arguments, waiting for resources or a"
        " worker, with a worker",
        "leases",
        ("State",),
        values="`Received`, `Waiting`, `Dispatched`, `Executing`",
    ),
    "scheduler_unscheduleable_tasks": MetricMeaning(
        RAYLET,
        "Lease requests that wait: no node can hold them; for resources or their turn; for memory for their arguments; for a"
        " worker",
        "lease requests",
        ("Reason",),
        values="`Infeasible`, `WaitingForResources`, `WaitingForPlasmaMemory`, `WaitingForWorkers`",
    ),
    "scheduler_failed_worker_startup_total": MetricMeaning(
        RAYLET,
        "Failed starts of workers; starts that fail together count once",
        "starts",
        ("Reason",),
        kind=COUNTER,
        values="`RegistrationTimedOut`, `ProcessFailed`",
    ),
    "internal_num_spilled_tasks": MetricMeaning(
        RAYLET, "Lease requests that were sent on to another node so far", "requests"
    ),
    "internal_num_infeasible_scheduling_classes": MetricMeaning(
        RAYLET, "Different shapes of the lease requests that no node can hold", "shapes"
    ),
    "memory_manager_worker_eviction_total": MetricMeaning(
        RAYLET,
        "Workers killed because the node ran short of memory, by the task that they ran",
        "workers",
        ("Type", "Name"),
        kind=COUNTER,
        values="`MemoryManager.TaskEviction.Total`, `...ActorEviction...`, `...IdleWorkerEviction...`",
    ),
    "node_manager_unexpected_worker_failure_total": MetricMeaning(
        RAYLET,
        "Workers that ended although nobody asked them to, by the task whose output they wrote last",
        "workers",
        ("Type", "Name"),
        kind=COUNTER,
        values="The cause, such as `signal SIGSEGV` or `exit code 3`",
    ),
    # --- objects
    "object_store_memory": MetricMeaning(
        RAYLET,
        "Bytes of objects: in shared memory, in files on disk that are mapped like memory, on disk (also while in memory),"
        " and in the memory of drivers and workers, with their labels",
        "bytes",
        ("Location", "ObjectState"),
        values="`MMAP_SHM`, `MMAP_DISK`, `SPILLED`, `WORKER_HEAP`; `SEALED`, `UNSEALED`",
    ),
    "object_store_available_memory": MetricMeaning(RAYLET, "Free part of the object store", "bytes"),
    "object_store_used_memory": MetricMeaning(RAYLET, "Used part of the object store", "bytes"),
    "object_store_fallback_memory": MetricMeaning(
        RAYLET, "Store memory in files on disk, because the store is full", "bytes"
    ),
    "object_store_num_local_objects": MetricMeaning(RAYLET, "Copies of objects on a node, in memory or on disk", "objects"),
    "spill_manager_objects": MetricMeaning(
        RAYLET,
        "Copies that must stay and are not on disk; that are being written to disk; that are being read from there",
        "objects",
        ("State",),
        values="`Pinned`, `PendingSpill`, `PendingRestore`",
    ),
    "spill_manager_objects_bytes": MetricMeaning(
        RAYLET, "Bytes of these copies", "bytes", ("State",), values="`Pinned`, `PendingSpill`, `PendingRestore`"
    ),
    "spill_manager_request_total": MetricMeaning(
        RAYLET,
        "Objects written to disk, and read back, so far",
        "objects",
        labels=("Type",),
        kind=COUNTER,
        values="`Spilled`, `Restored`",
    ),
    "spill_manager_bytes_total": MetricMeaning(
        RAYLET,
        "Bytes of these objects; Ray has no such metric",
        "bytes",
        labels=("Type",),
        kind=COUNTER,
        values="`Spilled`, `Restored`",
    ),
    "object_manager_bytes": MetricMeaning(
        RAYLET,
        "Bytes sent to other nodes so far, and bytes of objects that have come from other nodes completely",
        "bytes",
        ("Type",),
        values="`PushedFromLocalPlasma`, `PushedFromLocalDisk`, `Received`",
    ),
    "object_manager_num_pull_requests": MetricMeaning(RAYLET, "Objects that are to come from other nodes", "objects"),
    "pull_manager_requested_bundles": MetricMeaning(
        RAYLET, "Requests that wait for objects of other nodes", "requests", ("Type",), values=PURPOSES
    ),
    "pull_manager_active_bundles": MetricMeaning(RAYLET, "Those of them whose objects may come", "requests"),
    "pull_manager_requests": MetricMeaning(
        RAYLET, "Objects that are to come: not begun, begun", "objects", ("Type",), values="`Queued`, `Active`"
    ),
    "pull_manager_usage_bytes": MetricMeaning(
        RAYLET, "Memory that arriving objects take", "bytes", ("Type",), values="`BeingPulled`"
    ),
    "push_manager_num_pushes_remaining": MetricMeaning(RAYLET, "Chunks that wait for their turn to be sent", "chunks"),
}
"""By name, without ``ray_``."""

OWN_DEFINITIONS: dict[str, MetricMeaning] = {
    "minray_silent_processes": MetricMeaning(
        GCS, "Processes that did not answer in time, whose values are missing", "processes"
    ),
    "minray_values_left_out": MetricMeaning(GCS, "Values of programs that are missing because there are too many", "values"),
}
"""Metrics about this collection itself, by their full name."""


def full_names() -> set[str]:
    """Return the names of all system metrics as Prometheus sees them: those of series, too, where there are several."""
    histograms = [name for name, definition in DEFINITIONS.items() if definition.kind == HISTOGRAM]
    series = {f"{PREFIX}{name}{ending}" for name in histograms for ending in ENDINGS}
    return {PREFIX + name for name in DEFINITIONS} | OWN_DEFINITIONS.keys() | series
