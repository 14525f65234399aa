from __future__ import annotations

import shutil
from pathlib import Path

from gmed.data.cifar import Cifar
from gmed.data.fetch import MARK, archive_of
from gmed.data.mini_imagenet import decoded_folder
from gmed.data.places import cache_folder
from gmed.data.writing import exclusive, left_behind, writing
from gmed.errors import DataError


def remove_fetched(cifar: Cifar) -> list[Path]:
    """Remove from the cache what fetching put there; what was removed."""
    folder, archive = cache_folder() / cifar.folder, archive_of(cifar)
    if folder.is_symlink() or (folder.exists() and not (folder / MARK).exists()):
        raise DataError(f"{folder}: not from `gmed data fetch`, so it stays. Remove it yourself if you want to.")
    return _remove(folder, archive, archive.with_name(archive.name + ".part"))


def remove_decoded() -> list[Path]:
    """Remove the decoded copies in the cache; the images they were made of stay."""
    return _remove(decoded_folder())


def _remove(target: Path, *others: Path) -> list[Path]:
    if not cache_folder().is_dir():
        return []
    with exclusive(target), writing(target):
        found = [path for path in (target, *others, *left_behind(target)) if path.exists()]
        for path in found:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    return found
