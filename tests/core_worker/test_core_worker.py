"""One process's part in the cluster: how it joins, what it submits and cancels, when it may end, and how it leaves."""

from __future__ import annotations

import asyncio
from typing import Any

import cloudpickle
import msgspec
import pytest

import minray
from minray.common.config import SystemConfig, worker_endpoint
from minray.common.ids import job_of
from minray.core_worker.core_worker import FAREWELL_TIMEOUT_S
from minray.exceptions import LocalRayletDiedError, RayTaskError, TaskCancelledError
from minray.platform.base import PlatformError
from minray.protocol.gcs import GetJob
from minray.util.placement_group import placement_group, remove_placement_group
from tests.core_worker.cores import JOB, Core, Cores, cores, let_pass, outcome_of, pause, sent

SOON_S = 0.5
"""Virtual seconds: long before a raylet ends a worker that is idle."""
ASKED_AGAIN_S = 1.5
"""Virtual seconds that a worker which refused to end may wait until its raylet asks again."""


async def value_of(pickled: bytes) -> Any:
    """Get the value of a reference that came by pickle, outside minray's own ways."""
    return await cloudpickle.loads(pickled)


@minray.remote(max_retries=0)
def echo(value: Any = None) -> Any:
    return value


@minray.remote
def job_id() -> bytes:
    return minray.api.calls.current_api().job_id


@minray.remote(max_retries=0)
def rest(seconds: float) -> float:
    let_pass(seconds)
    return seconds


@minray.remote
class Keeper:
    def __init__(self, value: Any = None) -> None:
        self.value = value

    def keep(self, value: Any) -> None:
        self.value = value

    def kept(self) -> Any:
        return self.value


# --- joining


def test_a_driver_that_has_joined_knows_its_job_and_its_node(cluster: Cores, driver: Core) -> None:
    core = driver.worker
    known = driver.do(core.gcs.call(GetJob(core.context.job_id))).job
    assert known is not None and core.context.job is not None
    assert known == msgspec.structs.replace(core.context.job, start_time=known.start_time)
    assert known.job_id == core.context.job_id == job_of(core.context.task_ids.next()) and known.driver == core.address
    assert core.process.raylet_address == cluster.raylets["head"].address


def test_a_worker_that_its_node_does_not_wait_for_ends(cluster: Cores) -> None:
    stray = cluster.core("stray", is_driver=False)
    codes: list[int | None] = []
    stray.process.on_exit = lambda code, _: codes.append(code)
    stray.begin(stray.worker.start())
    cluster.wait_until(lambda: not stray.process.alive)
    assert codes == [1]


def test_where_there_is_tcp_processes_of_other_nodes_come_that_way() -> None:
    with cores(1, 0) as cluster:
        there = cluster.driver("there", "n1", tcp_host="10.0.0.2")
        here = cluster.driver("here")
        address = there.worker.address
        assert address.endpoint == worker_endpoint("sim:n1", address.worker_id)
        assert address.endpoint_from(here.worker.config.node_id).startswith("tcp:10.0.0.2:")
        sought = sought_endpoints(cluster, "n1")
        pickled = there.act(lambda: cloudpickle.dumps(minray.put("over there")))
        assert here.do(value_of(pickled)) == "over there"
        resting = there.begin(value_of_task(rest, 1))
        cluster.wait_until(lambda: bool(leases(cluster)))
        assert [lease.owner for lease in leases(cluster)] == [address]
        cluster.wait_until(resting.done)
        assert address.endpoint not in sought and sought


def leases(cluster: Cores) -> list[Any]:
    return list(cluster.raylets["head"]._broker.entries.values())


def sought_endpoints(cluster: Cores, node: str) -> set[str]:
    """Where processes of other nodes find those of this one, from now on."""
    wire: Any = cluster.world.wire
    knock, sought = wire.knock, set()

    def noting(network: Any, endpoint: str, *rest: Any) -> None:
        listener = wire.listeners.get(endpoint)
        if listener is not None and listener.network.process.node == node != network.process.node:
            sought.add(endpoint)
        knock(network, endpoint, *rest)

    wire.knock = noting
    return sought


async def value_of_task(function: Any, *arguments: Any) -> Any:
    return await function.remote(*arguments)


def test_only_where_there_is_tcp_is_it_listened_to(driver: Core) -> None:
    assert driver.worker.address.tcp_endpoint == ""


def test_a_driver_that_cannot_listen_says_so_and_can_be_closed(cluster: Cores, driver: Core) -> None:
    """Closing it used to raise an AttributeError, which hid why."""
    second = cluster.core("second", worker_id=driver.worker.config.worker_id)
    with pytest.raises(PlatformError, match="another process listens there"):
        second.join()
    second.do(second.worker.close())
    assert second.tasks() == []


def test_a_driver_whose_node_is_gone_from_the_start_can_be_closed(cluster: Cores) -> None:
    late = cluster.core("late")
    cluster.kill("raylet/head")
    with pytest.raises(PlatformError):
        late.join()
    late.do(late.worker.close())
    cluster.settle(5)
    assert late.tasks() == []


def test_a_driver_whose_node_says_nothing_ends_the_job_that_it_has_begun(cluster: Cores) -> None:
    late = cluster.core("late")
    cluster.world.loop.stall(cluster.processes["raylet/head"], 20)
    with pytest.raises(TimeoutError):
        late.do(asyncio.wait_for(late.worker.start(JOB), 5))
    words = sent(cluster, "late")
    late.do(late.worker.close())
    assert words == ["FinishJob"]


# --- losing the cluster


@pytest.mark.parametrize(("victim", "what"), [("raylet/head", "the local raylet died"), ("gcs", "the gcs died")])
def test_what_is_unfinished_fails_when_the_cluster_is_lost_though_nothing_is_asked(victim: str, what: str) -> None:
    with cores(storage="gcs.db") as cluster:
        impatient = SystemConfig.from_overrides({"gcs_rpc_server_reconnect_timeout_s": 3})
        driver = cluster.driver(system_config=impatient)

        async def story() -> list[Any]:
            impossible = echo.options(num_cpus=99).remote()
            taking = echo.remote(impossible)
            cluster.kill(victim)
            return [await outcome_of(ref) for ref in (impossible, taking)]

        first, second = driver.do(story())
        assert isinstance(first, LocalRayletDiedError) and what in str(first) and driver.worker.process.is_exiting
        assert isinstance(second, LocalRayletDiedError | RayTaskError)
        assert not driver.worker.submission.tasks.tasks

        async def later() -> list[Any]:
            keeper = Keeper.remote()
            return [await outcome_of(ref) for ref in (echo.remote(), minray.put("own"), keeper.kept.remote())]

        task, put, call = driver.do(later())
        assert isinstance(task, LocalRayletDiedError) and put == "own" and isinstance(call, Exception)
        assert not driver.worker.submission.tasks.tasks


def test_a_worker_that_has_lost_its_raylet_ends(cluster: Cores, driver: Core) -> None:
    worker = cluster.worker_of(driver.do(pid_of_worker()))
    worker.process.call_soon(worker.worker.raylet.give_up, "it has been seen dead")
    cluster.wait_until(lambda: not worker.process.alive, 1.0)


def test_a_worker_that_has_lost_the_gcs_ends(cluster: Cores, driver: Core) -> None:
    worker = cluster.worker_of(driver.do(pid_of_worker()))
    worker.process.call_soon(worker.worker.gcs.give_up, "it is not there")
    cluster.wait_until(lambda: not worker.process.alive, 1.0)


async def pid_of_worker() -> int:
    found: int = await process_id.remote()
    return found


@minray.remote
def process_id() -> int:
    return minray.api.calls.current_api().port.process.platform.processes.pid


def test_without_its_store_a_worker_says_so_and_ends_and_a_driver_does_not(
    cluster: Cores, driver: Core, caplog: pytest.LogCaptureFixture
) -> None:
    """A task may run elsewhere; a driver has nowhere to go, and the error is its program's."""
    worker = cluster.worker_of(driver.do(pid_of_worker()))
    for core in (worker, driver):
        core.process.call_soon(core.worker.provider._client._on_unreachable, "no arena")
    cluster.settle(1)
    assert not worker.process.alive and driver.process.alive and not driver.worker.process.is_exiting
    assert "this worker ends: no arena" in caplog.text


# --- submitting


def test_arguments_are_kept_until_their_task_has_ended(driver: Core) -> None:
    async def story() -> None:
        slot, inner = minray.put("slot"), minray.put("inner")
        ids = [slot._id, inner._id]
        plain, nested = rest.remote(0.5), echo.remote([inner])
        taking = echo.remote(slot)
        del slot, inner
        await asyncio.shield(taking)
        assert await taking == "slot" and await (await nested)[0] == "inner" and await plain == 0.5
        del nested, taking, plain
        await pause(0.2)
        assert [driver.worker.references.reference_of(key) for key in ids] == [None, None]

    driver.do(story())


def test_what_takes_nothing_keeps_nothing(driver: Core) -> None:
    async def story() -> Any:
        keeper = Keeper.remote("x")
        values = [await echo.remote(), await keeper.kept.remote(), [await item async for item in count.remote(3)]]
        await keeper.keep.remote(minray.put("y"))
        return [*values, await keeper.kept.remote()]

    assert driver.do(story()) == [None, "x", [0, 1, 2], "y"]


@minray.remote(num_returns="streaming")
def count(most: int) -> Any:
    yield from range(most)


def test_a_call_with_an_argument_that_is_not_made_yet_waits_and_the_calls_behind_it_do(driver: Core) -> None:
    async def story() -> Any:
        keeper = Keeper.remote()
        keeper.keep.remote(rest.remote(0.5))
        return await keeper.kept.remote()

    assert driver.do(story()) == 0.5


def test_tasks_whose_function_is_being_exported_wait_for_that(cluster: Cores, driver: Core) -> None:
    late = minray.remote(lambda: "late")

    async def story() -> Any:
        refs = [late.remote() for _ in range(2)]
        await pause(0)
        assert not driver.worker.submission.submitter.leased_workers() and len(driver.worker.submission.tasks.tasks) == 2
        return [await ref for ref in refs]

    words = sent(cluster, "driver")
    assert driver.do(story()) == ["late"] * 2 and words.count("KvPut") == 1


def test_a_worker_becomes_a_part_of_the_job_whose_task_comes_first(driver: Core) -> None:
    assert driver.run(lambda: minray.get(job_id.remote())) == driver.worker.context.job_id


# --- cancelling


def test_g47_a_borrower_cancels_at_the_owner(cluster: Cores, driver: Core) -> None:
    borrower = cluster.driver("borrower")
    ref = driver.act(lambda: rest.remote(100))
    cluster.settle(1)
    words = sent(cluster, "borrower")
    pickled = driver.act(lambda: cloudpickle.dumps(ref))

    async def story() -> None:
        minray.cancel(cloudpickle.loads(pickled))

    borrower.do(story())
    error = driver.do(outcome_of(ref))
    assert isinstance(error, TaskCancelledError) and words.count("CancelObject") == 1


def test_g40_what_has_ended_is_not_cancelled_any_more_and_nobody_is_told(cluster: Cores, driver: Core) -> None:
    async def story() -> Any:
        ref = echo.remote(1)
        await asyncio.shield(ref)
        words = sent(cluster, "driver")
        minray.cancel(ref)
        await pause(1)
        return words, await ref

    words, value = driver.do(story())
    assert value == 1 and "CancelObject" not in words and "CancelTask" not in words


@minray.remote(max_retries=0)
def parent(box: list[Any]) -> Any:
    child, keeper = rest.remote(100), Keeper.remote("made by a parent")
    minray.get(box[0].keep.remote([child, keeper]))
    return minray.get(child)


@pytest.mark.parametrize("recursive", [True, False])
def test_g46_children_are_cancelled_but_not_the_actors_that_the_task_has_made(driver: Core, recursive: bool) -> None:
    async def story() -> None:
        keeper = Keeper.options(num_cpus=0).remote()
        task = parent.options(num_cpus=0).remote([keeper])
        while (found := await keeper.kept.remote()) is None:
            await pause(0.01)
        minray.cancel(task, recursive=recursive)
        assert isinstance(await outcome_of(task), Exception)
        child, made = found
        if recursive:
            assert isinstance(await outcome_of(child), TaskCancelledError)
        else:
            assert await child == 100
        assert await made.kept.remote() == "made by a parent"

    driver.do(story())


# --- ending as a worker


@minray.remote(max_calls=1, max_retries=0)
def last_call(value: Any) -> Any:
    return value, minray.api.calls.current_api().port.process.platform.processes.pid


@minray.remote(max_calls=1, max_retries=0)
def last_put() -> Any:
    return [minray.put("mine")], minray.api.calls.current_api().port.process.platform.processes.pid


@minray.remote(max_calls=1, max_retries=0)
def last_child(keeper: Any) -> Any:
    rest.options(num_cpus=0).remote(1)
    keeper.keep.options(num_returns=0).remote(rest.options(num_cpus=0).remote(2))
    return minray.api.calls.current_api().port.process.platform.processes.pid


@minray.remote(max_calls=1, max_retries=0)
def last_actor() -> Any:
    return Keeper.options(num_cpus=0).remote("made"), minray.api.calls.current_api().port.process.platform.processes.pid


def test_g23_a_worker_that_has_been_called_often_enough_answers_and_ends(cluster: Cores, driver: Core) -> None:
    value, pid = driver.run(lambda: minray.get(last_call.remote("x")))
    assert value == "x" and cluster.worker_of(pid).process.alive
    cluster.wait_until(lambda: not cluster.worker_of(pid).process.alive, SOON_S)


@pytest.mark.parametrize("make", [last_put, last_actor])
def test_g63_it_does_not_end_as_long_as_others_depend_on_what_it_owns(cluster: Cores, driver: Core, make: Any) -> None:
    async def story() -> Any:
        what, pid = await make.remote()
        await pause(5)
        value = await what[0] if isinstance(what, list) else await what.kept.remote()
        return value, pid

    value, pid = driver.do(story())
    assert value in ("mine", "made") and cluster.worker_of(pid).process.alive
    cluster.wait_until(lambda: not cluster.worker_of(pid).process.alive, ASKED_AGAIN_S)


def test_nor_as_long_as_its_own_tasks_have_not_ended(cluster: Cores, driver: Core) -> None:
    async def story() -> Any:
        keeper = Keeper.options(num_cpus=0).remote()
        pid = await last_child.remote(keeper)
        while (kept := await keeper.kept.remote()) is None:
            await pause(0.1)
        return kept, pid

    kept, pid = driver.do(story())
    assert kept == 2
    cluster.wait_until(lambda: not cluster.worker_of(pid).process.alive, ASKED_AGAIN_S)


# --- leaving as a driver


def leave(cluster: Cores, driver: Core, limit_s: float = 5.0) -> None:
    closing = driver.begin(driver.worker.close())
    cluster.wait_until(closing.done, limit_s)
    closing.result()


def test_a_driver_that_leaves_ends_its_job_though_its_process_goes_on(cluster: Cores, driver: Core) -> None:
    words = sent(cluster, "driver")
    leave(cluster, driver)
    other = cluster.driver("other")
    job = other.do(other.worker.gcs.call(GetJob(driver.worker.context.job_id))).job
    assert job is not None and job.end_time and driver.process.alive and words == ["FinishJob"]


def test_who_waits_hears_that_it_leaves_though_the_gcs_says_nothing_for_a_while(cluster: Cores, driver: Core) -> None:
    async def story() -> Any:
        waiting = asyncio.ensure_future(outcome_of(rest.remote(100)))
        await pause(1)
        cluster.world.loop.stall(cluster.processes["gcs"], 20)
        closing = asyncio.ensure_future(driver.worker.close())
        async with asyncio.timeout(0.5):
            error = await waiting
        assert not closing.done()
        async with asyncio.timeout(2 * FAREWELL_TIMEOUT_S):
            await closing
        return error

    error = driver.do(story())
    assert isinstance(error, LocalRayletDiedError) and "has left its cluster" in str(error)


def test_what_a_driver_has_done_with_its_groups_is_said_before_it_leaves(cluster: Cores, driver: Core) -> None:
    async def story() -> bytes:
        group = placement_group([{"CPU": 1}], lifetime="detached")
        remove_placement_group(group)
        await pause(0)
        return group.id.binary()

    group_id = driver.do(story())
    words = sent(cluster, "driver")
    leave(cluster, driver)
    assert words == ["RemovePlacementGroup", "FinishJob"]
    other = cluster.driver("other")
    group = other.do(other.worker.placement_groups.get_group(group_id))
    assert group is not None and group.state == "REMOVED"


def test_without_its_node_a_driver_leaves_without_a_word(cluster: Cores, driver: Core) -> None:
    cluster.kill("raylet/head")
    cluster.wait_until(lambda: driver.worker.process.is_exiting)
    words = sent(cluster, "driver")
    leave(cluster, driver, SOON_S)
    assert words == []


def test_nothing_of_a_driver_that_has_left_is_on_its_loop_and_nobody_is_let_in(cluster: Cores, driver: Core) -> None:
    other = cluster.driver("other", tcp_host="10.0.0.3")
    refs: list[Any] = []

    def busy() -> None:
        own = minray.put("own")
        keeper = Keeper.options(num_cpus=0).remote(own)
        group = placement_group([{"GPU": 1}])
        refs.extend([own, keeper, group, group.ready(), rest.remote(100), echo.options(num_gpus=1).remote()])
        minray.get(keeper.kept.remote())

    driver.run(busy)
    pickled = driver.act(lambda: cloudpickle.dumps(refs[4]))
    asking = other.begin(outcome_of_pickled(pickled))
    waiting = driver.begin(driver.thread(lambda: refs[2].wait(1000)))
    cluster.settle(1)
    assert "user_call" in driver.tasks() and not asking.done()
    leave(cluster, driver)
    cluster.settle(3)
    assert driver.tasks() == []
    assert driver.endpoints() == [] and all(end.closed for end in ends_of(driver))
    assert isinstance(asking.result(), Exception) and waiting.exception()


def ends_of(core: Core) -> list[Any]:
    """Ends of all channels of a process."""
    network: Any = core.worker.platform.network
    return list(network.ends)


async def outcome_of_pickled(pickled: bytes) -> Any:
    return await outcome_of(cloudpickle.loads(pickled))
