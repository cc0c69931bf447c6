"""Names and numbers that a user chooses: whatever they are, the error names the argument and stays short."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import minray as ray
from minray.util import get_placement_group, placement_group
from minray.util.queue import Queue
from tests.real.support import echo, run_driver

pytestmark = pytest.mark.usefixtures("cluster")
LONG, ODD = "x" * 10_000_000, "odd \ud800"


class Thing:
    def use(self) -> None: ...


def method(**options: Any) -> Any:
    return ray.remote(num_cpus=0)(Thing).remote().use.options(**options)  # type: ignore[union-attr]


WITH_NAMES: list[Callable[[str], object]] = [
    lambda name: ray.get_actor(name),
    lambda name: ray.get_actor("a", namespace=name),
    lambda name: ray.remote(**{name: 1}),
    lambda name: echo.options(**{name: 1}),
    lambda name: echo.options(resources={name: -1}),
    lambda name: echo.options(label_selector={name: "x"}),
    lambda name: echo.options(label_selector={"key": name}),
    lambda name: echo.options(runtime_env={name: 1}),
    lambda name: echo.options(runtime_env={"working_dir": name}),
    lambda name: echo.options(scheduling_strategy=name),
    lambda name: ray.remote(Thing).options(lifetime=name),
    lambda name: method(concurrency_group=name),
    lambda name: method(**{name: 1}),
    lambda name: get_placement_group(name),
    lambda name: placement_group([{"CPU": 1}], strategy=name),
    lambda name: placement_group([{"CPU": 1}], lifetime=name),
    lambda name: ray.init(**{name: 1}),
    lambda name: ray.init(_temp_dir=name),
    lambda name: ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(name, soft=False),
]


@pytest.mark.parametrize("name", [LONG, ODD], ids=["long", "odd"])
@pytest.mark.parametrize("use", WITH_NAMES)
def test_a_name_that_is_refused_is_not_repeated_whole(use: Callable[[str], object], name: str) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError, RuntimeError)) as caught:
        use(name)
    assert type(caught.value) is not UnicodeEncodeError and len(str(caught.value)) < 3000
    str(caught.value).encode()


@pytest.mark.parametrize(
    ("use", "argument"),
    [
        (lambda: echo.options(name=ODD), "name"),
        (lambda: echo.options(accelerator_type=ODD), "accelerator_type"),
        (lambda: echo.options(resources={ODD: 1}), "name of a resource"),
        (lambda: echo.options(runtime_env={"env_vars": {"A": ODD}}), "env_vars"),
        (lambda: ray.remote(Thing).options(name=ODD), "name"),
        (lambda: ray.remote(Thing).options(name="a", namespace=ODD), "namespace"),
        (lambda: ray.remote(concurrency_groups={ODD: 1})(Thing), "concurrency_groups"),
        (lambda: method(name=ODD), "name"),
        (lambda: ray.get_actor(ODD), "name"),
        (lambda: ray.get_actor("a", ODD), "namespace"),
        (lambda: placement_group([{"CPU": 1}], name=ODD), "name"),
        (lambda: placement_group([{ODD: 1}]), "name of a resource"),
        (lambda: get_placement_group(ODD), "placement_group_name"),
        (lambda: Queue(actor_options={"name": ODD}), "name"),
    ],
)
def test_what_cannot_be_encoded_names_its_argument(use: Callable[[], object], argument: str) -> None:
    with pytest.raises(ValueError, match=f"{argument}.* cannot be encoded as UTF-8: 'odd") as caught:
        use()
    assert type(caught.value) is ValueError


@pytest.mark.parametrize("amount", [1e308, float("inf"), 10**400, 10**5000, 1e15], ids="float inf large huge above".split())
def test_an_amount_that_is_too_large_says_what_is_possible(amount: float) -> None:
    for use in (
        lambda: echo.options(num_cpus=amount),
        lambda: echo.options(memory=amount),
        lambda: echo.options(resources={"x": amount}),
        lambda: ray.remote(Thing).options(num_gpus=amount),
        lambda: placement_group([{"CPU": amount}]),
    ):
        with pytest.raises(ValueError, match="amount of resource '(CPU|GPU|memory|x)' must be (at most|finite)"):
            use()
    for options in ({"max_retries": 10**5000}, {"max_calls": 10**400}):
        with pytest.raises(ValueError, match="must be at most"):
            ray.remote(**options)(lambda: 1)


def test_a_function_may_have_any_name_and_its_error_stays_short() -> None:
    def fail() -> None:
        raise ValueError("no")

    for name in (LONG[:100_000], ODD):
        fail.__name__ = name
        with pytest.raises(ValueError, match="no") as caught:
            ray.get(ray.remote(max_retries=0)(fail).remote())
        assert len(str(caught.value)) < 3000
    waiting = echo.options(name=LONG[:100_000], resources={"none": 1}).remote(1)
    assert len(ray.why(waiting)) < 1000
    ray.cancel(waiting)


@pytest.mark.parametrize(
    ("use", "error", "message"),
    [
        (lambda: ray.internal.free(None), TypeError, "free takes an ObjectRef or a list of them, not NoneType"),
        (lambda: ray.internal.free([1]), TypeError, "free takes ObjectRefs, but got an int"),
        (lambda: ray.get([1]), ValueError, "the list has an int"),
        (lambda: ray.wait([None]), TypeError, "the list has a NoneType"),
        (lambda: ray.experimental.get_object_locations([1]), TypeError, "but got an int"),
    ],
)
def test_what_is_no_reference_is_named(use: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        use()


def test_an_error_that_nobody_looks_at_names_our_own_switch() -> None:
    program = """
        import gc
        ray.init(num_cpus=1, logging_level="ERROR")
        def fail():
            raise ValueError("unseen")
        ref = ray.remote(max_retries=0)(fail).remote()
        ray.wait([ref])
        del ref
        gc.collect()
        ray.shutdown()
        """
    said = run_driver(program).stderr
    assert "MINRAY_IGNORE_UNHANDLED_ERRORS=1 hides such messages" in said and " RAY_" not in said
    assert run_driver(program, MINRAY_IGNORE_UNHANDLED_ERRORS="1").stderr == ""
