"""Issues of Ray about values that do not fit into memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import minray as ray
from minray.exceptions import RayTaskError
from tests.real.support import PATIENCE_S

pytestmark = pytest.mark.usefixtures("cluster")
INIT = {"object_store_memory": 80 * 2**20}
MIB = 2**20


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=PATIENCE_S)


@pytest.mark.ray_issue(ray="right")
def test_ray_25085_errors_are_spilled_like_values() -> None:
    """An error that lies in shared memory cannot be spilled, and nothing else is spilled any more."""

    @ray.remote(num_cpus=0)
    def fail(number: int) -> None:
        raise ValueError(number, bytes(4 * MIB))

    errors = [fail.remote(number) for number in range(8)]
    values = [ray.put(np.full(8 * MIB, number, np.uint8)) for number in range(10)]
    for number, error in enumerate(errors):
        with pytest.raises(RayTaskError) as raised:
            get(error)
        assert raised.value.cause.args[0] == number
        del raised
    assert [int(get(value)[0]) for value in values] == list(range(10))
