"""The program that type checkers look at (``make types``) means what it says."""

from __future__ import annotations

import pytest

import minray
from tests import typed_program


@pytest.mark.usefixtures("shutdown_only")
def test_a_typed_program_does_what_its_types_say() -> None:
    minray.init(num_cpus=2)
    assert typed_program.calls() == [3, 4, "x", "x", [0, 1, 2], 3]
