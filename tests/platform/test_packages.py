"""Packages of directories: what is packed, and how it becomes a directory again."""

from __future__ import annotations

import io
import logging
import os
import stat
import tarfile
import threading
import zipfile
from pathlib import Path

import pytest

from minray.platform.storage import packages
from minray.platform.storage.packages import (
    PackageTooLarge,
    pack_directory,
    pack_file,
    read_archive,
    requirements_of_wheel,
    unpack,
)

LIMIT = 1 << 20


def made(folder: Path, **files: str) -> Path:
    """Make files, ``/`` in their names written as ``__``."""
    for name, text in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def names_in(archive: bytes) -> list[str]:
    return zipfile.ZipFile(io.BytesIO(archive)).namelist()


def found(directory: Path) -> dict[str, str]:
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


def nothing() -> None:
    """The check of a package that is right."""


def test_equal_directories_make_equal_packages_whenever_and_wherever_they_were_made(tmp_path: Path) -> None:
    one = made(tmp_path / "one", a="1", b__c="2")
    other = made(tmp_path / "other", b__c="2", a="1")
    os.utime(other / "a", (1_000_000_000, 1_000_000_000))
    (other / "a").chmod(0o600)
    assert pack_directory(str(one), [], LIMIT) == pack_directory(str(other), [], LIMIT)
    (other / "a").chmod(0o700)
    assert pack_directory(str(one), [], LIMIT) != pack_directory(str(other), [], LIMIT), "it can be executed now"


def test_a_package_becomes_the_directory_again(tmp_path: Path) -> None:
    source = made(tmp_path / "source", a="1", b__c="2", run="#!/bin/sh")
    (source / "empty").mkdir()
    (source / "run").chmod(0o755)
    archive = pack_directory(str(source), [], LIMIT)
    assert names_in(archive) == ["a", "b/c", "empty/", "run"]
    target = tmp_path / "new" / "target"
    unpack(archive, str(target), nothing)
    assert found(target) == {"a": "1", "b/c": "2", "run": "#!/bin/sh"} and (target / "empty").is_dir()
    modes = [stat.S_IMODE(os.stat(path).st_mode) for path in (target, target / "b", target / "b" / "c", target / "run")]
    assert modes == [0o700, 0o700, 0o600, 0o700]
    assert sorted(path.name for path in target.parent.iterdir()) == ["target", "target.lock"]


def test_a_module_is_packed_with_its_folder_or_alone(tmp_path: Path) -> None:
    made(tmp_path / "mine", a="1", b__c="2")
    assert names_in(pack_directory(str(tmp_path / "mine"), [], LIMIT, parent="mine")) == ["mine/a", "mine/b/c"]
    made(tmp_path, alone="x = 1")
    assert names_in(pack_file(str(tmp_path / "alone"), LIMIT)) == ["alone"]


def test_excludes_and_ignore_files_leave_files_out(tmp_path: Path) -> None:
    made(tmp_path, a="", b__log="", b__keep="", c__log="", c__d__only_here="", e__only_here="", f="", g__x="")
    (tmp_path / ".gitignore").write_text("/f\n")
    (tmp_path / "c" / ".gitignore").write_text("only_here\n")
    (tmp_path / ".rayignore").write_text("g/\n")
    archive = pack_directory(str(tmp_path), ["log"], LIMIT)
    assert names_in(archive) == [".gitignore", ".rayignore", "a", "b/keep", "c/.gitignore", "e/only_here"]
    assert "f" in names_in(pack_directory(str(tmp_path), [], LIMIT, ignore_files=[".rayignore"]))


def test_links_are_packed_as_what_they_lead_to_and_loops_end(tmp_path: Path) -> None:
    outside = made(tmp_path / "outside", data="data")
    source = made(tmp_path / "source", a="1", b__c="2")
    (source / "to_file").symlink_to(outside / "data")
    (source / "to_folder").symlink_to(outside)
    (source / "b" / "loop").symlink_to(source)
    (source / "gone").symlink_to(tmp_path / "nowhere")
    os.mkfifo(source / "pipe")
    archive = pack_directory(str(source), [], LIMIT)
    assert names_in(archive) == ["a", "b/c", "to_file", "to_folder/data"]
    unpack(archive, str(tmp_path / "target"), nothing)
    assert not any(path.is_symlink() for path in (tmp_path / "target").rglob("*"))


def test_a_package_above_the_limit_is_refused_before_it_is_whole(tmp_path: Path) -> None:
    made(tmp_path, a="x" * 2000)
    with pytest.raises(PackageTooLarge, match="more than 0 MiB"):
        pack_directory(str(tmp_path), [], 1000)
    archive = tmp_path / "a.zip"
    archive.write_bytes(pack_directory(str(tmp_path), [], LIMIT))
    with pytest.raises(PackageTooLarge):
        read_archive(str(archive), 1000)


def test_a_large_file_is_worth_a_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(packages, "LARGE_FILE_BYTES", 100)
    made(tmp_path, large="x" * 100, small="x" * 99)
    with caplog.at_level(logging.WARNING, "minray"):
        pack_directory(str(tmp_path), [], LIMIT)
    (record,) = caplog.records
    assert f"File {tmp_path / 'large'} is very large" in record.getMessage() and "excludes" in record.getMessage()


def zipped(*entries: tuple[str | zipfile.ZipInfo, str]) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as archive:
        for name, text in entries:
            archive.writestr(name, text)
    return file.getvalue()


OUTSIDE = ["../evil", "a/../../evil", "/evil", "a//b", "./a", "a/./b", ".."]


@pytest.mark.parametrize("name", OUTSIDE)
def test_an_entry_that_may_lie_outside_refuses_the_whole_package(tmp_path: Path, name: str) -> None:
    archive = zipped(("good", "1"), (name, "evil"))
    target = tmp_path / "deep" / "target"
    with pytest.raises(ValueError, match="may lie outside"):
        unpack(archive, str(target), nothing)
    (tmp_path / "archive.zip").write_bytes(archive)
    with pytest.raises(ValueError, match="may lie outside"):
        read_archive(str(tmp_path / "archive.zip"), LIMIT)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["archive.zip", "deep", "target.lock"]


def test_a_link_in_a_zip_file_becomes_no_link(tmp_path: Path) -> None:
    link = zipfile.ZipInfo("link")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    unpack(zipped((link, str(tmp_path))), str(tmp_path / "target"), nothing)
    assert not (tmp_path / "target" / "link").is_symlink()


def test_a_damaged_package_leaves_nothing(tmp_path: Path) -> None:
    archive = bytearray(zipped(("a", "1" * 100)))
    archive[40] ^= 1
    with pytest.raises(ValueError, match="cannot be unpacked: .*CRC"):
        unpack(archive, str(tmp_path / "target"), nothing)
    with pytest.raises(ValueError, match="cannot be unpacked: File is not a zip file"):
        unpack(b"no zip file", str(tmp_path / "target"), nothing)
    with pytest.raises(ZeroDivisionError):
        unpack(zipped(("a", "1")), str(tmp_path / "target"), lambda: print(1 // 0))
    assert [path.name for path in tmp_path.iterdir()] == ["target.lock"]


def test_what_a_killed_process_has_left_is_replaced(tmp_path: Path) -> None:
    made(tmp_path / "target.part", half="of it")
    unpack(zipped(("a", "1")), str(tmp_path / "target"), nothing)
    assert found(tmp_path / "target") == {"a": "1"} and not (tmp_path / "target.part").exists()


def test_a_directory_that_is_there_stays_as_it_is_and_nothing_is_checked(tmp_path: Path) -> None:
    made(tmp_path / "target", mine="yes")
    unpack(b"not even a package", str(tmp_path / "target"), lambda: print(1 // 0))
    assert found(tmp_path / "target") == {"mine": "yes"}


def test_processes_that_unpack_one_package_wait_for_each_other(tmp_path: Path) -> None:
    """flock is between descriptors, so that threads stand for processes here."""
    checks: list[int] = []
    archive = zipped(*((f"{number}", "x" * 1000) for number in range(50)))
    threads = [
        threading.Thread(target=unpack, args=(archive, str(tmp_path / "target"), lambda: checks.append(1)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert checks == [1] and len(found(tmp_path / "target")) == 50


def test_tar_files_are_packed_anew_and_zip_files_taken_as_they_are(tmp_path: Path) -> None:
    source = made(tmp_path / "source", a="1", b__c="2")
    (source / "link").symlink_to("a")
    zip_file = tmp_path / "source.zip"
    zip_file.write_bytes(zipped(("a", "1")))
    assert read_archive(str(zip_file), LIMIT) == zip_file.read_bytes()
    packed = []
    for suffix in ("gz", "xz"):
        path = tmp_path / f"source.tar.{suffix}"
        with tarfile.open(path, f"w:{suffix}") as archive:
            archive.add(source, ".")
        packed.append(read_archive(str(path), LIMIT))
    assert packed[0] == packed[1] and [name for name in names_in(packed[0]) if name[-1] != "/"] == ["a", "b/c"]
    (tmp_path / "not.zip").write_bytes(b"no archive")
    with pytest.raises(ValueError, match="is no archive that can be read"):
        read_archive(str(tmp_path / "not.zip"), LIMIT)


def test_a_tar_file_with_an_entry_outside_is_refused(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "evil.tar.gz", "w:gz") as archive:
        archive.addfile(tarfile.TarInfo("../evil"), io.BytesIO())
    with pytest.raises(ValueError, match="may lie outside"):
        read_archive(str(tmp_path / "evil.tar.gz"), LIMIT)


def test_a_wheel_says_what_it_requires() -> None:
    text = "Metadata-Version: 2.1\nName: x\nRequires-Dist: numpy>=2\nRequires-Dist: y; extra == 'z'\n\nRequires-Dist: no"
    assert requirements_of_wheel(zipped(("x-1.dist-info/METADATA", text))) == ["numpy>=2", "y; extra == 'z'"]
    assert requirements_of_wheel(zipped(("x.py", ""))) == []
