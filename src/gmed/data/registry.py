"""The registry of data sets: how to find, load, verify, fetch and remove each."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from gmed.data.cifar import CIFAR10, CIFAR100, Cifar
from gmed.data.dataset import Dataset, Progress
from gmed.data.download import FETCHED_MARKER, archive_of, fetch
from gmed.data.mini_imagenet import (
    HOW_TO_GET,
    decoded_dir,
    find_mini_imagenet,
    load_mini_imagenet,
    verify_mini_imagenet,
)
from gmed.data.mnist import PACKAGED, SHA256, load_mnist
from gmed.data.paths import cache_dir, exclusive, stale_dirs, writing
from gmed.errors import DataError, unknown


def remove_fetched(cifar: Cifar) -> list[Path]:
    """Remove a fetched data set from the cache; return the removed paths."""
    folder, archive = cache_dir() / cifar.folder, archive_of(cifar)
    if folder.is_symlink() or (folder.exists() and not (folder / FETCHED_MARKER).exists()):
        raise DataError(
            f"{folder}: not created by `gmed data fetch`, so it is not removed. Delete it by hand if necessary."
        )
    return _remove(folder, archive, archive.with_name(archive.name + ".part"))


def remove_decoded() -> list[Path]:
    """Remove the decoded copies from the cache, not the original images; return the removed paths."""
    return _remove(decoded_dir())


def _remove(target: Path, *others: Path) -> list[Path]:
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


@dataclass(frozen=True)
class Entry:
    """A data set in the registry.

    Attributes
    ----------
    find
        Return its folder without reading it; if there is none, the error explains how to get the data set.
    load
        Load it with quick checks only, after decoding if necessary.
    verify
        Load it after reading and checking every file.
    fetch
        Download it into the cache; return its folder.
    remove
        Remove its files from the cache; return the removed paths.
    """

    name: str
    images: str
    disk: str
    find: Callable[[Path | None], Path]
    load: Callable[[Path | None, Progress], Dataset]
    verify: Callable[[Path | None, Progress], Dataset]
    fetch: Callable[[Progress], Path]
    remove: Callable[[], list[Path]]


def get_dataset_info(name: str) -> Entry:
    """Return the data set with this name; an error suggests the closest names."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]


def _find_mnist(directory: Path | None) -> Path:
    if directory is None:
        return PACKAGED
    if any((directory / name).is_file() for name in SHA256):
        return directory
    raise DataError(f"mnist is not in {directory}. Omit --data-dir to use the copy in the package.")


def _cifar_entry(cifar: Cifar) -> Entry:
    return Entry(
        name=cifar.name,
        images=f"60,000 of 32 x 32, {cifar.classes[-1]} classes",
        disk="184 MB",
        find=cifar.find,
        load=lambda directory, _progress: cifar.load(directory),
        verify=lambda directory, _progress: cifar.load(directory),
        fetch=partial(fetch, cifar),
        remove=partial(remove_fetched, cifar),
    )


def _refuse_to_fetch(_progress: Progress) -> Path:
    raise DataError(f"mini-imagenet: {HOW_TO_GET[0].lower()}{HOW_TO_GET[1:]}.")


DATASETS = {
    entry.name: entry
    for entry in (
        Entry(
            name="mnist",
            images="70,000 of 28 x 28, 10 classes",
            disk="12 MB",
            find=_find_mnist,
            load=lambda directory, _progress: load_mnist(directory),
            verify=lambda directory, _progress: load_mnist(directory),
            fetch=lambda _progress: PACKAGED,
            remove=list,
        ),
        _cifar_entry(CIFAR10),
        _cifar_entry(CIFAR100),
        Entry(
            name="mini-imagenet",
            images="60,000 of 84 x 84, 100 classes",
            disk="1.3 GB decoded",
            find=find_mini_imagenet,
            load=load_mini_imagenet,
            verify=verify_mini_imagenet,
            fetch=_refuse_to_fetch,
            remove=remove_decoded,
        ),
    )
}
