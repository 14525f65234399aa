from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from gmed.errors import DataError

Stamps = tuple[tuple[str, int, int], ...]


def stamps(files: Iterable[Path]) -> Stamps:
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
