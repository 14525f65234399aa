"""Open a store's SQLite file: to write, or to read where it cannot be written, without missing what was committed."""

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
"""The path of a store that is not written anywhere."""

PENDING = ("-wal", "-journal")
"""Files of SQLite beside the store's own: without them what was committed last is missing."""

PROBED = 2**20
"""Bytes written to find out whether a disk is full."""

WAIT_SECONDS = 30.0
"""How long other processes are waited for."""


def is_writable(path: str) -> bool:
    """Whether a store can be written there: its file, SQLite's own files beside it, and the folder."""
    if path == MEMORY:
        return True
    file = Path(path).resolve()
    there = [each for each in (file, *_beside(file, "-shm", *PENDING)) if each.exists()]
    return os.access(file.parent, os.W_OK) and all(os.access(each, os.W_OK) for each in there)


class StoreConnection:
    """A connection to a store's file, and what must still hold for what it reads to be right.

    A store that can be written is opened so. One that cannot is read with everything that was committed to it, be it
    in use, left behind by a killed process, or on a read-only disk; where that is impossible it is refused.

    Parameters
    ----------
    to_write
        Whether it is opened to write where that is possible; if not, nothing is changed and no file made beside it.

    Attributes
    ----------
    database
        The connection.
    writable
        Whether it can write.
    """

    def __init__(self, path: str, *, to_write: bool = True) -> None:
        if path != MEMORY and Path(path).exists() and not Path(path).is_file():
            raise StoreError(f"{path}: not a file but a folder, a pipe or a device; choose another --store")
        self._snapshot: TemporaryDirectory[str] | None = None
        self._unchanged: tuple[Path, list[tuple[int, int] | None]] | None = None
        self.writable = to_write and is_writable(path)
        if self.writable or not Path(path).exists():
            self.database = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)
        else:
            self.database = self._open_to_read(Path(path).resolve())

    def _open_to_read(self, file: Path) -> sqlite3.Connection:
        (shared,) = _beside(file, "-shm")
        if shared.exists():  # somebody is using it, or was killed
            with suppress(sqlite3.OperationalError):
                return _read_only(file, "mode=ro")
        if any(state is not None and state[1] > 0 for state in _states(_beside(file, *PENDING))):
            return self._read_copy(file)
        self._unchanged = file, _states((file, *_beside(file, *PENDING)))
        return _read_only(file, "mode=ro&immutable=1")  # all is in the one file, which may be on a read-only disk

    def _read_copy(self, file: Path) -> sqlite3.Connection:
        """Read a private copy, in which SQLite can finish what a killed process left beside the file."""
        everything = [each for each in (file, *_beside(file, *PENDING)) if each.exists()]
        self._snapshot = TemporaryDirectory(prefix="gmed-")
        try:
            before = _states(everything)
            for each in everything:
                shutil.copyfile(each, Path(self._snapshot.name) / each.name)
            if _states(everything) != before:
                raise StoreError(f"{file}: was written to while it was being read. Try again.")
            return sqlite3.connect(Path(self._snapshot.name) / file.name, isolation_level=None)
        except OSError as error:
            self._snapshot.cleanup()
            raise StoreError(
                f"{file}: its last results are in {everything[-1].name}, beside it; to be read, both must be copied to "
                f"{self._snapshot.name}, which failed ({error.strerror}). Make both readable, or let its owner run "
                "gmed runs once, which brings them together."
            ) from None
        except BaseException:
            self._snapshot.cleanup()
            raise

    def check_unchanged(self) -> None:
        """Refuse what was read from a file that somebody has begun to write to since it was opened."""
        if self._unchanged is not None:
            file, before = self._unchanged
            if _states((file, *_beside(file, *PENDING))) != before:
                raise StoreError(f"{file}: was written to while it was being read. Try again.")

    def close(self) -> None:
        self.database.close()
        if self._snapshot is not None:
            self._snapshot.cleanup()


def _read_only(file: Path, how: str) -> sqlite3.Connection:
    database = sqlite3.connect(f"{file.as_uri()}?{how}", timeout=WAIT_SECONDS, uri=True, isolation_level=None)
    try:
        database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        database.close()
        raise
    return database


def _beside(file: Path, *endings: str) -> list[Path]:
    return [file.with_name(file.name + ending) for ending in endings]


def _states(files: list[Path] | tuple[Path, ...]) -> list[tuple[int, int] | None]:
    """When each file was changed last and how long it is; nothing for one that is not there."""
    found: list[tuple[int, int] | None] = []
    for file in files:
        try:
            status = file.stat()
        except FileNotFoundError:
            found.append(None)
        else:
            found.append((status.st_mtime_ns, status.st_size))
    return found


def is_full(error: sqlite3.Error, path: str) -> bool:
    """Whether an error of SQLite means that the disk is full: it says so of some writes only."""
    name = getattr(error, "sqlite_errorname", "")
    if not name.startswith(("SQLITE_IOERR", "SQLITE_CANTOPEN")):
        return name == "SQLITE_FULL"
    try:
        with TemporaryFile(dir=Path(path).resolve().parent) as probe:
            probe.write(bytes(PROBED))
            probe.flush()
            os.fsync(probe.fileno())
    except OSError as refused:
        return refused.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
    return False
