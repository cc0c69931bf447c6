"""Observation of a running cluster: state tables, memory, traces, metrics, stacks.

Ray: python/ray/util/state/, python/ray/_private/state.py, python/ray/_private/internal_api.py (memory_summary)

``state_reader`` asks all processes; the other files turn the answers into texts and traces.
"""
