"""Reader of pickles that hold numbers, text, containers and arrays of integers: nothing in the file is ever run."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any, Never

import numpy as np
from numpy.typing import NDArray

from gmed.errors import DataError

INTEGERS = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])


def read_pickle(path: Path) -> Any:
    """The content of a pickle, where an array is an object that :func:`array_of` opens.

    A pickle names functions and says with what to call them. Here the names that arrays need stand for classes of
    this module, which keep bytes, shape and type; every other name is refused with a
    :class:`~gmed.errors.DataError` before anything is called.
    """
    try:
        with path.open("rb") as file:
            return _Unpickler(file, encoding="latin1").load()
    except DataError as error:
        raise DataError(f"{path}: {error}. Do not trust this file; get it from somewhere else.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    except Exception as error:  # damaged bytes can ask an unpickler for anything
        what = str(error) or type(error).__name__
        raise DataError(f"{path}: not a sound pickle ({what}). Replace the file with the original.") from None


def array_of(value: object) -> NDArray[Any]:
    """The array that is in a pickle as such or as a list of whole numbers.

    Raises
    ------
    TypeError
        If it is anything else.
    """
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, (list, tuple)) and all(type(v) is int for v in value):
        return np.array(value, np.int64)
    raise TypeError(f"no array of whole numbers: {type(value).__name__}")


class _Dtype:
    def __init__(self, code: str, *_copying: object) -> None:
        if code not in INTEGERS:
            raise DataError(f"an array of type {code!r}, where only whole numbers belong")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if state[1] == ">":
            self.dtype = self.dtype.newbyteorder(">")


class _Array:
    values: NDArray[Any]

    def __init__(self, *_to_be_filled: object) -> None: ...

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, fortran, raw = state
        self.values = _filled(raw, dtype, shape, "F" if fortran else "C")


class _ArrayFromBuffer(_Array):
    def __init__(self, raw: object, dtype: object, shape: object, order: str) -> None:
        self.values = _filled(raw, dtype, shape, order)


class _Scalar:
    def __new__(cls, dtype: object, raw: object) -> Any:
        return _filled(raw, dtype, (), "C").item()

    def __setstate__(self, state: object) -> Never:
        raise TypeError("a number has no state")


class _Encoded:
    def __new__(cls, text: str, _encoding: str) -> Any:
        return text.encode("latin1")

    def __setstate__(self, state: object) -> Never:
        raise TypeError("bytes have no state")


def _filled(raw: object, dtype: object, shape: object, order: str) -> NDArray[Any]:
    if isinstance(raw, str):  # as Python 2 wrote bytes
        raw = raw.encode("latin1")
    if not isinstance(raw, bytes) or not isinstance(dtype, _Dtype):
        raise DataError("an array that is not made of bytes")
    if not isinstance(shape, tuple) or not all(type(n) is int and n >= 0 for n in shape):
        raise TypeError("an array without a shape")
    return np.frombuffer(raw, dtype.dtype).reshape(shape, order="F" if order == "F" else "C")


STAND_INS: dict[tuple[str, str], type] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _Scalar,
    ("numpy.core.numeric", "_frombuffer"): _ArrayFromBuffer,
    ("_codecs", "encode"): _Encoded,
}


class _Unpickler(pickle._Unpickler):
    """Python's own in Python: unlike the one in C, it takes no memory on the word of a damaged file.

    Byte arrays would be the exception, so they are read as bytes.
    """

    dispatch = pickle._Unpickler.dispatch | {pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]]}

    def find_class(self, module: str, name: str) -> type:
        stand_in = STAND_INS.get((module.replace("numpy._core", "numpy.core"), name))
        if stand_in is None:
            raise DataError(f"asks for {module}.{name}, which no pickle of arrays needs")
        return stand_in

    def get_extension(self, code: int) -> Never:
        raise DataError(f"asks for the extension {code}, which no pickle of arrays needs")
