"""Checks the plain English that a program can check: openings, pronouns, the length of sentences.

Docstrings (those of attributes too), comments, pages and the README are read here. A sentence ends with a full stop, a
question mark, a colon before an indented block, or an empty line. Text in backticks or parentheses counts as one word.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

MOST_WORDS = 35
"""Words of one sentence."""
OPENINGS = re.compile(
    r"(He|Him|His|It|Its|They|Their|Them|Theirs|Who|Whoever|Whose|Whom|What|Whatever|Nobody|Somebody|Everybody|Anybody|Something"
    r"|Nothing|Everything|Of|The same|So many|So long|So much|As many|As much|That|Those who)\b"
)
"""A docstring that begins so does not name what it is about."""
NEVER = re.compile(r"\b(he|him|his|himself|she|hers?|whoever|so many|so long|so much)\b", re.IGNORECASE)
"""Processes are "it"; roles have names; amounts have units."""


STRING_OR_COMMENT = re.compile(
    r'"""(?:\\.|[^\\])*?"""|\'\'\'(?:\\.|[^\\])*?\'\'\'|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'|#[^\n]*', re.DOTALL
)
"""One expression finds comments in a tenth of the time that Python's tokenizer takes for all tokens."""


def prose(text: str, tree: ast.Module | None) -> Iterator[tuple[int, str, bool]]:
    """(line, text, whether it is a docstring) of each docstring and comment of a file, or of each paragraph of a page.

    A page has no tree.
    """
    if tree is None:
        yield from _paragraphs(text)
        return
    blocks: list[ast.AST] = [tree]
    for block in blocks:  # Only statements are looked at: expressions are most of the tree, and hold no docstring.
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            blocks += getattr(block, part, [])
        if isinstance(block, ast.Expr) and isinstance(block.value, ast.Constant) and isinstance(block.value.value, str):
            yield block.lineno, block.value.value, True
    comment, first, last = "", 0, 0
    for line, string in comments(text):
        if not re.match(r"#\s*(noqa|type:|---|!)", string):
            if line != last + 1 and comment:
                yield first, comment, False
                comment = ""
            first = first if comment else line
            last = line
            comment += string.lstrip("# ") + "\n"
    if comment:
        yield first, comment, False


def comments(text: str) -> Iterator[tuple[int, str]]:
    """(line, comment) of each comment of a program."""
    line, seen = 1, 0
    for found in STRING_OR_COMMENT.finditer(text):
        if found[0].startswith("#"):
            line += text.count("\n", seen, found.start())
            seen = found.start()
            yield line, found[0]


def _paragraphs(text: str) -> Iterator[tuple[int, str, bool]]:
    fenced, paragraph, first = False, "", 0
    for number, line in enumerate([*text.splitlines(), ""], 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced and line.strip() and not line.lstrip().startswith(("|", "    ", "<", "#")):
            if re.match(r"\s*([*-]|\d+\.) ", line) and paragraph:
                yield first, paragraph, False
                paragraph = ""
            first = first if paragraph else number
            paragraph += re.sub(r"^\s*([*-]|\d+\.) ", "", line) + "\n"
            continue
        if paragraph:
            yield first, paragraph, False
            paragraph = ""


def sentences(text: str) -> Iterator[str]:
    """The sentences of a docstring, a comment or a paragraph; indented blocks of code are none."""
    for block in re.split(r"\n\s*\n|\n(?=\s*[*-] )|\n(?=\s*\w[\w ]{0,20}\n\s*[*-] )|:\n", text):
        lines = [line for line in block.splitlines() if not re.match(r"\s*(Ray:|\||>>>|\+-)", line)]
        lines = [line for line in lines if "  " not in line.strip()]
        flat = re.sub(r"``[^`]*``|`[^`]*`|\([^()]*\)", "x", " ".join(lines))
        yield from (part for part in re.split(r"(?<=[.!?;])\s+", flat) if part.strip())


def complaints(page: str, tree: ast.Module | None = None) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) of a page, or of a program with its tree."""
    for line, text, is_docstring in prose(page, tree):
        start = text.strip()
        if is_docstring and (found := OPENINGS.match(start)):
            yield line, f"a docstring begins with {found[0]!r}"
        for found in NEVER.finditer(re.sub(r"``[^`]*``|`[^`]*`", "", text)):
            yield line, f"{found[0]!r}"
        for sentence in sentences(text):
            if len(sentence.split()) > MOST_WORDS:
                yield line, f"a sentence of {len(sentence.split())} words: {sentence.split()[:6]}"


def main(arguments: list[str]) -> None:
    """Print the complaints about these files and folders."""
    total = 0
    for argument in arguments:
        path = Path(argument)
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            page = file.read_text()
            for line, text in complaints(page, ast.parse(page) if file.suffix == ".py" else None):
                print(f"{file}:{line}: {text}")
                total += 1
    print(total)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
