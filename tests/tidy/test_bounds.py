"""Every bound on memory and traffic is a setting, or has a reason to be none."""

from __future__ import annotations

import msgspec

from minray.common.bounds import Bounds
from minray.common.config import SystemConfig
from tests.spec.knobs import FEW_REFERENCES, SMALL
from tests.tidy.bounds import CONSTANTS, bounds_of
from tests.tidy.test_tidy import ROOT


def test_bounds_that_are_no_settings_have_a_reason() -> None:
    assert sorted(bounds_of(ROOT)) == sorted(CONSTANTS)


def test_every_bound_is_drawn_small() -> None:
    names = {entry.name for entry in msgspec.structs.fields(Bounds)}
    drawn = SMALL | {name: (value,) for name, value in FEW_REFERENCES.items()}
    assert names <= drawn.keys() <= {entry.name for entry in msgspec.structs.fields(SystemConfig)}
    for name, values in drawn.items():
        for value in values:
            assert SystemConfig.from_overrides({name: value})
