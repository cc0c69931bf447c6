"""docs/ray_issues.md says what the tests of this folder say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.ray_issues import page
from tests.tidy.test_tidy import ROOT, plant


def test_the_page_and_the_tests_agree() -> None:
    assert page.disagreements(ROOT) == []


GOOD = '''
@pytest.mark.ray_issue(ray="wrong: it | waits", pull=True)
def test_ray_12_a_get_ends() -> None:
    """A get waits
    for ever.

    This is not part of the row.
    """
def helper() -> None: ...
'''


def test_a_row_is_what_its_test_says(tmp_path: Path) -> None:
    second = GOOD.replace("12", "7").replace(", pull=True", ', minray="like Ray: because"')
    plant(tmp_path, {"docs/index.md": "", f"{page.FOLDER}/test_get_and_wait.py": GOOD + second})
    found, complaints = page.rows(tmp_path)
    assert complaints == []
    (tmp_path / page.PAGE).write_text(page.text(found))
    assert page.disagreements(tmp_path) == []
    lines = page.text(found).splitlines()
    assert "2 issues: Ray 2.60 is wrong in 2 and right in 0, and 0 were not run." in lines
    assert "minray is right in 1, like Ray in 1, and not yet right in 0." in lines
    assert lines[lines.index("## Get and wait") + 6 :] == [
        f"| [#12]({page.ISSUES}/pull/12) | A get waits for ever. | wrong: it \\| waits | right |",
        f"| [#7]({page.ISSUES}/issues/7) | A get waits for ever. | wrong: it \\| waits | like Ray: because |",
    ]


@pytest.mark.parametrize(
    ("old", "new", "complaint"),
    [
        ("test_ray_12_a_get_ends", "test_a_get_ends", "is not called test_ray_NUMBER_..."),
        ("pytest.mark.ray_issue", "pytest.mark.parametrize", "has 0 markers ray_issue, not 1"),
        ('"""A get waits', 'f"""A get waits', "has no docstring"),
        ("for ever.", "for ever and " * 20, "has a sentence of 63 words"),
        ("wrong: it | waits", "it waits", "says of Ray 'it waits'"),
        ("pull=True", 'minray="wrong"', "says of minray 'wrong'"),
        ("def helper", GOOD.strip().replace("a_get", "another_get") + "\ndef helper", "#12 has 2 tests"),
        ("", "", "docs/ray_issues.md is not what the tests say; run make ray-issues"),
    ],
)
def test_a_disagreement_is_seen(tmp_path: Path, old: str, new: str, complaint: str) -> None:
    plant(tmp_path, {f"{page.FOLDER}/test_get.py": GOOD.replace(old, new)})
    assert complaint in "\n".join(page.disagreements(tmp_path))
