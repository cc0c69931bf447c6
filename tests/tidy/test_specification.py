"""The specification page and the tests agree, and the README's program does what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tidy import specification
from tests.tidy.test_tidy import ROOT, plant


def test_the_page_and_the_tests_agree() -> None:
    assert specification.disagreements(ROOT) == []


def test_the_page_lists_every_guarantee_once_and_in_order() -> None:
    expected = [f"G{number}" for number in range(1, 113)] + [f"C{number}" for number in range(1, 10)]
    expected[expected.index("G34") : expected.index("G34")] = ["G33a"]
    expected[expected.index("G40") : expected.index("G40")] = ["G39a", "G39b"]
    assert [row.number for row in specification.rows(ROOT)] == expected


@pytest.mark.parametrize(
    ("row", "test", "complaint"),
    [
        ("| G7 | s | tested | alone | `test_g7_times_out` |", "test_g7_times_out", None),
        ("| G7 | s | partly: tasks | alone | `test_any` |", "test_any", None),
        ("| G39a | s | tested | alone | `test_g39a_once` |", "test_g39a_once", None),
        ("| G7 | s | not yet | | |", "test_g7_times_out", "does not list test_g7_times_out"),
        ("| G7 | s | tested | | `test_g7_is_gone` |", "test_any", "test_g7_is_gone does not exist"),
        ("| G7 | s | tested |  |  |", "test_any", "with 0 tests"),
        ("| G7 | s | later: actors | alone | `test_any` |", "test_any", "with 1 tests"),
        ("| G7 | s | tested | alone | `test_g7_g8_both` |", "test_g7_g8_both", "there is no G8"),
        ("| G7 | s | tested | real | `test_g7_times_out` |", "test_g7_times_out", "G7: is tested alone"),
    ],
)
def test_a_disagreement_is_seen(tmp_path: Path, row: str, test: str, complaint: str | None) -> None:
    plant(tmp_path, {specification.PAGE: row + "\n", "tests/unit/test_a.py": f"def {test}(): pass\n"})
    found = specification.disagreements(tmp_path)
    assert found == [] if complaint is None else complaint in "\n".join(found)


SIMULATED = """
PLAN = FaultPlan({"delay": 0.1, "crash": 0.2})
def body(): os._exit(1)
@given(PLAN)
def test_g1_x(): judged(body)
async def test_g1_g2_y(): kill_sender(1)
def test_by_hand(): pass
"""


def test_the_columns_of_faults_and_of_tests_can_be_written(tmp_path: Path) -> None:
    first, second = "| G1 | s | not yet |  |  |\n", "| G2 | s | tested | alone | `test_gone`, `test_by_hand` |\n"
    page = f"{first}{second}| G3 | s | later: actors |  |  |\n"
    real = "def test_g1_z(): os.kill(1, signal.SIGKILL)\n"
    tests = {"simulation/test_a.py": SIMULATED, "real/test_b.py": real, "unit/test_c.py": "def test_g2_w(): pass"}
    plant(tmp_path, {specification.PAGE: page, **{f"tests/{path}": text for path, text in tests.items()}})
    specification.write(tmp_path)
    assert (tmp_path / specification.PAGE).read_text() == (
        "| G1 | s | tested | simulation: crash, delay, exit; real: kill -9 | `test_g1_g2_y`, `test_g1_x`, `test_g1_z` |\n"
        "| G2 | s | tested | alone; simulation: crash | `test_g1_g2_y`, `test_g2_w`, `test_by_hand` |\n"
        "| G3 | s | later: actors |  |  |\n"
    )
    assert specification.disagreements(tmp_path) == []


@pytest.mark.slow
def test_the_program_of_the_readme_prints_what_it_says() -> None:
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert program
    expected = re.findall(r"print\(.*\)  # (.*)", program[1])
    run = subprocess.run([sys.executable, "-c", program[1]], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-len(expected) :] == expected
