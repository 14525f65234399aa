"""Reader of pickles that hold numbers, text, containers and arrays of integers: nothing in the file is ever run."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from reprlib import repr as short
from typing import Any, BinaryIO, Never

import numpy as np
from numpy.typing import NDArray

from gmed.errors import DataError
from gmed.io.files import open_regular

INTEGERS = frozenset(["b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8"])


def read_pickle(path: Path) -> Any:
    """The content of a pickle, where an array is an object that :func:`array_of` opens.

    A pickle names functions and says with what to call them. Here the names that arrays need stand for classes of
    this module, which keep bytes, shape and type; every other name is refused with a
    :class:`~gmed.errors.DataError` before anything is called. Time and memory grow with the length of the file and no
    faster, whatever it asks for.
    """
    try:
        with open_regular(path) as file:
            return _Unpickler(file).load()
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


class _Budget:
    """How much text may still become bytes: each byte of the file once, and not one piece of text again and again."""

    def __init__(self, left: int) -> None:
        self.left = left

    def bytes_of(self, text: str) -> bytes:
        self.left -= len(text)
        if self.left < 0:
            raise DataError("asks for more bytes than it holds")
        return text.encode("latin1")


class _Placeholder:
    """What stands for a name in a pickle; every reader has classes of its own, with its budget."""

    budget: _Budget


class _Dtype(_Placeholder):
    def __init__(self, code: str, *_copying: object) -> None:
        if not isinstance(code, str) or code not in INTEGERS:
            raise DataError(f"an array of type {short(code)}, where only whole numbers belong")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if isinstance(state[1], str) and state[1] == ">":
            self.dtype = self.dtype.newbyteorder(">")


class _Array(_Placeholder):
    values: NDArray[Any]

    def __init__(self, *_to_be_filled: object) -> None: ...

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, fortran, raw = state
        self.values = _filled(raw, dtype, shape, "F" if fortran is True or fortran == 1 else "C", self.budget)


class _ArrayFromBuffer(_Array):
    def __init__(self, raw: object, dtype: object, shape: object, order: str) -> None:
        self.values = _filled(raw, dtype, shape, order, self.budget)


class _Scalar(_Placeholder):
    def __new__(cls, dtype: object, raw: object) -> Any:
        return _filled(raw, dtype, (), "C", cls.budget).item()


class _Encoded(_Placeholder):
    def __new__(cls, text: str, _encoding: object) -> Any:
        return cls.budget.bytes_of(text)


def _filled(raw: object, dtype: object, shape: object, order: str, budget: _Budget) -> NDArray[Any]:
    if isinstance(raw, str):  # as Python 2 wrote bytes
        raw = budget.bytes_of(raw)
    if not isinstance(raw, bytes) or not isinstance(dtype, _Dtype):
        raise DataError("an array that is not made of bytes")
    if not isinstance(shape, tuple) or len(shape) > DIMENSIONS or not all(type(n) is int and n >= 0 for n in shape):
        raise TypeError("an array without a shape")
    return np.frombuffer(raw, dtype.dtype).reshape(shape, order="F" if order == "F" else "C")


ALLOWED_CLASSES: dict[tuple[str, str], type[_Placeholder]] = {
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("numpy.core.multiarray", "_reconstruct"): _Array,
    ("numpy.core.multiarray", "scalar"): _Scalar,
    ("numpy.core.numeric", "_frombuffer"): _ArrayFromBuffer,
    ("_codecs", "encode"): _Encoded,
}

DIMENSIONS = 8
"""The most dimensions of an array, and more than the arguments that making one takes."""


def _check_keys(keys: Iterable[object]) -> None:
    for key in keys:
        if not isinstance(key, str | bytes | int | float | None) or (isinstance(key, int) and key.bit_length() > 64):
            raise DataError(f"has a key of type {type(key).__name__}, where only text and numbers belong")


def _check_arguments(arguments: object) -> None:
    if not isinstance(arguments, tuple) or len(arguments) > DIMENSIONS:
        raise DataError("calls something with more than an array is made of")


def _check_filled(what: object) -> None:
    if not isinstance(what, _Dtype | _Array):
        raise DataError("fills something that is no array")


def _refuse_object(_stack: list[Any]) -> Never:
    raise DataError("makes an object that is no array")


def _after(check: Callable[[list[Any]], None], opcode: bytes) -> Callable[[Any], None]:
    """What a pickle does at an opcode, after a look at the stack."""
    usual = pickle._Unpickler.dispatch[opcode[0]]

    def load(unpickler: Any) -> None:
        check(unpickler.stack)
        usual(unpickler)

    return load


class _Unpickler(pickle._Unpickler):
    """Python's own in Python: unlike the one in C, it takes no memory on the word of a damaged file.

    Byte arrays would be the exception, so they are read as bytes. Nothing but arrays and their types is made or filled,
    and nothing but text and numbers is a key: to compute the hash of nested tuples can take for ever, or more stack
    than there is.
    """

    dispatch = pickle._Unpickler.dispatch | {
        pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]],
        pickle.SETITEM[0]: _after(lambda stack: _check_keys(stack[-2:-1]), pickle.SETITEM),
        pickle.SETITEMS[0]: _after(lambda stack: _check_keys(stack[::2]), pickle.SETITEMS),
        pickle.DICT[0]: _after(lambda stack: _check_keys(stack[::2]), pickle.DICT),
        pickle.ADDITEMS[0]: _after(_check_keys, pickle.ADDITEMS),
        pickle.FROZENSET[0]: _after(_check_keys, pickle.FROZENSET),
        pickle.REDUCE[0]: _after(lambda stack: _check_arguments(stack[-1]), pickle.REDUCE),
        pickle.BUILD[0]: _after(lambda stack: _check_filled(stack[-2]), pickle.BUILD),
        **{
            code[0]: _after(_refuse_object, code) for code in (pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.OBJ, pickle.INST)
        },
    }

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="latin1")
        budget = _Budget(os.fstat(file.fileno()).st_size)
        self._stand_ins = {
            name: type(kind.__name__, (kind,), {"budget": budget}) for name, kind in ALLOWED_CLASSES.items()
        }

    def find_class(self, module: str, name: str) -> type:
        stand_in = self._stand_ins.get((module.replace("numpy._core", "numpy.core"), name))
        if stand_in is None:
            raise DataError(f"asks for {module}.{name}, which no pickle of arrays needs")
        return stand_in

    def get_extension(self, code: int) -> Never:
        raise DataError(f"asks for the extension {code}, which no pickle of arrays needs")
