"""G107a: a task sees the GPUs of its lease and no others, also when workers and requests are lost."""

from __future__ import annotations

import os
import time
from typing import Any

import pytest

import minray
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation.judge import judged


@minray.remote(num_gpus=0.5, num_cpus=0, max_calls=0, max_retries=-1)
def look(seconds: float) -> Any:
    """Return the worker, and what it sees."""
    time.sleep(seconds)
    context = minray.get_runtime_context()
    worker = context.get_node_id(), context.get_worker_id()
    assert os.environ["CUDA_VISIBLE_DEVICES"].split(",") == context.get_accelerator_ids()["GPU"]
    return worker, os.environ["CUDA_VISIBLE_DEVICES"]


def body() -> list[Any]:
    amounts = [0.5, 1, 2, 0.25, 1, 0.5]
    return minray.get([look.options(num_gpus=amounts[i % 6]).remote(0.1 * (i % 4 + 1)) for i in range(24)])


@pytest.mark.parametrize("seed", seeds(3))
def test_g107a_a_worker_sees_the_same_gpus_for_good_whatever_is_lost(seed: int) -> None:
    nodes = [{"num_cpus": 2, "num_gpus": 2}, {"num_cpus": 2, "num_gpus": 3}]
    result, _ = judged(body, nodes=nodes, seed=seed, faults=FaultPlan.swarm(seed, ("worker/",), budget=3))
    of_worker: dict[Any, str] = {}
    assert all(of_worker.setdefault(worker, gpus) == gpus for worker, gpus in result)
    assert len(set(of_worker.values())) > 2, "tasks have seen single GPUs and pairs"
