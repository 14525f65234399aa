"""Data that the caller has in memory: arrays, tensors and data sets of torch."""

from __future__ import annotations

from pathlib import Path
from reprlib import repr as short
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from gmed.errors import DataError, UsageError

InMemory = tuple[Any, ...] | Dataset[Any]
"""``(x, y)`` or ``(x, y, x_test, y_test)``; a torch data set, or ``(train, test)``."""


def save_arrays(data: InMemory, folder: Path) -> Path:
    """Write data in memory to a file that :func:`~gmed.data.custom.load_custom` reads, and return its path.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder, np.load(save_arrays(([[1.0], [2.0]], ["a", "b"]), Path(folder))) as file:
    ...     sorted(file), file["y"].tolist()
    (['x', 'y'], ['a', 'b'])
    """
    arrays = _arrays(data)
    if len(arrays) not in (2, 4):
        raise UsageError(
            "data in memory must be (x, y) or (x, y, x_test, y_test), or one or two data sets of torch; "
            f"not {len(arrays)} arrays"
        )
    path, named = folder / "arrays.npz", dict[str, Any](zip(("x", "y", "x_test", "y_test"), arrays, strict=False))
    np.savez(path, **named)
    return path


def _arrays(data: Any) -> list[NDArray[Any]]:
    if isinstance(data, tuple):
        return [array for part in data for array in _arrays(part)]
    return list(_examples(data)) if isinstance(data, Dataset) else [_array(data)]


def _examples(data: Dataset[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the inputs and the labels of a data set; images of PIL, whose channels come last, as (channels, ...)."""
    if not hasattr(data, "__len__"):
        raise UsageError(f"{type(data).__name__} has no length; give a data set with __len__ and __getitem__")
    inputs, labels = [], []
    for index in range(len(data)):
        example = data[index]
        if not isinstance(example, (tuple, list)) or len(example) != 2:
            raise UsageError(f"{type(data).__name__}[{index}] must be (input, label), not {short(example)}")
        x, label = example
        array = _array(x)
        inputs.append(np.moveaxis(array, -1, 0) if array.ndim == 3 and hasattr(x, "getbands") else array)
        labels.append(label.item() if isinstance(label, (Tensor, np.generic)) else label)
    if unlike := next((index for index, x in enumerate(inputs) if x.shape != inputs[0].shape), 0):
        raise DataError(
            f"{type(data).__name__}: input {unlike} has the shape {inputs[unlike].shape}, but input 0 "
            f"{inputs[0].shape}. Make all alike."
        )
    return np.stack(inputs) if inputs else np.empty((0, 1)), np.array(labels)


def _array(value: Any) -> NDArray[Any]:
    try:
        array: NDArray[Any] = value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
        array = np.array(array.tolist()) if array.dtype == object else array  # pandas has text as objects
        return np.ascontiguousarray(array)  # so that equal arrays are equal files
    except (TypeError, ValueError) as error:
        raise UsageError(f"{short(value)} cannot be converted to an array ({error})") from None
