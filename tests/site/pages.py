"""Runs the code that pages show, and compares its output with the output that they show.

    python -m tests.site.pages docs/learn/01-futures.md

Rules of a page
  * A ``python`` block is a whole program. If its first line is a comment with a file's name, such as ``# square.py``, the
    program has that name, and the page's later programs and commands can use the file.
  * A ``text`` block after it, with at most one paragraph between the two, is everything that the program prints on standard
    output. What goes to standard error, such as the line that ``init`` logs, is not shown.
  * A ``console`` block has lines ``$ command`` with what the command prints beneath them. A command is ``python`` or
    ``minray`` with its arguments, perhaps after ``NAME=value``. A backslash at its end continues it.
  * In a shown output, a line ``...`` stands for any number of lines, and ``...`` within a line stands for any characters.
    Blanks at the ends of lines do not count.
  * The output of a command has both, as in a terminal: standard output and standard error.
  * A program ends without an error. A command ends with exit status 0, unless its line ends with ``# exit status N``.
  * All blocks of a page run one after the other, in one directory of their own.
  * A block that shows code of minray is a ``{literalinclude}``, and does not run. Blocks inside other directives (a fence
    with more than three backticks, or colons) and inside ``<details>`` count as well.
  * ``NOT_RUN`` lists the blocks that do not run, with a reason for each. Pages of ``docs/learn/`` have none.
"""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM_S = 100
"""Seconds after which a program or command has failed."""
FENCE = re.compile(r"^( *)```(?!`)(.*)$")
FILE_NAME = re.compile(r"# (\w+\.py)$")
PROMPT = "$ "
EXIT_STATUS = re.compile(r"\s+# exit status (\d+)$")

NOT_RUN = {
    "docs/a_retried_return.md": {"# LeaseBroker.": "two versions side by side", "# driver/0": "two programs side by side"},
    "docs/debugging.md": {
        "import minray": "stops in pdb and waits for a terminal; tests/debugging has such programs",
        "def listen():": "waits for an editor",
        "def connect():": "needs PyCharm's package and PyCharm",
    },
    "docs/gpus.md": {"import minray as ray": "needs a GPU"},
    "docs/ray_programs.md": {"from minray.run_as_ray": "imports a library of the reader's"},
    "docs/remote_clients.md": {"import minray": "connects to a head at an address of an example"},
}
"""Page -> beginning of the first line of a block that does not run -> why it does not."""


@dataclass(frozen=True)
class Block:
    """A fenced block of a page."""

    line: int
    """Number of its first line, the one after the fence."""
    language: str
    text: str
    paragraphs_before: int
    """Paragraphs between this block and the one before it; a heading counts as many."""

    @property
    def first_line(self) -> str:
        return self.text.partition("\n")[0].strip()


@dataclass
class Step:
    """A program or a command of a page, and what it must print."""

    line: int
    """Number of the line of the page where it begins."""
    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    exit_status: int = 0
    file: str = ""
    """Name of the file that is written first; empty for a command."""
    source: str = ""
    shown: str | None = None
    """Output on the page; None if the page shows none."""


def blocks(text: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page in order."""
    inside: list[str] | None = None
    language, indent, first, paragraphs, blank = "", "", 0, 0, True
    for number, line in enumerate(text.splitlines(), 1):
        fence = FENCE.match(line)
        if inside is not None:
            if fence and not fence[2].strip():
                yield Block(first, language, "\n".join(part.removeprefix(indent) for part in inside), paragraphs)
                inside, paragraphs, blank = None, 0, True
            else:
                inside.append(line)
        elif fence:
            inside, indent, language, first = [], fence[1], fence[2].strip(), number + 1
        else:
            begins = bool(line.strip()) and blank
            paragraphs += 100 if line.startswith("#") else begins
            blank = not line.strip()
    if inside is not None:
        raise ValueError(f"line {first - 1}: the block has no end")


def steps(page: str, text: str) -> list[Step]:
    """Return the programs and commands of a page, in the order in which they run.

    :param page: path of the page, from the root of the checkout.
    :raises ValueError: a block breaks a rule of pages; the message has the line.
    """
    found: list[Step] = []
    program: Step | None = None  # whose output the next block may be
    for block in blocks(text):
        if block.language == "text" and program is not None and block.paragraphs_before <= 1:
            program.shown = block.text
        program = None
        if block.first_line.startswith(tuple(NOT_RUN.get(page, ()))):
            continue
        if block.language == "python":
            program = _program(block, len(found))
            found.append(program)
        elif block.language == "console":
            found += _commands(block)
    return found


def _program(block: Block, number: int) -> Step:
    try:
        compile(block.text, f"line {block.line}", "exec")
    except SyntaxError as error:
        raise ValueError(f"line {block.line}: the program does not compile: {error}") from None
    named = FILE_NAME.match(block.first_line)
    name = named[1] if named else f"program_{number}.py"
    return Step(block.line, [sys.executable, name], file=name, source=block.text + "\n")


def _commands(block: Block) -> list[Step]:
    found: list[Step] = []
    lines = iter(enumerate(block.text.splitlines(), block.line))
    for number, line in lines:
        if line.startswith(PROMPT):
            command = line.removeprefix(PROMPT)
            while command.endswith("\\"):
                command = command[:-1] + next(lines, (0, ""))[1]
            found.append(_command(number, command))
        elif not found:
            raise ValueError(f"line {number}: a console block begins with '$ ' and a command")
        else:
            found[-1].shown = line if found[-1].shown is None else f"{found[-1].shown}\n{line}"
    if not found:
        raise ValueError(f"line {block.line}: a console block without a command")
    return found


def _command(number: int, command: str) -> Step:
    status = EXIT_STATUS.search(command)
    words = shlex.split(command[: status.start()] if status else command, comments=True)
    environment = {}
    while words and re.match(r"[A-Z_]+=", words[0]):
        name, _, environment[name] = words.pop(0).partition("=")
    if not words or words[0] not in ("python", "minray"):
        raise ValueError(f"line {number}: a command is python or minray, not {command!r}; a block of others is 'bash'")
    start = [sys.executable] if words[0] == "python" else [sys.executable, "-m", "minray"]
    return Step(number, [*start, *words[1:]], environment, int(status[1]) if status else 0)


def matches(shown: str, printed: str) -> bool:
    """Tell whether an output is what a page shows. A line ``...`` is any lines, and ``...`` in a line any characters."""
    pattern = ""
    for line in _lines(shown):
        if line.strip() == "...":
            pattern += r"(?:.*\n)*"
        else:
            pattern += ".*".join(map(re.escape, line.split("..."))) + r"\n"
    return re.fullmatch(pattern, "".join(line + "\n" for line in _lines(printed))) is not None


def _lines(text: str) -> list[str]:
    return [line.rstrip() for line in text.rstrip().splitlines()]


def run(step: Step, folder: Path) -> str:
    """Run a program or command in a folder; return the complaint, empty if it did and printed what the page says."""
    if step.file:
        (folder / step.file).write_text(step.source)
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH", "")]))
    # Unbuffered, so that both outputs are in the order of a terminal; 80 columns, because help texts are wrapped to them.
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1", "COLUMNS": "80", **step.environment}
    errors = subprocess.PIPE if step.file else subprocess.STDOUT
    try:
        done = subprocess.run(
            step.command, cwd=folder, env=environment, timeout=PROGRAM_S, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return f"line {step.line}: not over after {PROGRAM_S} s; so far:\n{error.output!r}"
    if done.returncode != step.exit_status:
        return f"line {step.line}: exit status {done.returncode}, with the output\n{done.stdout}{done.stderr or ''}"
    if step.shown is not None and not matches(step.shown, done.stdout):
        return f"line {step.line}: the page shows\n{step.shown}\nbut printed is\n{done.stdout}"
    return ""


def run_page(page: str, folder: Path) -> list[str]:
    """Run the programs and commands of a page in a folder; return the complaints."""
    complaints = [run(step, folder) for step in steps(page, (ROOT / page).read_text())]
    return [f"{page}, {complaint}" for complaint in complaints if complaint]


def pages() -> list[str]:
    """Return the paths of the README and all pages of ``docs/`` from the root of the checkout."""
    found = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found if "_build" not in path.parts)


if __name__ == "__main__":
    wrong = []
    for argument in sys.argv[1:]:
        with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory(prefix="minray-") as sessions:
            os.environ["MINRAY_TMPDIR"] = sessions  # no program joins a cluster that runs on this machine
            wrong += run_page(Path(argument).resolve().relative_to(ROOT).as_posix(), Path(name))
    print("\n".join(wrong) or "all blocks do what the pages show")
    raise SystemExit(bool(wrong))
