"""Tools for testing programs that use minray.

Ray: has no counterpart.

``faults`` runs a program under many seeds of injected faults. The module ``minray.testing.fault_plugin`` brings it to
pytest, as the marker ``minray_faults``.
"""

from minray.testing.faults import faults

__all__ = ["faults"]
