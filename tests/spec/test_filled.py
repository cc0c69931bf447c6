"""Arrays without numpy take the place of numpy's without a difference in any trace."""

from __future__ import annotations

import numpy
import pytest

from minray.values.serialization import Serialized, deserialize, serialize
from tests.spec import filled
from tests.spec.filled import Filled
from tests.spec.strategies import scenario_of
from tests.spec.trial import run

SIZES = (1, 255, 256, 8191, 8192, 65535, 65536, 100_000)
"""Sizes at which pickle writes numbers, and minray buffers, in another way."""
PADDED = [4, 7, 10, 14]
"""Seeds whose programs have arrays in messages, in stores, and on disk."""


def sizes(value: Serialized) -> tuple[int, list[int]]:
    return len(value.data), [len(buffer) for buffer in value.buffers]


@pytest.mark.parametrize("size", SIZES)
def test_it_travels_as_an_array_of_numpy_does(size: int) -> None:
    ours = serialize(("a", {}, (Filled(b"x" * size), "a", size)))
    assert sizes(ours) == sizes(serialize(("a", {}, (numpy.full(size, ord("x"), numpy.uint8), "a", size))))
    _, _, (array, _, _) = deserialize(ours.data, ours.buffers, [])
    assert type(array) is Filled and array.tobytes() == b"x" * size


@pytest.mark.slow
@pytest.mark.parametrize("seed", PADDED)
def test_a_scenario_has_the_same_trace_without_numpy(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    scenario = scenario_of(seed)
    assert '"padding"' in scenario.to_json()
    with_numpy = run(scenario).digest
    monkeypatch.setattr(filled, "numpy", None)
    assert run(scenario).digest == with_numpy
