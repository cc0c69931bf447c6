"""How fast actors are made and what they weigh, for minray and Ray alike.

    python -m benchmarks.actors minray [--idle 1000] [--rounds 3]

``twenty``: from the first ``remote()`` to the last answer of 20 actors, created and called once each, in a fresh cluster;
the median of the rounds. ``idle``: so many actors alive at once, each called once; actors per second, and the growth of the
proportional set size (PSS) of all processes of the cluster per actor. Ray cannot hold a thousand processes of its own
on a small machine: give it fewer. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import importlib
import json
import statistics
import sys
import time
from typing import Any

import psutil

TWENTY = 20
BATCH = 100


def seconds_for_twenty(ray: Any) -> float:
    @ray.remote(num_cpus=0)
    class Actor:
        def answer(self) -> int:
            return 1

    ray.init(num_cpus=2, logging_level="ERROR", log_to_driver=False)
    start = time.perf_counter()
    actors = [Actor.remote() for _ in range(TWENTY)]
    ray.get([actor.answer.remote() for actor in actors])
    seconds = time.perf_counter() - start
    del actors
    ray.shutdown()
    return seconds


def idle_actors(ray: Any, count: int) -> dict[str, float]:
    @ray.remote(num_cpus=0)
    class Actor:
        def answer(self) -> int:
            return 1

    ray.init(num_cpus=2, logging_level="ERROR", log_to_driver=False)
    before = cluster_pss_bytes()
    start = time.perf_counter()
    actors: list[Any] = []
    while len(actors) < count:
        more = [Actor.remote() for _ in range(min(BATCH, count - len(actors)))]
        ray.get([actor.answer.remote() for actor in more])
        actors += more
        print(f"  {len(actors)} actors after {time.perf_counter() - start:.1f} s", file=sys.stderr)
    seconds = time.perf_counter() - start
    bytes_each = (cluster_pss_bytes() - before) / count
    start = time.perf_counter()
    ray.get([actor.answer.remote() for actor in actors])
    all_s = time.perf_counter() - start
    start = time.perf_counter()
    ray.shutdown()
    shutdown_s = time.perf_counter() - start
    return {
        "actors": count,
        "created per second": count / seconds,
        "MB each (PSS)": bytes_each / 1e6,
        "all called once (s)": all_s,
        "shutdown (s)": shutdown_s,
    }


def cluster_pss_bytes() -> int:
    """Of this process and all below it."""
    total = 0
    driver = psutil.Process()
    for process in [driver, *driver.children(recursive=True)]:
        try:
            total += process.memory_full_info().pss
        except psutil.Error:  # It has ended meanwhile.
            continue
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", choices=["minray", "ray"])
    parser.add_argument("--idle", type=int, default=1000, help="how many actors to keep alive; 0: none")
    parser.add_argument("--rounds", type=int, default=3)
    arguments = parser.parse_args()
    ray = importlib.import_module(arguments.library)
    seconds = [seconds_for_twenty(ray) for _ in range(arguments.rounds)]
    results: dict[str, Any] = {"twenty (s)": statistics.median(seconds), "rounds (s)": seconds}
    if arguments.idle:
        results["idle"] = idle_actors(ray, arguments.idle)
    print(json.dumps(results))


if __name__ == "__main__":
    main()
