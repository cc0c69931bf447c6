"""A raylet reads the log files of its node: across backups, from the end, while they rotate, and never too much at once."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec
import pytest

from minray.platform.process.log_directory import SessionLogs
from minray.protocol.logs import EVERYTHING, ListLogs, LogChoice, LogPart, ReadLog, mark_of
from minray.raylet import log_service
from minray.raylet.log_service import LogService

BACKUPS = 3
CALL: Any = None
"""No handler of this service looks at its call."""


class Reader:
    """A service on real files, and a reader that goes on where it was."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.logs = SessionLogs(str(folder), 60, BACKUPS)
        self.service = LogService(self.logs, BACKUPS)
        self.request = ReadLog("raylet.log")

    def ask(self, **fields: Any) -> LogPart:
        self.request = msgspec.structs.replace(self.request, **fields)
        part = asyncio.run(self.service.handle_ReadLog(self.request, CALL))
        self.request = msgspec.structs.replace(self.request, position=part.position)
        return part

    def read(self, name: str = "raylet.log", **fields: Any) -> str:
        """Read a file to its end from the beginning, or as the fields say."""
        part = self.ask(name=name, **{"position": None, "tail": EVERYTHING, "choice": LogChoice(), **fields})
        data = part.data
        while not part.is_end:
            part = self.ask()
            data += part.data
        assert not part.absence, part.absence
        return data.decode()

    def follow(self) -> str:
        return self.read(is_followed=True, position=self.request.position)


@pytest.fixture
def reader(tmp_path: Path) -> Reader:
    return Reader(tmp_path)


def write(reader: Reader, numbers: range, name: str = "raylet.log") -> None:
    """Write lines of ten bytes; six fill a file."""
    sink = reader.logs.open_sink(name)
    for number in numbers:
        sink.write(f"line {number:04}\n")
    sink.close()


def lines(numbers: range) -> str:
    return "".join(f"line {number:04}\n" for number in numbers)


@pytest.mark.parametrize("piece_bytes", [1, 7, 10, 64, 1 << 18])
def test_a_file_and_its_backups_are_one_text(reader: Reader, monkeypatch: pytest.MonkeyPatch, piece_bytes: int) -> None:
    monkeypatch.setattr(log_service, "PIECE_BYTES", piece_bytes)
    write(reader, range(30))
    assert len(list(reader.folder.iterdir())) == 1 + BACKUPS
    kept = lines(range(30))[-sum(path.stat().st_size for path in reader.folder.iterdir()) :]
    assert reader.read() == kept and len(kept) > 180
    for tail in (0, 1, 5, 6, 7, 13, 19, 1000):
        assert reader.read(tail=tail) == "".join(kept.splitlines(keepends=True)[-tail:] if tail else [])
    assert reader.read("raylet.log.1") in kept and reader.read("raylet.log.1").count("\n") == 6


def test_a_line_without_an_end_is_read_or_left_for_its_end(reader: Reader) -> None:
    (reader.folder / "raylet.log.1").write_text("of the backup")
    (reader.folder / "raylet.log").write_text("one\ntw")
    assert reader.read() == "of the backup\none\ntw" and reader.read(tail=1) == "tw"
    assert reader.read(is_followed=True) == "of the backup\none\n" and reader.follow() == ""
    with (reader.folder / "raylet.log").open("a") as file:
        file.write("o\n")
    assert reader.follow() == "two\n"


def test_a_follower_goes_on_across_rotations(reader: Reader) -> None:
    write(reader, range(3))
    assert reader.read(is_followed=True, tail=1) == lines(range(2, 3))
    for begin in range(3, 40, 4):
        write(reader, range(begin, begin + 4))
        assert reader.follow() == lines(range(begin, begin + 4)) and reader.follow() == ""


def test_a_follower_that_is_too_slow_is_told(reader: Reader) -> None:
    write(reader, range(3))
    reader.read(is_followed=True)
    gone = (reader.folder / "raylet.log").open()  # so that its inode is not used again
    write(reader, range(3, 60))
    part = reader.ask()
    gone.close()
    assert "lines of raylet.log are missing here" in part.note and part.data.startswith(b"line 00")
    assert reader.follow() == "" and reader.ask().note == ""


def test_a_file_that_was_cut_is_read_from_its_beginning(reader: Reader) -> None:
    write(reader, range(3))
    reader.read(is_followed=True)
    (reader.folder / "raylet.log").write_text("new\n")
    part = reader.ask()
    assert (part.data, part.note) == (b"new\n", "raylet.log was cut; it is read from its beginning")


def test_a_file_that_is_removed_while_it_is_followed_ends_with_words(reader: Reader) -> None:
    write(reader, range(3))
    reader.read(is_followed=True)
    (reader.folder / "raylet.log").unlink()
    part = reader.ask()
    assert part.absence == "the log file 'raylet.log' was removed while it was read" and part.is_end
    assert "there is no log file 'raylet.log' on this node" in reader.ask(position=None).absence


def test_lines_of_a_task_are_found_across_rotations(reader: Reader) -> None:
    sink = SessionLogs(str(reader.folder), 200, BACKUPS).open_sink("worker-1.out")
    mine, other = mark_of("f", b"1" * 24), mark_of("f", b"2" * 24)
    sink.write("nobody's\n")
    sink.write(f"{mine}\nmine 0\n", mine + "\n")
    for number in range(1, 20):
        sink.write(f"mine {number}\n", mine + "\n")
    sink.write(f"{other}\nnot mine\n", other + "\n")
    sink.close()
    assert len(list(reader.folder.iterdir())) > 1
    for path in reader.folder.iterdir():
        assert path.read_text().startswith(("nobody", "\x1e")), "each file says whose its first lines are"
    mine_alone = LogChoice(task_id=(b"1" * 24).hex())
    assert reader.read("worker-1.out", choice=mine_alone) == "".join(f"mine {number}\n" for number in range(20))
    assert "\x1e" not in reader.read("worker-1.out")


@pytest.mark.parametrize("name", ["../token", "/etc/passwd", "..", "", "a\0b", "x" * 300])
def test_no_name_leads_elsewhere(reader: Reader, name: str) -> None:
    (reader.folder.parent / "token").write_text("secret")
    part = reader.ask(name=name)
    assert "is not the name of a log file" in part.absence and (part.data, part.position) == (b"", None)


def test_a_link_is_no_log_file(reader: Reader) -> None:
    (reader.folder.parent / "token").write_text("secret")
    (reader.folder / "raylet.log").symlink_to(reader.folder.parent / "token")
    assert "there is no log file" in reader.ask().absence


def test_one_answer_is_bounded(reader: Reader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_service, "PIECE_BYTES", 100)
    monkeypatch.setattr(log_service, "MOST_SCANNED_BYTES", 300)
    (reader.folder / "raylet.log").write_text(lines(range(100)))
    part = reader.ask()
    assert len(part.data) == 100 and not part.is_end
    nothing = reader.ask(position=None, choice=LogChoice(search="nowhere"))
    assert nothing.data == b"" and nothing.position is not None and nothing.position.offset == 300 and not nothing.is_end
    assert reader.read(choice=LogChoice(search="0099")) == lines(range(99, 100))


def test_files_that_are_renamed_all_the_time_are_given_up(reader: Reader) -> None:
    write(reader, range(3))

    class Renamed(SessionLogs):
        async def read(self, name: str, inode: int, start: int, size: int) -> bytes | None:
            return None

    reader.service = LogService(Renamed(str(reader.folder), 60, BACKUPS), BACKUPS)
    for tail in (EVERYTHING, 1):
        assert "renamed too often" in reader.ask(position=None, tail=tail).absence


def test_files_are_listed_by_pattern(reader: Reader) -> None:
    write(reader, range(9))
    write(reader, range(3), "gcs.log")
    listed = asyncio.run(reader.service.handle_ListLogs(ListLogs("raylet*"), CALL))
    assert [(file.name, file.size) for file in listed.files] == [("raylet.log", 30), ("raylet.log.1", 60)]
    assert listed.total == 2 and not listed.absence
    assert asyncio.run(reader.service.handle_ListLogs(ListLogs(), CALL)).total == 3


def test_a_directory_that_is_gone_is_said(reader: Reader) -> None:
    reader.folder.rmdir()
    assert "cannot be read: No such file" in asyncio.run(reader.service.handle_ListLogs(ListLogs(), CALL)).absence
    assert "cannot be read: No such file" in reader.ask().absence


def test_a_node_without_files_says_so() -> None:
    service = LogService(None, 0)
    assert "keeps no log files" in asyncio.run(service.handle_ListLogs(ListLogs(), CALL)).absence
    assert "keeps no log files" in asyncio.run(service.handle_ReadLog(ReadLog("x"), CALL)).absence
