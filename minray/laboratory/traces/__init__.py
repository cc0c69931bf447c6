"""Readers of traces: each turns the content of a file of one format into a ``Workload``.

Ray: has no counterpart

``reading`` finds out which format a file has. Each reader says in ``Workload.notes`` what it has left out, and raises
``TraceError`` with the file and the place for what it cannot use.
"""
