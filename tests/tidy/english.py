"""Checks the plain English that a program can check: openings, pronouns, the length of sentences.

Docstrings (those of attributes too), comments, pages and the README are read here. A sentence ends with a full stop, a
question mark, a colon before an indented block, or an empty line. Text in backticks or parentheses counts as one word.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
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


def prose(path: Path) -> Iterator[tuple[int, str, bool]]:
    """(line, text, whether it is a docstring) of each docstring and comment of a file, or of each paragraph of a page."""
    text = path.read_text()
    if path.suffix != ".py":
        yield from _paragraphs(text)
        return
    blocks: list[ast.AST] = [ast.parse(text)]
    for block in blocks:  # Only statements are looked at: expressions are most of the tree, and hold no docstring.
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            blocks += getattr(block, part, [])
        if isinstance(block, ast.Expr) and isinstance(block.value, ast.Constant) and isinstance(block.value.value, str):
            yield block.lineno, block.value.value, True
    comment, first, last = "", 0, 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT and not re.match(r"#\s*(noqa|type:|---|!)", token.string):
            if token.start[0] != last + 1 and comment:
                yield first, comment, False
                comment = ""
            first = first if comment else token.start[0]
            last = token.start[0]
            comment += token.string.lstrip("# ") + "\n"
    if comment:
        yield first, comment, False


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


def complaints(path: Path) -> Iterator[tuple[int, str]]:
    """(line, what is wrong) of one file."""
    for line, text, is_docstring in prose(path):
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
            for line, text in complaints(file):
                print(f"{file}:{line}: {text}")
                total += 1
    print(total)


if __name__ == "__main__":
    import sys

    main(sys.argv[1:])
