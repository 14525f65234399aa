from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.deprecated import old_names
from gmed.errors import InputError, UsageError

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


Floats = NDArray[np.float64]

CLIP_STD = 10.0
"""How many deviations from the mean a value may lie; those further out count as lying there."""
REFRESH_FACTOR = 1.1
"""Scaler are renewed when so many times as many rows are known as when they were last."""
EXTREMES = 10
"""How many of the lowest and of the highest values of each feature are kept apart from the statistics."""
OUTLYING = 30.0
"""How many deviations from the others an extreme value may lie before units are made without it."""
LARGEST = 1e150
"""Values beyond this cannot be squared."""


@dataclass(frozen=True)
class RunningScaler:
    """Features in units of their own: how far from the mean, in standard deviations, of all rows met so far.

    Mean and deviation of a stream move, most of all at its beginning. The *statistics* follow every row; the *units*,
    in which a model and its memory see features, are renewed from them now and then: when the rows have grown by
    a tenth (in a stream of n rows some 24 log10(n) times), and when a value lies out of reach.

    A few wrong values, such as 999999 from a sensor that failed, must not decide what a deviation is. So the ten lowest
    and ten highest values of each feature are kept apart; they count like all others unless they lie more than 30
    deviations from those. Where more than ten do, they enter the statistics as if they lay 30 deviations away. As
    deviations grow by that, units follow a change of level that is there to stay, and do not follow values that remain
    rare. Where nothing lies so far out, mean and deviation are those of all rows.

    A feature that has not varied yet has the unit 1, and nothing of it lies far out but what is in less than one row
    of a hundred. Everything is a value: :meth:`update` gives a new one.

    Attributes
    ----------
    count
        How many rows were met.
    mean, squares
        The mean, and the sum of squared deviations from it, of all values but those kept apart.
    extremes
        (values, features) what is kept apart, each column in order.
    since
        How many rows the units are made from.
    shift, scale
        The units.

    Examples
    --------
    >>> rows = np.array([[1.0, 50.0], [3.0, 50.0]])
    >>> known = RunningScaler.of(rows)
    >>> known.transform(rows).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    >>> later = known.update(np.array([[8.0, 50.0]]))
    >>> later.moments()[0].tolist(), later.count
    ([4.0, 50.0], 3)

    References
    ----------
    Chan, Golub, LeVeque, "Updating formulae and a pairwise algorithm for computing sample variances", COMPSTAT 1982.
    """

    count: int
    mean: Floats
    squares: Floats
    extremes: Floats
    since: int
    shift: Floats
    scale: Floats

    @classmethod
    def of(cls, x: Floats) -> RunningScaler:
        """That of a stream that begins with these rows."""
        nothing = np.zeros(x.shape[1])
        none = np.zeros((0, x.shape[1]))
        return cls(0, nothing, nothing, none, 0, nothing, np.ones(x.shape[1])).update(x)

    def update(self, x: Floats) -> RunningScaler:
        """The same stream with more rows."""
        if (too_large := np.abs(x).max(0) > LARGEST).any():
            column = int(np.flatnonzero(too_large)[0])
            raise InputError(f"the values of feature {column} are too large to be standardised; scale them down")
        known, start = self, 0
        while start < len(x):  # no more rows at once than are known, by which it is decided what lies far out
            size = max(known.count, 2 * EXTREMES)
            known, start = known._met(x[start : start + size]), start + size
        return known._renewed() if known.count >= REFRESH_FACTOR * self.since or self._is_clipped(x) else known

    def transform(self, x: Floats) -> NDArray[np.float32]:
        """Rows in these units."""
        with np.errstate(over="ignore"):
            return _clip((x - self.shift) / self.scale).astype(np.float32)

    def inverse_transform(self, z: NDArray[np.float32]) -> Floats:
        """Rows in these units as they were given, but for what was out of reach."""
        return z * self.scale + self.shift

    def rescale_to(self, z: Tensor, to: Scaler) -> None:
        """Express rows that are in these units in later ones of the same stream, in place."""
        assert isinstance(to, RunningScaler)
        raw = self.inverse_transform(z.cpu().numpy())
        z.copy_(torch.from_numpy(to.transform(raw)))

    def same_scale(self, other: Scaler) -> bool:
        """Whether rows are expressed alike in both."""
        return isinstance(other, RunningScaler) and self.since == other.since

    def moments(self) -> tuple[Floats, Floats]:
        """Mean and standard deviation of each feature, without extremes that lie far from all other values."""
        return self._with(self._counting())

    def limits(self) -> tuple[Floats, Floats]:
        """The values of each feature between which all lie that its moments are made from."""
        counting = self._counting()
        mean, deviation = self._with(counting)
        least = self.extremes.min(0, where=counting, initial=np.inf)
        most = self.extremes.max(0, where=counting, initial=-np.inf)
        return np.minimum(least, mean - OUTLYING * deviation), np.maximum(most, mean + OUTLYING * deviation)

    def without_extremes(self) -> RunningScaler:
        """The same statistics, with no value of a single row in them."""
        return self._entered(self._clipped(self.extremes), kept=self.extremes[:0])

    def _met(self, x: Floats) -> RunningScaler:
        """The statistics after some rows more."""
        met = replace(self, count=self.count + len(x))
        if len(self.extremes) == 2 * EXTREMES and self._is_ordinary(x):
            return met._entered(self._clipped(x), kept=self.extremes)
        pool = np.sort(np.concatenate([self.extremes, x]), axis=0)
        low, high = min(EXTREMES, len(pool)), max(EXTREMES, len(pool) - EXTREMES)
        return met._entered(self._clipped(pool[low:high]), kept=np.concatenate([pool[:low], pool[high:]]))

    def _is_ordinary(self, x: Floats) -> bool:
        """Whether no value is among the lowest or the highest of its feature."""
        return bool(((x >= self.extremes[EXTREMES - 1]) & (x <= self.extremes[EXTREMES])).all())

    def _entered(self, values: Floats, kept: Floats) -> RunningScaler:
        """The statistics with more values in them, and these kept apart."""
        if not len(values):
            return replace(self, extremes=kept)
        count = self.count - len(kept)
        mean, squares = _merged((count - len(values), self.mean, self.squares), values)
        return replace(self, mean=mean, squares=squares, extremes=kept)

    def _clipped(self, values: Floats) -> Floats:
        """Values as they enter the statistics: none further out than what counts as outlying."""
        deviation = np.sqrt(self.squares / max(1, self.count - len(self.extremes)))
        if (np.abs(values - self.mean) <= OUTLYING * deviation).all():
            return values
        mean, deviation = self.moments()
        far = np.where(_varies(mean, deviation), OUTLYING * deviation, np.inf)
        return np.clip(values, mean - far, mean + far)

    def _counting(self) -> NDArray[np.bool_]:
        """Which of the extremes units are made with: outwards from the middle, until there is a gap.

        Where a fifth of all rows would be left out, none is; of a feature that is otherwise constant, a hundredth.
        """
        begun = self.count > len(self.extremes)
        counting: NDArray[np.bool_] = (
            np.zeros(self.extremes.shape, np.bool_) if begun else _shortest_half(self.extremes)
        )
        while True:
            mean, deviation = self._with(counting)
            varies = _varies(mean, deviation)
            apart = np.abs(self.extremes - mean)
            nearest = 0.0 if begun else np.where(counting, np.inf, apart).min(0, initial=np.inf)
            more = ~counting & (apart <= np.where(varies, OUTLYING * deviation, nearest))
            if not more.any():
                break
            counting |= more
        counting |= (~counting).sum(0) > self.count / np.where(varies, 5, 100)
        return counting

    def _with(self, counting: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Mean and standard deviation of the statistics and some of the extremes."""
        count = self.count - len(self.extremes)
        mean, squares = _merged((count, self.mean, self.squares), self.extremes, counting)
        return mean, np.sqrt(squares / (count + counting.sum(0)))

    def _renewed(self) -> RunningScaler:
        mean, deviation = self.moments()
        return replace(self, since=self.count, shift=mean, scale=np.where(_varies(mean, deviation), deviation, 1.0))

    def _is_clipped(self, x: Floats) -> bool:
        far = CLIP_STD * self.scale
        return bool(((x > self.shift + far) | (x < self.shift - far)).any())

    def state_dict(self) -> dict[str, Tensor]:
        """Everything it is, as named tensors."""
        return {name: torch.tensor(value) for name, value in vars(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], features: int) -> RunningScaler:
        """The one whose state this is. Those of earlier versions keep no extremes apart."""
        count, since = int(state["count"]), int(state["since"])
        whole = {"extremes": torch.zeros((0, features), dtype=torch.float64), **state}
        held = {name: tensor.numpy() for name, tensor in whole.items() if name not in ("count", "since")}
        new = cls(count=count, since=since, **held)
        rows = len(new.extremes) if new.extremes.ndim == 2 else -1
        sound = 0 < since <= count and 0 <= rows <= min(count, 2 * EXTREMES)
        for name, column in held.items():
            shape = (rows, features) if name == "extremes" else (features,)
            sound = sound and column.dtype == np.float64 and column.shape == shape and bool(np.isfinite(column).all())
        if not sound or (new.scale <= 0).any() or (new.squares < 0).any() or (np.diff(new.extremes, axis=0) < 0).any():
            raise UsageError("what it says of units is damaged")
        return new


def _clip(z: Floats) -> Floats:
    """Rows as a model can take them: no value further out than it can be, no row much further than others.

    A row all of whose values are wrong would otherwise, however they are cut back, undo what was learned.
    """
    far = (np.abs(z) > CLIP_STD).any(1)
    if far.any():
        cut = np.clip(z[far], -CLIP_STD, CLIP_STD)
        length = np.linalg.norm(cut, axis=1, keepdims=True)
        z = z.copy()
        z[far] = cut * np.minimum(1, math.sqrt(CLIP_STD**2 + 4 * z.shape[1]) / length)
    return z


def _merged(
    known: tuple[int, Floats, Floats], values: Floats, counting: NDArray[np.bool_] | bool = True
) -> tuple[Floats, Floats]:
    """Mean and sum of squared deviations of what is known by its count, mean and squares, and more values."""
    count, mean, squares = known
    number = np.sum(counting, axis=0) if counting is not True else len(values)
    total = np.maximum(1, count + number)
    own = values.sum(0, where=counting) / np.maximum(1, number)
    apart = own - mean
    squares = squares + np.square(values - own).sum(0, where=counting) + np.square(apart) * (count * number / total)
    return mean + apart * (number / total), squares


def _varies(mean: Floats, deviation: Floats) -> NDArray[np.bool_]:
    """Whether a feature deviates from its mean by more than rounding does."""
    return deviation > 8 * np.finfo(np.float64).eps * np.abs(mean)


def _shortest_half(ordered: Floats) -> NDArray[np.bool_]:
    """More than half of each column's values, in order as they are, that lie closest together."""
    size = len(ordered) // 2 + 1
    first = (ordered[size - 1 :] - ordered[: len(ordered) - size + 1]).argmin(0)
    places = np.arange(len(ordered))[:, None]
    half: NDArray[np.bool_] = (places >= first) & (places < first + size)
    return half


@dataclass(frozen=True)
class IdentityScaler:
    """Features as they are given: for inputs that have a unit already, such as pixels."""

    def update(self, x: Floats) -> IdentityScaler:
        return self

    def transform(self, x: Floats) -> NDArray[np.float32]:
        return x.astype(np.float32)

    def inverse_transform(self, z: NDArray[np.float32]) -> Floats:
        return z.astype(np.float64)

    def rescale_to(self, z: Tensor, to: Scaler) -> None:
        """Nothing to do: there is but one unit."""

    def same_scale(self, other: Scaler) -> bool:
        return self == other

    def state_dict(self) -> dict[str, Tensor]:
        return {}


Scaler = RunningScaler | IdentityScaler
"""How the rows of a stream are expressed."""
