"""``make test-anywhere``: the places have the paths that they stand for, and the copies have the files of the checkout."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests import anywhere


def test_the_places_have_the_paths_that_they_stand_for() -> None:
    below = Path("/tmp/x")
    assert anywhere.place("minray", below).name == "minray"
    assert len(str(anywhere.place("long", below))) == 150
    assert " " in anywhere.place("space", below).name


def test_a_copy_has_the_tracked_files_as_they_are_now(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    (source / "minray").mkdir(parents=True)
    for name in ("setup.cfg", "minray/kept.py", "minray/removed.py"):
        (source / name).write_text("committed")
    subprocess.run(["git", "init", "--quiet"], cwd=source, check=True)
    subprocess.run(["git", "add", "."], cwd=source, check=True)
    (source / "minray" / "kept.py").write_text("changed")
    (source / "minray" / "removed.py").unlink()
    (source / "minray" / "new.py").write_text("untracked")
    anywhere.copy_checkout(source, target)
    copied = {str(path.relative_to(target)): path.read_text() for path in target.rglob("*") if path.is_file()}
    assert copied == {"setup.cfg": "committed", "minray/kept.py": "changed"}


def test_the_tests_that_read_paths_exist() -> None:
    assert [path for path in anywhere.READ_PATHS if not (anywhere.CHECKOUT / path).exists()] == []
