"""Deaths of which a process is told: of which processes, from when on, and what follows. Simulated clusters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import minray
from minray.util.scheduling_strategies import NodeAffinitySchedulingStrategy
from tests.core_worker.cores import Core, Cores, cores, let_pass, make, outcome_of, pause

LARGE = b"x" * 10_000


@pytest.fixture
def cluster() -> Iterator[Cores]:
    """The second node has what ``there`` asks for."""
    with cores(2, 4, max_direct_call_object_size=1000) as made:
        yield made


@minray.remote(num_cpus=0)
class Keeper:
    def take(self, refs: Any) -> None:
        self.refs = refs

    def die(self) -> None:
        minray.api.calls.current_api().port.process.platform.processes.exit(1)


def followed(core: Core) -> list[str]:
    return sorted(name for name in core.tasks() if name in ("follow(worker_deaths)", "follow(nodes)"))


def is_known(core: Core, object_id: bytes) -> bool:
    """To any of its tables."""
    return core.worker.references.reference_of(object_id) is not None or object_id in core.worker.store.objects


BOTH = ["follow(nodes)", "follow(worker_deaths)"]


def test_nobody_is_followed_before_somebody_depends_on_an_object(driver: Core) -> None:
    def program() -> None:
        keeper, ref = Keeper.remote(), minray.put("x")
        minray.get([keeper.take.remote("y"), make.remote(1)])
        assert followed(driver) == []
        for _ in range(2):
            minray.get(keeper.take.remote([ref]))
            assert followed(driver) == BOTH

    driver.run(program)


def test_who_has_a_large_value_follows_too_and_once(driver: Core) -> None:
    def program() -> None:
        refs = [minray.put(LARGE) for _ in range(3)]
        minray.get(refs)
        assert followed(driver) == BOTH

    driver.run(program)


def test_g58_what_a_dead_process_has_borrowed_is_freed(driver: Core) -> None:
    async def story() -> None:
        keeper, ref = Keeper.remote(), minray.put("x")
        await keeper.take.remote([ref])
        object_id = ref._id
        del ref
        await pause(1)
        assert is_known(driver, object_id)
        await outcome_of(keeper.die.remote())
        await pause(1)
        assert not is_known(driver, object_id)

    driver.do(story())


def test_g58_and_so_is_what_the_processes_of_a_dead_node_have(cluster: Cores, driver: Core) -> None:
    async def story() -> None:
        keeper, ref = Keeper.options(num_cpus=3).remote(), minray.put("x")
        await keeper.take.remote([ref])
        object_id = ref._id
        del ref
        cluster.world.lose_node("n1")
        await pause(120)
        assert not is_known(driver, object_id)

    driver.do(story())


def test_g67_a_copy_on_a_dead_node_is_lost_and_made_again(cluster: Cores, driver: Core) -> None:
    there = NodeAffinitySchedulingStrategy(cluster.raylets["n1"].address.node_id.hex(), soft=True)

    def program() -> None:
        ref = make.options(max_retries=1, scheduling_strategy=there).remote(len(LARGE))
        minray.wait([ref], fetch_local=False)
        assert driver.worker.directory.copies_of(ref._id)[1] == [cluster.raylets["n1"].address]
        cluster.kill("raylet/n1")
        let_pass(5)
        assert driver.worker.directory.copies_of(ref._id)[1] == [cluster.raylets["head"].address]

    driver.run(program)


def test_who_leaves_follows_nobody_any_more(driver: Core) -> None:
    async def story() -> None:
        await Keeper.remote().take.remote([minray.put("x")])
        assert followed(driver) == BOTH
        await driver.worker.close()
        await pause(0.1)
        assert followed(driver) == []

    driver.do(story())
