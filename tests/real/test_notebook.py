"""Lines of tasks in a notebook: each belongs to the cell that submitted its task, and is there when the cell ends.

The program has a stand-in for IPython: a shell that calls its listeners before and after each cell. Its standard output,
like that of a kernel, finds the cell of a piece of text in a context variable.
"""

from __future__ import annotations

from tests.real.support import run_driver

SHELL = """
        import contextvars, types
        cell = contextvars.ContextVar("cell")

        class Output:
            def __init__(self):
                self.pieces = []
            def write(self, text):
                self.pieces.append((cell.get("no cell"), text))
            def flush(self):
                pass

        class Events:
            def __init__(self):
                self.callbacks = {"pre_run_cell": [], "post_run_cell": []}
            def register(self, event, callback):
                self.callbacks[event].append(callback)
            def unregister(self, event, callback):
                self.callbacks[event].remove(callback)
            def trigger(self, event):
                for callback in list(self.callbacks[event]):
                    callback(None)

        metadata = {}
        shell = types.SimpleNamespace(events=Events(), get_parent=lambda: {"metadata": metadata})
        sys.modules["IPython"] = types.SimpleNamespace(get_ipython=lambda: shell)
        terminal, sys.stdout = sys.stdout, Output()

        def run(name, work):
            cell.set(name)
            shell.events.trigger("pre_run_cell")
            work()
            shell.events.trigger("post_run_cell")
            lines = [(where, line) for where, text in sys.stdout.pieces for line in text.splitlines()]
            print(name, [(where, line.split(") ")[1]) for where, line in lines if line], file=terminal, flush=True)
            sys.stdout.pieces.clear()

        @ray.remote
        def f(x):
            print("task", x)
            return x

        @ray.remote
        class Late:
            def __init__(self):
                import threading
                self.may_print = threading.Event()
            def print(self, x):
                self.may_print.wait()
                print("late", x)
            def let_go(self):
                self.may_print.set()
                print("let go")
            def nested(self):
                return ray.get(f.remote("nested"))
"""


def test_lines_stand_below_the_cell_that_runs_and_none_comes_late() -> None:
    done = run_driver(
        SHELL
        + """
        run("one", lambda: ray.init(num_cpus=1, logging_level="ERROR"))
        run("two", lambda: ray.get(f.remote(2)))
        run("three", lambda: ray.get([f.remote(3), f.remote(4)]))
        run("four", ray.shutdown)
        print(shell.events.callbacks, file=terminal, flush=True)
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == [
        "one []",
        "two [('two', 'task 2')]",
        "three [('three', 'task 3'), ('three', 'task 4')]",
        "four []",
        "{'pre_run_cell': [], 'post_run_cell': []}",
    ]


def test_the_cell_that_starts_a_cluster_shows_its_own_lines() -> None:
    done = run_driver(
        SHELL
        + """
        ray.init(num_cpus=1, logging_level="ERROR", log_to_driver=False)
        run("hidden", lambda: ray.get(f.remote(1)))
        ray.shutdown()
        def both():
            ray.init(num_cpus=1, logging_level="ERROR")
            ray.get(f.remote(1))
        run("both", both)
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["hidden []", "both [('both', 'task 1')]"]


LATE = """
        def begin():
            global late, printing
            late = Late.options(max_concurrency=2).remote()
            printing = late.print.remote(1)
        def end():
            ray.get([late.let_go.remote(), printing])
        ray.init(num_cpus=1, logging_level="ERROR")
"""


def test_a_front_end_that_names_cells_has_late_lines_below_the_cell_that_submitted_the_task() -> None:
    done = run_driver(
        SHELL
        + LATE
        + """
        metadata["cellId"] = "1"
        run("begin", begin)
        run("end", end)
        run("nested", lambda: ray.get(late.nested.remote()))
        """
    )
    assert (done.returncode, done.stderr) == (0, "")
    begin, end, nested = done.stdout.splitlines()
    assert begin == "begin []" and nested == "nested [('nested', 'task nested')]"
    assert sorted(eval(end.removeprefix("end "))) == [("begin", "late 1"), ("end", "let go")]


def test_other_front_ends_have_late_lines_below_the_cell_that_runs() -> None:
    done = run_driver(SHELL + LATE + """
        run("begin", begin)
        run("end", end)
        """)
    assert (done.returncode, done.stderr) == (0, "")
    begin, end = done.stdout.splitlines()
    assert begin == "begin []" and sorted(eval(end.removeprefix("end "))) == [("end", "late 1"), ("end", "let go")]
