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
class Labels:
    """The classes met so far, each with an output of the model.

    Outputs are given out as classes appear and never change hands; :attr:`classes` are in order all the same.

    Attributes
    ----------
    met
        The class of each output.

    Examples
    --------
    >>> labels = Labels.of(np.array(["pear", "fig", "pear"])).extended(np.array(["apple", "fig"]))
    >>> labels.classes.tolist(), labels.met.tolist()
    (['apple', 'fig', 'pear'], ['fig', 'pear', 'apple'])
    >>> labels.outputs(np.array(["apple", "pear"])).tolist()
    [2, 1]
    """

    met: NDArray[Any]

    def __post_init__(self) -> None:
        if self.met.dtype.kind == "U":
            try:
                "".join(self.met.tolist()).encode()
            except UnicodeEncodeError as error:
                raise InputError(f"labels must be text, and these are not Unicode ({error})") from None

    @classmethod
    def of(cls, y: NDArray[Any]) -> Labels:
        """Those of these examples."""
        return cls(np.unique(plain(y)))

    @cached_property
    def places(self) -> NDArray[np.int64]:
        """The output of each class, the classes being in order."""
        return np.argsort(self.met, kind="stable")

    @cached_property
    def classes(self) -> NDArray[Any]:
        """All classes, in order."""
        return self.met[self.places]

    def outputs(self, y: NDArray[Any]) -> NDArray[np.int64]:
        """The output of each example's class; all must have been met."""
        return self.places[self._found(y)]

    def encode_names(self, names: NDArray[Any]) -> list[int]:
        """The outputs of classes that are named; one never met has none. Names must be of the labels' kind."""
        names = self._alike(names)
        return np.flatnonzero(np.isin(self.met, names)).tolist()

    def extended(self, y: NDArray[Any]) -> Labels:
        """These and the classes of more examples; the same object where there is nothing new."""
        y = self._alike(y)
        new = np.unique(y[self.classes[self._found(y)] != y])
        return Labels(np.concatenate([self.met, new])) if len(new) else self

    def _alike(self, y: NDArray[Any]) -> NDArray[Any]:
        y = plain(y)
        if len(y) and _kind(y) != _kind(self.met):
            raise InputError(
                f"labels so far are {_kind(self.met)}, such as {self.met[0].item()!r}; "
                f"these are {_kind(y)}, such as {y[0].item()!r}"
            )
        return y

    def _found(self, y: NDArray[Any]) -> NDArray[np.int64]:
        return np.minimum(np.searchsorted(self.classes, y), len(self.met) - 1)

    def to_json(self) -> str:
        """As text, to be read back exactly."""
        dtype = "str" if self.met.dtype.kind == "U" else self.met.dtype.name
        return json.dumps({"type": dtype, "met": self.met.tolist()})

    @classmethod
    def from_json(cls, text: str) -> Labels:
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


def plain(y: NDArray[Any]) -> NDArray[Any]:
    """Labels as an array of words, numbers or truth values.

    >>> plain(np.array(["a", "b"], dtype=object)).dtype.kind
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
