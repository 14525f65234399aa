"""Reader of pickles of numbers, text, containers and integer arrays that never executes code from the file."""

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
    """Read a pickle; arrays in it are opaque objects that :func:`array_of` converts.

    A pickle names functions and their arguments. Here the names that arrays need are mapped to classes of this module,
    which store bytes, shape and dtype; every other name is refused with a :class:`~gmed.errors.DataError` before
    anything is called. Time and memory are linear in the length of the file, whatever its content.
    """
    try:
        with open_regular(path) as file:
            return _Unpickler(file).load()
    except DataError as error:
        raise DataError(f"{path}: {error}. Do not trust this file; get it from another source.") from None
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}).") from None
    except Exception as error:  # damaged bytes can make an unpickler raise anything
        reason = str(error) or type(error).__name__
        raise DataError(f"{path}: not a valid pickle ({reason}). Replace the file with the original.") from None


def array_of(value: object) -> NDArray[Any]:
    """Convert an array or a list of integers from a pickle to a NumPy array.

    Raises
    ------
    TypeError
        If it is anything else.
    """
    if isinstance(value, _Array):
        return value.values
    if isinstance(value, (list, tuple)) and all(type(v) is int for v in value):
        return np.array(value, np.int64)
    raise TypeError(f"not an array of integers: {type(value).__name__}")


class _Budget:
    """The amount of text that may still be converted to bytes: the file size in total, also for repeated text."""

    def __init__(self, remaining: int) -> None:
        self.remaining = remaining

    def encode(self, text: str) -> bytes:
        self.remaining -= len(text)
        if self.remaining < 0:
            raise DataError("requests more bytes than the file contains")
        return text.encode("latin1")


class _Placeholder:
    """Stand-in for a name in a pickle; every reader subclasses it with its own budget."""

    budget: _Budget


class _Dtype(_Placeholder):
    def __init__(self, code: str, *_flags: object) -> None:
        if not isinstance(code, str) or code not in INTEGERS:
            raise DataError(f"an array of type {short(code)}, where only integers are allowed")
        self.dtype = np.dtype(code)

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        if isinstance(state[1], str) and state[1] == ">":
            self.dtype = self.dtype.newbyteorder(">")


class _Array(_Placeholder):
    values: NDArray[Any]

    def __init__(self, *_arguments: object) -> None: ...

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        _version, shape, dtype, fortran, raw = state
        self.values = _to_array(raw, dtype, shape, "F" if fortran is True or fortran == 1 else "C", self.budget)


class _ArrayFromBuffer(_Array):
    def __init__(self, raw: object, dtype: object, shape: object, order: str) -> None:
        self.values = _to_array(raw, dtype, shape, order, self.budget)


class _Scalar(_Placeholder):
    def __new__(cls, dtype: object, raw: object) -> Any:
        return _to_array(raw, dtype, (), "C", cls.budget).item()


class _Encoded(_Placeholder):
    def __new__(cls, text: str, _encoding: object) -> Any:
        return cls.budget.encode(text)


def _to_array(raw: object, dtype: object, shape: object, order: str, budget: _Budget) -> NDArray[Any]:
    if isinstance(raw, str):  # Python 2 pickles bytes as text
        raw = budget.encode(raw)
    if not isinstance(raw, bytes) or not isinstance(dtype, _Dtype):
        raise DataError("an array without bytes")
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
"""The maximum number of dimensions of an array; more than the number of arguments to create one."""


def _check_keys(keys: Iterable[object]) -> None:
    for key in keys:
        if not isinstance(key, str | bytes | int | float | None) or (isinstance(key, int) and key.bit_length() > 64):
            raise DataError(f"has a key of type {type(key).__name__}, where only text and numbers are allowed")


def _check_arguments(arguments: object) -> None:
    if not isinstance(arguments, tuple) or len(arguments) > DIMENSIONS:
        raise DataError("calls something with more arguments than an array takes")


def _check_target(target: object) -> None:
    if not isinstance(target, _Dtype | _Array):
        raise DataError("sets the state of something that is not an array")


def _refuse_object(_stack: list[Any]) -> Never:
    raise DataError("creates an object that is not an array")


def _with_check(check: Callable[[list[Any]], None], opcode: bytes) -> Callable[[Any], None]:
    """Return the standard handler of an opcode, preceded by a check of the stack."""
    standard = pickle._Unpickler.dispatch[opcode[0]]

    def load(unpickler: Any) -> None:
        check(unpickler.stack)
        standard(unpickler)

    return load


class _Unpickler(pickle._Unpickler):
    """The pure-Python unpickler: unlike the one in C, it allocates no memory for sizes a damaged file only declares.

    Byte arrays are the exception, so they are read as bytes. Only arrays and dtypes are created or have their state
    set, and only text and numbers are keys: hashing nested tuples can take forever or overflow the stack.
    """

    dispatch = pickle._Unpickler.dispatch | {
        pickle.BYTEARRAY8[0]: pickle._Unpickler.dispatch[pickle.BINBYTES8[0]],
        pickle.SETITEM[0]: _with_check(lambda stack: _check_keys(stack[-2:-1]), pickle.SETITEM),
        pickle.SETITEMS[0]: _with_check(lambda stack: _check_keys(stack[::2]), pickle.SETITEMS),
        pickle.DICT[0]: _with_check(lambda stack: _check_keys(stack[::2]), pickle.DICT),
        pickle.ADDITEMS[0]: _with_check(_check_keys, pickle.ADDITEMS),
        pickle.FROZENSET[0]: _with_check(_check_keys, pickle.FROZENSET),
        pickle.REDUCE[0]: _with_check(lambda stack: _check_arguments(stack[-1]), pickle.REDUCE),
        pickle.BUILD[0]: _with_check(lambda stack: _check_target(stack[-2]), pickle.BUILD),
        **{
            code[0]: _with_check(_refuse_object, code)
            for code in (pickle.NEWOBJ, pickle.NEWOBJ_EX, pickle.OBJ, pickle.INST)
        },
    }

    def __init__(self, file: BinaryIO) -> None:
        super().__init__(file, encoding="latin1")
        budget = _Budget(os.fstat(file.fileno()).st_size)
        self._placeholders = {
            name: type(kind.__name__, (kind,), {"budget": budget}) for name, kind in ALLOWED_CLASSES.items()
        }

    def find_class(self, module: str, name: str) -> type:
        placeholder = self._placeholders.get((module.replace("numpy._core", "numpy.core"), name))
        if placeholder is None:
            raise DataError(f"requests {module}.{name}, which no pickle of arrays needs")
        return placeholder

    def get_extension(self, code: int) -> Never:
        raise DataError(f"requests the extension {code}, which no pickle of arrays needs")
