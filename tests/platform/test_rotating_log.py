"""Log files that get a number when they are full."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minray.platform.process.rotating_log import RotatingLog


def contents(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in sorted(folder.iterdir())}


def test_the_newest_files_are_kept(tmp_path: Path) -> None:
    log = RotatingLog(str(tmp_path / "log"), 10, 2)
    for number in range(10):
        assert log.write(f"line {number}\n") == 7
    log.close()
    assert contents(tmp_path) == {"log": "line 9\n", "log.1": "line 8\n", "log.2": "line 7\n"}
    assert (tmp_path / "log").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("most", "backups", "left"),
    [(0, 2, {"log": 5}), (10, 0, {"log": 1}), (14, 9, {"log": 1, "log.1": 2, "log.2": 2})],
)
def test_what_is_kept_can_be_chosen(tmp_path: Path, most: int, backups: int, left: dict[str, int]) -> None:
    log = RotatingLog(str(tmp_path / "log"), most, backups)
    for number in range(5):
        log.write(f"line {number}\n")
    log.close()
    assert {name: text.count("\n") for name, text in contents(tmp_path).items()} == left


def test_what_is_there_counts_and_what_is_too_long_stays_in_one_file(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("before\n")
    log = RotatingLog(str(tmp_path / "log"), 10, 5)
    log.write("x" * 30)
    log.write("\udcff")
    log.flush()
    log.close()
    log.close()
    assert contents(tmp_path) == {"log": "\\udcff", "log.1": "x" * 30, "log.2": "before\n"}


def test_descriptors_follow_from_file_to_file(tmp_path: Path) -> None:
    beside = os.open(os.devnull, os.O_WRONLY)
    log = RotatingLog(str(tmp_path / "log"), 10, 1, standard=(beside,))
    os.write(beside, b"a trace\n")
    log.write("line 1\n")
    log.write("line 2\n")
    os.write(beside, b"another\n")
    log.close()
    os.close(beside)
    assert contents(tmp_path) == {"log": "line 2\nanother\n", "log.1": "a trace\nline 1\n"}
