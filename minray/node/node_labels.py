"""The labels of a node that is started: those that its environment gives it, and those that the user gives it.

Ray: python/ray/_private/resource_and_label_spec.py, python/ray/_private/accelerators/tpu.py

Operators describe a machine by environment variables, such as ``RAY_NODE_MARKET_TYPE=spot`` in a pod. A label of the user's
own takes the place of one from these, with a warning. ``RAY_OVERRIDE_LABELS``, a JSON object, replaces both. The node adds
``ray.io/node-id`` itself.

The model of the GPUs that were found (``accelerators``) is a label as well, which the environment and the user may replace.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

import msgspec

from minray.common.labels import RESERVED, check_labels

logger = logging.getLogger("minray")

OF_ENVIRONMENT = {
    "RAY_NODE_TYPE_NAME": f"{RESERVED}node-group",
    "RAY_NODE_MARKET_TYPE": f"{RESERVED}market-type",
    "RAY_NODE_REGION": f"{RESERVED}availability-region",
    "RAY_NODE_ZONE": f"{RESERVED}availability-zone",
}
"""Label of each environment variable; an empty variable counts as not set."""
OF_TPU_ENVIRONMENT = {
    "TPU_NAME": f"{RESERVED}tpu-slice-name",
    "TPU_WORKER_ID": f"{RESERVED}tpu-worker-id",
    "TPU_TOPOLOGY": f"{RESERVED}tpu-topology",
    "TPU_ACCELERATOR_TYPE": f"{RESERVED}tpu-pod-type",
}
"""Labels of a node whose resources have ``TPU``."""
OVERRIDE = "RAY_OVERRIDE_LABELS"


def labels_at_start(
    given: Mapping[str, str], has_tpu: bool, environ: Mapping[str, str], found: Mapping[str, str] | None = None
) -> dict[str, str]:
    """Merge the labels that were ``found`` out, those that ``environ`` gives a node, and those that the user has ``given``.

    Raises ValueError and TypeError for what cannot be a label.
    """
    check_labels(given)
    variables = {**OF_ENVIRONMENT, **(OF_TPU_ENVIRONMENT if has_tpu else {})}
    of_environment = {label: environ[variable] for variable, label in variables.items() if environ.get(variable)}
    labels = {**(found or {}), **of_environment}
    for label, value in given.items():
        other = labels.get(label, value)
        if other != value:
            logger.warning("label %s is %r, as the user says, and not %r, as the environment says", label, value, other)
    labels |= given
    if environ.get(OVERRIDE):
        try:
            labels |= msgspec.json.decode(environ[OVERRIDE], type=dict[str, str])
        except msgspec.DecodeError as error:
            raise ValueError(f"environment variable {OVERRIDE} must be a JSON object of labels: {error}") from None
    check_labels(labels)
    return labels
