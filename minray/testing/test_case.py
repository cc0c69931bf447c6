"""A mixin for ``unittest``: each test has a cluster of its own, and leaves nothing.

Ray: has no counterpart

    class PipelineTest(LocalClusterTestCase, unittest.TestCase):
        cluster_arguments = {"num_cpus": 2}

        def test_sum(self):
            self.assertEqual(minray.get(total.remote([1, 2])), 3)

The cluster starts in ``setUp`` and ends after ``tearDown``, when the clean-ups run. A leak is a failure of the test.
"""

from __future__ import annotations

import unittest
from collections.abc import Mapping
from typing import Any, ClassVar

from minray.testing.local_cluster import LocalCluster


class LocalClusterTestCase(unittest.TestCase):
    """Gives each test of a subclass a ``LocalCluster``, as ``self.cluster``."""

    cluster_arguments: ClassVar[Mapping[str, Any]] = {}
    """Arguments of ``LocalCluster``: ``nodes``, ``world``, ``leaks``, and those of ``minray.init``."""
    cluster: LocalCluster

    def setUp(self) -> None:
        super().setUp()
        self.cluster = self.enterContext(LocalCluster(**self.cluster_arguments))
