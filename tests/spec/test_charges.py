"""Losses are charged only to what a fault has really struck: where attempts ran, which faults struck, who ended."""

from __future__ import annotations

import time
from typing import Any

import pytest

import minray
from minray.simulation import SimCluster
from minray.simulation.cluster import GCS
from minray.simulation.faults import Key
from tests.simulation.interference import kill_sender
from tests.spec.actors import Create
from tests.spec.charges import Attempt, Attempts, Blows, Charge, Charges
from tests.spec.fates import DIED, UNAVAILABLE
from tests.spec.losses import MOMENT_S, losses_of
from tests.spec.model import HEARD_S, Losses, Model
from tests.spec.moves import Move
from tests.spec.programs import Body, Call, Exit, Get, Program, Put, Return, Submit
from tests.spec.scenario import Node, Scenario, World
from tests.spec.variations import FAR

NODE_OF = {
    "driver/0": "head", "gcs": "head", "raylet/head": "head", "worker/a": "head",
    "raylet/n1": "n1", "worker/b": "n1", "raylet/n2": "n2", "worker/c": "n2",
}  # fmt: skip
ATTEMPTS = (
    Attempt("near", b"1", 0, "worker/a", "driver/0"),
    Attempt("far", b"2", 0, "worker/b", "driver/0"),
    Attempt("far", b"2", 1, "worker/c", "driver/0"),
    Attempt("child", b"3", 0, "worker/c", "worker/b"),
    Attempt("actor", b"4", 0, "worker/c", GCS),
)


def charges(*answers: tuple[Key, int], moves: tuple[Move, ...] = (), ended: tuple[str, ...] = ()) -> Charges:
    return Charges(ATTEMPTS, Blows.of(dict(answers), NODE_OF, moves), NODE_OF, ended)


def struck(*answers: tuple[Key, int], **options: Any) -> dict[str, int]:
    """Name -> deaths of the names that are charged with any."""
    told = charges(*answers, **options)
    return {name: told.of(name).deaths for name in ("near", "far", "child", "actor") if told.of(name).deaths}


@pytest.mark.parametrize(
    ("kind", "place", "answer", "names"),
    [
        ("crash", "worker/a", 1, {"near"}),
        ("crash", "worker/b", 1, {"far"}),
        ("crash", "raylet/n2", 1, {"far", "child", "actor"}),
        ("crash", "gcs", 1, set()),
        ("node_loss", "worker/b", 1, {"far"}),
        ("last_words", "worker/b>driver/0", 1, {"far"}),
        ("long_stall", "worker/c", 3, {"far", "child", "actor"}),
        ("long_stall", "worker/c", 1, set()),
        ("long_stall", "gcs", 3, {"near", "far", "child", "actor"}),
        ("long_delay", "driver/0>worker/b", 2, {"far"}),
        ("long_delay", "worker/b>worker/c", 2, {"child"}),
        ("reset", "driver/0>worker/b", 1, set()),
        ("cut", "worker/b>worker/c", 1, {"child"}),
        ("cut", "driver/0>worker/b", 1, {"far", "child"}),
        ("spawn", "worker/a", 2, {"near"}),
    ],
)
def test_a_fault_is_charged_to_those_in_whose_company_it_has_struck(
    kind: str, place: str, answer: int, names: set[str]
) -> None:
    assert struck(((kind, place, "PushTask", 1), answer)).keys() == names


def test_each_attempt_of_a_task_is_charged_once_and_tasks_of_one_name_are_not_added_up() -> None:
    both = (("crash", "worker/b", "t", 1), 1), (("crash", "worker/c", "t", 1), 1)
    assert struck(*both) == {"far": 2, "child": 1, "actor": 1}
    twins = [Attempt("twin", of, 0, "worker/a", "driver/0") for of in (b"1", b"2")]
    assert Charges(twins, Blows.of({("crash", "worker/a", "t", 1): 1}, NODE_OF, ()), NODE_OF, ()).of("twin").deaths == 1


@pytest.mark.parametrize(
    ("kind", "place", "nodes", "silence", "others"),
    [
        ("crash", "worker/b", False, False, False),
        ("crash", "raylet/n1", True, False, False),
        ("cut", "worker/b>driver/1", True, True, False),
        ("cut", "worker/b>worker/c", False, False, False),
        ("long_stall", "gcs", True, True, True),
        ("reset", "driver/0>worker/b", False, True, False),
    ],
)
def test_a_job_is_charged_with_what_has_struck_anything_of_it(
    kind: str, place: str, nodes: bool, silence: bool, others: bool
) -> None:
    """One of two jobs has a task on ``n1``, and its child at ``worker/b``. Nothing else is struck."""
    jobs = [
        Attempt("t", b"task" + b"job1", 0, "worker/b", "driver/0"), Attempt("c", b"c" + b"job1", 0, "worker/b", "worker/b"),
        Attempt("t", b"task" + b"job2", 0, "worker/c", "driver/1"),
    ]  # fmt: skip
    blows = Blows.of({(kind, place, "PushTask", 1): 3 if kind == "long_stall" else 1}, NODE_OF | {"driver/1": "head"}, ())
    losses = Losses(1, nodes=True, objects=True, silence=True, charges=Charges(jobs, blows, NODE_OF, ()))
    struck, spared = losses.of_job_of("driver/0"), losses.of_job_of("driver/1")
    assert (struck.nodes, struck.objects, struck.silence) == (nodes, nodes, silence)
    assert (struck.deaths, spared.deaths) == (int(kind == "crash" or nodes), int(others))
    assert spared.silence == spared.nodes == others


def test_a_job_of_a_run_in_which_nodes_leave_may_have_any_loss() -> None:
    losses = Losses(1, nodes=True, departures=True, charges=charges())
    assert losses.of_job_of("driver/0") is losses


def test_a_worker_that_is_granted_to_a_gcs_which_has_died_is_an_attempt_of_the_actor() -> None:
    """Otherwise nothing would explain that the actor ends with that worker."""

    @minray.remote
    class Actor:
        pass

    def program() -> None:
        actor = Actor.remote()
        time.sleep(5)
        del actor

    with SimCluster([{"num_cpus": 1}], 1) as cluster:
        kill_sender(cluster, "RequestWorkerLease", 1, role=GCS, late_s=0.0)
        attempts = Attempts(cluster)
        cluster.start_driver(program, "driver/0")
        cluster.settle(2)
        assert GCS not in cluster.alive()
        (attempt,) = attempts.all()
        assert attempt.source == GCS and attempt.host.startswith("worker/")


def test_lack_of_memory_is_charged_where_a_worker_of_the_node_has_ended() -> None:
    short = ("memory", "raylet/n1", 7), 1
    assert struck(short) == {}
    told = charges(short, ended=("worker/b",)).of("far")
    assert (told.deaths, told.memory, told.has_ended) == (1, 1, True)


def test_a_node_that_dies_or_leaves_is_charged_to_what_ran_there() -> None:
    assert struck(moves=(Move(1, dies=True),)) == {"far": 1}
    assert struck(moves=(Move(0, dies=True, is_silent=True),)) == {"far": 2, "child": 1, "actor": 1}
    leaving = charges(moves=(Move(1, leaves=True),)).of("far")
    assert (leaving.deaths, leaving.preemptions) == (0, 1)
    assert charges(moves=(Move(1, leaves=True, remaining_s=1.0),)).of("far").deaths == 1
    assert charges(moves=(Move(1, leaves=True, if_idle=True),)).of("far") == charges().of("far")


def test_what_never_ran_is_charged_with_nothing() -> None:
    assert charges((("crash", "worker/a", "t", 1), 1)).of("nothing") == Charge()


def test_g108_a_gcs_that_stood_still_for_long_and_then_died_explains_the_end_of_a_node() -> None:
    long, short, crash = (("long_stall", GCS, "t", 1), 2), (("long_stall", GCS, "t", 1), 1), (("crash", GCS, "t", 2), 1)
    for answers, explains in ((long, crash), True), ((crash, long), True), ((short, crash), False), ((crash,), False):
        assert Blows.of(dict(answers), NODE_OF, ()).explain_loss_of("n2") is explains


def test_g17_the_crash_of_another_worker_excuses_no_error() -> None:
    answers: dict[Key, int] = {("crash", "worker/b", "t", 1): 1}
    losses = losses_of(answers, World(), Charges(ATTEMPTS, Blows.of(answers, NODE_OF, ()), NODE_OF, ("worker/b",)))
    program = Program((Body((Submit("near", Body(), max_retries=0), Submit("far", Body(), max_retries=0))),))
    model = Model(program, losses)
    assert (model.objects["near"].errors, model.objects["far"].errors) == (set(), {"WorkerCrashedError"})
    assert (model.most_runs(program.tasks()[0]), losses.deaths) == (1, 1)


def test_an_actor_is_unavailable_only_for_a_caller_that_has_lost_it() -> None:
    answers: dict[Key, int] = {("long_delay", "driver/0>worker/b", "PushActorTask", 1): 2}
    calls = [Attempt(name, name.encode(), 0, host, "driver/0") for name, host in (("x", "worker/a"), ("y", "worker/b"))]
    losses = losses_of(answers, World(), Charges(calls, Blows.of(answers, NODE_OF, ()), NODE_OF, ()))
    operations = [one for name in "xy" for one in (Create(f"of {name}", max_restarts=1), Call(name, f"of {name}", Body()))]
    objects = Model(Program((Body(tuple(operations)),)), losses).objects
    assert (objects["x"].errors, objects["y"].errors) == (set(), {UNAVAILABLE})


def test_g62_an_object_is_lost_with_its_owner_only_if_the_owner_has_ended_for_a_reason() -> None:
    maker = Submit("near", Body((Put("inside"),), Return(("inside",))))
    program = Program((Body((maker, Get("get", ("near",)), Submit("far", Body(end=Exit())))),))

    def seen(attempts: tuple[Attempt, ...], ended: tuple[str, ...]) -> frozenset[str]:
        told = Charges(attempts, Blows(), NODE_OF, ended)
        return Model(program, losses_of({}, World(), told)).errors_seen_by("", "inside")

    beside = Attempt("far", b"9", 0, "worker/a", "driver/0")
    assert seen(ATTEMPTS, ("worker/a",)) == seen((*ATTEMPTS, beside), ()) == set()
    assert seen((*ATTEMPTS, beside), ("worker/a",)) == {"OwnerDiedError"}
    assert seen(ATTEMPTS, ("worker/a", "driver/0")) == {"OwnerDiedError"}


def test_g25_an_actor_that_another_driver_has_made_ends_only_if_that_driver_has_left() -> None:
    first, again = (Create(name, called="actor", get_if_exists=True) for name in ("first", "again"))
    program = Program((Body((first,)), Body((again, Call("call", "again", Body())))))
    assert Model(program, Losses()).objects["call"].errors == set()
    assert Model(program, Losses(), [0]).objects["call"].errors == {DIED}


def test_a_loss_of_the_cluster_needs_a_fault_between_the_gcs_and_that_node() -> None:
    blows = charges((("cut", "driver/0>worker/b", "PushTask", 1), 1)).blows
    assert blows.explain_loss_of("n1") and not blows.explain_loss_of("n2") and not blows.explain_loss_of("head")
    assert charges((("long_stall", "gcs", "t", 1), 3)).blows.explain_loss_of("n2")
    assert not charges((("crash", "gcs", "t", 1), 1)).blows.explain_loss_of("n2")


def test_a_cancellation_must_be_heard_at_once_if_nothing_has_delayed_it() -> None:
    def lag_s(*answers: tuple[Key, int]) -> float:
        return losses_of(dict(answers), World()).lag_s

    late = ("delay", "driver/0>worker/a", "CancelTask", 1), 4
    other = ("delay", "driver/0>worker/a", "PushTask", 1), 4
    assert lag_s() == lag_s(other) == MOMENT_S
    assert lag_s(late) == pytest.approx(MOMENT_S + 0.1)
    assert lag_s((("slow_node", "head"), 1)) == HEARD_S


def test_a_task_may_need_a_far_zone_only_where_no_fault_takes_the_node_away() -> None:
    program = Program((Body((Submit("task", Body(), zone=FAR, is_soft=False),)),))
    far = (Node(), Node(zone=FAR))
    for world, is_feasible in (
        (World(), False),
        (World(far), True),
        (World(far, {"crash": 0.1}), True),
        (World(far, {"crash": 0.1}, targets=("raylet/n",)), False),
        (World(far, {"node_loss": 0.1}), False),
        (World(far, moves=(Move(1, leaves=True),)), False),
        (World(moves=(Move(1, 2.0, zone=FAR),)), True),
    ):
        assert Scenario(program, world).is_feasible() == is_feasible
