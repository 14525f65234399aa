"""Class labels as output indices of a model that gains classes over time."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gmed.errors import InputError, UsageError

_KINDS = {"U": "strings", "i": "numbers", "u": "numbers", "f": "numbers", "b": "booleans"}


@dataclass(frozen=True)
class LabelEncoder:
    """The classes seen so far, each with an output of the model.

    Outputs are assigned in the order in which classes appear and never change; :attr:`classes` are sorted.

    Attributes
    ----------
    classes_by_output
        The class of each output.

    Examples
    --------
    >>> labels = LabelEncoder.from_labels(np.array(["pear", "fig", "pear"])).extended(np.array(["apple", "fig"]))
    >>> labels.classes.tolist(), labels.classes_by_output.tolist()
    (['apple', 'fig', 'pear'], ['fig', 'pear', 'apple'])
    >>> labels.encode(np.array(["apple", "pear"])).tolist()
    [2, 1]
    """

    classes_by_output: NDArray[Any]

    def __post_init__(self) -> None:
        if self.classes_by_output.dtype.kind == "U":
            try:
                "".join(self.classes_by_output.tolist()).encode()
            except UnicodeEncodeError as error:
                raise InputError(f"labels must be text, but these are not Unicode ({error})") from None

    @classmethod
    def from_labels(cls, y: NDArray[Any]) -> LabelEncoder:
        """Create an encoder of the classes of these labels."""
        return cls(np.unique(normalize_labels(y)))

    @cached_property
    def sorted_order(self) -> NDArray[np.int64]:
        """The output of each class, in sorted order of the classes."""
        return np.argsort(self.classes_by_output, kind="stable")

    @cached_property
    def classes(self) -> NDArray[Any]:
        """All classes, sorted."""
        return self.classes_by_output[self.sorted_order]

    def encode(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """Return the output of each label; all must have been seen."""
        return self.sorted_order[self._sorted_indices(y)]

    def encode_names(self, names: NDArray[Any]) -> list[int]:
        """Return the outputs of the named classes, skipping unseen ones. Names must be of the type of the labels."""
        names = self._checked_type(names)
        return np.flatnonzero(np.isin(self.classes_by_output, names)).tolist()

    def extended(self, y: NDArray[Any]) -> LabelEncoder:
        """Return an encoder that also has the classes of these labels; the same object if none is new."""
        y = self._checked_type(y)
        new = np.unique(y[self.classes[self._sorted_indices(y)] != y])
        return LabelEncoder(np.concatenate([self.classes_by_output, new])) if len(new) else self

    def _checked_type(self, y: NDArray[Any]) -> NDArray[Any]:
        y = normalize_labels(y)
        if len(y) and _kind(y) != _kind(self.classes_by_output):
            raise InputError(
                f"labels so far are {_kind(self.classes_by_output)} (e.g. {self.classes_by_output[0].item()!r}), "
                f"but these are {_kind(y)} (e.g. {y[0].item()!r})"
            )
        return y

    def _sorted_indices(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """Return the index of each label in the sorted classes; that of a neighbor if the label is unseen."""
        return np.minimum(np.searchsorted(self.classes, y), len(self.classes_by_output) - 1)

    def to_json(self) -> str:
        """Return the classes as JSON, which :meth:`from_json` reads back exactly."""
        dtype = "str" if self.classes_by_output.dtype.kind == "U" else self.classes_by_output.dtype.name
        return json.dumps({"type": dtype, "met": self.classes_by_output.tolist()})

    @classmethod
    def from_json(cls, text: str) -> LabelEncoder:
        """Read what :meth:`to_json` wrote."""
        try:
            saved = json.loads(text)
            dtype = np.dtype(str(saved["type"]))
            classes = np.array(saved["met"], dtype=dtype)
            valid = dtype.kind in _KINDS and classes.ndim == 1 and len(classes) and classes.tolist() == saved["met"]
        except (KeyError, TypeError, ValueError, OverflowError, RecursionError):
            valid = False
        if not valid or len(np.unique(classes)) < len(classes):
            raise UsageError("its list of classes is damaged")
        return cls(classes)


def normalize_labels(y: NDArray[Any]) -> NDArray[Any]:
    """Return labels as an array of strings, numbers or booleans.

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
        given = ", ".join(sorted({type(value).__name__ for value in y.tolist()})) if y.ndim == 1 else str(y.shape)
        raise InputError(f"labels must be one string or number per example, all of one type; these are: {given}")
    return y


def _kind(y: NDArray[Any]) -> str:
    return _KINDS[y.dtype.kind]
