"""Remains of sessions that have ended, and their removal. Living sessions are in test_processes.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from minray.platform.process.session import (
    BEGINNING_S,
    INODE,
    LOCK,
    MOST_FINISHED,
    SPILL,
    hold_lock,
    make_spill_directories,
    remove_session,
    remove_spilled,
    sweep_sessions,
)
from minray.platform.storage.private_paths import Exposed


def session(root: Path, name: str = "session_1") -> Path:
    """One that has begun."""
    made = root / name
    for folder in (made, made / "sockets", made / "logs"):
        folder.mkdir(mode=0o700)
    return made


def with_log(root: Path, number: int) -> Path:
    """One that has said something."""
    made = session(root, f"session_{number:02}")
    (made / "logs" / "gcs.log").write_text("something")
    return made


# --- the logs of those that have ended


def test_logs_are_kept_of_the_newest_sessions(tmp_path: Path) -> None:
    for number in range(3 * MOST_FINISHED):
        remove_session(str(with_log(tmp_path, number)))
        assert len(os.listdir(tmp_path)) == min(number + 1, MOST_FINISHED)
    assert sorted(os.listdir(tmp_path)) == [f"session_{number}" for number in range(2 * MOST_FINISHED, 3 * MOST_FINISHED)]
    assert [os.listdir(left) for left in tmp_path.iterdir()] == MOST_FINISHED * [["logs"]]


def test_sessions_that_live_or_begin_are_not_counted(tmp_path: Path) -> None:
    living, beginning, bare = session(tmp_path, "session_00"), session(tmp_path, "session_01"), tmp_path / "session_02"
    bare.mkdir()
    lock = hold_lock(str(living))
    for number in range(3, 20):
        remove_session(str(with_log(tmp_path, number)))
    assert sweep_sessions(str(tmp_path)) == []
    assert living.exists() and beginning.exists() and bare.exists() and len(os.listdir(tmp_path)) == 3 + MOST_FINISHED
    os.close(lock)


def test_a_session_without_logs_is_not_left(tmp_path: Path) -> None:
    remove_session(str(session(tmp_path)))
    assert os.listdir(tmp_path) == []


def test_a_beginning_that_was_cut_short_is_swept_later(tmp_path: Path) -> None:
    bare = tmp_path / "session_1"
    bare.mkdir()
    assert sweep_sessions(str(tmp_path)) == []
    long_ago = bare.stat().st_mtime - 2 * BEGINNING_S
    os.utime(bare, (long_ago, long_ago))
    assert sweep_sessions(str(tmp_path)) == [str(bare)] and not bare.exists()


def test_a_link_is_no_session(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    with_log(other, 1)
    (other / "session_01" / LOCK).touch()
    (tmp_path / "session_01").symlink_to(other / "session_01")
    assert sweep_sessions(str(tmp_path)) == []
    assert sorted(os.listdir(other / "session_01")) == [LOCK, "logs", "sockets"]


# --- spilled objects


def spilling(tmp_path: Path, place: str) -> tuple[Path, Path]:
    """A session, and its directory of spilled objects, which has a file."""
    (tmp_path / "root").mkdir()
    made = session(tmp_path / "root")
    (own,) = make_spill_directories(str(made), [str(tmp_path / place)] if place else [])
    Path(own, "object").touch()
    return made, Path(own)


@pytest.mark.parametrize("place", ["", "elsewhere"])
def test_spilled_objects_go_with_their_session(tmp_path: Path, place: str) -> None:
    made, own = spilling(tmp_path, place)
    assert own.is_relative_to(tmp_path / place if place else made)
    remove_spilled(str(made))
    assert not own.exists()
    remove_session(str(made))
    assert os.listdir(tmp_path / "root") == [] and (not place or os.listdir(tmp_path / place) == [])


def test_nothing_is_removed_through_a_link_in_the_place_of_spilled_objects(tmp_path: Path) -> None:
    made, own = spilling(tmp_path, "elsewhere")
    home = tmp_path / "home"
    home.mkdir()
    (home / "thesis").touch()
    own.rename(tmp_path / "moved")
    own.symlink_to(home)
    remove_session(str(made))
    assert (home / "thesis").exists() and own.is_symlink()


def test_nothing_is_removed_from_another_directory_in_that_place(tmp_path: Path) -> None:
    made, own = spilling(tmp_path, "elsewhere")
    own.rename(tmp_path / "moved")
    own.mkdir()
    (own / "thesis").touch()
    remove_session(str(made))
    assert (own / "thesis").exists()


def test_a_directory_whose_inode_was_not_noted_goes_if_it_is_empty(tmp_path: Path) -> None:
    made, own = spilling(tmp_path, "elsewhere")
    (made / SPILL / f"0{INODE}").unlink()
    remove_spilled(str(made))
    assert (own / "object").exists()
    (own / "object").unlink()
    remove_spilled(str(made))
    assert not own.exists()


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_a_place_where_others_can_replace_what_is_there_is_refused(
    tmp_path: Path, mode: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("minray.platform.storage.private_paths._is_private_group", lambda user, group: False)
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(mode)
    with pytest.raises(Exposed, match=f"others may write to {tmp_path}/open"):
        make_spill_directories(str(session(tmp_path)), [str(tmp_path / "open")])
    assert os.listdir(tmp_path / "open") == []
    (tmp_path / "open").chmod(0o1777)
    assert make_spill_directories(str(session(tmp_path, "session_2")), [str(tmp_path / "open")])
