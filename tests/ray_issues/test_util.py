"""Issues of Ray about `ray.util`: the pool of `multiprocessing`, and the pool of actors."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing import Manager
from typing import Any

import pytest

import minray as ray
from minray.exceptions import RayActorError
from minray.util import ActorPool
from minray.util.multiprocessing import Pool
from tests.helpers import wait_for_condition
from tests.real.support import PATIENCE_S, Files, Signal

pytestmark = pytest.mark.usefixtures("cluster")


def add(first: int, second: int) -> int:
    return first + second


def double(number: int) -> int:
    return 2 * number


def wait_for(signal: Signal | None) -> bool:
    if signal is not None:
        signal.wait()
    return signal is not None


@pytest.fixture
def pool(cluster: Any) -> Iterator[Any]:
    """A pool of two processes."""
    with Pool(2) as pool:
        yield pool
    pool.join()


# -- Pool


@pytest.mark.ray_issue(ray="right")
def test_ray_11451_starmap_takes_any_iterable(pool: Any) -> None:
    """`Pool.starmap` takes what `zip` returns for one single argument."""
    assert pool.starmap(add, zip(range(0, 7, 2), range(1, 8, 2), strict=True)) == [1, 5, 9, 13]


@pytest.mark.ray_issue(ray="right")
def test_ray_24081_imap_takes_an_iterator(pool: Any) -> None:
    """`Pool.imap_unordered` sends an iterator to its processes instead of reading it."""
    assert sorted(pool.imap_unordered(double, iter(range(5)))) == [0, 2, 4, 6, 8]


@pytest.mark.ray_issue(ray="wrong at times: called once, with the results in another order")
def test_ray_19289_the_callback_of_a_map_is_called_once(pool: Any) -> None:
    """The callback of `Pool.map_async` is called for each result instead of once for all of them."""
    called: list[Any] = []
    result = pool.map_async(double, range(4), callback=called.append)
    assert result.get(timeout=PATIENCE_S) == [0, 2, 4, 6]
    wait_for_condition(lambda: called)
    assert called == [[0, 2, 4, 6]]


@pytest.mark.ray_issue(ray="wrong: a short call waits behind the long one")
def test_ray_29453_a_long_call_holds_up_no_other_process(pool: Any, files: Files) -> None:
    """Calls of a map are dealt out in turn, so that those behind a long call wait while another process is idle."""
    long = files.signal()
    results = pool.imap_unordered(wait_for, [long, None, None, None, None], chunksize=1)
    assert [results.next(timeout=PATIENCE_S) for _ in range(4)] == [False] * 4
    long.set()
    assert results.next(timeout=PATIENCE_S) is True


@pytest.mark.ray_issue(ray="wrong: the last call begins when the long one has ended")
def test_ray_29466_a_process_gets_its_next_call_while_another_is_busy(pool: Any, files: Files) -> None:
    """`Pool.imap` gives a process that has ended its call no other one before the first call has ended too."""
    long, last = files.signal("long"), files.signal("last")
    results = pool.imap(signal_and_wait, [(None, long), (None, None), (None, None), (last, None)], chunksize=1)
    wait_for_condition(last.is_set, timeout_s=PATIENCE_S)
    long.set()
    assert list(results) == [True] * 4


def signal_and_wait(signals: tuple[Signal | None, Signal | None]) -> bool:
    to_set, to_wait_for = signals
    if to_set is not None:
        to_set.set()
    return wait_for(to_wait_for) or True


def put_into(queue: Any, number: int) -> None:
    queue.put(number)


@pytest.mark.ray_issue(
    ray="wrong: AuthenticationError",
    minray="like Ray: a manager serves children of its own process, which workers are not",
)
def test_ray_7561_a_queue_of_a_manager_is_for_children_of_its_process(pool: Any) -> None:
    """A queue of a `multiprocessing.Manager` cannot be used by the processes of a pool."""
    with Manager() as manager, pytest.raises(Exception, match="digest sent was rejected"):
        pool.apply(put_into, (manager.Queue(), 7))


# -- ActorPool


@ray.remote(num_cpus=0)
class Doubler:
    def double(self, number: int) -> int:
        return 2 * number

    def wait(self, signal: Signal) -> str:
        signal.wait()
        return "waited"


def call_double(actor: Any, number: int) -> Any:
    return actor.double.remote(number)


def call_wait(actor: Any, signal: Signal) -> Any:
    return actor.wait.remote(signal)


@pytest.mark.ray_issue(ray="wrong: UnboundLocalError")
def test_ray_51979_a_result_that_is_late_can_be_ignored(files: Files) -> None:
    """`get_next_unordered(timeout, ignore_if_timedout=True)` fails with an UnboundLocalError when it times out."""
    actors = ActorPool([Doubler.remote()])
    actors.submit(call_wait, files.signal())
    with pytest.raises(TimeoutError):
        actors.get_next_unordered(timeout=0.05, ignore_if_timedout=True)
    files.signal().set()


@pytest.mark.ray_issue(ray="right")
def test_ray_23107_a_map_returns_no_result_of_an_earlier_submission(files: Files) -> None:
    """`ActorPool.map` begins with the results of earlier submissions that nobody has read."""
    actors = ActorPool([Doubler.remote(), Doubler.remote()])
    actors.submit(call_wait, files.signal())
    results = actors.map(call_double, [1, 2, 3])
    files.signal().set()
    assert list(results) == [2, 4, 6]


@ray.remote(num_cpus=0)
class Pair:
    @ray.method(num_returns=2)
    def pair(self, number: int) -> tuple[int, int]:
        return number, 2 * number


def pair_in_a_pool() -> Any:
    actors = ActorPool([Pair.remote()])
    try:
        actors.submit(lambda actor, number: actor.pair.remote(number), 7)
        return actors.get_next(timeout=PATIENCE_S)
    except TypeError as error:
        return type(error)


@pytest.mark.ray_issue(ray="wrong: TypeError")
def test_ray_38607_a_method_with_several_returns_serves_a_pool() -> None:
    """A pool of actors fails with a TypeError if the method that it calls has several returns."""
    assert pair_in_a_pool() == [7, 14]


@pytest.mark.ray_issue(
    ray="wrong: each call goes to the actor that fails",
    minray="like Ray: the actor that was busy last is warm, and one that raises is not dead",
)
def test_ray_50313_an_actor_that_raises_stays_in_its_pool() -> None:
    """A pool gives each call to the actor that came back last, also if all calls of that one fail."""

    @ray.remote(num_cpus=0)
    class Fallible:
        def __init__(self, fails: bool) -> None:
            self.fails = fails

        def run(self, number: int) -> int:
            if self.fails:
                raise ValueError("always")
            return number

    actors = ActorPool([Fallible.remote(False), Fallible.remote(True)])
    for number in range(4):
        actors.submit(lambda actor, each: actor.run.remote(each), number)
        with pytest.raises(ValueError, match="always"):
            actors.get_next(timeout=PATIENCE_S)


@pytest.mark.ray_issue(ray="right")
def test_ray_24921_an_actor_that_joins_takes_what_waits(files: Files) -> None:
    """An actor that is pushed into a pool does not take submissions that already wait for one."""
    actors = ActorPool([Doubler.remote()])
    actors.submit(call_wait, files.signal())
    actors.submit(call_double, 7)
    actors.push(Doubler.remote())
    assert actors.get_next_unordered(timeout=PATIENCE_S) == 14
    files.signal().set()
    assert actors.get_next_unordered(timeout=PATIENCE_S) == "waited"


@pytest.mark.ray_issue(pull=True, ray="right")
def test_ray_64646_a_dead_actor_leaves_its_pool() -> None:
    """A pool goes on giving calls to an actor that is dead."""
    dead, living = Doubler.remote(), Doubler.remote()
    ray.kill(dead)
    actors = ActorPool([dead, living])
    outcomes: list[Any] = []
    for number in range(4):
        actors.submit(call_double, number)
        try:
            outcomes.append(actors.get_next(timeout=PATIENCE_S))
        except RayActorError:
            outcomes.append(None)
    assert outcomes.count(None) <= 1
