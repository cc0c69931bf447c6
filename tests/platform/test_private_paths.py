"""Directories that no other user can lead elsewhere: what is used, what is refused, what is removed."""

from __future__ import annotations

import errno
import grp
import os
import pwd
import stat
from pathlib import Path

import pytest

from minray.platform.storage import private_paths
from minray.platform.storage.private_paths import Exposed, PrivateDirectory, make_private, remove_tree, resolve
from tests.platform.second_user import NOBODY, needs_second_user, shared_directory


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_what_is_missing_is_made_for_this_user_alone(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        assert make_private(f"{tmp_path}/a/./b/../c") == f"{tmp_path}/a/c"
    finally:
        os.umask(umask)
    assert mode(tmp_path / "a") == mode(tmp_path / "a" / "b") == mode(tmp_path / "a" / "c") == 0o700
    assert make_private(f"{tmp_path}/a") == f"{tmp_path}/a"


def test_a_missing_directory_is_made_only_if_asked(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        resolve(f"{tmp_path}/a")
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError) as caught:
        resolve(f"{tmp_path}/file/a", make=True)
    assert caught.value.filename == f"{tmp_path}/file"


def test_a_directory_that_the_user_vouches_for_may_be_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    volume, other = tmp_path / "volume", tmp_path / "other"
    for path in (volume, other):
        path.mkdir()
        path.chmod(0o777)
    monkeypatch.setenv("MINRAY_TRUSTED_DIRECTORIES", f"/elsewhere:{volume}")
    assert make_private(f"{volume}/sessions") == f"{volume}/sessions"
    assert mode(volume / "sessions") == 0o700
    PrivateDirectory(str(volume))
    with pytest.raises(Exposed, match="others may write to .*other"):
        make_private(f"{other}/sessions")


@needs_second_user
def test_another_users_directory_cannot_be_vouched_for(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_directory() as shared:
        place = shared / "theirs"
        place.mkdir()
        os.chown(place, NOBODY, NOBODY)
        monkeypatch.setenv("MINRAY_TRUSTED_DIRECTORIES", str(place))
        with pytest.raises(Exposed, match="belongs to another user"):
            make_private(f"{place}/sessions")


def test_own_links_on_the_way_are_followed_once(tmp_path: Path) -> None:
    (tmp_path / "real" / "deep").mkdir(parents=True)
    (tmp_path / "absolute").symlink_to(tmp_path / "real")
    (tmp_path / "relative").symlink_to("absolute/deep/..")
    assert resolve(f"{tmp_path}/relative/deep") == f"{tmp_path}/real/deep"


def test_a_link_at_the_place_itself_is_refused(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(Exposed, match="link is a link"):
        make_private(f"{tmp_path}/link")


def test_links_that_lead_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    with pytest.raises(OSError) as caught:
        resolve(f"{tmp_path}/a/c")
    assert caught.value.errno == errno.ELOOP


@pytest.mark.parametrize("writable", [0o702, 0o722])
def test_a_directory_on_the_way_that_others_may_write_to_is_refused(tmp_path: Path, writable: int) -> None:
    (tmp_path / "open" / "own").mkdir(parents=True)
    (tmp_path / "open").chmod(writable)
    with pytest.raises(Exposed, match=f"others may write to {tmp_path}/open:"):
        resolve(f"{tmp_path}/open/own")
    (tmp_path / "open").chmod(writable | stat.S_ISVTX)  # Like /tmp: nobody can rename what is in it and is not theirs.
    assert make_private(f"{tmp_path}/open/own") == f"{tmp_path}/open/own"
    with pytest.raises(Exposed, match="others may write"):
        make_private(f"{tmp_path}/open")


@pytest.mark.parametrize(
    ("primary", "name", "members", "is_private"),
    [
        (True, "me", [], True),
        (True, "me", ["me"], True),
        (True, "me", ["me", "you"], False),
        (True, "staff", [], False),
        (False, "me", [], False),
    ],
)
def test_a_group_may_write_if_it_is_its_owners_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, primary: bool, name: str, members: list[str], is_private: bool
) -> None:
    own = tmp_path / "own"
    own.mkdir()
    own.chmod(0o770)
    group = own.stat().st_gid
    me = pwd.struct_passwd(("me", "x", os.getuid(), group if primary else group + 1, "", "/", ""))
    monkeypatch.setattr(pwd, "getpwuid", lambda user: me)
    monkeypatch.setattr(grp, "getgrgid", lambda gid: grp.struct_group((name, "x", gid, members)))
    if is_private:
        assert make_private(str(own)) == str(own)
    else:
        with pytest.raises(Exposed):
            make_private(str(own))


def test_a_group_that_nobody_knows_may_not_write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(number: int) -> object:
        raise KeyError(number)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    tmp_path.chmod(0o770)
    with pytest.raises(Exposed):
        make_private(str(tmp_path))


@needs_second_user
def test_what_belongs_to_another_user_is_refused() -> None:
    with shared_directory() as shared:
        (shared / "theirs" / "mine").mkdir(parents=True)
        os.chown(shared / "theirs", NOBODY, NOBODY)
        for path in (shared / "theirs", shared / "theirs" / "mine"):
            with pytest.raises(Exposed, match="theirs belongs to another user"):
                make_private(str(path))
        (shared / "real").mkdir(mode=0o700)
        (shared / "link").symlink_to("real")
        os.chown(shared / "link", NOBODY, NOBODY, follow_symlinks=False)
        with pytest.raises(Exposed, match="link belongs to another user"):
            resolve(f"{shared}/link/deeper", make=True)
        assert os.listdir(shared / "real") == []


@needs_second_user
def test_the_owner_of_the_root_directory_counts_as_root(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def unmapped(path: str) -> os.stat_result:
        found = real(path)
        return os.stat_result((*found[:4], NOBODY, *found[5:10])) if path == "/" else found

    with shared_directory() as shared:
        (shared / "mapped" / "mine").mkdir(parents=True, mode=0o700)
        os.chown(shared / "mapped", NOBODY, NOBODY)
        monkeypatch.setattr(private_paths.os, "stat", unmapped)
        assert make_private(f"{shared}/mapped/mine")
        with pytest.raises(Exposed):
            make_private(f"{shared}/mapped")


# --- open directories


def test_an_open_directory_is_not_led_elsewhere(tmp_path: Path) -> None:
    own, other = tmp_path / "own", tmp_path / "other"
    own.mkdir(mode=0o700)
    other.mkdir(mode=0o700)
    (other / "a").write_text("theirs")
    directory = PrivateDirectory(str(own))
    os.close(directory.open("a", os.O_WRONLY | os.O_CREAT | os.O_EXCL))
    own.rename(tmp_path / "moved")
    own.symlink_to(other)
    directory.unlink("a")
    assert os.listdir(tmp_path / "moved") == [] and (other / "a").read_text() == "theirs"
    with pytest.raises(OSError):
        PrivateDirectory(str(own))


def test_only_plain_files_are_opened(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("1")
    (tmp_path / "link").symlink_to("real")
    (tmp_path / "folder").mkdir()
    directory = PrivateDirectory(str(tmp_path))
    for name in ("link", "folder"):
        with pytest.raises(OSError):
            directory.open(name, os.O_RDONLY)


def test_an_open_directory_is_closed_with_its_last_reference(tmp_path: Path) -> None:
    before = len(os.listdir("/dev/fd"))
    directory = PrivateDirectory(str(tmp_path))
    assert len(os.listdir("/dev/fd")) == before + 1
    del directory
    assert len(os.listdir("/dev/fd")) == before


# --- removing


def tree(path: Path) -> Path:
    (path / "folder").mkdir(parents=True)
    (path / "folder" / "file").touch()
    (path / "file").touch()
    return path


def test_a_tree_goes_and_what_its_links_lead_to_stays(tmp_path: Path) -> None:
    home, own = tree(tmp_path / "home"), tree(tmp_path / "own")
    (own / "link").symlink_to(home)
    (own / "folder" / "link").symlink_to(home / "file")
    remove_tree(str(own))
    assert not own.exists() and (home / "folder" / "file").exists() and (home / "file").exists()


def test_a_link_is_not_removed_and_not_followed(tmp_path: Path) -> None:
    home = tree(tmp_path / "home")
    (tmp_path / "link").symlink_to(home)
    remove_tree(str(tmp_path / "link"))
    assert (tmp_path / "link").is_symlink() and (home / "folder" / "file").exists()


def test_another_directory_in_the_place_of_ours_stays(tmp_path: Path) -> None:
    own, inode = tree(tmp_path / "own"), os.stat(tmp_path / "own").st_ino
    own.rename(tmp_path / "moved")
    remove_tree(str(tree(own)), inode)
    assert (own / "folder" / "file").exists()
    remove_tree(str(tmp_path / "moved"), inode)
    assert not (tmp_path / "moved").exists()


@needs_second_user
def test_what_belongs_to_another_user_is_not_removed() -> None:
    with shared_directory() as shared:
        os.chown(tree(shared / "theirs"), NOBODY, NOBODY)
        remove_tree(str(shared / "theirs"))
        assert (shared / "theirs" / "folder" / "file").exists()


def test_what_is_not_there_is_no_error(tmp_path: Path) -> None:
    remove_tree(str(tmp_path / "nothing"))
