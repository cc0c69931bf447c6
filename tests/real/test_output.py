"""Output of workers on the driver's terminal (programs as their users run them)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.real.support import run_driver

START = re.compile(r"^minray \S+ started a local cluster with 2 CPUs; session \S+\n$")


def lines_of(text: str) -> list[str]:
    """With process ids replaced."""
    return re.sub(r"pid=\d+", "pid=N", text).splitlines()


def test_a_clean_run_prints_one_line_at_the_start_and_none_at_the_end() -> None:
    done = run_driver(
        """
        ray.init(num_cpus=2)
        @ray.remote
        def f(x):
            return x
        assert ray.get([f.remote(x) for x in range(100)]) == list(range(100))
        held = f.remote(1)
        """
    )
    assert done.returncode == 0 and done.stdout == ""
    assert START.match(done.stderr), done.stderr


def test_without_logging_a_clean_run_prints_nothing() -> None:
    done = run_driver(
        """
        with ray.init(num_cpus=1, logging_level="ERROR"):
            assert ray.get(ray.put(1)) == 1
        """
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_lines_carry_the_tasks_name_and_pid_on_the_same_stream() -> None:
    done = run_driver(
        """
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote
        def f(x):
            print("out", x)
            print("err", x, file=sys.stderr)
            sys.stdout.write("in ")
            sys.stdout.write("parts\\n")
            import os
            os.system("echo from a child")
            os.write(1, b"raw\\n")
        @ray.remote
        def g():
            print("from", "g")
        ray.get(f.remote(1))
        ray.get(f.options(name="named\\n  ").remote(2))
        ray.get(g.remote())
        """
    )
    assert done.returncode == 0
    out, err = lines_of(done.stdout), lines_of(done.stderr)
    assert err == ["(f pid=N) err 1", "(named pid=N) err 2"]
    assert {"(f pid=N) out 1", "(f pid=N) in parts", "(named pid=N) out 2", "(g pid=N) from g"} <= set(out)
    assert any(line.endswith("from a child") for line in out) and any(line.endswith("raw") for line in out)


def test_what_does_not_pass_pythons_streams_is_not_shown_as_the_words_of_an_earlier_task() -> None:
    done = run_driver(
        """
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote
        def f():
            print("from f")
        @ray.remote
        def g():
            import os
            os.system("echo from a child of g")
            sys.stdout.buffer.write(b"bytes of g\\n")
            sys.stdout.flush()
            os.write(2, b"raw words of g\\n")
        ray.get(f.remote())
        ray.get(g.remote())
        """
    )
    lines = [re.sub(r"pid=\d+", "pid", line) for line in (done.stdout + done.stderr).splitlines()]
    shown = ["(f pid) from f", "(worker pid) from a child of g", "(worker pid) bytes of g", "(worker pid) raw words of g"]
    assert done.returncode == 0 and lines == shown


def test_what_tasks_log_is_shown_as_they_have_configured_it() -> None:
    """As in any Python program: warnings alone, until they call ``basicConfig``."""
    done = run_driver(
        """
        import logging
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote
        def plain():
            logging.getLogger("library").warning("a warning")
            logging.getLogger("library").info("not shown")
            logging.getLogger("minray.util").info("of minray")
        @ray.remote
        def configured():
            logging.basicConfig(level=logging.DEBUG, format="%(levelname)s %(message)s")
            logging.debug("shown")
            logging.getLogger("minray.util").info("of minray")
        ray.get(plain.remote())
        ray.get(configured.remote())
        """
    )
    assert done.returncode == 0 and done.stdout == ""
    lines = lines_of(done.stderr)
    own = [line for line in lines if line.endswith("INFO minray.util: of minray")]
    assert len(own) == 2 and set(lines) - set(own) == {"(plain pid=N) a warning", "(configured pid=N) DEBUG shown"}


def test_nothing_fails_in_silence() -> None:
    """Not what was forgotten, in the driver or in a task, nor an actor that is never called."""
    done = run_driver(
        """
        import logging, threading
        def fail_and_forget(where):
            said = threading.Event()
            handler = logging.Handler()
            handler.emit = lambda record: said.set()
            logging.getLogger("minray").addHandler(handler)
            fail.remote(where)
            assert said.wait(30)
        @ray.remote
        def fail(where):
            raise ValueError("forgotten in " + where)
        @ray.remote(num_cpus=0)
        class Actor:
            def __init__(self):
                raise ValueError("never called")
        ray.init(num_cpus=1, logging_level="ERROR")
        fail_and_forget("the driver")
        ray.get(ray.remote(num_cpus=0)(fail_and_forget).remote("a task"))
        actor = Actor.remote()
        from minray.util.state import list_actors
        while [actor.state for actor in list_actors()] != ["DEAD"]:
            pass
        """
    )
    assert (done.returncode, done.stdout) == (0, ""), done.stderr
    said = {line.rpartition("ValueError: ")[2] for line in done.stderr.splitlines() if "ValueError: " in line}
    assert said == {"forgotten in the driver", "forgotten in a task", "never called"}, done.stderr


def test_lines_of_an_actor_carry_what_it_says_of_itself() -> None:
    done = run_driver(
        """
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote
        class Shard:
            def __init__(self, number):
                self.number = number
                print("made")
            def __repr__(self):
                return f"Shard({self.number})"
            def work(self):
                print("works")
        shard = Shard.remote(7)
        ray.get([shard.work.remote(), shard.work.options(name="named").remote()])
        """
    )
    assert lines_of(done.stdout) == ["(Shard.__init__ pid=N) made", "(Shard(7).work pid=N) works", "(named pid=N) works"]


def test_a_line_without_an_end_is_its_tasks_alone() -> None:
    done = run_driver(
        """
        import asyncio
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote
        def progress(is_flushed):
            print("50% ...", end="", flush=is_flushed)
        @ray.remote
        def report():
            print("result is 7")
        @ray.remote
        class Calm:
            async def meet(self, number, others):
                print(f"{number}/", end="")
                self.there = getattr(self, "there", 0) + 1
                while self.there < others:
                    await asyncio.sleep(0)
                print(number)
                print("over", end="")
        for is_flushed in (False, True):
            ray.get(progress.remote(is_flushed))
            ray.get(report.remote())
        actor = Calm.options(max_concurrency=2).remote()
        ray.get([actor.meet.remote(number, 2) for number in range(2)])
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    lines = lines_of(done.stdout)
    assert lines[:4] == ["(progress pid=N) 50% ...", "(report pid=N) result is 7"] * 2
    meeting = "(Calm.meet pid=N)"
    assert sorted(lines[4:]) == [f"{meeting} 0/0", f"{meeting} 1/1", f"{meeting} over", f"{meeting} over"]


def test_a_line_that_a_call_has_begun_in_another_thread_ends_with_the_call() -> None:
    done = run_driver(
        """
        import asyncio
        from minray.api.calls import connected_api
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote
        class Writer:
            async def begin(self, number):
                await asyncio.to_thread(print, "begun", number, end="")
            async def left(self):
                return len(connected_api().port.execution.executor.output.unended)
        writer = Writer.remote()
        ray.get([writer.begin.remote(number) for number in range(3)])
        assert ray.get(writer.left.remote()) == 0
        """
    )
    assert done.returncode == 0, done.stderr
    assert sorted(lines_of(done.stdout)) == [f"(Writer.begin pid=N) begun {number}" for number in range(3)]


def test_lines_of_one_worker_come_in_order_and_all_of_them() -> None:
    done = run_driver(
        """
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote
        def f():
            for number in range(3000):
                print(number)
        ray.get(f.remote())
        """
    )
    assert [line.rpartition(" ")[2] for line in done.stdout.splitlines()] == [str(number) for number in range(3000)]


def test_lines_of_threads_do_not_mix() -> None:
    done = run_driver(
        """
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote(max_concurrency=4)
        class A:
            def talk(self, thread):
                sys.setswitchinterval(1e-6)
                for number in range(1000):
                    print(thread, number, flush=number % 2 == 0)
        a = A.remote()
        ray.get([a.talk.remote(thread) for thread in "abcd"])
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = [line.removeprefix("(A.talk pid=N) ") for line in lines_of(done.stdout)]
    assert sorted(said) == sorted(f"{thread} {number}" for thread in "abcd" for number in range(1000))


def test_what_many_workers_print_alike_is_shown_once_and_counted() -> None:
    done = run_driver(
        """
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote(num_cpus=0)
        class Actor:
            def work(self, number):
                print("a warning")
                print("number", number)
                print("number", number)
        actors = [Actor.remote() for _ in range(4)]
        ray.get([actor.work.remote(number) for number, actor in enumerate(actors)])
        """
    )
    out = lines_of(done.stdout)
    assert out.count("(Actor.work pid=N) a warning") == 1
    assert [line for line in out if "repeated" in line] == ["(repeated 3 more times across the cluster) a warning"]
    numbers = [f"(Actor.work pid=N) number {number}" for number in range(4) for _ in range(2)]
    assert sorted(line for line in out if "number" in line) == numbers


def test_de_duplication_can_be_switched_off() -> None:
    done = run_driver(
        """
        ray.init(num_cpus=1, logging_level="ERROR", _system_config={"log_deduplication_window_s": 0})
        @ray.remote
        def f():
            print("again")
        ray.get([f.remote() for _ in range(5)])
        """
    )
    assert lines_of(done.stdout) == ["(f pid=N) again"] * 5


def test_output_need_not_come_to_the_driver() -> None:
    done = run_driver(
        """
        context = ray.init(num_cpus=1, logging_level="ERROR", log_to_driver=False)
        @ray.remote
        def f():
            print("hidden")
        ray.get(f.remote())
        sys.stdout.write(context["session_dir"])
        """
    )
    assert "hidden" not in done.stderr and done.stdout.startswith("/") and "hidden" not in done.stdout


def test_output_is_kept_in_the_sessions_logs() -> None:
    done = run_driver(
        """
        import pathlib
        context = ray.init(num_cpus=1, logging_level="ERROR", log_to_driver=False)
        @ray.remote
        def f():
            print("for the record")
            print("trouble", file=sys.stderr)
        ray.get(f.remote())
        ray.shutdown()
        logs = pathlib.Path(context["session_dir"], "logs")
        for path in sorted(logs.glob("worker-*")):
            for line in path.read_text().split("\\n"):
                if line and not line.startswith("\\x1e"):  # whose lines they are
                    print(path.suffix, line)
        """
    )
    assert done.stdout.splitlines() == [".err trouble", ".out for the record"]


def test_the_last_words_of_a_worker_that_dies_are_shown() -> None:
    done = run_driver(
        """
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote(max_retries=0)
        def f():
            import os
            print("last words", flush=True)
            os._exit(1)
        try:
            ray.get(f.remote())
        except ray.exceptions.WorkerCrashedError:
            pass
        """
    )
    assert lines_of(done.stdout) == ["(f pid=N) last words"]


@pytest.mark.parametrize("text", ["\\x1e strange", "ü 漢 🙂", "a" * 100_000, "\\udcff"])
def test_strange_lines_come_through_or_do_no_harm(text: str) -> None:
    done = run_driver(
        f"""
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote
        def f():
            try:
                print("{text}")
            except UnicodeEncodeError:
                print("not encodable")
            print("the end")
        ray.get(f.remote())
        """
    )
    assert done.returncode == 0 and lines_of(done.stdout)[-1] == "(f pid=N) the end"


FAILING = """\
import minray as ray

ray.init(num_cpus=1, logging_level="ERROR")

@ray.remote
def divide(a, b):
    return a / b

ray.get(divide.remote(1, 0))
"""


def test_a_driver_that_fails_shows_the_tasks_traceback_and_ends(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(FAILING)
    done = run_driver("import runpy; runpy.run_path(sys.argv[1], run_name='__main__')", str(script))
    assert done.returncode == 1
    assert all(words in done.stderr for words in ("ZeroDivisionError", "task divide failed", "return a / b"))


def test_tqdm_and_progress_lines_without_newlines_do_not_disturb() -> None:
    done = run_driver(
        """
        ray.init(num_cpus=1, logging_level="ERROR")
        @ray.remote
        def f():
            for number in range(3):
                print(f"\\rstep {number}", end="", flush=True)
            print()
        ray.get(f.remote())
        """
    )
    assert done.returncode == 0 and "step 2" in done.stdout
