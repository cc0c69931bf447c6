"""A process that could not reach another for fifteen seconds took it for dead, and told it nothing any more.

Found by a seed of random programs: a borrower gave its ticket back while a link was cut; when the cut was over the owner
still kept the object, for ever. A lease that was to be returned was lost in the same way. Now such
messages are repeated until they arrive, or the gcs says that their receiver is dead.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

import minray
from tests.simulation.judge import judged
from tests.simulation.roles import Cluster


@minray.remote(resources={"there": 1}, max_retries=-1)
def hold(refs: list[Any], seconds: float) -> list[int]:
    values: list[int] = minray.get(refs)
    time.sleep(seconds)
    return values


@pytest.mark.parametrize("seconds", [60.0, 200.0])
def test_bug_what_is_said_in_a_partition_is_heard_after_it(seconds: float) -> None:
    """The driver on n2 and its worker on n1 cannot reach each other; the gcs on the head reaches both."""
    nodes: list[dict[str, Any]] = [{"num_cpus": 1}, {"num_cpus": 1, "resources": {"there": 1}}, {"num_cpus": 0}]

    def strike(cluster: Cluster) -> None:
        cluster.until_leased("n1")
        cluster.wait(1)
        cluster.partition("n1", "n2", seconds)

    def body() -> list[int]:
        return minray.get(hold.remote([minray.put(7)], 20.0))

    result, _ = judged(body, strike, nodes=nodes, driver_node="n2", settle_s=400)
    assert result == [7]
