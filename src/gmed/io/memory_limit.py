"""The memory limit of this process, against which declared sizes of files are checked before anything is allocated."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from pathlib import Path

from gmed.errors import DataError

if sys.platform != "win32":
    import resource


def memory_limit() -> int | None:
    """Return the most bytes that this process can use, by the limits of machine, container and process, if known."""
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
    """Raise an error if something would take more memory than there is.

    >>> check_room(Path("x.npz"), "x", 10**6)
    >>> check_room(Path("x.npz"), "x", 10**21)
    Traceback (most recent call last):
    ...
    gmed.errors.DataError: x.npz: x takes 1e+12 GB of memory, more than there is. Use less of the data.
    """
    limit = memory_limit()
    if limit is not None and size > limit:
        raise DataError(
            f"{path}: {what} takes {size / 1e9:.3g} GB of memory, more than there is. Use less of the data."
        )
