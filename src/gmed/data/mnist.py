from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from gmed.data.dataset import Dataset
from gmed.data.idx import read_idx

PACKAGED = Path(__file__).parent / "mnist_files"

SHA256 = {
    "train-images-idx3-ubyte.gz": "0b367032e93c5d0cea0925647cfdb18614af8ee15f83e6f2fc2ad904a6835971",
    "train-labels-idx1-ubyte.gz": "1787548bbe0bff1ec2ecdc0ef292b02df999e2d1a6002d27500982c652b17203",
    "t10k-images-idx3-ubyte.gz": "1a1a05eab793c14bb050b398624a11b0ffd1a2953baed553b1b9bd079e2a20be",
    "t10k-labels-idx1-ubyte.gz": "b91679a0acfe4ba0e50a2437a903084cba1f5f92592b016a25a7dfd00455798b",
}


@lru_cache(maxsize=1)
def load_mnist(directory: Path | None = None) -> Dataset:
    """MNIST: 60,000 + 10,000 images of handwritten digits, 28 x 28.

    Parameters
    ----------
    directory
        A folder with the four official ``.gz`` files; by default the copies inside the package. Checksums
        are verified either way.

    Examples
    --------
    >>> mnist = load_mnist()
    >>> mnist.x_train.shape, mnist.x_test.shape, mnist.num_classes
    ((60000, 1, 28, 28), (10000, 1, 28, 28), 10)

    References
    ----------
    LeCun, Bottou, Bengio, Haffner, "Gradient-based learning applied to document recognition",
    Proceedings of the IEEE 86(11), 1998.
    """
    folder = Path(directory) if directory is not None else PACKAGED

    def images(name: str) -> NDArray[np.uint8]:
        return read_idx(folder / name, 3, SHA256[name])[:, None]

    def labels(name: str) -> NDArray[np.int64]:
        return read_idx(folder / name, 1, SHA256[name]).astype(np.int64)

    return Dataset(
        name="mnist",
        x_train=images("train-images-idx3-ubyte.gz"),
        y_train=labels("train-labels-idx1-ubyte.gz"),
        x_test=images("t10k-images-idx3-ubyte.gz"),
        y_test=labels("t10k-labels-idx1-ubyte.gz"),
        num_classes=10,
    )
