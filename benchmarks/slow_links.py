"""Cases 1 and 2 of the transfer slides: a model goes to actors on other machines, by links as slow as in the slides.

Machines are those of ``benchmarks.namespaces``. The driver is a process on the first one, like the download actor:
``python -m benchmarks.slow_links SYSTEM ADDRESS BYTES TIMES ACTORS...`` prints one line of JSON.
"""

from __future__ import annotations

import json
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.document import DASK, MINRAY, Sample, Size
from benchmarks.model_transfer import Download, Process, expect, model_bytes, read
from benchmarks.namespaces import Machines, why_not
from benchmarks.systems import library, seconds

NAME, GROWTH = "model to machines", "model to machines, by the time to one"
LINK_BYTES_PER_S = 563e6 / 4.0
"""Bytes per second of a link: the 563 MB in 4.0 s of slide 10."""
PORT = 6379
PATIENCE_S = 240


def measure(system: str, size: Size) -> Iterator[Sample]:
    refused = why_not()
    if refused:
        raise RuntimeError(refused)
    actors = size.pick((1, 2, 3, 4, 5), (1, 3), (1,))
    length = model_bytes(size)
    with tempfile.TemporaryDirectory(prefix="m") as folder, Machines(1 + max(actors), LINK_BYTES_PER_S) as machines:
        token = secrets.token_hex(16)
        environment = {"MINRAY_TMPDIR": folder, "MINRAY_TOKEN": token, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
        for number in range(1 + max(actors)):
            mine = str(Path(folder, str(number)))
            Path(mine).mkdir()
            own = {**environment, "RAY_TMPDIR": mine, "TMPDIR": mine}
            if system == DASK:
                for command in _dask_commands(machines, number):
                    machines.start(number, command, own)
                    machines.wait_for_port(0, PORT, PATIENCE_S)
            else:
                machines.run(number, _start(system, machines, number, 3 * length + (100 << 20)), own)
        address = f"{machines.address(0)}:{PORT}"
        words = [sys.executable, "-m", "benchmarks.slow_links", system, address, length, size.pick(2, 2, 1), *actors]
        said = machines.output(0, words, environment | {"RAY_TMPDIR": str(Path(folder, "0"))})
        times: dict[str, list[float]] = json.loads(said.splitlines()[-1])
    for count, taken in times.items():
        for taken_s, one_s in zip(taken, times[str(min(actors))], strict=True):
            yield Sample(NAME, "until all have read it", taken_s, int(count))
            if len(actors) > 1:
                yield Sample(GROWTH, "until all have read it", taken_s / one_s, int(count))


def _start(system: str, machines: Machines, number: int, store: int) -> list[Any]:
    """Return the command that starts a machine's node; the first one is the head."""
    head, own = machines.address(0), machines.address(number)
    words = ["-m", "minray" if system == MINRAY else "ray.scripts.scripts", "start", "--node-ip-address", own]
    joined = ["--address", f"{head}:{PORT}"] if number else ["--head", "--port", PORT]
    resources = ["--num-cpus", 1, "--object-store-memory", store, "--resources", json.dumps({f"node {number}": 1000})]
    return [sys.executable, *words, *joined, *resources]


def _dask_commands(machines: Machines, number: int) -> list[list[Any]]:
    """Return the commands that start a machine's processes: a worker, and on the first machine also the scheduler."""
    head, own = machines.address(0), machines.address(number)
    scheduler = ["-m", "distributed.cli.dask_scheduler", "--host", own, "--port", PORT, "--no-dashboard"]
    options = ["--nworkers", 1, "--nthreads", 1, "--memory-limit", 0, "--no-dashboard", "--name", number]
    worker = ["-m", "distributed.cli.dask_worker", f"tcp://{head}:{PORT}", "--host", own, *options]
    return [[sys.executable, *words] for words in ([worker] if number else [scheduler, worker])]


# --- the driver


def drive_ray(system: str, address: str, length: int, times: int, actors: list[int]) -> dict[int, list[float]]:
    ray = library(system)
    _patiently(lambda: ray.init(address=address, logging_level="ERROR", log_to_driver=False))
    _patiently(lambda: _all_there(len(ray.nodes()), 1 + max(actors)))

    def on(node: int, actor: type, *arguments: Any) -> Any:
        return ray.remote(num_cpus=0, resources={f"node {node}": 1})(actor).remote(ray, *arguments)

    download = on(0, Download, length)
    processes = [on(1 + number, Process) for number in range(max(actors))]
    ray.get([process.take.remote(np.ones(1)) for process in processes])

    def once(count: int) -> float:
        model = ray.get(download.put.remote())
        return seconds(lambda: expect(ray.get([process.load.remote(model) for process in processes[:count]]), length))

    found = {count: [once(count) for _ in range(times)] for count in actors}
    ray.shutdown()
    return found


def drive_dask(address: str, length: int, times: int, actors: list[int]) -> dict[int, list[float]]:
    from distributed import Client, wait

    client = Client(f"tcp://{address}", timeout=PATIENCE_S)
    client.wait_for_workers(1 + max(actors), timeout=PATIENCE_S)
    workers = sorted(client.scheduler_info(n_workers=-1)["workers"].items(), key=lambda item: int(item[1]["name"]))
    first, *others = [there for there, _ in workers]

    def once(count: int) -> float:
        model = client.submit(np.ones, length, np.uint8, workers=[first], pure=False)
        wait(model)

        def load() -> None:
            loads = [client.submit(read, model, workers=[target], pure=False) for target in others[:count]]
            expect(client.gather(loads), length)

        return seconds(load)

    found = {count: [once(count) for _ in range(times)] for count in actors}
    client.close()
    return found


def _all_there(found: int, expected: int) -> None:
    if found < expected:
        raise ConnectionError(f"{found} of {expected} nodes are there")


def _patiently(call: Any) -> None:
    """Call a function again and again until it succeeds, while nodes are still starting.

    Raises its last error after PATIENCE_S seconds.
    """
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            call()
            return
        except (ConnectionError, RuntimeError, ValueError):
            if time.monotonic() > deadline:
                raise
            time.sleep(0.5)


def main() -> None:
    system, address, *numbers = sys.argv[1:]
    length, times, *actors = map(int, numbers)
    if system == DASK:
        print(json.dumps(drive_dask(address, length, times, actors)))
    else:
        print(json.dumps(drive_ray(system, address, length, times, actors)))


if __name__ == "__main__":
    main()
