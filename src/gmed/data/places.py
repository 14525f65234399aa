"""Where data sets are looked for, and where this package keeps what it fetched or decoded."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from gmed.errors import DataError


def cache_folder() -> Path:
    """The folder that is ours to write: ``$GMED_CACHE``, else ``$XDG_CACHE_HOME/gmed``, else ``~/.cache/gmed``."""
    if given := os.environ.get("GMED_CACHE"):
        return _at_home(given)
    return _at_home(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "gmed"


def places(directory: Path | None) -> list[Path]:
    """The folders to look in, in order: the one given, or else ``$GMED_DATA`` and then the cache."""
    if directory is not None:
        return [Path(directory)]
    given = os.environ.get("GMED_DATA")
    return [*([_at_home(given)] if given else []), cache_folder()]


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


def _at_home(path: str) -> Path:
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise DataError(f"{path}: there is no home folder here. Set GMED_CACHE to a folder for data sets.") from None
