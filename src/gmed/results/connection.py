"""Connections to a store's SQLite file, which is opened read-only, with all committed data, if it is not writable."""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory, TemporaryFile

from gmed.errors import StoreError

MEMORY = ":memory:"
"""The path of a store that is only held in memory."""

PENDING = ("-wal", "-journal")
"""Suffixes of the files that SQLite creates next to a database; they may contain the last commits."""

PROBE_BYTES = 2**20
"""Bytes written to test whether a disk is full."""

WAIT_SECONDS = 30.0
"""Maximum time to wait for locks of other processes."""


def is_writable(path: str) -> bool:
    """Return whether a store can be written: its file, the other files of SQLite, and the folder."""
    if path == MEMORY:
        return True
    file = Path(path).resolve()
    existing = [part for part in (file, *_siblings(file, "-shm", *PENDING)) if part.exists()]
    return os.access(file.parent, os.W_OK) and all(os.access(part, os.W_OK) for part in existing)


class StoreConnection:
    """A connection to a store's file, read-only where the file cannot be written.

    A read-only connection sees everything that was committed, whether the file is in use, was left behind by a killed
    process, or is on a read-only disk. Where that is impossible, opening it fails.

    Parameters
    ----------
    to_write
        Whether to open the file for writing where possible; otherwise no file is changed or created.

    Attributes
    ----------
    database
        The connection.
    writable
        Whether the connection can write.
    """

    def __init__(self, path: str, *, to_write: bool = True) -> None:
        if path != MEMORY and Path(path).exists() and not Path(path).is_file():
            raise StoreError(f"{path}: a folder, pipe or device, not a file; choose another --store")
        self._snapshot: TemporaryDirectory[str] | None = None
        self._unchanged: tuple[Path, list[tuple[int, int] | None]] | None = None
        self.writable = to_write and is_writable(path)
        if self.writable or not Path(path).exists():
            self.database = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)
        else:
            self.database = self._open_to_read(Path(path).resolve())

    def _open_to_read(self, file: Path) -> sqlite3.Connection:
        (shared,) = _siblings(file, "-shm")
        if shared.exists():  # in use, or left behind by a killed process
            with suppress(sqlite3.OperationalError):
                return _connect_read_only(file, "mode=ro")
        if any(state is not None and state[1] > 0 for state in _file_states(_siblings(file, *PENDING))):
            return self._read_copy(file)
        self._unchanged = file, _file_states((file, *_siblings(file, *PENDING)))
        # everything is in this one file, which may be on a read-only disk
        return _connect_read_only(file, "mode=ro&immutable=1")

    def _read_copy(self, file: Path) -> sqlite3.Connection:
        """Read a private copy, in which SQLite can recover the unmerged commits of a killed process."""
        parts = [part for part in (file, *_siblings(file, *PENDING)) if part.exists()]
        self._snapshot = TemporaryDirectory(prefix="gmed-")
        try:
            before = _file_states(parts)
            for part in parts:
                shutil.copyfile(part, Path(self._snapshot.name) / part.name)
            if _file_states(parts) != before:
                raise StoreError(f"{file}: the file changed while it was being read. Try again.")
            return sqlite3.connect(Path(self._snapshot.name) / file.name, isolation_level=None)
        except OSError as error:
            self._snapshot.cleanup()
            raise StoreError(
                f"{file}: its last results are in the neighboring file {parts[-1].name}; to read them, both must be "
                f"copied to {self._snapshot.name}, which failed ({error.strerror}). Make both readable, or let the "
                "owner run gmed runs once, which merges them."
            ) from None
        except BaseException:
            self._snapshot.cleanup()
            raise

    def check_unchanged(self) -> None:
        """Raise an error if the file was written to by another process since it was opened."""
        if self._unchanged is not None:
            file, before = self._unchanged
            if _file_states((file, *_siblings(file, *PENDING))) != before:
                raise StoreError(f"{file}: the file changed while it was being read. Try again.")

    def close(self) -> None:
        self.database.close()
        if self._snapshot is not None:
            self._snapshot.cleanup()


def _connect_read_only(file: Path, options: str) -> sqlite3.Connection:
    database = sqlite3.connect(f"{file.as_uri()}?{options}", timeout=WAIT_SECONDS, uri=True, isolation_level=None)
    try:
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        database.close()
        raise
    return database


def _siblings(file: Path, *suffixes: str) -> list[Path]:
    return [file.with_name(file.name + suffix) for suffix in suffixes]


def _file_states(files: list[Path] | tuple[Path, ...]) -> list[tuple[int, int] | None]:
    """Return the modification time and the size of each file; ``None`` for one that does not exist."""
    states: list[tuple[int, int] | None] = []
    for file in files:
        try:
            status = file.stat()
        except FileNotFoundError:
            states.append(None)
        else:
            states.append((status.st_mtime_ns, status.st_size))
    return states


def is_full(error: sqlite3.Error, path: str) -> bool:
    """Return whether an error of SQLite means that the disk is full, which SQLite only reports for some writes."""
    name = getattr(error, "sqlite_errorname", "")
    if not name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN")):
        return name == "SQLITE_FULL"
    try:
        with TemporaryFile(dir=Path(path).resolve().parent) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as os_error:
        return os_error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return False
