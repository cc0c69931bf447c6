"""Write the notebooks of this folder from programs: the examples named in `EXAMPLES`, and `tour.py`.

    python examples/notebooks/write.py

A program is the only source of its notebook. A notebook has no outputs, so that two versions of it can be compared. Of an
example, the text at its beginning, its imports and its definitions become cells, and the last cell calls `main()`. The tour
has marks of its own: `# %%` begins a cell, and `# %% [markdown]` a cell of text.
"""

import ast
import json
import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
EXAMPLES = (
    "broadcast",
    "cancel_and_wait",
    "dereferencing_too_early",
    "errors_and_retries",
    "mistake_get_in_a_loop",
    "mistake_large_argument_by_value",
    "nested_tasks",
    "over_constrained",
    "pi_monte_carlo",
    "several_nodes",
)
"""Examples that need nothing but minray and end within seconds. The others are programs with files, networks or hours."""
TOUR = "tour"
Cell = tuple[str, str]
"""Kind of a cell (`markdown` or `code`), and its text."""


def cells_of_example(name: str, source: str) -> list[Cell]:
    """Cut an example at its definitions; raise ValueError if it has no text at its beginning or no `main`."""
    module = ast.parse(source)
    text = ast.get_docstring(module)
    last = module.body[-1]
    if text is None or not any(isinstance(part, ast.FunctionDef) and part.name == "main" for part in module.body):
        raise ValueError(f"examples/{name}.py has no text at its beginning, or no main()")
    if not isinstance(last, ast.If) or "__main__" not in ast.unparse(last.test):
        raise ValueError(f'examples/{name}.py does not end with if __name__ == "__main__"')
    title, _, rest = text.partition("\n")
    cells = [("markdown", f"# {title.rstrip('.:')}\n\n{rest.strip()}\n\nThe program is `examples/{name}.py`.")]
    lines = source.splitlines()
    begun: list[str] = []
    for before, part in zip(module.body, module.body[1:], strict=False):
        is_defined = isinstance(part, ast.FunctionDef | ast.ClassDef)
        if begun and (is_defined or isinstance(before, ast.FunctionDef | ast.ClassDef)):
            cells.append(("code", "\n".join(begun).strip("\n")))
            begun = []
        if part is not last and not _is_for_options(part):
            begun += lines[(before.end_lineno or 0) : part.end_lineno]
    return [*cells, ("code", "main()")]


def _is_for_options(part: ast.stmt) -> bool:
    """Whether a line imports what only the options of a program need, and no notebook."""
    return isinstance(part, ast.Import) and [name.name for name in part.names] == ["argparse"]


def cells_of_tour(source: str) -> list[Cell]:
    """Cut a program at its marks."""
    cells = []
    for piece in source.split("# %%")[1:]:
        head, _, body = piece.partition("\n")
        if head.strip() == "[markdown]":
            text = [line.removeprefix("#").removeprefix(" ") for line in body.strip().splitlines()]
            cells.append(("markdown", "\n".join(text)))
        else:
            cells.append(("code", body.strip("\n")))
    return cells


def notebook(cells: list[Cell]) -> str:
    """Return the text of a notebook, in version 4.5 of its format."""
    described = []
    for number, (kind, text) in enumerate(cells):
        cell: dict[str, object] = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}}
        described.append(cell | {"source": text.splitlines(keepends=True)})
        if kind == "code":
            described[-1] |= {"execution_count": None, "outputs": []}
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    whole = {"cells": described, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(whole, indent=1, ensure_ascii=False) + "\n"


def notebooks() -> dict[str, str]:
    """Return the text of each notebook by its name."""
    found = {name: cells_of_example(name, (FOLDER.parent / f"{name}.py").read_text()) for name in EXAMPLES}
    found[TOUR] = cells_of_tour((FOLDER / f"{TOUR}.py").read_text())
    return {name: notebook(cells) for name, cells in found.items()}


if __name__ == "__main__":
    for name, text in notebooks().items():
        (FOLDER / f"{name}.ipynb").write_text(text)
    print(f"{len(EXAMPLES) + 1} notebooks in {FOLDER}", file=sys.stderr)
