from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.errors import InputError, UsageError

Floats = NDArray[np.float64]

REACH = 10.0
"""How many deviations from the mean a value may lie; those further out count as lying there."""
GROWTH = 1.1
"""Units are renewed when so many times as many rows are known as when they were last."""


@dataclass(frozen=True)
class Standardiser:
    """Features in units of their own: how far from the mean, in standard deviations, of all rows met so far.

    Mean and deviation of a stream move, most of all at its beginning. The *statistics* follow every row; the *units*,
    in which a model and its memory see features, are renewed from them now and then: when the rows have grown by
    a tenth (in a stream of n rows some 24 log10(n) times), and when a value lies out of reach.

    A feature that has not varied yet has the unit 1. Everything is a value: :meth:`after` gives a new one.

    Attributes
    ----------
    count, mean, squares
        The statistics: rows met, their mean, and the sum of squared deviations from it.
    since
        How many rows the units are made from.
    shift, scale
        The units.

    Examples
    --------
    >>> rows = np.array([[1.0, 50.0], [3.0, 50.0]])
    >>> known = Standardiser.of(rows)
    >>> known.standardised(rows).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    >>> later = known.after(np.array([[8.0, 50.0]]))
    >>> later.mean.tolist(), later.count
    ([4.0, 50.0], 3)

    References
    ----------
    Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", COMPSTAT 1982.
    """

    count: int
    mean: Floats
    squares: Floats
    since: int
    shift: Floats
    scale: Floats

    @classmethod
    def of(cls, x: Floats) -> Standardiser:
        """That of a stream that begins with these rows."""
        nothing = np.zeros(x.shape[1])
        return cls(0, nothing, nothing, 0, nothing, np.ones(x.shape[1])).after(x)

    def after(self, x: Floats) -> Standardiser:
        """The same stream with more rows."""
        count = self.count + len(x)
        with np.errstate(over="ignore", invalid="ignore"):
            mean = x.mean(0)
            squares = np.square(x - mean).sum(0)
            apart = mean - self.mean
            squares = self.squares + squares + np.square(apart) * (self.count * len(x) / count)
            mean = self.mean + apart * (len(x) / count)
        if not (np.isfinite(mean).all() and np.isfinite(squares).all()):
            column = int(np.flatnonzero(~(np.isfinite(mean) & np.isfinite(squares)))[0])
            raise InputError(f"the values of feature {column} are too large to be standardised; scale them down")
        known = replace(self, count=count, mean=mean, squares=squares)
        return known._renewed() if count >= GROWTH * self.since or self._out_of_reach(x) else known

    def standardised(self, x: Floats) -> NDArray[np.float32]:
        """Rows in these units."""
        z = (x - self.shift) / self.scale
        return np.clip(z, -REACH, REACH, out=z).astype(np.float32)

    def restored(self, z: NDArray[np.float32]) -> Floats:
        """Rows in these units as they were given, but for what was out of reach."""
        return z * self.scale + self.shift

    def convert(self, z: Tensor, to: Units) -> None:
        """Express rows that are in these units in later ones of the same stream, in place."""
        assert isinstance(to, Standardiser)
        slope = torch.from_numpy(self.scale / to.scale).to(z.device)
        offset = torch.from_numpy((self.shift - to.shift) / to.scale).to(z.device)
        z.copy_(z.double() * slope + offset)

    def same_as(self, other: Units) -> bool:
        """Whether rows are expressed alike in both."""
        return isinstance(other, Standardiser) and self.since == other.since

    def _renewed(self) -> Standardiser:
        deviation = np.sqrt(self.squares / self.count)
        rounding = 8 * np.finfo(np.float64).eps * np.abs(self.mean)  # what does not vary deviates by no more
        scale = np.where(deviation > rounding, deviation, 1.0)
        return replace(self, since=self.count, shift=self.mean, scale=scale)

    def _out_of_reach(self, x: Floats) -> bool:
        far = REACH * self.scale
        return bool(((x > self.shift + far) | (x < self.shift - far)).any())

    def state_dict(self) -> dict[str, Tensor]:
        """Everything it is, as named tensors."""
        return {name: torch.tensor(value) for name, value in vars(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], features: int) -> Standardiser:
        """The one whose state this is."""
        count, since = int(state["count"]), int(state["since"])
        columns: dict[str, Any] = {name: state[name].numpy() for name in ("mean", "squares", "shift", "scale")}
        sound = all(
            column.dtype == np.float64 and column.shape == (features,) and np.isfinite(column).all()
            for column in columns.values()
        )
        if not sound or not 0 < since <= count or not (columns["scale"] > 0).all():
            raise UsageError("what it says of units is damaged")
        return cls(count=count, since=since, **columns)


@dataclass(frozen=True)
class AsTheyAre:
    """Features as they are given: for inputs that have a unit already, such as pixels."""

    def after(self, x: Floats) -> AsTheyAre:
        return self

    def standardised(self, x: Floats) -> NDArray[np.float32]:
        return x.astype(np.float32)

    def restored(self, z: NDArray[np.float32]) -> Floats:
        return z.astype(np.float64)

    def convert(self, z: Tensor, to: Units) -> None:
        """Nothing to do: there is but one unit."""

    def same_as(self, other: Units) -> bool:
        return self == other

    def state_dict(self) -> dict[str, Tensor]:
        return {}


Units = Standardiser | AsTheyAre
"""How the rows of a stream are expressed."""
