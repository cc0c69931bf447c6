"""The terminal of a driver, which is attached to its tasks that stop at a breakpoint."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.debugging.terminals import PATIENCE_S, Terminal, attached, program, wait_for_breakpoints

pytestmark = pytest.mark.slow

PROGRAM = """
import sys
import minray as ray

@ray.remote
def total(prices, discount):
    full = sum(prices)
    breakpoint()
    return full - discount

ray.init(num_cpus=2, logging_level="ERROR")
refs = [total.remote([price], 0) for price in map(int, sys.argv[2:])]
if sys.argv[1] == "reads":
    print("You typed:", input("Type: "))
print("Totals:", ray.get(refs))
"""
INVITED = "waits in the debugger. To attach a terminal: minray debug "


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "prog.py"
    file.write_text(PROGRAM)
    return str(file)


def until_stop(terminal: Terminal) -> str:
    """Return what is shown up to the first line after a breakpoint."""
    return terminal.behind_breakpoint(terminal.read_until())


def number(shown: str) -> int:
    """Return the number in the last line of an answer; another task may have said before it that it waits."""
    return int(shown.splitlines()[-1])


def ends(process: subprocess.Popen[bytes]) -> bool:
    return process.wait(PATIENCE_S) == 0


def test_a_driver_that_waits_attaches_its_terminal_to_each_task_that_stops(path: str) -> None:
    with program(path, "waits", "3", "5") as (terminal, process):
        first = until_stop(terminal)
        assert INVITED in first and "Attached to total, process " in first
        assert first.endswith("-> return full - discount\r\n(Pdb) ")
        price = number(terminal.ask("p full"))
        terminal.ask("discount = 1")
        terminal.type("c")
        second = until_stop(terminal)
        assert "The debugger of total has ended." in second and "Attached to total, process " in second
        assert number(terminal.ask("p full")) == 8 - price
        terminal.type("c")
        rest = terminal.read_until("")
        assert f"Totals: [{'2, 5' if price == 3 else '3, 4'}]" in rest
        assert ends(process)


def test_a_task_that_is_left_waits_for_another_terminal_and_the_driver_for_the_task(path: str) -> None:
    with program(path, "waits", "3") as (terminal, process):
        until_stop(terminal)
        terminal.type("\x04")  # The pseudo-terminal ends the input at this character.
        terminal.read_until("total waits on. To attach again: minray debug ")
        (one,) = wait_for_breakpoints(1)
        with attached(one) as other:
            assert other.ask("p full") == "3"
            other.type("c")
            assert "Totals: [3]" in terminal.read_until("")
        assert ends(process)


def test_a_program_that_reads_from_its_terminal_keeps_it_until_it_waits(path: str) -> None:
    with program(path, "reads", "3") as (terminal, process):
        terminal.read_until(INVITED)
        terminal.type("p full")
        shown = until_stop(terminal)
        assert "You typed: p full" in shown and shown.index("You typed") < shown.index("Attached to total")
        assert number(terminal.ask("p full")) == 3
        terminal.type("c")
        assert "Totals: [3]" in terminal.read_until("")
        assert ends(process)


@pytest.mark.parametrize("switch", ["MINRAY_DEBUG_TERMINAL", "RAY_DEBUG_TERMINAL"])
def test_a_driver_keeps_its_terminal_to_itself_if_it_is_told_to(path: str, switch: str) -> None:
    with program(path, "waits", "3", **{switch: "0"}) as (terminal, process):
        terminal.read_until(INVITED)
        (one,) = wait_for_breakpoints(1)
        with attached(one) as other:
            other.type("c")
            shown = terminal.read_until("")
        assert "Attached" not in shown and "Totals: [3]" in shown
        assert ends(process)
