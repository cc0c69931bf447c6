"""The laboratory: workload traces on simulated clusters that run the real protocol code, and reports about them.

Ray: has no counterpart. Its own simulator of 2016 is no longer maintained.

``workload`` is the one record of all traces, which ``traces/`` and ``generator`` make. ``experiment`` runs one on a cluster
of ``minray.simulation``, whose links and disks cost what ``cost_model`` says (``modelled_costs``). ``report`` turns what was
recorded into figures, ``page`` into a page with plots, and ``comparison`` compares configurations over seeds.
``calibration`` measures the costs of this machine, and ``validation`` runs the same workload on real processes.
docs/laboratory.md is the guide.
"""
