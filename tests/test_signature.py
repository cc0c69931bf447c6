"""Parameters of functions and methods, and errors for calls that do not fit."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import minray
from minray.api.actor_options import make_handle_spec
from minray.api.signature import ANYTHING, Signature, parameters_of
from minray.protocol.actor import HandleSpec
from minray.protocol.base import decode, encode
from minray.simulation import run


def plain(a: int, b: int = 2) -> None: ...


def keywords(a: int, *, b: int, c: int = 3) -> None: ...


def only_positional(a: int, /, b: int = 2, *rest: int) -> None: ...


def any_keywords(a: int = 1, **rest: int) -> None: ...


def no_arguments() -> None: ...


FUNCTIONS = [plain, keywords, only_positional, any_keywords, no_arguments]


@given(st.sampled_from(FUNCTIONS), st.integers(0, 4), st.sets(st.sampled_from("abcd")))
def test_those_calls_are_refused_that_python_refuses(function: Callable[..., Any], count: int, names: set[str]) -> None:
    args, kwargs = (0,) * count, dict.fromkeys(names, 0)
    signature = Signature(parameters_of(function))
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        assert not signature.takes(args, kwargs)
        assert str(signature.refusal("f", args, kwargs)).startswith(f"f.remote: {error}; it takes (")
    else:
        assert signature.takes(args, kwargs)


def test_what_does_not_tell_takes_anything() -> None:
    assert parameters_of(dict) == ANYTHING
    assert Signature(ANYTHING).takes((1, 2, 3), {"a": 1})


def test_the_message_says_what_is_taken() -> None:
    refusal = Signature(parameters_of(keywords)).refusal("keywords", (), {})
    assert str(refusal) == "keywords.remote: missing a required argument: 'a'; it takes (a, *, b, c=...)"


class Kinds:
    def own(self, a: int) -> None: ...

    @staticmethod
    def static(a: int) -> None: ...

    @classmethod
    def of_class(cls, a: int) -> None: ...

    def loose(*args: int) -> None: ...


@pytest.mark.parametrize("name", ["own", "static", "of_class"])
def test_a_method_takes_no_object_wherever_its_handle_went(name: str) -> None:
    spec = decode(HandleSpec, encode(make_handle_spec(Kinds, {})))
    (method,) = [method for method in spec.methods if method.name == name]
    signature = Signature(method.parameters)
    assert signature.takes((1,), {}) and not signature.takes((1, 2), {})
    assert str(signature.refusal(name, (1, 2), {})).endswith("too many positional arguments; it takes (a)")


def test_a_method_that_takes_its_object_among_others() -> None:
    (method,) = [method for method in make_handle_spec(Kinds, {}).methods if method.name == "loose"]
    assert Signature(method.parameters).takes((1, 2, 3), {})


def test_a_wrong_call_of_a_method_is_no_call() -> None:
    """The call fails where it is made, also through a handle that came with a task, and is not among the pending ones."""

    @minray.remote(max_pending_calls=1)
    class Adder:
        def add(self, a: int, b: int = 1) -> int:
            return a + b

    @minray.remote
    def call(adder: Any) -> str:
        with pytest.raises(TypeError) as refusal:
            adder.add.remote(c=1)
        return str(refusal.value)

    def program() -> tuple[str, int]:
        adder = Adder.remote()
        for _ in range(3):
            with pytest.raises(TypeError, match="Adder.add.remote: too many positional arguments"):
                adder.add.remote(1, 2, 3)
        return minray.get(call.remote(adder)), minray.get(adder.add.remote(1, b=2))

    assert run(program) == ("Adder.add.remote: missing a required argument: 'a'; it takes (a, b=...)", 3)


def test_a_wrong_call_fails_where_it_is_made_and_begins_nothing() -> None:
    """No cluster is needed for that, and none is started."""
    with pytest.raises(TypeError, match=r"plain.remote: missing a required argument: 'a'; it takes \(a, b=...\)"):
        minray.remote(plain).remote()
    with pytest.raises(TypeError, match="Kinds.remote: too many positional arguments"):
        minray.remote(Kinds).remote(1)
    assert not minray.is_initialized()
