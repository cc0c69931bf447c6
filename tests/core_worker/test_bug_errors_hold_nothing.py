"""An exception that a getter has caught and forgotten leaves nothing of the getter's behind.

The frames of its remote traceback are made while it is unpacked; they used to lead from the exception to the getter's
frame, and from there back to the exception, so that references in the getter's variables lived until a garbage collection.
"""

from __future__ import annotations

import weakref
from typing import Any

import pytest

from minray.errors.packed_exception import pack_exception, unpack_exception


class Rebuilt(Exception):
    def __init__(self, one: int, two: int) -> None:
        super().__init__(one, two)


class ByItself(Exception):
    def __reduce__(self) -> Any:
        return ByItself, (1,)


class Precious:
    """An object that the getter has in a variable."""


def packed(error: Exception) -> bytes:
    try:
        try:
            raise KeyError("context")
        except KeyError as cause:
            raise error from cause
    except Exception as raised:
        return pack_exception(raised, task_name="f", pid=1, node_id="00", ip="127.0.0.1")


def get_and_forget(data: bytes) -> weakref.ref[Precious]:
    precious = Precious()
    try:
        raise unpack_exception(data)
    except Exception as error:
        assert str(error)
    return weakref.ref(precious)


@pytest.mark.parametrize("error", [Rebuilt(1, 2), ByItself(3), ExceptionGroup("both", [ValueError(1), KeyError(2)])])
def test_a_forgotten_error_lets_go_of_the_getters_variables(no_garbage_collection: None, error: Exception) -> None:
    assert get_and_forget(packed(error))() is None
