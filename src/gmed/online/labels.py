from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gmed.errors import InputError, UsageError

_KINDS = {"U": "words", "i": "numbers", "u": "numbers", "f": "numbers", "b": "truth values"}


@dataclass(frozen=True)
class LabelEncoder:
    """The classes met so far, each with an output of the model.

    Outputs are given out as classes appear and never change hands; :attr:`classes` are in order all the same.

    Attributes
    ----------
    classes_by_output
        The class of each output.

    Examples
    --------
    >>> labels = LabelEncoder.from_labels(np.array(["pear", "fig", "pear"])).extended(np.array(["apple", "fig"]))
    >>> labels.classes.tolist(), labels.classes_by_output.tolist()
    (['apple', 'fig', 'pear'], ['fig', 'pear', 'apple'])
    >>> labels.outputs(np.array(["apple", "pear"])).tolist()
    [2, 1]
    """

    classes_by_output: NDArray[Any]

    def __post_init__(self) -> None:
        if self.classes_by_output.dtype.kind == "U":
            try:
                "".join(self.classes_by_output.tolist()).encode()
            except UnicodeEncodeError as error:
                raise InputError(f"labels must be text, and these are not Unicode ({error})") from None

    @classmethod
    def from_labels(cls, y: NDArray[Any]) -> LabelEncoder:
        """Those of these examples."""
        return cls(np.unique(normalize_labels(y)))

    @cached_property
    def sorted_order(self) -> NDArray[np.int64]:
        """The output of each class, the classes being in order."""
        return np.argsort(self.classes_by_output, kind="stable")

    @cached_property
    def classes(self) -> NDArray[Any]:
        """All classes, in order."""
        return self.classes_by_output[self.sorted_order]

    def encode(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """The output of each example's class; all must have been met."""
        return self.sorted_order[self._found(y)]

    def encode_names(self, names: NDArray[Any]) -> list[int]:
        """The outputs of classes that are named; one never met has none. Names must be of the labels' kind."""
        names = self._alike(names)
        return np.flatnonzero(np.isin(self.classes_by_output, names)).tolist()

    def extended(self, y: NDArray[Any]) -> LabelEncoder:
        """These and the classes of more examples; the same object where there is nothing new."""
        y = self._alike(y)
        new = np.unique(y[self.classes[self._found(y)] != y])
        return LabelEncoder(np.concatenate([self.classes_by_output, new])) if len(new) else self

    def _alike(self, y: NDArray[Any]) -> NDArray[Any]:
        y = normalize_labels(y)
        if len(y) and _kind(y) != _kind(self.classes_by_output):
            raise InputError(
                f"labels so far are {_kind(self.classes_by_output)}, such as {self.classes_by_output[0].item()!r}; "
                f"these are {_kind(y)}, such as {y[0].item()!r}"
            )
        return y

    def _found(self, y: NDArray[Any]) -> NDArray[np.int64]:
        return np.minimum(np.searchsorted(self.classes, y), len(self.classes_by_output) - 1)

    def to_json(self) -> str:
        """As text, to be read back exactly."""
        dtype = "str" if self.classes_by_output.dtype.kind == "U" else self.classes_by_output.dtype.name
        return json.dumps({"type": dtype, "met": self.classes_by_output.tolist()})

    @classmethod
    def from_json(cls, text: str) -> LabelEncoder:
        """What :meth:`to_json` wrote."""
        try:
            written = json.loads(text)
            kind = np.dtype(str(written["type"]))
            met = np.array(written["met"], dtype=kind)
            sound = kind.kind in _KINDS and met.ndim == 1 and len(met) and met.tolist() == written["met"]
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            sound = False
        if not sound or len(np.unique(met)) < len(met):
            raise UsageError("what it says of classes is damaged")
        return cls(met)


def normalize_labels(y: NDArray[Any]) -> NDArray[Any]:
    """LabelEncoder as an array of words, numbers or truth values.

    >>> normalize_labels(np.array(["a", "b"], dtype=object)).dtype.kind
    'U'
    """
    if y.dtype.kind in "OT":
        values = y.tolist()
        if all(isinstance(value, str) for value in values):
            return np.array(values, dtype=str)
        kinds = {type(value).__name__ for value in values}
        y = np.array(values) if not kinds & {"str", "NoneType"} else y
    if y.dtype.kind not in _KINDS or y.ndim != 1 or (y.dtype.kind == "f" and not np.isfinite(y).all()):
        what = ", ".join(sorted({type(value).__name__ for value in y.tolist()})) if y.ndim == 1 else str(y.shape)
        raise InputError(f"labels must be one word or number for each example, all alike; these are: {what}")
    return y


def _kind(y: NDArray[Any]) -> str:
    return _KINDS[y.dtype.kind]
