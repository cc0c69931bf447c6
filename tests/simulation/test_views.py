"""Copies of state in a cluster at rest: none is wrong, each wrong one is seen, and no table is left out."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

import minray
from minray.common.bundles import is_cpu
from minray.simulation import SimCluster
from minray.util.placement_group import placement_group, remove_placement_group
from tests.simulation.tables import REASONS, reasons, tables_of_the_package
from tests.simulation.views import COPIES, stale_views

Damage = Callable[[SimCluster], Callable[[], Any]]
"""Makes one copy wrong, and returns what makes it right again."""


def test_every_table_is_compared_with_its_source_or_says_why_it_is_no_copy() -> None:
    tables, known = set(tables_of_the_package()), reasons()
    assert tables == COPIES | known.keys(), "a new table needs a comparison in views.py, or a reason in tables.py"
    assert not COPIES & known.keys()
    assert len(known) == sum(len(names.split()) for names in REASONS.values())


@minray.remote(num_cpus=0)
class Keeper:
    """An actor that keeps what it is given."""

    def __init__(self) -> None:
        self._kept: Any = None

    def keep(self, kept: Any) -> None:
        self._kept = kept


@minray.remote(num_cpus=1)
def make() -> bytes:
    return bytes(100)


def hold_one_of_each(done: list[bool]) -> None:
    """Hold an actor with a name, which has borrowed a value; values on both nodes; and know a dead actor and a group."""
    keeper = Keeper.options(name="keeper").remote()
    past = Keeper.options(max_restarts=0).remote()
    minray.get(past.keep.remote(1))
    minray.kill(past)
    own = minray.put(bytes(100))
    minray.get(keeper.keep.remote([own]))
    made = [make.options(scheduling_strategy="SPREAD").remote() for _ in range(2)]
    minray.wait(made, num_returns=2)
    group = placement_group([{"CPU": 1}], name="group")
    minray.get(group.ready())
    past_group = placement_group([{"CPU": 1}])
    minray.get(past_group.ready())
    remove_placement_group(past_group)
    done.append(True)
    time.sleep(10_000)
    del keeper, own, made, group


@pytest.fixture(scope="module")
def resting() -> Iterator[SimCluster]:
    done: list[bool] = []
    config = {"max_direct_call_object_size": 10}
    nodes = [{"num_cpus": 2}, {"num_cpus": 2, "labels": {"zone": "a"}}]
    with SimCluster(nodes, 3, system_config=config, storage="gcs.db", show_output=False) as cluster:
        cluster.start_driver(lambda: hold_one_of_each(done))
        cluster.wait_until(lambda: bool(done))
        cluster.settle(5.0, collects=False)
        yield cluster


def test_at_rest_all_copies_are_right(resting: SimCluster) -> None:
    assert stale_views(resting) == []


def drop_from(find: Callable[[SimCluster], Any]) -> Damage:
    """Take one entry out of a table."""

    def damage(cluster: SimCluster) -> Callable[[], Any]:
        table: Any = find(cluster)
        before = table.copy()
        key = next(iter(table))
        if isinstance(table, set):
            table.discard(key)
        else:
            del table[key]
        return lambda: (table.clear(), table.update(before))

    return damage


def add_to(find: Callable[[SimCluster], Any], key: Any, value: Any = None) -> Damage:
    """Put an entry into a table that is of nothing."""

    def damage(cluster: SimCluster) -> Callable[[], Any]:
        table: Any = find(cluster)
        if isinstance(table, set):
            table.add(key)
            return lambda: table.discard(key)
        table[key] = value
        return lambda: table.pop(key)

    return damage


def change(find: Callable[[SimCluster], Any], name: str, value: Any) -> Damage:
    """Change an attribute."""

    def damage(cluster: SimCluster) -> Callable[[], Any]:
        thing = find(cluster)
        before = getattr(thing, name)
        setattr(thing, name, value)
        return lambda: setattr(thing, name, before)

    return damage


def gcs(cluster: SimCluster) -> Any:
    return cluster.gcs


def head(cluster: SimCluster) -> Any:
    return cluster.raylets["head"]


def idle_worker(cluster: SimCluster) -> Any:
    return next(iter(head(cluster)._broker.pool._idle.values()))


def other_view(cluster: SimCluster) -> Any:
    """View that the head has of the other node."""
    return head(cluster)._broker.nodes._views[cluster.raylets["n1"]._config.node_id]


def driver(cluster: SimCluster) -> Any:
    return next(core for core in cluster.cores.values() if core.config.is_driver)


def keeper(cluster: SimCluster) -> Any:
    """Core worker of the actor that lives."""
    alive = cluster.alive()
    cores = [core for name, core in cluster.cores.items() if name in alive]
    return next(core for core in cores if core.execution.actor_receiver.actor is not None)


def client(cluster: SimCluster) -> Any:
    actor_id = keeper(cluster).execution.actor_receiver.actor.actor_id
    return driver(cluster).submission.actors.clients.client_of(actor_id)


def lent(cluster: SimCluster) -> Any:
    return next(reference.lent for _, reference in driver(cluster).references.items() if reference.lent)


def directory(cluster: SimCluster) -> Any:
    return driver(cluster).directory


def first_copy(cluster: SimCluster) -> Any:
    """Entry of a primary copy in the head's store."""
    return head(cluster).store.table.primaries()[0]


class Living:
    """A connection whose other end counts as living."""

    death = None


def dead_owner(cluster: SimCluster) -> bytes:
    """A worker of whose death the head has heard."""
    return next(iter(head(cluster)._broker.refusals._dead_owners))


def without_cpu(cluster: SimCluster) -> dict[str, int]:
    return {key: amount for key, amount in other_view(cluster).available.items() if not is_cpu(key)}


DAMAGES: dict[str, tuple[Damage, str]] = {
    "a subscriber keeps what is gone": (
        add_to(lambda c: head(c)._subscriptions[2]._values, b"gone", b""), "head has heard on channel worker_deaths has",
    ),
    "a subscriber has missed a change": (
        drop_from(lambda c: head(c)._subscriptions[0]._values), "head has heard on channel nodes lacks",
    ),
    "the gcs has not told a change": (
        drop_from(lambda c: gcs(c)._publisher._topics["jobs"].values), "channel jobs lacks",
    ),
    "a name leads to nothing": (drop_from(lambda c: gcs(c)._actors._actors._named), "index of actors by name lacks"),
    "a name is taken by nobody": (
        add_to(lambda c: gcs(c)._actors._actors._named, ("", "nobody"), b""), "index of actors by name has",
    ),
    "an actor is not found by its worker": (
        drop_from(lambda c: gcs(c)._actors._actors._of_worker), "index of actors by worker lacks",
    ),
    "the dead are not counted": (drop_from(lambda c: gcs(c)._actors._actors._dead), "list of dead actors lacks"),
    "a job is not found by its driver": (drop_from(lambda c: gcs(c)._jobs._job_of_driver), "index of jobs lacks"),
    "a group is not found by its name": (drop_from(lambda c: gcs(c)._groups._names), "index of placement groups lacks"),
    "a removed group is not counted": (drop_from(lambda c: gcs(c)._groups._removed), "list of removed groups lacks"),
    "a node is not stored": (
        drop_from(lambda c: gcs(c)._storage._storage._tables["nodes"]), "stored table of nodes lacks",
    ),
    "a value is stored for ever": (
        add_to(lambda c: gcs(c)._storage._storage._tables["kv"], "00:nowhere", b""), "stored table of values has",
    ),
    "a node is not watched": (drop_from(lambda c: gcs(c)._health._watches), "does not watch"),
    "the gcs has an old report": (drop_from(lambda c: gcs(c)._nodes._resources), "gcs's reports of nodes lacks"),
    "a raylet has another node's old resources": (
        lambda c: change(other_view, "available", without_cpu(c))(c), "head's view of n1 says available",
    ),
    "a raylet has wrong labels": (change(other_view, "labels", {}), "head's view of n1 has the labels"),
    "a raylet believes that a node leaves": (change(other_view, "draining", True), "head's view of n1 says that it is to"),
    "a promise lasts for ever": (change(other_view, "promised_until", 1.0), "keeps a promise"),
    "a raylet believes that a node is gone": (change(other_view, "alive", False), "head's view of the nodes lacks"),
    "a raylet has forgotten a driver": (drop_from(lambda c: head(c)._local_gc.drivers), "head's list of drivers lacks"),
    "a raylet has not heard of a death": (
        drop_from(lambda c: head(c)._broker.refusals._dead_owners), "does not know of the deaths",
    ),
    "a raylet would call the dead": (
        lambda c: add_to(lambda c: head(c)._peers._peers, dead_owner(c), Living())(c), "of whose death it has heard",
    ),
    "a store has not heard of a death": (drop_from(lambda c: head(c).store.table._dead), "does not know of the deaths"),
    "a raylet does not know the driver": (drop_from(lambda c: head(c)._log_monitor._outboxes), "output of job"),
    "a worker is not in the pool": (drop_from(lambda c: head(c)._broker.pool.workers), "list of workers lacks"),
    "a worker that was given up lives": (change(idle_worker, "doom", "it is silent"), "given up the workers"),
    "an idle worker is not listed": (drop_from(lambda c: head(c)._broker.pool._idle), "list of idle workers lacks"),
    "an owner believes that a node is dead": (add_to(lambda c: directory(c)._dead_nodes, b"none"), "list of dead nodes has"),
    "an owner has not heard of a death": (drop_from(lambda c: driver(c).references._dead), "does not know of the deaths"),
    "a caller has forgotten an actor": (
        drop_from(lambda c: next(iter(driver(c).submission.actors._infos.values()))), "list of actors lacks",
    ),
    "a caller calls nobody": (lambda c: change(lambda c: client(c).stream, "address", None)(c), "sends the calls"),
    "an owner does not know of a copy": (drop_from(lambda c: directory(c)._objects), "of which its owner does not know"),
    "an owner knows a copy that is not there": (
        drop_from(lambda c: head(c).store.table._entries), "which has no copy of attempt 0",
    ),
    "the first copy may be evicted": (change(first_copy, "is_primary", False), "copy is not the primary one"),
    "a primary copy is on the list for eviction": (
        lambda c: add_to(lambda c: head(c).store.table._spare, first_copy(c).object_id)(c), "it may be evicted",
    ),
    "an owner does not know of a borrower": (drop_from(lent), "has not noted"),
    "an owner waits for a borrower for ever": (
        lambda c: add_to(lent, b"ticket", (keeper(c).address, driver(c).address))(c), "which does not have that ticket",
    ),
}  # fmt: skip


@contextmanager
def damaged(cluster: SimCluster, damage: Damage) -> Iterator[None]:
    mend = damage(cluster)
    try:
        yield
    finally:
        mend()


@pytest.mark.parametrize("name", DAMAGES)
def test_l6_a_wrong_copy_is_seen(resting: SimCluster, name: str) -> None:
    damage, said = DAMAGES[name]
    with damaged(resting, damage):
        found = stale_views(resting)
        assert any(problem.startswith("L6: ") and said in problem for problem in found), found
    assert stale_views(resting) == []
