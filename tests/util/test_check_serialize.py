"""``inspect_serializability``: it names what is to blame, and nothing else."""

from __future__ import annotations

import io
import threading
from typing import Any

import pytest

from minray.util import inspect_serializability
from minray.util.check_serialize import FailureTuple

GLOBAL_LOCK = threading.Lock()


class Holder:
    def __init__(self, content: Any) -> None:
        self.content = content
        self.number = 5

    def method(self) -> Any:
        return self.content


def looked_at(value: Any, **options: Any) -> tuple[bool, list[FailureTuple], str]:
    printed = io.StringIO()
    can, found = inspect_serializability(value, print_file=printed, **options)
    return can, list(found), printed.getvalue()


def test_what_can_be_sent_has_no_failures() -> None:
    can, found, printed = looked_at({"a": [1, 2]}, name="settings")
    assert (can, found) == (True, []) and "'settings' can be serialized." in printed


@pytest.mark.parametrize("value", [Holder([GLOBAL_LOCK]), {"key": [GLOBAL_LOCK]}, Holder(GLOBAL_LOCK).method])
def test_the_culprit_is_found_inside_containers_attributes_and_methods(value: Any) -> None:
    can, (failure,), printed = looked_at(value)
    assert not can and failure.obj is GLOBAL_LOCK
    assert "because of" in printed and f"{failure.name} = " in printed


def test_a_function_is_searched_through_what_it_captures() -> None:
    lock, number = threading.Lock(), 3

    def captures() -> Any:
        return lock, number

    _, (failure,), printed = looked_at(captures)
    assert (failure.obj, failure.name, failure.parent) == (lock, "lock", captures)
    assert "'captures' (function) cannot be serialized: " in printed


def test_the_search_ends_at_its_depth() -> None:
    value = [[[GLOBAL_LOCK]]]
    assert [failure.obj for failure in looked_at(value, depth=1)[1]] == [value[0]]
    assert [failure.obj for failure in looked_at(value, depth=0)[1]] == [value]
    assert [failure.obj for failure in looked_at(value)[1]] == [GLOBAL_LOCK]


def test_a_value_that_contains_itself_is_searched_once() -> None:
    holder = Holder(GLOBAL_LOCK)
    holder.number = [holder]  # type: ignore[assignment]
    assert [failure.obj for failure in looked_at(holder, depth=20)[1]] == [GLOBAL_LOCK]


def test_what_has_no_hash_may_be_a_culprit() -> None:
    class Stubborn:
        __hash__ = None  # type: ignore[assignment]

        def __reduce__(self) -> Any:
            raise TypeError("no")

    stubborn = Stubborn()
    assert [failure.obj for failure in looked_at([stubborn, stubborn])[1]] == [stubborn]
