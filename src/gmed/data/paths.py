"""Search paths and cache folders of data sets, and safe writes to the cache."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gmed.errors import DataError
from gmed.io.files import reading


def cache_dir() -> Path:
    """Return the cache folder: ``$GMED_CACHE``, else ``$XDG_CACHE_HOME/gmed``, else ``~/.cache/gmed``."""
    if configured := os.environ.get("GMED_CACHE"):
        return _expanduser(configured)
    return _expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "gmed"


def search_paths(directory: Path | None) -> list[Path]:
    """Return the folders to search, in order: ``directory`` alone if given, else ``$GMED_DATA`` and the cache."""
    if directory is not None:
        return [Path(directory)]
    configured = os.environ.get("GMED_DATA")
    return [*([_expanduser(configured)] if configured else []), cache_dir()]


def find_folder(
    dataset: str, folder: str, directory: Path | None, contains: Callable[[Path], bool], how_to_get: str
) -> Path:
    """Return the first folder on the search path that contains a data set, itself or in a folder with this name.

    Raises
    ------
    DataError
        If there is none: the message lists the folders searched and how to get the data set.
    """
    searched = search_paths(directory)
    for base in searched:
        for candidate in (base / folder, base):
            try:
                if contains(candidate):
                    return candidate.resolve()
            except OSError as error:
                raise DataError(f"{error.filename or candidate}: cannot be read ({error.strerror}).") from None
    raise DataError(f"{dataset} is not in {' or '.join(map(str, searched))}. {how_to_get}.")


def _expanduser(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise DataError(f"{path}: there is no home folder. Set GMED_CACHE to a folder for data sets.") from None


if sys.platform != "win32":
    import fcntl


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn an :class:`OSError` of the block into a :class:`~gmed.errors.DataError` with the path and a remedy."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}). "
            "Free disk space or fix the permissions, or set GMED_CACHE to another folder.",
        ) from None


@contextmanager
def exclusive(target: Path) -> Iterator[None]:
    """Lock ``target`` against other processes that create or remove it; they wait. A dead process releases its lock."""
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        file = open_to_append(target.with_name(f".{target.name}.lock"))
    with file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def atomic_dir(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes ``target`` once its files are on disk, and is removed if anything fails.

    Leftovers of killed processes are removed first, so only one process at a time may do this (:func:`exclusive`).
    """
    if sys.platform != "win32":
        for path in stale_dirs(target):
            shutil.rmtree(path, ignore_errors=True)
    building, replaced = (target.with_name(f"{_temporary_prefix(target)}{secrets.token_hex(4)}") for _ in range(2))
    try:
        with writing(target):
            building.mkdir(parents=True)
        yield building
        with writing(target):
            for path in building.iterdir():
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
            if target.exists():
                target.rename(replaced)
            building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def stale_dirs(target: Path) -> list[Path]:
    """Return the leftovers of processes that were killed while they created ``target``."""
    return sorted(target.parent.glob(f"{_temporary_prefix(target)}*"))


def remove_cached(target: Path, *others: Path) -> list[Path]:
    """Remove a path from the cache, leftovers of killed processes, and other paths; return the removed paths."""
    if not cache_dir().is_dir():
        return []
    with exclusive(target), writing(target):
        removed = [path for path in (target, *others, *stale_dirs(target)) if path.exists()]
        for path in removed:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    return removed


def remove_stale_dirs(folder: Path) -> None:
    """Remove the leftovers of killed processes in a folder that is :func:`exclusive` now."""
    if sys.platform != "win32":
        for path in folder.glob(f".*-{'[0-9a-f]' * 8}"):
            shutil.rmtree(path, ignore_errors=True)


def open_to_append(path: Path, *, truncate: bool = False) -> BinaryIO:
    """Open a file in the cache to append to it, or to overwrite it with ``truncate``; never follow a link.

    Raises
    ------
    OSError
        If it is a link or not a regular file, or cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if truncate else os.O_APPEND)
    flags |= sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    return os.fdopen(os.open(path, flags, 0o666), "wb" if truncate else "ab")


def _temporary_prefix(target: Path) -> str:
    return f".{target.name}-"


FileSignature = tuple[str, int, int]


def file_signature(path: Path) -> FileSignature:
    """Return the path, size and modification time of a file: enough to detect changes without reading it."""
    with reading(path):
        status = path.stat()
    return str(path), status.st_size, status.st_mtime_ns
