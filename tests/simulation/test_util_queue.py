"""``minray.util.queue`` in the simulation: order, waiting on both sides, batches, ends."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

import minray
from minray.exceptions import RayActorError
from minray.simulation import FaultPlan, run
from minray.util.queue import Empty, Full, Queue
from tests.seeds import seeds

SEEDS = seeds(3)


@minray.remote
def produce(queue: Queue, name: str, count: int) -> None:
    for number in range(count):
        queue.put((name, number))


@minray.remote
def consume(queue: Queue, count: int) -> list[Any]:
    return [queue.get() for _ in range(count)]


@minray.remote
class Both:
    async def pass_on(self, source: Queue, target: Queue, count: int) -> None:
        for _ in range(count):
            await target.put_async(await source.get_async())


@minray.remote
class Impatient:
    async def get(self, queue: Queue) -> Any:
        return await asyncio.wait_for(queue.get_async(), 1)

    async def put(self, queue: Queue, item: Any) -> None:
        await asyncio.wait_for(queue.put_async(item), 1)


def one(body: Any) -> Any:
    return run(body, nodes=1)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("maxsize", [0, 2])
def test_what_each_producer_puts_is_got_once_and_in_its_order(maxsize: int, seed: int) -> None:
    def body() -> list[Any]:
        queue = Queue(maxsize)
        for name in "ab":
            produce.remote(queue, name, 10)
        return [*minray.get(consume.remote(queue, 10)), *[queue.get() for _ in range(10)]]

    got = run(body, nodes=2, seed=seed, faults=FaultPlan({"delay": 0.2}))
    assert [number for name, number in got if name == "a"] == list(range(10))
    assert [number for name, number in got if name == "b"] == list(range(10))


def test_coroutines_put_and_get() -> None:
    def body() -> list[Any]:
        queues = [Queue(1) for _ in range(4)]
        hops = [Both.remote().pass_on.remote(queues[i], queues[i + 1], 5) for i in range(3)]
        produce.remote(queues[0], "x", 5)
        got = [queues[3].get() for _ in range(5)]
        minray.get(hops)
        return got

    assert one(body) == [("x", number) for number in range(5)]


def test_who_has_given_up_takes_no_item_and_puts_none() -> None:
    def body() -> list[Any]:
        queue, impatient = Queue(1), Impatient.remote()
        with pytest.raises(TimeoutError):
            minray.get(impatient.get.remote(queue))
        queue.put("first")
        with pytest.raises(TimeoutError):
            minray.get(impatient.put.remote(queue, "never"))
        return [queue.get(timeout=5), queue.size()]

    assert one(body) == ["first", 0]


def test_waiting_ends_after_its_time_or_at_once() -> None:
    def body() -> list[float]:
        queue, waited = Queue(1), []
        before = time.monotonic()
        for wait, error in [
            (lambda: queue.get(timeout=2), Empty),
            (lambda: queue.get(block=False), Empty),
            (lambda: queue.get_nowait(), Empty),
            (lambda: queue.put(1), None),
            (lambda: queue.put(2, timeout=3), Full),
            (lambda: queue.put_nowait(2), Full),
            (lambda: queue.put(2, block=False, timeout=5), Full),
        ]:
            if error is None:
                wait()
            else:
                with pytest.raises(error):
                    wait()
            waited.append(round(time.monotonic() - before))
        assert queue.get() == 1 and queue.empty()
        return waited

    assert one(body) == [2, 2, 2, 2, 5, 5, 5]


def test_a_waiting_get_or_put_is_served_by_the_other_side() -> None:
    def body() -> Any:
        queue = Queue(1)
        getting = consume.remote(queue, 1)
        time.sleep(1)
        queue.put("first")
        got = minray.get(getting)
        queue.put("second")
        putting = produce.remote(queue, "third", 1)
        time.sleep(1)
        return got, queue.get(), minray.get(putting), queue.get()

    assert one(body) == (["first"], "second", None, ("third", 0))


def test_batches_are_all_or_nothing() -> None:
    def body() -> Any:
        queue = Queue(3)
        queue.put_nowait_batch(iter([1, 2]))
        with pytest.raises(Full, match="2 items do not fit into a queue that has 2 of 3"):
            queue.put_nowait_batch([3, 4])
        with pytest.raises(Empty, match="3 items were wanted from a queue that has 2"):
            queue.get_nowait_batch(3)
        sizes = len(queue), queue.qsize(), queue.full(), queue.empty()
        return sizes, queue.get_nowait_batch(2), queue.get_nowait_batch(0), queue.empty()

    assert one(body) == ((2, 2, False, False), [1, 2], [], True)


def test_a_queue_without_a_size_is_never_full() -> None:
    def body() -> Any:
        queue = Queue(-1)
        queue.put_nowait_batch(range(100))
        return queue.full(), queue.size()

    assert one(body) == (False, 100)


@pytest.mark.parametrize("force", [False, True])
def test_shutting_down_ends_those_who_wait(force: bool) -> None:
    def body() -> Any:
        queue = Queue(1, actor_options={"name": "queue"})
        waiting = consume.remote(queue, 1)
        time.sleep(1)
        before = time.monotonic()
        queue.shutdown(force, grace_period_s=2)
        queue.shutdown()
        waited = time.monotonic() - before
        with pytest.raises(RayActorError):
            minray.get(waiting)
        with pytest.raises(ValueError, match="no actor named"):
            minray.get_actor("queue")
        return round(waited)

    assert one(body) == (0 if force else 2)


@pytest.mark.parametrize(
    ("use", "error", "complaint"),
    [
        (lambda queue: queue.put(1, timeout=-1), ValueError, "must not be negative, but is -1"),
        (lambda queue: queue.get(timeout=-1), ValueError, "must not be negative"),
        (lambda queue: asyncio.run(queue.get_async(timeout=-1)), ValueError, "must not be negative"),
        (lambda queue: queue.put_nowait_batch(5), TypeError, "takes an iterable of items, not int"),
        (lambda queue: queue.get_nowait_batch("2"), TypeError, "num_items must be an int, not str"),
        (lambda queue: queue.get_nowait_batch(-1), ValueError, "num_items must not be negative"),
    ],
)
def test_arguments_that_make_no_sense(use: Any, error: type[Exception], complaint: str) -> None:
    queue = Queue.__new__(Queue)
    with pytest.raises(error, match=complaint):
        use(queue)
