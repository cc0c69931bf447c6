"""Pools, queues and results as they come, between real processes."""

from __future__ import annotations

import asyncio
import os
import threading
from typing import Any

import pytest

import minray
from minray.util import (
    ActorPool,
    as_completed,
    deregister_serializer,
    get_node_ip_address,
    list_named_actors,
    map_unordered,
    register_serializer,
)
from minray.util.placement_group import placement_group, placement_group_table, remove_placement_group
from minray.util.queue import Empty, Full, Queue
from tests.helpers import wait_for_condition
from tests.real.support import ON_RAY, core

pytestmark = pytest.mark.usefixtures("cluster")


@minray.remote
class Squarer:
    def square(self, number: int) -> tuple[int, int]:
        return number * number, os.getpid()


@minray.remote(num_cpus=0)
def square(number: int) -> int:
    return number * number


@minray.remote(num_cpus=0)
def feed(source: Queue, numbers: list[int]) -> int:
    for number in numbers:
        source.put(number)
    return os.getpid()


def test_a_pool_spreads_its_work_over_processes() -> None:
    pool: ActorPool[int] = ActorPool([Squarer.remote() for _ in range(2)])
    results = list(pool.map(lambda actor, number: actor.square.remote(number), range(20)))
    assert [result for result, _ in results] == [number * number for number in range(20)]
    assert len({pid for _, pid in results} - {os.getpid()}) == 2


@minray.remote(num_cpus=0)
class Divider:
    @minray.method(num_returns=2)
    def divide(self, number: int) -> tuple[int, int]:
        return divmod(number, 3)


def test_a_pool_takes_methods_with_several_results() -> None:
    pool: ActorPool[int] = ActorPool([Divider.remote() for _ in range(2)])
    assert list(pool.map(lambda actor, number: actor.divide.remote(number), range(6))) == [
        [0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]
    ]  # fmt: skip
    pool.submit(lambda actor, number: actor.divide.remote(number), 7)
    assert pool.get_next() == [2, 1] and not pool.has_next() and pool.has_free()


@pytest.mark.skipif(ON_RAY, reason="Ray's get_next_unordered and its timeout do not know lists")
def test_a_pool_takes_several_results_in_any_order_and_in_time() -> None:
    pool: ActorPool[int] = ActorPool([Divider.remote() for _ in range(2)])
    found = list(pool.map_unordered(lambda actor, number: actor.divide.remote(number), range(6)))
    assert sorted(found) == [[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]]
    pool.submit(lambda actor, number: actor.divide.remote(number), 7)
    assert pool.get_next(timeout=30) == [2, 1]


def test_a_queue_connects_processes_and_threads_of_asyncio() -> None:
    queue = Queue(maxsize=3)
    feeding = feed.remote(queue, list(range(50)))

    async def take(count: int) -> list[int]:
        return [await queue.get_async(timeout=30) for _ in range(count)]

    assert asyncio.run(take(25)) + [queue.get(timeout=30) for _ in range(25)] == list(range(50))
    assert minray.get(feeding) != os.getpid()
    with pytest.raises(Empty):
        queue.get(timeout=0.01)
    queue.put_nowait_batch([1, 2, 3])
    with pytest.raises(Full):
        queue.put_nowait(4)
    queue.shutdown()
    queue.shutdown()
    for use in (queue.size, queue.get, lambda: queue.put(1), lambda: queue.put_nowait_batch([1])):
        with pytest.raises(ValueError, match="was shut down"):
            use()


def test_results_come_as_they_are_ready() -> None:
    refs = [square.remote(number) for number in range(30)]
    assert sorted(as_completed(refs)) == sorted(map_unordered(square, range(30), backpressure_size=10))


def test_named_actors_and_the_address_of_the_node() -> None:
    named: Any = Squarer.options(name="squarer").remote()
    assert list_named_actors() == ["squarer"] and minray.get(named.square.remote(3))[0] == 9
    assert get_node_ip_address() == minray.nodes()[0]["NodeManagerAddress"]


def test_a_class_may_say_how_it_travels() -> None:
    """Into a task, out of it, and by put: its instances cannot be pickled."""

    class Account:
        def __init__(self, balance: int) -> None:
            self.balance = balance
            self.lock = threading.Lock()

    @minray.remote(num_cpus=0)
    def add_one(account: Account) -> Account:
        register_serializer(Account, serializer=lambda account: account.balance, deserializer=Account)
        with account.lock:
            return Account(account.balance + 1)

    with pytest.raises(TypeError, match="lock"):
        minray.put(Account(1))
    register_serializer(Account, serializer=lambda account: account.balance, deserializer=Account)
    assert minray.get(minray.put([Account(3)]))[0].balance == 3
    assert minray.get(add_one.remote(Account(4))).balance == 5
    deregister_serializer(Account)
    deregister_serializer(Account)
    with pytest.raises(TypeError, match="lock"):
        minray.put(Account(1))


class Refusal(Exception):
    def __init__(self, reason: str, lock: Any) -> None:
        super().__init__(reason)
        self.reason = reason
        self.lock = lock


def _unpacked(reason: str) -> Refusal:
    return Refusal(f"{reason}, unpacked", None)


def test_an_exception_class_may_say_how_it_travels() -> None:
    @minray.remote(num_cpus=0, max_retries=0)
    def refuse() -> None:
        register_serializer(Refusal, serializer=lambda error: error.reason, deserializer=_unpacked)
        raise Refusal("no room", threading.Lock())

    register_serializer(Refusal, serializer=lambda error: error.reason, deserializer=_unpacked)
    with pytest.raises(Refusal) as caught:
        minray.get(refuse.remote())
    assert caught.value.reason == "no room, unpacked" and caught.value.lock is None
    deregister_serializer(Refusal)


def test_a_serializer_is_of_a_class_and_can_be_called() -> None:
    with pytest.raises(TypeError, match="takes a class, not 3"):
        register_serializer(3, serializer=int, deserializer=int)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="deserializer must be a function of one argument, not 5"):
        register_serializer(threading.Event, serializer=int, deserializer=5)  # type: ignore[arg-type]


def test_arguments_of_the_wrong_kind_are_named() -> None:
    group = placement_group([{"CPU": 1}])
    for call, words in [
        (lambda: Queue("a"), "maxsize must be an int"),  # type: ignore[arg-type]
        (lambda: placement_group_table("a"), "takes a PlacementGroup or None"),  # type: ignore[arg-type]
        (lambda: group.wait("a"), "timeout must be a number"),  # type: ignore[arg-type]
        (lambda: minray.get_actor("x", namespace=3), "namespace must be a str"),  # type: ignore[arg-type]
    ]:
        with pytest.raises(TypeError, match=words):
            call()
    remove_placement_group(group)


lock_of_the_module = threading.Lock()


class Holder:
    def __init__(self) -> None:
        self.name, self.lock = "holder", threading.Lock()


def test_what_cannot_be_serialized_is_named() -> None:
    lock = threading.Lock()

    def uses(number: int) -> object:
        return number, lock

    class Uses:
        def use(self) -> object:
            return lock

    class Takes:
        def __init__(self, *args: object, **kwargs: object) -> None: ...

        def take(self, first: object, *others: object) -> None: ...

    def takes(first: object, *, second: object = None) -> None: ...

    taking: Any = minray.remote(num_cpus=0)(Takes).remote()
    uses_of: list[tuple[Any, ...]] = [
        (lambda: minray.remote(uses).remote(1), "Could not serialize the function uses", "lock = <unlocked"),
        (lambda: minray.remote(Uses).remote(), "Could not serialize the actor class Uses", "lock = <unlocked"),
        (lambda: minray.remote(takes).remote(lock), "the argument <unlocked", "for a task or actor", "parameter first"),
        (lambda: minray.remote(takes).remote(1, second=Holder()), "parameter second", "lock = <unlocked", "(in <"),
        (lambda: minray.remote(Takes).remote(1, Holder()), "(Takes.remote, parameter args[1])", "lock = <unlocked"),
        (lambda: taking.take.remote(1, 2, {"key": [lock]}), "Takes.take.remote, parameter others[1]", "[0] = <unlocked"),
        (lambda: taking.take.options(name="n").remote(lock), "parameter first"),
        (lambda: minray.put([1, lock]), "Could not serialize the put value [1, <unlocked", "[1] = <unlocked"),
    ]
    for use, *said in uses_of:
        with pytest.raises(TypeError, match="cannot pickle '_thread.lock' object") as caught:
            use()
        assert [words for words in said if words not in str(caught.value)] == [], str(caught.value)
        assert "Make it where it is needed" in str(caught.value) and isinstance(caught.value.__cause__, TypeError)


class Picky:
    def __reduce__(self) -> Any:
        raise ValueError("not today")


def test_errors_of_calls_that_are_not_about_values_stay_as_they_are() -> None:
    with pytest.raises(ValueError, match="not today"):
        minray.remote(lambda value: value).remote(Picky())
    with pytest.raises(TypeError, match="put a list that contains it"):
        minray.put(minray.put(1))


def test_a_search_for_what_cannot_be_serialized_pins_no_references() -> None:
    ref = minray.put(bytes(200_000))
    with pytest.raises(TypeError, match="parameter value"):
        minray.remote(lambda value: value).remote([ref, threading.Lock()])
    wait_for_condition(lambda: core().references.reference_of(ref.binary()) is not None)
    assert not core().references.reference_of(ref.binary()).pinned
