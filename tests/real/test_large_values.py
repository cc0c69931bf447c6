"""Values in shared memory: no copies, read-only, aligned, valid as long as somebody looks at them (G13, G58-G61, G76)."""

from __future__ import annotations

import gc
import os
import signal
import textwrap
import threading
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import minray as ray
from minray.common.config import store_endpoint
from minray.exceptions import ObjectStoreFullError
from tests.helpers import wait_for_condition
from tests.real.support import ON_RAY, Files, Signal, core, echo, run_driver, start_driver

pytestmark = pytest.mark.usefixtures("cluster")
STORE_BYTES = 64 << 20
INIT = {
    "object_store_memory": STORE_BYTES,
    "_system_config": {"automatic_object_spilling_enabled": False, "local_gc_min_interval_s": 0.2, "copy_threads": 3},
}
MEGABYTE = 1 << 20


HAS_ONE_KIND = ON_RAY or os.environ.get("MINRAY_TRANSPORT") == "local"
"""Whether the setting has no effect: on Ray, and inside one process."""


@pytest.fixture(scope="module", params=["memfd"] if HAS_ONE_KIND else ["memfd", "shared_memory"])
def arena(request: pytest.FixtureRequest) -> Iterator[str]:
    """The kind of the node's memory, also of the clusters that tests start."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MINRAY_ARENA", request.param)
        yield request.param


def memory() -> memoryview:
    """This process's mapping of its node's memory."""
    worker = core()
    view: memoryview = worker.platform.memory.attach(store_endpoint(worker.config.socket_dir, worker.config.node_id))
    return view


def lies_in_arena(array: Any) -> bool:
    begin = np.frombuffer(memory(), np.uint8).ctypes.data
    return bool(begin <= array.ctypes.data and array.ctypes.data + array.nbytes <= begin + STORE_BYTES)


def store_is_empty() -> bool:
    """A value that needs nearly all of the store finds room at once, or after what was dropped has been freed."""
    try:
        ray.put(np.zeros(STORE_BYTES - MEGABYTE, np.uint8))
    except ObjectStoreFullError:
        return False
    return True


@ray.remote
def make(size: int = MEGABYTE, value: int = 1) -> Any:
    return np.full(size, value, np.uint8)


@ray.remote
def add_up(array: Any) -> int:
    return int(array.sum())


# --- where values are


def test_all_bytes_of_a_value_that_several_threads_copy_arrive() -> None:
    array = np.random.default_rng(0).integers(0, 1 << 60, (STORE_BYTES - 2 * MEGABYTE) // 8)
    assert np.array_equal(ray.get(ray.put(array)), array)


@pytest.mark.parametrize("way", ["put", "returned", "passed through"])
def test_g13_g76_an_array_is_read_where_it_lies(way: str) -> None:
    original = np.arange(MEGABYTE, dtype=np.int32)
    if way == "put":
        ref = ray.put(original)
    else:
        ref = ray.remote(lambda: np.arange(MEGABYTE, dtype=np.int32)).remote()
        ref = echo.remote(ref) if way == "passed through" else ref
    array, again = ray.get([ref, ref])
    assert np.array_equal(array, original)
    assert lies_in_arena(array) and array.ctypes.data % 64 == 0 and array.ctypes.data == again.ctypes.data
    assert not array.flags.writeable
    with pytest.raises(ValueError):
        array[0] = 1
    with pytest.raises(ValueError):
        array.flags.writeable = True


def test_a_value_is_copied_once_when_it_is_put_and_never_when_it_is_read() -> None:
    arrays = [np.zeros(8 * MEGABYTE, np.uint8), np.ones((100, 10_000))]
    ray.get(ray.put(arrays[1]))
    tracemalloc.start()
    try:
        values = ray.get([ray.put(arrays), echo.remote(arrays[0])])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < MEGABYTE
    assert values[0][1].sum() == 1_000_000 and len(values[1]) == 8 * MEGABYTE


def test_all_processes_of_a_node_read_the_same_memory() -> None:
    @ray.remote
    def where(array: Any) -> int:
        return int(array.ctypes.data - np.frombuffer(memory(), np.uint8).ctypes.data)

    ref = ray.put(np.zeros(MEGABYTE, np.uint8))
    here = ray.get(ref).ctypes.data - np.frombuffer(memory(), np.uint8).ctypes.data
    assert set(ray.get([where.remote(ref) for _ in range(4)])) == {here}


# --- kinds of values


@pytest.mark.parametrize(
    "value",
    [
        b"x" * MEGABYTE,
        bytearray(MEGABYTE),
        "text" * MEGABYTE,
        list(range(100_000)),
        {"key": b"y" * MEGABYTE, "other": [1, (2, 3)]},
        (bytearray(200_000), bytes(200_000), memoryview(bytes(200_000)).tobytes()),
    ],
    ids=["bytes", "bytearray", "text", "list", "dict", "several"],
)
def test_g76_values_of_all_kinds_may_be_large(value: Any) -> None:
    assert ray.get(ray.put(value)) == value
    assert ray.get(echo.remote(value)) == value
    assert ray.get(echo.remote(ray.put(value))) == value


def test_many_small_arrays_and_a_large_one_in_one_value() -> None:
    value = [np.full(10, number) for number in range(1000)] + [np.arange(MEGABYTE)]
    back = ray.get(echo.remote(value))
    assert all(np.array_equal(one, other) for one, other in zip(value, back, strict=True))
    assert not any(array.flags.writeable for array in back) and lies_in_arena(back[-1])
    assert all(array.ctypes.data % 16 == 0 for array in back)


def test_arrays_of_other_shapes() -> None:
    values = [
        np.asfortranarray(np.arange(300_000, dtype=np.float64).reshape(300, 1000)),
        np.arange(400_000)[::2],
        np.zeros((0, 5)),
        np.array(["a" * 100_000, "b"]),
        np.rec.array([(1, 2.0)] * 50_000, dtype=[("x", "i4"), ("y", "f8")]),
        np.arange(200_000, dtype=">i4"),
    ]
    for value, back in zip(values, ray.get([ray.put(value) for value in values]), strict=True):
        assert np.array_equal(value, back) and value.dtype == back.dtype


@pytest.mark.parametrize("library", ["pandas", "pyarrow"])
def test_tables_of_other_libraries_are_read_where_they_lie(library: str) -> None:
    """Both put their columns out of band, as any buffer of pickle 5."""
    module = pytest.importorskip(library)
    if library == "pandas":
        frame = module.DataFrame({"a": np.arange(MEGABYTE), "b": np.ones(MEGABYTE)})
        back = ray.get(echo.remote(frame))
        assert back.equals(frame) and lies_in_arena(back["a"].to_numpy())
    else:
        table = module.table({"a": np.arange(MEGABYTE)})
        back = ray.get(echo.remote(table))
        assert back.equals(table) and lies_in_arena(back["a"].chunk(0).to_numpy())


def test_g60_references_inside_a_large_value() -> None:
    inner = ray.put(np.full(MEGABYTE, 5, np.uint8))
    outer = ray.put([b"x" * MEGABYTE, inner, echo.remote("small")])
    del inner
    _, large, small = ray.get(echo.remote(outer))
    del outer
    assert ray.get(add_up.remote(large)) == 5 * MEGABYTE and ray.get(small) == "small"


def test_large_arguments_are_put_and_large_puts_inside_tasks_are_owned_there() -> None:
    @ray.remote
    def put_inside(array: Any, *, factor: Any) -> Any:
        return [ray.put(array * factor[0]), os.getpid()]

    array = np.ones(MEGABYTE, np.uint8)
    ref, pid = ray.get(put_inside.remote(array, factor=np.full(MEGABYTE, 3, np.uint8)))
    assert pid != os.getpid() and ref.owner_address().worker_id != core().address.worker_id
    assert ray.get(add_up.remote(ref)) == 3 * MEGABYTE


def test_several_large_results() -> None:
    @ray.remote(num_returns=3)
    def three() -> Any:
        return np.ones(MEGABYTE, np.uint8), b"small", np.full(MEGABYTE, 2, np.uint8)

    first, small, last = ray.get(three.remote())
    assert (first[0], small, last[-1]) == (1, b"small", 2)


# --- how long memory is kept


def test_g61_g59_an_array_outlives_its_reference_and_then_its_memory_is_free() -> None:
    ref = make.remote(48 * MEGABYTE, 7)
    part = ray.get(ref)[MEGABYTE : MEGABYTE + 10]
    del ref
    assert not store_is_empty()
    assert part.tolist() == [7] * 10
    del part
    gc.collect()
    wait_for_condition(store_is_empty, 30)


def test_g59_a_store_that_is_filled_many_times_over() -> None:
    for number in range(20):
        made = [make.remote(8 * MEGABYTE, number), ray.put(np.full(8 * MEGABYTE, number, np.uint8))]
        assert ray.get([add_up.remote(ref) for ref in made]) == [8 * MEGABYTE * number] * 2


def test_g79_a_full_store_says_so_and_goes_on() -> None:
    wait_for_condition(store_is_empty, 30)  # what is left of other tests may lie in the middle
    held = [ray.get(ray.put(np.zeros(20 * MEGABYTE, np.uint8))) for _ in range(3)]
    with pytest.raises(ObjectStoreFullError, match="largest"):
        ray.put(np.zeros(20 * MEGABYTE, np.uint8))
    with pytest.raises(ObjectStoreFullError):
        ray.get(make.remote(20 * MEGABYTE))
    del held
    wait_for_condition(store_is_empty, 30)


def put_in_a_cycle() -> None:
    """Fill most of the store with what only unreachable garbage refers to."""
    gc.set_threshold(0)
    cycle: list[Any] = [ray.put(np.zeros(40 * MEGABYTE, np.uint8))]
    cycle.append(cycle)


def put_more() -> int:
    return len(ray.get(ray.put(np.zeros(40 * MEGABYTE, np.uint8))))


@ray.remote(num_cpus=0)
class Hoarder:
    def hoard(self) -> None:
        put_in_a_cycle()


@ray.remote
def hoard_and_put_more() -> int:
    put_in_a_cycle()
    return put_more()


HOARDING_DRIVER = """
    import gc
    gc.set_threshold(0)
    cycle = [ray.put(np.zeros(40 << 20, np.uint8))]
    cycle.append(cycle)
    del cycle
    print("hoards", flush=True)
    sys.stdin.read()
"""


@pytest.mark.parametrize("hoarder", ["an actor", "another driver", "this driver", "the task itself"])
def test_memory_that_only_garbage_keeps_makes_room_wherever_the_garbage_is(node: Any, hoarder: str) -> None:
    """All processes collect when a value waits for memory, those too that rest, or wait themselves."""
    wait_for_condition(store_is_empty, 30)
    threshold = gc.get_threshold()
    try:
        if hoarder == "the task itself":
            assert ray.get(hoard_and_put_more.remote()) == 40 * MEGABYTE
        elif hoarder == "an actor":
            actor = Hoarder.remote()
            ray.get(actor.hoard.remote())
            assert put_more() == 40 * MEGABYTE
        elif hoarder == "this driver":
            put_in_a_cycle()
            assert put_more() == 40 * MEGABYTE
        else:
            driver = start_driver(program(HOARDING_DRIVER, address=node.address_info["address"]))
            assert driver.stdout is not None and driver.stdout.readline() == "hoards\n"
            try:
                assert put_more() == 40 * MEGABYTE
            finally:
                driver.communicate()
    finally:
        gc.set_threshold(*threshold)


# --- many at once


def test_threads_that_put_and_get_at_once() -> None:
    wrong: list[Any] = []

    def work(number: int) -> None:
        for step in range(20):
            value = 10 * number + step % 10
            array = ray.get(ray.put(np.full(300_000, value, np.uint8)))
            if array.min() != value or array.max() != value:
                wrong.append((number, step))

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_thousands_of_large_values_in_one_get() -> None:
    refs = [ray.put(np.full(10_000, number)) for number in range(500)] * 2
    assert [int(array[-1]) for array in ray.get(refs)] == list(range(500)) * 2


# --- processes that are killed


@ray.remote(max_retries=0)
def hold_view(refs: list[Any], started: Signal, release: Signal) -> int:
    array = ray.get(refs[0])
    Path(started.path).write_text(str(os.getpid()))
    release.wait()
    return int(array[0])


def test_g61_memory_that_a_killed_worker_was_reading_is_free(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    ref = ray.put(np.ones(48 * MEGABYTE, np.uint8))
    holding = hold_view.remote([ref], started, release)
    started.wait()
    wait_for_condition(lambda: Path(started.path).read_text())
    del ref
    os.kill(int(Path(started.path).read_text()), signal.SIGKILL)
    with pytest.raises(ray.exceptions.WorkerCrashedError):
        ray.get(holding)
    wait_for_condition(store_is_empty, 30)


@pytest.mark.parametrize("retries", [0, 3])
def test_g16_memory_that_a_killed_worker_was_writing_is_free(files: Files, retries: int) -> None:
    """The worker dies while it serialises its second result, when the first one lies in the store already."""
    journal = files.journal()

    @ray.remote(max_retries=retries, num_returns=2)
    def two() -> Any:
        attempt = journal.note()
        return np.full(20 * MEGABYTE, attempt, np.uint8), DiesInPickle(attempt)

    first, second = two.remote()
    if retries:
        array, attempt = ray.get([first, second])
        assert (array[0], attempt) == (2, 2)
        del array
    else:
        with pytest.raises(ray.exceptions.WorkerCrashedError):
            ray.get(first)
    del first, second
    wait_for_condition(store_is_empty, 30)


class DiesInPickle:
    """Becomes its number; the first one takes its process away when it is looked at."""

    def __init__(self, attempt: int) -> None:
        self.attempt = attempt

    def __reduce__(self) -> Any:
        if self.attempt == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return int, (self.attempt,)


# --- drivers

DRIVER = """
    import gc, os
    from pathlib import Path
    import numpy as np
    from tests.helpers import wait_for_condition
    ray.init(**{arguments})
"""


def program(body: str, **arguments: Any) -> str:
    return textwrap.dedent(DRIVER).format(arguments=arguments) + textwrap.dedent(body)


def test_g61_arrays_outlive_shutdown(node: Any) -> None:
    body = """
        @ray.remote
        def make():
            return np.full(1 << 20, 7, np.uint8)

        array, put = ray.get([make.remote(), ray.put(np.full(1 << 20, 8, np.uint8))])
        ray.shutdown()
        assert array.min() == array.max() == 7 and put.min() == put.max() == 8
        del array
        gc.collect()
        ray.init(num_cpus=1)
        other = ray.get(ray.put(np.full(1 << 20, 9, np.uint8)))
        assert put.min() == put.max() == 8 and other[0] == 9
        ray.shutdown()
        print("fine")
    """
    done = run_driver(program(body, num_cpus=1))
    assert (done.stdout, done.returncode) == ("fine\n", 0) and "Exception" not in done.stderr, done.stderr


def test_nothing_is_left_of_a_cluster_in_its_driver(node: Any) -> None:
    """No descriptors, mappings and objects of minray, however often it connects, when no array is looked at any more."""
    body = """
        identity = ray.remote(lambda value: value)

        @ray.remote
        class Actor:
            pass

        def left():
            gc.collect()
            lines = Path("/proc/self/maps").read_text().splitlines()
            maps = [line for line in lines if "memfd:minray" in line or "/dev/shm/minray-" in line]
            cores = [thing for thing in gc.get_objects() if type(thing).__name__ == "CoreWorker"]
            return len(os.listdir("/proc/self/fd")), len(maps), len(cores)

        def use():
            ray.get(identity.remote(ray.put(np.ones(1 << 20))))
            ray.get(Actor.remote().__ray_ready__.remote())
            ray.shutdown()
            wait_for_condition(lambda: left()[2] == 0)  # timers of a connection may outlast it by a second

        use()
        before = left()
        for _ in range(3):
            ray.init(num_cpus=1)
            use()
        assert left() == before, (left(), before)
        print("fine")
    """
    done = run_driver(program(body, num_cpus=1))
    assert (done.stdout, done.returncode) == ("fine\n", 0) and "Exception" not in done.stderr, done.stderr


def test_g62_objects_of_other_drivers_go_with_them(node: Any) -> None:
    """One ends as it should and one is killed; this driver's own objects stay."""
    mine = ray.put(np.full(MEGABYTE, 3, np.uint8))
    body = """
        held = ray.put(np.ones(20 << 20, np.uint8))
        view = ray.get(held)
        print("holds", flush=True)
        sys.stdin.read()
    """
    address = {"address": node.address_info["address"]}
    drivers = [start_driver(program(body, **address)) for _ in range(2)]
    try:
        for driver in drivers:
            assert driver.stdout is not None and driver.stdout.readline() == "holds\n"
        with pytest.raises(ObjectStoreFullError):
            ray.put(np.zeros(30 * MEGABYTE, np.uint8))
        drivers[0].kill()
    finally:
        for driver in drivers:
            driver.communicate()

    def is_free() -> bool:
        try:
            ray.put(np.zeros(50 * MEGABYTE, np.uint8))
        except ObjectStoreFullError:
            return False
        return True

    wait_for_condition(is_free, 30)
    assert ray.get(mine).max() == 3
