"""Files of arrays (.npz): written from data in memory, and read after a check of the sizes in their headers."""

from __future__ import annotations

import math
from pathlib import Path
from reprlib import repr as short
from typing import Any, BinaryIO
from zipfile import ZipFile

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from gmed.errors import DataError, UsageError
from gmed.io.files import check_room

ARRAYS = {"x": ("x", "x_train"), "y": ("y", "y_train"), "x_test": ("x_test",), "y_test": ("y_test",)}
"""The arrays that are read from an .npz file, each with the names it may have there."""
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
            "data in memory must be (x, y) or (x, y, x_test, y_test), or one or two torch data sets, "
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
    """Return the inputs and the labels of a data set; PIL images, whose channels come last, become (channels, ...)."""
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
            f"{inputs[0].shape}. All inputs must have the same shape."
        )
    return np.stack(inputs) if inputs else np.empty((0, 1)), np.array(labels)


def _array(value: Any) -> NDArray[Any]:
    try:
        array: NDArray[Any] = value.numpy(force=True) if isinstance(value, Tensor) else np.asarray(value)
        array = np.array(array.tolist()) if array.dtype == object else array  # pandas stores text as objects
        return np.ascontiguousarray(array)  # so that equal arrays are equal files
    except (TypeError, ValueError) as error:
        raise UsageError(f"{short(value)} cannot be converted to an array ({error})") from None


def load_arrays(path: Path, file: BinaryIO) -> list[NDArray[Any]]:
    """Load x, y and the test set if present, once their declared sizes are known to be true and to fit into memory."""
    try:
        with ZipFile(file) as archive:
            present = [name.removesuffix(".npy") for name in archive.namelist() if name.endswith(".npy")]
            found = {array: next((name for name in names if name in present), None) for array, names in ARRAYS.items()}
            members = {array: f"{name}.npy" for array, name in found.items() if name is not None}
            if not {"x", "y"} <= members.keys():
                raise DataError(
                    f"{path}: the file must hold the arrays x and y, or x_train and y_train; "
                    f"it holds {', '.join(sorted(present)[:10]) or 'none'}."
                )
            if ("x_test" in members) != ("y_test" in members):
                raise DataError(f"{path}: the file must hold both x_test and y_test, or neither.")
            for name, member in members.items():
                _check_declared(path, name, archive, member)
            check_room(path, "its content", sum(archive.getinfo(member).file_size for member in members.values()))
            arrays = []
            for member in members.values():
                with archive.open(member) as stream:
                    arrays.append(npy.read_array(stream, allow_pickle=False))
            return arrays
    except DataError:
        raise
    except Exception as error:  # NumPy raises different errors for different damage
        raise DataError(f"{path}: not a valid .npz file of plain arrays ({error}).") from None


def _check_declared(path: Path, name: str, archive: ZipFile, member: str) -> None:
    """Refuse an array whose header disagrees with its size in the archive: NumPy allocates what the header declares."""
    with archive.open(member) as stream:
        major, _ = npy.read_magic(stream)
        read_header = npy.read_array_header_1_0 if major == 1 else npy.read_array_header_2_0
        shape, _, dtype = read_header(stream)
        data_start = stream.tell()
    if dtype.hasobject or dtype.itemsize == 0 or major > 2 or any(length < 0 for length in shape):
        raise DataError(f"{path}: {name} holds {dtype}; arrays of numbers or strings are needed.")
    size = data_start + math.prod(shape) * dtype.itemsize
    if size != archive.getinfo(member).file_size:
        raise DataError(
            f"{path}: {name} does not have the size in its header, {dtype} of shape {shape}. Write the file again."
        )
