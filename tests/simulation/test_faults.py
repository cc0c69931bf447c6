"""The oracle: answers depend on seed and key alone, within rates and budgets; and the trace that shows what they did."""

from __future__ import annotations

from typing import Any

import pytest

from minray.protocol.core_worker import TASK_NAME_MARK
from minray.simulation.faults import QUIET, SWARM, FaultPlan, Oracle
from minray.simulation.loop import SimLoop
from minray.simulation.trace import FAULT, LIFE, LOG, OUTPUT, RECEIVE, SEND, STATE, Trace, first_difference, parting

KEYS = [("delay", "a>b", "Ping", ordinal) for ordinal in range(2000)]


def active(seed: int, plan: FaultPlan, overrides: dict[tuple[object, ...], int] | None = None) -> Oracle:
    oracle = Oracle(seed, plan, overrides)
    oracle.active = True
    return oracle


def test_answers_depend_on_the_key_and_not_on_what_was_asked_before() -> None:
    forwards, backwards = (active(1, FaultPlan({"delay": 0.1})) for _ in range(2))
    answers = [forwards.choose(key, 5) for key in KEYS]
    assert [backwards.choose(key, 5) for key in reversed(KEYS)] == answers[::-1]
    assert set(answers) == {0, 1, 2, 3, 4}
    assert 120 < sum(map(bool, answers)) < 280
    assert answers != [active(2, FaultPlan({"delay": 0.1})).choose(key, 5) for key in KEYS]


def test_what_the_plan_does_not_name_never_happens() -> None:
    oracle = active(1, FaultPlan({"delay": 1.0}))
    assert oracle.wants("delay") and not oracle.wants("crash")
    assert all(oracle.choose(("crash", *key), 2) == 0 for key in KEYS)
    assert all(oracle.choose(key, 5) for key in KEYS)


def test_loud_faults_share_a_budget() -> None:
    oracle = active(1, FaultPlan({"crash": 0.5, "reset": 0.5}, budget=3))
    assert sum(bool(oracle.choose((kind, i), 3)) for i in range(100) for kind in ("crash", "reset")) == 3


@pytest.mark.parametrize(
    ("rates", "budget", "error", "words"),
    [
        ({"krash": 1.0}, 0, ValueError, "there is no fault 'krash'; there are delay, .*crash"),
        ({"delay": 2}, 0, ValueError, "the rate of delay is a chance between 0 and 1, not 2"),
        ({"delay": -1}, 0, ValueError, "not -1"),
        ({"delay": float("nan")}, 0, ValueError, "not nan"),
        ({"delay": "often"}, 0, TypeError, "the rate of delay is a number, not 'often'"),
        ("delay", 0, TypeError, "the rates of faults are a mapping"),
        ({"crash": 0.1}, -1, ValueError, "it cannot be -1"),
        ({"crash": 0.1}, "2", TypeError, "how many loud faults may strike, not '2'"),
        ({"crash": 0.1}, True, TypeError, "how many loud faults may strike, not True"),
        ({"delay": True}, 0, TypeError, "the rate of delay is a number, not True"),
    ],
)
def test_a_plan_that_makes_no_sense_is_refused(rates: Any, budget: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        FaultPlan(rates, budget)


@pytest.mark.parametrize("name", ["targets", "spared_nodes", "aims", "spared_tasks", "struck_tasks"])
def test_names_and_prefixes_of_a_plan_are_tuples(name: str) -> None:
    with pytest.raises(TypeError, match=rf"{name} is a tuple of strings, as in {name}=\('worker/',\), not 'worker/'"):
        FaultPlan(**{name: "worker/"})  # type: ignore[arg-type]
    for value in (["worker/"], (1,), None):
        with pytest.raises(TypeError, match=f"{name} is a tuple of strings"):
            FaultPlan(**{name: value})  # type: ignore[arg-type]
    FaultPlan(**{name: ("worker/", "raylet/")})  # type: ignore[arg-type]


def test_whether_a_plan_aims_at_messages_is_yes_or_no() -> None:
    with pytest.raises(TypeError, match="at_messages is True or False, not 'PushTask'"):
        FaultPlan(at_messages="PushTask")  # type: ignore[arg-type]


def test_a_swarm_without_a_loud_fault_is_refused() -> None:
    with pytest.raises(ValueError, match="its budget cannot be 0; see FaultPlan.quiet"):
        FaultPlan.swarm(1, budget=0)


def test_nothing_happens_before_the_start_and_after_the_healing() -> None:
    oracle = Oracle(1, FaultPlan({"delay": 1.0}))
    assert oracle.choose(KEYS[0], 5) == 0
    oracle.active = True
    assert oracle.choose(KEYS[0], 5) != 0
    oracle.heal()
    assert oracle.choose(KEYS[0], 5) == 0


def test_overrides_are_all_that_happens() -> None:
    drawn = active(1, FaultPlan({"delay": 0.1}))
    answers = [drawn.choose(key, 5) for key in KEYS]
    replayed = active(99, FaultPlan({"delay": 1.0}), dict(drawn.answers))
    assert [replayed.choose(key, 5) for key in KEYS] == answers
    assert replayed.answers == drawn.answers


def test_swarms_differ() -> None:
    plans = [FaultPlan.swarm(seed) for seed in range(30)]
    assert len({tuple(sorted(plan.rates.items())) for plan in plans}) == 30
    assert {kind for plan in plans for kind, rate in plan.rates.items() if rate} == set(QUIET + SWARM)
    assert {plan.budget for plan in plans} == {1, 2}


def test_entropy_has_any_length_and_below_is_uniform() -> None:
    oracle = Oracle(1)
    assert [len(oracle.bytes(("k",), count)) for count in (0, 1, 16, 64, 65, 1000)] == [0, 1, 16, 64, 65, 1000]
    counts = [[oracle.below(("k", i), 4) for i in range(1000)].count(value) for value in range(4)]
    assert all(180 < count < 320 for count in counts)


@pytest.fixture
def trace() -> Trace:
    loop = SimLoop()
    loop.close()
    return Trace(loop)


def tell(trace: Trace, tasks: range) -> None:
    """Each is born when a message comes."""
    for number in tasks:
        trace.add("a", SEND, "Ping", "b")
        trace.add("b", RECEIVE, "Ping", "a")
        trace.recorder("b")("task", f"key{number}", "", "NEW")


def test_a_story_shows_the_faults_and_what_happens_just_before_and_after_them(trace: Trace) -> None:
    tell(trace, range(50))
    trace.add("a", FAULT, "crash", "before step 1 of x")
    tell(trace, range(50, 100))
    rows = trace.story(rows=10).splitlines()
    assert len(rows) == 12 and rows[0].split() == ["seconds", "b", "a"]
    assert rows[-1] == "(291 of 301 events are not shown)"
    place = next(number for number, row in enumerate(rows) if row.endswith("!! crash before step 1 of x"))
    assert rows[place - 1].endswith("task key49: new -> NEW") and rows[place + 1].endswith("Ping -> b")
    born = [int(row.split("key")[1].split(":")[0]) for row in rows if "key" in row]
    assert born == list(range(born[0], born[-1] + 1)) and born[0] < 49 and born[-1] > 50


def test_a_story_without_faults_shows_how_the_program_begins_and_not_its_end(trace: Trace) -> None:
    for _ in range(50):
        trace.add("gcs", LIFE, "starts")
    trace.add("b", OUTPUT, "stdout", f"{TASK_NAME_MARK}double")
    tell(trace, range(50))
    trace.add("b", OUTPUT, "stdout", "doubling 1")
    story = trace.story(rows=10)
    assert "key0" in story and "key1" in story
    assert not any(word in story for word in ("key49", "starts", "double", "doubling"))
    assert "stdout double\n" not in trace.story(rows=1000) and "stdout doubling 1\n" in trace.story(rows=1000)


def test_a_story_shows_how_tasks_began_though_the_fault_came_much_later(trace: Trace) -> None:
    tell(trace, range(3))
    for _ in range(100):
        trace.recorder("b")("task", "key1", "NEW", "AGAIN")
    trace.add("a", FAULT, "crash", "before step 1 of x")
    story = trace.story(rows=20)
    assert all(f"key{number}: new -> NEW" in story for number in range(3)) and "key1: NEW -> AGAIN" in story


def test_a_story_marks_one_event_and_shows_what_is_near(trace: Trace) -> None:
    tell(trace, range(100))
    rows = trace.story(rows=10, marked=251).splitlines()
    [marked] = [row for row in rows if row.startswith(">")]
    assert marked.endswith("task key83: new -> NEW")
    assert {"key82", "key84"} <= {row.split(":")[0].split()[-1] for row in rows} and "key0:" not in trace.story(10, 251)


def test_traces_are_equal_exactly_if_their_events_are(trace: Trace) -> None:
    loop = SimLoop()
    loop.close()
    other = Trace(loop)
    for each in (trace, other):
        each.add("a", STATE, "task", "k", "", "NEW")
    other.add("a", LOG, "only words")
    assert trace.digest() == other.digest()
    assert first_difference(trace, other).startswith("event 1, in one run only: ")
    assert parting(trace, trace) is None and parting(trace, other) == parting(other, trace) == 1
    trace.add("a", STATE, "task", "k", "NEW", "DONE")
    assert trace.digest() != other.digest()
    assert first_difference(trace, other).startswith("event 1: ")
