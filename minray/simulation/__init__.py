"""The simulated world: whole clusters in one Python process, in virtual time, with seeded faults.

``cluster`` runs programs on clusters made of the same gcs, raylet and core worker classes as every real one. Below it:
``loop`` (time, processes), ``network`` and ``channel``, ``machine`` (processes, disks, entropy), ``user_code`` and
``user_thread`` (user code, and the threads that run it), ``interpreter`` (the functions that it may call), ``faults`` (the
oracle), ``trace`` (the record of all events).
Ray has no counterpart.
"""

from minray.simulation.cluster import SimCluster, SimulationFailed, run
from minray.simulation.faults import FaultPlan, Oracle
from minray.simulation.loop import Deadlock, NotSimulated

__all__ = ["Deadlock", "FaultPlan", "NotSimulated", "Oracle", "SimCluster", "SimulationFailed", "run"]
