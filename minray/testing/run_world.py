"""The world of a whole test run: what ``--minray-world`` and ``--minray-as-ray`` change before tests are collected.

Ray: has no counterpart

The fixtures ask the option themselves. This file is about tests that call ``init`` or make a ``Cluster`` on their own: an
environment variable makes these start in the same world. Everything is taken back when the run ends.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

import pytest

from minray.run_as_ray import minray_as_ray
from minray.testing import ray_world
from minray.testing.worlds import RAY, SIMULATION, transport_of


def begin(config: pytest.Config, world: str | None, as_ray: bool) -> None:
    """Change this process for a run in ``world`` (None: each fixture's own). Raises UsageError if that cannot be done.

    ``as_ray``: whether ``import ray`` means minray, unless the world is that of Ray.
    """
    stack = ExitStack()
    config.add_cleanup(stack.close)
    if world == RAY:
        _put_ray_in_place()
        return
    if as_ray:
        try:
            stack.enter_context(minray_as_ray())
        except RuntimeError as error:
            raise pytest.UsageError(f"--minray-as-ray: {error}") from None
    if world is not None and world != SIMULATION:
        stack.enter_context(transport_of(world))


def _put_ray_in_place() -> None:
    # Modules of minray that run tests elsewhere must be imported before their names are Ray's.
    from minray.testing import plugin, ray_fixtures

    assert plugin and ray_fixtures
    try:
        ray_world.install()
    except ModuleNotFoundError as error:
        if error.name != ray_world.RAYS:
            raise
        raise pytest.UsageError(
            "--minray-world=ray runs the tests on real Ray, which is not installed here: pip install ray, or choose another "
            "world: local, processes, simulation"
        ) from None
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # Ray warns of a change otherwise.
