"""Tools for tests of programs that use minray.

Ray: has no counterpart.

``LocalCluster`` and ``LocalClusterTestCase`` give a test a cluster of its own, inside the test's process or in processes.
``faults`` runs a program under many seeds of injected faults. ``_minray_pytestplugin.py``, beside the package, brings the
clusters to pytest as fixtures, and the faults as a marker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from minray.common.package import imported_at_first_use as _imported_at_first_use
from minray.testing.faults import faults  # at once: the module of this name would take its place otherwise

if TYPE_CHECKING:
    from minray.testing.local_cluster import LocalCluster
    from minray.testing.test_case import LocalClusterTestCase

__all__ = ["LocalCluster", "LocalClusterTestCase", "faults"]
_LATER = {
    "LocalCluster": "minray.testing.local_cluster:LocalCluster",
    "LocalClusterTestCase": "minray.testing.test_case:LocalClusterTestCase",
}
"""Name -> its place, which is imported when the name is first used."""

if not TYPE_CHECKING:  # a type checker that saw this function would accept any name
    __getattr__ = _imported_at_first_use(__name__, _LATER)
