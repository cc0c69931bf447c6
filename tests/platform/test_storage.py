"""Storage: one contract for the store in memory and the one in a file; what only a file can promise; refused files."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
import signal
import sqlite3
import subprocess
import sys
import textwrap
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path

import pytest

from minray.platform.base import Storage, StorageFailed
from minray.platform.storage.sqlite_storage import SqliteStorage
from minray.platform.storage.storage import open_storage
from tests.helpers import turn


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "gcs.sqlite")


@pytest.fixture(params=["memory", "file"])
def storage(request: pytest.FixtureRequest, path: str) -> Generator[Storage, None, None]:
    opened = open_storage("" if request.param == "memory" else path)
    assert opened.durable == (request.param == "file")
    yield opened
    opened.close()


def commit(storage: Storage) -> None:
    asyncio.run(_commit(storage))


async def _commit(storage: Storage) -> None:
    await storage.commit()


def program(source: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a program with ``path`` as its first argument."""
    imports = "import asyncio, os, signal, sys\nfrom minray.platform.storage.storage import open_storage"
    before = f"{imports}\npath = sys.argv[1]\n"
    text = before + textwrap.dedent(source)
    return subprocess.run([sys.executable, "-c", text, *arguments], capture_output=True, text=True, timeout=60)


# --- Every store ---


def test_rows_are_there_once_committed(storage: Storage) -> None:
    storage.put("nodes", "a", b"1")
    storage.put("nodes", "b", b"2")
    storage.put("jobs", "a", b"")
    assert storage.load("nodes") == {}
    commit(storage)
    assert storage.load("nodes") == {"a": b"1", "b": b"2"} and storage.load("jobs") == {"a": b""}
    assert storage.load("unknown") == {}


def test_the_last_word_on_a_row_holds(storage: Storage) -> None:
    storage.put("t", "a", b"1")
    storage.delete("t", "a")
    storage.put("t", "b", b"1")
    storage.put("t", "b", b"2")
    commit(storage)
    storage.delete("t", "b")
    storage.put("t", "b", b"3")
    storage.delete("t", "missing")
    commit(storage)
    assert storage.load("t") == {"b": b"3"}


def test_what_was_loaded_is_a_copy(storage: Storage) -> None:
    storage.load("t")["a"] = b"1"
    assert storage.load("t") == {}


def test_committing_nothing(storage: Storage) -> None:
    commit(storage)


def test_many_commit_at_once(storage: Storage) -> None:
    async def one(number: int) -> None:
        storage.put("t", str(number), b"x" * number)
        await storage.commit()
        assert storage.load("t")[str(number)] == b"x" * number

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(200)))

    asyncio.run(main())
    assert len(storage.load("t")) == 200


# --- Files ---


def test_rows_outlive_the_store(path: str) -> None:
    first = open_storage(path)
    first.put("t", "a", b"\0\xff")
    commit(first)
    first.put("t", "b", b"staged only")
    first.close()
    second = open_storage(path)
    assert second.load("t") == {"a": b"\0\xff"}
    second.close()


def test_what_was_committed_outlives_kill_9_and_a_successor_opens_at_once(path: str) -> None:
    result = program(
        """
        storage = open_storage(path)
        async def main():
            for number in range(50):
                storage.put("t", str(number), b"x")
                await storage.commit()
            storage.put("t", "staged", b"x")
            os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
        """,
        path,
    )
    assert result.returncode == -signal.SIGKILL, result.stderr
    storage = open_storage(path)
    assert set(storage.load("t")) == {str(number) for number in range(50)}
    storage.close()


def test_a_turn_of_the_loop_is_one_transaction(path: str) -> None:
    storage = SqliteStorage(path)
    batches: list[int] = []
    write = storage._write
    storage._write = lambda rows: (batches.append(len(rows)), write(rows))[1]  # type: ignore[method-assign, func-returns-value]

    async def one(number: int) -> None:
        storage.put("t", str(number), b"")
        await storage.commit()

    async def main() -> None:
        await asyncio.gather(*(one(number) for number in range(100)))
        storage.put("t", "more", b"")
        await storage.commit()

    asyncio.run(main())
    storage.close()
    assert batches == [100, 1]


def test_a_commit_waits_for_rows_that_are_being_written(path: str) -> None:
    """Also when nothing new is staged: "everything staged so far" includes what somebody else is committing."""
    storage = SqliteStorage(path)

    async def main() -> None:
        storage.put("t", "a", b"1")
        first = asyncio.create_task(storage.commit())
        while storage._writing is None:
            await turn()
        await storage.commit()
        assert storage.load("t") == {"a": b"1"}
        await first

    asyncio.run(main())
    storage.close()


def test_a_cancelled_commit_does_not_cancel_its_neighbours(path: str) -> None:
    storage = open_storage(path)

    async def main() -> None:
        storage.put("t", "a", b"1")
        tasks = [asyncio.create_task(_commit(storage)) for _ in range(2)]
        await turn()
        tasks[0].cancel()
        await tasks[1]

    asyncio.run(main())
    assert storage.load("t") == {"a": b"1"}
    storage.close()


def test_what_is_put_in_vain_is_forgotten_and_what_is_removed_in_vain_is_removed_later(path: str) -> None:
    storage = SqliteStorage(path)
    storage.put("t", "gone", b"1")
    storage.put("t", "back", b"1")
    commit(storage)
    limit = storage._thread.submit(lambda: storage._connection.execute("PRAGMA page_count").fetchone()[0] + 2).result()
    set_limit: Callable[[int], object] = lambda pages: storage._thread.submit(  # noqa: E731
        lambda: storage._connection.execute(f"PRAGMA max_page_count={pages}").fetchall()
    ).result()
    set_limit(limit)
    storage.put("t", "small", b"1")
    storage.put("t", "large", bytes(1_000_000))
    storage.delete("t", "gone")
    storage.delete("t", "back")
    with pytest.raises(StorageFailed, match=f"{path} could not be written: database or disk is full"):
        commit(storage)
    assert storage.load("t") == {"gone": b"1", "back": b"1"}
    set_limit(1_000_000)
    storage.put("t", "small", b"2")
    storage.put("t", "back", b"1")
    commit(storage)
    assert storage.load("t") == {"small": b"2", "back": b"1"}
    storage.close()


def test_a_full_disk(path: str) -> None:
    """A limit on the size of files stands for it, which also ends the write-ahead log."""
    result = program(
        """
        import resource
        from minray.platform.base import StorageFailed
        storage = open_storage(path)
        resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        storage.put("t", "large", bytes(1_000_000))
        async def main():
            try:
                await storage.commit()
            except StorageFailed as error:
                print(error)
        asyncio.run(main())
        print(storage.load("t"))
        """,
        path,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[0].startswith(f"{path} could not be written: ")
    assert result.stdout.splitlines()[1] == "{}"


def test_files_are_private(path: str) -> None:
    open_storage(path).close()
    assert os.stat(path).st_mode & 0o777 == 0o600


# --- Files that are refused ---


def refusal(path: str) -> str:
    with pytest.raises(StorageFailed) as caught:
        open_storage(path)
    assert path in str(caught.value)
    return str(caught.value)


def test_no_database(path: str) -> None:
    Path(path).write_bytes(b"a shopping list, and long enough to be taken for something else" * 100)
    before = Path(path).read_bytes()
    assert "not a minray store; move the file away, restore it" in refusal(path)
    assert Path(path).read_bytes() == before


def test_another_programs_database(path: str) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("CREATE TABLE recipes (name TEXT)")
    assert "another program's database" in refusal(path)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("SELECT name FROM sqlite_master").fetchall() == [("recipes",)]


def test_another_format(path: str) -> None:
    open_storage(path).close()
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("UPDATE minray SET value = '99'")
        connection.commit()
    assert "written by another version of minray (format 99, this one reads 3)" in refusal(path)


def test_a_truncated_store(path: str) -> None:
    open_storage(path).close()
    os.truncate(path, 5000)
    refusal(path)


# --- Files that have lost something ---

ROWS = {str(number): f"value {number}".encode() * 50 for number in range(60)}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a store whose process was killed, with rows in its file and rows in its log."""
    directory = tmp_path_factory.mktemp("killed")
    result = program(
        """
        storage = open_storage(path)
        async def main():
            for number in range(60):
                storage.put("t", str(number), f"value {number}".encode() * 50)
                await storage.commit()
                if number == 30:
                    storage._thread.submit(lambda: storage._connection.execute("PRAGMA wal_checkpoint(FULL)").fetchall())
            os.kill(os.getpid(), signal.SIGKILL)
        asyncio.run(main())
        """,
        str(directory / "gcs.sqlite"),
    )
    assert result.returncode == -signal.SIGKILL, result.stderr
    return directory


@pytest.fixture
def copy(killed: Path, tmp_path: Path) -> Path:
    """The path of a copy of that store."""
    for file in killed.iterdir():
        shutil.copy(file, tmp_path)
    return tmp_path / "gcs.sqlite"


def test_g110_a_store_whose_process_was_killed_is_complete(copy: Path) -> None:
    with closing(open_storage(str(copy))) as storage:
        assert storage.load("t") == ROWS


@pytest.mark.parametrize("how", ["removed", "emptied", "truncated", "garbage"])
def test_a_damaged_log_is_an_error_that_says_what_is_lost(copy: Path, how: str) -> None:
    log = Path(f"{copy}-wal")
    if how == "removed":
        log.unlink()
    else:
        log.write_bytes({"emptied": b"", "truncated": log.read_bytes()[:20_000], "garbage": os.urandom(5000)}[how])
    said = refusal(str(copy))
    assert f"{copy} has lost rows: its last " in said and "Actors, jobs, placement groups" in said, said
    assert f"remove {copy}.commits, to go on with what is left" in said
    Path(f"{copy}.commits").unlink()
    with closing(open_storage(str(copy))) as storage:
        assert storage.load("t").items() < ROWS.items() and len(storage.load("t")) >= 31 - (how == "garbage")


@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_a_store_that_was_emptied_is_not_taken_for_a_new_one(copy: Path, how: str) -> None:
    Path(f"{copy}-wal").unlink()
    if how == "removed":
        copy.unlink()
    else:
        copy.write_bytes(b"")
    said = refusal(str(copy))
    assert f"it is empty, but 60 transactions were written to it. Probably {copy} was emptied or removed" in said
    Path(f"{copy}.commits").unlink()
    with closing(open_storage(str(copy))) as storage:
        assert storage.load("t") == {}


def test_no_damage_changes_what_is_read(copy: Path, tmp_path: Path) -> None:
    """Random bytes of all files are changed, and their ends are cut off: all rows are there, or the store is refused."""
    contents = {file: file.read_bytes() for file in tmp_path.iterdir()}
    refused = 0
    for seed in range(60):
        chance = random.Random(seed)
        for file, content in contents.items():
            file.write_bytes(content)
        file = chance.choice([copy, Path(f"{copy}-wal")])
        damaged = bytearray(file.read_bytes())
        for _ in range(chance.choice([1, 1, 10, 1000])):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        file.write_bytes(damaged[: chance.choice([len(damaged), len(damaged), chance.randrange(len(damaged))])])
        try:
            with closing(open_storage(str(copy))) as storage:
                assert storage.load("t") == ROWS, f"seed {seed}"
        except StorageFailed as error:
            assert str(copy) in str(error), f"seed {seed}"
            refused += 1
    assert refused > 20


def test_a_machine_that_lost_power_has_at_most_an_old_number_beside_its_store(copy: Path) -> None:
    Path(f"{copy}.commits").write_text(f"{41:020}\n")
    with closing(open_storage(str(copy))) as storage:
        assert storage.load("t") == ROWS
    assert int(Path(f"{copy}.commits").read_text()) == 60


@pytest.mark.parametrize("name", ["missing/gcs.sqlite", "."])
def test_a_path_that_cannot_be_opened(tmp_path: Path, name: str) -> None:
    assert "could not be opened" in refusal(str(tmp_path / name) + ("/" if name == "." else ""))


@pytest.mark.skipif(os.getuid() == 0, reason="root may read everything")
def test_an_unreadable_file(path: str) -> None:
    Path(path).touch(mode=0)
    assert "Permission denied" in refusal(path)


@pytest.mark.slow
def test_a_store_that_is_in_use(path: str) -> None:
    storage = open_storage(path)
    result = program("open_storage(path)", path)
    assert "another process uses it; is this cluster running already?" in result.stderr
    storage.close()
