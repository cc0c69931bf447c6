"""The blocks of all pages are well formed, and what runs them notices each kind of mistake. ``make test-docs`` runs them."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from tests.site import pages

GOOD = """
```python
# twice.py
import sys

def twice(x):
    return 2 * x

if __name__ == "__main__":
    print("a line", id(twice))
    print("not shown", file=sys.stderr)
    print(twice(21))
```

It prints:

```text
a line ...
42
```

```console
$ python -c "import twice; \\
  print(twice.twice(4))"
8
$ VALUE=3 python -c "import os; exit(int(os.environ['VALUE']))"  # exit status 3
$ python -c "print(1, 2, 3, sep=chr(10))"
1
...
```
"""


@pytest.mark.parametrize("page", pages.pages())
def test_the_blocks_are_well_formed(page: str) -> None:
    pages.steps(page, (pages.ROOT / page).read_text())


@pytest.mark.parametrize("page", sorted(path.name for path in (pages.ROOT / "docs").glob("*.md")))
def test_each_row_of_a_table_has_the_cells_of_its_first_row(page: str) -> None:
    """A program that wraps lines makes one line of several rows."""
    first_row, wrong = "", []
    for line in re.sub(r"```.*?```", "", (pages.ROOT / "docs" / page).read_text(), flags=re.DOTALL).splitlines():
        row = line.strip() if line.strip().startswith("|") else ""
        first_row = first_row if first_row and row else row
        if row.replace(r"\|", "").count("|") != first_row.replace(r"\|", "").count("|"):
            wrong.append(line)
    assert wrong == []


INCLUDED = re.compile(r"```\{literalinclude\} (\S+)\n((?::.*\n)*)")


SOURCES = sorted(path for path in (pages.ROOT / "docs").rglob("*.md") if "_build" not in path.parts)


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: path.stem)
def test_code_that_a_page_includes_is_there(path: Path) -> None:
    """Sphinx would say so, too, but only ``make docs`` runs it."""
    for name, options in INCLUDED.findall(path.read_text()):
        source = (path.parent / name).read_text()
        for option, value in re.findall(r":([\w-]+): (.+)", options):
            if option == "pyobject":
                tree: ast.AST | None = ast.parse(source)
                for part in value.split("."):
                    tree = next((node for node in ast.iter_child_nodes(tree) if getattr(node, "name", "") == part), None)
                    assert tree is not None, f"{name} has no {value}"
            elif option in ("start-at", "start-after", "end-at", "end-before"):
                assert value in source, f"{name} has no {value!r}"


@pytest.mark.parametrize("page", pages.NOT_RUN)
def test_each_exception_is_one_block_outside_the_chapters(page: str) -> None:
    firsts = [block.first_line for block in pages.blocks((pages.ROOT / page).read_text())]
    assert not page.startswith("docs/learn/")
    assert {start: sum(first.startswith(start) for first in firsts) for start in pages.NOT_RUN[page]} == dict.fromkeys(
        pages.NOT_RUN[page], 1
    )


def complaints(text: str, folder: Path) -> list[str]:
    return [complaint for step in pages.steps("docs/page.md", text) if (complaint := pages.run(step, folder))]


def test_a_page_runs_as_it_says(tmp_path: Path) -> None:
    assert complaints(GOOD, tmp_path) == []


@pytest.mark.parametrize(
    ("right", "wrong", "what"),
    [
        ("\n42\n", "\n43\n", "line 3: the page shows"),
        ("a line ...\n42", "a line ...", "line 3: the page shows"),
        ("print(twice(21))", "print(twice(21)); exit(1)", "line 3: exit status 1"),
        ("exit(int(", "print(int(", "line 26: exit status 0"),
        ("\n8\n", "\n9\n", "line 23: the page shows"),
        ("status 3", "status 4", "line 26: exit status 3"),
        ("\n1\n...", "\n2\n...", "line 27: the page shows"),
    ],
)
def test_a_mistake_is_noticed(tmp_path: Path, right: str, wrong: str, what: str) -> None:
    assert GOOD.count(right) == 1
    (complaint,) = complaints(GOOD.replace(right, wrong), tmp_path)
    assert complaint.startswith(what)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("```python\nx = (\n```", "line 2: the program does not compile"),
        ("```console\n8\n```", "line 2: a console block begins with"),
        ("```console\n$ ls\n```", "line 2: a command is python or minray, not 'ls'"),
        ("```console\n```", "line 2: a console block without a command"),
        ("```python\nx = 1\n", "line 1: the block has no end"),
    ],
)
def test_a_block_that_cannot_run_is_no_block(text: str, what: str) -> None:
    with pytest.raises(ValueError, match=what):
        pages.steps("docs/page.md", text)


@pytest.mark.parametrize(
    ("between", "shown"),
    [("", "1"), ("One\nparagraph.\n", "1"), ("One.\n\nTwo.\n", None), ("## A heading\n", None)],
)
def test_an_output_stands_near_its_program(between: str, shown: str | None) -> None:
    (step,) = pages.steps("docs/page.md", f"```python\nprint(1)\n```\n\n{between}\n```text\n1\n```")
    assert step.shown == shown


def test_blocks_in_lists_and_other_directives_count() -> None:
    text = "* An item\n  ```python\n  if True:\n      print(1)\n  ```\n\n````{note}\n```python\nprint(2)\n```\n````\n"
    assert [step.source for step in pages.steps("docs/page.md", text)] == ["if True:\n    print(1)\n", "print(2)\n"]
