"""``minray.timeline``: when each worker has run what.

Ray: ray.timeline in python/ray/_private/state.py

It asks all workers of the cluster for what they have run. The form of the trace is that of
``minray/observability/chrome_trace.py``, and ``minray timeline`` writes the same file from outside of the cluster.
"""

from __future__ import annotations

from minray.api.calls import ask_cluster
from minray.observability.chrome_trace import TraceEvent, trace_events, write_trace

TIMEOUT_S = 30.0
"""Seconds that a worker has to answer before it is named as silent."""


def timeline(filename: str | None = None) -> list[TraceEvent] | None:
    """What the living workers have run, the last ten thousand tasks and calls of each, as a list of trace events.

    With ``filename`` the list is written there, as JSON, and None returned. Tasks with ``enable_task_events=False`` are left
    out. A worker that does not answer is named by a RuntimeWarning. RuntimeError if this process is not connected.
    """
    profile = ask_cluster(lambda reader: reader.profile(TIMEOUT_S), "what it has run is not in the timeline")
    events = trace_events(profile.workers)
    if filename is None:
        return events
    write_trace(filename, events)
    return None
