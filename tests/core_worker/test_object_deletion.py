"""Freeing by hand, in simulated clusters: who is told, what stays, and what happens when it meets something else."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

import minray
from minray.common.bounds import BOUNDS
from minray.exceptions import ActorDiedError, ObjectFreedError
from minray.internal import free
from minray.protocol.core_worker import DeleteObjects
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.core_worker.cores import Core, Cores, cores, let_pass, make, outcome_of, pause, sent
from tests.simulation.judge import core_leftovers, raylet_leftovers

LARGE = b"x" * 10_000


@pytest.fixture
def cluster() -> Iterator[Cores]:
    with cores(2, 2, max_direct_call_object_size=1000) as made:
        yield made


@pytest.fixture(autouse=True)
def leaves_nothing(cluster: Cores, driver: Core) -> Iterator[None]:
    yield
    cluster.settle(5)
    left = core_leftovers(driver.worker)
    for name, raylet in cluster.raylets.items():
        left += raylet_leftovers(raylet) if f"raylet/{name}" in cluster.alive() else []
    assert left == []


@minray.remote(max_retries=0)
def rest(seconds: float, value: Any = None) -> Any:
    """A number makes that many bytes."""
    let_pass(seconds)
    return bytes(value) if isinstance(value, int) else value


@minray.remote(max_retries=0, num_returns=2)
def fail() -> None:
    raise ValueError("it fails")


@minray.remote(num_cpus=0)
class Keeper:
    def take(self, refs: list[Any]) -> None:
        self.refs = refs

    def put(self, value: Any) -> list[Any]:
        return [minray.put(value)]

    def free(self) -> None:
        free(self.refs)

    def read(self) -> Any:
        return minray.get(self.refs)

    def drop(self) -> None:
        self.refs = []

    def die(self) -> None:
        minray.api.calls.current_api().port.process.platform.processes.exit(1)


async def errors_of(*refs: Any) -> list[type]:
    return [type(await outcome_of(ref)) for ref in refs]


def free_here(driver: Core, *refs: Any) -> None:
    """As their owner, on the loop."""
    driver.worker.deletion.delete_owned([ref._id for ref in refs])


def copies(cluster: Cores) -> int:
    return sum(len(raylet.store.table) for raylet in cluster.raylets.values())


def test_one_that_is_freed_alone_is_named_and_of_several_none_is(driver: Core) -> None:
    def program() -> None:
        refs = [minray.put(number) for number in range(3)]
        free(refs[0])
        free(refs[1:])
        for index, ref in enumerate(refs):
            with pytest.raises(ObjectFreedError) as caught:
                minray.get(ref)
            assert (ref.hex() in str(caught.value)) == (index == 0)

    driver.run(program)


def test_each_owner_is_told_once_of_all_its_freed_objects_and_of_no_others(cluster: Cores, driver: Core) -> None:
    async def story() -> None:
        keepers = [Keeper.remote() for _ in range(2)]
        theirs = [(await keeper.put.remote(number))[0] for number, keeper in enumerate(keepers) for _ in range(2)]
        own = minray.put("own")
        await pause(0.1)
        words = sent(cluster, driver.process.name)
        await driver.worker.deletion.delete([(ref._id, ref._owner) for ref in [own, *theirs]])
        assert words.count("DeleteObjects") == 2
        assert await errors_of(own, *theirs) == [ObjectFreedError] * 5
        for keeper in keepers:
            await keeper.take.remote(theirs)
            assert isinstance(await outcome_of(keeper.read.remote()), ObjectFreedError)
            await keeper.drop.remote()

    driver.do(story())


def test_more_than_one_message_can_carry_are_freed_by_several(cluster: Cores, driver: Core) -> None:
    async def story() -> None:
        keeper = Keeper.remote()
        ref = (await keeper.put.remote("value"))[0]
        words = sent(cluster, driver.process.name)
        unknown = [(number.to_bytes(28, "big"), ref._owner) for number in range(BOUNDS.max_items_per_batch)]
        await driver.worker.deletion.delete([*unknown, (ref._id, ref._owner)])
        assert words.count("DeleteObjects") == 2
        await keeper.take.remote([ref])
        assert isinstance(await outcome_of(keeper.read.remote()), ObjectFreedError)
        await keeper.drop.remote()

    driver.do(story())


def test_who_is_dead_need_not_free_anything(cluster: Cores, driver: Core) -> None:
    def program() -> None:
        keeper, other = Keeper.remote(), Keeper.remote()
        gone, there = minray.get(keeper.put.remote(LARGE))[0], minray.get(other.put.remote(LARGE))[0]
        with pytest.raises(ActorDiedError):
            minray.get(keeper.die.remote())
        free([gone, there])
        for ref in (gone, there):
            with pytest.raises(ObjectFreedError):
                minray.get(ref)
        let_pass(0.1)
        assert copies(cluster) == 0

    driver.run(program)


def test_who_frees_returns_when_the_owner_has_done_it(cluster: Cores, driver: Core) -> None:
    def program() -> None:
        keeper = Keeper.remote()
        ref = minray.put(LARGE)
        minray.get(keeper.take.remote([ref]))
        minray.get(keeper.free.remote())
        with pytest.raises(ObjectFreedError):
            minray.get(ref)
        let_pass(0.1)
        assert copies(cluster) == 0
        with pytest.raises(ObjectFreedError):
            minray.get(keeper.read.remote())
        minray.get(keeper.drop.remote())

    driver.run(program)


def test_only_an_owner_frees_for_others(driver: Core) -> None:
    """A process that is asked to free another's object, or an unknown one, does nothing."""

    async def story() -> None:
        keeper, never = Keeper.remote(), b"never".ljust(28, b"-")
        borrowed, own = (await keeper.put.remote("theirs"))[0], minray.put("own")
        await pause(0.1)
        driver.worker.deletion.delete_owned([borrowed._id, never, own._id])
        assert await borrowed == "theirs" and await errors_of(own) == [ObjectFreedError]
        assert never not in driver.worker.store.objects

    driver.do(story())


def test_a_caller_that_waits_for_a_freed_object_goes_on_and_a_late_value_is_not_kept(cluster: Cores, driver: Core) -> None:
    async def story() -> None:
        refs = [rest.remote(1, b"small"), rest.remote(1, len(LARGE))]
        waiting = [driver.begin(outcome_of(ref)) for ref in refs]
        await pause(0.1)
        free_here(driver, *refs)
        assert [type(await each) for each in waiting] == [ObjectFreedError] * 2
        await pause(3)
        assert driver.worker.submission.tasks.tasks == {} and await errors_of(*refs) == [ObjectFreedError] * 2
        assert copies(cluster) == 0

    driver.do(story())


def test_a_borrower_who_waits_hears_that_it_was_freed(driver: Core) -> None:
    async def story() -> None:
        keeper = Keeper.remote()
        ref = rest.remote(100)
        await keeper.take.remote([ref])
        reading = keeper.read.remote()
        await pause(1)
        free_here(driver, ref)
        assert isinstance(await outcome_of(reading), ObjectFreedError)
        await keeper.drop.remote()
        minray.cancel(ref)

    driver.do(story())


def test_what_was_inside_stays_as_long_as_the_reference_to_what_was_freed(driver: Core) -> None:
    async def story() -> None:
        inner = minray.put("inner")
        inner_id, outer = inner._id, minray.put([inner])
        del inner
        await pause(0.1)
        free_here(driver, outer)
        await pause(0.1)
        assert await errors_of(outer) == [ObjectFreedError] and driver.worker.references.is_in_scope(inner_id)
        del outer
        await pause(0.1)
        assert driver.worker.references.reference_of(inner_id) is None

    driver.do(story())


@pytest.mark.parametrize("how_many", [1, 2])
def test_that_a_task_has_failed_is_said_although_its_results_were_freed(
    driver: Core, caplog: pytest.LogCaptureFixture, how_many: int
) -> None:
    """No user has looked at the error, and none can any more."""

    async def story() -> None:
        refs = fail.remote()
        await pause(2)
        free_here(driver, *refs[:how_many])
        del refs
        await pause(1)

    driver.do(story())
    said = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(said) == 1 and "it fails" in said[0]


def test_a_repeated_wish_changes_nothing(cluster: Cores, driver: Core) -> None:
    async def story() -> None:
        ref = make.remote(len(LARGE))
        await ref
        for _ in range(2):
            await driver.worker.peers.to(driver.worker.address).call(DeleteObjects([ref._id, ref._id]))
            assert await errors_of(ref) == [ObjectFreedError]
        assert driver.worker.references.is_in_scope(ref._id)

    driver.do(story())


# --- copies on this node alone


def test_copies_here_go_and_come_again_but_for_the_first(cluster: Cores, driver: Core) -> None:
    def program() -> None:
        own = minray.put(LARGE)
        there = NodeAffinitySchedulingStrategy(cluster.raylets["n1"].address.node_id.hex(), soft=False)
        far = make.options(scheduling_strategy=there).remote(len(LARGE))
        table = cluster.raylets["head"].store.table
        assert minray.get(far) == LARGE and len(table) == 2
        free([own, far], local_only=True)
        let_pass(0.1)
        assert len(table) == 1 and minray.get([own, far]) == [LARGE] * 2 and len(table) == 2

    driver.run(program)


def test_a_node_that_is_dead_has_no_copies_to_be_freed(cluster: Cores, driver: Core) -> None:
    def program() -> None:
        ref = minray.put("small")
        cluster.world.loop.call_soon_threadsafe(cluster.kill, "raylet/head")
        let_pass(5)
        free([ref], local_only=True)
        assert minray.get(ref) == "small"

    driver.run(program)
