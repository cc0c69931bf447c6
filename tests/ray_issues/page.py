"""docs/ray_issues.md, written from the tests of this folder: one row for each issue of Ray's core that a program shows.

``make ray-issues`` writes the page; ``test_page.py`` fails if page and tests disagree. A test gives its row like this:

    @pytest.mark.ray_issue(ray="wrong: waits for ever")
    def test_ray_46157_a_get_of_a_cancelled_reference_ends() -> None:
        '''A task that gets a cancelled reference may wait for ever.'''

The docstring's first paragraph says what goes wrong in Ray. The number comes from the name. The marker says what Ray 2.60
does here: ``right``, ``wrong: ...``, ``wrong at times: ...`` or ``not run: ...``. ``pull=True`` is for a pull request.
``minray="like Ray: ..."`` is for a program whose value in minray is Ray's, and the test expects that value. With
``minray="not yet: ..."`` the test expects the right value, and has to fail. Without either, minray is right.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

FOLDER = "tests/ray_issues"
PAGE = "docs/ray_issues.md"
ISSUES = "https://github.com/ray-project/ray"
NAME = re.compile(r"test_ray_(?P<number>\d+)_\w+")
IN_RAY = re.compile(r"right(: .+)?|(wrong|wrong at times|not run): .+", re.DOTALL)
IN_MINRAY = re.compile(r"right|(right|like Ray|not yet): .+", re.DOTALL)
MOST_WORDS = 35
"""Words of a row's sentence."""
PREFACE = """# Issues of Ray, as programs

`make ray-issues` writes this page from the tests of `tests/ray_issues/`; change the tests instead. Each row is an issue or
a pull request of Ray's core that a small program shows. The program is the test `test_ray_NUMBER_...` of the file that the
section names.

The third column says what Ray 2.60 does when that test runs on it (`make ray-issues-on-ray`). *Right* means that the program
gives the right value there: the issue is closed, or needs another machine or more luck. The last column says what minray
does. The test of a row that says *like Ray* expects what Ray does. The test of one that says *not yet* fails.
"""


@dataclass(frozen=True)
class Row:
    """One issue, as its test tells it."""

    path: str
    test: str
    number: int
    is_pull: bool
    sentence: str
    """The docstring's first paragraph, which says what goes wrong in Ray."""
    ray: str
    """The marker's word on Ray 2.60."""
    minray: str

    @property
    def link(self) -> str:
        return f"[#{self.number}]({ISSUES}/{'pull' if self.is_pull else 'issues'}/{self.number})"


def rows(root: Path) -> tuple[list[Row], list[str]]:
    """The rows of all tests in the folder, by file and in its order; and complaints about tests that give none."""
    found, complaints = [], []
    for path in sorted((root / FOLDER).glob("test_*.py")):
        relative = path.relative_to(root).as_posix()
        if path.name == "test_page.py":
            continue
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                try:
                    found.append(_row(relative, node))
                except ValueError as error:
                    complaints.append(f"{relative}::{node.name}: {error}")
    return found, complaints


def _row(path: str, test: ast.FunctionDef) -> Row:
    name = NAME.fullmatch(test.name)
    if name is None:
        raise ValueError("is not called test_ray_NUMBER_...")
    markers = [each for each in test.decorator_list if isinstance(each, ast.Call) and _called(each) == "ray_issue"]
    if len(markers) != 1:
        raise ValueError(f"has {len(markers)} markers ray_issue, not 1")
    marker = {each.arg: ast.literal_eval(each.value) for each in markers[0].keywords}
    row = Row(
        path=path,
        test=test.name,
        number=int(name["number"]),
        is_pull=marker.get("pull", False),
        sentence=" ".join((ast.get_docstring(test) or "").partition("\n\n")[0].split()),
        ray=marker.get("ray", ""),
        minray=marker.get("minray", "right"),
    )
    if not row.sentence:
        raise ValueError("has no docstring that says what goes wrong in Ray")
    if (words := len(row.sentence.split())) > MOST_WORDS:
        raise ValueError(f"has a sentence of {words} words")
    if not IN_RAY.fullmatch(row.ray):
        raise ValueError(f"says of Ray {row.ray!r}; it begins with right, wrong:, wrong at times: or not run:")
    if not IN_MINRAY.fullmatch(row.minray):
        raise ValueError(f"says of minray {row.minray!r}; it begins with right, like Ray: or not yet:")
    return row


def _called(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


def text(found: list[Row]) -> str:
    """The page: a section for each file, a line for each row."""
    in_ray = Counter(row.ray.partition(":")[0].removesuffix(" at times") for row in found)
    here = Counter(row.minray.partition(":")[0] for row in found)
    lines = [PREFACE]
    lines += [
        f"{len(found)} issues: Ray 2.60 is wrong in {in_ray['wrong']} and right in {in_ray['right']}, and "
        f"{in_ray['not run']} were not run.",
        f"minray is right in {here['right']}, like Ray in {here['like Ray']}, and not yet right in {here['not yet']}.",
    ]
    path = ""
    for row in found:
        if row.path != path:
            path = row.path
            subject = path.rpartition("test_")[2].removesuffix(".py").replace("_", " ").capitalize()
            lines += ["", f"## {subject}", "", f"`{path}`", ""]
            lines += ["| issue | what goes wrong in Ray | Ray 2.60 here | minray |", "|---|---|---|---|"]
        cells = (row.link, *(cell.replace("|", "\\|") for cell in (row.sentence, row.ray, row.minray)))
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def disagreements(root: Path) -> list[str]:
    """Tests that give no row, issues with two tests, and a page that is not what the tests say."""
    found, complaints = rows(root)
    tests = Counter(row.number for row in found)
    complaints += [f"#{number} has {count} tests" for number, count in tests.items() if count > 1]
    if not (root / PAGE).exists() or (root / PAGE).read_text() != text(found):
        complaints.append(f"{PAGE} is not what the tests say; run make ray-issues")
    return complaints


if __name__ == "__main__":
    checkout = Path(__file__).resolve().parents[2]
    if "--write" in sys.argv:
        (checkout / PAGE).write_text(text(rows(checkout)[0]))
    print("\n".join(disagreements(checkout)))
