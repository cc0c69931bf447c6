"""The notebooks of examples/notebooks, executed from the first cell to the last; what does not vary is compared."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

import pytest

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "notebooks"
LAST = {
    "broadcast": {"tasks": 30, "sums are right": True, "nodes that ran tasks": 3, "nodes that have a copy": 3},
    "cancel_and_wait": {"winner": 0, "cancelled": 5},
    "dereferencing_too_early": {"by reference": (0, 0)},
    "errors_and_retries": {
        "exception": ("pears", 3),
        "attempts after exceptions": 3,
        "attempts after a crash": 2,
        "crash for good": "WorkerCrashedError",
        "too slow": "GetTimeoutError",
    },
    "mistake_get_in_a_loop": {"get in the loop": 1, "get after the loop": 4},
    "mistake_large_argument_by_value": None,
    "nested_tasks": None,
    "over_constrained": {"half a GPU each": ["trained with 1 batch"] * 2},
    "pi_monte_carlo": 3.142416,
    "several_nodes": {"nodes": 3, "the resource led to its node": True, "affinity led to each node": True},
}
"""Notebook -> the value of its last cell, and of a dict the entries that do not vary; None: it is too long, or varies."""


def executed(name: str) -> list[Any]:
    """The cells of a notebook with code, after they have run. Raises CellExecutionError if one raises."""
    import nbclient
    import nbformat

    notebook = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    nbformat.validate(notebook)
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def value_of(cell: Any, kind: str = "text/plain") -> str:
    """The value of a cell's last line."""
    found: list[str] = [output.data[kind] for output in cell.outputs if output.output_type == "execute_result"]
    return found[-1]


def shown_by(cell: Any) -> list[str]:
    """The lines that a cell has printed, and its bars, without names of tasks and without times."""
    texts = [output.text for output in cell.outputs if output.output_type == "stream" and output.name == "stdout"]
    bars = [output.data["text/plain"] for output in cell.outputs if output.output_type == "display_data"]
    lines = [re.sub(r"^\([^)]*\) ", "", line) for text in (*texts, *bars) for line in text.splitlines()]
    return sorted(re.sub(r"\|.*\| (\S+) \[.*?( \d+ failed)?\]", r"| \1\2", line) for line in lines)


@pytest.mark.parametrize("name", LAST)
def test_an_example(name: str) -> None:
    value, wanted = ast.literal_eval(value_of(executed(name)[-1])), LAST[name]
    if isinstance(wanted, dict):
        assert {key: value[key] for key in wanted} == wanted
    else:
        assert wanted in (None, value)


def test_every_notebook_is_executed() -> None:
    assert sorted(path.stem for path in FOLDER.glob("*.ipynb")) == sorted([*LAST, "tour"])


def test_the_tour() -> None:
    cells = executed("tour")
    start, square, measure, load, large, failed, waiting, cancel, counter, again, nodes, actors, _ = cells
    assert "CPU: 2 of 2 free" in value_of(start, "text/html")
    assert (value_of(square), shown_by(square)) == ("[4, 9]", ["squaring 2", "squaring 3"])
    assert shown_by(measure) == ["measure: 100%| 20/20 1 failed", "the sum is 183"]
    assert (value_of(load), shown_by(load)) == ("80", ["load: 100%| 30/30", "load: 100%| 50/50"])
    assert "1,000,073 bytes" in value_of(large, "text/html")
    assert "ValueError: number 7 &lt;cannot&gt; be measured" in value_of(failed, "text/html")
    assert "no node has GPU" in value_of(waiting, "text/html")
    assert shown_by(cancel) == ["cancelled"] and shown_by(counter) == ["[1, 2, 3]"]
    assert "ALIVE" in value_of(counter, "text/html") and value_of(again) == "[4, 'not counted: 1']"
    assert value_of(nodes, "text/html").count("<tr>") == 2 and "Counter" in value_of(actors, "text/html")
