"""Scaling of features by running statistics of a stream, robust to rare outliers."""

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
"""Values are clipped to this many standard deviations from the mean."""
REFRESH_FACTOR = 1.1
"""The scaling is refreshed when the number of rows has grown by this factor since the last time."""
EXTREMES = 10
"""Number of lowest and of highest values of each feature that are stored outside the statistics."""
OUTLYING = 30.0
"""Extreme values more than this many standard deviations from the others do not affect the scaling."""
LARGEST = 1e150
"""Squares of larger values would overflow."""


@dataclass(frozen=True)
class RunningScaler:
    """Standardizes features: subtracts the mean of all rows seen so far and divides by their standard deviation.

    The mean and standard deviation of a stream change, most of all at its beginning. The *statistics* are updated with
    every row; the *scaling* that a model and its memory use is refreshed from them only occasionally: when the number
    of rows has grown by a tenth (about 24 log10(n) times in a stream of n rows), and when a value would be clipped.

    A few wrong values, such as 999999 from a failed sensor, must not dominate the standard deviation. Therefore the ten
    lowest and ten highest values of each feature are stored separately; they count like all others unless they lie more
    than 30 standard deviations from those. If more than ten do, the rest enter the statistics clipped to 30 standard
    deviations. As this increases the standard deviation, the scaling follows a lasting change of level, but not values
    that remain rare. Without such outliers, mean and standard deviation are those of all rows.

    A feature that has been constant so far has scale 1, and its other values are outliers only if they occur in less
    than one row in a hundred. Scalers are immutable: :meth:`update` returns a new one.

    Attributes
    ----------
    count
        Number of rows seen.
    mean, squares
        The mean, and the sum of squared deviations from it, of all values except the extremes.
    extremes
        (values, features) the values stored separately; each column is sorted.
    since
        Number of rows at the last refresh of the scaling.
    shift, scale
        The current scaling: (x - shift) / scale.

    Examples
    --------
    >>> rows = np.array([[1.0, 50.0], [3.0, 50.0]])
    >>> scaler = RunningScaler.of(rows)
    >>> scaler.transform(rows).tolist()
    [[-1.0, 0.0], [1.0, 0.0]]
    >>> later = scaler.update(np.array([[8.0, 50.0]]))
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
        """Create a scaler from the first rows of a stream."""
        zeros, no_extremes = np.zeros(x.shape[1]), np.zeros((0, x.shape[1]))
        return cls(0, zeros, zeros, no_extremes, 0, zeros, np.ones(x.shape[1])).update(x)

    def update(self, x: Floats) -> RunningScaler:
        """Return the scaler after more rows of the stream."""
        if (too_large := np.abs(x).max(0) > LARGEST).any():
            column = int(np.flatnonzero(too_large)[0])
            raise InputError(f"the values of feature {column} are too large to be standardized; scale them down")
        new, start = self, 0
        while start < len(x):  # at most doubling the rows, as the rows seen so far decide what is an outlier
            size = max(new.count, 2 * EXTREMES)
            new, start = new._add_rows(x[start : start + size]), start + size
        return new._refreshed() if new.count >= REFRESH_FACTOR * self.since or self._would_clip(x) else new

    def transform(self, x: Floats) -> NDArray[np.float32]:
        """Return rows in this scaling."""
        with np.errstate(over="ignore"):
            return _clip((x - self.shift) / self.scale).astype(np.float32)

    def inverse_transform(self, z: NDArray[np.float32]) -> Floats:
        """Return scaled rows in their original units; values that were clipped stay clipped."""
        return z * self.scale + self.shift

    def rescale_to(self, z: Tensor, to: Scaler) -> None:
        """Convert rows from this scaling to a later one of the same stream, in place."""
        assert isinstance(to, RunningScaler)
        raw = self.inverse_transform(z.cpu().numpy())
        z.copy_(torch.from_numpy(to.transform(raw)))

    def same_scale(self, other: Scaler) -> bool:
        """Return whether both scale rows in the same way."""
        return isinstance(other, RunningScaler) and self.since == other.since

    def moments(self) -> tuple[Floats, Floats]:
        """Return the mean and standard deviation of each feature, without extremes far from all other values."""
        return self._moments_with(self._inlier_extremes())

    def limits(self) -> tuple[Floats, Floats]:
        """Return the range of each feature that contains all values that its moments are computed from."""
        inliers = self._inlier_extremes()
        mean, std = self._moments_with(inliers)
        lowest = self.extremes.min(0, where=inliers, initial=np.inf)
        highest = self.extremes.max(0, where=inliers, initial=-np.inf)
        return np.minimum(lowest, mean - OUTLYING * std), np.maximum(highest, mean + OUTLYING * std)

    def without_extremes(self) -> RunningScaler:
        """Return the scaler with its extremes merged into the statistics, so that it stores no value of a row."""
        return self._add_values(self._clip_outliers(self.extremes), extremes=self.extremes[:0])

    def _add_rows(self, x: Floats) -> RunningScaler:
        """Return the scaler with statistics after some more rows."""
        new = replace(self, count=self.count + len(x))
        if len(self.extremes) == 2 * EXTREMES and self._has_no_extremes(x):
            return new._add_values(self._clip_outliers(x), extremes=self.extremes)
        pool = np.sort(np.concatenate([self.extremes, x]), axis=0)
        low, high = min(EXTREMES, len(pool)), max(EXTREMES, len(pool) - EXTREMES)
        extremes = np.concatenate([pool[:low], pool[high:]])
        return new._add_values(self._clip_outliers(pool[low:high]), extremes=extremes)

    def _has_no_extremes(self, x: Floats) -> bool:
        """Return whether no value is among the lowest or the highest of its feature."""
        return bool(((x >= self.extremes[EXTREMES - 1]) & (x <= self.extremes[EXTREMES])).all())

    def _add_values(self, values: Floats, extremes: Floats) -> RunningScaler:
        """Return the scaler with more values in its statistics, and with new extremes."""
        if not len(values):
            return replace(self, extremes=extremes)
        count = self.count - len(extremes)
        mean, squares = _merge_moments((count - len(values), self.mean, self.squares), values)
        return replace(self, mean=mean, squares=squares, extremes=extremes)

    def _clip_outliers(self, values: Floats) -> Floats:
        """Clip values to ``OUTLYING`` standard deviations before they enter the statistics."""
        std = np.sqrt(self.squares / max(1, self.count - len(self.extremes)))
        if (np.abs(values - self.mean) <= OUTLYING * std).all():
            return values
        mean, std = self.moments()
        limit = np.where(_varies(mean, std), OUTLYING * std, np.inf)
        return np.clip(values, mean - limit, mean + limit)

    def _inlier_extremes(self) -> NDArray[np.bool_]:
        """Return a mask of the extremes that count, grown outwards from the middle until there is a gap.

        If more than a fifth of all rows would be left out, all count; for an otherwise constant feature, a hundredth.
        """
        has_statistics = self.count > len(self.extremes)
        inliers: NDArray[np.bool_] = (
            np.zeros(self.extremes.shape, np.bool_) if has_statistics else _shortest_half(self.extremes)
        )
        while True:
            mean, std = self._moments_with(inliers)
            varies = _varies(mean, std)
            distance = np.abs(self.extremes - mean)
            nearest = 0.0 if has_statistics else np.where(inliers, np.inf, distance).min(0, initial=np.inf)
            more = ~inliers & (distance <= np.where(varies, OUTLYING * std, nearest))
            if not more.any():
                break
            inliers |= more
        inliers |= (~inliers).sum(0) > self.count / np.where(varies, 5, 100)
        return inliers

    def _moments_with(self, mask: NDArray[np.bool_]) -> tuple[Floats, Floats]:
        """Return the mean and standard deviation of the statistics and some of the extremes."""
        count = self.count - len(self.extremes)
        mean, squares = _merge_moments((count, self.mean, self.squares), self.extremes, mask)
        return mean, np.sqrt(squares / (count + mask.sum(0)))

    def _refreshed(self) -> RunningScaler:
        mean, std = self.moments()
        return replace(self, since=self.count, shift=mean, scale=np.where(_varies(mean, std), std, 1.0))

    def _would_clip(self, x: Floats) -> bool:
        limit = CLIP_STD * self.scale
        return bool(((x > self.shift + limit) | (x < self.shift - limit)).any())

    def state_dict(self) -> dict[str, Tensor]:
        """Return the complete state as named tensors."""
        return {name: torch.tensor(value) for name, value in vars(self).items()}

    @classmethod
    def from_state(cls, state: Mapping[str, Tensor], features: int) -> RunningScaler:
        """Return the scaler with this state; states of earlier versions have no extremes."""
        count, since = int(state["count"]), int(state["since"])
        tensors = {"extremes": torch.zeros((0, features), dtype=torch.float64), **state}
        arrays = {name: tensor.numpy() for name, tensor in tensors.items() if name not in ("count", "since")}
        new = cls(count=count, since=since, **arrays)
        rows = len(new.extremes) if new.extremes.ndim == 2 else -1
        valid = 0 < since <= count and 0 <= rows <= min(count, 2 * EXTREMES)
        for name, array in arrays.items():
            shape = (rows, features) if name == "extremes" else (features,)
            valid = valid and array.dtype == np.float64 and array.shape == shape and bool(np.isfinite(array).all())
        if not valid or (new.scale <= 0).any() or (new.squares < 0).any() or (np.diff(new.extremes, axis=0) < 0).any():
            raise UsageError("its feature scaling is damaged")
        return new


def _clip(z: Floats) -> Floats:
    """Clip scaled rows, first each value, then the norm of each row that has clipped values.

    A row with only wrong values could otherwise undo what the model has learned, even with each value clipped.
    """
    outside = (np.abs(z) > CLIP_STD).any(1)
    if outside.any():
        clipped = np.clip(z[outside], -CLIP_STD, CLIP_STD)
        length = np.linalg.norm(clipped, axis=1, keepdims=True)
        z = z.copy()
        z[outside] = clipped * np.minimum(1, math.sqrt(CLIP_STD**2 + 4 * z.shape[1]) / length)
    return z


def _merge_moments(
    moments: tuple[int, Floats, Floats], values: Floats, mask: NDArray[np.bool_] | bool = True
) -> tuple[Floats, Floats]:
    """Merge more values into a count, mean and sum of squared deviations; return the new mean and sum."""
    count, mean, squares = moments
    added = np.sum(mask, axis=0) if mask is not True else len(values)
    total = np.maximum(1, count + added)
    added_mean = values.sum(0, where=mask) / np.maximum(1, added)
    delta = added_mean - mean
    squares = squares + np.square(values - added_mean).sum(0, where=mask) + np.square(delta) * (count * added / total)
    return mean + delta * (added / total), squares


def _varies(mean: Floats, std: Floats) -> NDArray[np.bool_]:
    """Return whether a feature deviates from its mean by more than rounding errors."""
    return std > 8 * np.finfo(np.float64).eps * np.abs(mean)


def _shortest_half(ordered: Floats) -> NDArray[np.bool_]:
    """Return a mask of the shortest interval of each sorted column that has more than half of its values."""
    size = len(ordered) // 2 + 1
    first = (ordered[size - 1 :] - ordered[: len(ordered) - size + 1]).argmin(0)
    indices = np.arange(len(ordered))[:, None]
    half: NDArray[np.bool_] = (indices >= first) & (indices < first + size)
    return half


@dataclass(frozen=True)
class IdentityScaler:
    """Leaves features unchanged: for inputs that are already scaled, such as pixels."""

    def update(self, x: Floats) -> IdentityScaler:
        return self

    def transform(self, x: Floats) -> NDArray[np.float32]:
        return x.astype(np.float32)

    def inverse_transform(self, z: NDArray[np.float32]) -> Floats:
        return z.astype(np.float64)

    def rescale_to(self, z: Tensor, to: Scaler) -> None:
        """Do nothing, as there is only one scaling."""

    def same_scale(self, other: Scaler) -> bool:
        return self == other

    def state_dict(self) -> dict[str, Tensor]:
        return {}


Scaler = RunningScaler | IdentityScaler
"""The scaling of the rows of a stream."""
