"""Values and references in all tables of a process, in simulated clusters. A kibibyte is a large value in these."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cloudpickle
import pytest

import minray
from minray.exceptions import OwnerDiedError, WorkerCrashedError
from minray.util.placement_group import placement_group
from tests.core_worker.cores import Core, Cores, cores, let_pass, make, outcome_of, pause, sent
from tests.simulation.judge import core_leftovers, raylet_leftovers

LARGE = b"x" * 10_000
LIMIT = 1000


@pytest.fixture
def cluster() -> Iterator[Cores]:
    with cores(2, max_direct_call_object_size=LIMIT, record_ref_creation_sites=True) as made:
        yield made


@minray.remote(max_retries=0)
def make_nested(size: int) -> list[Any]:
    return [minray.put("inner"), b"x" * size]


@minray.remote(max_retries=0)
def die() -> None:
    minray.api.calls.current_api().port.process.platform.processes.exit(1)


@minray.remote(num_cpus=0)
class Keeper:
    def take(self, refs: Any) -> None:
        self.refs = refs

    def take_pickled(self, pickled: bytes) -> None:
        self.refs = cloudpickle.loads(pickled)

    def pickled(self) -> bytes:
        return cloudpickle.dumps(self.refs)

    def read(self) -> Any:
        return minray.get(self.refs[0])

    def where_made(self) -> str:
        core = minray.api.calls.current_api().port
        return str(core.call_sites.of(self.refs[0]._id))

    def own_value(self) -> list[Any]:
        return [minray.put("value")]

    def own(self) -> list[Any]:
        return [never.remote()]

    def address(self) -> str:
        return str(minray.api.calls.current_api().port.process.address.endpoint)

    def exit(self) -> None:
        minray.actor.exit_actor()

    def die(self) -> None:
        minray.api.calls.current_api().port.process.platform.processes.exit(1)


@pytest.fixture
def leaves_nothing(cluster: Cores, driver: Core) -> Iterator[None]:
    """After the test, when no reference is left."""
    yield
    cluster.settle(5)
    left = core_leftovers(driver.worker) + raylet_leftovers(cluster.raylets["head"])
    assert left == [] and len(driver.worker.call_sites or ()) == 0


pytestmark = pytest.mark.usefixtures("leaves_nothing")


# --- values


@pytest.mark.parametrize("filling", [b"", LARGE])
def test_a_value_that_was_put_holds_what_is_inside(driver: Core, filling: bytes) -> None:
    def program() -> None:
        inner = minray.put("inner")
        inner_id = inner._id
        outer = minray.put([inner, filling])
        del inner
        let_pass(0.1)
        assert driver.worker.references.reference_of(inner_id) is not None
        assert minray.get(minray.get(outer)[0]) == "inner"
        del outer
        let_pass(0.1)
        assert driver.worker.references.reference_of(inner_id) is None

    driver.run(program)


@pytest.mark.parametrize("make_one", [lambda: minray.put(LARGE), lambda: make.remote(len(LARGE))])
def test_it_is_known_which_nodes_have_a_large_value_of_ones_own(cluster: Cores, driver: Core, make_one: Any) -> None:
    def program() -> None:
        large, small = make_one(), minray.put("small")
        assert minray.get(large) == LARGE
        size, raylets = driver.worker.submission.lease_policy.copies_of(large._id)
        assert size > len(LARGE) and raylets == [cluster.raylets["head"].address]
        assert driver.worker.submission.lease_policy.copies_of(small._id) == (0, [])

    driver.run(program)


def test_of_a_borrowed_value_it_is_known_where_it_was_seen_as_long_as_it_is_held(cluster: Cores, driver: Core) -> None:
    async def story() -> None:
        keeper = Keeper.remote()
        ref = (await putter.remote())[0]
        await keeper.take.remote(ref)
        size, raylets = driver.worker.submission.lease_policy.copies_of(ref._id)
        assert size > len(LARGE) and raylets == [cluster.raylets["head"].address]
        object_id = ref._id
        del ref
        await pause(0.1)
        assert driver.worker.submission.lease_policy.copies_of(object_id) == (0, [])

    driver.do(story())


@minray.remote(max_retries=0)
def putter() -> list[Any]:
    return [minray.put(LARGE)]


@pytest.mark.parametrize("size", [1, len(LARGE)])
@pytest.mark.parametrize("function", [make, make_nested])
def test_a_result_that_nobody_wants_any_more_is_not_kept_anywhere(driver: Core, function: Any, size: int) -> None:
    """``leaves_nothing`` looks into the tables; the worker's own are empty if it may end."""

    async def story() -> None:
        function.remote(size)
        await pause(1)

    driver.do(story())


def test_what_is_inside_a_result_is_given_back_with_it(cluster: Cores, driver: Core) -> None:
    async def story() -> bytes:
        ref = make_nested.remote(1)
        inner = (await ref)[0]
        assert await inner == "inner"
        assert [info.ticket for info in driver.worker.store.objects[ref._id].nested] == [b""]
        return bytes(inner._id)

    inner_id = driver.do(story())
    cluster.settle(2)
    assert all(core.references.reference_of(inner_id) is None for core in cluster.cores.values())


def test_the_error_in_the_place_of_a_value_names_the_task_that_has_failed(driver: Core) -> None:
    async def story() -> None:
        error = await outcome_of(die.remote())
        assert isinstance(error, WorkerCrashedError) and "die" in str(error)

    driver.do(story())


def test_the_object_of_a_dead_owner_is_an_error_that_says_whose_it_was(driver: Core) -> None:
    async def story() -> None:
        keeper, owner = Keeper.remote(), Keeper.remote()
        await keeper.take.remote(await owner.own.remote())
        reading = keeper.read.remote()
        where = await owner.address.remote()
        await outcome_of(owner.die.remote())
        error = await outcome_of(reading)
        assert isinstance(error, OwnerDiedError) and where in str(error)

    driver.do(story())


@minray.remote(max_retries=0, num_cpus=99)
def never() -> None:
    return


# --- errors that nobody looks at


@minray.remote(max_retries=0)
def fail(*_arguments: Any) -> None:
    raise ValueError("it was told to")


@minray.remote(max_retries=0)
def fail_late() -> Any:
    yield 1
    yield 2
    raise ValueError("it was told to")


@minray.remote(max_retries=0)
def look(refs: list[Any]) -> str:
    return type(outcome(refs[0])).__name__


@minray.remote(max_retries=0)
def forget() -> None:
    fail.remote()


def outcome(ref: Any) -> Any:
    try:
        return minray.get(ref)
    except Exception as error:
        return error


def submitted_and_forgotten() -> None:
    fail.remote()


def waited_for() -> None:
    minray.wait([fail.remote()])


def without_results() -> None:
    fail.options(num_returns=0).remote()


def a_crash() -> None:
    die.remote()


def an_argument_of_what_is_forgotten() -> None:
    """Said once: of the task that was given it."""
    fail.remote(fail.remote())


def by_another_task() -> None:
    minray.get(forget.remote())


def several_results() -> None:
    """Said once, when the last one goes."""
    first, second = fail.options(num_returns=2).remote()
    minray.wait([first, second], num_returns=2)
    del first
    let_pass(0.1)


def the_rest_of_a_stream() -> None:
    items = fail_late.remote()
    next(items)
    minray.wait([items.completed()])


def got() -> None:
    assert isinstance(outcome(fail.remote()), ValueError)


def got_with_others() -> None:
    """The others are known to have failed too, or would not be heard of."""
    refs = [fail.remote() for _ in range(3)]
    minray.wait(refs, num_returns=3)
    assert isinstance(outcome(refs), ValueError)


def one_of_several_results() -> None:
    _, second = fail.options(num_returns=2).remote()
    assert isinstance(outcome(second), ValueError)


def an_argument() -> None:
    assert isinstance(outcome(make.remote(fail.remote())), ValueError)


def what_comes_of_an_error_that_was_looked_at() -> None:
    """Nor need anybody look at the others that come of it."""
    failed = fail.remote()
    made = [make.remote(failed), make.remote(make.remote(failed))]
    assert isinstance(outcome(failed), ValueError)
    minray.wait(made, num_returns=2)


def one_of_several_that_come_of_an_error() -> None:
    failed = fail.remote()
    made = [make.remote(failed), make.remote(failed)]
    del failed
    assert isinstance(outcome(made[1]), ValueError)
    minray.wait(made, num_returns=2)


def lent() -> None:
    assert minray.get(look.remote([fail.remote()])) == "RayTaskError(ValueError)"


def the_last_item() -> None:
    assert [type(outcome(ref)).__name__ for ref in fail_late.remote()] == ["int", "int", "RayTaskError(ValueError)"]


def cancelled() -> None:
    minray.cancel(never.remote())


def of_an_actor_that_is_killed() -> None:
    keeper = Keeper.remote()
    keeper.read.remote()
    minray.kill(keeper)


def of_an_actor_that_exits() -> None:
    keeper = Keeper.remote()
    keeper.exit.remote()
    keeper.__ray_terminate__.remote()


UNHEARD = [
    submitted_and_forgotten,
    waited_for,
    without_results,
    a_crash,
    an_argument_of_what_is_forgotten,
    by_another_task,
    several_results,
    the_rest_of_a_stream,
]
HEARD = [
    got,
    got_with_others,
    one_of_several_results,
    an_argument,
    what_comes_of_an_error_that_was_looked_at,
    one_of_several_that_come_of_an_error,
    lent,
    the_last_item,
    cancelled,
    of_an_actor_that_is_killed,
    of_an_actor_that_exits,
]


@pytest.mark.parametrize(("program", "count"), [*((each, 1) for each in UNHEARD), *((each, 0) for each in HEARD)])
def test_an_error_is_said_aloud_once_if_nobody_looks_at_it(driver: Core, program: Any, count: int, caplog: Any) -> None:
    def run() -> None:
        program()
        let_pass(2)

    driver.run(run)
    said = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert len(said) == count and all("unhandled error" in text for text in said)
    assert all("it was told to" in text or "exited with code 1" in text for text in said)


@minray.remote
class Unmade:
    def __init__(self) -> None:
        raise ValueError("it was told to")


def never_called() -> None:
    actor = Unmade.remote()
    let_pass(2)
    del actor


def test_a_constructor_that_fails_is_said_aloud(driver: Core, caplog: Any) -> None:
    driver.run(never_called)
    (said,) = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
    assert "task Unmade.__init__ failed" in said and "it was told to" in said


def test_what_is_not_to_be_said_is_not(caplog: Any) -> None:
    with cores(2, report_unseen_errors=False) as quiet:
        quiet.driver().run(lambda: (submitted_and_forgotten(), never_called(), let_pass(2)))
    assert [record for record in caplog.records if record.levelname == "ERROR"] == []


# --- freed


def test_who_drops_the_last_reference_waits_for_no_placement_group_any_more(driver: Core) -> None:
    def program() -> None:
        ready = placement_group([{"GPU": 1}]).ready()
        assert minray.wait([ready], timeout=0.1)[0] == []
        assert driver.worker.placement_groups._waiting
        del ready
        let_pass(0.1)

    driver.run(program)
    assert not driver.worker.placement_groups._waiting
    assert not [name for name in driver.tasks() if name.startswith("placement_group")]


def test_places_where_references_were_made_are_forgotten_with_them(driver: Core) -> None:
    sites = driver.worker.call_sites
    assert sites is not None

    def program() -> None:
        refs = [minray.put(1), make.remote(1)]
        assert len(sites) == 2
        del refs

    driver.run(program)


# --- references


def test_it_is_noted_where_a_reference_inside_a_value_was_made(driver: Core) -> None:
    async def story() -> None:
        keeper, ref = Keeper.remote(), minray.put("x")
        await keeper.take.remote([ref])
        assert (await keeper.where_made.remote()).startswith("(deserialize in task Keeper.take)")
        (inner,) = await minray.put([make.remote(1)])
        assert driver.worker.call_sites is not None
        assert driver.worker.call_sites.of(inner._id).startswith("(task call)")
        nested = (await make_nested.remote(1))[0]
        assert driver.worker.call_sites.of(nested._id).startswith("(deserialize)")

    driver.do(story())


def test_a_reference_that_came_by_pickle_is_held_by_the_process_that_has_it(cluster: Cores, driver: Core) -> None:
    """The process that has passed it on has it pinned. When that dies, another process has to hold it."""

    async def story() -> Any:
        first, second = Keeper.remote(), Keeper.remote()
        ref = minray.put("x")
        await first.take.remote([ref])
        await second.take_pickled.remote(await first.pickled.remote())
        await pause(0.1)
        object_id = ref._id
        await outcome_of(first.die.remote())
        del ref
        await pause(5)
        assert driver.worker.references.reference_of(object_id) is not None
        return await second.read.remote()

    assert driver.do(story()) == "x"


def test_who_owns_it_or_holds_it_already_asks_nobody_for_that(cluster: Cores, driver: Core) -> None:
    async def story() -> None:
        keeper = Keeper.remote()
        own, borrowed = minray.put("own"), (await keeper.own_value.remote())[0]
        pickled = [cloudpickle.dumps(own), cloudpickle.dumps(borrowed)]
        words = sent(cluster, "driver")
        again = [cloudpickle.loads(each) for each in pickled]
        await pause(0.1)
        assert [await each for each in again] == ["own", "value"] and "AddBorrower" not in words
        for object_id in (own._id, borrowed._id):
            driver.worker.references.reference_of(object_id).pinned = False  # type: ignore[union-attr]

    driver.do(story())
