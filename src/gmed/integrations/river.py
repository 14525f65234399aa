"""The classifier one example at a time, as River's models learn and predict."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from gmed.errors import GmedError, InputError, UsageError, check_int
from gmed.learners._locking import Lock, alone, exclusive
from gmed.online import ClassifierConfig, LabelEncoder, OnlineClassifier, RunningScaler
from gmed.online.scaling import LARGEST

try:
    from river import base
except ImportError:
    raise UsageError("the River model needs River: pip install 'gmed[river]'") from None

__all__ = ["GMEDClassifier"]


class GMEDClassifier(base.Classifier):
    """A neural network that learns example by example and replays, and edits, some it has stored.

    A step from a single example is a noisy one and costs as much as a step from ten. So examples are collected and
    learned from when there are ``buffer`` of them; those that wait are not yet in the predictions.

    Features are those of the first examples. One that is missing later counts as its mean so far; one that is new is
    left out. An example that cannot be used is refused when it comes; those that wait go on waiting.

    A call that fails, or is interrupted by Ctrl-C, changes nothing; but examples whose step diverges wait no longer.
    One thread may learn while others predict.

    Parameters
    ----------
    settings
        How it learns: memory, edit, learning rate ...; by default :class:`gmed.online.ClassifierConfig`.
    buffer
        How many examples are collected for a step.
    seed
        Every random choice follows from it.

    Examples
    --------
    >>> from river import datasets
    >>> model, right = GMEDClassifier(seed=0), 0
    >>> for x, y in datasets.Phishing():
    ...     right += model.predict_one(x) == y
    ...     model.learn_one(x, y)
    >>> right / 1250 > 0.85
    True
    """

    def __init__(self, settings: ClassifierConfig | None = None, buffer: int = 10, seed: int = 0) -> None:
        self.settings = settings
        self.buffer = check_int("buffer", buffer)
        self.seed = check_int("seed", seed, minimum=0)
        self._features: list[Any] = []
        self._waiting: list[tuple[list[float], Any]] = []
        self._classifier: OnlineClassifier | None = None
        self._lock = Lock()

    @property
    def _multiclass(self) -> bool:
        return True

    @exclusive
    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Learn from one example, or keep it until there are enough for a step."""
        features = self._features or sorted(x, key=str)
        row = self._row(x, features)
        if self._classifier is not None:
            self._classifier.labels.extended(_labels([y]))
        else:
            known = [label for _, label in self._waiting]
            LabelEncoder.from_labels(_labels(known or [y])).extended(_labels([y]))
        self._learn(features, [*self._waiting, (row, y)], self.buffer)

    @exclusive
    def flush(self) -> None:
        """Learn from the examples that wait, however few they are."""
        self._learn(self._features, self._waiting, 1)

    def _learn(self, features: list[Any], waiting: list[tuple[list[float], Any]], least: int) -> None:
        """Learn from these examples if there are enough, or have them wait."""
        classifier = self._classifier
        if len(waiting) >= least:
            if classifier is None:
                classifier = OnlineClassifier(self.settings or ClassifierConfig(), len(features), self.seed)
                classifier.feature_names = [str(name) for name in features]
            x = self._filled(np.array([row for row, _ in waiting], dtype=np.float64))
            try:
                classifier.learn(x, _labels([label for _, label in waiting]))
            except GmedError:
                self._waiting = []  # they would fail again, with every further example
                raise
            waiting = []
        self._features, self._waiting, self._classifier = features, waiting, classifier

    def predict_proba_one(self, x: Mapping[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """The probability of each class met so far; before the first step its share of the examples that wait."""
        with alone(self._lock):
            if self._classifier is None:
                labels = Counter(label for _, label in self._waiting)
                return {label: count / labels.total() for label, count in labels.items()}
            row = self._filled(np.array([self._row(x, self._features)]))
            classes, scores = self._classifier.classes_and_scores(row)
            return dict(zip(classes.tolist(), softmax(scores.astype(np.float64)[0]).tolist(), strict=True))

    def _row(self, x: Mapping[Any, Any], features: list[Any]) -> list[float]:
        if not features:
            raise InputError("the first example has no features")
        standardised = self.settings is None or self.settings.standardise
        largest = LARGEST if standardised else float(np.finfo(np.float32).max)
        return [_number(name, x.get(name), largest) for name in features]

    def _filled(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """The rows, with the mean of its feature so far for what is missing."""
        missing = np.isnan(x)
        if not missing.any():
            return x
        if self._classifier is not None and isinstance(self._classifier.units, RunningScaler):
            mean, _ = self._classifier.units.moments()
        else:
            mean = np.where(missing, 0, x).sum(0) / np.maximum(1, (~missing).sum(0))
        return np.where(missing, mean, x)


def _labels(given: list[Any]) -> NDArray[Any]:
    labels = np.empty(len(given), dtype=object)
    labels[:] = given
    return labels


def _number(name: Any, value: Any, largest: float) -> float:
    if value is None:
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        hint = "encode it first, with river.preprocessing.OneHotEncoder for example"
        raise InputError(f"feature {name!r} is {value!r}, not a number; {hint}") from None
    if math.isinf(number):
        raise InputError(f"feature {name!r} is infinite; leave it out or cut it back")
    if abs(number) > largest:
        raise InputError(f"feature {name!r} is {number:g}, which is too large to learn from; scale it down")
    return number
