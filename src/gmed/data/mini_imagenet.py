from __future__ import annotations

from pathlib import Path

from gmed.data.dataset import Dataset
from gmed.data.places import find_folder
from gmed.data.progress import Progress, unwatched


def load_mini_imagenet(directory: Path | None = None, progress: Progress = unwatched) -> Dataset:
    """mini-ImageNet: 50,000 + 10,000 colour photographs of 100 kinds of things, 84 x 84."""
    find_folder("mini-imagenet", "mini-imagenet", directory, lambda _: False)
    raise NotImplementedError
