"""Constants of the system in one place, with their units, and what processes are told when they start.

Ray: src/ray/common/ray_config_def.h

Names are Ray's where Ray has the constant. ``init(_system_config={...})`` overrides any of them for a whole cluster;
an unknown name, a wrong type or a senseless number is an error. A process never reads environment variables below the
front porch: what it must know is in the config record that it was started with.
"""

from __future__ import annotations

from typing import Any

import msgspec

MAX_DIRECT_CALL_OBJECT_SIZE = 100 * 1024
"""Arguments, results and puts of at most this many bytes travel inside messages; larger ones are in the store (G76, C9)."""
TASK_RPC_INLINED_BYTES_LIMIT = 10 * 1024 * 1024
"""All inlined arguments of one task together, and all its inlined results (G76)."""
MOST_REFERENCES = 250_000
"""So many of them the results of one call, or one item of a generator, may hold: they travel inside messages."""

GENERATOR_REPORTS_IN_FLIGHT = 64
"""A generator that is so many items ahead of its owner's answers waits."""

FUNCTION_SIZE_ERROR_THRESHOLD = 48 * 1024 * 1024
"""A pickled function must be smaller (Ray: 95 MiB; here it travels inside one record)."""


class SystemConfig(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Everything tunable. Times in seconds unless the name says otherwise."""

    worker_lease_timeout_milliseconds: int = 500
    """A lease older than this goes back between two tasks, so that submitters share workers fairly."""
    worker_lease_linger_milliseconds: int = 10
    """How long an idle lease is kept for the next task of its key (0: given back at once)."""
    max_pending_lease_requests_per_scheduling_category: int = -1
    """-1: the larger of 10 and the number of nodes."""
    max_tasks_in_flight_per_worker: int = 1000
    """Upper bound of pipelining to one worker; depth above 1 needs a measured function."""
    pipeline_target_milliseconds: float = 10.0
    """At most this much measured work waits on one worker, because taking tasks back needs its GIL."""
    pipeline_max_task_milliseconds: float = 1.0
    """Only functions measured below this are pipelined at all."""
    worker_cap_initial_backoff_delay_ms: int = 1000
    worker_cap_max_backoff_delay_ms: int = 10_000
    """Beyond one worker per CPU and class, granting slows down: doubling from the first to the second of these."""
    scheduler_spread_threshold: float = 0.5
    scheduler_top_k_fraction: float = 0.2
    locality_aware_leasing_enabled: bool = True
    """Whether an owner asks for a worker where most bytes of the task's large arguments are (G103)."""
    max_task_args_memory_fraction: float = 0.7
    """The large arguments of running tasks take at most this part of a store (G86)."""
    num_prestart_workers: int = -1
    """-1: one per CPU, at most 8."""
    worker_register_timeout_seconds: float = 60.0
    kill_idle_workers_interval_ms: int = 200
    idle_worker_killing_time_threshold_ms: int = 1000
    raylet_report_resources_period_milliseconds: int = 100
    """A node says at most so often what it has free, and hears as often what others have."""
    memory_usage_threshold: float = 0.95
    """A node that uses more of its memory kills workers (G89)."""
    memory_monitor_refresh_ms: int = 250
    """How often that is looked at; 0: never."""
    task_oom_retry_delay_base_ms: int = 1000
    """A task that was killed for memory is made again after this time, then after twice as long, up to a minute (G20)."""
    health_check_period_ms: int = 3000
    health_check_timeout_ms: int = 10_000
    health_check_failure_threshold: int = 5
    gcs_rpc_server_reconnect_timeout_s: float = 60.0
    """A raylet that cannot reach the gcs for this long exits (G111)."""
    gcs_create_placement_group_retry_min_interval_ms: int = 100
    gcs_create_placement_group_retry_max_interval_ms: int = 1000
    """A placement group that a node has refused is tried again: the first pause, growing by half to the second of these."""
    rpc_reconnect_timeout_s: float = 5.0
    """How long a peer that cannot be reached (but was not seen dead) is retried before its calls fail."""
    rpc_connect_timeout_s: float = 10.0
    cancellation_retry_ms: int = 2000
    actor_graceful_shutdown_timeout_ms: int = 30_000
    """An actor without handles that has not ended by itself after this time is killed (G28)."""
    actor_scheduling_queue_max_reorder_wait_seconds: float = 30.0
    """How long an actor waits for a call that its caller made before others that have come (G56)."""
    timeout_ms_task_wait_for_death_info: int = 1000
    """How long a caller whose actor cannot be reached waits for the reason."""
    busy_wait_microseconds: int = 500
    """So long whoever waits for a call looks for its answer again and again before it sleeps, as does a worker for the next
    call, where such waits are short and cores are free (0: never)."""
    record_ref_creation_sites: bool = False
    """Whether processes remember which line of the user's code has made each reference; costs microseconds for each."""
    local_gc_min_interval_s: float = 10.0
    """When leases have waited for this long without any change in the cluster, all processes collect garbage."""
    get_warning_s: float = 10.0
    """A ``get`` blocked for this long prints why, once."""
    report_unseen_errors: bool = True
    """Whether the error of a task at which nobody has looked is printed when its last reference goes."""
    task_retry_delay_ms: int = 0
    rotation_max_bytes: int = 100 * 1024 * 1024
    """A log file of this size gets a number, and a new one begins (0: never). Ray: 512 MiB."""
    rotation_backup_count: int = 5
    """Number of older files kept of each log."""
    log_deduplication_window_s: float = 5.0
    max_direct_call_object_size: int = MAX_DIRECT_CALL_OBJECT_SIZE
    object_manager_default_chunk_size: int = 5 * 1024 * 1024
    """Objects travel between nodes in pieces of this size; large ones in larger pieces, about 32."""
    object_manager_lanes: int = 2
    """So many connections to each other node carry these pieces (none: they go the way of all messages; so with gRPC)."""
    oom_grace_period_s: float = 2.0
    """How long a full object store may stay full before a new object goes to memory that is on disk (G79)."""
    automatic_object_spilling_enabled: bool = True
    """Whether disks are used when memory runs short; otherwise a full store is an error after a while."""
    object_spilling_directory: str = ""
    """Where objects go for which there is no memory: directories, and URLs for which fsspec has a file system, joined by
    ``os.pathsep``; empty: in the session's own."""
    object_spilling_compression: str = ""
    """How what is written there is made smaller: ``zlib``, or not at all."""
    object_spilling_threshold: float = 0.8
    """Spilling begins when objects that are nowhere else take this part of a store (G85)."""
    min_spilling_size: int = 100 * 1024 * 1024
    """Small objects are written together, at least so many bytes to a file."""
    max_fused_object_count: int = 2000
    """But no more than so many objects."""
    max_io_workers: int = 4
    """So many files of one node are written at once."""
    local_fs_capacity_threshold: float = 0.95
    """A file system that is fuller than this counts as full."""
    lineage_pinning_enabled: bool = True
    """Whether finished tasks are remembered, so that results which are lost can be made again (G67)."""
    max_lineage_bytes: int = 1024 * 1024 * 1024
    """So much of a process's memory finished tasks may take; if it is more, the older half is forgotten (G72)."""
    transport: str = "stream"
    """``stream`` or ``grpc``, for a whole cluster."""

    @classmethod
    def from_overrides(cls, overrides: dict[str, Any] | None) -> SystemConfig:
        """Raises ValueError for an unknown name or a number that makes no sense, TypeError for a value of the wrong type."""
        known = {entry.name for entry in msgspec.structs.fields(cls)}
        for name in overrides or {}:
            if name not in known:
                raise ValueError(f"_system_config has no entry {name!r}; known are {', '.join(sorted(known))}")
        try:
            config = msgspec.convert(overrides or {}, cls)
        except msgspec.ValidationError as error:
            raise TypeError(f"_system_config: {error}") from None
        for name in overrides or {}:
            value, least = getattr(config, name), LEAST.get(name, 0)
            if not isinstance(value, str) and not least <= value:
                raise ValueError(f"_system_config: {name} must be a number from {least}, not {value}")
        if config.object_spilling_compression not in ("", "zlib"):
            name = config.object_spilling_compression
            raise ValueError(f"_system_config: object_spilling_compression must be '' or 'zlib', not {name!r}")
        if config.transport not in ("stream", "grpc"):
            raise ValueError(f"_system_config: transport must be 'stream' or 'grpc', not {config.transport!r}")
        return config


LEAST = {
    "max_pending_lease_requests_per_scheduling_category": -1,
    "num_prestart_workers": -1,
    "max_tasks_in_flight_per_worker": 1,
    "raylet_report_resources_period_milliseconds": 1,
    "kill_idle_workers_interval_ms": 1,
    "health_check_period_ms": 1,
    "health_check_timeout_ms": 1,
    "health_check_failure_threshold": 1,
    "object_manager_default_chunk_size": 1,
    "max_fused_object_count": 1,
    "max_io_workers": 1,
}
"""Where the smallest number that makes sense is not 0."""


def store_endpoint(socket_dir: str, node_id: bytes) -> str:
    """Where the raylet of that incarnation hands out its arena."""
    return f"{socket_dir}/s-{node_id[:8].hex()}"


def fallback_endpoint(socket_dir: str, node_id: bytes) -> str:
    """Where it hands out the arena that is on disk, which continues the other one."""
    return f"{socket_dir}/f-{node_id[:8].hex()}"


def worker_endpoint(socket_dir: str, worker_id: bytes) -> str:
    """Where the process of that incarnation, a worker or a driver, listens for others on its node."""
    return f"{socket_dir}/w-{worker_id[:8].hex()}"


class GcsConfig(msgspec.Struct, frozen=True):
    """What a gcs is started with."""

    endpoints: list[str]
    """Where it listens: its unix socket first, then its TCP address if the cluster spans machines."""
    storage_path: str
    """sqlite file, or empty for tables in memory only."""
    session_name: str
    system_config: SystemConfig


class RayletConfig(msgspec.Struct, frozen=True):
    """What a raylet is started with."""

    node_id: bytes
    node_name: str
    node_ip: str
    gcs_endpoint: str
    socket_dir: str
    """Where this node's processes make their unix sockets; ``sim:`` names in the simulation start with it too."""
    tcp_host: str
    """Address for listeners that other machines reach; empty: unix sockets only."""
    tcp_port: int
    """Port of the raylet itself, 0 for any."""
    session_dir: str
    resources: dict[str, int]
    labels: dict[str, str]
    is_head: bool
    system_config: SystemConfig
    spill_directories: list[str]
    """Where objects go for which there is no memory: directories and URLs; they are this node's alone, and end with it."""

    @property
    def fallback_directory(self) -> str:
        """Where memory is on disk: the first of them that is a directory, or else the session's own."""
        return next((place for place in self.spill_directories if "://" not in place), self.session_dir)


class WorkerConfig(msgspec.Struct, frozen=True):
    """What a worker (or a driver's core worker) is started with."""

    worker_id: bytes
    node_id: bytes
    node_ip: str
    raylet_endpoint: str
    gcs_endpoint: str
    socket_dir: str
    tcp_host: str
    session_dir: str
    is_driver: bool
    system_config: SystemConfig
