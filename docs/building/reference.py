"""The parts of the pages that are generated from the code: settings, exceptions, commands, labs.

A page has the line ``<!-- generated: NAME -->``, in whose place the part stands when Sphinx reads the page.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

import minray
from minray import exceptions
from minray.cli.main import main
from minray.common import config
from minray.common.bounds import Bounds
from minray.common.config import SystemConfig

if TYPE_CHECKING:
    from sphinx.application import Sphinx

HELP_WIDTH = 92
"""Columns of a help text, which a page shows without scrolling."""
FIRST = ["init", "shutdown", "remote", "get", "put", "wait", "cancel", "kill", "get_actor", "method", "why"]
"""Functions of ``minray`` that most programs need, in the order in which a reader meets them."""
LABS = Path(__file__).resolve().parents[2] / "labs/README.md"
MARK = re.compile(r"<!-- generated: (\w+) -->")


def settings() -> str:
    """Return the entries of ``_system_config``: those that programs may change, then the bounds of memory and traffic."""
    titles = {SystemConfig: "Ordinary settings", Bounds: "Bounds of memory and traffic"}
    return "\n".join(f"## {title}\n\n{_list_of(record)}" for record, title in titles.items())


def _list_of(record: type) -> str:
    entries = []
    for name, kind, default, meaning in _fields(record):
        entries.append(f"`{name}` ({kind}, by default `{default}`)\n: {_as_markdown(meaning + _range(name))}\n")
    return "\n".join(entries)


def _fields(record: type) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, type, default and meaning of each field; those without a docstring share the one that comes next."""
    (definition,) = ast.parse(inspect.getsource(record)).body
    assert isinstance(definition, ast.ClassDef)
    waiting: list[ast.AnnAssign] = []
    for statement in definition.body:
        if isinstance(statement, ast.AnnAssign):
            waiting.append(statement)
        elif isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
            for field in waiting:
                name, meaning = ast.unparse(field.target), inspect.cleandoc(statement.value.value)
                yield name, ast.unparse(field.annotation), _shown(getattr(record(), name)), meaning
            waiting = []


def _shown(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)


def _range(name: str) -> str:
    if name in config.CHOICES:
        return f" One of {', '.join(f'`{choice!r}`' for choice in config.CHOICES[name])}."
    return f" At least {config.LEAST[name]:,}." if name in config.LEAST else ""


def _as_markdown(text: str) -> str:
    text = re.sub(r"\s*\((?:[GSLC]\d+(?:, )?)+\)", "", " ".join(text.split()))  # numbers of guarantees
    return text.replace("``", "`")


def exceptions_list() -> str:
    """Return all exceptions: each with its base, and when it is raised."""
    entries = []
    for name in exceptions.__all__:
        found = getattr(exceptions, name)
        kinds = " and ".join(f"`{base}`" for above in found.__bases__ for base in _public(above))
        first = (inspect.getdoc(found) or "").partition("\n\n")[0]
        entries.append(f"{{py:exc}}`~minray.exceptions.{name}`, a {kinds}\n: {_as_markdown(first)}\n")
    return "\n".join(entries)


def _public(base: type) -> Iterator[str]:
    """Yield the nearest ancestors that have a public name."""
    if base.__name__ in exceptions.__all__ or base.__module__ == "builtins":
        yield base.__name__
    else:
        for above in base.__bases__:
            yield from _public(above)


def commands() -> str:
    """Return what ``--help`` prints for each command, under a heading for each."""
    return "\n".join(_command(main, click.Context(main, info_name="minray", terminal_width=HELP_WIDTH)))


def _command(command: click.Command, context: click.Context) -> Iterator[str]:
    yield f"## `{context.command_path}`\n\n````text\n{command.get_help(context)}\n````\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from _command(inner, click.Context(inner, context, info_name=name, terminal_width=HELP_WIDTH))


def names() -> str:
    """Return the functions of ``minray``, those of most programs first, and then its classes."""
    there = {name: getattr(minray, name) for name in minray.__all__}
    functions = [name for name, found in there.items() if inspect.isroutine(found)]
    classes = [name for name, found in there.items() if inspect.isclass(found) and found.__name__ == name]
    functions.sort(key=lambda name: (FIRST.index(name) if name in FIRST else len(FIRST), name))
    parts = ["## Functions", *(_described("autofunction", name) for name in functions)]
    return "\n\n".join([*parts, "## Classes", *(_described("autoclass", name) for name in sorted(classes))])


def _described(directive: str, name: str) -> str:
    members = "   :members:\n" if directive == "autoclass" else ""
    return f"```{{eval-rst}}\n.. {directive}:: minray.{name}\n{members}```"


def labs() -> str:
    """Return the table of labs, with folders in place of the links to handouts, of which the site has no pages."""
    lines = LABS.read_text().splitlines()
    table = "\n".join(line for line in lines if line.startswith("|"))
    return re.sub(r"\[([^\]]+)\]\(([^)/]+)/README\.md\)", r"\1 (`labs/\2`)", table)


PARTS: dict[str, Callable[[], str]] = {
    "names": names, "settings": settings, "exceptions": exceptions_list, "commands": commands,
    "labs": labs,
}  # fmt: skip
"""Name in a page's mark -> the function that makes the part."""


def fill(app: Sphinx, name: str, source: list[str]) -> None:
    """Put the generated parts into a page."""
    source[0] = MARK.sub(lambda mark: PARTS[mark[1]](), source[0])


def for_users(app: Sphinx, what: str, name: str, thing: object, options: object, lines: list[str]) -> None:
    """Keep of a module's docstring the first paragraph, and make links of the pages that a docstring mentions.

    The rest of a module's docstring is for readers of its code.
    """
    if what == "module" and "" in lines:
        del lines[lines.index("") :]
    lines[:] = [re.sub(r"``docs/(\w+)\.md``", r":doc:`/\1`", line) for line in lines]


def skip_second_names(app: Sphinx, what: str, name: str, thing: object, skip: bool, options: object) -> bool | None:
    """Leave out a class's second name, such as ``ObjectID``, which would describe the class twice."""
    return True if what == "module" and inspect.isclass(thing) and thing.__name__ != name else None


def setup(app: Sphinx) -> None:
    app.connect("source-read", fill)
    app.connect("autodoc-skip-member", skip_second_names)
    app.connect("autodoc-process-docstring", for_users)
