"""Issues of Ray about classes that are made actors, and about the arguments of calls."""

from __future__ import annotations

from typing import Any, Generic, TypeVar

import pytest

import minray as ray
from tests.real.support import PATIENCE_S

pytestmark = pytest.mark.usefixtures("cluster")
T = TypeVar("T")


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=PATIENCE_S)


class New:
    def __new__(cls, *args: Any, **kwargs: Any) -> New:
        made = super().__new__(cls)
        made.of_new = args, kwargs
        return made

    of_new: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.of_init = args, kwargs

    def arguments(self) -> Any:
        return self.of_new, self.of_init


@pytest.mark.ray_issue(ray="wrong: `__new__` gets no arguments")
def test_ray_43273_new_gets_the_arguments_too() -> None:
    """`__new__` of an actor's class is called without the arguments that `__init__` gets."""
    of_new, of_init = get(ray.remote(New).remote(100, more=1).arguments.remote())
    assert of_new == of_init == ((100,), {"more": 1})


@pytest.mark.ray_issue(ray="right")
def test_ray_6413_a_method_may_take_keywords_alone() -> None:
    """A method that takes only `**kwargs` cannot be called."""

    @ray.remote(num_cpus=0)
    class Actor:
        def keywords(self, **keywords: int) -> dict[str, int]:
            return keywords

    assert get(Actor.remote().keywords.remote(some=1, other=2)) == {"some": 1, "other": 2}


@pytest.mark.ray_issue(ray="right")
def test_ray_18374_a_generic_class_may_have_a_constructor() -> None:
    """A class that is `Generic` and has a constructor cannot be made an actor."""

    @ray.remote(num_cpus=0)
    class Box(Generic[T]):
        def __init__(self, value: T) -> None:
            self.value = value

        def read(self) -> T:
            return self.value

    assert get(Box.remote(7).read.remote()) == 7


@pytest.mark.ray_issue(ray="right")
def test_ray_5774_a_method_reads_constants_of_its_class() -> None:
    """A method of an actor cannot read the attributes of its class by the name of the class."""

    @ray.remote(num_cpus=0)
    class Actor:
        constant = 7

        def read(self) -> tuple[int, int]:
            return self.constant, type(self).constant

    assert get(Actor.remote().read.remote()) == (7, 7)


@pytest.mark.ray_issue(ray="right")
def test_ray_439_an_unknown_keyword_is_an_error_at_the_call() -> None:
    """A task is called with a keyword that its function does not have, and there is no error."""

    @ray.remote(num_cpus=0)
    def nothing() -> None: ...

    with pytest.raises(TypeError):
        nothing.remote(x=1)
