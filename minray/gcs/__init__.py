"""What all must know and must survive: nodes, jobs, deaths, small values.

Ray: src/ray/gcs/

``server`` is the process, with a handler for every message of ``protocol/gcs.py``; the managers beside it are pure
tables: they are told what happened and say what is to be stored and published. ``health_check_manager`` notices deaths,
``storage`` keeps what must outlive the process.
"""
