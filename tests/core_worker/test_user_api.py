"""Functions that user threads may call, in simulated clusters. A kibibyte is a large value in these."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

import minray
from minray import experimental, internal
from minray.core_worker.user_threads import user_api
from minray.exceptions import GetTimeoutError, LocalRayletDiedError, ObjectFreedError, RaySystemError, RayTaskError
from minray.platform.base import PlatformError, RemoteFailure
from minray.rpc.connection import PeerUnreachable
from minray.util.placement_group import placement_group
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.core_worker.cores import Core, Cores, cores, failed_future, let_pass, make
from tests.helpers import turn

LARGE = 10_000


@pytest.fixture
def cluster() -> Iterator[Cores]:
    with cores(2, 2, max_direct_call_object_size=1000) as made:
        yield made


@minray.remote(max_retries=0)
def fail(error: Exception | None = None) -> None:
    raise error or ValueError("it fails")


@minray.remote(max_retries=0)
def rest(seconds: float) -> float:
    let_pass(seconds)
    return seconds


@minray.remote(max_retries=0)
def own_resting() -> list[Any]:
    return [rest.remote(100)]


class Broken:
    """A value that cannot be unpickled."""

    def __reduce__(self) -> Any:
        return int, ("no number",)


def far(cluster: Cores, is_known: bool = True) -> Any:
    """A large value on the other node."""
    there = NodeAffinitySchedulingStrategy(cluster.raylets["n1"].address.node_id.hex(), soft=False)
    ref = make.options(scheduling_strategy=there).remote(LARGE)
    if is_known:
        minray.wait([ref], fetch_local=False)
    return ref


# --- tasks


def test_a_definition_that_is_too_large_is_not_sent(driver: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(user_api, "FUNCTION_SIZE_ERROR_THRESHOLD", 10_000)
    ballast = b"x" * 20_000
    large, small = minray.remote(lambda: len(ballast)), minray.remote(lambda: 5)

    def program() -> None:
        with pytest.raises(ValueError, match="is too large: 0 MiB of at most 0"):
            large.remote()
        assert minray.get(small.remote()) == 5

    driver.run(program)


def test_what_a_call_returns_is_as_many_references_as_it_has_results(driver: Core) -> None:
    def program() -> None:
        assert make.options(num_returns=0).remote(1) is None
        assert isinstance(make.remote(1), minray.ObjectRef)
        assert [type(ref) for ref in make.options(num_returns=2).remote(2)] == [minray.ObjectRef] * 2
        assert isinstance(make.options(num_returns="streaming").remote(2), minray.ObjectRefGenerator)

    driver.run(program)


# --- get


def test_g5_the_first_error_that_is_known_is_raised_although_others_have_not_come(driver: Core) -> None:
    def program() -> None:
        failed = fail.remote()
        minray.wait([failed])
        with pytest.raises(RayTaskError, match="it fails"):
            minray.get([rest.remote(100), failed], timeout=5)

    driver.run(program)


def test_g7_the_time_holds_for_the_way_from_another_node_too(cluster: Cores, driver: Core) -> None:
    def program() -> None:
        ref = far(cluster)
        with pytest.raises(GetTimeoutError):
            minray.get(ref, timeout=0)
        waiting = driver.worker.waiting
        assert waiting.must_fetch(driver.worker.store.objects[ref._id])
        assert len(minray.get(ref)) == LARGE
        assert not waiting.must_fetch(driver.worker.store.objects[ref._id])

    driver.run(program)


@pytest.mark.parametrize("is_known", [True, False])
def test_g9_what_wait_reports_is_here_wherever_it_was_made(cluster: Cores, driver: Core, is_known: bool) -> None:
    def program() -> None:
        ref = far(cluster, is_known)
        assert minray.wait([ref], timeout=5) == ([ref], [])
        assert len(minray.get(ref, timeout=0)) == LARGE

    driver.run(program)


@pytest.mark.parametrize("how", ["get", "await"])
def test_g9_what_was_read_is_here(cluster: Cores, driver: Core, how: str) -> None:
    def begin() -> Any:
        ref = far(cluster)
        return ref, minray.get(ref) if how == "get" else ref.future()

    async def story() -> None:
        ref, reading = await driver.thread(begin)
        if how == "await":
            await asyncio.wrap_future(reading)
        assert await driver.thread(lambda: minray.wait([ref], timeout=0)) == ([ref], [])

    driver.do(story())


class Leisurely(dict[bytes, Any]):
    """The known objects, in which a thread finds one each second: others come meanwhile."""

    def __init__(self, objects: dict[bytes, Any]) -> None:
        self._known = objects

    def get(self, key: bytes, default: Any = None) -> Any:
        found = self._known.get(key, default)
        let_pass(1)
        return found


@pytest.mark.parametrize("most", [1, 2, 3])
def test_g8_what_comes_while_a_thread_looks_at_the_others_is_not_waited_for(
    driver: Core, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    def program() -> None:
        refs = [rest.options(num_cpus=0).remote(seconds) for seconds in (0.5, 1.5, 2.5)]
        api: Any = minray.api.calls.current_api()
        monkeypatch.setattr(api.reader, "_objects", Leisurely(api.reader._objects))
        assert minray.wait(refs, num_returns=most) == (refs[:most], refs[most:])

    driver.run(program)


def test_what_comes_is_waited_for_once(driver: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    waiting, waits = driver.worker.waiting, []
    begin = waiting.begin_wait
    monkeypatch.setattr(waiting, "begin_wait", lambda *rest: (waits.append(rest), begin(*rest)))
    driver.run(lambda: minray.get([rest.remote(1), rest.remote(2)]))
    assert len(waits) == 1


def test_g7_who_waits_in_vain_hears_so_in_time_and_is_not_waited_for_any_more(
    driver: Core, capsys: pytest.CaptureFixture[str]
) -> None:
    def program() -> None:
        ref, began = rest.remote(100), driver.worker.platform.user_code.time()
        with pytest.raises(GetTimeoutError):
            minray.get([ref, minray.put(b"x" * LARGE)], timeout=9)
        assert driver.worker.platform.user_code.time() - began < 9.1
        let_pass(0.1)
        assert driver.worker.store.awaited() == []

    driver.run(program)
    assert capsys.readouterr().err == ""


def test_who_waits_for_long_reads_why(
    driver: Core, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And collects what garbage may keep from others, once."""
    collections: list[float] = []
    user_code = driver.worker.platform.user_code
    monkeypatch.setattr(user_code, "collect_garbage", lambda: collections.append(user_code.time()))

    def program() -> None:
        minray.get(rest.remote(1))
        minray.get([minray.put("here"), rest.remote(15), rest.remote(16)])

    waiting = driver.begin(driver.thread(program))
    driver.cluster.settle(9)
    assert capsys.readouterr().err == "" and collections == []
    driver.cluster.settle(4)
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("minray: still waiting after 10 s: task rest") and not waiting.done()
    driver.cluster.settle(10)
    assert waiting.done() and capsys.readouterr().err == "" and len(collections) == 1


def test_g7_the_explanation_of_a_long_wait_does_not_make_it_longer(driver: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    async def be_slow(*_: Any) -> list[str]:
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 5)
        return ["a late reason"]

    monkeypatch.setattr(driver.worker.explainer, "explain_in_time", be_slow)

    def program() -> None:
        for timeout_s in (12.0, 20.0):
            began = driver.worker.platform.user_code.time()
            with pytest.raises(GetTimeoutError):
                minray.get(rest.remote(60), timeout=timeout_s)
            assert timeout_s <= driver.worker.platform.user_code.time() - began < timeout_s + 0.6

    driver.run(program)


def test_the_loop_does_not_wait_for_itself(driver: Core) -> None:
    async def story() -> None:
        ref = rest.remote(1)
        for wait in (minray.get, lambda one: minray.wait([one]), lambda _: minray.nodes()):
            with pytest.raises(RuntimeError, match="would block"):
                wait(ref)

    driver.do(story())


@pytest.mark.parametrize("how", ["returned", "gathered"])
def test_an_awaited_task_that_has_raised_stop_iteration_has_not_returned(driver: Core, how: str) -> None:
    """A coroutine that is told a StopIteration takes it for the end of what it awaits."""

    async def story() -> Any:
        ref = fail.remote(StopIteration("no value"))
        return await ref if how == "returned" else await asyncio.gather(ref.as_future())

    with pytest.raises(RayTaskError, match="fail failed") as error:
        driver.do(story())
    assert type(error.value) is RayTaskError and error.value.args == (error.value.cause,)
    assert isinstance(error.value.cause, StopIteration) and error.value.__cause__ is error.value.cause


# --- wait


def test_g8_as_many_as_are_asked_for_in_their_order(driver: Core) -> None:
    def program() -> None:
        refs = [minray.put(number) for number in range(4)]
        for count in (1, 2, 4):
            assert minray.wait(refs, num_returns=count) == (refs[:count], refs[count:])

    driver.run(program)


def test_a_list_with_duplicates_is_refused(driver: Core) -> None:
    def program() -> None:
        ref = minray.put(1)
        with pytest.raises(ValueError, match="duplicates"):
            minray.wait([ref, ref])

    driver.run(program)


# --- others


def test_a_value_that_cannot_be_unpickled_raises_in_await(driver: Core) -> None:
    async def story() -> None:
        with pytest.raises(ValueError, match="no number"):
            await minray.put(Broken())

    driver.do(story())


def test_whatever_a_reference_stands_for_can_be_awaited(driver: Core) -> None:
    async def story() -> None:
        size, error = make.remote(LARGE), fail.remote()
        for _ in range(2):  # when it comes, and when it is here
            assert len(await size) == LARGE
            with pytest.raises(RayTaskError, match="it fails"):
                await error

    driver.do(story())


def test_a_reference_becomes_bytes_and_bytes_a_reference(driver: Core) -> None:
    def program() -> None:
        assert minray.get(cloudpickle.loads(cloudpickle.dumps(minray.put("x")))) == "x"
        group = placement_group([{"CPU": 1}])
        assert minray.get(group.ready(), timeout=5).id == group.id

    driver.run(program)


def test_a_freed_value_is_an_error_and_a_copy_that_is_given_up_is_not(cluster: Cores, driver: Core) -> None:
    def program() -> None:
        ref = far(cluster)
        assert len(minray.get(ref)) == LARGE
        internal.free([ref], local_only=True)
        assert len(minray.get(ref)) == LARGE
        internal.free([ref])
        with pytest.raises(ObjectFreedError):
            minray.get(ref)

    driver.run(program)


def test_a_silent_owner_is_asked_for_locations_until_the_timeout(cluster: Cores, driver: Core) -> None:
    def program() -> None:
        (ref,) = minray.get(own_resting.remote())
        owner = next(p for p in cluster.world.loop.processes if p.name.startswith("worker/") and is_at(cluster, p, ref))
        cluster.world.loop.stall(owner, 100)
        with pytest.raises(GetTimeoutError):
            experimental.get_object_locations([ref], timeout_ms=1000)

    driver.run(program)


def is_at(cluster: Cores, process: Any, ref: Any) -> bool:
    core = cluster.cores.get(process.name)
    return core is not None and core.process.address == ref._owner


def test_what_goes_wrong_on_the_loop_is_raised_in_the_thread_that_asked(driver: Core) -> None:
    def program() -> None:
        placement_group([{"CPU": 1}], name="taken")
        with pytest.raises(ValueError, match="taken"):
            placement_group([{"CPU": 1}], name="taken")

    driver.run(program)


def test_a_thread_that_asks_the_cluster_something_hears_that_the_driver_leaves(cluster: Cores, driver: Core) -> None:
    """The thread once waited for ever."""
    asking = driver.begin(driver.thread(lambda: placement_group([{"GPU": 1}]).wait(1000)))
    cluster.settle(1)
    driver.begin(driver.worker.close())
    cluster.wait_until(asking.done, 5.0)
    cluster.settle(1)
    assert isinstance(asking.exception(), LocalRayletDiedError) and driver.tasks() == []


def test_who_has_awaited_in_vain_waits_no_more(driver: Core) -> None:
    async def story() -> None:
        ref = rest.remote(50)

        async def wait_in_vain() -> None:
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(ref, 0.1)
            await turn()  # from Python 3.12 on wait_for does not see to the end of what it has cancelled

        for _ in range(3):
            await wait_in_vain()
        waiters = driver.worker.store._waiters
        assert waiters == {}
        waiting = asyncio.ensure_future(ref)
        await wait_in_vain()
        assert len(waiters[ref.binary()]) == 1 and await waiting == await ref == 50

    driver.do(story())


def test_what_cannot_be_asked_is_an_error_of_the_system(driver: Core) -> None:
    async def ask(error: PlatformError) -> None:
        raise error

    def program() -> None:
        api = minray.api.calls.current_api()
        with pytest.raises(RaySystemError, match="the cluster does not answer: it is gone"):
            api.run_on_loop(lambda: ask(PeerUnreachable("it is gone")))
        with pytest.raises(RaySystemError, match="the request to the cluster failed: too-large: a reply"):
            api.run_on_loop(lambda: ask(RemoteFailure("too-large", "a reply of 9 bytes")))

    driver.run(program)


@pytest.mark.parametrize("fails", [False, True])
def test_a_callback_of_a_future_that_exits_ends_nothing_else(
    driver: Core, fails: bool, caplog: pytest.LogCaptureFixture
) -> None:
    def leave(_done: object) -> None:
        raise SystemExit(3)

    def program() -> None:
        ref = fail.remote() if fails else rest.remote(1)
        leaving, beside = ref.future(), ref.future()
        leaving.add_done_callback(leave)
        minray.wait([ref])
        let_pass(1)
        assert leaving.done() and beside.done()
        assert minray.get(rest.remote(1)) == 1

    driver.run(program)
    assert "SystemExit: 3" in caplog.text


@pytest.mark.parametrize("is_known", [False, True])
def test_a_future_holds_its_object_until_it_has_the_value(cluster: Cores, driver: Core, is_known: bool) -> None:
    """However long that is on its way from another node."""

    def program() -> concurrent.futures.Future[bytes]:
        return far(cluster, is_known).future()

    async def story() -> None:
        assert len(await asyncio.wrap_future(await driver.thread(program))) == LARGE

    driver.do(story())


def test_what_is_here_can_be_awaited_when_the_driver_has_left(driver: Core, monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        here, error, unfinished = minray.put("here"), fail.remote(), rest.remote(1)
        await driver.thread(lambda: minray.wait([here, error], num_returns=2))
        monkeypatch.setattr(driver.worker.platform.user_code, "future", failed_future)
        assert await here == "here"
        with pytest.raises(RayTaskError, match="it fails"):
            await error
        with pytest.raises(LocalRayletDiedError):
            await unfinished

    driver.do(story())
