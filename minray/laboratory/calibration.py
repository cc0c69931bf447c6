"""Measures the entries of the cost model that one machine can show: memory, pickling, disk, latency, starts of workers.

Ray: has no counterpart

    costs, told = calibrate(Path("/tmp"), "arrays")

Rules
  * Each entry is the median of several measurements, rounded to three digits: more would pretend to be exact.
  * Entries about the network between machines are not measured, and keep their defaults. ``NOT_MEASURED`` names them.
  * The start of a worker is measured on a cluster of this machine: the first task of a fresh worker, less a second one.

Left out: reads that the system's cache cannot serve, where the system has no ``posix_fadvise``.
"""

from __future__ import annotations

import logging
import os
import pickle
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import median
from typing import Any

import msgspec
import numpy

import minray
from minray.laboratory.cost_model import CostModel

ROUNDS = 5
"""Number of measurements of each entry."""
COPY_BYTES = 64 << 20
DISK_BYTES = 32 << 20
"""Bytes of a copy and of a file, more than the caches of a processor hold."""
PINGS = 500
"""Number of messages there and back of one measurement of the latency."""
SMALL_OBJECTS = 20_000
"""Number of dictionaries in the value ``objects``, which is then about a megabyte when pickled."""
VALUES: dict[str, Callable[[], Any]] = {
    "arrays": lambda: numpy.ones(COPY_BYTES // 8),
    "objects": lambda: [{"name": f"row {number}", "score": number / 7} for number in range(SMALL_OBJECTS)],
}
"""Kinds of values whose pickling can be measured: arrays travel as they are, lists of objects do not."""
NOT_MEASURED = ("node_bytes_per_s", "rack_nodes", "rack_bytes_per_s", "rack_latency_s", "core_latency_s")


def calibrate(folder: Path, values: str) -> CostModel:
    """Measure this machine. ``folder`` is on the disk to measure, ``values`` a key of ``VALUES``. Raises OSError."""
    write_s, read_s, seek_s = (median(column) for column in zip(*(_disk(folder) for _ in range(ROUNDS)), strict=True))
    dump_s_per_mb, load_s_per_mb = _pickling(VALUES[values]())
    measured = {
        "write_s": median(_write_s() for _ in range(ROUNDS)),
        "local_latency_s": median(_latency_s() for _ in range(ROUNDS)),
        "memory_bytes_per_s": COPY_BYTES / median(_copy_s() for _ in range(ROUNDS)),
        "serialise_s_per_mb": dump_s_per_mb,
        "deserialise_s_per_mb": load_s_per_mb,
        "disk_seek_s": seek_s,
        "disk_read_bytes_per_s": DISK_BYTES / read_s,
        "disk_write_bytes_per_s": DISK_BYTES / write_s,
        "worker_start_s": _worker_start_s(),
    }
    return msgspec.structs.replace(CostModel(), **{name: float(f"{value:.3g}") for name, value in measured.items()})


def _timed(call: Callable[[], object]) -> float:
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def _copy_s() -> float:
    source, target = numpy.ones(COPY_BYTES, numpy.uint8), numpy.ones(COPY_BYTES, numpy.uint8)
    return _timed(lambda: numpy.copyto(target, source))


def _pickling(value: Any) -> tuple[float, float]:
    """Return the seconds to pickle and to unpickle a megabyte of this value, with buffers beside the pickle."""
    buffers: list[pickle.PickleBuffer] = []
    pickled = pickle.dumps(value, 5, buffer_callback=buffers.append)
    size = len(pickled) + sum(len(buffer.raw()) for buffer in buffers)
    dump_s = median(_timed(lambda: pickle.dumps(value, 5, buffer_callback=lambda buffer: None)) for _ in range(ROUNDS))
    load_s = median(_timed(lambda: pickle.loads(pickled, buffers=buffers)) for _ in range(ROUNDS))
    return dump_s / size * 1e6, load_s / size * 1e6


def _disk(folder: Path) -> tuple[float, float, float]:
    """Return the seconds to write and sync a file, to read it, and to read one byte of it."""
    content = bytes(range(256)) * (DISK_BYTES >> 8)
    with tempfile.NamedTemporaryFile(dir=folder, prefix="minray-calibrate-", buffering=0) as file:
        descriptor = file.fileno()

        def write() -> None:
            file.write(content)
            os.fsync(descriptor)

        def read(size: int) -> None:
            file.seek(0)
            file.read(size)

        def forget() -> None:
            if hasattr(os, "posix_fadvise"):
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)

        write_s = _timed(write)
        forget()
        seek_s = _timed(lambda: read(1))
        forget()
        return write_s, _timed(lambda: read(DISK_BYTES)), seek_s


def _write_s() -> float:
    """Return the seconds of one small write, here to a pipe."""
    reader, writer = os.pipe()
    try:
        took_s = 0.0
        for _ in range(PINGS):
            took_s += _timed(lambda: os.write(writer, b"x"))
            os.read(reader, 1)
    finally:
        os.close(reader)
        os.close(writer)
    return took_s / PINGS


def _latency_s() -> float:
    """Return the seconds of one message through a pipe to a thread that waits, half of the way there and back."""
    there, back = os.pipe(), os.pipe()

    def answer() -> None:
        for _ in range(PINGS):
            os.write(back[1], os.read(there[0], 1))

    def ask() -> None:
        for _ in range(PINGS):
            os.write(there[1], b"x")
            os.read(back[0], 1)

    try:
        with ThreadPoolExecutor(1) as pool:
            answered = pool.submit(answer)
            took_s = _timed(ask)
            answered.result()
    finally:
        for descriptor in (*there, *back):
            os.close(descriptor)
    return took_s / PINGS / 2


def _worker_start_s() -> float:
    """Return the seconds by which a task takes longer if its worker has yet to start."""

    def nothing() -> None:
        pass

    config = {"num_prestart_workers": 0}
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    with minray.init(address="local", num_cpus=1, _system_config=config, **quiet):
        task = minray.remote(nothing)
        first_s = _timed(lambda: minray.get(task.remote()))
        return max(0.0, first_s - _timed(lambda: minray.get(task.remote())))
