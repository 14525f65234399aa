"""Files: written atomically, and opened only if they are regular files and fit into memory.

A reader sees the old file or the new one, and leftovers of killed writers are removed.
"""

from __future__ import annotations

import csv
import errno
import os
import re
import secrets
import stat
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader, TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

from gmed.errors import DataError, UsageError

if sys.platform != "win32":
    import fcntl
    import resource

STALE_SECONDS = 3600.0
"""Age at which a temporary file is removed where locks cannot tell whether its writer is alive."""

_FORMULA_STARTS = ("=", "+", "-", "@", "\t", "\r")
_PERMISSIONS = ". Fix the permissions or choose another folder."
_MAX_NAME = 200  # bytes of the target's name to keep, so that the temporary one fits into 255


@contextmanager
def atomic_write(path: Path) -> Iterator[BinaryIO]:
    """Yield a binary file that becomes ``path`` when the block ends, or is discarded if the block fails.

    The temporary file has a unique name in the same folder, is created exclusively and never through a link. It is
    locked while it is written, so that temporary files of killed writers can be recognized and are removed.

    Raises
    ------
    UsageError
        If the file cannot be written.

    Examples
    --------
    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     path = Path(folder) / "result.txt"
    ...     with atomic_write(path) as file:
    ...         _ = file.write(b"complete")
    ...     path.read_bytes(), len(list(Path(folder).iterdir()))
    (b'complete', 1)
    """
    with wrap_os_errors(path):
        check_output_path(path)
        if path.exists() and not path.is_file():  # /dev/stdout or a named pipe, which cannot be replaced
            with path.open("wb") as device:
                yield device
            return
        remove_stale_files(path.parent, path.name)
        temporary, file = _create_temporary(path)
        try:
            with file:
                yield file
                file.flush()
                os.fsync(file.fileno())
                temporary.replace(path)  # while it is still locked, so that no process takes it for a leftover
        finally:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)


def write_bytes(path: Path, data: bytes) -> None:
    """Write a file atomically."""
    with atomic_write(path) as file:
        file.write(data)


def open_regular(path: Path) -> BufferedReader:
    """Open a regular file for reading; a pipe or a device, which may block or never end, is an error.

    Raises
    ------
    OSError
        If it cannot be opened or is not a regular file.
    """
    # A pipe opened without O_NONBLOCK waits for a writer.
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    try:
        _require_regular(os.fstat(handle), path)
        return os.fdopen(handle, "rb")
    except BaseException:
        os.close(handle)
        raise


def read_bytes(path: Path) -> bytes:
    """Read a regular file."""
    with open_regular(path) as file:
        return file.read()


def check_regular(path: Path) -> None:
    """Raise an error unless a path is a regular file, before a library opens it by name.

    Raises
    ------
    OSError
        If it cannot be accessed or is not a regular file.
    """
    _require_regular(path.stat(), path)


def _require_regular(status: os.stat_result, path: Path) -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "not a regular file but a pipe, a socket or a device", str(path))


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn an :class:`OSError` of the block into a :class:`~gmed.errors.DataError` that names the file."""
    try:
        yield
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror or error}).") from None


def memory_limit() -> int | None:
    """Return the usable memory in bytes, the lowest known limit of the machine, the container and the process."""
    limits = []
    with suppress(AttributeError, OSError, ValueError):
        limits.append(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    with suppress(OSError, ValueError):
        limits.append(int(Path("/sys/fs/cgroup/memory.max").read_text(encoding="ascii")))
    if sys.platform != "win32":
        soft = resource.getrlimit(resource.RLIMIT_AS)[0]
        limits += [soft] if soft != resource.RLIM_INFINITY else []
    return min(limits, default=None)


def check_room(path: Path, what: str, size: int) -> None:
    """Raise an error if something would need more memory than is available.

    >>> check_room(Path("x.npz"), "x", 10**6)
    >>> check_room(Path("x.npz"), "x", 10**21)
    Traceback (most recent call last):
    ...
    gmed.errors.DataError: x.npz: not enough memory for x (1e+12 GB). Use a part of the data.
    """
    limit = memory_limit()
    if limit is not None and size > limit:
        raise DataError(f"{path}: not enough memory for {what} ({size / 1e9:.3g} GB). Use a part of the data.")


def write_csv(file: BinaryIO, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as CSV into an open file; the file stays open."""
    text = TextIOWrapper(file, encoding="utf-8", newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writerow({name: csv_cell(name) for name in columns})
    writer.writerows({name: csv_cell(value) for name, value in row.items()} for row in rows)
    text.detach()  # flushes


def csv_cell(value: Any) -> Any:
    """Return a value that is safe in a CSV file: a quote precedes text that a spreadsheet would run as a formula.

    >>> csv_cell("=HYPERLINK(A1)"), csv_cell("-1.5"), csv_cell("er+gmed"), csv_cell(-2)
    ("'=HYPERLINK(A1)", '-1.5', 'er+gmed', -2)
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA_STARTS):
        return value
    with suppress(ValueError):
        float(value)
        return value
    return f"'{value}"


def check_output_path(path: Path) -> None:
    """Raise an error if no file can be written to a path, before any work is done for it."""
    if path.is_dir():
        raise UsageError(f"{path}: cannot be written: it is a folder; give a file name")
    if not path.parent.is_dir():
        raise UsageError(f"{path}: cannot be written: the folder {path.parent} does not exist; create it first")
    if (path.is_file() or not path.exists()) and not os.access(path.parent, os.W_OK):
        raise UsageError(f"{path}: cannot be written: no permission to change files in {path.parent}{_PERMISSIONS}")


@contextmanager
def wrap_os_errors(path: Path | str) -> Iterator[None]:
    """Convert errors of the file system to errors that name the file and say what to do."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if error.filename is not None and Path(error.filename).parent != Path(path).parent:
            raise  # about another file, which the caller reads
        raise UsageError(f"{path}: cannot be written ({error.strerror or error}){_hint(error)}") from None


def _hint(error: OSError) -> str:
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return ". Free disk space or choose another folder."
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS):
        return _PERMISSIONS
    return ""


def remove_stale_files(folder: Path, name: str | None = None) -> int:
    """Remove temporary files of killed writers in a folder (of one target only, if named); return their number."""
    target = ".+" if name is None else re.escape(_stem(name))
    pattern = re.compile(rf"\.{target}\.(?P<token>[0-9a-f]{{16}}|[0-9]+)\.tmp")
    removed = 0
    with suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            match = pattern.fullmatch(entry.name)
            if match and entry.is_file(follow_symlinks=False):
                removed += _remove_stale(entry, locked=len(match["token"]) == 16)
    return removed


def _remove_stale(entry: os.DirEntry[str], *, locked: bool) -> bool:
    """Remove a temporary file whose writer is gone; return whether it was removed."""
    if not locked or sys.platform == "win32":  # names of earlier versions end in a process id, and are not locked
        return _is_old(entry) and _unlink(entry)
    try:
        handle = os.open(entry.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return _unlink(
            entry
        )  # while it is locked: a writer that has just created it waits for the lock, and finds it gone
    except BlockingIOError:
        return False  # its writer is alive
    except OSError:  # a network file system without locks
        return _is_old(entry) and _unlink(entry)
    finally:
        os.close(handle)


def _unlink(entry: os.DirEntry[str]) -> bool:
    try:
        Path(entry.path).unlink()
    except OSError:
        return False
    return True


def _is_old(entry: os.DirEntry[str]) -> bool:
    with suppress(OSError):
        return time.time() - entry.stat(follow_symlinks=False).st_mtime > STALE_SECONDS
    return False


def _create_temporary(path: Path) -> tuple[Path, BinaryIO]:
    """Create and lock a new file in the folder of ``path``."""
    while True:
        temporary = path.with_name(f".{_stem(path.name)}.{secrets.token_hex(8)}.tmp")
        flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        handle = os.open(temporary, flags, 0o666)
        if sys.platform == "win32" or _lock(handle):
            return temporary, os.fdopen(handle, "wb")
        os.close(handle)  # another process took it for a leftover before it was locked


def _lock(handle: int) -> bool:
    """Lock a file that was just created; False if another process has removed it in between."""
    with suppress(OSError):  # some network file systems have no locks; only age counts there
        fcntl.flock(handle, fcntl.LOCK_EX)
    return os.fstat(handle).st_nlink > 0


def _stem(name: str) -> str:
    return os.fsdecode(os.fsencode(name)[:_MAX_NAME])
