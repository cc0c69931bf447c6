"""Answers questions for the system metrics of a node: machine, processes, leases, workers, store, transfers, spilling.

Ray: src/ray/raylet/metrics.h, src/ray/object_manager/metrics.h, and the reporter agent of each node

This file only reads what the parts of the raylet know anyway, and gives it Ray's names. It also keeps the values of workers
that have ended (``KeptMetrics``). Nothing happens while nobody asks, but for one message from each worker that records.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from minray.common.config import RayletConfig
from minray.common.loop_lag import event_loop_lag_ms
from minray.common.machine_usage import GpuUsage
from minray.object_manager.object_manager import ObjectManager
from minray.object_store.object_table import CREATED, NOWHERE, RESTORING
from minray.object_store.store import ObjectStore
from minray.platform.base import Platform
from minray.protocol.base import DONE, Done
from minray.protocol.metrics import EndedMetrics, GetEndedMetrics, GetNodeMetrics, NodeMetrics, ReportMetrics
from minray.protocol.object_store import GET, TASK_ARGUMENTS, WAIT
from minray.protocol.state import SystemValue
from minray.raylet.io_workers import IoWorkers
from minray.raylet.kept_metrics import KeptMetrics
from minray.raylet.lease_broker import LeaseBroker
from minray.raylet.node_usage import NodeUsage, UsageMeter
from minray.rpc.request_meter import RequestMeter
from minray.rpc.service import Call
from minray.scheduling import lease as states

DRIVER, RAYLET, WORKER = "driver", "raylet", "worker"
"""Kinds of processes of a node."""
TITLE, IDLE = "ray::", "ray::IDLE"
"""Beginning of a worker's title, and its name as a component if it has none. The title names the task: ``ray::f``."""
LEASES = {
    states.WAITING: "Received",
    states.FETCHING: "Waiting",
    states.QUEUED: "Dispatched",
    states.ALLOCATED: "Dispatched",
    states.GRANTED: "Executing",
    states.ENDING: "Executing",
}
"""Ray's name for each state of a lease."""
MEGABYTE = 1 << 20
"""Bytes in the unit in which Ray tells the memory of GPUs."""
PURPOSES = {GET: "Get", WAIT: "Wait", TASK_ARGUMENTS: "TaskArgs"}
"""Ray's name for each purpose of a pull."""


class MetricsService:
    """Serves the messages of ``protocol/metrics.py`` on one node."""

    def __init__(
        self,
        platform: Platform,
        config: RayletConfig,
        broker: LeaseBroker,
        store: ObjectStore,
        objects: ObjectManager,
        io_workers: IoWorkers,
        requests: RequestMeter,
    ) -> None:
        self._platform = platform
        self._config = config
        self._broker = broker
        self._store = store
        self._objects = objects
        self._io_workers = io_workers
        self._requests = requests
        self._meter = UsageMeter(platform.host)
        self.kept = KeptMetrics(config.node_id, broker.pool.is_over)
        self.drivers: dict[bytes, int] = {}
        """Pids of the drivers of this node, by job id."""

    def handle_ReportMetrics(self, request: ReportMetrics, call: Call) -> Done:
        self.kept.on_report(request, request.metrics.worker_id in self._broker.pool.workers)
        return DONE

    def handle_GetEndedMetrics(self, request: GetEndedMetrics, call: Call) -> EndedMetrics:
        return self.kept.ended(request.told)

    async def handle_GetNodeMetrics(self, request: GetNodeMetrics, call: Call) -> NodeMetrics:
        lag_ms = await event_loop_lag_ms()
        names = self._names()
        try:
            machine = self._machine(await self._meter.measure(list(names)), names)
        except OSError:  # For example, no file can be opened just now: the other figures are still known.
            machine = iter(())
        values = [*machine, *self._scheduler(), *self._workers(), *self._memory(), *self._spilling(), *self._transfers()]
        values += self._requests.values()
        values.append(SystemValue("io_context_event_loop_lag_ms", lag_ms, {"Name": RAYLET}))
        return NodeMetrics(self._config.node_id, values)

    def on_eviction(self, kind: str, worker_id: bytes) -> None:
        """Count a worker that is about to be killed for memory, under the task that its title names."""
        worker = self._broker.pool.workers[worker_id]
        usage = self._platform.host.process_usage(worker.pid)
        title = usage.title if usage is not None else ""
        self._broker.processes.deaths.on_eviction(kind, title.removeprefix(TITLE) if title.startswith(TITLE) else "")

    # --- The machine and its processes -----------------------------------------------------------------------------------

    def _names(self) -> dict[int, str]:
        """Return the name of each process of this node, by pid."""
        names = {self._platform.processes.pid: RAYLET} | dict.fromkeys(self.drivers.values(), DRIVER)
        return names | {worker.pid: WORKER for worker in self._broker.pool.workers.values() if worker.pid}

    def _machine(self, usage: NodeUsage, names: dict[int, str]) -> Iterator[SystemValue]:
        machine, speeds = usage.machine, usage.speeds
        used, total = self._platform.host.memory_usage()
        disk = machine.disk_used + machine.disk_free
        for name, value in {
            "node_cpu_utilization": speeds.cpu_percent,
            "node_cpu_count": machine.cpu_count,
            "node_mem_used": used,
            "node_mem_available": max(0, total - used),
            "node_mem_total": total,
            "node_mem_shared_bytes": machine.memory_shared,
            "node_mem_used_host": machine.memory_used,
            "node_mem_total_host": machine.memory_total,
            "node_disk_usage": machine.disk_used,
            "node_disk_free": machine.disk_free,
            "node_disk_utilization_percentage": 100 * machine.disk_used / disk if disk else 0.0,
            "node_disk_io_read": machine.disk_read_bytes,
            "node_disk_io_write": machine.disk_written_bytes,
            "node_disk_io_read_count": machine.disk_reads,
            "node_disk_io_write_count": machine.disk_writes,
            "node_disk_io_read_speed": speeds.disk_read_bytes,
            "node_disk_io_write_speed": speeds.disk_written_bytes,
            "node_disk_read_iops": speeds.disk_reads,
            "node_disk_write_iops": speeds.disk_writes,
            "node_network_sent": machine.network_sent_bytes,
            "node_network_received": machine.network_received_bytes,
            "node_network_send_speed": speeds.network_sent_bytes,
            "node_network_receive_speed": speeds.network_received_bytes,
        }.items():
            yield SystemValue(name, float(value))
        yield from gpu_values(machine.gpus)
        yield from self._components(usage, names)

    def _components(self, usage: NodeUsage, names: dict[int, str]) -> Iterator[SystemValue]:
        sums = Counter[tuple[str, str]]()
        for pid, (process, percent) in usage.components.items():
            name = names[pid]
            if name == WORKER:
                name = process.title if process.title.startswith(TITLE) else IDLE
            if percent is not None:
                sums["component_cpu_percentage", name] += percent  # type: ignore[assignment]  # sums of floats
            sums["component_rss_bytes", name] += process.rss_bytes
            sums["component_shared_bytes", name] += process.shared_bytes
            sums["component_uss_bytes", name] += max(0, process.rss_bytes - process.shared_bytes)
            if process.open_files >= 0:
                sums["component_num_fds", name] += process.open_files
        for (metric, name), value in sums.items():
            yield SystemValue(metric, float(value), {"Component": name})
            if metric in ("component_rss_bytes", "component_uss_bytes"):
                yield SystemValue(metric.replace("_bytes", "_mb"), value / 1e6, {"Component": name})

    # --- Scheduling and workers ------------------------------------------------------------------------------------------

    def _scheduler(self) -> Iterator[SystemValue]:
        broker = self._broker
        counts = Counter(LEASES[state] for _, state in broker.states.items())
        for state in dict.fromkeys(LEASES.values()):
            yield SystemValue("scheduler_tasks", float(counts[state]), {"State": state})
        infeasible, queued = broker.cluster.infeasible(), broker.local.queued()
        without_memory = sum(
            bool(request.dependency_ids) and not broker.arguments.manager.has_memory(request.lease_id) for request in queued
        )
        for reason, count in {
            "Infeasible": len(infeasible),
            "WaitingForResources": len(queued) - without_memory,
            "WaitingForPlasmaMemory": without_memory,
            "WaitingForWorkers": broker.states.count(states.ALLOCATED),
        }.items():
            yield SystemValue("scheduler_unscheduleable_tasks", float(count), {"Reason": reason})
        yield SystemValue("internal_num_spilled_tasks", float(broker.scheduler.spilled_count))
        shapes = {request.shape for request in infeasible}
        yield SystemValue("internal_num_infeasible_scheduling_classes", float(len(shapes)))

    def _workers(self) -> Iterator[SystemValue]:
        starts, deaths = self._broker.pool.starts, self._broker.processes.deaths
        for reason, count in {
            "RegistrationTimedOut": starts.timed_out,
            "ProcessFailed": starts.in_all - starts.timed_out,
        }.items():
            yield SystemValue("scheduler_failed_worker_startup_total", float(count), {"Reason": reason})
        for metric, counts in {
            "memory_manager_worker_eviction_total": deaths.evictions,
            "node_manager_unexpected_worker_failure_total": deaths.failures,
        }.items():
            for (kind, name), count in counts.items():
                yield SystemValue(metric, float(count), {"Type": kind, "Name": name})

    # --- Objects ---------------------------------------------------------------------------------------------------------

    def _memory(self) -> Iterator[SystemValue]:
        table = self._store.table
        allocator, fallback = table.allocator, table.fallback
        sizes = Counter[tuple[str, str]]()
        for entry in table.entries():
            place = "MMAP_DISK" if fallback.has(entry.offset) else "MMAP_SHM"
            sizes[place, "SEALED" if table.is_sealed(entry) else "UNSEALED"] += entry.size
        for place in ("MMAP_SHM", "MMAP_DISK"):
            for state in ("SEALED", "UNSEALED"):
                labels = {"Location": place, "ObjectState": state}
                yield SystemValue("object_store_memory", float(sizes[place, state]), labels)
        yield SystemValue("object_store_memory", float(table.spilled_bytes), {"Location": "SPILLED", "ObjectState": ""})
        for name, value in {
            "object_store_available_memory": allocator.capacity - allocator.used,
            "object_store_used_memory": allocator.used,
            "object_store_fallback_memory": fallback.used,
            "object_store_num_local_objects": len(table),
        }.items():
            yield SystemValue(name, float(value))

    def _spilling(self) -> Iterator[SystemValue]:
        table, stats = self._store.table, self._io_workers.stats()
        objects, sizes = Counter[str](), Counter[str]()
        for entry in table.copies():
            if table.states.get(entry.key) == RESTORING:
                state = "PendingRestore"
            elif entry.is_moving:
                state = "PendingSpill"
            elif entry.is_primary and entry.spilled is None and entry.offset != NOWHERE:
                state = "Pinned"
            else:
                continue
            objects[state] += 1
            sizes[state] += entry.size
        for state in ("Pinned", "PendingRestore", "PendingSpill"):
            yield SystemValue("spill_manager_objects", float(objects[state]), {"State": state})
            yield SystemValue("spill_manager_objects_bytes", float(sizes[state]), {"State": state})
        for kind, count, size in (
            ("Spilled", stats.spilled_objects, stats.spilled_bytes),
            ("Restored", stats.restored_objects, stats.restored_bytes),
        ):
            yield SystemValue("spill_manager_request_total", float(count), {"Type": kind})
            yield SystemValue("spill_manager_bytes_total", float(size), {"Type": kind})

    def _transfers(self) -> Iterator[SystemValue]:
        objects, stats = self._objects, self._io_workers.stats()
        for kind, size in {
            "PushedFromLocalPlasma": objects.pushed_bytes,
            "PushedFromLocalDisk": stats.streamed_bytes,
            "Received": objects.received_bytes,
        }.items():
            yield SystemValue("object_manager_bytes", float(size), {"Type": kind})
        pulls, bundles = objects.pulls, objects.pulls.bundles()
        counts = Counter(PURPOSES[purpose] for purpose, _ in bundles)
        for purpose in PURPOSES.values():
            yield SystemValue("pull_manager_requested_bundles", float(counts[purpose]), {"Type": purpose})
        queued = pulls.queued()
        yield SystemValue("pull_manager_requests", float(queued), {"Type": "Queued"})
        yield SystemValue("pull_manager_requests", float(len(pulls) - queued), {"Type": "Active"})
        yield SystemValue("pull_manager_active_bundles", float(sum(under_way for _, under_way in bundles)))
        unwritten = sum(one.size for one in self._store.table.copies() if self._is_arriving(one.key, one.creator))
        yield SystemValue("pull_manager_usage_bytes", float(unwritten), {"Type": "BeingPulled"})
        yield SystemValue("object_manager_num_pull_requests", float(len(pulls)))
        yield SystemValue("push_manager_num_pushes_remaining", float(len(objects.pushes)))

    def _is_arriving(self, key: bytes, creator: bytes) -> bool:
        """Whether this raylet writes the copy, because it comes from another node."""
        return not creator and self._store.table.states.get(key) == CREATED


def gpu_values(gpus: Iterable[GpuUsage]) -> Iterator[SystemValue]:
    """Yield what each GPU tells, under Ray's names."""
    for gpu in gpus:
        labels = {"GpuIndex": str(gpu.number), "GpuDeviceName": gpu.name}
        for name, value in {
            "node_gpus_available": 1.0,
            "node_gpus_utilization": gpu.percent,
            "node_gram_used": gpu.memory_used / MEGABYTE,
            "node_gram_available": (gpu.memory_total - gpu.memory_used) / MEGABYTE,
            "node_gpu_power_milliwatts": gpu.power_milliwatts,
            "node_gpu_temperature_celsius": gpu.temperature_celsius,
        }.items():
            if value is not None:
                yield SystemValue(name, value, labels)
