"""Finds the workload that a word of the command line means: a file of a known format, or a load to generate.

Ray: has no counterpart

    workload_of("montage.json", seed=7)              a trace: WfCommons, DAGBench, a timeline, or minray's own format
    workload_of("fft:width=16,count=4", seed=7)      a generated load: see ``generator``

A file is recognised by what is in it, never by its name. Node failures are a file of their own (``failures_in``), because
the same workload is run with and without them.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from minray.laboratory.generator import Load, generate
from minray.laboratory.shapes import SHAPES
from minray.laboratory.traces import dagbench, timeline, wfcommons
from minray.laboratory.workload import FORMAT, NodeFailure, TraceError, Workload, checked, decode

MAX_BYTES = 1 << 30
"""The largest trace that is read, in bytes: it is decoded in memory."""

READERS: list[tuple[str, Callable[[Any], bool], Callable[[Any, str], Workload]]] = [
    ("WfCommons JSON (an object with workflow)", wfcommons.is_one, wfcommons.read),
    ("a DAGBench graph (an object with task_graph)", dagbench.is_one, dagbench.read),
    ("a Chrome trace of a timeline (a list, or an object with traceEvents)", timeline.is_one, timeline.read),
]
"""(name, whether a decoded file has this format, its reader)."""


def workload_of(source: str, seed: int) -> Workload:
    """Read or generate a workload. The seed decides what is generated. Raises TraceError."""
    path = Path(source)
    if path.exists():
        return read(path)
    if source.partition(":")[0] in SHAPES:
        return generate(Load.parse(source), seed)
    raise TraceError(f"{source} is neither a file nor a load; loads begin with {', '.join(SHAPES)}, as in fft:width=16")


def read(path: Path) -> Workload:
    """Read a trace of any known format. Raises TraceError."""
    content = _content(path)
    try:
        decoded = msgspec.json.decode(content)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{path} is no JSON: {error}. It may be cut off; compare its size with the original") from None
    if isinstance(decoded, dict) and decoded.get("format") == FORMAT:
        return decode(content, str(path))
    for _, is_one, reader in READERS:
        if is_one(decoded):
            return checked(reader(decoded, str(path)), str(path))
    names = "; ".join([f"minray's own (an object with the format {FORMAT})", *(name for name, _, _ in READERS)])
    raise TraceError(f"{path} has no known format. Known are: {names}")


def _content(path: Path) -> bytes:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise TraceError(f"{path} has {path.stat().st_size} bytes; a trace may have {MAX_BYTES}. Cut it into several")
        return path.read_bytes()
    except OSError as error:
        raise TraceError(f"cannot read {path}: {error.strerror}") from None


def failures_in(path: Path) -> tuple[NodeFailure, ...]:
    """Read node failures: a JSON list of objects with ``node``, ``down_s`` and perhaps ``up_s``. Raises TraceError."""
    try:
        return msgspec.json.decode(_content(path), type=tuple[NodeFailure, ...])
    except (ValueError, RecursionError) as error:
        example = '[{"node": 2, "down_s": 10.0, "up_s": 60.0}]'
        raise TraceError(f"{path} is no list of node failures: {error}. Write one such as {example}") from None
