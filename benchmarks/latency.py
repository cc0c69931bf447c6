"""Latency of an actor call whose result is awaited, compared with a call of a gRPC server and a byte on a socket."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from benchmarks.document import DASK, MINRAY, Sample, Size
from benchmarks.peers import GrpcPeer, echoing
from benchmarks.systems import connected, dask_client
from benchmarks.transfer import GRPC, MINRAY_GRPC, RAW_SOCKETS

NAME = "latency"


class Actor:
    def call(self, argument: bytes) -> bytes:
        return b"ok"


@contextmanager
def _caller(system: str) -> Iterator[Callable[[], Any]]:
    if system == GRPC:
        with GrpcPeer() as peer:
            yield peer.caller()
    elif system == RAW_SOCKETS:
        with echoing() as call:
            yield call
    elif system == DASK:
        with dask_client() as client:
            on_dask = client.submit(Actor, actor=True).result()
            yield lambda: on_dask.call(b"x").result()
    else:
        options: dict[str, Any] = {"_system_config": {"transport": "grpc"}} if system == MINRAY_GRPC else {}
        with connected(MINRAY if system == MINRAY_GRPC else system, **options) as ray:
            actor = ray.remote(Actor).remote()
            yield lambda: ray.get(actor.call.remote(b"x"))


def measure(system: str, size: Size) -> Iterator[Sample]:
    """Yield medians of many calls, in microseconds."""
    calls = size.pick(2000, 300, 3)
    with _caller(system) as call:
        for number in range(size.pick(3, 2, 1) + 1):
            median_s = statistics.median(_times(call, calls))
            if number or size is Size.TINY:
                yield Sample(NAME, "a call and its answer", 1e6 * median_s)


def _times(call: Callable[[], Any], calls: int) -> Iterator[float]:
    for _ in range(calls):
        begun = time.perf_counter()
        call()
        yield time.perf_counter() - begun
