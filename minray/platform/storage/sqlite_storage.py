"""Stores the gcs's tables in one SQLite file, so that they outlive the gcs.

Ray: src/ray/gcs/store_client/redis_store_client.h

SQLite blocks, so it has a thread of its own. Writes are staged on the loop. The first ``commit`` of a turn schedules a
transaction for the end of the turn. Callers that commit while a transaction is being written share the next one.

Rules
  * A commit returns only after its rows are synced to disk (write-ahead log, full sync).
  * After ``StorageFailed`` the rows of that commit are never written: their caller may have given up. Removals stay staged,
    since they mostly concern rows that no caller knows any more and will not ask to remove again.
  * A store that has lost rows is refused. SQLite takes a truncated log, or an empty file, for a store with fewer rows. So
    each transaction has a number, which is also kept beside the file, in ``<path>.commits``. It is written after the commit,
    so it is never ahead of an undamaged store, even if the machine loses power. Each row has a checksum.
  * A store belongs to one process: the file is locked while it is open.
  * A file must be empty or have our format, or it is refused. No other user may write to its directory, or change where its
    path leads: the tables contain programs, which this user's workers run.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from minray.platform.base import StorageFailed
from minray.platform.storage.private_paths import PrivateDirectory, resolve

FORMAT: Final = "3"
"""The version of the file's format, written into each file; a file with another one is refused."""
LOCK_WAIT_S = 2.0
"""Seconds to wait for the file's lock: a previous gcs may be just ending."""

COMMITS: Final = ".commits"
"""Suffix of the file, beside the store, with the number of the newest transaction."""

_Staged = dict[tuple[str, str], bytes | None]
"""(table, key) -> value, or None for a removal."""


class SqliteStorage:
    """Implements ``base.Storage`` with one SQLite file."""

    durable = True

    def __init__(self, path: str) -> None:
        self._path = path
        self._staged: _Staged = {}
        """Rows for the next transaction."""
        self._next: asyncio.Future[None] | None = None
        """The transaction that will write the staged rows; None until a caller commits."""
        self._writing: asyncio.Future[None] | None = None
        """The transaction that is being written; None if there is none."""
        self._thread = ThreadPoolExecutor(1, "minray-storage")
        try:
            self._connection, self._commits = self._thread.submit(_open, path).result()
        except BaseException:
            self._thread.shutdown()
            raise

    def load(self, table: str) -> dict[str, bytes]:
        return self._thread.submit(self._load, table).result()

    def put(self, table: str, key: str, value: bytes) -> None:
        self._staged[table, key] = value

    def delete(self, table: str, key: str) -> None:
        self._staged[table, key] = None

    async def commit(self) -> None:
        if self._staged and self._next is None:
            loop = asyncio.get_running_loop()
            self._next = loop.create_future()
            # If every caller was cancelled, no one reads a failure; asyncio must not warn about that.
            self._next.add_done_callback(lambda future: future.exception())
            if self._writing is None:
                loop.call_soon(self._write_next)
        wanted = self._next or self._writing
        if wanted is not None:
            await asyncio.shield(wanted)  # Cancelling one caller must not cancel the others' commit.

    def close(self) -> None:
        self._thread.submit(self._close).result()
        self._thread.shutdown()

    def _write_next(self) -> None:
        assert self._writing is None
        self._writing, self._next = self._next, None
        rows, self._staged = self._staged, {}
        writing = asyncio.get_running_loop().run_in_executor(self._thread, self._write, rows)
        writing.add_done_callback(lambda written: self._on_written(rows, written))

    def _on_written(self, rows: _Staged, written: asyncio.Future[None]) -> None:
        assert self._writing is not None
        waiting, self._writing = self._writing, None
        error = written.exception()
        if error is None:
            waiting.set_result(None)
        else:
            removed: _Staged = {place: None for place, value in rows.items() if value is None}
            self._staged = {**removed, **self._staged}
            waiting.set_exception(error)
        if self._next is not None:
            self._write_next()

    # --- In the thread ---

    def _load(self, table: str) -> dict[str, bytes]:
        try:
            rows = self._connection.execute(
                "SELECT key, value, checksum FROM rows WHERE table_name = ?", (table,)
            ).fetchall()
        except sqlite3.Error as error:
            raise StorageFailed(f"{self._path} could not be read: {_explain(self._path, error)}") from error
        for key, value, checksum in rows:
            if checksum != _checksum(table, key, value):
                raise StorageFailed(_damaged(self._path, f"the checksum of a row of table {table} is wrong"))
        return {key: value for key, value, _ in rows}

    def _write(self, rows: _Staged) -> None:
        removed = [place for place, value in rows.items() if value is None]
        written = [(*place, value, _checksum(*place, value)) for place, value in rows.items() if value is not None]
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("DELETE FROM rows WHERE table_name = ? AND key = ?", removed)
            self._connection.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?, ?)", written)
            number = self._commits.newest + 1
            self._connection.execute("INSERT OR REPLACE INTO minray VALUES ('commits', ?)", (str(number),))
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._connection.rollback()
            raise StorageFailed(f"{self._path} could not be written: {error}. Is the disk full?") from error
        self._commits.note(number)

    def _close(self) -> None:
        self._connection.close()
        self._commits.close()


class _Commits:
    """The file with the number of the newest transaction that was committed."""

    def __init__(self, directory: PrivateDirectory, name: str) -> None:
        """Open the file. Raises OSError."""
        self._descriptor = directory.open(name, os.O_RDWR | os.O_CREAT)
        text = os.pread(self._descriptor, 64, 0).strip()
        self.newest = int(text) if text.isdigit() else 0

    def note(self, number: int) -> None:
        """Write the number, which is as long as every other one, so that no room on the disk is needed."""
        self.newest = number
        with suppress(OSError):
            os.pwrite(self._descriptor, b"%020d\n" % number, 0)

    def close(self) -> None:
        os.close(self._descriptor)


def _checksum(table: str, key: str, value: bytes) -> int:
    return zlib.crc32(value, zlib.crc32(f"{table}:{key}".encode()))


def _open(path: str) -> tuple[sqlite3.Connection, _Commits]:
    try:
        folder, name = os.path.split(os.path.abspath(path))
        place = resolve(folder)
        directory = PrivateDirectory(place)
        os.close(directory.open(name, os.O_RDWR | os.O_CREAT))
        connection = sqlite3.connect(os.path.join(place, name), timeout=LOCK_WAIT_S, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise StorageFailed(f"the storage {path} could not be opened: {error}") from error
    try:
        commits = _Commits(directory, f"{name}{COMMITS}")
    except OSError as error:
        connection.close()
        raise StorageFailed(f"the storage {path} could not be opened: {error}") from error
    try:
        found = _check_format(path, connection)
        _check_complete(path, connection, int(found.get("commits", "0")), commits)
        # Exclusive mode: the lock ends with the process, and SQLite needs no shared memory file beside its log.
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.executescript(
            f"""BEGIN IMMEDIATE;
            CREATE TABLE IF NOT EXISTS minray (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
            CREATE TABLE IF NOT EXISTS rows
                (table_name TEXT, key TEXT, value BLOB, checksum INTEGER, PRIMARY KEY (table_name, key));
            INSERT OR REPLACE INTO minray VALUES ('format', '{FORMAT}');
            COMMIT;"""
        )
    except BaseException as error:
        connection.close()
        commits.close()
        if isinstance(error, sqlite3.Error | ValueError):  # ValueError: the number of commits is no number.
            raise StorageFailed(f"the storage {path} could not be opened: {_explain(path, error)}") from error
        raise
    return connection, commits


def _check_format(path: str, connection: sqlite3.Connection) -> dict[str, str]:
    """Return the store's entries about itself. Raises StorageFailed if it has another format."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return {}
    if "minray" not in tables:
        raise StorageFailed(f"{path} is not a minray store but another program's database; name another file")
    entries = dict(connection.execute("SELECT name, value FROM minray"))
    if entries.get("format") != FORMAT:
        raise StorageFailed(
            f"{path} was written by another version of minray (format {entries.get('format')}, this one reads {FORMAT}); "
            "use that version, or move the file away"
        )
    return entries


def _check_complete(path: str, connection: sqlite3.Connection, found: int, commits: _Commits) -> None:
    """Raise StorageFailed if the file is damaged, or transactions that were committed are not in it."""
    for (finding,) in connection.execute("PRAGMA quick_check(1)"):
        if finding != "ok":
            raise StorageFailed(_damaged(path, finding))
    if found < commits.newest:
        missing = commits.newest - found
        what = f"its last {missing} of {commits.newest} transactions are missing"
        why = f"{path}-wal was truncated, damaged or removed"
        if not found:
            what = f"it is empty, but {commits.newest} transactions were written to it"
            why = f"{path} was emptied or removed"
        raise StorageFailed(
            f"{path} has lost rows: {what}. Probably {why}. Actors, jobs, placement groups and functions of those"
            f" transactions are gone. Restore the files from a copy. Or remove {path}{COMMITS}, to go on with what is left"
        )
    commits.note(found)


def _damaged(path: str, how: str) -> str:
    return (
        f"{path} is damaged: {how}. The cluster's actors, jobs, placement groups and functions in it are lost, unless you"
        f" have a copy. Restore the copy. Or move {path} and the files named after it away, to begin a new cluster"
    )


def _explain(path: str, error: Exception) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_NOTADB:
        return "it is damaged or not a minray store; move the file away, restore it, or name another"
    if code == sqlite3.SQLITE_BUSY:
        return "another process uses it; is this cluster running already?"
    if isinstance(error, sqlite3.OperationalError) and code != sqlite3.SQLITE_CORRUPT:
        return str(error)
    return _damaged(path, str(error))
