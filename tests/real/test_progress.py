"""``minray.progress`` around references, and ``minray.experimental.tqdm_ray`` in the driver and in tasks."""

from __future__ import annotations

import io
import signal
import sys
import threading
import traceback
from typing import Any

import pytest

import minray as ray
from minray.experimental import tqdm_ray
from tests.helpers import wait_for_condition
from tests.real.support import ON_RAY, Files, echo, hold, run_driver

pytestmark = [pytest.mark.usefixtures("cluster"), pytest.mark.skipif(ON_RAY, reason="Ray has no progress of its own")]


@ray.remote(max_retries=0)
def refuse() -> None:
    raise ValueError("no")


def last(stream: io.StringIO) -> str:
    return stream.getvalue().splitlines()[-1]


def test_references_come_as_they_become_ready_and_are_counted(files: Files) -> None:
    started, release = files.signal("started"), files.signal("release")
    slow = hold.remote(started, release, "slow")
    stream = io.StringIO()
    progress = ray.progress([slow, refuse.remote(), echo.remote("quick")], desc="three", file=stream)
    seen = []
    for ref in progress:
        try:
            seen.append(ray.get(ref))
        except ValueError as error:
            seen.append(type(error).__name__)
        if len(seen) == 2:
            assert repr(progress) == "Progress(1 finished, 1 failed, 1 pending)"
            release.set()
    assert sorted(seen[:2]) == ["RayTaskError(ValueError)", "quick"] and seen[2:] == ["slow"]
    assert (progress.finished, progress.failed, progress.pending, len(progress)) == (2, 1, 0, 3)
    assert last(stream).startswith("three: 100%|") and "3/3 [" in last(stream) and "1 failed]" in last(stream)


def test_nothing_to_wait_for_one_reference_and_large_values() -> None:
    stream = io.StringIO()
    assert list(ray.progress([], file=stream)) == [] and "0/0" in last(stream)
    ref = ray.put(bytes(1_000_000))
    assert ray.progress(ref, file=stream).wait().finished == 1
    assert ray.progress([ref], file=stream, disable=None).wait().finished == 1
    count = len(stream.getvalue())
    assert ray.progress([ref], file=stream, disable=True).wait().finished == 1 and len(stream.getvalue()) == count


def test_what_is_not_ready_in_time_is_counted(files: Files) -> None:
    slow = hold.remote(files.signal("started"), files.signal("release"))
    progress = ray.progress([slow, echo.remote(1)], timeout=0.2, disable=True)
    with pytest.raises(ray.exceptions.GetTimeoutError, match=f"1 of 2 references are not ready, such as {slow.hex()}"):
        progress.wait()
    with pytest.raises(RuntimeError, match="iterated over before"):
        list(progress)
    files.signal("release").set()
    ray.get(slow)


def test_leaving_the_loop_ends_the_bar_and_cancels_nothing(files: Files) -> None:
    slow, stream = hold.remote(files.signal("started"), files.signal("release"), "done"), io.StringIO()
    loop = iter(ray.progress([slow, echo.remote(1)], file=stream))
    assert ray.get(next(loop)) == 1
    loop.close()
    assert "1/2 [" in last(stream)
    files.signal("release").set()
    assert ray.get(slow) == "done"


@pytest.mark.parametrize(
    ("arguments", "error", "text"),
    [
        ((3,), TypeError, "a list of ObjectRefs, not an int"),
        (("refs",), TypeError, "a list of ObjectRefs, not a str"),
        (([1],), TypeError, "the list has an int: 1"),
        (([ray.ObjectRef.from_random()],), TypeError, "the list has an ObjectName"),
        (([], 5), TypeError, "positional"),
    ],
)
def test_arguments_that_are_none(arguments: tuple[Any, ...], error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        ray.progress(*arguments)


def test_options_that_are_none() -> None:
    ref = ray.put(1)
    with pytest.raises(ValueError, match="each reference once, but 2 of 3 are repetitions"):
        ray.progress([ref, ref, ref])
    for options, error, text in (
        ({"desc": 1}, TypeError, "desc must be a str, not an int"),
        ({"timeout": "soon"}, TypeError, "timeout must be a number"),
        ({"timeout": -1}, ValueError, "must not be negative, but is -1"),
        ({"timeout": float("nan")}, ValueError, "not a number"),
        ({"file": "log.txt"}, TypeError, "file must be a text stream or None, not a str"),
    ):
        with pytest.raises(error, match=text):
            ray.progress([ref], **options)


def test_tqdm_counts_items_and_steps(capsys: pytest.CaptureFixture[str]) -> None:
    bar = tqdm_ray.tqdm([1, 2, 3], desc="load", unit="rows")
    assert list(bar) == [1, 2, 3] and (bar.n, bar.total) == (3, 3)
    assert capsys.readouterr().err.splitlines()[-1].startswith("load: 100%|")
    bar = tqdm_ray.tqdm(total=9, flush_interval_s=0)
    bar.set_description("steps")
    bar.update(2)
    bar.update(0.5)
    bar.close()
    bar.close()
    bar.refresh()
    assert "steps:  28%" in capsys.readouterr().err and bar.n == 2.5
    tqdm_ray.safe_print("a line", file=sys.stderr)
    assert capsys.readouterr().err == "a line\n"


def test_tqdm_refuses_what_it_cannot_count() -> None:
    for make, error, text in (
        (lambda: tqdm_ray.tqdm(3), TypeError, "an iterable, not an int"),
        (lambda: tqdm_ray.tqdm(total="many"), TypeError, "total must be a number of steps or None, not a str"),
        (lambda: tqdm_ray.tqdm().update("one"), TypeError, "a number of steps, not a str"),
        (lambda: list(tqdm_ray.tqdm()), ValueError, "without an iterable"),
    ):
        with pytest.raises(error, match=text):
            make()


def test_bars_of_tasks_are_shown_at_the_driver_beside_their_lines(files: Files) -> None:
    done = run_driver(
        """
        from minray.experimental.tqdm_ray import tqdm
        ray.init("local", num_cpus=1, logging_level="ERROR")

        @ray.remote
        def load():
            print("begun", end="", file=sys.stderr, flush=True)
            for _ in tqdm(range(3), desc="load <rows>", unit="rows"):
                pass
            print("a line")
            print("\\x1d{no bar", file=sys.stderr)
            ray.progress([ray.put(1)], desc="inner").wait()
            tqdm(total=5, desc="never closed").update()
        ray.get(load.remote())
        ray.shutdown()
        """
    )
    lines = [line.partition(") ")[2] for line in done.stderr.strip("\n").split("\n")]
    assert done.returncode == 0 and done.stdout.endswith(") a line\n")
    assert lines[0] == "begun" and lines[1].startswith("load <rows>:  33%|") and lines[2].startswith("load <rows>: 100%|")
    assert "3/3 [00:00, " in lines[2]
    assert [line.partition("|")[0] for line in lines[3:]] == [
        "\x1d{no bar", "inner:   0%", "inner: 100%", "never closed:  20%", "never closed:  20%",
    ]  # fmt: skip


def test_a_reference_of_another_process_is_counted() -> None:
    @ray.remote
    def lend() -> list[Any]:
        return [ray.put(1), refuse.remote()]

    progress = ray.progress(ray.get(lend.remote()), disable=True).wait()
    assert (progress.finished, progress.failed) == (1, 1)


def test_an_interrupt_ends_the_loop_and_cancels_nothing(files: Files) -> None:
    slow = hold.remote(files.signal("started"), files.signal("release"), "done")
    main, stream = threading.get_ident(), io.StringIO()

    def is_waiting() -> bool:
        return any(entry.name == "_look" for entry in traceback.extract_stack(sys._current_frames()[main]))

    def interrupt() -> None:
        wait_for_condition(is_waiting)
        signal.pthread_kill(main, signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        ray.progress([slow], file=stream).wait()
    thread.join()
    assert "0/1 [" in last(stream)
    files.signal("release").set()
    assert ray.get(slow) == "done"
