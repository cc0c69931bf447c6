"""A worker's main thread: user code and the loop in turn, and interrupts that hit only whom they mean.

They need a main thread of their own, so most tests run a small program in a subprocess.
"""

from __future__ import annotations

import asyncio
import importlib
import os
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import pytest

from minray.core_worker.execution import outgoing_stream
from minray.core_worker.fetching import results
from minray.core_worker.user_threads import actor_api, generator_reader, object_reader, port, user_api
from minray.platform.threads import main_thread
from minray.platform.threads.main_thread import MainThreadUserCode
from minray.values import object_ref
from tests.platform.main_thread_program import run_program

# --- Turns ---


def test_work_runs_in_the_main_thread_in_order() -> None:
    lines = run_program("""
        for number in range(3):
            code.run(lambda number=number: print(number, threading.current_thread() is threading.main_thread()),
                     lambda number=number: print("then", number, asyncio.get_running_loop() is loop))
        code.stop()
    """)
    thens = [line for line in lines if line.startswith("then")]
    assert thens == ["then 0 True", "then 1 True", "then 2 True"]
    assert [line for line in lines if line not in thens] == ["0 True", "1 True", "2 True", "over"]
    assert all(lines.index(f"then {number} True") > lines.index(f"{number} True") for number in range(3))


def test_work_that_comes_before_the_process_has_begun_waits_until_it_serves() -> None:
    begun, failed, *rest = run_program("""
        async def begin():
            for number in range(3):
                code.run(lambda number=number: print("work", number), lambda number=number: print("then", number))
                await asyncio.sleep(0.001)
            return "begun"

        async def fail():
            code.run(lambda: print("work"))
            await asyncio.sleep(0.001)
            raise KeyError("x")

        print(code.begin(begin()))
        try:
            code.begin(fail())
        except KeyError as error:
            print("failed", error)
        code.run(code.stop)
    """)
    assert (begun, failed) == ("begun", "failed 'x'")
    assert [line for line in rest if line.startswith("work")] == ["work 0", "work 1", "work 2", "work"]
    assert [line for line in rest if not line.startswith("work")] == ["then 0", "then 1", "then 2", "over"]


def test_the_loop_runs_while_user_code_does() -> None:
    """Code that blocks, and code that spins."""
    assert run_program("""
        def work(number):
            called = threading.Event()
            from_loop(loop.call_later, 0.01, called.set)
            while number % 2 and not called.is_set():
                pass
            called.wait()
            print(number, code._rounds)

        for number in range(4):
            code.run(lambda number=number: work(number))
        code.stop()
    """) == ["0 1", "1 2", "2 3", "3 4", "over"]


def test_user_code_that_waits_for_the_loop_does_not_wait_long() -> None:
    """Far less than the ticks of the relief, which would add up to seconds."""
    assert run_program("""
        def work():
            begun = time.monotonic()
            for _ in range(1000):
                parker = code.parker()
                code.post(parker.release)
                assert parker.wait(10)
            print("quick" if time.monotonic() - begun < 1.9 else "slow")

        code.run(work, code.stop)
    """) == ["quick", "over"]


def test_nothing_is_lost_between_the_two_threads_that_lead() -> None:
    """Work of all lengths, from the loop and from its own results, while other threads post."""
    assert run_program("""
        COUNT = 3000
        ended, posted = [], []

        def work(number):
            if number % 100 == 0:
                time.sleep(0.003)
            elif number % 7 == 0:
                parker = code.parker()
                code.post(parker.release)
                assert parker.wait(10)

        def then(number):
            ended.append(number)
            if number + 10 < COUNT:
                begin(number + 10)
            elif len(ended) == COUNT:
                started.set()

        def begin(number):
            code.run(lambda: work(number), lambda: then(number))

        def others():
            for number in range(COUNT):
                parker = code.parker()
                code.post(posted.append, number)
                code.post_later(parker.release)
                assert parker.wait(10)

        threads = [threading.Thread(target=others) for _ in range(2)]
        for thread in threads:
            thread.start()
        from_loop(lambda: [begin(number) for number in range(10)])
        threading.Thread(target=lambda: [*map(threading.Thread.join, threads), started.wait(), code.stop()]).start()
        code.serve()
        print(sorted(ended) == list(range(COUNT)), len(posted))
    """) == ["True 6000", "over"]


def test_a_relief_that_sleeps_is_woken_by_user_code() -> None:
    assert run_program("""
        def work():
            called = threading.Event()
            from_loop(loop.call_later, 0.01, called.set)
            print(called.wait(10))

        def wait_for_sleep():
            while not code._relief_sleeps:
                time.sleep(0.001)
            from_loop(code.run, work, code.stop)

        threading.Thread(target=wait_for_sleep).start()
    """) == ["True", "over"]


# --- Interrupts ---


@pytest.mark.parametrize("blocked_in", ["time.sleep(60)", "threading.Event().wait()", "code.parker().wait(None)",
                                        "os.read(os.pipe()[0], 1)", "[None for _ in iter(int, 1)]"])  # fmt: skip
def test_an_interrupt_reaches_code_that_blocks_or_spins(blocked_in: str) -> None:
    assert run_program(f"""
        def work():
            started.set()
            try:
                {blocked_in}
            except KeyboardInterrupt:
                print("interrupted")

        def interrupt():
            started.wait()
            from_loop(code.interrupt, lambda: threading.current_thread() is threading.main_thread())
            code.stop()

        code.run(work)
        threading.Thread(target=interrupt).start()
    """) == ["interrupted", "over"]


@pytest.mark.parametrize("post", ["post", "post_later"])
def test_an_interrupt_does_not_cut_a_post_short(post: str) -> None:
    """Work that does little but post is interrupted: what it began to post is heard, once and in order."""
    assert run_program(f"""
        def work(heard):
            number = 0
            from_loop(loop.call_later, 0.005, code.interrupt, lambda: True)
            try:
                while True:
                    number += 1
                    code.{post}(heard.append, number)
                    for _ in range(50):
                        pass
            except KeyboardInterrupt:
                code.{post}(lambda: print(heard in (list(range(1, number)), list(range(1, number + 1)))))

        for _ in range(5):
            code.run(lambda: work([]))
        code.run(lambda: None, lambda: code.post_later(code.stop))
    """) == ["True"] * 5 + ["over"]


def is_bad_moment_in(namespace: dict[str, object], path: str) -> bool:
    """Whether an interrupt waits for a frame of a file of that path, with these global names."""
    names = {**namespace, "frame_here": sys._getframe}
    exec(compile("frame = frame_here()", path, "exec"), names)
    return main_thread.is_bad_moment(names["frame"])  # type: ignore[arg-type]


def test_an_interrupt_is_put_off_in_minrays_own_files_only() -> None:
    """A program in a folder called minray may have a file of the name of one that counts references."""
    for module in (
        object_ref, actor_api, generator_reader, object_reader, outgoing_stream, port, results, user_api
    ):
        assert is_bad_moment_in(vars(module), str(module.__file__))
    assert not is_bad_moment_in({}, "/home/user/minray/values/object_ref.py")
    assert not is_bad_moment_in(vars(main_thread), str(main_thread.__file__))


def test_an_interrupt_that_does_not_apply_and_a_stray_one_do_nothing() -> None:
    assert run_program("""
        release = code.parker()

        def work():
            started.set()
            print("waited", release.wait(None))

        def interrupt():
            started.wait()
            asked = threading.Event()
            from_loop(code.interrupt, lambda: asked.set())
            asked.wait()
            os.kill(os.getpid(), signal.SIGINT)
            release.release()
            code.stop()

        code.run(work)
        threading.Thread(target=interrupt).start()
    """) == ["waited True", "over"]


def test_a_signal_that_ends_no_system_call_is_repeated() -> None:
    """As when it comes just before the call begins."""
    assert run_program("""
        real_kill, sent = signal.pthread_kill, []

        def kill(thread_id, number):
            sent.append(number)
            if len(sent) > 2:
                real_kill(thread_id, number)

        signal.pthread_kill = kill

        def work():
            started.set()
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                print("interrupted")

        def interrupt():
            started.wait()
            from_loop(code.interrupt, lambda: True)
            code.stop()

        code.run(work)
        threading.Thread(target=interrupt).start()
    """) == ["interrupted", "over"]


def test_a_task_with_its_own_signal_handler_is_interrupted_and_the_next_one_is_not() -> None:
    """A user's signal handler raises, or returns. It is called only while the task runs that has set it."""
    assert run_program("""
        current, heard = None, []

        def until_heard():
            while not heard:
                pass

        def work(number, handler):
            global current
            current = number
            signal.signal(signal.SIGINT, handler)
            from_loop(loop.call_later, 0.01, code.interrupt, lambda: current == number)
            try:
                until_heard()  # a loop's jump is not within the try around it, in Python 3.13
            except KeyboardInterrupt:
                print(number, "interrupted")
            current = None

        def other():
            until = time.monotonic() + 0.3
            while time.monotonic() < until:
                pass
            print("alone")

        code.run(lambda: work(1, signal.default_int_handler))
        code.run(other)
        code.run(lambda: work(2, lambda *_: heard.append(1)))
        code.run(other, lambda: code.post_later(code.stop))
    """) == ["1 interrupted", "alone", "alone", "over"]


def test_an_interrupt_while_the_main_thread_is_idle_does_nothing() -> None:
    assert run_program("""
        def interrupt():
            asked = threading.Event()
            from_loop(code.interrupt, lambda: asked.set())
            asked.wait()
            from_loop(code.run, lambda: print("still there"))
            code.stop()

        threading.Thread(target=interrupt).start()
    """) == ["still there", "over"]


# --- SIGTERM ---


def test_sigterm_ends_what_runs_and_then_the_process() -> None:
    assert run_program("""
        running = [True]

        def work():
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)
            except SystemExit as error:
                print(error)
            running.clear()

        code.end_on_signal(lambda: bool(running), lambda: print("ended"))
        code.run(work)
        code.run(lambda: print(signal.getsignal(signal.SIGTERM) == signal.SIG_DFL), code.stop)
    """) == ["this process was told to end (SIGTERM)", "ended", "True", "over"]


@pytest.mark.parametrize("handler", ["signal.SIG_DFL", "print"])
def test_sigterm_ends_a_process_that_rests(handler: str) -> None:
    """While the main thread leads, or only waits, because user code has a handler of its own."""
    assert run_program(f"""
        def end():
            print("ended by", threading.current_thread().name)
            code.stop()

        code.end_on_signal(lambda: False, end)
        kill = lambda: os.kill(os.getpid(), signal.SIGTERM)
        code.run(lambda: signal.signal(signal.SIGUSR1, {handler}), lambda: loop.call_later(0.05, kill))
    """) == ["ended by MainThread", "over"]


def test_sigterm_ends_a_forked_copy_as_any_process() -> None:
    assert run_program("""
        def work():
            pid = os.fork()
            if not pid:
                os.kill(os.getpid(), signal.SIGTERM)
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

        code.end_on_signal(lambda: True, lambda: print("ended"))
        code.run(work, code.stop)
    """) == ["-15", "over"]


def test_sigterm_ends_a_copy_that_is_being_forked() -> None:
    """Exceptions in callbacks of a fork are lost."""
    assert run_program("""
        def work():
            pid = os.fork()
            if not pid:
                os._exit(0)
            print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))

        os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGTERM))
        code.end_on_signal(lambda: True, lambda: print("ended"))
        code.run(work, code.stop)
    """) == ["-15", "over"]


# --- Signal handlers of user code ---


def test_a_handler_that_raises_after_its_task_hits_nobody() -> None:
    """The signal comes in the middle of a turn of the loop. When the handler is gone, the main thread leads again."""
    assert run_program("""
        import logging
        logged = threading.Event()
        logging.getLogger("minray.platform.threads.main_thread").warning = lambda *_, **__: logged.set()

        def handler(number, frame):
            raise LookupError("too late")

        def strike():
            print("led by", threading.current_thread().name)
            os.kill(os.getpid(), signal.SIGALRM)
            assert logged.wait(10)
            print("the turn goes on")
            code.run(lambda: signal.signal(signal.SIGALRM, signal.SIG_DFL), look_again)

        def look_again():
            if threading.current_thread() is not threading.main_thread():
                return loop.call_later(0.001, look_again)
            print("led by the main thread")
            code.stop()

        code.run(lambda: signal.signal(signal.SIGALRM, handler), lambda: loop.call_later(0.01, strike))
    """) == ["led by minray-relief", "the turn goes on", "led by the main thread", "over"]


def test_work_goes_on_while_user_code_has_a_handler() -> None:
    assert run_program("""
        before = signal.signal(signal.SIGUSR1, print)
        numbers = []

        def work(number):
            signal.signal(signal.SIGUSR1, print)
            numbers.append(number)

        def begin(number):
            if number < 200:
                code.run(lambda: work(number), lambda: begin(number + 1))
            else:
                print(numbers == list(range(200)), code._is_exposed)
                code.stop()

        begin(0)
    """) == ["True True", "over"]


# --- The environment ---


@pytest.fixture
def main_thread_code(monkeypatch: pytest.MonkeyPatch) -> Generator[MainThreadUserCode, None, None]:
    """With this process's environment put back afterwards."""
    handler, directory = signal.getsignal(signal.SIGINT), os.getcwd()
    monkeypatch.setattr(sys, "path", list(dict.fromkeys(sys.path)))
    monkeypatch.setenv("GREETING", "before")
    loop = asyncio.new_event_loop()
    yield MainThreadUserCode(loop)
    loop.close()
    signal.signal(signal.SIGINT, handler)
    os.chdir(directory)


@pytest.mark.parametrize("is_wanted", [True, False])
def test_garbage_is_collected_once_and_in_the_main_thread_after_failures(is_wanted: bool) -> None:
    lines = run_program(f"""
        import gc
        from minray.platform.threads import main_thread

        class Knot:
            def __init__(self):
                self.self = self

            def __del__(self):
                print("gone", threading.current_thread() is threading.main_thread())

        main_thread.COLLECT_S = code._collect_after_s = 0.05
        gc.collect()
        gc.callbacks.append(lambda phase, info: phase == "start" and info["generation"] == 2 and print("collects"))
        {"gc.enable()" if is_wanted else "gc.disable()"}
        Knot()
        code.run(code.collect_later)
        code.run(code.collect_later)
        code.run(lambda: from_loop(loop.call_later, 0.3, code.stop))
    """)
    assert lines[: lines.index("over")] == (["collects", "gone True"] if is_wanted else [])


def test_garbage_is_collected_beside_a_main_thread_that_is_in_user_code() -> None:
    """The code there may wait for what the garbage keeps."""
    lines = run_program("""
        import gc
        from minray.platform.threads import main_thread

        class Knot:
            def __init__(self):
                self.self = self

            def __del__(self):
                print("gone", threading.current_thread() is threading.main_thread())
                is_gone.set()

        is_gone = threading.Event()
        code._collect_after_s = 0.05
        gc.collect()
        gc.set_threshold(0)
        Knot()
        code.run(lambda: (code.collect_later(), print("waited", is_gone.wait(30)), code.stop()))
    """)
    assert lines == ["gone False", "waited True", "over"]


def test_garbage_that_somebody_waits_for_is_collected_at_once_however_long_the_last_collection_took() -> None:
    """A collection of 0.1 s puts the next one off for 2 s, after which a store that waits for memory refuses."""
    lines = run_program("""
        import gc

        class Knot:
            def __init__(self):
                self.self = self

            def __del__(self):
                is_gone.set()

        is_gone = threading.Event()
        code._collect_after_s = 1000.0
        gc.set_threshold(0)
        Knot()
        code.run(code.collect_later)
        code.run(lambda: (code.collect_later(at_once=True), print("waited", is_gone.wait(30)), code.stop()))
    """)
    assert lines == ["waited True", "over"]


def test_entering_an_environment(main_thread_code: MainThreadUserCode, tmp_path: Path) -> None:
    (tmp_path / "module_of_the_job.py").write_text("answer = 42\n")
    known = sys.path[-1]
    old_path = list(sys.path)
    of_driver = [str(tmp_path), known, "/second", "/second"]
    main_thread_code.enter_environment([], of_driver, str(tmp_path), {"GREETING": "hello"})
    assert sys.path == [str(tmp_path), "/second", *old_path]
    assert os.getcwd() == str(tmp_path.resolve())
    assert os.environ["GREETING"] == "hello"
    assert importlib.import_module("module_of_the_job").answer == 42
    del sys.modules["module_of_the_job"]


def test_what_leads_the_path_does_so_if_it_is_on_it_already(main_thread_code: MainThreadUserCode) -> None:
    known, old_path = sys.path[-1], list(sys.path)
    main_thread_code.enter_environment([known, "/modules"], ["/of-the-driver", known], None, {})
    assert sys.path == [known, "/modules", "/of-the-driver", *old_path[:-1]]


def test_variables_that_are_read_when_a_process_begins_have_their_effect() -> None:
    lines = run_program("""
        import importlib, sys
        importlib.invalidate_caches()  # imports what it needs, while that can be found
        os.environ["PYTHONPATH"] = "/before"
        sys.path[:] = ["/before", "/installed"]
        env_vars = {"PYTHONPATH": "/own:relative::${PYTHONPATH}", "TZ": "JST-9"}
        code.enter_environment(["/work"], ["/of-the-driver", "/before"], "/", env_vars)
        print(*sys.path)
        print(*time.tzname)
        code.stop()
    """)
    assert lines == ["/work /of-the-driver /own /relative /before /installed", "JST JST", "over"]


def test_a_missing_directory_changes_nothing(main_thread_code: MainThreadUserCode, tmp_path: Path) -> None:
    old_path = list(sys.path)
    with pytest.raises(FileNotFoundError, match="missing"):
        main_thread_code.enter_environment([], ["/new"], str(tmp_path / "missing"), {"GREETING": "hello"})
    assert sys.path == old_path and os.environ["GREETING"] == "before"


