"""Where data sets are looked for and cached, and how the cache is written."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from gmed.errors import DataError


def cache_dir() -> Path:
    """The folder that is ours to write: ``$GMED_CACHE``, else ``$XDG_CACHE_HOME/gmed``, else ``~/.cache/gmed``."""
    if given := os.environ.get("GMED_CACHE"):
        return _expanduser(given)
    return _expanduser(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "gmed"


def places(directory: Path | None) -> list[Path]:
    """The folders to look in, in order: the one given, or else ``$GMED_DATA`` and then the cache."""
    if directory is not None:
        return [Path(directory)]
    given = os.environ.get("GMED_DATA")
    return [*([_expanduser(given)] if given else []), cache_dir()]


def find_folder(
    dataset: str, folder: str, directory: Path | None, holds: Callable[[Path], bool], how_to_get: str
) -> Path:
    """The first place that holds a data set, in a folder of this name or by itself.

    Raises
    ------
    DataError
        Where none does: it says where we looked and how to get the data set.
    """
    looked = places(directory)
    for place in looked:
        for candidate in (place / folder, place):
            try:
                if holds(candidate):
                    return candidate.resolve()
            except OSError as error:
                raise DataError(f"{error.filename or candidate}: cannot be read ({error.strerror}).") from None
    raise DataError(f"{dataset} is not in {' or '.join(map(str, looked))}. {how_to_get}.")


def _expanduser(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise DataError(f"{path}: there is no home folder here. Set GMED_CACHE to a folder for data sets.") from None


if sys.platform != "win32":
    import fcntl


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn what the file system refuses into an error that says where and what to do."""
    try:
        yield
    except OSError as error:
        raise DataError(
            f"{path}: cannot be written ({error.strerror or error}). "
            "Make room or get leave to write there, or set GMED_CACHE to another folder.",
        ) from None


@contextmanager
def exclusive(target: Path) -> Iterator[None]:
    """Be the only process that makes or removes ``target``; others wait, and a process that dies lets go."""
    with writing(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        file = open_to_append(target.with_name(f".{target.name}.lock"))
    with file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def atomic_dir(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``target`` once all in it is on the disk, and goes away if anything fails.

    What killed processes left of it is removed first: only one process at a time may make it (:func:`exclusive`).
    """
    if sys.platform != "win32":
        for path in stale_dirs(target):
            shutil.rmtree(path, ignore_errors=True)
    making, replaced = (target.with_name(f"{_making(target)}{secrets.token_hex(4)}") for _ in range(2))
    try:
        with writing(target):
            making.mkdir(parents=True)
        yield making
        with writing(target):
            for path in making.iterdir():
                with path.open("rb+") as file:
                    os.fsync(file.fileno())
            if target.exists():
                target.rename(replaced)
            making.rename(target)
    finally:
        shutil.rmtree(making, ignore_errors=True)
        shutil.rmtree(replaced, ignore_errors=True)


def stale_dirs(target: Path) -> list[Path]:
    """What processes that were killed while they made ``target`` could not take away."""
    return sorted(target.parent.glob(f"{_making(target)}*"))


def remove_stale_dirs(folder: Path) -> None:
    """Remove whatever killed processes were making in a folder that is :func:`exclusive` now."""
    if sys.platform != "win32":
        for path in folder.glob(f".*-{'[0-9a-f]' * 8}"):
            shutil.rmtree(path, ignore_errors=True)


def open_to_append(path: Path, *, anew: bool = False) -> BinaryIO:
    """Open a file of the cache to write at its end, or from its beginning; never through a link.

    Raises
    ------
    OSError
        If it is a link or no regular file, or cannot be opened.
    """
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if anew else os.O_APPEND)
    flags |= sum(getattr(os, name, 0) for name in ("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    return os.fdopen(os.open(path, flags, 0o666), "wb" if anew else "ab")


def _making(target: Path) -> str:
    return f".{target.name}-"


FileSignatures = tuple[tuple[str, int, int], ...]


def file_signatures(files: Iterable[Path]) -> FileSignatures:
    """Path, size and time of change of files: what tells without reading them that they are still the same."""
    found = []
    for file in files:
        try:
            status = file.stat()
        except FileNotFoundError:
            found.append((str(file), -1, 0))
        except OSError as error:
            raise DataError(f"{file}: cannot be read ({error.strerror}).") from None
        else:
            found.append((str(file), status.st_size, status.st_mtime_ns))
    return tuple(found)
