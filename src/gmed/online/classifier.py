"""An online classifier of rows of numbers, which handles scaling, labels and new classes."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.errors import GmedWarning, InputError, UsageError, check_int
from gmed.io.signals import hold_interrupts
from gmed.io.state import read_state, write_state
from gmed.learners import Learner
from gmed.learners._locking import Lock, alone, consistent_read, exclusive
from gmed.models import MLP
from gmed.online.config import ClassifierConfig, Model
from gmed.online.labels import LabelEncoder, normalize_labels
from gmed.online.scaling import Floats, IdentityScaler, RunningScaler, Scaler
from gmed.rng import make_rng

FORMAT = "gmed-classifier/1"
BLOCK = 10_000
"""Maximum number of rows per forward pass of a prediction."""
OUTLIER_RATIO = 500
"""A value this many times further from the mean than all others is suspected to be an error."""


@dataclass(frozen=True)
class _Snapshot:
    """The complete state of a classifier between two calls; always replaced as a whole, so that it is consistent."""

    labels: LabelEncoder
    units: Scaler
    learner: Learner
    rows: int


class OnlineClassifier:
    """A classifier of rows of numbers that keeps learning: new rows and new classes may arrive at any time.

    It is an :class:`~gmed.learners.ER` learner (:class:`~gmed.learners.FineTune` without a memory) with standardized
    features (:class:`RunningScaler`) and encoded class labels (:class:`LabelEncoder`). When the scaling changes, stored
    examples are converted to the new one.

    A call that fails, or is interrupted by Ctrl-C, changes nothing. One thread may learn while others predict: each
    prediction uses the classifier as it was before or after a step or a complete call, never a mixture, and predictions
    do not affect what is learned. Saving, and a second thread that learns, wait for the end of a call.

    Parameters
    ----------
    settings
        The hyper-parameters.
    inputs
        Number of features of a row.
    seed
        Random seed.

    Attributes
    ----------
    rows
        Number of rows it has learned from.
    feature_names
        Names of the features, for warnings and in saved files; by default there are none.

    Examples
    --------
    >>> model = OnlineClassifier(ClassifierConfig(), inputs=1)
    >>> rows, sizes = np.array([[1.0], [2.0], [8.0], [9.0]]), np.array(["low", "low", "high", "high"])
    >>> for _ in range(100):
    ...     model.learn(rows, sizes)
    >>> model.predict(np.array([[0.0], [10.0]])).tolist()
    ['low', 'high']
    """

    def __init__(self, settings: ClassifierConfig, inputs: int, seed: int = 0) -> None:
        self.settings = settings
        self.inputs = check_int("inputs", inputs)
        self.seed = check_int("seed", seed, minimum=0)
        self.feature_names: Sequence[str] | None = None
        self._snapshot: _Snapshot | None = None
        self._warned = False
        self._lock = Lock()

    def _fitted(self) -> _Snapshot:
        if self._snapshot is None:
            raise UsageError("this classifier has not learned from any rows yet; call learn or fit first")
        return self._snapshot

    @property
    def rows(self) -> int:
        return 0 if self._snapshot is None else self._snapshot.rows

    @property
    def labels(self) -> LabelEncoder:
        """The classes seen so far."""
        return self._fitted().labels

    @property
    def units(self) -> Scaler:
        """The current scaling of the features."""
        return self._fitted().units

    @property
    def learner(self) -> Learner:
        """The current learner. A call of :meth:`learn` may replace it."""
        return self._fitted().learner

    # ------------------------------------------------------------------ learning

    def learn(self, x: Floats, y: NDArray[Any], classes: NDArray[Any] | None = None) -> None:
        """Learn from rows in their order, at most ``batch_size`` per step.

        Parameters
        ----------
        x
            (n, inputs) finite numbers.
        y
            (n,) labels: strings, numbers or booleans.
        classes
            Further classes to add, besides those in ``y`` and those seen before.
        """
        x, y = self._validated(x), normalize_labels(np.asarray(y))
        self._check_paired(x, y)
        with alone(self._lock):
            snapshot = self._snapshot
            labels = None if snapshot is None else snapshot.labels
            for names in ([] if classes is None or not len(classes) else [classes]) + [y]:
                labels = LabelEncoder.from_labels(names) if labels is None else labels.extended(names)
            assert labels is not None
            units = self._initial_scaler(x) if snapshot is None else snapshot.units.update(x)
            self._warn_of_outliers(units, x)
            z, outputs = units.transform(x), labels.encode(y)
            one_step = len(x) <= self.settings.batch_size
            if (
                snapshot
                and one_step
                and units.same_scale(snapshot.units)
                and len(labels.classes_by_output) <= snapshot.learner.classes
            ):
                with hold_interrupts():  # only the step can fail, and it is rolled back if it does
                    snapshot.learner.observe(z, outputs)
                    self._snapshot = _Snapshot(labels, units, snapshot.learner, snapshot.rows + len(x))
            else:  # on a copy, which can be discarded at any moment
                learner = self._copy(snapshot, labels, units)
                self._observe(learner, z, outputs)
                self._snapshot = _Snapshot(labels, units, learner, self.rows + len(x))

    def fit(self, x: Floats, y: NDArray[Any], passes: int, shuffle: bool) -> None:
        """Learn from a complete data set in several passes; only for a classifier that has not learned before."""
        x, y = self._validated(x), normalize_labels(np.asarray(y))
        self._check_paired(x, y)
        with alone(self._lock):
            if self.rows:
                raise UsageError("this classifier has already learned; create a new one")
            labels, units = LabelEncoder.from_labels(y), self._initial_scaler(x)
            self._warn_of_outliers(units, x)
            z, outputs = units.transform(x), labels.encode(y)
            learner = self._copy(None, labels, units)
            for number in range(passes):
                order = make_rng(self.seed, "order", number).permutation(len(x)) if shuffle else np.arange(len(x))
                self._observe(learner, z[order], outputs[order])
            self._snapshot = _Snapshot(labels, units, learner, len(x))

    def _initial_scaler(self, x: Floats) -> Scaler:
        return RunningScaler.of(x) if self.settings.standardize else IdentityScaler()

    def _copy(self, snapshot: _Snapshot | None, labels: LabelEncoder, units: Scaler) -> Learner:
        """Return a copy of the learner that is adapted to these classes and this scaling."""
        if snapshot is None:
            return self.settings.make_learner(self.inputs, len(labels.classes_by_output), self.seed)
        with alone(snapshot.learner._lock):  # not while a prediction has the model in evaluation mode
            learner = deepcopy(snapshot.learner)
        if len(labels.classes_by_output) > learner.classes:
            learner.add_classes(len(labels.classes_by_output))
        if learner.memory is not None and not units.same_scale(snapshot.units):
            snapshot.units.rescale_to(learner.memory.x, to=units)
        return learner

    def _observe(self, learner: Learner, z: NDArray[np.float32], outputs: NDArray[np.int64]) -> None:
        size = self.settings.batch_size
        for start in range(0, len(z), size):
            learner.observe(z[start : start + size], outputs[start : start + size])

    def _warn_of_outliers(self, units: Scaler, x: Floats) -> None:
        """Warn, once, when values appear that look like errors."""
        before = None if self._snapshot is None else self._snapshot.units
        if self._warned or not isinstance(units, RunningScaler) or (before is not None and units.same_scale(before)):
            return
        outliers = suspicious(x, units)
        rows, columns = outliers.any(1), outliers.any(0)
        if not rows.any():  # earlier values may turn out to be outliers now that there are more rows
            outliers = suspicious(units.extremes, units)
            if not isinstance(before, RunningScaler) or not outliers.any() or suspicious(before.extremes, before).any():
                return
            x, columns = units.extremes, outliers.any(0)
        column = int(np.flatnonzero(columns)[0])
        mean, std = (moment[column] for moment in units.moments())
        value = x[outliers[:, column], column][0]
        row_numbers = [str(self.rows + index) for index in np.flatnonzero(rows).tolist()]
        names = [
            str(n) if self.feature_names is None else self.feature_names[n] for n in np.flatnonzero(columns).tolist()
        ]
        warnings.warn(
            f"values far from all others, which may be errors: {value:g} in column {names[0]!r}, where the mean is "
            f"{mean:g} and the standard deviation {std:g}. Columns: {_abbreviated(names)}. Rows, from 0: "
            f"{_abbreviated(row_numbers) or 'before these'}. They have little influence as long as they are rare. "
            "If they are errors, leave their rows out. This warning is shown once.",
            GmedWarning,
            stacklevel=4,
        )
        self._warned = True

    @exclusive
    def remove_examples(
        self,
        *,
        row: int | Sequence[int] | None = None,
        label: Any = None,
        where: Callable[[Floats, NDArray[Any]], NDArray[np.bool_]] | None = None,
    ) -> int:
        """Remove stored rows and return their number. What the model learned from them is not undone.

        Parameters
        ----------
        row
            Rows to remove, by number: 0 is the first row ever learned from. Not available after :meth:`fit` with
            several passes.
        label
            Class or classes to remove, of the type of the labels: strings, numbers or booleans.
        where
            Called with all stored rows, in original units and including their edits, and their labels; returns a mask
            of the rows to remove.

        Examples
        --------
        >>> model = OnlineClassifier(ClassifierConfig(), inputs=1)
        >>> model.learn(np.array([[1.0], [2.0], [8.0]]), np.array(["low", "low", "high"]))
        >>> model.remove_examples(label="low"), model.remove_examples(label="low")
        (2, 0)
        >>> model.remove_examples(where=lambda x, y: x[:, 0] > 5)
        1
        """
        if self._snapshot is None:
            return 0
        labels, units, learner = self.labels, self.units, self.learner
        if row is not None and learner.memory is not None and learner.memory.num_seen != self.rows:
            raise UsageError("after fit with several passes, rows have no numbers; remove them by label or where")
        outputs = None if label is None else labels.encode_names(np.atleast_1d(np.asarray(label, dtype=object)))

        def mask(z: Tensor, outputs: Tensor) -> Any:
            assert where is not None
            return where(units.inverse_transform(z.cpu().numpy()), labels.classes_by_output[outputs.cpu().numpy()])

        count = learner.remove_examples(stream_index=row, label=outputs, where=mask if where is not None else None)
        if isinstance(units, RunningScaler):
            self._snapshot = replace(self._snapshot, units=units.without_extremes())
        return count

    # ------------------------------------------------------------------ predicting

    def scores(self, x: Floats) -> NDArray[np.float32]:
        """Return (n, classes) logits, with the classes in sorted order."""
        return self.classes_and_scores(x)[1]

    def predict(self, x: Floats) -> NDArray[Any]:
        """Return the predicted class of each row."""
        classes, scores = self.classes_and_scores(x)
        predictions: NDArray[Any] = classes[scores.argmax(1)]
        return predictions

    def classes_and_scores(self, x: Floats) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """Return the sorted classes and (n, classes) logits, consistent with each other while another thread learns."""
        snapshot, x = self._fitted(), self._validated(x)
        z = snapshot.units.transform(x)
        blocks = (z[start : start + BLOCK] for start in range(0, len(z), BLOCK))
        with alone(snapshot.learner._lock):
            logits = np.concatenate([snapshot.learner.logits(rows).cpu().numpy() for rows in blocks])
        return snapshot.labels.classes, logits[:, snapshot.labels.sorted_order]

    def _validated(self, rows: Any) -> Floats:
        try:
            x: Floats = np.asarray(rows, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"x must contain rows of {self.inputs} numbers: {error}") from error
        if x.ndim != 2 or x.shape[1] != self.inputs or not len(x):
            raise InputError(f"rows of {self.inputs} features are needed, not an array of shape {x.shape}")
        if not np.isfinite(x).all():
            row = int(np.flatnonzero(~np.isfinite(x).all(1))[0])
            raise InputError(f"row {row} contains NaN or infinity; drop or impute it")
        return x

    def _check_paired(self, x: Floats, y: NDArray[Any]) -> None:
        if y.shape != (len(x),):
            raise InputError(f"y must hold one label per row: shape {y.shape} for {len(x)} rows")

    # ------------------------------------------------------------------ saving

    @consistent_read
    def state(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Return the complete state: named tensors, and everything else as text."""
        counts = {"inputs": self.inputs, "seed": self.seed, "rows": self.rows}
        texts = {"settings": self.settings.to_json(), "counts": json.dumps(counts)}
        if not self.rows:
            return {}, texts
        tensors = {f"learner.{name}": t for name, t in self.learner.state_dict().items()}
        tensors |= {f"units.{name}": t for name, t in self.units.state_dict().items()}
        return tensors, texts | {"labels": self.labels.to_json()}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], texts: Mapping[str, str], model: Model | None = None) -> Self:
        """Return the classifier with this state; pass ``model`` if it has a custom one."""
        try:
            counts = json.loads(texts["counts"])
            new = cls(ClassifierConfig.from_json(texts["settings"], model), counts["inputs"], counts["seed"])
            rows = check_int("rows", counts["rows"], minimum=0)
            if rows:
                labels = LabelEncoder.from_json(texts["labels"])
                parts = {
                    kind: {name.removeprefix(kind): t for name, t in tensors.items() if name.startswith(kind)}
                    for kind in ("units.", "learner.")
                }
                units = RunningScaler.from_state(parts["units."], new.inputs) if parts["units."] else IdentityScaler()
                outputs = max(len(labels.classes_by_output), int(parts["learner."]["classes"]))
                new._check_sizes(outputs, parts["learner."])
                learner = new.settings.make_learner(new.inputs, outputs, new.seed)
                learner.load_state_dict(parts["learner."])
                new._snapshot = _Snapshot(labels, units, learner, rows)
        except (LookupError, TypeError, ValueError, RuntimeError, MemoryError, RecursionError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"not a valid classifier state ({error})") from None
        return new

    def _check_sizes(self, outputs: int, state: Mapping[str, Tensor]) -> None:
        """Check that a model is as large as its tensors, before it is allocated."""
        if state["shape"].tolist() != [self.inputs]:
            raise UsageError(f"the learner was trained with input shape {state['shape'].tolist()}, not [{self.inputs}]")
        if self.settings.model is None:
            with torch.device("meta"):  # shapes without values
                expected = MLP(self.inputs, self.settings.hidden, outputs).state_dict()
            for name, tensor in expected.items():
                if state[f"model.{name}"].shape != tensor.shape:
                    raise UsageError(f"the shape of model.{name} does not agree with the settings")

    def save(self, path: str | Path, **texts: str) -> None:
        """Write the classifier to a file atomically, together with further texts."""
        tensors, state_texts = self.state()
        names = {} if self.feature_names is None else {"feature_names": json.dumps(list(self.feature_names))}
        write_state(Path(path), tensors, {"classifier": FORMAT, **state_texts, **names, **texts})

    @classmethod
    def load(cls, path: str | Path, model: Model | None = None) -> tuple[Self, dict[str, str]]:
        """Read a classifier from a file, with the texts that were saved with it; this runs no code from the file."""
        tensors, texts = read_state(Path(path), {"classifier": FORMAT})
        try:
            new = cls.from_state(tensors, texts, model)
            new.feature_names = _parse_names(texts.get("feature_names", "null"), new.inputs)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
        return new, texts


def _parse_names(text: str, inputs: int) -> list[str] | None:
    """Parse the saved names of the features, or null if there are none."""
    with suppress(ValueError, RecursionError):
        names = json.loads(text)
        if names is None:
            return None
        if isinstance(names, list) and len(names) == inputs and all(isinstance(name, str) for name in names):
            return names
    raise UsageError("its feature names are damaged")


def _abbreviated(names: Sequence[str]) -> str:
    """Return the first three names, and the number of the others."""
    return ", ".join(islice(names, 3)) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def suspicious(x: Floats, units: RunningScaler) -> NDArray[np.bool_]:
    """Return a mask of values that look like errors.

    A value is suspected if it is an outlier together with a quarter of its row, or hundreds of times further out than
    all other values. Single values that are merely rare, such as the first dark pixel in a corner, are not.
    """
    low, high = units.limits()
    far = (x < low) | (x > high)
    extremely_far = (x < low - OUTLIER_RATIO * (high - low)) | (x > high + OUTLIER_RATIO * (high - low))
    mask: NDArray[np.bool_] = (far & (far.mean(1, keepdims=True) >= 0.25)) | (extremely_far & (high > low))
    return mask
