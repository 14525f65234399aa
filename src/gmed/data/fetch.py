from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from gmed.data.archive import unpack
from gmed.data.cifar import Cifar
from gmed.data.download import download
from gmed.data.places import cache_folder
from gmed.data.progress import Progress, unwatched
from gmed.data.records import read_records, record_bytes
from gmed.data.writing import exclusive, made_whole, writing
from gmed.errors import DataError

MARK = ".fetched"
"""The file that says of a folder in the cache that it was fetched, and may be removed."""


def fetch(cifar: Cifar, progress: Progress = unwatched) -> Path:
    """Download a data set into the cache, unless a sound copy is there already; where it then is.

    The folder appears when every file in it has been checked. Several processes may fetch at once: one does, the others
    wait for it.
    """
    folder, archive = cache_folder() / cifar.folder, archive_of(cifar)
    with exclusive(folder):
        if _is_sound(cifar, folder):
            return folder
        if folder.exists() and not (folder / MARK).exists():
            raise DataError(f"{folder}: not sound, and not from `gmed data fetch`. Move it away, then fetch again.")
        download(cifar.url, archive, cifar.md5, progress)
        sizes = {f"{cifar.folder}/{file.name}": file.records * record_bytes(cifar.classes) for file in cifar.files}
        with made_whole(folder) as making:
            unpack(archive, sizes, making)
            for file in cifar.files:
                read_records(making, file, cifar.classes)
            with writing(folder):
                said = f"Fetched from {cifar.url}; `gmed data remove {cifar.name}` removes it.\n"
                (making / MARK).write_text(said, encoding="utf-8")
        with suppress(OSError):
            archive.unlink()
    return folder


def archive_of(cifar: Cifar) -> Path:
    """Where the archive of a data set is while it is being fetched."""
    return cache_folder() / "downloads" / cifar.url.rpartition("/")[2]


def _is_sound(cifar: Cifar, folder: Path) -> bool:
    try:
        for file in cifar.files:
            read_records(folder, file, cifar.classes)
    except DataError:
        return False
    return True
