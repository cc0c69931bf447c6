"""Print the core path as a table: ``python -m tests.tidy.core_path``.

The core path is what docs/reading_order.md names, chapter by chapter. A row is a chapter or a file with its lines of code.
``rules.core_path`` holds the limits.
"""

from __future__ import annotations

from pathlib import Path

from tests.tidy import rules

ROOT = Path(__file__).resolve().parents[2]


def table(root: Path) -> list[str]:
    """The lines of the table, the total last."""
    lines = []
    chapters = rules.chapters(root)
    for chapter in chapters:
        lines.append(f"{chapter.code_lines:6,}  {chapter.title}")
        for source in chapter.files:
            mark = "  (larger than the limit)" if source.path in rules.LARGE_ON_THE_CORE_PATH else ""
            lines.append(f"{len(source.code_lines):12,}  {source.path}{mark}")
    files = sum(len(chapter.files) for chapter in chapters)
    total = sum(chapter.code_lines for chapter in chapters)
    return [*lines, f"{total:6,}  lines of code in {files} files and {len(chapters)} chapters"]


if __name__ == "__main__":
    print("\n".join(table(ROOT)))
