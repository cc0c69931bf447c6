"""Policies of a program in the processes of a real node, which import them from where the program's modules are."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import minray
from minray.cluster_utils import Cluster
from minray.common.labels import SPEED_LABEL
from minray.policies.making import HOOKS
from minray.util.placement_group import placement_group
from tests.helpers import wait_for_condition

BROKEN = "tests.policies.questions:Broken"


@minray.remote
def where() -> str:
    return minray.get_runtime_context().get_node_id()


@minray.remote
def first(values: np.ndarray) -> int:
    return int(values[0])


@pytest.mark.slow
def test_a_policy_sees_the_speeds_with_which_real_nodes_were_started() -> None:
    config = {"scheduling_policy": "tests.policies.questions:Fastest"}
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "_system_config": config})
    try:
        for speed in ("0.5", "2.5"):
            cluster.add_node(num_cpus=1, labels={SPEED_LABEL: speed})
        minray.init(address=cluster.address)
        (fastest,) = (node["NodeID"] for node in minray.nodes() if node["Labels"].get(SPEED_LABEL) == "2.5")
        assert set(minray.get([where.remote() for _ in range(4)])) == {fastest}
    finally:
        minray.shutdown()
        cluster.shutdown()


@pytest.mark.slow
def test_failed_policies_lose_nothing_on_a_real_node(
    capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    config = {"min_spilling_size": 1, **dict.fromkeys(HOOKS, BROKEN)}
    context = minray.init(num_cpus=2, object_store_memory=78 << 20, _system_config=config)
    try:
        large = [minray.put(np.full(1_500_000, number)) for number in range(9)]
        group = placement_group([{"CPU": 1}])
        minray.get([group.ready(), *large])
        assert minray.get([first.remote(ref) for ref in large[:3]]) == [0, 1, 2]
        log = Path(context["session_dir"], "logs", "gcs.log")
        assert f"bundle_policy '{BROKEN}' has failed" in log.read_text()
        assert f"locality_policy '{BROKEN}' has failed" in caplog.text
        printed = ""

        def are_printed() -> bool:
            nonlocal printed
            printed += capfd.readouterr().err
            return all(f"{name}_policy '{BROKEN}' has failed" in printed for name in ("scheduling", "spill"))

        wait_for_condition(are_printed)
    finally:
        minray.shutdown()
