from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gmed.errors import DataError

Stamps = tuple[tuple[str, int, int], ...]


def stamps(folder: Path, names: Iterable[str]) -> Stamps:
    """Name, size and time of change of files: what tells without reading them that they are still the same."""
    found = []
    for name in names:
        try:
            status = (folder / name).stat()
        except FileNotFoundError:
            found.append((name, -1, 0))
        except OSError as error:
            raise DataError(f"{folder / name}: cannot be read ({error.strerror}).") from None
        else:
            found.append((name, status.st_size, status.st_mtime_ns))
    return tuple(found)
