"""Stores the gcs's tables in one SQLite file, so that they outlive the gcs.

Ray: src/ray/gcs/store_client/redis_store_client.h

SQLite blocks, so it has a thread of its own. Writes are staged on the loop. The first ``commit`` of a turn schedules a
transaction for the end of the turn. Callers that commit while a transaction is being written share the next one.

Rules
  * A commit returns only after its rows are synced to disk (write-ahead log, full sync).
  * After ``StorageFailed`` the rows of that commit are never written: their caller may have given up. Removals stay staged,
    since they mostly concern rows that no caller knows any more and will not ask to remove again.
  * A store belongs to one process: the file is locked while it is open.
  * A file must be empty or have our format, or it is refused. No other user may write to its directory, or change where its
    path leads: the tables contain programs, which this user's workers run.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from minray.platform.base import StorageFailed
from minray.platform.storage.private_paths import PrivateDirectory, resolve

FORMAT: Final = "2"
"""The version of the file's format, written into each file; a file with another one is refused."""
LOCK_WAIT_S = 2.0
"""Seconds to wait for the file's lock: a previous gcs may be just ending."""

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
            self._connection = self._thread.submit(_open, path).result()
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
        self._thread.submit(self._connection.close).result()
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
            return dict(self._connection.execute("SELECT key, value FROM rows WHERE table_name = ?", (table,)))
        except sqlite3.Error as error:
            raise StorageFailed(f"{self._path} could not be read: {error}") from error

    def _write(self, rows: _Staged) -> None:
        removed = [place for place, value in rows.items() if value is None]
        written = [(*place, value) for place, value in rows.items() if value is not None]
        try:
            self._connection.execute("BEGIN IMMEDIATE")
            self._connection.executemany("DELETE FROM rows WHERE table_name = ? AND key = ?", removed)
            self._connection.executemany("INSERT OR REPLACE INTO rows VALUES (?, ?, ?)", written)
            self._connection.execute("COMMIT")
        except sqlite3.Error as error:
            with suppress(sqlite3.Error):
                self._connection.rollback()
            raise StorageFailed(f"{self._path} could not be written: {error}. Is the disk full?") from error


def _open(path: str) -> sqlite3.Connection:
    try:
        folder, name = os.path.split(os.path.abspath(path))
        place = resolve(folder)
        os.close(PrivateDirectory(place).open(name, os.O_RDWR | os.O_CREAT))
        connection = sqlite3.connect(os.path.join(place, name), timeout=LOCK_WAIT_S, isolation_level=None)
    except (OSError, sqlite3.Error) as error:
        raise StorageFailed(f"the storage {path} could not be opened: {error}") from error
    try:
        _check_format(path, connection)
        # Exclusive mode: the lock ends with the process, and SQLite needs no shared memory file beside its log.
        for pragma in ("locking_mode=EXCLUSIVE", "journal_mode=WAL", "synchronous=FULL"):
            connection.execute(f"PRAGMA {pragma}").fetchall()
        connection.executescript(
            f"""BEGIN IMMEDIATE;
            CREATE TABLE IF NOT EXISTS minray (name TEXT PRIMARY KEY, value TEXT) WITHOUT ROWID;
            CREATE TABLE IF NOT EXISTS rows (table_name TEXT, key TEXT, value BLOB, PRIMARY KEY (table_name, key));
            INSERT OR REPLACE INTO minray VALUES ('format', '{FORMAT}');
            COMMIT;"""
        )
    except sqlite3.Error as error:
        connection.close()
        raise StorageFailed(f"the storage {path} could not be opened: {_explain(error)}") from error
    except BaseException:
        connection.close()
        raise
    return connection


def _check_format(path: str, connection: sqlite3.Connection) -> None:
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if not tables:
        return
    if "minray" not in tables:
        raise StorageFailed(f"{path} is not a minray store but another program's database; name another file")
    found = dict(connection.execute("SELECT name, value FROM minray")).get("format")
    if found != FORMAT:
        raise StorageFailed(
            f"{path} was written by another version of minray (format {found}, this one reads {FORMAT}); "
            "use that version, or move the file away"
        )


def _explain(error: sqlite3.Error) -> str:
    if error.sqlite_errorcode == sqlite3.SQLITE_NOTADB:
        return "it is not a minray store; move the file away or name another"
    if error.sqlite_errorcode == sqlite3.SQLITE_BUSY:
        return "another process uses it; is this cluster running already?"
    return str(error)
