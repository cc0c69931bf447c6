"""The dashboard: a web server that shows a running cluster, read-only unless it is told otherwise.

Ray: python/ray/dashboard/

``server`` answers over HTTP with aiohttp, which no other part of minray imports. The page in ``page/`` is plain HTML, CSS
and JavaScript, and asks no other host. These are the paths; docs/dashboard.md explains them to users.

    GET  /                          the page; /page/NAME are its files
    GET  /api/cluster               one object: version, session, address, state of the connection, counts, resources
    GET  /api/TABLE                 nodes workers jobs actors tasks objects placement_groups
    GET  /api/TABLE/ID              {"row": {...}, "silent": [...]}; ID may be the beginning of an id
    GET  /api/tasks/summary         {"rows": [{"name", "type", "states": {STATE: COUNT}, "total"}], "total", ...}
    GET  /api/waits                 {"vertices": [...], "edges": [...], "cycles": [[ID, ...]], ...}: who waits for whom
    GET  /api/why/ID                {"id", "lines": [...]}; ID is that of a task, an object, an actor or a placement group
    GET  /api/timeline              a Chrome trace, as a download
    GET  /api/stacks?process=ID     {"processes": [...], "silent": [...]}; without process: all
    GET  /api/logs                  a table of log files; /api/logs/NODE/FILE?tail=N&search=TEXT: {"lines": [...], ...}
    GET  /api/logs/NODE/FILE/follow server-sent events: {"lines": [...]}
    GET  /api/metrics/history       {"period_s", "samples": [{"time", "series": {NAME: VALUE}}]}
    GET  /api/events?tables=a,b     server-sent events: {"tables": [changed, ...], "cluster": {...}}
    GET  /metrics                   Prometheus's text format
    POST /api/control/cancel        {"task_id", "force", "recursive"}
    POST /api/control/kill          {"actor_id", "no_restart"}
    POST /api/control/drain         {"node_id", "message", "is_preempted", "deadline_remaining_seconds"}

Every table takes ``filter=KEY=VALUE`` and ``filter=KEY!=VALUE`` (all must hold), ``search``, ``sort`` (``-KEY`` is
descending), ``limit`` and ``offset``. It answers ``{"rows", "columns", "total", "matching", "limit", "offset", "left_out",
"notes", "silent"}``. ``total`` counts all rows of the cluster, ``matching`` those that fit. ``left_out`` rows of ``total``
are known as a number only, and ``notes`` says why in sentences. ``silent`` names each process that did not answer in time.

An error is ``{"error": SENTENCE}`` with its status. A POST needs the header ``X-Minray-Dashboard: 1`` and the page's origin.
"""
