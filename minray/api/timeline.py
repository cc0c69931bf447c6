"""``minray.timeline``: when each worker ran which tasks.

Ray: ray.timeline in python/ray/_private/state.py

It asks all workers of the cluster for the tasks that they have run, and the gcs for those of dead workers.
``minray/observability/chrome_trace.py`` describes the form of the trace. ``minray timeline`` writes the same file from
outside of the cluster.
"""

from __future__ import annotations

import warnings

from minray.api.calls import ask_cluster
from minray.observability.chrome_trace import TraceEvent, trace_events, write_trace
from minray.observability.state_reader import describe_dropped

TIMEOUT_S = 30.0
"""Seconds that a worker has to answer before a warning names it as silent."""


def timeline(filename: str | None = None) -> list[TraceEvent] | None:
    """Return the last ten thousand tasks and calls of each worker, as a list of Chrome trace events.

    The gcs keeps a limited number of tasks of dead workers; their oldest are dropped first. With ``RAY_PROFILING=1`` in the
    environment of ``init``, tasks of living workers have events for their phases, such as ``task:execute``.

    With ``filename`` write the list to that file as JSON, and return None. Tasks with ``enable_task_events=False`` are left
    out. Warns with a RuntimeWarning for each worker that does not answer. Raises RuntimeError if this process is not
    connected.
    """
    profile = ask_cluster(lambda reader: reader.profile(TIMEOUT_S), "what it has run is not in the timeline")
    if profile.dropped:
        warnings.warn(describe_dropped(profile.dropped), RuntimeWarning, stacklevel=2)
    events = trace_events(profile.workers)
    if filename is None:
        return events
    write_trace(filename, events)
    return None
