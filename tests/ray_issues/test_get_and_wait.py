"""Issues of Ray about `get` and `wait`."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

import minray as ray
from minray.exceptions import GetTimeoutError, RayActorError
from tests.real.support import PATIENCE_S, Files, echo, hold

pytestmark = pytest.mark.usefixtures("cluster")


def get(refs: Any) -> Any:
    return ray.get(refs, timeout=PATIENCE_S)


@pytest.mark.ray_issue(ray="right")
def test_ray_28465_a_timeout_of_zero_returns_at_once(files: Files) -> None:
    """`get(ref, timeout=0)` waits as if it had no timeout."""
    ref = hold.remote(files.signal("started"), files.signal("release"))
    with pytest.raises(GetTimeoutError):
        ray.get(ref, timeout=0)
    files.signal("release").set()
    assert get(ref) is None


@pytest.mark.ray_issue(ray="right: ValueError")
def test_ray_204_a_reference_that_is_waited_for_twice_is_an_error() -> None:
    """`wait` ends the node's store when one reference is in the list twice."""
    ref = echo.remote(1)
    with pytest.raises(ValueError, match="unique|duplicates"):
        ray.wait([ref, ref], num_returns=2, timeout=PATIENCE_S)
    assert get([ref, ref]) == [1, 1]


@pytest.mark.ray_issue(pull=True, ray="right")
def test_ray_26256_a_call_may_have_one_reference_twice() -> None:
    """A call to an actor never begins if it has one large value twice among its arguments."""

    @ray.remote(num_cpus=0)
    class Actor:
        def same(self, first: Any, second: Any, *, third: Any, fourth: Any) -> bool:
            return bool(np.array_equal(first, third) and np.array_equal(second, fourth))

    @ray.remote(num_cpus=0)
    def zeros(number: int) -> Any:
        return np.zeros(number)

    one, two = zeros.remote(100_000), zeros.remote(200_000)
    assert get(Actor.remote().same.remote(one, two, third=one, fourth=two))


@pytest.mark.ray_issue(ray="wrong: `wait` never finds it ready")
def test_ray_47923_an_id_that_was_passed_as_text_is_refused() -> None:
    """`wait` for a reference that was made again from its id, in another task, never returns."""

    @ray.remote(num_cpus=0)
    def wait_for(text: str) -> str:
        try:
            ready, _ = ray.wait([ray.ObjectRef(bytes.fromhex(text))], timeout=1)
        except (TypeError, ValueError):
            return "refused"
        return "ready" if ready else "not ready"

    ref = echo.remote(1)
    assert get(ref) == 1
    assert get(wait_for.remote(ref.hex())) == "refused"


@pytest.mark.ray_issue(pull=True, ray="right: an OverflowError")
def test_ray_42_a_wait_may_have_any_timeout() -> None:
    """`wait` with a timeout of 2**60 hangs although the task has ended."""
    ref = echo.remote(1)
    try:
        assert ray.wait([ref], timeout=2**60) == ([ref], [])
    except OverflowError:
        assert ray.wait([ref], timeout=2**30) == ([ref], [])


# -- Coroutines


@pytest.mark.ray_issue(ray="right")
def test_ray_12567_await_raises_what_get_raises() -> None:
    """`await` of a call whose actor has ended returns the error instead of raising it."""

    @ray.remote(num_cpus=0)
    class Actor:
        def leave(self) -> None:
            ray.actor.exit_actor()

    async def main() -> None:
        actor = Actor.remote()
        with pytest.raises(RayActorError):
            await actor.leave.remote()

    asyncio.run(main())


@pytest.mark.ray_issue(ray="right")
def test_ray_11030_a_reference_can_be_awaited_again_after_a_timeout(files: Files) -> None:
    """A reference that is awaited again after `asyncio.wait_for` has timed out sets its result twice."""
    complaints: list[Any] = []

    async def main() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
        ref = hold.remote(files.signal("started"), files.signal("release"), 7)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(ref, timeout=0.01)
        files.signal("release").set()
        assert await asyncio.wait_for(ref, timeout=PATIENCE_S) == 7

    asyncio.run(main())
    assert complaints == []
