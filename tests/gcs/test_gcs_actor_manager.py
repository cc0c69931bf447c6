"""The table of actors by itself: states, names, incarnations, repeated wishes, what is forgotten, what is loaded."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from minray.common.state_table import InvalidTransition
from minray.common.task_spec import LeaseShape, RuntimeEnvInfo, SchedulingStrategy
from minray.gcs.gcs_actor_manager import ActorRow, GcsActorManager, describe
from minray.protocol import actor as protocol
from minray.protocol.actor import (
    ALIVE,
    DEAD,
    DEPENDENCIES_UNREADY,
    PENDING_CREATION,
    RESTARTING,
    ActorCreation,
    ActorInfo,
    DeathCause,
)
from minray.protocol.base import Address
from tests.gcs.world import address

JOB = b"job1"
LEASE = b"lease" * 4
CRASH = DeathCause(protocol.WORKER_DIED, "its worker died")
PREEMPTION = DeathCause(protocol.WORKER_DIED, "its node was preempted", preempted=True)
KILL = DeathCause(protocol.KILLED, "it was killed")
OWNER = address("owner", "owners-node")
CREATION = ActorCreation(b"t" * 24, LeaseShape((), SchedulingStrategy(), RuntimeEnvInfo(), JOB), [], b"header", b"args")


def id_of(number: int) -> bytes:
    return number.to_bytes(12, "big") + JOB


def info(number: int, **fields: Any) -> ActorInfo:
    values: dict[str, Any] = {
        "name": "",
        "namespace": "",
        "owner": OWNER,
        "detached": False,
        "max_restarts": 0,
        "restarts": 0,
        "handle": b"",
        **fields,
    }
    return ActorInfo(id_of(number), DEPENDENCIES_UNREADY, "Counter", **values)


def worker(number: int, restarts: int = 0, node: str = "a") -> Address:
    return address(f"worker-{number}-{restarts}", node)


class Table:
    """An actor manager whose decisions are all committed at once."""

    def __init__(self, max_dead_actors: int = 1000) -> None:
        self.steps: list[tuple[str, str]] = []
        self.actors = GcsActorManager(lambda table, key, old, new: self.steps.append((old, new)), max_dead_actors)
        self.published: list[tuple[bytes, str]] = []
        """Actor and state (empty: forgotten), as subscribers hear of them."""

    def commit(self, row: ActorRow | None) -> ActorRow:
        assert row is not None
        for _, actor_id, told in self.actors.on_committed(row):
            self.published.append((actor_id, "" if told is None else told.state))
        return row

    def register(self, number: int, **fields: Any) -> ActorRow:
        return self.commit(self.actors.registered_row(info(number, **fields), 1.0))

    def create(self, number: int) -> ActorRow:
        self.commit(self.actors.created_row(id_of(number), CREATION))
        return self.lease(number)

    def lease(self, number: int) -> ActorRow:
        restarts = self.row(number).info.restarts
        return self.commit(self.actors.leased_row(id_of(number), restarts, LEASE, address("raylet", "a")))

    def alive(self, number: int, node: str = "a") -> ActorRow:
        restarts = self.row(number).info.restarts
        return self.commit(self.actors.alive_row(id_of(number), restarts, worker(number, restarts, node), 7))

    def lose(self, number: int, cause: DeathCause = CRASH) -> ActorRow:
        return self.commit(self.actors.lost_row(self.row(number), cause, 2.0))

    def end(self, number: int, cause: DeathCause = KILL) -> ActorRow:
        return self.commit(self.actors.ended_row(self.row(number), cause, 3.0))

    def live(self, number: int, node: str = "a", **fields: Any) -> ActorRow:
        self.register(number, **fields)
        self.create(number)
        return self.alive(number, node)

    def row(self, number: int) -> ActorRow:
        row = self.actors.get(id_of(number))
        assert row is not None
        return row


def test_the_life_of_an_actor() -> None:
    table = Table()
    table.live(1, max_restarts=1)
    assert table.actors.of_worker(worker(1).worker_id) is table.row(1)
    table.lose(1)
    assert table.actors.of_worker(worker(1).worker_id) is None
    table.lease(1)
    table.alive(1)
    table.lose(1)
    states = [DEPENDENCIES_UNREADY, PENDING_CREATION, ALIVE, RESTARTING, ALIVE, DEAD]
    assert table.steps == list(zip(["", *states], states, strict=False))
    assert table.published == [(id_of(1), state) for state in states]


def test_a_decision_changes_nothing_until_it_is_committed() -> None:
    table = Table()
    row = table.live(1, name="n", max_restarts=1)
    lost, ended = table.actors.lost_row(row, CRASH, 2.0), table.actors.ended_row(row, KILL, 2.0)
    assert (lost.info.state, ended.info.state) == (RESTARTING, DEAD)
    assert table.row(1).info.state == ALIVE and table.actors.named("n", "") is not None
    assert table.actors.of_worker(worker(1).worker_id) is row


@pytest.mark.parametrize("max_restarts", range(4))
def test_g35_an_actor_is_constructed_once_more_than_it_may_be_restarted(max_restarts: int) -> None:
    table = Table()
    table.live(1, max_restarts=max_restarts)
    constructed = 1
    while table.lose(1).info.state == RESTARTING:
        table.lease(1)
        table.alive(1)
        constructed += 1
    assert constructed == max_restarts + 1 and table.row(1).info.state == DEAD


def test_g35_minus_one_means_without_end() -> None:
    table = Table()
    table.live(1, max_restarts=-1)
    for restarts in range(1, 20):
        assert table.lose(1).info.restarts == restarts
        table.alive(1)
    assert table.row(1).info.state == ALIVE


def test_g35_a_death_during_the_constructor_uses_up_a_restart() -> None:
    table = Table()
    table.register(1, max_restarts=1)
    table.create(1)
    assert table.lose(1).info.state == RESTARTING
    table.lease(1)
    assert table.lose(1).info.state == DEAD


def test_a_new_incarnation_has_no_lease_no_address_and_the_same_constructor() -> None:
    table = Table()
    row = table.live(1, max_restarts=1)
    assert row.lease_id == LEASE and row.info.address is not None
    lost = table.lose(1)
    assert (lost.lease_id, lost.raylet, lost.info.address, lost.info.pid) == (b"", None, None, 0)
    assert lost.creation is CREATION and lost.info.death is CRASH


def test_a_preemption_uses_up_no_restart_and_is_counted() -> None:
    table = Table()
    table.live(1, max_restarts=1)
    for cause in (PREEMPTION, CRASH, PREEMPTION):
        assert table.lose(1, cause).info.state == RESTARTING
        table.alive(1)
    lost = table.lose(1).info
    assert (lost.state, lost.restarts, lost.preemptions) == (DEAD, 3, 2)


def test_what_is_known_of_the_last_death_and_of_the_last_process_stays_in_the_row() -> None:
    table = Table()
    table.live(1, max_restarts=1)
    table.lose(1)
    table.lease(1)
    assert table.alive(1).info.death is CRASH
    ended = table.end(1).info
    assert (ended.address, ended.raylet, ended.pid, ended.death) == (worker(1, 1), address("raylet", "a"), 7, KILL)


def test_what_is_heard_of_a_past_incarnation_changes_nothing() -> None:
    table = Table()
    table.live(1, max_restarts=-1)
    table.lose(1)
    assert table.actors.alive_row(id_of(1), 0, worker(1), 7) is None
    assert table.actors.leased_row(id_of(1), 0, LEASE, None) is None
    assert table.actors.pending(id_of(1), 0) is None and table.actors.pending(id_of(1), 1) is table.row(1)
    table.alive(1)
    assert table.actors.pending(id_of(1), 1) is None


def test_g39b_dead_is_dead() -> None:
    table = Table()
    table.live(1, max_restarts=-1)
    row = table.end(1)
    assert table.actors.created_row(id_of(1), CREATION) is None
    assert table.actors.alive_row(id_of(1), 0, worker(1), 7) is None
    assert table.actors.registered_row(info(1), 9.0) is None
    with pytest.raises(InvalidTransition):
        table.actors.on_committed(msgspec.structs.replace(row, info=msgspec.structs.replace(row.info, state=ALIVE)))


def test_g112_repeated_requests_decide_nothing() -> None:
    table = Table()
    table.register(1)
    assert table.actors.registered_row(info(1), 5.0) is None
    table.create(1)
    assert table.actors.created_row(id_of(1), CREATION) is None
    killed = table.actors.killed_row(id_of(1), b"k1")
    assert killed is not None and not table.actors.is_known_kill(b"k1")
    table.actors.on_committed(killed)
    assert table.actors.is_known_kill(b"k1") and not table.actors.is_known_kill(b"k2")
    assert table.actors.killed_row(id_of(1), b"k1") is None


def test_the_lease_of_a_dead_actor_stays_in_its_row_until_it_was_given_back() -> None:
    table = Table()
    table.live(1)
    assert table.end(1).lease_id == LEASE
    assert table.actors.returned_row(id_of(1), b"another") is None
    returned = table.commit(table.actors.returned_row(id_of(1), LEASE))
    assert returned.lease_id == b"" and table.published[-1] == (id_of(1), DEAD)
    assert len(table.published) == 4, "nobody hears of leases"


def test_a_living_actors_lease_is_not_noted_as_returned() -> None:
    table = Table()
    table.live(1)
    assert table.actors.returned_row(id_of(1), LEASE) is None


def test_what_shall_end_before_it_is_registered_is_dead_from_then_on() -> None:
    table = Table(max_dead_actors=1)
    table.commit(table.actors.doomed_row(id_of(1), KILL, 2.0))
    row = table.row(1)
    assert (row.info.state, row.info.death, row.info.end_time) == (DEAD, KILL, 2.0)
    assert table.actors.doom_of(id_of(1)) == KILL and table.actors.doomed_row(id_of(1), CRASH, 3.0) is None
    table.register(2)
    assert table.actors.doomed_row(id_of(2), KILL, 2.0) is None and table.actors.doom_of(id_of(2)) is None
    table.end(2)
    assert table.actors.get(id_of(1)) is None
    assert table.actors.doomed_row(id_of(1), KILL, 4.0) is None, "it is forgotten, and dead all the same"


def test_nobody_lives_in_the_process_of_a_dead_actor() -> None:
    table = Table()
    table.live(1)
    assert table.actors.of_worker(worker(1).worker_id) == table.row(1)
    table.end(1)
    assert table.actors.of_worker(worker(1).worker_id) is None


def test_g31_a_name_belongs_to_one_living_actor_of_its_namespace() -> None:
    table = Table()
    table.register(1, name="n", namespace="x")
    table.register(2, name="n", namespace="y")
    assert table.actors.named("n", "x") is table.row(1) and table.actors.named("n", "y") is table.row(2)
    assert table.actors.named("n", "z") is None and table.actors.named("", "") is None
    table.end(1)
    assert table.actors.named("n", "x") is None
    table.register(3, name="n", namespace="x")
    assert table.actors.named("n", "x") is table.row(3)


def test_g112_g31_an_actor_that_was_refused_a_taken_name_is_refused_again() -> None:
    table = Table()
    first, late = table.register(1, name="n").info, info(2, name="n")
    assert [table.actors.namesake(actor) for actor in (first, late)] == [None, first]
    table.end(1)
    assert table.actors.namesake(late) == first
    assert table.actors.namesake(info(3, name="n")) is None


def test_g31_an_actor_that_dies_late_does_not_take_the_name_of_its_successor() -> None:
    table = Table()
    table.register(1, name="n")
    table.end(1)
    table.register(2, name="n")
    table.commit(msgspec.structs.replace(table.row(1), lease_id=b""))
    assert table.actors.named("n", "") is table.row(2)


def test_g33a_an_actor_that_is_about_to_end_has_no_name_and_does_not_begin_anew() -> None:
    table = Table()
    ending = table.live(1, name="n", max_restarts=-1)
    table.commit(table.actors.ending_row(ending))
    assert table.row(1).info.state == ALIVE and table.actors.named("n", "") is None
    assert table.actors.ending_row(table.row(1)) is None, "said twice"
    table.register(2, name="n")
    table.lose(1)
    assert table.row(1).info.state == DEAD and table.actors.ending_row(table.row(1)) is None
    assert table.actors.named("n", "") is table.row(2)


def test_g33a_who_has_learnt_that_the_name_is_free_is_not_told_again_that_it_is_taken() -> None:
    table = Table()
    first, second, late = table.register(1, name="n"), info(2, name="n"), info(3, name="n")
    assert table.actors.namesake(second) == table.actors.namesake(late) == first.info
    table.commit(table.actors.ending_row(first))
    assert table.actors.namesake(second) == first.info, "a repetition of the first question"
    assert table.actors.namesake(second, instead_of=id_of(1)) is None
    table.register(2, name="n")
    assert table.actors.namesake(second, instead_of=id_of(1)) is None, "the second question comes twice"
    assert table.actors.namesake(late, instead_of=id_of(1)) == table.row(2).info
    assert table.actors.namesake(late, instead_of=id_of(1)) == table.row(2).info


def test_g33a_g110_a_restarted_gcs_knows_whose_name_is_free() -> None:
    for ending, successor in ((1, 2), (2, 1)):
        table, loaded = Table(), Table()
        table.commit(table.actors.ending_row(table.live(ending, name="n")))
        table.live(successor, name="n")
        loaded.actors.load(table.actors.rows())
        assert loaded.actors.named("n", "") == table.row(successor)


def test_who_ends_with_whom() -> None:
    table = Table()
    table.live(1)
    table.live(2, detached=True)
    table.live(3, owner=address("other", "owners-node"))
    table.live(4, node="b")
    table.end(4)
    owned = lambda key: [row.info.actor_id for row in table.actors.owned_by(key)]  # noqa: E731
    assert owned(OWNER.worker_id) == [id_of(1)], "G25, G26: not the detached one"
    assert owned(OWNER.node_id) == [id_of(1), id_of(3)]
    assert [row.info.actor_id for row in table.actors.on_node(worker(1).node_id)] == [id_of(1), id_of(2), id_of(3)]
    assert table.actors.on_node(worker(1, node="b").node_id) == []
    assert [row.info.actor_id for row in table.actors.of_job(JOB)] == [id_of(1), id_of(2), id_of(3)]
    assert table.actors.of_job(b"job2") == []


def test_g26_a_detached_actor_ends_with_an_owner_who_has_not_said_how_it_is_made() -> None:
    table = Table()
    row = table.register(1, detached=True)
    assert table.actors.owned_by(OWNER.worker_id) == table.actors.owned_by(OWNER.node_id) == [row]
    table.create(1)
    assert table.actors.owned_by(OWNER.worker_id) == []


def test_the_oldest_dead_actors_are_forgotten_but_for_their_ids() -> None:
    table = Table(max_dead_actors=2)
    for number in (1, 2, 3):
        table.live(number)
    for number in (2, 1, 3):
        table.end(number)
    assert table.actors.get(id_of(2)) is None and table.actors.is_forgotten(id_of(2))
    assert not table.actors.is_forgotten(id_of(1)) and table.published[-1] == (id_of(2), "")
    assert table.actors.registered_row(info(2), 9.0) is None, "a late repetition does not revive it"


def test_an_actor_that_was_forgotten_while_its_lease_was_returned_stays_forgotten() -> None:
    table = Table(max_dead_actors=1)
    table.live(1)
    table.live(2)
    table.end(1)
    returned = table.actors.returned_row(id_of(1), LEASE)
    table.end(2)
    assert table.actors.is_forgotten(id_of(1)) and table.published[-1] == (id_of(1), "")
    table.commit(returned)
    assert table.actors.get(id_of(1)) is None and table.published[-1] == (id_of(1), "")
    assert table.row(2).info.state == DEAD, "and no other one is forgotten for it"


def test_g110_a_restarted_gcs_takes_everything_over() -> None:
    table, after = Table(), Table()
    table.live(1, name="n", max_restarts=1)
    table.register(2)
    table.live(3, max_restarts=1)
    table.lose(3)
    table.live(4)
    table.end(4)
    for _, actor_id, told in after.actors.load(table.actors.rows()):
        assert told is not None and told == table.actors.get(actor_id).info  # type: ignore[union-attr]
    assert after.actors.named("n", "") == table.row(1)
    assert after.actors.of_worker(worker(1).worker_id) == table.row(1)
    assert after.lose(1).info.state == RESTARTING
    assert after.actors.registered_row(info(4), 9.0) is None and after.create(2).info.state == PENDING_CREATION
    assert after.alive(3).info.restarts == 1


def test_g110_g112_a_restarted_gcs_knows_which_kills_were_carried_out_and_who_was_forgotten() -> None:
    """Repetitions of what the earlier gcs has answered reach the later one."""
    table, after = Table(), Table()
    table.live(1, max_restarts=1)
    table.commit(table.actors.killed_row(id_of(1), b"k1"))
    table.lose(1)
    after.actors.load(table.actors.rows(), [id_of(2)])
    assert after.actors.is_known_kill(b"k1") and after.actors.killed_row(id_of(1), b"k1") is None
    assert after.actors.killed_row(id_of(1), b"k2") is not None, "another kill is meant for the next incarnation"
    assert after.actors.is_forgotten(id_of(2)) and after.actors.registered_row(info(2), 9.0) is None


def test_g110_of_loaded_dead_actors_those_that_died_first_are_forgotten_first() -> None:
    table, after = Table(), Table(max_dead_actors=1)
    for number, time in ((1, 30.0), (2, 20.0)):
        table.register(number)
        table.commit(table.actors.ended_row(table.row(number), KILL, time))
    after.actors.load(table.actors.rows())
    assert after.actors.is_forgotten(id_of(2)) and after.row(1)


def test_people_see_the_class_and_the_name() -> None:
    assert describe(info(7, name="n")) == "actor Counter 'n' (0000-0)"
    assert describe(info(7)) == "actor Counter (0000-0)"


KINDS = st.sampled_from(["register", "create", "alive", "lose", "begin to end", "end", "late"])
EVENTS = st.lists(st.tuples(KINDS, st.integers(0, 2)))


@given(EVENTS, st.integers(-1, 2))
@settings(max_examples=60, deadline=None)
def test_g31_g35_whatever_happens_names_workers_and_restarts_agree(events: list[tuple[str, int]], max_restarts: int) -> None:
    """Three actors want one name."""
    table = Table(max_dead_actors=1)
    constructed = dict.fromkeys(range(3), 0)
    for event, number in events:
        row = table.actors.get(id_of(number))
        state = None if row is None else row.info.state
        if event == "register" and table.actors.named("n", "") is None:
            new = table.actors.registered_row(info(number, name="n", max_restarts=max_restarts), 1.0)
            if new is not None:
                table.commit(new)
        elif event == "create" and state == DEPENDENCIES_UNREADY:
            table.create(number)
        elif event == "alive" and state in (PENDING_CREATION, RESTARTING):
            table.alive(number)
            constructed[number] += 1
        elif event == "lose" and state in (PENDING_CREATION, ALIVE, RESTARTING):
            table.lose(number)
        elif event == "end" and state not in (None, DEAD):
            table.end(number)
        elif event == "begin to end" and row is not None and table.actors.ending_row(row) is not None:
            table.commit(table.actors.ending_row(row))
        elif event == "late" and row is not None:
            assert table.actors.alive_row(id_of(number), row.info.restarts - 1, worker(number), 7) is None
        living = [row for row in table.actors.living() if not row.info.is_ending]
        named = table.actors.named("n", "")
        assert len(living) <= 1 and named == (living[0] if living else None)
        assert all(0 > max_restarts or count <= max_restarts + 1 for count in constructed.values())
        for other in table.actors.rows():
            there = other.info.address
            assert there is None or other.info.state == DEAD or table.actors.of_worker(there.worker_id) is other
