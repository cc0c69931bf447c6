"""The hashes of the files of an archive, by which the grader notices files that were edited, removed or added.

Ray: has no counterpart.

The manifest covers every file but the student's own. Files may be added below ``tests/mine`` alone: another ``conftest.py``
or a module with the name of a library could change what the tests see. An edited test may come with an edited
manifest. So the grader prints the manifest's own digest, and a teacher compares it with what ``make labs`` has printed.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

NAME = "labs/manifest.json"
FOLDERS = ("minray", "tests", "labs")
"""Folders in which no file may be added."""
FOR_STUDENTS = "tests/mine/"
"""Folder for tests of the student's own."""
SHADOWING = (".py", ".ini", ".cfg", ".toml", ".pth")
"""Endings of files at the root that change what Python or pytest does."""


def digest_of(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write(root: Path, own_file: str) -> str:
    """Write the manifest of an archive, and return its digest; ``own_file`` is the student's."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    hashes = {name: digest_of(path) for path in files if (name := path.relative_to(root).as_posix()) not in (own_file, NAME)}
    (root / NAME).write_text(json.dumps({"own_file": own_file, "files": hashes}, indent=1) + "\n")
    return digest_of(root / NAME)


def is_archive(root: Path) -> bool:
    return (root / NAME).is_file()


def changes(root: Path) -> list[str]:
    """Return one sentence for each file that is not as it was handed out."""
    manifest = json.loads((root / NAME).read_text())
    hashes: dict[str, str] = manifest["files"]
    found = []
    for name, digest in hashes.items():
        if not (root / name).is_file():
            found.append(f"{name} was removed")
        elif digest_of(root / name) != digest:
            found.append(f"{name} was edited")
    known = {*hashes, manifest["own_file"], NAME}
    return found + [f"{name} was added" for name in _present(root) if name not in known]


def _present(root: Path) -> list[str]:
    """Return the names of files that could change what the grader sees."""
    paths = [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.is_file()]
    paths += [path for path in root.iterdir() if path.is_file() and path.suffix in SHADOWING]
    names = sorted(path.relative_to(root).as_posix() for path in paths if "__pycache__" not in path.parts)
    return [name for name in names if not name.startswith(FOR_STUDENTS)]
