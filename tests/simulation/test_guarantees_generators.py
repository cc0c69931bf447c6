"""G90-G98, C3: streaming generators, on simulated clusters with crashes, lost answers, slow links and repeated reports."""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

import minray
from minray.common.bounds import BOUNDS
from minray.common.ids import item_id
from minray.core_worker.execution.generator_executor import GeneratorExecutor
from minray.core_worker.records.received_task import ReceivedTask
from minray.exceptions import StreamingGeneratorReplayInconsistentError
from minray.protocol.base import decode
from minray.protocol.core_worker import ReportGeneratorItem
from minray.simulation import FaultPlan
from tests.seeds import seeds
from tests.simulation import judge
from tests.simulation.interference import watch_sends
from tests.simulation.judge import INTERRUPTED, judged, outcome_of, printed
from tests.simulation.roles import Cluster

SEEDS = seeds(2)
REPORTS = ["ReportGeneratorItem", "ReportGeneratorItem reply"]
LARGE = 200_000


@minray.remote
def count(most: int, pause_s: float = 0.1) -> Iterator[int]:
    for number in range(1, most + 1):
        print(f"yield {number}")
        yield number
        time.sleep(pause_s)


@minray.remote(max_retries=0)
def fail_after(most: int) -> Iterator[int]:
    yield from range(1, most + 1)
    raise ValueError("no more")


@minray.remote(max_retries=1)
def crash_after(most: int) -> Iterator[int]:
    for number in range(1, most + 1):
        print(f"yield {number}")
        yield number
    time.sleep(1)
    os._exit(3)


@minray.remote
def large(most: int, pause_s: float = 0.2) -> Iterator[bytes]:
    for number in range(1, most + 1):
        yield bytes([number]) * LARGE
        time.sleep(pause_s)


@minray.remote
def one_less_each_time(most: int) -> Iterator[int]:
    """The second attempt has less to say than the first one, which dies."""
    attempt = judge.kept["attempts"] = judge.kept.get("attempts", 0) + 1
    yield from range(1, most + 2 - attempt)
    if attempt == 1:
        time.sleep(1)
        os._exit(1)


@minray.remote
def with_references(most: int) -> Iterator[Any]:
    for number in range(1, most + 1):
        yield [minray.put(number)]


def read(generator: Any) -> list[Any]:
    """Read a generator to its end, as outcomes."""
    return [outcome_of(ref) for ref in generator]


@pytest.fixture(autouse=True)
def nothing_kept() -> Any:
    yield
    judge.kept.clear()


# --- G90, G91


@pytest.mark.parametrize("seed", SEEDS)
def test_g90_items_are_read_in_order_while_the_task_runs(seed: int) -> None:
    def body() -> list[Any]:
        generator = count.remote(6, 1.0)
        seen = []
        for ref in generator:
            seen.append((minray.get(ref), len(minray.wait([generator.completed()], timeout=0)[0])))
        return seen

    plan = FaultPlan({"delay": 0.3, "duplicate": 0.2, "preempt": 0.2})
    assert judged(body, seed=seed, faults=plan)[0] == [(number, 0) for number in range(1, 7)]


def test_g90_a_loop_of_the_user_reads_too() -> None:
    async def gather() -> list[Any]:
        return [await ref async for ref in count.remote(4)]

    assert judged(lambda: asyncio.run(gather()))[0] == [1, 2, 3, 4]


def test_g90_a_task_that_reads_lends_its_cpu_out() -> None:
    """Otherwise the two would wait for each other on a node with one CPU."""

    @minray.remote
    def add_up() -> int:
        return sum(minray.get(ref) for ref in count.remote(5))

    assert judged(lambda: minray.get(add_up.remote()), nodes=[{"num_cpus": 1}])[0] == 15


@pytest.mark.parametrize("seed", SEEDS)
def test_g91_the_body_runs_ahead_of_its_reader(seed: int) -> None:
    def body() -> Any:
        generator = count.remote(3 * BOUNDS.generator_max_reports_in_flight, 0.0)
        minray.get(generator.completed())
        return read(generator)

    plan = FaultPlan({"delay": 0.3, "preempt": 0.2})
    assert judged(body, seed=seed, faults=plan)[0] == list(range(1, 3 * BOUNDS.generator_max_reports_in_flight + 1))


@pytest.mark.parametrize("limit", [1, 2, 5])
def test_g91_with_backpressure_only_so_many_items_are_unread(limit: int) -> None:
    """Each item is asked for when the one that was read before has made room: never earlier, and then at once."""

    def body() -> list[int]:
        generator = count.options(_generator_backpressure_num_objects=limit).remote(8, 0.0)
        yielded = []
        for _ in range(8):
            time.sleep(5)
            yielded.append(judge.kept["yielded"]())
            next(generator)
        return yielded

    def strike(cluster: Cluster) -> None:
        judge.kept["yielded"] = lambda: len(printed(cluster))

    assert judged(body, strike)[0] == [min(number + limit, 8) for number in range(8)]


@pytest.mark.parametrize("seed", SEEDS)
def test_g91_backpressure_holds_nobody_up_for_good(seed: int) -> None:
    """Reports, their answers, and the word that there is room are lost with their channels, or come twice."""

    def strike(cluster: Cluster) -> None:
        cluster.when(*REPORTS, "WaitForReader", "WaitForReader reply").break_channels(at_most=6)
        cluster.when(*REPORTS).replay()

    def body() -> list[Any]:
        return read(count.options(_generator_backpressure_num_objects=2).remote(20, 0.01))

    result, cluster = judged(body, strike, seed=seed, faults=FaultPlan({"delay": 0.2, "preempt": 0.1}))
    assert result == list(range(1, 21)) and len(printed(cluster)) == 20


# --- G92, G93


@pytest.mark.parametrize("most", [0, 1, 3])
def test_g92_the_error_comes_after_the_values_and_then_the_end(most: int) -> None:
    def body() -> Any:
        generator = fail_after.remote(most)
        outcomes = read(generator)
        return outcomes, generator.is_finished(), list(generator), outcome_of(generator.completed())

    error = "RayTaskError(ValueError)"
    assert judged(body)[0] == ([*range(1, most + 1), error], True, [], error)


def test_g92_what_cannot_be_pickled_is_the_error() -> None:
    @minray.remote
    def locks() -> Iterator[Any]:
        yield 1
        yield (number for number in range(3))
        yield 3

    assert judged(lambda: read(locks.remote()))[0] == [1, "RayTaskError(TypeError)"]


def test_g92_a_function_that_returns_no_iterator_says_so() -> None:
    @minray.remote(num_returns="streaming", max_retries=0)
    def seven() -> Any:
        return 7

    @minray.remote(num_returns="streaming")
    def several() -> Any:
        return iter([1, 2])

    assert judged(lambda: (read(seven.remote()), read(several.remote())))[0] == (["RayTaskError(ValueError)"], [1, 2])


@pytest.mark.parametrize("seed", SEEDS)
def test_g93_when_the_last_worker_has_died_the_last_item_is_the_error(seed: int) -> None:
    def body() -> Any:
        generator = crash_after.remote(4)
        return read(generator), outcome_of(generator.completed())

    result, cluster = judged(body, seed=seed, faults=FaultPlan({"delay": 0.3}))
    assert result == ([1, 2, 3, 4, "WorkerCrashedError"], "WorkerCrashedError")
    assert printed(cluster).count("yield 1") == 2


@pytest.mark.parametrize("seed", SEEDS)
def test_g93_a_worker_that_dies_in_the_middle_leaves_what_it_has_said(seed: int) -> None:
    result, _ = judged(
        lambda: read(count.options(max_retries=0).remote(6)),
        lambda cluster: cluster.when("ReportGeneratorItem").of("worker").kill(3),
        seed=seed,
    )
    assert result == [1, 2, "WorkerCrashedError"]


@pytest.mark.parametrize("max_retries", [0, 1])
def test_g93_what_a_dead_attempt_has_put_but_not_reported_is_found(max_retries: int) -> None:
    """The second item is in the store of its node when its maker dies, and the owner has not heard of it."""

    def body() -> list[Any]:
        generator = large.options(max_retries=max_retries).remote(3)
        return [value if isinstance(value, str) else value[:1] for value in read(generator)]

    result, _ = judged(body, lambda cluster: cluster.when("ReportGeneratorItem").of("worker").kill(2))
    assert result == ([b"\1", b"\2", b"\3"] if max_retries else [b"\1", "WorkerCrashedError"])


@pytest.mark.parametrize("max_retries", [0, 1])
def test_g93_a_node_that_dies_takes_only_what_has_not_arrived(max_retries: int) -> None:
    def strike(cluster: Cluster) -> None:
        cluster.wait_until(lambda: len(printed(cluster)) == 3)
        (busy,) = [name for name, raylet in cluster.raylets.items() if raylet._broker.entries]
        cluster.after(0.5).node(busy).lose()  # the third item has arrived, the fourth is not made yet

    def body() -> list[Any]:
        return read(count.options(max_retries=max_retries, resources={"there": 1}).remote(5, 1.0))

    nodes: list[dict[str, Any]] = [{"num_cpus": 1}, *({"num_cpus": 1, "resources": {"there": 1}} for _ in range(2))]
    result, _ = judged(body, strike, nodes=nodes)
    assert result == ([1, 2, 3, 4, 5] if max_retries else [1, 2, 3, "NodeDiedError"])


# --- G94, G95


def item_ids(generator: Any, count: int) -> list[bytes]:
    return [item_id(generator.task_id().binary(), index) for index in range(1, count + 1)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("number", [1, 3, 7])
def test_g94_a_retry_makes_the_same_items_and_repeats_none(seed: int, number: int) -> None:
    reports: list[str] = []

    def strike(cluster: Cluster) -> None:
        cluster.when("ReportGeneratorItem").of("worker").kill(number)
        cluster.when("ReportGeneratorItem").note(reports)

    def body() -> Any:
        generator = count.remote(6)
        refs = list(generator)
        return minray.get(refs), [ref.binary() for ref in refs] == item_ids(generator, 6)

    result, cluster = judged(body, strike, seed=seed)
    assert result == ([1, 2, 3, 4, 5, 6], True) and printed(cluster).count("yield 1") == 2
    assert len(reports) == 8, "six items, the end, and the one that was never sent"


@pytest.mark.parametrize("seed", seeds(6))
def test_g94_reports_may_be_lost_late_and_twice_and_workers_may_crash(seed: int) -> None:
    def strike(cluster: Cluster) -> None:
        cluster.when(*REPORTS).break_channels(at_most=4)
        cluster.when(*REPORTS).replay(one_in=1)

    def body() -> list[Any]:
        generators = [count.remote(8, 0.02), with_references.remote(5), large.remote(4, 0.05)]
        first, second, third = ([minray.get(ref) for ref in generator] for generator in generators)
        return [first, [minray.get(ref) for (ref,) in second], [value[:1] * (len(value) // LARGE) for value in third]]

    plan = FaultPlan({"crash": 0.01, "delay": 0.2, "preempt": 0.1, "crash_prefix": 0.5}, budget=2)
    result, _ = judged(body, strike, seed=seed, faults=plan)
    assert result == [list(range(1, 9)), list(range(1, 6)), [b"\1", b"\2", b"\3", b"\4"]]


@pytest.mark.parametrize("seed", SEEDS)
def test_g94_what_an_attempt_that_is_over_still_says_is_refused(seed: int) -> None:
    """A worker is cut off for long enough to be given up; its reports arrive when the next attempt is at work."""
    delayed: list[Any] = []

    def strike(cluster: Cluster) -> None:
        def on_send(end: Any, message: Any, word: str) -> bool:
            if word == "ReportGeneratorItem" and len(delayed) < 2:
                delayed.append(message)
                owner = end.other
                cluster.world.loop.world.call_later(2.0 + seed, lambda: repeat(cluster, owner, message))
                if len(delayed) == 2:
                    end.pipe.source.exit(None, 9)
                return False
            return True

        watch_sends(cluster, on_send)

    def repeat(cluster: Cluster, owner: Any, message: Any) -> None:
        """As if it had been on its way all the time."""
        core = cluster.cores[owner.pipe.source.name]
        request = decode(ReportGeneratorItem, message.payload)
        judge.kept.setdefault("answers", []).append(core.submission.generators.on_report(request, ()))

    def body() -> list[Any]:
        generator = large.remote(4, 1.0)
        return [minray.get(ref)[:1] for ref in generator]

    assert judged(body, strike, seed=seed)[0] == [b"\1", b"\2", b"\3", b"\4"]
    assert [answer.is_unwanted for answer in judge.kept["answers"]] == [True, True]


@pytest.mark.parametrize("most", [1, 4])
def test_g95_a_replay_with_fewer_items_is_an_error(most: int) -> None:
    def body() -> Any:
        generator = one_less_each_time.remote(most)
        try:
            minray.get(generator.completed())
        except StreamingGeneratorReplayInconsistentError as error:
            return read(generator), str(error)

    outcomes, message = judged(body)[0]
    assert outcomes == [*range(1, most + 1), "StreamingGeneratorReplayInconsistentError"]
    assert f"yielded {most - 1} items, but {most} have arrived" in message


# --- G96, G97


@pytest.mark.parametrize("seed", SEEDS)
def test_g96_completed_ends_with_the_task(seed: int) -> None:
    """Not when it yields for the last time, and not when the reader is through."""

    def body() -> Any:
        begin = time.time()
        generator = count.remote(3, 2.0)
        items = [outcome_of(next(generator)) for _ in range(3)]
        read_s = time.time() - begin
        result = minray.get(generator.completed())
        return items, result, read_s, time.time() - begin, list(generator)

    items, result, read_s, ended_s, rest = judged(body, seed=seed, faults=FaultPlan({"delay": 0.1}))[0]
    assert (items, result, rest) == ([1, 2, 3], None, [])
    assert 4 <= read_s < 6 <= ended_s < 8, "it sleeps for two seconds after each item"


def test_g96_completed_has_the_error_of_the_task() -> None:
    def body() -> Any:
        generator = fail_after.remote(2)
        return outcome_of(generator.completed()), [outcome_of(ref) for ref in generator]

    assert judged(body)[0] == ("RayTaskError(ValueError)", [1, 2, "RayTaskError(ValueError)"])


def test_g96_backpressure_does_not_keep_a_task_from_ending() -> None:
    def body() -> Any:
        generator = count.options(_generator_backpressure_num_objects=3).remote(2, 0.0)
        return minray.get(generator.completed()), read(generator)

    assert judged(body)[0] == (None, [1, 2])


@pytest.mark.parametrize("limit", [-1, 1])
@pytest.mark.parametrize("seed", SEEDS)
def test_g97_a_dropped_generator_frees_its_items_and_cancels_nothing(seed: int, limit: int) -> None:
    """Dropped after the second item: the body yields on to its end, whether it was held up or not."""

    def body() -> Any:
        generator = large.options(_generator_backpressure_num_objects=limit).remote(12)
        first = minray.get(next(generator))[:1]
        completed, second = generator.completed(), next(generator)
        del generator
        return first, minray.get(completed), minray.get(second)[:1]

    plan = FaultPlan({"delay": 0.3, "duplicate": 0.2, "preempt": 0.2})
    assert judged(body, seed=seed, faults=plan)[0] == (b"\1", None, b"\2")


@pytest.mark.parametrize("seed", SEEDS)
def test_g97_a_dropped_generator_is_retried_like_any_task(seed: int) -> None:
    def body() -> Any:
        generator = count.remote(6)
        next(generator)
        return outcome_of(generator.completed())

    result, cluster = judged(body, lambda cluster: cluster.when("PushTask reply").of("worker").kill(), seed=seed)
    assert result is None and Counter(printed(cluster))["yield 6"] == 2


def test_g97_a_generator_may_be_dropped_at_any_time_of_its_life() -> None:
    def body() -> Any:
        for tenths in range(12):
            generator = large.remote(3)
            time.sleep(0.1 * tenths)
            if tenths % 2:
                next(generator)
            del generator

    judged(body, faults=FaultPlan({"delay": 0.3, "preempt": 0.2}))


# --- G98, C3, wait, cancel


def test_g98_a_generator_cannot_be_pickled_sent_to_thrown_into_or_closed() -> None:
    def body() -> list[int]:
        generator = count.remote(1)
        refused = [lambda: minray.put(generator), lambda: generator.send(1), lambda: generator.throw(KeyError())]
        for action in [*refused, generator.close]:
            with pytest.raises((TypeError, NotImplementedError)):
                action()
        return read(generator)

    assert judged(body)[0] == [1]


def test_g98_a_generator_cannot_be_pickled_or_sent_to() -> None:
    def body() -> list[str]:
        generator = count.remote(2)
        refused = [
            lambda: minray.put(generator),
            lambda: count.remote(generator),
            lambda: generator.send(1),
            lambda: generator.throw(ValueError()),
            generator.close,
            lambda: asyncio.run(generator.asend(1)),
            lambda: asyncio.run(generator.athrow(ValueError())),
            lambda: asyncio.run(generator.aclose()),
        ]
        errors = []
        for action in refused:
            try:
                action()
            except (TypeError, NotImplementedError) as error:
                errors.append(type(error).__name__)
        return [*errors, *read(generator)]

    assert judged(body)[0] == ["TypeError"] * 2 + ["NotImplementedError"] * 6 + [1, 2]


def test_c3_get_of_a_generator_returns_the_generator() -> None:
    def body() -> Any:
        generator = count.remote(2)
        return minray.get(generator) is generator, read(generator)

    assert judged(body)[0] == (True, [1, 2])


def test_g8_a_generator_is_ready_when_its_next_item_is() -> None:
    def body() -> Any:
        slow, fast = count.remote(1, 0.0), count.remote(3, 1.0)
        minray.get(next(slow))
        never = minray.put(0)
        found = []
        for _ in range(4):
            ready, rest = minray.wait([fast, never], num_returns=2)
            found.append((ready == [fast, never], rest, fast.next_ready(), outcome_of(next(fast, never))))
        ready, rest = minray.wait([fast, slow], num_returns=2)
        return found, ready == [fast, slow], fast.is_finished(), fast.next_ready()

    steps = [(True, [], True, number) for number in (1, 2, 3)]
    assert judged(body)[0] == ([*steps, (True, [], False, 0)], True, True, False)


@pytest.mark.parametrize("seed", SEEDS)
def test_g101_readers_that_use_tasks_go_on_however_many_generators_are_held_up(seed: int) -> None:
    """Each item is read when a task has taken the one before: that task has the needs of all the generators, and a turn."""

    @minray.remote(num_cpus=0)
    def read_with_tasks() -> int:
        generator = count.options(_generator_backpressure_num_objects=1).remote(3, 0.0)
        return sum(minray.get(double.remote(ref)) for ref in generator)

    @minray.remote
    def double(number: int) -> int:
        return 2 * number

    def body() -> Any:
        start = time.monotonic()
        sums = minray.get([read_with_tasks.remote() for _ in range(6)])
        return sums, time.monotonic() - start < 1

    assert judged(body, seed=seed)[0] == ([12] * 6, True)


@pytest.mark.parametrize("limit", [-1, 1])
@pytest.mark.parametrize("seed", SEEDS)
def test_g48_a_cancelled_generator_ends(seed: int, limit: int) -> None:
    def body() -> Any:
        generator = count.options(_generator_backpressure_num_objects=limit).remote(1000, 1.0)
        first = minray.get(next(generator))
        time.sleep(2.5)
        minray.cancel(generator)
        outcomes = read(generator)
        return first, outcomes[-1], outcome_of(generator.completed()), outcomes[:-1] == list(range(2, len(outcomes) + 1))

    assert judged(
        body, lambda cluster: cluster.when("CancelTask", "CancelTask reply", *REPORTS).break_channels(at_most=3), seed=seed
    )[0] == (1, INTERRUPTED, INTERRUPTED, True)


# --- num_returns=k


@pytest.mark.parametrize(("most", "error"), [(2, "RayTaskError(ValueError)"), (3, None), (4, "RayTaskError(ValueError)")])
def test_a_generator_fills_several_returns(most: int, error: str | None) -> None:
    """One that yields too little leaves what it has yielded; of one that yields too much nothing is left."""

    def body() -> Any:
        return [outcome_of(ref) for ref in count.options(num_returns=3).remote(most, 0.0)]

    assert judged(body)[0] == ([1, 2, 3] if error is None else [1, 2, error] if most < 3 else [error] * 3)


@pytest.mark.parametrize("retries", [False, True])
def test_a_generator_that_raises_leaves_what_it_has_yielded(retries: bool) -> None:
    """Large values, and references, too; not if it could have been run again."""

    @minray.remote(num_returns=4, max_retries=1, retry_exceptions=retries)
    def some() -> Iterator[Any]:
        print("some")
        yield bytes(LARGE)
        yield [minray.put(7)]
        raise KeyError("some")

    def body() -> Any:
        large_one, small, *rest = some.remote()
        outcomes = [outcome_of(ref) for ref in (large_one, *rest)]
        if not retries:
            outcomes[0] = len(outcomes[0])
            outcomes.append(outcome_of(outcome_of(small)[0]))
        return outcomes

    error = "RayTaskError(KeyError)"
    result, cluster = judged(body)
    assert result == ([error] * 3 if retries else [LARGE, error, error, 7])
    assert printed(cluster).count("some") == 1 + retries


# --- G60, G62


@pytest.mark.parametrize("seed", SEEDS)
def test_g60_references_inside_items_are_kept(seed: int) -> None:
    """Those of the generator's own process, and those of others, for which it must ask."""

    @minray.remote
    def hand_on(refs: list[Any], most: int) -> Iterator[Any]:
        for number in range(most):
            yield [refs[0], minray.put(number)]

    def body() -> Any:
        generator = hand_on.remote([minray.put("shared")], 4)
        time.sleep(1)
        return [minray.get(minray.get(ref)) for ref in generator]

    plan = FaultPlan({"delay": 0.3, "duplicate": 0.2, "preempt": 0.2})
    assert judged(body, seed=seed, faults=plan)[0] == [["shared", number] for number in range(4)]


def test_g62_a_generator_whose_owner_dies_ends() -> None:
    @minray.remote(max_retries=0)
    def parent() -> None:
        generator = count.remote(1000, 0.5)
        next(generator)
        os._exit(1)

    def body() -> Any:
        return outcome_of(parent.remote())

    result, cluster = judged(body)
    assert result == "WorkerCrashedError" and len(printed(cluster)) < 300


# --- asynchronous iterators, which drive the same reports from a loop of the user's


@pytest.fixture
def driven_by_a_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    async def slowly(iterator: Iterator[Any]) -> AsyncIterator[Any]:
        for value in iterator:
            yield value
            await asyncio.sleep(0.01)

    def run(self: GeneratorExecutor, task: ReceivedTask, iterator: Iterator[Any]) -> None:
        asyncio.run(self.run_async(task, slowly(iterator)))

    monkeypatch.setattr(GeneratorExecutor, "run", run)


@pytest.mark.usefixtures("driven_by_a_loop")
@pytest.mark.parametrize("seed", SEEDS)
def test_g90_g92_an_asynchronous_iterator_is_read_like_any_other(seed: int) -> None:
    def body() -> Any:
        many = count.remote(2 * BOUNDS.generator_max_reports_in_flight, 0.0)
        return read(large.remote(3))[2][:1], read(fail_after.remote(2)), read(many)[-1]

    plan = FaultPlan({"delay": 0.3, "duplicate": 0.2, "preempt": 0.2})
    result, _ = judged(body, lambda cluster: cluster.when(*REPORTS).break_channels(at_most=3), seed=seed, faults=plan)
    assert result == (b"\3", [1, 2, "RayTaskError(ValueError)"], 2 * BOUNDS.generator_max_reports_in_flight)


# --- methods of actors, plain and in threads (those of asynchronous actors run on a real cluster)


class Plain:
    def count(self, most: int, pause_s: float = 0.05) -> Iterator[int]:
        for number in range(1, most + 1):
            print(f"yield {number}")
            yield number
            time.sleep(pause_s)

    def large(self, most: int) -> Iterator[bytes]:
        for number in range(1, most + 1):
            yield bytes([number]) * LARGE
            time.sleep(0.1)

    def ping(self) -> str:
        return "here"


KINDS: dict[str, Any] = {
    "plain": minray.remote(Plain),
    "threaded": minray.remote(max_concurrency=3)(Plain),
}


@pytest.mark.parametrize("kind", KINDS)
def test_g90_g91_methods_of_actors_stream_too(kind: str) -> None:
    """And with back-pressure; an actor that runs several calls at once answers others meanwhile."""

    def body() -> Any:
        actor = KINDS[kind].remote()
        held_up = actor.count.options(_generator_backpressure_num_objects=1).remote(4)
        first = minray.get(next(held_up))
        ping = None if kind == "plain" else minray.get(actor.ping.remote())
        values = [value[:1] for value in read(actor.large.remote(3))] if ping else None
        return first, ping, values, read(held_up), read(actor.count.remote(70, 0.0))[-1], minray.get(actor.ping.remote())

    plan = FaultPlan({"delay": 0.2, "duplicate": 0.2, "preempt": 0.1})
    larges = [b"\1", b"\2", b"\3"]
    others = (None, None) if kind == "plain" else ("here", larges)
    assert judged(body, faults=plan)[0] == (1, *others, [2, 3, 4], 70, "here")


@pytest.mark.parametrize("retries", [0, 1])
@pytest.mark.parametrize("kind", ["plain", "threaded"])
def test_g93_g94_an_actor_that_is_restarted_goes_on_where_its_call_may(kind: str, retries: int) -> None:
    """Killed when it reports for the third time."""

    def body() -> Any:
        actor = KINDS[kind].options(max_restarts=1, max_task_retries=retries).remote()
        return read(actor.count.remote(5))

    result, cluster = judged(body, lambda cluster: cluster.when("ReportGeneratorItem").of("worker").kill(3))
    assert result == ([1, 2, 3, 4, 5] if retries else [1, 2, "ActorUnavailableError"])
    assert printed(cluster).count("yield 1") == 1 + retries


def test_g29_a_killed_actor_ends_its_generators() -> None:
    def body() -> Any:
        actor = KINDS["threaded"].remote()
        generator, waiting = actor.count.remote(1000, 1.0), KINDS["plain"].remote()
        first = minray.get(next(generator))
        busy, queued = waiting.count.remote(1000, 1.0), waiting.count.remote(3)
        minray.kill(actor)
        minray.kill(waiting)
        return first, *(read(one)[-1] for one in (generator, busy, queued))

    assert judged(body)[0] == (1, *["ActorDiedError"] * 3)
