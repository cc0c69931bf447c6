"""Transfer of objects from node to node, by streams, and throughput of tasks, by nodes. All nodes are on this machine.

A task on one node makes an array, and a ``get`` of it on another node is measured. The first time the receiver's memory is
fresh (cold); later it is reused (warm). Raw sockets move as many bytes between two processes, from warm memory to warm
memory, with a thread for each stream on both sides. gRPC's Python library reads them in messages of 1 MiB, with a channel
for each stream. Dask moves the array from one worker to another.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from benchmarks.document import DASK, MINRAY, Sample, Size
from benchmarks.peers import HOST, MEBIBYTE, GrpcPeer, RawSockets
from benchmarks.systems import cluster, dask_client, seconds

NAME, BY_NODES = "transfer", "throughput by nodes"
MINRAY_GRPC, RAW_SOCKETS, GRPC = "minray over gRPC", "raw sockets", "gRPC Python"
AS_IT_COMES, COLD = "default settings", "default settings, first time"


def measure(system: str, size: Size) -> Iterator[Sample]:
    length = size.pick(1024, 256, 1) * MEBIBYTE
    times = size.pick(3, 2, 1)

    def samples(row: str, transfers: Iterator[float]) -> Iterator[Sample]:
        for taken_s in transfers:
            yield Sample(NAME, row, length / taken_s / 1e9)

    if system in (RAW_SOCKETS, GRPC, MINRAY):
        streams_of = {RAW_SOCKETS: _raw, GRPC: _grpc, MINRAY: _lanes}[system]
        for streams in size.pick((1, 2, 4), (1, 2), (1,)):
            row = f"{streams} stream{'s' * (streams > 1)}"
            yield from samples(row, streams_of(streams, length, times))
    if system == DASK:
        yield from samples(AS_IT_COMES, _dask(length, times))
    elif system not in (RAW_SOCKETS, GRPC):
        first, *later = _between_nodes(system, length, times)
        yield from samples(COLD, iter([first]))
        yield from samples(AS_IT_COMES, iter(later))


def _raw(streams: int, length: int, times: int) -> Iterator[float]:
    with RawSockets(streams, length) as sockets:
        sockets.transfer()
        for _ in range(times):
            yield sockets.transfer()


def _grpc(streams: int, length: int, times: int) -> Iterator[float]:
    with GrpcPeer(streams) as peer:
        peer.read(length)
        for _ in range(times):
            yield seconds(lambda: peer.read(length))


def _lanes(streams: int, length: int, times: int) -> Iterator[float]:
    yield from list(_between_nodes(MINRAY, length, times, object_manager_lanes=streams))[1:]


def _between_nodes(system: str, length: int, times: int, **config: Any) -> Iterator[float]:
    """Yield the seconds of each transfer; the first one is cold."""
    if system == MINRAY_GRPC:
        system, config = MINRAY, {"transport": "grpc"}
    with _two_nodes(system, length, **config) as ray:
        make = ray.remote(resources={"node 1": 1})(_make)
        for _ in range(1 + times):
            ref = make.remote(length)
            ray.wait([ref], fetch_local=False)
            begun = time.perf_counter()
            ray.get(ref)
            yield time.perf_counter() - begun


@contextmanager
def _two_nodes(system: str, length: int, **config: Any) -> Iterator[Any]:
    store = {"object_store_memory": 2 * length + 100 * MEBIBYTE}
    with cluster(system, [store, store], tcp_host=HOST, **config) as ray:
        yield ray


def _make(length: int) -> Any:
    return np.ones(length, np.uint8)


def _length(array: Any) -> int:
    return len(array)


def _dask(length: int, times: int) -> Iterator[float]:
    from distributed import wait

    with dask_client(2) as client:
        first, second = client.scheduler_info()["workers"]
        for _ in range(1 + times):
            made = client.submit(_make, length, workers=[first], pure=False)
            wait(made)
            yield seconds(lambda: client.submit(_length, made, workers=[second], pure=False).result())  # noqa: B023


def measure_by_nodes(system: str, size: Size) -> Iterator[Sample]:
    """Measure the tasks per second of all nodes together; on each node a client submits tasks."""
    count = size.pick(4000, 500, 5)
    for nodes in size.pick((1, 2, 4), (1, 2), (1,)):
        per_second = _by_dask(nodes, count) if system == DASK else _by_clients(system, nodes, count)
        for rate in [next(per_second) for _ in range(size.pick(1, 2, 1))]:
            yield Sample(BY_NODES, "tasks without work", rate, nodes)
        per_second.close()


def _by_clients(system: str, nodes: int, count: int) -> Generator[float, None, None]:
    with cluster(system, [{"num_cpus": 1}] * nodes) as ray:

        def nothing() -> None:
            pass

        remote = ray.remote(nothing)

        def client(tasks: int) -> None:
            ray.get([remote.remote() for _ in range(tasks)])

        clients = [ray.remote(num_cpus=0, resources={f"node {number}": 1})(client) for number in range(nodes)]
        ray.get([each.remote(10) for each in clients])
        while True:
            taken_s = seconds(lambda: ray.get([each.remote(count) for each in clients]))
            yield nodes * count / taken_s


def _by_dask(nodes: int, count: int) -> Generator[float, None, None]:
    with dask_client(nodes) as client:
        client.gather(client.map(_length, ["x"] * 10 * nodes, pure=False))
        while True:
            taken_s = seconds(lambda: client.gather(client.map(_length, ["x"] * nodes * count, pure=False)))
            yield nodes * count / taken_s
