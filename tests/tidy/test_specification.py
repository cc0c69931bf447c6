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
    expected[expected.index("G108") : expected.index("G108")] = ["G107a"]
    expected[expected.index("G111") : expected.index("G111")] = ["G110a"]
    assert [row.number for row in specification.rows(ROOT)] == expected


ID = "tests/unit/test_a.py::"


@pytest.mark.parametrize(
    ("row", "test", "complaint"),
    [
        (f"| G7 | s | tested | `{ID}test_g7_times_out` |", "test_g7_times_out", None),
        (f"| G39a | s | tested | `{ID}test_g39a_once` |", "test_g39a_once", None),
        (f"| G7 | s | partly: tasks | `{ID}test_g7_any` |", "test_g7_any", None),
        ("| G7 | s | later: actors | |", "test_any", None),
        ("| G7 | s | not yet | |", "test_g7_times_out", "G7: is `not yet` with 1 tests"),
        ("| G7 | s | tested | |", "test_any", "G7: is `tested` with 0 tests"),
        ("| G7 | s | tested | |", "test_g7_times_out", "G7: has no canonical test"),
        (f"| G7 | s | tested | `{ID}test_g7_is_gone` |", "test_g7_times_out", "test_g7_is_gone does not exist"),
        (f"| G7 | s | tested | `{ID}test_any` |", "test_any", "test_any does not name it"),
        (f"| G7 | s | tested | `{ID}test_g7_g8_both` |", "test_g7_g8_both", "there is no G8"),
        (f"| G7 | {'s' * 600} | tested | `{ID}test_g7_x` |", "test_g7_x", "specification.md:1: a line of"),
    ],
)
def test_a_disagreement_is_seen(tmp_path: Path, row: str, test: str, complaint: str | None) -> None:
    plant(tmp_path, {specification.PAGE: row + "\n", "tests/unit/test_a.py": f"def {test}(): pass\n"})
    page, existing = specification.rows(tmp_path), specification.cases(tmp_path)
    (tmp_path / specification.TRACE).write_text(specification.trace(page, existing))
    found = specification.disagreements(tmp_path)
    assert found == [] if complaint is None else complaint in "\n".join(found)


@pytest.mark.parametrize(("lines", "is_long"), [(15, False), (16, True)])
def test_a_canonical_test_is_short(tmp_path: Path, lines: int, is_long: bool) -> None:
    test = "@decorated\ndef test_g7_x():\n" + "    pass\n" * (lines - 1)
    page = f"| G7 | s | tested | `{ID}test_g7_x` |\n"
    plant(tmp_path, {specification.PAGE: page, "tests/unit/test_a.py": test})
    specification.write(tmp_path)
    expected = [f"G7: test_g7_x has {lines} lines, more than 15"] if is_long else []
    assert specification.disagreements(tmp_path) == expected


def test_every_exception_is_needed_and_has_a_reason() -> None:
    without = specification.WITHOUT_CANONICAL_TEST
    known = {row.number: row for row in specification.rows(ROOT)}
    assert all(reason and not known[number].canonical for number, reason in without.items())


SIMULATED = """
PLAN = FaultPlan({"delay": 0.1, "crash": 0.2})
TEXT = '''
def test_g1_in_a_string(): pass
'''
def body(): os._exit(1)
@given(PLAN)
def test_g1_x(): judged(body)
async def test_g1_g2_y(): cluster.when("PushTask").of("worker").kill(1)
def test_other(): pass
"""


def test_the_trace_lists_all_tests_with_their_worlds_and_faults(tmp_path: Path) -> None:
    page = "## Tasks\n\n| G1 | s | not yet | |\n| G2 | s | tested | |\n\n## Actors\n\n| G3 | s | later: actors | |\n"
    real = "def test_g1_z(): os.kill(1, signal.SIGKILL)\n"
    tests = {"simulation/test_a.py": SIMULATED, "real/test_b.py": real, "unit/test_c.py": "def test_g2_w(): pass"}
    plant(tmp_path, {specification.PAGE: page, **{f"tests/{path}": text for path, text in tests.items()}})
    specification.write(tmp_path)
    assert specification.rows(tmp_path)[0].status == "tested"
    assert (
        (tmp_path / specification.TRACE).read_text()
        == specification.PREFACE
        + """
## Tasks

**G1** simulation: crash, delay, exit; real: kill -9

* `tests/real/test_b.py`
  * `test_g1_z`
* `tests/simulation/test_a.py`
  * `test_g1_g2_y`
  * `test_g1_x`

**G2** alone; simulation: crash

* `tests/simulation/test_a.py`
  * `test_g1_g2_y`
* `tests/unit/test_c.py`
  * `test_g2_w`

## Actors

**G3** later: actors
"""
    )


def test_a_trace_that_is_out_of_date_is_seen(tmp_path: Path) -> None:
    plant(tmp_path, {specification.PAGE: "| G1 | s | later: actors | |\n", "tests/unit/test_a.py": ""})
    specification.write(tmp_path)
    (tmp_path / "tests/unit/test_a.py").write_text("def test_g1_x(): pass\n")
    found = specification.disagreements(tmp_path)
    assert f"{specification.TRACE} is not what the tests say; run make specification" in found


@pytest.mark.slow
def test_the_program_of_the_readme_prints_what_it_says() -> None:
    program = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    assert program
    expected = re.findall(r"print\(.*\)  # (.*)", program[1])
    run = subprocess.run([sys.executable, "-c", program[1]], capture_output=True, text=True, timeout=60)
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-len(expected) :] == expected
