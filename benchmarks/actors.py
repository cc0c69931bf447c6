"""Time and memory of making actors, for minray and Ray.

First, twenty actors are created in a new cluster and called once each; the time is from the first ``remote()`` to the last
answer. Then many actors live at once, each called once. This gives seconds for each actor, and how much the proportional set
size (PSS) of all processes of the cluster grows with each. Ray has fewer actors, since a small machine cannot hold a
thousand of its processes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from benchmarks.document import MINRAY, Sample, Size, Target
from benchmarks.start_and_stop import cluster_pss_bytes
from benchmarks.systems import connected, seconds

NAME, MEMORY = "actors", "memory of an actor"
TWENTY = "20 actors created and called"
TARGETS = {TWENTY: Target(limit=0.3)}
BATCH = 100


def measure(system: str, size: Size) -> Iterator[Sample]:
    for _ in range(size.pick(3, 1, 1)):
        with connected(system) as ray:
            yield Sample(NAME, TWENTY, seconds(lambda: create(ray, 20)))
    count = size.pick(1000, 40, 2) if system == MINRAY else size.pick(40, 10, 2)
    with connected(system) as ray:
        before = cluster_pss_bytes()
        begun = time.perf_counter()
        actors: list[Any] = []
        while len(actors) < count:
            actors += create(ray, min(BATCH, count - len(actors)))
        yield Sample(NAME, "each of many, created and called", (time.perf_counter() - begun) / count)
        yield Sample(MEMORY, "each of many", (cluster_pss_bytes() - before) / count / 1e6)


def create(ray: Any, count: int) -> list[Any]:
    @ray.remote(num_cpus=0)
    class Actor:
        def answer(self) -> int:
            return 1

    actors = [Actor.remote() for _ in range(count)]
    assert ray.get([actor.answer.remote() for actor in actors]) == [1] * count
    return actors
