from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
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
"""The most rows that are predicted at once, however many there are."""
OUTLIER_RATIO = 500
"""A value that lies so many times as far out as all others is taken for an error."""


@dataclass(frozen=True)
class _Snapshot:
    """What a classifier is between two calls: its parts go together, and it is replaced as a whole."""

    labels: LabelEncoder
    units: Scaler
    learner: Learner
    rows: int


class OnlineClassifier:
    """A classifier of rows of outputs that goes on learning: new rows, new classes, at any time.

    It is an :class:`~gmed.learners.ER` learner (:class:`~gmed.learners.FineTune` without a memory) that sees features
    in units of their own (:class:`RunningScaler`) and classes by their names (:class:`LabelEncoder`). Where units are
    renewed, stored examples are expressed in the new ones.

    A call that fails, or is interrupted by Ctrl-C, changes nothing. One thread may learn while others predict: a
    prediction is that of the classifier before a step or before a whole call, or after it, never of a mixture, and
    what is learned does not depend on it. Saving and a second thread that learns wait for the end of a call.

    Parameters
    ----------
    settings
        How it learns.
    inputs
        How many features a row has.
    seed
        Every random choice follows from it.

    Attributes
    ----------
    rows
        How many rows it has learned from.
    feature_names
        What a warning calls features; by default their numbers.

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
        self._now: _Snapshot | None = None
        self._warned = False
        self._lock = Lock()

    def _fitted(self) -> _Snapshot:
        if self._now is None:
            raise UsageError("this classifier has learned nothing yet")
        return self._now

    @property
    def rows(self) -> int:
        return 0 if self._now is None else self._now.rows

    @property
    def labels(self) -> LabelEncoder:
        """The classes met so far."""
        return self._fitted().labels

    @property
    def units(self) -> Scaler:
        """How it sees features at the moment."""
        return self._fitted().units

    @property
    def learner(self) -> Learner:
        """What learns. A call of :meth:`learn` may put another in its place."""
        return self._fitted().learner

    # ------------------------------------------------------------------ learning

    def learn(self, x: Floats, y: NDArray[Any], classes: NDArray[Any] | None = None) -> None:
        """Learn from rows in their order, at most ``batch_size`` of them in a step.

        Parameters
        ----------
        x
            (n, inputs) finite numbers.
        y
            (n,) labels: words, outputs or truth values.
        classes
            Classes to tell apart from now on, besides those of ``y`` and those known already.
        """
        x, y = self._checked(x), normalize_labels(np.asarray(y))
        self._check_paired(x, y)
        with alone(self._lock):
            now = self._now
            labels = None if now is None else now.labels
            for named in ([] if classes is None or not len(classes) else [classes]) + [y]:
                labels = LabelEncoder.from_labels(named) if labels is None else labels.extended(named)
            assert labels is not None
            units = self._first_units(x) if now is None else now.units.update(x)
            self._warn_of_outliers(units, x)
            z, outputs = units.transform(x), labels.encode(y)
            one_step = len(x) <= self.settings.batch_size
            if (
                now
                and one_step
                and units.same_scale(now.units)
                and len(labels.classes_by_output) <= now.learner.classes
            ):
                with hold_interrupts():  # a single step is all that can fail, and leaves no trace then
                    now.learner.observe(z, outputs)
                    self._now = _Snapshot(labels, units, now.learner, now.rows + len(x))
            else:  # on a copy, which can be let go at any moment
                learner = self._copy(now, labels, units)
                self._observe(learner, z, outputs)
                self._now = _Snapshot(labels, units, learner, self.rows + len(x))

    def fit(self, x: Floats, y: NDArray[Any], passes: int, shuffle: bool) -> None:
        """Learn from rows that are all there at once, several times over, before anything else is learned."""
        x, y = self._checked(x), normalize_labels(np.asarray(y))
        self._check_paired(x, y)
        with alone(self._lock):
            if self.rows:
                raise UsageError("this classifier has learned already; make a new one")
            labels, units = LabelEncoder.from_labels(y), self._first_units(x)
            self._warn_of_outliers(units, x)
            z, outputs = units.transform(x), labels.encode(y)
            learner = self._copy(None, labels, units)
            for number in range(passes):
                order = make_rng(self.seed, "order", number).permutation(len(x)) if shuffle else np.arange(len(x))
                self._observe(learner, z[order], outputs[order])
            self._now = _Snapshot(labels, units, learner, len(x))

    def _first_units(self, x: Floats) -> Scaler:
        return RunningScaler.of(x) if self.settings.standardise else IdentityScaler()

    def _copy(self, now: _Snapshot | None, labels: LabelEncoder, units: Scaler) -> Learner:
        """A learner that has learned as much as this classifier, for these classes and units."""
        if now is None:
            return self.settings.make_learner(self.inputs, len(labels.classes_by_output), self.seed)
        with alone(now.learner._lock):  # not while a prediction has the model in evaluation mode
            learner = deepcopy(now.learner)
        if len(labels.classes_by_output) > learner.classes:
            learner.add_classes(len(labels.classes_by_output))
        if learner.memory is not None and not units.same_scale(now.units):
            now.units.rescale_to(learner.memory.x, to=units)
        return learner

    def _observe(self, learner: Learner, z: NDArray[np.float32], outputs: NDArray[np.int64]) -> None:
        size = self.settings.batch_size
        for start in range(0, len(z), size):
            learner.observe(z[start : start + size], outputs[start : start + size])

    def _warn_of_outliers(self, units: Scaler, x: Floats) -> None:
        """Say it, once, when values appear that look like errors."""
        before = None if self._now is None else self._now.units
        if self._warned or not isinstance(units, RunningScaler) or (before is not None and units.same_scale(before)):
            return
        odd = suspicious(x, units)
        rows, columns = odd.any(1), odd.any(0)
        if not rows.any():  # or such as turn out to be errors only now that there are others
            odd = suspicious(units.extremes, units)
            if not isinstance(before, RunningScaler) or not odd.any() or suspicious(before.extremes, before).any():
                return
            x, columns = units.extremes, odd.any(0)
        column = int(np.flatnonzero(columns)[0])
        mean, deviation = (moment[column] for moment in units.moments())
        value = x[odd[:, column], column][0]
        outputs = [str(self.rows + number) for number in np.flatnonzero(rows).tolist()]
        names = [
            str(n) if self.feature_names is None else self.feature_names[n] for n in np.flatnonzero(columns).tolist()
        ]
        warnings.warn(
            f"values far from all others, which may be errors: {value:g} in column {names[0]!r}, where the mean is "
            f"{mean:g} and the standard deviation {deviation:g}. Columns: {_listed(names)}. Rows, from 0: "
            f"{_listed(outputs) or 'before these'}. They hardly count as long as they are rare. If they are errors, "
            "leave their rows out. This is said once.",
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
        """Remove stored rows on request, and tell how many. What was learned from them stays learned.

        Parameters
        ----------
        row
            By their outputs: 0 is the first row ever learned from. Not where :meth:`fit` passed over rows repeatedly.
        label
            By their class or classes, which must be of the labels' kind: words, outputs or truth values.
        where
            Called with all stored rows, in the features' own units and edited as they are, and their labels; says of
            each whether it goes.

        Examples
        --------
        >>> model = OnlineClassifier(ClassifierConfig(), inputs=1)
        >>> model.learn(np.array([[1.0], [2.0], [8.0]]), np.array(["low", "low", "high"]))
        >>> model.remove_examples(label="low"), model.remove_examples(label="low")
        (2, 0)
        >>> model.remove_examples(where=lambda x, y: x[:, 0] > 5)
        1
        """
        if self._now is None:
            return 0
        labels, units, learner = self.labels, self.units, self.learner
        if row is not None and learner.memory is not None and learner.memory.num_seen != self.rows:
            raise UsageError("rows were passed over repeatedly and have no numbers; forget them by label or where")
        outputs = None if label is None else labels.encode_names(np.atleast_1d(np.asarray(label, dtype=object)))

        def goes(z: Tensor, outputs: Tensor) -> Any:
            assert where is not None
            return where(units.inverse_transform(z.cpu().numpy()), labels.classes_by_output[outputs.cpu().numpy()])

        count = learner.remove_examples(stream_index=row, label=outputs, where=goes if where is not None else None)
        if isinstance(units, RunningScaler):
            self._now = replace(self._now, units=units.without_extremes())
        return count

    # ------------------------------------------------------------------ predicting

    def scores(self, x: Floats) -> NDArray[np.float32]:
        """(n, classes) logits, the classes being in order."""
        return self.classes_and_scores(x)[1]

    def predict(self, x: Floats) -> NDArray[Any]:
        """The class of each row."""
        classes, scores = self.classes_and_scores(x)
        found: NDArray[Any] = classes[scores.argmax(1)]
        return found

    def classes_and_scores(self, x: Floats) -> tuple[NDArray[Any], NDArray[np.float32]]:
        """The classes in order and (n, classes) logits, both of the same moment while another thread learns."""
        now, x = self._fitted(), self._checked(x)
        z = now.units.transform(x)
        blocks = (z[start : start + BLOCK] for start in range(0, len(z), BLOCK))
        with alone(now.learner._lock):
            logits = np.concatenate([now.learner.logits(rows).cpu().numpy() for rows in blocks])
        return now.labels.classes, logits[:, now.labels.sorted_order]

    def _checked(self, given: Any) -> Floats:
        try:
            x: Floats = np.asarray(given, dtype=np.float64)
        except (TypeError, ValueError) as error:
            raise InputError(f"rows of {self.inputs} outputs are needed: {error}") from error
        if x.ndim != 2 or x.shape[1] != self.inputs or not len(x):
            raise InputError(f"rows of {self.inputs} features are needed, not an array of shape {x.shape}")
        if not np.isfinite(x).all():
            row = int(np.flatnonzero(~np.isfinite(x).all(1))[0])
            raise InputError(f"row {row} holds NaN or infinity; drop or mend it")
        return x

    def _check_paired(self, x: Floats, y: NDArray[Any]) -> None:
        if y.shape != (len(x),):
            raise InputError(f"y must hold one label per row: shape {y.shape} for {len(x)} rows")

    # ------------------------------------------------------------------ state is data

    @consistent_read
    def state(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Everything it is: named tensors, and what else is to be known as text."""
        counts = {"inputs": self.inputs, "seed": self.seed, "rows": self.rows}
        texts = {"settings": self.settings.to_json(), "counts": json.dumps(counts)}
        if not self.rows:
            return {}, texts
        tensors = {f"learner.{name}": t for name, t in self.learner.state_dict().items()}
        tensors |= {f"units.{name}": t for name, t in self.units.state_dict().items()}
        return tensors, texts | {"labels": self.labels.to_json()}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], texts: Mapping[str, str], model: Model | None = None) -> Self:
        """The classifier whose state this is, with the model if it was one of one's own."""
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
                new._now = _Snapshot(labels, units, learner, rows)
        except (LookupError, TypeError, ValueError, RuntimeError, MemoryError, RecursionError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"it is not the state of a classifier ({error})") from None
        return new

    def _check_sizes(self, outputs: int, state: Mapping[str, Tensor]) -> None:
        """Make sure that a model is as large as its tensors, before there is room made for it."""
        if state["shape"].tolist() != [self.inputs]:
            raise UsageError(f"it has learned from {state['shape'].tolist()} features, not {self.inputs}")
        if self.settings.model is None:
            with torch.device("meta"):  # shapes without values
                own = MLP(self.inputs, self.settings.hidden, outputs).state_dict()
            for name, tensor in own.items():
                if state[f"model.{name}"].shape != tensor.shape:
                    raise UsageError(f"the size of its model.{name} is not the one that its settings say")

    def save(self, path: str | Path, **texts: str) -> None:
        """Write it to a file, whole or not at all."""
        tensors, own = self.state()
        write_state(Path(path), tensors, {"classifier": FORMAT, **own, **texts})

    @classmethod
    def load(cls, path: str | Path, model: Model | None = None) -> tuple[Self, dict[str, str]]:
        """The classifier in a file, and the texts that were saved with it. Reading runs no code."""
        tensors, texts = read_state(Path(path), {"classifier": FORMAT})
        try:
            return cls.from_state(tensors, texts, model), texts
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None


def _listed(names: Sequence[str]) -> str:
    """A few of them in words."""
    return ", ".join(islice(names, 3)) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def suspicious(x: Floats, units: RunningScaler) -> NDArray[np.bool_]:
    """Which values look like errors: far out in a quarter of their row, or hundreds of times further than others.

    Single values that are merely rare, such as the first ink in a corner, are none.
    """
    low, high = units.limits()
    far = (x < low) | (x > high)
    grossly = (x < low - OUTLIER_RATIO * (high - low)) | (x > high + OUTLIER_RATIO * (high - low))
    found: NDArray[np.bool_] = (far & (far.mean(1, keepdims=True) >= 0.25)) | (grossly & (high > low))
    return found
