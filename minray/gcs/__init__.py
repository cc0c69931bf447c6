"""The global control service (gcs): the cluster's tables of nodes, jobs, actors, placement groups, deaths and values.

Ray: src/ray/gcs/

``server`` is the process, with a handler for every message of ``protocol/gcs.py``. The managers beside it are pure tables:
they take events and return the records to store and to publish. ``health_check_manager`` notices deaths, ``storage`` keeps
the tables that must outlive the process.
"""
