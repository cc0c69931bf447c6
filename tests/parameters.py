"""For decorators that make a test of a function which is given something before its fixtures and parameters."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any


def without_first(function: Callable[..., Any], test: Callable[..., None]) -> Callable[..., None]:
    """The test, as pytest shall see it: named and documented as the function, with all of its parameters but the first."""
    named: Any = functools.update_wrapper(test, function)
    del named.__wrapped__
    _, *others = inspect.signature(function).parameters.values()
    named.__signature__ = inspect.Signature(others)
    return test
