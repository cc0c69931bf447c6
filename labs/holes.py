"""Makes the starter of a lab: the real file without the functions that the student writes.

Ray: has no counterpart.

A function to write keeps its head, its decorators and its docstring; its body raises ``RuntimeError`` with the lab's name.
A function to remove leaves nothing: the student may write helpers of any name. Comments of a body go with it, also those
behind its last statement and above a function that is removed. All other lines stay as they are, so that the header with its
rules, the records and the fields are part of the hand-out. A name that the file does not have is an error: a lab notices
when the code is renamed.
"""

from __future__ import annotations

import ast

from labs.lab import Hole
from tests.syntax import Function, NoSuchFunction, find_function


def starter(source: str, lab: Hole) -> str:
    """Return the source with the lab's holes. Raises NoSuchFunction."""
    tree = ast.parse(source)
    lines = source.splitlines()
    replaced: dict[int, tuple[int, list[str]]] = {}
    for symbol in lab.write:
        function = _find(tree, symbol, lab)
        body = _after_docstring(function, lines)
        indent = " " * function.body[0].col_offset
        said = f'{indent}raise RuntimeError("lab {lab.name}: write {symbol}")'
        replaced[body] = (_last_line(function, lines), [said])
    for symbol in lab.remove:
        function = _find(tree, symbol, lab)
        replaced[_first_line(function, lines)] = (_last_line(function, lines), [])
    kept: list[str] = []
    number = 1
    while number <= len(lines):
        if number in replaced:
            last, instead = replaced[number]
            kept += instead
            number = last + 1
            while not instead and number <= len(lines) and not lines[number - 1].strip():
                number += 1  # blank lines behind a function that is removed
        else:
            kept.append(lines[number - 1])
            number += 1
    text = "\n".join(kept).rstrip() + "\n"
    ast.parse(text)
    return text


def lines_to_write(source: str, lab: Hole) -> int:
    """Return how many lines of the real file the starter lacks: an upper bound of what a student writes."""
    return len(source.splitlines()) - len(starter(source, lab).splitlines()) + len(lab.write)


def _find(tree: ast.Module, symbol: str, lab: Hole) -> Function:
    try:
        return find_function(tree, symbol)
    except NoSuchFunction as error:
        raise NoSuchFunction(f"lab {lab.name}: {lab.file}: {error}: change its lab.toml") from None


def _after_docstring(function: Function, lines: list[str]) -> int:
    """Return the first line of the body behind the docstring, comments included."""
    first = function.body[0]
    if ast.get_docstring(function, clean=False) is None:
        return _above_comments(first.lineno, lines)
    return (first.end_lineno or first.lineno) + 1


def _first_line(function: Function, lines: list[str]) -> int:
    first = min([function.lineno, *(decorator.lineno for decorator in function.decorator_list)])
    return _above_comments(first, lines)


def _last_line(function: Function, lines: list[str]) -> int:
    """Return the last line of the body: its last statement, or a comment behind it that is indented like a statement."""
    last = function.end_lineno or function.lineno
    for number in range(last + 1, len(lines) + 1):
        line = lines[number - 1]
        if _is_comment(line) and len(line) - len(line.lstrip()) > function.col_offset:
            last = number
        elif line.strip():
            break
    return last


def _above_comments(number: int, lines: list[str]) -> int:
    """Return the number of the first of the comments that stand directly above a line; without any, that of the line."""
    while number > 1 and _is_comment(lines[number - 2]):
        number -= 1
    return number


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")
