"""Objects without memory on a real node: files that come and go, directories that users choose, and what a kill leaves."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import minray as ray
from minray.api.calls import objects_of_cluster
from minray.exceptions import ObjectLostError
from minray.platform.process.session import SPILL, live_sessions, sweep_sessions
from tests import leaks
from tests.helpers import wait_for_condition
from tests.real.support import run_driver, start_driver

STORE_BYTES = 8 << 20
WORDS = 1 << 16
"""Half a megabyte."""
COUNT = 3 * STORE_BYTES // (8 * WORDS)
INIT = {"object_store_memory": STORE_BYTES, "_system_config": {"min_spilling_size": 1 << 20}}

PUT_MANY = """
import numpy as np
import os
def put_many(count):
    return [ray.put(np.full(65536, number)) for number in range(count)]
def check(refs):
    for number, ref in enumerate(refs):
        value = ray.get(ref)
        assert (value == number).all()
"""


@ray.remote
def make(number: int) -> Any:
    return np.full(WORDS, number)


@ray.remote
def total(*arrays: Any) -> int:
    return sum(int(array.sum()) for array in arrays)


def spill_directory(context: Any) -> Path:
    return Path(context["session_dir"], SPILL, "0")


def files_are_gone(context: Any) -> bool:
    return not any(spill_directory(context).iterdir())


def test_three_times_as_much_as_the_store_has_comes_back_right(cluster: Any) -> None:
    refs = [ray.put(np.full(WORDS, number)) for number in range(COUNT)]
    written = list(spill_directory(cluster).iterdir())
    assert written and {path.stat().st_mode & 0o777 for path in written} == {0o600}
    for number, ref in [*enumerate(refs), *reversed(list(enumerate(refs)))]:
        value = ray.get(ref)
        assert (value == number).all()
    del refs, ref, value
    wait_for_condition(lambda: files_are_gone(cluster))


def test_tasks_make_and_take_more_than_the_store_has(cluster: Any) -> None:
    refs = [make.remote(number) for number in range(COUNT)]
    assert ray.get([total.remote(*refs[start : start + 4]) for start in range(0, COUNT, 4)]) == [
        WORDS * sum(range(start, start + 4)) for start in range(0, COUNT, 4)
    ]
    del refs
    wait_for_condition(lambda: files_are_gone(cluster))


def test_a_value_in_use_stays_while_all_others_are_spilled(cluster: Any) -> None:
    value = ray.get(ray.put(np.full(WORDS, 7)))
    refs = [ray.put(np.full(WORDS, number)) for number in range(COUNT)]
    assert (value == 7).all()
    del refs, value
    wait_for_condition(lambda: files_are_gone(cluster))


def test_g79_when_all_memory_is_in_use_there_is_memory_on_disk_and_it_is_given_back(cluster: Any) -> None:
    """An object of a task, and one larger than the store, which are read while all of the store is being read, too."""
    wait_for_condition(lambda: not fallback_used())
    values = [ray.get(ray.put(np.full(WORDS, number))) for number in range(STORE_BYTES // (8 * WORDS) - 2)]
    refs = [make.remote(number) for number in range(4)] + [ray.put(np.full(3 * STORE_BYTES, 4, np.uint8))]
    made = ray.get(refs)
    assert [int(value[-1]) for value in [*values, *made]] == [*range(len(values)), *range(4), 4]
    assert int(ray.get(total.remote(refs[-1]))) == 12 * STORE_BYTES
    assert fallback_used() >= 3 * STORE_BYTES and "of memory on disk" in ray.internal.memory_summary(stats_only=True)
    del made, refs, values
    wait_for_condition(lambda: not fallback_used())


def fallback_used() -> int:
    """Bytes of memory on disk."""
    found = objects_of_cluster(10)
    return sum(store.fallback_used for store in found.stores.values())


def test_damaged_and_missing_files_are_lost_objects(cluster: Any) -> None:
    refs = [ray.put(np.full(WORDS, number)) for number in range(COUNT)]
    for number, path in enumerate(sorted(spill_directory(cluster).iterdir())):
        if number % 2:
            path.unlink()
        else:
            path.write_bytes(path.read_bytes()[:-1] + b"?")
    lost = 0
    for number, ref in enumerate(refs):
        try:
            value = ray.get(ref)
            assert (value == number).all()
            del value
        except ObjectLostError:
            lost += 1
    assert lost > 0
    del refs, ref
    wait_for_condition(lambda: files_are_gone(cluster))


def test_a_full_disk_says_what_helps() -> None:
    result = run_driver(
        PUT_MANY
        + """
ray.init(num_cpus=1, object_store_memory=8 << 20, _system_config={"local_fs_capacity_threshold": 0.0})
try:
    put_many(48)
except ray.exceptions.OutOfDiskError as error:
    print(error)
"""
    )
    assert "fuller than 0 %" in result.stdout, result.stderr
    assert "object_spilling_directory" in result.stdout


def test_several_directories_take_turns_and_nothing_is_left_in_them(tmp_path: Path) -> None:
    places = [tmp_path / "one", tmp_path / "not" / "yet" / "there"]
    result = run_driver(
        PUT_MANY
        + """
ray.init(num_cpus=1, object_store_memory=8 << 20, object_spilling_directory=sys.argv[1],
         _system_config={"min_spilling_size": 1 << 20})
refs = put_many(48)
check(refs)
places = [os.path.join(place, own) for place in sys.argv[1].split(os.pathsep) for own in os.listdir(place)]
print([len(os.listdir(place)) > 2 for place in places], [oct(os.stat(place).st_mode) for place in places])
""",
        os.pathsep.join(map(str, places)),
    )
    assert result.stdout == "[True, True] ['0o40700', '0o40700']\n", result.stderr
    wait_for_condition(lambda: all(os.listdir(place) == [] for place in places))


def test_a_directory_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    result = run_driver("ray.init(object_spilling_directory=sys.argv[1])", str(tmp_path / "file"))
    assert f"RuntimeError: cannot spill objects to {tmp_path}/file" in result.stderr


def test_the_directory_is_for_starting_and_a_path(cluster: Any) -> None:
    program = "ray.init(sys.argv[1], object_spilling_directory='/tmp')"
    assert "ValueError: object_spilling_directory: only for a node" in run_driver(program, cluster["gcs_address"]).stderr
    assert "TypeError: object_spilling_directory must be a str" in run_driver("ray.init(object_spilling_directory=1)").stderr


@pytest.mark.parametrize("place", ["in the session", "elsewhere"])
def test_files_of_a_cluster_that_was_killed_are_swept(place: str, tmp_path: Path) -> None:
    driver = start_driver(
        PUT_MANY
        + """
directory = sys.argv[1] or None
context = ray.init(num_cpus=1, object_store_memory=8 << 20, object_spilling_directory=directory, log_to_driver=False)
refs = put_many(48)
print(context["session_dir"], flush=True)
sys.stdin.read()
""",
        str(tmp_path) if place == "elsewhere" else "",
    )
    assert driver.stdout is not None
    session_dir = driver.stdout.readline().strip()
    own = [process for process in leaks.processes(Path(session_dir)) if session_dir in str(process.cmdline())]
    victims = [psutil.Process(driver.pid), *own, *(child for zygote in own[:1] for child in zygote.children())]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for victim in victims:
            with suppress(psutil.NoSuchProcess):
                victim.send_signal(number)
    driver.communicate()
    folder = tmp_path if place == "elsewhere" else Path(session_dir, SPILL)
    assert leaks.files(folder)
    root = os.environ["MINRAY_TMPDIR"]
    wait_for_condition(lambda: session_dir not in live_sessions(root))
    assert session_dir in sweep_sessions(root)
    assert leaks.files(folder) == [] and os.listdir(tmp_path) == []


def test_a_raylet_that_is_killed_leaves_no_file(tmp_path: Path) -> None:
    result = run_driver(
        PUT_MANY
        + """
from minray.node import init as driver
from minray.api.calls import current_api
from tests.helpers import wait_for_condition
ray.init(num_cpus=1, object_store_memory=8 << 20, object_spilling_directory=sys.argv[1], log_to_driver=False)
refs = put_many(48)
assert os.listdir(sys.argv[1])
driver._connection.node.kill("raylet")
wait_for_condition(lambda: not os.listdir(sys.argv[1]))
print("gone")
""",
        str(tmp_path),
    )
    assert result.stdout == "gone\n", result.stderr
