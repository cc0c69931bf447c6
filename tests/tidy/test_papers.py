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
    assert len(list(papers.claims(text))) > 50


@pytest.mark.parametrize(
    ("items", "wrong"),
    [
        (["`a.py` `A.b`", "`tests/t.py::test_a`"], ""),
        (["`a.py` `A.c`", "`tests/t.py::test_a`"], "a.py has no A.c"),
        (["`b.py`", "`tests/t.py::test_a`"], "b.py does not exist"),
        (["`a.py`", "`tests/t.py::test_b`"], "tests/t.py has no test_b"),
        (["`a.py`"], "no test"),
        (["`tests/t.py::test_a`"], "no file"),
        (["`A.b`", "`tests/t.py::test_a`"], "A.b has no file before it"),
    ],
)
def test_what_is_not_there_is_seen(tmp_path: Path, items: list[str], wrong: str) -> None:
    files = {
        papers.PAGE: "\n".join(["* a claim", "  of two lines", *(f"  * {item}" for item in items)]),
        "a.py": "class A:\n    def b(self): ...\n",
        "tests/t.py": "def test_a(): ...\n",
    }
    for path, text in files.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    found = papers.complaints(tmp_path)
    assert (wrong in found[0]) if wrong else not found
