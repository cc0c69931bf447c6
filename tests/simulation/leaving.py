"""Nodes that are told to leave: how a driver asks for that, and how nodes are found by their names."""

from __future__ import annotations

import time
from typing import Any

import minray
from minray.api.calls import current_api
from minray.protocol.gcs import PREEMPTION, DrainNode


def node(name: str) -> dict[str, Any]:
    """The one that has this name and lives, or else one that has had it."""
    return max((one for one in minray.nodes() if one["NodeName"] == name), key=lambda one: bool(one["Alive"]))


def ask_to_leave(name: str, reason: int = PREEMPTION, remaining_s: float = 0.0) -> Any:
    """From a driver to the gcs; returns its answer."""
    process, answers = current_api().port.process, []
    deadline = time.time() + remaining_s if remaining_s else 0.0
    request = DrainNode(bytes.fromhex(node(name)["NodeID"]), reason, "it has to go", deadline)
    post = process.platform.user_code.post
    post(process.gcs.send, request, lambda reply, error, buffers: answers.append(reply or error))
    while not answers:
        time.sleep(0.01)
    return answers[0]
