"""Writing into the cache so that others see all of it or nothing."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gmed.errors import DataError

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
        file = target.with_name(f".{target.name}.lock").open("ab")
    with file:
        if sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def made_whole(target: Path) -> Iterator[Path]:
    """A folder to fill, which becomes ``target`` once all in it is on the disk, and goes away if anything fails."""
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


def left_behind(target: Path) -> list[Path]:
    """What processes that were killed while they made ``target`` could not take away."""
    return sorted(target.parent.glob(f"{_making(target)}*"))


def _making(target: Path) -> str:
    return f".{target.name}-"
