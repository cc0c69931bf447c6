"""Makes what is handed out: ``make labs`` runs this.

Ray: has no counterpart.

    python -m labs.archive [LAB...] [--to FOLDER] [--playground ADDRESS]

For each lab there are two files in the folder (``build/labs``):
  * ``LAB.tar.gz`` for students: the package with the lab's holes, the tests that the lab needs, and the grader.
  * ``LAB-gradescope.zip`` for a course on Gradescope: the same tree, into which the one submitted file is copied.

Rules
  * An archive has no solution: neither the lab's real functions nor tests that quote them (``tests/zoo``, ``tests/labs``).
  * Tests are found by their imports. So a lab names test files only, and what these need comes along.
  * The same checkout gives the same bytes: files are sorted, and have no owner and no time.
"""

from __future__ import annotations

import ast
import gzip
import io
import re
import shutil
import tarfile
import zipfile
from collections.abc import Iterable
from pathlib import Path
from tempfile import TemporaryDirectory

import click

from labs import holes, manifest, mutants, permalink, stories
from labs.lab import ROOT, Hole, Lab, Specification, Stories, load, names
from tests.labs.mutants import MUTANTS
from tests.labs.stories import STORIES, write_stories
from tests.zoo.transplant import mutate

ROOT_FILES = ("LICENSE", "_minray_pytestplugin.py", "pyproject.toml", "setup.cfg", "setup.py")
PAGES = ("docs/architecture.md", "docs/reading_order.md", "docs/simulation.md", "docs/specification.md")
"""Pages to which the pages of the labs send their readers."""
CAMPAIGN = ("tests/spec/trial.py", "tests/spec/strategies.py", "tests/spec/writer.py")
"""Modules that ``labs/scenarios.py`` imports."""
FRAME = ("tests/helpers.py",)
"""Modules of ``tests`` that every run of pytest needs, with the ``conftest.py`` above them."""
STARTER = "starter.txt"
"""File with which a student begins who writes no functions, in the folder of the lab."""
WITHHELD = ("tests/zoo/", "tests/labs/")
"""Folders whose files quote solutions."""
GRADER = (
    *("__init__", "contract", "grade", "lab", "limits", "manifest", "mutants"),
    *("permalink", "scenarios", "score", "stories"),
)
"""Modules of ``labs`` that run in an archive."""
GRADING = {Hole: "code.md", Specification: "tests.md", Stories: "answers.md"}
"""Kind of a lab -> the file of ``labs/handout`` that says how it is graded."""
WORKFLOW = ".github/workflows/classroom.yml"
MODE, MODE_OF_PROGRAMS = 0o644, 0o755
EPOCH = (1980, 1, 1, 0, 0, 0)
"""The earliest time that a zip file can have."""


class SolutionInside(Exception):
    """A file that an archive needs quotes a solution."""


def needed_tests(root: Path, starts: Iterable[str]) -> list[str]:
    """Return the test files that some need, themselves included: by imports, and with the ``conftest.py`` above each."""
    found: set[str] = set()
    waiting = list(starts)
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        found.add(name)
        path = root / name
        above = [folder / "conftest.py" for folder in Path(name).parents]
        waiting += [conftest.as_posix() for conftest in above if (root / conftest).is_file()]
        waiting += [other for other in _imported(path) if (root / other).is_file()]
    quoting = sorted(name for name in found if name.startswith(WITHHELD))
    if quoting:
        raise SolutionInside(f"{', '.join(quoting)} may not be handed out: do not import it from tests that a lab names")
    return sorted(found)


def _imported(path: Path) -> list[str]:
    """Return where the modules of ``tests`` that a file imports would be."""
    found: list[str] = []
    for node in ast.walk(ast.parse(path.read_text())):
        dotted: list[str] = []
        if isinstance(node, ast.Import):
            dotted = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            dotted = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
        found += [f"{name.replace('.', '/')}.py" for name in dotted if name.startswith("tests.")]
    return found


def unpack(lab: Lab, to: Path, root: Path = ROOT, playground: str = "") -> str:
    """Write the tree of an archive into an empty folder, and return the digest of its manifest.

    ``playground`` is the address to which links to failing scenarios lead; empty: there are no links.
    """
    files = [path.relative_to(root).as_posix() for path in sorted((root / "minray").rglob("*")) if path.is_file()]
    files += [*ROOT_FILES, *PAGES, *needed_tests(root, [*lab.test_files, *(CAMPAIGN if isinstance(lab, Hole) else FRAME)])]
    files += [f"labs/{name}.py" for name in GRADER]
    files += [path.relative_to(root).as_posix() for path in sorted((root / "labs" / lab.name).iterdir())]
    for name in files:
        if "__pycache__" not in name:
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(root / name, to / name)
    (to / lab.file).parent.mkdir(parents=True, exist_ok=True)
    (to / lab.file).write_text(starter(lab, root))
    if isinstance(lab, Specification):
        (to / "labs" / lab.name / mutants.PACKED).write_text(mutants.pack(mutants_of(lab, root)))
    if isinstance(lab, Stories):
        stories.write_hashes(to, lab, write_stories(to / "labs" / lab.name, STORIES))
    if playground:
        (to / permalink.ADDRESS).write_text(f"{playground}\n")
    (to / WORKFLOW).parent.mkdir(parents=True)
    (to / WORKFLOW).write_text(filled(root, "classroom.yml", lab))
    (to / "README.md").write_text(filled(root, "README.md", lab))
    return manifest.write(to, lab.file)


def starter(lab: Lab, root: Path) -> str:
    """Return the student's file as it is handed out."""
    if isinstance(lab, Hole):
        return holes.starter((root / lab.file).read_text(), lab)
    return (root / "labs" / lab.name / STARTER).read_text()


def mutants_of(lab: Specification, root: Path) -> list[mutants.PackedMutant]:
    """Return the mutants of a lab, made from the real file."""
    source = (root / lab.subject).read_text()
    return [mutants.PackedMutant(mutant.clause, mutate(source, mutant.mutation)) for mutant in MUTANTS]


def filled(root: Path, template: str, lab: Lab) -> str:
    """Return a template of ``labs/handout`` with what it says of the lab."""
    text = (root / "labs/handout" / template).read_text()
    grading = (root / "labs/handout" / GRADING[type(lab)]).read_text()
    values = {"LAB": lab.name, "TITLE": lab.title, "FILE": lab.file, "GRADING": grading.strip()}
    return re.sub(r"@(\w+)@", lambda found: values[found[1]], text)


def pack(lab: Lab, to: Path, root: Path = ROOT, playground: str = "") -> tuple[list[Path], str]:
    """Write both files of a lab; return them, and the digest of the manifest inside."""
    to.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix="minray-labs-") as name:
        tree = Path(name) / lab.name
        tree.mkdir()
        digest = unpack(lab, tree, root, playground)
        tar, archive = to / f"{lab.name}.tar.gz", to / f"{lab.name}-gradescope.zip"
        _write_tar(tree, tar)
        _write_zip(tree, archive, {name: filled(root, name, lab) for name in ("setup.sh", "run_autograder")})
    return [tar, archive], digest


def _files(tree: Path) -> list[Path]:
    return sorted(path for path in tree.rglob("*") if path.is_file())


def _write_tar(tree: Path, to: Path) -> None:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for path in _files(tree):
            entry = tarfile.TarInfo(f"{tree.name}/{path.relative_to(tree).as_posix()}")
            entry.size, entry.mode = path.stat().st_size, MODE
            tar.addfile(entry, io.BytesIO(path.read_bytes()))
    to.write_bytes(gzip.compress(buffer.getvalue(), mtime=0))


def _write_zip(tree: Path, to: Path, programs: dict[str, str]) -> None:
    """Write Gradescope's archive: its two programs at the top, and the tree in a folder of its own."""
    with zipfile.ZipFile(to, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in programs.items():
            _add(archive, name, text.encode(), MODE_OF_PROGRAMS)
        for path in _files(tree):
            _add(archive, f"{tree.name}/{path.relative_to(tree).as_posix()}", path.read_bytes(), MODE)


def _add(archive: zipfile.ZipFile, name: str, data: bytes, mode: int) -> None:
    entry = zipfile.ZipInfo(name, EPOCH)
    entry.compress_type = zipfile.ZIP_DEFLATED
    entry.external_attr = mode << 16
    archive.writestr(entry, data)


@click.command()
@click.argument("chosen", metavar="[LAB]...", nargs=-1)
@click.option("--to", type=click.Path(file_okay=False, path_type=Path), default=ROOT / "build/labs", help="Folder.")
@click.option("--playground", default="", metavar="ADDRESS", help="The playground's page, for links to failures.")
def main(chosen: tuple[str, ...], to: Path, playground: str) -> None:
    """Write the archives of these labs, or of all."""
    for name in chosen or names():
        files, digest = pack(load(name), to, playground=playground)
        click.echo(f"{name}: {' '.join(str(path) for path in files)}; digest of the manifest: {digest}")


if __name__ == "__main__":
    main()
