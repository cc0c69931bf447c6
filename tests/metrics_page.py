"""Writes the table of system metrics into docs/metrics.md, from their definitions: ``python -m tests.metrics_page``."""

from __future__ import annotations

from pathlib import Path

from minray.observability.metric_definitions import DEFINITIONS, OWN_DEFINITIONS, PREFIX, WHERE, MetricMeaning

PAGE = Path(__file__).parent.parent / "docs" / "metrics.md"
BEGIN, END = "<!-- table of definitions -->\n", "<!-- end of table -->\n"


def table() -> str:
    """Return the table as Markdown."""
    metrics = {PREFIX + name: definition for name, definition in DEFINITIONS.items()} | OWN_DEFINITIONS
    rows = [_row(name, metrics[name]) for name in sorted(metrics)]
    head = "| metric | kind | about | labels of its own | unit | meaning |\n|---|---|---|---|---|---|\n"
    where = "".join(f"* **{about}**: {', '.join(f'`{label}`' for label in labels)}\n" for about, labels in WHERE.items())
    return f"{where}\n{head}{''.join(rows)}"


def _row(name: str, definition: MetricMeaning) -> str:
    labels = ", ".join(f"`{label}`" for label in definition.labels)
    values = f". {definition.values}" if definition.values else ""
    cells = [f"`{name}`", definition.kind, definition.about, labels, definition.unit, f"{definition.meaning}{values}."]
    return "| " + " | ".join(cells) + " |\n"


def page_with_table(page: str) -> str:
    """Return the page with the table as it should be."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{table()}\n{END}{after}"


if __name__ == "__main__":
    PAGE.write_text(page_with_table(PAGE.read_text()))
