"""Cells of a real kernel: output below the right cell, interrupts, definitions that are made again, bars."""

from __future__ import annotations

from pathlib import Path

from tests.notebooks.kernel import Kernel

WAITS = """
import time
from pathlib import Path
@ray.remote
def waits(path, text):
    while not Path(path).exists():
        time.sleep(0.01)
    print(text)
    return text
"""


def test_lines_of_a_task_stand_below_the_cell_that_submitted_it(kernel: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    first = kernel.run(f"{WAITS}\nref = waits.remote({str(go)!r}, 'first')")
    second = kernel.run("@ray.remote\ndef f(): print('second')\nray.get(f.remote())")
    assert (first.lines(), second.lines()) == ([], ["second"])
    go.touch()
    third = kernel.run("ray.get(ref)")
    kernel.until(lambda: first.lines() != [])
    assert (first.lines(), third.lines(), third.result) == (["first"], [], "'first'")


def test_an_interrupt_ends_the_cell_and_nothing_else(kernel: Kernel, tmp_path: Path) -> None:
    go = tmp_path / "go"
    kernel.run(f"{WAITS}\nref = waits.remote({str(go)!r}, 'done')")
    for wait in ("ray.get(ref)", "ray.wait([ref])", "ray.progress([ref]).wait()"):
        cell = kernel.begin(f"print('begun')\n{wait}")
        kernel.until(lambda cell=cell: "begun" in cell.streams["stdout"])
        kernel.interrupt()
        kernel.until(lambda cell=cell: cell.is_idle)
        assert cell.error == "KeyboardInterrupt", wait
    assert kernel.run("@ray.remote\ndef f(): return 1\nray.get(f.remote())").result == "1"
    go.touch()
    assert kernel.run("ray.get(ref)").result == "'done'"
    cancelled = "\nref = waits.remote('/nowhere', 1); ray.cancel(ref)\ntry: ray.get(ref)"
    assert kernel.run(f"{cancelled}\nexcept ray.exceptions.TaskCancelledError: print('cancelled')").lines() == ["cancelled"]


def test_a_cell_that_runs_again_defines_again(kernel: Kernel) -> None:
    """Later calls use the new definition, also of a function that a task uses; an actor keeps its class."""
    for answer in ("old", "new"):
        kernel.run(f"def helper(): return {answer!r}\n@ray.remote\ndef f(): return helper()")
        assert kernel.run("ray.get(f.remote())").result == repr(answer)
    define = "@ray.remote\nclass A:\n    def answer(self): return {!r}"
    kernel.run(define.format("old") + "\nold = A.remote()")
    kernel.run(define.format("new") + "\nnew = A.remote()")
    assert kernel.run("ray.get([old.answer.remote(), new.answer.remote()])").result == "['old', 'new']"


def test_a_class_of_values_that_is_made_again_is_another_class(kernel: Kernel) -> None:
    """A value of the old class is still read, and is no instance of the new one: as in a program that reloads a module."""
    define = "class Point:\n    x = {}\n@ray.remote\ndef make(): return Point()"
    kernel.run(define.format(1) + "\nold = make.remote()")
    assert kernel.run("ray.get(old).x, isinstance(ray.get(old), Point)").result == "(1, True)"
    kernel.run(define.format(2))
    assert kernel.run("ray.get(make.remote()).x, isinstance(ray.get(make.remote()), Point)").result == "(2, True)"


def test_bars_are_html_below_their_cell(kernel: Kernel) -> None:
    cell = kernel.run(
        "from minray.experimental.tqdm_ray import tqdm\n"
        "@ray.remote\ndef f(x):\n    return sum(tqdm(range(x), desc='<inner>'))\n"
        "for ref in ray.progress([f.remote(x) for x in range(1, 5)], desc='outer'): ray.get(ref)"
    )
    names = {display["transient"]["display_id"] for display in cell.displays}
    last = {display["transient"]["display_id"]: display["data"]["text/html"] for display in cell.displays}
    assert len(names) == 2 and cell.streams == {"stdout": "", "stderr": ""}
    outer, inner = sorted(last.values(), key=len)
    assert outer.count("<progress") == 1 and "outer" in outer and "4/4" in outer
    assert inner.count("<progress") == 4 and "&lt;inner&gt;" in inner and "<inner>" not in inner


def test_values_are_tables_until_and_after_the_shutdown(kernel: Kernel) -> None:
    assert "in shared memory" in kernel.run("ref = ray.put(bytes(10**6))\nref").html
    kernel.run("@ray.remote\nclass A:\n    def f(self): return 1\na = A.remote()\nray.get(a.f.remote())")
    assert "ALIVE" in kernel.run("a").html and "<table" in kernel.run("ray.nodes()").html
    kernel.run("ray.shutdown()")
    for name in ("ref", "a"):
        assert "not connected" in kernel.run(name).html
