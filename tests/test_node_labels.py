"""Which labels a node gets from its environment and from the user, and which of two wins."""

from __future__ import annotations

import logging

import pytest

from minray.node.node_labels import labels_at_start

POD = {
    "RAY_NODE_TYPE_NAME": "workers-1",
    "RAY_NODE_MARKET_TYPE": "spot",
    "RAY_NODE_REGION": "us-central2",
    "RAY_NODE_ZONE": "us-central2-b",
}
TPU = {"TPU_NAME": "slice-7", "TPU_WORKER_ID": "0", "TPU_TOPOLOGY": "4x4", "TPU_ACCELERATOR_TYPE": "v4-16"}


def test_the_environment_gives_the_labels_that_ray_defines() -> None:
    assert labels_at_start({"zone": "a"}, False, {**POD, **TPU, "RAY_NODE_OTHER": "x"}) == {
        "zone": "a",
        "ray.io/node-group": "workers-1",
        "ray.io/market-type": "spot",
        "ray.io/availability-region": "us-central2",
        "ray.io/availability-zone": "us-central2-b",
    }
    assert labels_at_start({}, True, TPU) == {
        "ray.io/tpu-slice-name": "slice-7",
        "ray.io/tpu-worker-id": "0",
        "ray.io/tpu-topology": "4x4",
        "ray.io/tpu-pod-type": "v4-16",
    }
    assert labels_at_start({}, True, {"RAY_NODE_ZONE": ""}) == {}


def test_the_user_wins_with_a_warning_and_the_override_wins_over_both(caplog: pytest.LogCaptureFixture) -> None:
    given = {"ray.io/market-type": "on-demand", "ray.io/node-group": "workers-1", "ray.io/accelerator-type": "A100"}
    with caplog.at_level(logging.WARNING, "minray"):
        labels = labels_at_start(given, False, POD)
    assert labels == {**given, "ray.io/availability-region": "us-central2", "ray.io/availability-zone": "us-central2-b"}
    (record,) = caplog.records
    assert record.getMessage() == (
        "label ray.io/market-type is 'on-demand', as the user says, and not 'spot', as the environment says"
    )
    override = {"RAY_OVERRIDE_LABELS": '{"ray.io/market-type": "spot", "rack": "1"}'}
    labels = labels_at_start({"rack": "2", "zone": "a"}, False, override)
    assert labels == {"rack": "1", "zone": "a", "ray.io/market-type": "spot"}


@pytest.mark.parametrize(
    ("given", "environ", "words"),
    [
        ({"ray.io/node-id": "x"}, {}, "'ray.io/node-id' cannot be given to a node"),
        ({}, {"RAY_NODE_ZONE": "us west"}, "'ray.io/availability-zone' cannot be 'us west'"),
        ({}, {"RAY_OVERRIDE_LABELS": "zone=a"}, "environment variable RAY_OVERRIDE_LABELS must be a JSON object"),
        ({}, {"RAY_OVERRIDE_LABELS": '{"zone": 1}'}, "environment variable RAY_OVERRIDE_LABELS must be a JSON object"),
        ({}, {"RAY_OVERRIDE_LABELS": '{"ray.io/node-id": "a"}'}, "'ray.io/node-id' cannot be given to a node"),
    ],
)
def test_what_cannot_be_a_label_is_refused(given: dict[str, str], environ: dict[str, str], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        labels_at_start(given, False, environ)
