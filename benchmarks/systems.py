"""Start and stop of the measured systems: minray and Ray by the same code, Dask as a local cluster."""

from __future__ import annotations

import importlib
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.document import DASK, DASK_ON_MINRAY, DASK_ON_RAY, DASK_THREADS, HYPERQUEUE, MINRAY, RAY

WORKERS = 2
MODULES = {
    MINRAY: ("minray",),
    RAY: ("ray",),
    DASK: ("distributed",),
    DASK_THREADS: ("distributed",),
    HYPERQUEUE: ("hyperqueue",),
    DASK_ON_MINRAY: ("minray.util.dask", "dask.array", "dask.dataframe"),
    DASK_ON_RAY: ("ray", "dask.array", "dask.dataframe"),
}
"""Modules that must be importable to measure a system."""


def missing(system: str) -> str:
    """Return a module that a system needs and that is not installed, or ""."""
    return next((module for module in MODULES.get(system, ()) if not _is_there(module)), "")


def _is_there(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # the package that would contain the module is not installed
        return False


def library(system: str) -> Any:
    """Import minray or Ray."""
    return importlib.import_module({MINRAY: "minray", RAY: "ray"}[system])


@contextmanager
def connected(system: str, workers: int = WORKERS, **options: Any) -> Iterator[Any]:
    """Start a local cluster of minray or Ray, and yield the library, connected to it."""
    ray = library(system)
    ray.init(num_cpus=workers, logging_level="ERROR", log_to_driver=False, **options)
    try:
        yield ray
    finally:
        ray.shutdown()


@contextmanager
def cluster(system: str, nodes: list[dict[str, Any]], tcp_host: str = "", **config: Any) -> Iterator[Any]:
    """Start several nodes of minray or Ray on this machine, and yield the library; the driver is on the first node.

    Each node has a resource of its own (``node 0``, ...). ``tcp_host`` and ``config`` are for minray only; Ray always uses
    TCP.
    """
    ray = library(system)
    head, *others = [{"resources": {f"node {number}": 1000}, **node} for number, node in enumerate(nodes)]
    if system == MINRAY:
        head |= {"tcp_host": tcp_host, "_system_config": config}
    made = importlib.import_module(f"{ray.__name__}.cluster_utils").Cluster(initialize_head=True, head_node_args=head)
    try:
        for node in others:
            made.add_node(**node)
        made.wait_for_nodes()
        ray.init(address=made.address, logging_level="ERROR", log_to_driver=False)
        yield ray
    finally:
        ray.shutdown()
        made.shutdown()


@contextmanager
def dask_client(workers: int = WORKERS, *, threads: bool = False, memory_limit: int = 0) -> Iterator[Any]:
    """Start Dask distributed on this machine, and yield its client.

    The workers are processes with one thread each, or, with ``threads``, the threads of one process.
    """
    distributed = importlib.import_module("distributed")
    counts = {"n_workers": 1, "threads_per_worker": workers} if threads else {"n_workers": workers, "threads_per_worker": 1}
    with (
        distributed.LocalCluster(**counts, dashboard_address=None, memory_limit=memory_limit) as cluster,
        distributed.Client(cluster) as client,
    ):
        client.wait_for_workers(counts["n_workers"])
        yield client


Persist = Callable[[Any], Any]


@contextmanager
def dask_scheduler(system: str, workers: int = WORKERS, *, memory_limit: int = 0, **options: Any) -> Iterator[Persist]:
    """Let Dask's collections compute on this system; yield a function that persists a collection and waits for it."""
    if system in (DASK, DASK_THREADS):
        distributed = importlib.import_module("distributed")
        with dask_client(workers, threads=system == DASK_THREADS, memory_limit=memory_limit):

            def persist_there(collection: Any) -> Any:
                persisted = collection.persist()
                distributed.wait(persisted)
                return persisted

            yield persist_there
        return
    with connected(MINRAY if system == DASK_ON_MINRAY else RAY, workers, **options):
        module, enable, wait = {
            DASK_ON_MINRAY: ("minray.util.dask", "enable_dask_on_minray", wait_for_futures),
            DASK_ON_RAY: ("ray.util.dask", "enable_dask_on_ray", wait_for_refs),
        }[system]

        def persist(collection: Any) -> Any:
            persisted = collection.persist()
            wait(persisted)
            return persisted

        with getattr(importlib.import_module(module), enable)():
            yield persist


def wait_for_futures(persisted: Any) -> None:
    importlib.import_module("minray.util.dask").wait(persisted)


def wait_for_refs(persisted: Any) -> None:
    """Wait for a collection persisted by Dask on Ray, which leaves references in the collection's graph."""
    ray = library(RAY)
    refs = [value for value in dict(persisted.__dask_graph__()).values() if isinstance(value, ray.ObjectRef)]
    assert refs, f"nothing of {persisted} is in Ray's object store"
    ray.wait(refs, num_returns=len(refs), fetch_local=False)


def seconds(call: Callable[[], Any]) -> float:
    """Return the seconds that a call takes."""
    begun = time.perf_counter()
    call()
    return time.perf_counter() - begun
