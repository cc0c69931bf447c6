"""``minray.timeline``: when each worker ran which tasks.

Ray: ray.timeline in python/ray/_private/state.py

It asks all workers of the cluster for the tasks that they have run. ``minray/observability/chrome_trace.py`` describes the
form of the trace. ``minray timeline`` writes the same file from outside of the cluster.
"""

from __future__ import annotations

from minray.api.calls import ask_cluster
from minray.observability.chrome_trace import TraceEvent, trace_events, write_trace

TIMEOUT_S = 30.0
"""Seconds that a worker has to answer before a warning names it as silent."""


def timeline(filename: str | None = None) -> list[TraceEvent] | None:
    """Return the last ten thousand tasks and calls of each living worker, as a list of Chrome trace events.

    With ``RAY_PROFILING=1`` in the environment of ``init``, they have events for their phases, such as ``task:execute``.

    With ``filename`` write the list to that file as JSON, and return None. Tasks with ``enable_task_events=False`` are left
    out. Warns with a RuntimeWarning for each worker that does not answer. Raises RuntimeError if this process is not
    connected.
    """
    profile = ask_cluster(lambda reader: reader.profile(TIMEOUT_S), "what it has run is not in the timeline")
    events = trace_events(profile.workers)
    if filename is None:
        return events
    write_trace(filename, events)
    return None
