"""The map from papers to lines names what is there (``tests/tidy/papers.py``)."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.tidy import papers
from tests.tidy.test_tidy import ROOT


def test_every_file_name_and_test_of_the_map_is_there() -> None:
    assert papers.complaints(ROOT) == []


def test_all_five_papers_have_claims() -> None:
    text = (ROOT / papers.PAGE).read_text()
    assert text.count("\n## ") == 5
    assert len(list(papers.rows(text))) > 50


@pytest.mark.parametrize(
    ("row", "wrong"),
    [
        ("| a | `a.py` `A.b` | `tests/t.py::test_a` |", ""),
        ("| a | `a.py` `A.c` | `tests/t.py::test_a` |", "a.py has no A.c"),
        ("| a | `b.py` | `tests/t.py::test_a` |", "b.py does not exist"),
        ("| a | `a.py` | `tests/t.py::test_b` |", "tests/t.py has no test_b"),
        ("| a | `a.py` | none |", "no test"),
        ("| a | `A.b` | `tests/t.py::test_a` |", "the second cell begins with no file"),
        ("| a | `a.py` |", "a row has 3 cells, this one 2"),
    ],
)
def test_what_is_not_there_is_seen(tmp_path: Path, row: str, wrong: str) -> None:
    files = {
        papers.PAGE: f"| claim | file and names | test |\n|---|---|---|\n{row}\n",
        "a.py": "class A:\n    def b(self): ...\n",
        "tests/t.py": "def test_a(): ...\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = papers.complaints(tmp_path)
    assert (wrong in found[0]) if wrong else not found
