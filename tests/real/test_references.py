"""Owners and lifetimes of objects, and references on their way (G57, and G58-G62 as far as they need no object plane)."""

from __future__ import annotations

import asyncio
import gc
import os
import pickle
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import minray as ray
from minray import cloudpickle
from minray.exceptions import OwnerDiedError, ReferenceCountingAssertionError
from tests.helpers import wait_for_condition, without_garbage_collection
from tests.real.support import Files, api, core, echo, hold, is_alive, left_in_driver, run_driver

pytestmark = pytest.mark.usefixtures("cluster")


def is_freed_at_owner(reference_id: bytes, owner: Any) -> bool:
    """Ask the owner of an object about it, as a process without a reference. Return whether it is freed."""
    driver = core()
    from minray.protocol.core_worker import FREED, GetObject, ObjectReply

    async def ask() -> ObjectReply:
        return await driver.peers.to(owner).call(GetObject(reference_id, driver.process.address, 0, 0.0, b"status"))

    return bool(api().run_on_loop(ask).status == FREED)


@ray.remote
def put_some(*values: object) -> list[Any]:
    return [ray.put(value) for value in values]


@ray.remote
def divide(number: float, by: float) -> float:
    return number / by


# --- ownership


def test_g57_who_submits_or_puts_owns() -> None:
    @ray.remote
    def make() -> Any:
        mine = ray.get_runtime_context().get_worker_id()
        return mine, [ray.put(1), echo.remote(2)]

    here = ray.get_runtime_context().get_worker_id()
    result = make.remote()
    assert result.owner_address().worker_id.hex() == here == ray.put(1).owner_address().worker_id.hex()
    there, inner = ray.get(result)
    assert [reference.owner_address().worker_id.hex() for reference in inner] == [there, there] != [here, here]
    assert ray.get(inner) == [1, 2]


def test_g57_what_is_known_of_an_object_is_with_its_owner_only() -> None:
    (inner,) = ray.get(put_some.remote("x"))
    assert core().references.reference_of(inner.binary()).owner.worker_id == inner.owner_address().worker_id
    assert inner.binary() not in core().store.objects
    assert not is_freed_at_owner(inner.binary(), inner.owner_address())
    assert ray.get(inner) == "x"


# --- lifetime at the driver


def test_an_object_is_freed_with_its_last_reference() -> None:
    driver = core()
    refs = [ray.put("put"), echo.remote("returned"), *echo.options(num_returns=2).remote((1, 2))]
    ray.wait(refs, num_returns=4)
    ids = [reference.binary() for reference in refs]
    assert all(object_id in driver.store.objects for object_id in ids)
    copies = list(refs)
    del refs
    assert ray.get(copies) == ["put", "returned", 1, 2]
    del copies
    wait_for_condition(lambda: not any(object_id in driver.store.objects for object_id in ids))
    assert not any(driver.references.reference_of(object_id) for object_id in ids)


def test_a_result_that_nobody_wants_is_not_kept(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    object_id = hold.remote(started, release, "unwanted").binary()
    started.wait()
    release.set()
    wait_for_condition(lambda: not core().submission.tasks.tasks)
    assert object_id not in core().store.objects


def test_g58_a_task_keeps_its_arguments(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    argument, nested = ray.put("argument"), ray.put("nested")
    ids = [argument.binary(), nested.binary()]

    @ray.remote
    def combine(_: object, value: str, refs: list[Any]) -> str:
        return f"{value} {ray.get(refs[0])}"

    task = combine.remote(hold.remote(started, release), argument, [nested])
    del argument, nested
    started.wait()
    assert all(object_id in core().store.objects for object_id in ids)
    release.set()
    assert ray.get(task) == "argument nested"


def test_g58_objects_inside_an_object_live_as_long_as_it_does() -> None:
    objects = core().store.objects
    before = len(objects)
    outer = ray.put([ray.put("inner"), [ray.put("deep")]])
    assert len(objects) == before + 3
    inner, (deep,) = ray.get(outer)
    del outer
    assert ray.get([inner, deep]) == ["inner", "deep"]
    del inner, deep
    wait_for_condition(lambda: len(objects) == before)


def test_references_in_cycles_are_freed_by_the_garbage_collector() -> None:
    cycle: list[Any] = [ray.put("x")]
    cycle.append(cycle)
    object_id = cycle[0].binary()
    del cycle
    gc.collect()
    wait_for_condition(lambda: object_id not in core().store.objects)


def test_what_was_waited_for_is_freed_without_the_garbage_collector_although_it_is_an_error() -> None:
    """A future of a failed task used to be part of a cycle, with its reference and whatever its callbacks had."""

    async def await_it() -> None:
        with pytest.raises(ZeroDivisionError):
            await divide.remote(1, 0)

    def look() -> None:
        assert isinstance(divide.remote(1, 0).future().exception(timeout=60), ZeroDivisionError)
        with pytest.raises(ZeroDivisionError):
            ray.get(divide.remote(1, 0))

    with without_garbage_collection():
        before = set(left_in_driver())
        asyncio.run(await_it())
        look()
        wait_for_condition(lambda: before.issuperset(left_in_driver()))


# --- borrowed objects


@pytest.mark.parametrize("size", [10, 300_000])
def test_g58_an_inner_reference_keeps_its_object_at_the_worker_that_owns_it(size: int) -> None:
    outer = put_some.remote("x" * size)
    (inner,) = ray.get(outer)
    del outer
    object_id, owner = inner.binary(), inner.owner_address()
    ray.get([echo.remote(number) for number in range(20)])
    assert not is_freed_at_owner(object_id, owner)
    assert ray.get(inner) == "x" * size
    del inner
    wait_for_condition(lambda: is_freed_at_owner(object_id, owner))


def test_inner_references_that_nobody_took_out_are_freed_with_the_outer_one() -> None:
    outer = put_some.remote("a", "b")
    ray.wait([outer])
    nested = [(info.object_id, info.owner) for info in core().store.objects[outer.binary()].nested]
    assert len(nested) == 2 and not any(is_freed_at_owner(*inner) for inner in nested)
    del outer
    wait_for_condition(lambda: all(is_freed_at_owner(*inner) for inner in nested))


def test_g58_a_borrower_may_pass_a_reference_on() -> None:
    @ray.remote
    def pass_down(depth: int, refs: list[Any]) -> Any:
        return ray.get(pass_down.remote(depth - 1, refs)) if depth else ray.get(refs)

    inner = ray.get(put_some.remote("precious"))
    assert ray.get(pass_down.remote(4, inner)) == ["precious"]
    ids = [(reference.binary(), reference.owner_address()) for reference in inner]
    assert ray.get(inner) == ["precious"]
    del inner
    wait_for_condition(lambda: all(is_freed_at_owner(*one) for one in ids))


def test_a_task_may_return_what_it_was_given() -> None:
    mine, (theirs,) = ray.put("mine"), ray.get(put_some.remote("theirs"))
    back = ray.get(echo.remote([mine, theirs]))
    assert back == [mine, theirs]
    del mine, theirs
    gc.collect()
    assert ray.get(back) == ["mine", "theirs"]


def test_references_of_references_of_references() -> None:
    @ray.remote
    def wrap(levels: int) -> Any:
        return [wrap.remote(levels - 1)] if levels else "core"

    value: Any = wrap.remote(6)
    while isinstance(value, ray.ObjectRef):
        value = ray.get(value)
        value = value[0] if isinstance(value, list) else value
    assert value == "core"


def test_a_task_may_return_references_to_tasks_that_have_not_finished(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")

    @ray.remote
    def begin() -> list[Any]:
        return [hold.remote(started, release, "late")]

    (inner,) = ray.get(begin.remote())
    started.wait()
    task = echo.remote(inner)
    release.set()
    assert ray.get([inner, task]) == ["late", "late"]


def test_g58_a_worker_that_stores_a_reference_keeps_the_object() -> None:
    @ray.remote(num_cpus=2)
    def keep(refs: list[Any]) -> int:
        import builtins

        builtins.kept = refs  # type: ignore[attr-defined]
        return os.getpid()

    @ray.remote(num_cpus=2)
    def read() -> Any:
        import builtins

        kept = builtins.__dict__.pop("kept", None)
        return os.getpid(), None if kept is None else ray.get(kept)

    kept = ray.put("kept by a worker")
    object_id = kept.binary()
    keeper = ray.get(keep.remote([kept]))
    del kept
    assert object_id in core().store.objects
    pid, value = ray.get(read.remote())
    assert pid != keeper or value == ["kept by a worker"]
    os.kill(keeper, signal.SIGKILL)
    wait_for_condition(lambda: object_id not in core().store.objects)


# --- references that a program has pickled by itself


class Sealed:
    """Pickles its reference on its own, and opens it as late as it likes."""

    def __init__(self, reference: ray.ObjectRef[Any]) -> None:
        self.bytes, self.reference = b"", reference

    def __getstate__(self) -> dict[str, Any]:
        return {"bytes": self.bytes or cloudpickle.dumps(self.reference)}

    def open(self) -> Any:
        return ray.get(pickle.loads(self.bytes), timeout=30)


@pytest.mark.parametrize("content", ["small", "x" * 300_000])
def test_g58_g60_what_a_value_pickles_by_itself_lives_with_it_and_opens_anywhere(content: str) -> None:
    @ray.remote
    def look(sealed: Sealed) -> Any:
        return sealed.open()

    @ray.remote
    def pack(value: Any) -> Sealed:
        return Sealed(ray.put(value))

    assert ray.get(look.remote(Sealed(ray.put(content)))) == content
    outer = ray.put(Sealed(ray.put(content)))
    inner_id = pickle.loads(ray.get(outer).bytes).binary()
    assert ray.get(outer).open() == ray.get(look.remote(outer)) == content
    del outer
    wait_for_condition(lambda: inner_id not in core().store.objects)  # it was pinned for no longer
    theirs = pack.remote(content)
    assert ray.get(theirs).open() == ray.get(look.remote(theirs)) == content


def test_bytes_of_an_object_that_nothing_kept_alive_are_an_error_everywhere() -> None:
    @ray.remote
    def open_it(data: bytes) -> Any:
        return ray.get(pickle.loads(data))

    sealed = ray.get(ray.put(Sealed(ray.put("gone"))))
    wait_for_condition(lambda: pickle.loads(sealed.bytes).binary() not in core().store.objects)
    for attempt in (sealed.open, lambda: ray.get(open_it.remote(sealed.bytes), timeout=30)):
        with pytest.raises(ReferenceCountingAssertionError, match="deleted although a reference was left"):
            attempt()


# --- owners that die


def test_when_the_owner_dies_its_objects_are_lost() -> None:
    @ray.remote
    def make() -> Any:
        return os.getpid(), [ray.put("lost"), ray.put("x" * 300_000)]

    pid, (small, large) = ray.get(make.remote())
    os.kill(pid, signal.SIGKILL)
    for reference in (small, large):
        with pytest.raises(OwnerDiedError):
            ray.get(reference, timeout=30)
        with pytest.raises(OwnerDiedError):
            ray.get(echo.remote(reference), timeout=30)
    assert ray.wait([small, large], num_returns=2, timeout=30) == ([small, large], [])


def test_a_get_that_waits_is_told_of_its_owners_death(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")

    @ray.remote
    def begin() -> Any:
        return os.getpid(), [hold.options(num_cpus=0.1).remote(started, release)]

    pid, (inner,) = ray.get(begin.remote())
    started.wait()
    future, dependent = inner.future(), echo.remote(inner)
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(OwnerDiedError):
        future.result(30)
    with pytest.raises(OwnerDiedError):
        ray.get(dependent, timeout=30)


def test_inside_a_task_the_loss_of_an_object_is_an_error_like_any_other() -> None:
    @ray.remote
    def make() -> Any:
        return os.getpid(), [ray.put("lost")]

    @ray.remote
    def look(refs: list[Any]) -> str:
        try:
            return str(ray.get(refs[0]))
        except OwnerDiedError:
            return "its owner died"

    pid, refs = ray.get(make.remote())
    os.kill(pid, signal.SIGKILL)
    assert ray.get(look.remote(refs)) == "its owner died"


# --- ways of the user's own


def test_references_captured_in_closures_and_globals() -> None:
    captured: Any = ray.put("captured")

    @ray.remote
    def look() -> Any:
        return ray.get(captured)

    assert ray.get(look.remote()) == "captured"
    captured = None  # what was captured is pickled, and stays
    gc.collect()
    assert ray.get([look.remote() for _ in range(4)]) == ["captured"] * 4


@pytest.mark.parametrize("pickler", ["pickle", "cloudpickle"])
def test_a_reference_pickled_by_the_user_is_good_for_as_long_as_its_owner(pickler: str) -> None:
    reference = ray.put("pickled")
    text = (pickle if pickler == "pickle" else ray.cloudpickle).dumps(reference)
    assert pickle.loads(text) == reference

    @ray.remote
    def load(text: bytes) -> Any:
        return ray.get(pickle.loads(text))

    del reference
    gc.collect()
    assert ray.get(load.remote(text)) == "pickled"
    assert ray.get(pickle.loads(text)) == "pickled"


def test_a_borrowed_reference_pickled_by_the_user() -> None:
    (inner,) = ray.get(put_some.remote("borrowed"))
    text = ray.cloudpickle.dumps(inner)

    @ray.remote
    def load(text: bytes) -> Any:
        return ray.get(pickle.loads(text))

    assert ray.get(load.remote(text)) == "borrowed"


# --- many


def test_ten_thousand_references_in_a_list() -> None:
    refs = [ray.put(number) for number in range(10_000)]
    assert ray.get(refs) == list(range(10_000))

    @ray.remote
    def count(refs: list[Any]) -> tuple[int, int]:
        return len(refs), ray.get(refs[-1])

    assert ray.get(count.remote(refs)) == (10_000, 9_999)
    assert len(ray.get(ray.put(refs))) == 10_000


def test_ten_thousand_references_from_a_worker() -> None:
    inner = ray.get(put_some.remote(*range(10_000)))
    assert ray.get(inner) == list(range(10_000))
    one, owner = inner[5000].binary(), inner[5000].owner_address()
    del inner
    wait_for_condition(lambda: is_freed_at_owner(one, owner))


def test_the_owners_table_is_empty_after_a_storm_of_borrowing() -> None:
    @ray.remote
    def shuffle(refs: list[Any]) -> list[Any]:
        return [*refs[1:], refs[0], ray.put(len(refs))]

    refs: list[Any] = [ray.put(number) for number in range(5)]
    for _ in range(20):
        refs = ray.get(shuffle.remote(refs))[-8:]
    assert len(ray.get(refs)) == 8


# --- what a reference is


def test_references_compare_hash_and_show_themselves() -> None:
    one, other = ray.put(1), ray.put(1)
    same = ray.get(echo.remote([one]))[0]
    assert same == one and same is not one and hash(same) == hash(one)
    assert one != other and one != one.binary() and len({one, other, same}) == 2
    assert one.hex() == one.binary().hex() and one.hex() in repr(one)
    assert one.job_id().hex() == ray.get_runtime_context().get_job_id()
    assert not one.is_nil()


def test_references_can_be_subscripted_with_a_type() -> None:
    def annotated(reference: ray.ObjectRef[int]) -> ray.ObjectRef[list[str]]:
        return reference  # type: ignore[return-value]

    reference = ray.put(1)
    assert annotated(reference) is reference
    assert ray.ObjectRef[int] != ray.ObjectRef[str] and isinstance(reference, ray.ObjectRef)


def test_a_reference_is_ready_at_its_owner() -> None:
    """The tests' own question to owners can be answered both ways."""
    (inner,) = ray.get(put_some.remote(""))
    assert not is_freed_at_owner(inner.binary(), inner.owner_address())
    assert is_freed_at_owner(b"\0" * 28, inner.owner_address())


@pytest.mark.parametrize("fails_in", ["asyncio.run", "executor"])
def test_what_a_failed_task_held_goes_though_its_exception_keeps_its_frames(files: Files, fails_in: str) -> None:
    """Both make cycles of frames and exceptions, and a worker that rests would collect no garbage by itself."""

    @ray.remote(num_cpus=0.1)
    class Held:
        def pid(self) -> int:
            return os.getpid()

    @ray.remote(max_retries=0)
    def fail(journal: Any) -> None:
        held = Held.remote()
        journal.note(ray.get(held.pid.remote()))

        async def go_wrong() -> None:
            await held.pid.remote()
            raise ValueError("wrong")

        if fails_in == "asyncio.run":
            asyncio.run(go_wrong())
        else:
            with ThreadPoolExecutor(1) as executor:
                executor.submit(asyncio.run, go_wrong()).result()

    journal = files.journal()
    with pytest.raises(ValueError, match="wrong"):
        ray.get(fail.remote(journal))
    (pid,) = journal.lines()
    wait_for_condition(lambda: not is_alive(int(pid)))


def test_a_reference_of_a_cluster_that_was_left_can_be_pickled() -> None:
    done = run_driver(
        """
        import pickle
        ray.init(num_cpus=1, logging_level="ERROR")
        old = ray.put(1)
        ray.shutdown()
        ray.init(num_cpus=1, logging_level="ERROR")
        assert pickle.loads(pickle.dumps(old)) == old
        try:
            ray.get(ray.remote(lambda: ray.get(old)).remote())
        except ray.exceptions.OwnerDiedError:
            print("lost")
        """
    )
    assert (done.stdout, done.stderr) == ("lost\n", "")


def test_a_reference_knows_where_it_was_made_if_that_is_recorded() -> None:
    program = """
        ray.init(num_cpus=1, logging_level="ERROR")
        task = ray.remote(lambda: ray.put(2).call_site())
        print([ray.put(1).call_site(), task.remote().call_site(), ray.get(task.remote())])
        """
    done = run_driver(program, MINRAY_record_ref_creation_sites="1")
    put, task, inside = eval(done.stdout)
    assert inside.count("|") == 1 and ":<lambda>:" in inside  # and nothing of how a worker was started
    assert put.startswith("(put object) | ") and task.startswith("(task call) | ") and ":<module>:" in task
    assert run_driver(program).stdout == "['', '', '']\n"
