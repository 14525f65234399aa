"""The registry of data sets."""

from __future__ import annotations

from gmed.data.cifar import CIFAR10, CIFAR100
from gmed.data.dataset import DataSource
from gmed.data.mini_imagenet import MINI_IMAGENET
from gmed.data.mnist import MNIST
from gmed.errors import unknown

DATASETS: dict[str, DataSource] = {source.name: source for source in (MNIST, CIFAR10, CIFAR100, MINI_IMAGENET)}


def get_dataset_info(name: str) -> DataSource:
    """Return the data set with this name; an error suggests the closest names."""
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]
