"""Constants of the system in one place, with their units, and the records with which processes are started.

Ray: src/ray/common/ray_config_def.h

Names are Ray's where Ray has the constant. ``init(_system_config={...})`` overrides entries of ``SystemConfig`` for a whole
cluster; an unknown name, a wrong type or a number out of range is an error. Below the front porch no process reads
environment variables: each process is started with a config record that holds what it needs.
"""

from __future__ import annotations

from typing import Any

import msgspec

from minray.common.bounds import Bounds
from minray.common.gpus import NodeGpus
from minray.common.shown import shown

MAX_DIRECT_CALL_OBJECT_SIZE = 100 * 1024
"""Largest argument, result or put, in bytes, that travels inside a message; larger ones go to the store (G76, C9)."""
TASK_RPC_INLINED_BYTES_LIMIT = 10 * 1024 * 1024
"""Most bytes of all inlined arguments of one task together, and of all its inlined results (G76)."""

FUNCTION_SIZE_ERROR_THRESHOLD = 48 * 1024 * 1024
"""Largest pickled function, in bytes (Ray: 95 MiB; here it travels inside one record, which may take 64 MiB)."""


LOCAL = "local"
"""The transport of a cluster inside one process."""


class SystemConfig(Bounds, frozen=True, forbid_unknown_fields=True):
    """The tunable constants of a cluster and its bounds. Times are in seconds unless the name says otherwise."""

    worker_lease_timeout_milliseconds: int = 500
    """Age at which a lease is returned between two tasks, but only while a raylet says that other requests wait."""
    worker_lease_linger_milliseconds: int = 10
    """Time an idle lease is kept for the next task of its scheduling key (0: returned at once)."""
    max_pending_lease_requests_per_scheduling_category: int = -1
    """Most lease requests under way per scheduling key; -1: the larger of 10 and the number of nodes."""
    max_tasks_in_flight_per_worker: int = 1000
    """Most tasks pushed ahead to one worker. A depth above 1 requires that the function's run time was measured."""
    pipeline_target_milliseconds: float = 10.0
    """Most measured work that waits on one worker; it is small because taking tasks back needs the worker's GIL."""
    pipeline_max_task_milliseconds: float = 1.0
    """Run time below which a function's tasks are always pipelined; longer ones only if many wait (``pipelining``)."""
    worker_cap_initial_backoff_delay_ms: int = 1000
    worker_cap_max_backoff_delay_ms: int = 10_000
    """First and longest pause between grants beyond one worker per CPU and lease shape; the pause doubles in between."""
    scheduler_spread_threshold: float = 0.5
    """Used share of a node below which the hybrid policy counts all nodes as equally good."""
    scheduler_top_k_fraction: float = 0.2
    """Share of the living nodes among whose best the hybrid policy draws one at random."""
    scheduling_policy: str = "hybrid"
    """Policy with which a raylet chooses the node of a lease request.

    This and the other policies are names, as ``minray/policies/names.py`` and docs/policy_lab.md explain them."""
    lease_requests_per_task: int = 1
    """Number of lease requests that an owner makes for each waiting task; those that come late are cancelled."""
    locality_aware_leasing_enabled: bool = True
    """Whether an owner asks for a worker on the node that has most bytes of the task's large arguments (G103)."""
    locality_policy: str = "most_bytes"
    """Policy with which an owner chooses the node that it asks first for a task with large arguments."""
    max_task_args_memory_fraction: float = 0.7
    """Largest part of a store that the pinned arguments of running tasks may take (G86)."""
    num_prestart_workers: int = -1
    """Number of workers that a raylet starts ahead of need; -1: one per CPU, at most 8."""
    worker_register_timeout_seconds: float = 60.0
    """Time after which a started worker that has not registered is killed."""
    worker_niceness: int = 15
    """Niceness that a worker adds to that of its raylet, so that tasks do not starve raylet, gcs and the user's shell."""
    worker_oom_score_adjustment: int = 1000
    """Adjustment of a worker's OOM score, at most 1000: the kernel then kills workers before other processes."""
    worker_start_patience_seconds: float = 180.0
    """Time for which no worker could be started after which waiting tasks and actors fail, although others still run."""
    kill_idle_workers_interval_ms: int = 200
    """Time between two checks for idle workers that may be ended."""
    idle_worker_killing_time_threshold_ms: int = 1000
    """Time that a worker must be idle before it is asked to end."""
    raylet_report_resources_period_milliseconds: int = 100
    """Shortest time between two resource reports of a node, and between two updates that it hears about other nodes."""
    memory_usage_threshold: float = 0.95
    """Part of a node's memory in use above which its raylet kills workers (G89)."""
    memory_monitor_refresh_ms: int = 250
    """Time between two looks at the memory in use; 0: never."""
    task_oom_retry_delay_base_ms: int = 1000
    """Pause before a task that was killed for memory is retried; it doubles each time, up to a minute (G20)."""
    health_check_period_ms: int = 3000
    """Time between two health checks of a raylet, and between its reports without a change."""
    health_check_timeout_ms: int = 10_000
    """Time after which a health check counts as unanswered."""
    health_check_failure_threshold: int = 5
    """Number of unanswered health checks in a row after which a node is declared dead."""
    gcs_rpc_server_reconnect_timeout_s: float = 60.0
    """Time after which a raylet that cannot reach the gcs exits (G111)."""
    gcs_create_placement_group_retry_min_interval_ms: int = 100
    gcs_create_placement_group_retry_max_interval_ms: int = 1000
    """First and longest pause before a placement group that a node refused is tried again; it grows by half each time."""
    bundle_policy: str = "ray"
    """Policy with which the gcs chooses the nodes of a placement group's bundles."""
    rpc_reconnect_timeout_s: float = 5.0
    """Time an unreachable peer (that was not seen dead) is retried before calls to it fail."""
    cancellation_retry_ms: int = 2000
    """Pause before the owner of a cancelled task tells the worker again."""
    actor_graceful_shutdown_timeout_ms: int = 30_000
    """Time after which an actor without handles that has not ended by itself is killed (G28)."""
    actor_scheduling_queue_max_reorder_wait_seconds: float = 30.0
    """Time an actor waits for a missing call whose successors from the same caller have arrived (G56)."""
    timeout_ms_task_wait_for_death_info: int = 1000
    """Time a caller whose actor cannot be reached waits for the reason."""
    busy_wait_microseconds: int = 500
    """Longest busy wait of a caller for an answer, or of a worker for its next task, before it sleeps (0: never).

    Processes busy-wait only where such waits are short and cores are free (``minray/platform/threads/spinning.py``)."""
    copy_threads: int = 0
    """Threads that copy one value of 32 MiB and more into the object store (0: as many as cores are free, up to half).

    Smaller values, and all values on a machine of two cores, are copied by the thread that puts them."""
    record_ref_creation_sites: bool = False
    """Whether processes record the line of user code that made each reference; it costs microseconds per reference."""
    task_events_max_num_task_in_gcs: int = 100_000
    """Most tasks of ended processes that the gcs keeps for the state API; the oldest that it dropped are counted."""
    task_events_max_bytes_in_gcs: int = 64 * 1024 * 1024
    """Most memory, in bytes, of these tasks."""
    task_events_report_interval_ms: int = 1000
    """Time within which a process tells the gcs about tasks that have failed; 0: the gcs keeps no tasks at all."""
    metrics_report_interval_ms: int = 2000
    """Time within which a worker tells its raylet the counters and histograms that its programs have changed; 0: never.

    The raylet keeps them until the job is over. Only workers that record values report (Ray: 10 s, all processes)."""
    record_task_phases: bool = False
    """Whether ``timeline`` shows when a task unpickled its arguments, ran, and stored its results."""
    local_gc_min_interval_s: float = 10.0
    """Time that leases wait without any change in the cluster before all processes collect garbage.

    When a store is full they collect at once, at most once in this time."""
    get_warning_s: float = 10.0
    """Time after which a blocked ``get`` prints, once, what it waits for."""
    report_unseen_errors: bool = True
    """Whether a task's error that nobody has read is printed when the last reference to it goes."""
    task_retry_delay_ms: int = 0
    """Pause before a failed task is retried."""
    rotation_max_bytes: int = 100 * 1024 * 1024
    """Size in bytes at which a log file is renamed with a number and a new one begins (0: never). Ray: 512 MiB."""
    rotation_backup_count: int = 5
    """Number of older files kept of each log."""
    log_deduplication_window_s: float = 5.0
    """Time within which a driver shows a line that several workers print only once, and then counts it."""
    client_reconnect_grace_period_s: float = 30.0
    """Time for which a remote client that has lost its connection may come back; then its driver process ends."""
    max_direct_call_object_size: int = MAX_DIRECT_CALL_OBJECT_SIZE
    """Largest argument, result or put, in bytes, that travels inside a message."""
    object_manager_default_chunk_size: int = 5 * 1024 * 1024
    """Size in bytes of the chunks in which objects travel between nodes; large objects use about 32 larger chunks."""
    object_manager_lanes: int = 2
    """Number of connections to each other node for chunks. With 0, and with gRPC, chunks share the ordinary connection."""
    transfer_policy: str = "pipelined"
    """Policy with which a raylet chooses the node from which it reads an object first."""
    eviction_policy: str = "least_recently_used"
    """Policy with which a raylet chooses the copy whose memory another object gets."""
    oom_grace_period_s: float = 2.0
    """Time a new object waits for a full store before it gets fallback memory, which is on disk (G79)."""
    automatic_object_spilling_enabled: bool = True
    """Whether objects are spilled to disk when memory runs short; otherwise a store that stays full is an error."""
    object_spilling_directory: str = ""
    """Places for spill files: directories, and URLs that fsspec understands, joined by ``os.pathsep``.

    Empty: the session's own directory."""
    object_spilling_compression: str = ""
    """Compression of spill files: ``zlib``, or empty for none."""
    object_spilling_threshold: float = 0.8
    """Part of a store that primary copies may take before spilling begins (G85)."""
    min_spilling_size: int = 100 * 1024 * 1024
    """Least bytes of one spill file: smaller objects are fused."""
    max_fused_object_count: int = 2000
    """Most objects in one spill file."""
    spill_policy: str = "least_recently_used"
    """Policy with which a raylet chooses the objects that it spills first."""
    max_io_workers: int = 4
    """Number of spill files that one node writes at once."""
    local_fs_capacity_threshold: float = 0.95
    """Used part of a file system above which it counts as full."""
    lineage_pinning_enabled: bool = True
    """Whether owners keep the lineage (finished tasks) of large results, so that lost ones can be reconstructed (G67)."""
    max_lineage_bytes: int = 1024 * 1024 * 1024
    """Most memory, in bytes, of one process's lineage; beyond it the older half is forgotten (G72)."""
    transport: str = "stream"
    """Transport of the whole cluster: ``stream`` or ``grpc``; ``local`` for a cluster inside one process (local_mode)."""
    client_transport: str = ""
    """Transport between remote clients and client servers, ``stream`` or ``grpc``; empty: that of the cluster."""
    arena: str = ""
    """Memory of the object stores: ``memfd`` (files without names), ``shared_memory`` (segments of ``multiprocessing``).

    Empty: on each node ``memfd`` if its system has that, else ``shared_memory``."""
    tls_cert: str = ""
    tls_key: str = ""
    tls_ca: str = ""
    """Paths of this node's certificate, of its key, and of the CA that signs those of all nodes; empty: no TLS.

    Each node has its own; ``minray/platform/transport/tls.py`` says how they are used."""

    @classmethod
    def from_overrides(cls, overrides: dict[str, Any] | None) -> SystemConfig:
        """Build the config. Raise ValueError for an unknown name or a number out of range, TypeError for a wrong type."""
        known = set(cls.__struct_fields__)
        for name in overrides or {}:
            if name not in known:
                raise ValueError(f"_system_config has no entry {shown(name)}; known are {', '.join(sorted(known))}")
        try:
            config = msgspec.convert(overrides or {}, cls)
        except msgspec.ValidationError as error:
            raise TypeError(f"_system_config: {error}") from None
        for name in overrides or {}:
            value, least = getattr(config, name), LEAST.get(name, 0)
            if not isinstance(value, str) and not least <= value:
                raise ValueError(f"_system_config: {name} must be a number from {least}, not {value}")
        for name, choices in CHOICES.items():
            if getattr(config, name) not in choices:
                words = f"{', '.join(map(repr, choices[:-1]))} or {choices[-1]!r}"
                raise ValueError(f"_system_config: {name} must be {words}, not {shown(getattr(config, name))}")
        return config

    def for_clients(self) -> SystemConfig:
        """Return the configuration of connections between remote clients and client servers."""
        return msgspec.structs.replace(self, transport=self.client_transport or self.transport)


CHOICES = {
    "object_spilling_compression": ("", "zlib"),
    "transport": ("stream", "grpc", LOCAL),
    "client_transport": ("", "stream", "grpc"),
    "arena": ("", "memfd", "shared_memory"),
}
"""Valid words of entries that are one of few words."""
LEAST = {
    "max_pending_lease_requests_per_scheduling_category": -1,
    "num_prestart_workers": -1,
    "max_tasks_in_flight_per_worker": 1,
    "lease_requests_per_task": 1,
    "raylet_report_resources_period_milliseconds": 1,
    "kill_idle_workers_interval_ms": 1,
    "health_check_period_ms": 1,
    "health_check_timeout_ms": 1,
    "health_check_failure_threshold": 1,
    "object_manager_default_chunk_size": 1,
    "max_fused_object_count": 1,
    "max_io_workers": 1,
    "generator_max_reports_in_flight": 1,
    "max_items_per_batch": 1,
    "max_questions_per_message": 1,
    "max_references_per_answer": 1,
    "max_borrower_tickets": 1,
    "object_manager_chunks_at_once": 1,
    "drain_objects_at_once": 1,
    "spill_checksum_bytes": 64,
}
"""Smallest valid number of each entry for which it is not 0."""


def store_endpoint(socket_dir: str, node_id: bytes) -> str:
    """Return the endpoint where the raylet of that incarnation hands out its arena."""
    return f"{socket_dir}/s-{node_id[:8].hex()}"


def fallback_endpoint(socket_dir: str, node_id: bytes) -> str:
    """Return the endpoint where that raylet hands out the fallback arena, which is on disk and continues the other one."""
    return f"{socket_dir}/f-{node_id[:8].hex()}"


def worker_endpoint(socket_dir: str, worker_id: bytes) -> str:
    """Return the endpoint where a worker or driver of that incarnation listens for other processes of its node."""
    return f"{socket_dir}/w-{worker_id[:8].hex()}"


def breakpoint_id(worker_id: bytes, number: int) -> str:
    """Return the id of a breakpoint for people, from the worker and the number of its debugger session."""
    return f"{worker_id[:4].hex()}-{number}"


def debugger_endpoint(socket_dir: str, breakpoint_id: str) -> str:
    """Return the endpoint where the debugger session with this breakpoint waits for a terminal."""
    return f"{socket_dir}/b-{breakpoint_id}"


def debugger_names(worker_endpoint: str) -> str:
    """Return the beginning of the names of a worker's debugger sockets, from the worker's own endpoint."""
    return f"b-{worker_endpoint.rpartition('/w-')[2][:8]}-"


class GcsConfig(msgspec.Struct, frozen=True):
    """Configuration that a gcs process is started with."""

    endpoints: list[str]
    """Endpoints where the gcs listens: its unix socket first, then its TCP address if the cluster spans machines."""
    storage_path: str
    """Path of the sqlite file; empty: tables in memory only."""
    session_name: str
    system_config: SystemConfig
    policy_path: list[str] = []
    """Further entries of ``sys.path``, where the modules of a program's policies are; only if it has some."""


class RayletConfig(msgspec.Struct, frozen=True):
    """Configuration that a raylet process is started with."""

    node_id: bytes
    node_name: str
    node_ip: str
    gcs_endpoint: str
    socket_dir: str
    """Directory of the unix sockets of this node's processes; it also begins the simulation's ``sim:`` names."""
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
    """Places for spill files, directories and URLs. They belong to this node alone and are removed with it."""
    gpus: NodeGpus = NodeGpus()
    policy_path: list[str] = []
    """As in ``GcsConfig``."""

    @property
    def fallback_directory(self) -> str:
        """Directory of the fallback arena: the first spill directory that is no URL, or else the session's own."""
        return next((place for place in self.spill_directories if "://" not in place), self.session_dir)


class WorkerConfig(msgspec.Struct, frozen=True):
    """Configuration that a worker, or the core worker of a driver, is started with."""

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
    gpus: NodeGpus = NodeGpus()
    is_measured: bool = False
    """Whether coverage.py measures this process; a worker finds that out when it begins."""


class DashboardConfig(msgspec.Struct, frozen=True):
    """Configuration that the dashboard process of a head node is started with."""

    gcs_endpoint: str
    gcs_address: str
    """Address of the gcs, as in ``init(address=...)``."""
    session_dir: str
    host: str
    """Address at which the dashboard listens."""
    port: int
    """TCP port of the dashboard; 0: any free one; -1: Ray's default port, or the next free one."""
    system_config: SystemConfig


class ClientServerConfig(msgspec.Struct, frozen=True):
    """How a client server is started."""

    session_dir: str
    host: str
    """Address at which it listens."""
    port: int
    system_config: SystemConfig
