"""The clusters of tests/real and tests/cluster. Here they always have processes, whose debuggers are the subject.

In one process ``breakpoint()`` is that of Python: tests/in_process shows it.
"""

from __future__ import annotations

from tests.cluster.conftest import head  # noqa: F401  (a fixture)
from tests.real.conftest import arena, cluster, files, node  # noqa: F401  (fixtures)
