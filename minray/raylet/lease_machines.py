"""Builds the pure classes that decide about the leases of a node, from the node's configuration.

Ray: the constructor of NodeManager in src/ray/raylet/node_manager.cc, and main.cc

The lease scheduler has one object of each. They know neither sockets nor clocks. The cluster's view contains the tables of
the local resources themselves, so that a lease granted here counts at once.
"""

from __future__ import annotations

from collections.abc import Callable

from minray.common.config import RayletConfig
from minray.common.ids import short
from minray.common.labels import labels_of
from minray.common.resources import CPU, OBJECT_STORE_MEMORY, UNIT
from minray.common.state_table import StateMachine
from minray.platform.base import Platform
from minray.policies.names import scheduling_policy
from minray.policies.protocols import Warn
from minray.raylet.lease_dependency_manager import LeaseDependencyManager
from minray.raylet.worker_pool import WORKER_STATES, Worker, WorkerPool
from minray.scheduling.cluster_resource_scheduler import ClusterResourceScheduler, NodeView
from minray.scheduling.local_lease_manager import LocalLeaseManager

MAX_PRESTART = 8
"""Most workers that a raylet starts ahead of need by default."""


def argument_limit_bytes(config: RayletConfig) -> float:
    """Return how many bytes of arguments the running tasks of a node may have pinned together."""
    capacity = config.resources.get(OBJECT_STORE_MEMORY, 0) // UNIT
    return config.system_config.max_task_args_memory_fraction * capacity


def make_local_leases(
    config: RayletConfig, states: StateMachine, arguments: LeaseDependencyManager
) -> LocalLeaseManager:
    """Make the table of this node's resources and of the leases that use them."""
    system = config.system_config
    return LocalLeaseManager(
        config.resources,
        states,
        initial_backoff_s=system.worker_cap_initial_backoff_delay_ms / 1000,
        max_backoff_s=system.worker_cap_max_backoff_delay_ms / 1000,
        arguments=arguments,
    )


def make_cluster_view(
    platform: Platform, config: RayletConfig, local: LocalLeaseManager, warn: Warn
) -> ClusterResourceScheduler:
    """Make the view of all nodes' resources, in which ``local`` is this node; ``warn`` tells a driver of a failed policy."""
    labels = labels_of(config.node_id, config.labels)
    here = NodeView(config.node_id, config.node_name, known=True, alive=True, labels=labels)
    here.total, here.available = local.total, local.available
    return ClusterResourceScheduler(
        here,
        spread_threshold=config.system_config.scheduler_spread_threshold,
        top_k_fraction=config.system_config.scheduler_top_k_fraction,
        random=platform.host.random,
        own_policy=scheduling_policy(config.system_config, platform, warn),
    )


def make_worker_pool(platform: Platform, config: RayletConfig, is_kept: Callable[[Worker], bool]) -> WorkerPool:
    """Make the pool of this node's workers; the configuration, or else the number of CPUs, says how many start early."""
    system, cpus = config.system_config, config.resources.get(CPU, 0) // UNIT
    return WorkerPool(
        StateMachine("worker", WORKER_STATES, platform.record, short),
        cpus=cpus,
        prestart=min(cpus, MAX_PRESTART) if system.num_prestart_workers < 0 else system.num_prestart_workers,
        register_timeout_s=system.worker_register_timeout_seconds,
        patience_s=system.worker_start_patience_seconds,
        is_kept=is_kept,
        new_id=lambda: platform.host.random_bytes(16),
    )
