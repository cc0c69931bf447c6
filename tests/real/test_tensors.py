"""Tensors of torch between processes: as arguments, results, items of generators, and in Dask."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import minray as ray

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.usefixtures("cluster")
ELEMENTS = 100_000
SHARED = {"env_vars": {"RAY_ENABLE_ZERO_COPY_TORCH_TENSORS": "1"}}


@ray.remote
def doubled(tensor: Any) -> Any:
    """Write to the argument, as programs do."""
    tensor *= 2
    return tensor


@ray.remote
def address(*tensors: Any) -> Any:
    return [tensor.data_ptr() for tensor in tensors], [float(tensor[-1]) for tensor in tensors]


@ray.remote(num_returns="streaming")
def countdown() -> Iterator[Any]:
    for number in (2, 1, 0):
        yield torch.full((ELEMENTS,), float(number))


def test_a_task_may_write_to_its_tensor_and_changes_nobody_elses() -> None:
    ref = ray.put(torch.ones(ELEMENTS))
    assert float(ray.get(doubled.remote(ref)).sum()) == 2 * ELEMENTS
    assert float(ray.get(ref).sum()) == ELEMENTS
    assert float(ray.get(doubled.remote(torch.ones(3))).sum()) == 6


def test_a_worker_that_asks_for_it_reads_all_copies_in_one_place() -> None:
    ref = ray.put(torch.ones(ELEMENTS))
    ((first, second), last) = ray.get(address.remote(ref, ref))
    assert first != second and last == [1, 1]
    ((first, second), last) = ray.get(address.options(runtime_env=SHARED).remote(ref, ref))
    assert first == second and last == [1, 1]


def test_items_of_generators_are_tensors() -> None:
    assert [float(ray.get(ref)[-1]) for ref in countdown.remote()] == [2, 1, 0]


def test_dask_puts_a_large_tensor_once_for_all_its_tasks() -> None:
    dask = pytest.importorskip("dask")
    from minray.util.dask import ray_dask_get

    tensor = torch.arange(float(ELEMENTS))
    sums = [dask.delayed(lambda values, factor: float(values[-1]) * factor)(tensor, factor) for factor in range(3)]
    assert dask.compute(*sums, scheduler=ray_dask_get) == tuple(float(ELEMENTS - 1) * factor for factor in range(3))
