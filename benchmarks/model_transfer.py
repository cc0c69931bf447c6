"""Transfer of a model from the actor that has it to actors that need it, on one machine: cases 3 and 4 of the slides.

The download actor has put the model before. The measured time is from the call of the process actors until each of them has
read the model. Process actors are on another node than the download actor (case 3), or on the same node (case 4). "Too
early" is the mistake on slide 49: the driver dereferences the reference before it passes it on, and the model travels by
value.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.document import DASK, Sample, Size
from benchmarks.peers import HOST
from benchmarks.systems import cluster, dask_client, seconds

NAME = "model on one machine"
PAGE_BYTES = 4096
CASE_3, CASE_4, EARLY = "case 3: another node of this machine", "case 4: the same node", "dereferenced too early"


class Download:
    """The download actor, which has the model."""

    def __init__(self, ray: Any, size: int) -> None:
        self._ray, self._size = ray, size

    def put(self) -> list[Any]:
        return [self._ray.put(np.ones(self._size, np.uint8))]


class Process:
    """The process actor, which needs the model."""

    def __init__(self, ray: Any) -> None:
        self._ray = ray

    def load(self, model: list[Any]) -> int:
        return read(self._ray.get(model[0]))

    def take(self, model: Any) -> int:
        return read(model)


def read(model: Any) -> int:
    """Read one byte of each page, and return their sum."""
    return int(model[::PAGE_BYTES].sum())


def model_bytes(size: Size) -> int:
    return int(size.pick(563_000_000, 100_000_000, 100_000))


def measure(system: str, size: Size) -> Iterator[Sample]:
    length, times = model_bytes(size), size.pick(3, 2, 1)
    if system == DASK:
        yield from _by_dask(length, times)
        return
    store = {"num_cpus": 2, "object_store_memory": 4 * length + (100 << 20)}
    with cluster(system, [store, store], tcp_host=HOST) as ray:
        for row, node in {CASE_3: 1, CASE_4: 0}.items():
            for actors in (1, 2):
                yield from _case(ray, row, [node] * actors, length, times)
        yield from _case(ray, EARLY, [1], length, times)


def _case(ray: Any, row: str, nodes: list[int], length: int, times: int) -> Iterator[Sample]:
    def on(node: int, actor: type, *arguments: Any) -> Any:
        return ray.remote(num_cpus=0, resources={f"node {node}": 1})(actor).remote(ray, *arguments)

    download = on(0, Download, length)
    processes = [on(node, Process) for node in nodes]
    ray.get([process.take.remote(np.ones(1)) for process in processes])
    for _ in range(times):
        model = ray.get(download.put.remote())

        def load(model: list[Any] = model) -> None:
            if row == EARLY:
                expect(ray.get([process.take.remote(ray.get(model[0])) for process in processes]), length)
            else:
                expect(ray.get([process.load.remote(model) for process in processes]), length)

        yield Sample(NAME, named(row, len(nodes)), seconds(load))
        del model, load


def _by_dask(length: int, times: int) -> Iterator[Sample]:
    """Measure Dask, whose workers do not share memory: case 3 is another worker of this machine, case 4 the same worker."""
    from distributed import wait

    with dask_client(3) as client:
        first, *others = client.scheduler_info()["workers"]
        for row, actors in ((CASE_3, 1), (CASE_3, 2), (CASE_4, 1)):
            for _ in range(times):
                model = client.submit(np.ones, length, np.uint8, workers=[first], pure=False)
                wait(model)
                targets = others[:actors] if row == CASE_3 else [first]

                def load(model: Any = model, targets: list[str] = targets) -> None:
                    loads = [client.submit(read, model, workers=[target], pure=False) for target in targets]
                    expect(client.gather(loads), length)

                yield Sample(NAME, named(row, actors), seconds(load))


def expect(found: list[int], length: int) -> None:
    assert set(found) == {-(-length // PAGE_BYTES)}, found


def named(row: str, actors: int) -> str:
    return f"{row}, {actors} actor{'s' * (actors > 1)}"
