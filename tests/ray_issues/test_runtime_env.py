"""Issues of Ray about runtime environments."""

from __future__ import annotations

import os
from typing import Any

import pytest

import minray as ray
from tests.real.support import PATIENCE_S


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=PATIENCE_S)


@ray.remote(num_cpus=0)
def variables(*names: str) -> list[str | None]:
    return [os.environ.get(name) for name in names]


@pytest.mark.usefixtures("cluster")
@pytest.mark.ray_issue(ray="right")
def test_ray_16295_variables_of_a_child_are_added_to_its_parents() -> None:
    """The `env_vars` of a child's runtime environment replace all of its parent's."""

    @ray.remote(num_cpus=0)
    def parent() -> Any:
        options: Any = {"runtime_env": {"env_vars": {"OF_CHILD": "c", "OF_BOTH": "c"}}}
        return ray.get(variables.options(**options).remote("OF_PARENT", "OF_CHILD", "OF_BOTH"))

    options: Any = {"runtime_env": {"env_vars": {"OF_PARENT": "p", "OF_BOTH": "p"}}}
    assert get(parent.options(**options).remote()) == ["p", "c", "c"]


@pytest.mark.usefixtures("shutdown_only")
@pytest.mark.ray_issue(ray="right")
def test_ray_20587_a_new_cluster_knows_no_variables_of_the_last_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of a runtime environment are still set after `shutdown` and `init`."""
    monkeypatch.setenv("OF_20587", "1")
    ray.shutdown()
    ray.init(num_cpus=1)
    options: Any = {"runtime_env": {"env_vars": {"OF_20587": "1"}}}
    assert get(variables.options(**options).remote("OF_20587")) == ["1"]
    ray.shutdown()
    monkeypatch.delenv("OF_20587")
    ray.init(num_cpus=1)
    assert get(variables.remote("OF_20587")) == [None]
