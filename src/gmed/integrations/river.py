"""A River classifier, which learns and predicts one example at a time."""

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
    """A neural network that learns example by example, and replays and edits examples it has stored.

    A step on a single example is noisy and costs as much as a step on ten. Therefore examples are buffered and learned
    once there are ``buffer`` of them; buffered examples do not affect predictions yet.

    The first examples define the features. Later, a missing feature is replaced by its mean so far, and a new feature
    is ignored. An invalid example is refused immediately; the buffer is not affected.

    A call that fails, or is interrupted by Ctrl-C, changes nothing, except that examples whose step diverges are
    dropped from the buffer. One thread may learn while others predict.

    Parameters
    ----------
    settings
        Hyper-parameters (memory, edit, learning rate ...); by default those of :class:`gmed.online.ClassifierConfig`.
    buffer
        Number of examples per step.
    seed
        Random seed.

    Examples
    --------
    >>> from river import datasets
    >>> model, correct = GMEDClassifier(seed=0), 0
    >>> for x, y in datasets.Phishing():
    ...     correct += model.predict_one(x) == y
    ...     model.learn_one(x, y)
    >>> correct / 1250 > 0.85
    True
    """

    def __init__(self, settings: ClassifierConfig | None = None, buffer: int = 10, seed: int = 0) -> None:
        self.settings = settings
        self.buffer = check_int("buffer", buffer)
        self.seed = check_int("seed", seed, minimum=0)
        self._features: list[Any] = []
        self._pending: list[tuple[list[float], Any]] = []
        self._classifier: OnlineClassifier | None = None
        self._lock = Lock()

    @property
    def _multiclass(self) -> bool:
        return True

    @exclusive
    def learn_one(self, x: Mapping[Any, Any], y: Any) -> None:
        """Learn from one example, or buffer it until there are enough for a step."""
        features = self._features or sorted(x, key=str)
        row = self._row(x, features)
        if self._classifier is not None:
            self._classifier.labels.extended(_labels([y]))
        else:
            earlier = [label for _, label in self._pending]
            LabelEncoder.from_labels(_labels(earlier or [y])).extended(_labels([y]))
        self._learn(features, [*self._pending, (row, y)], self.buffer)

    @exclusive
    def flush(self) -> None:
        """Learn from the buffered examples, even if there are fewer than ``buffer``."""
        self._learn(self._features, self._pending, 1)

    def _learn(self, features: list[Any], pending: list[tuple[list[float], Any]], minimum: int) -> None:
        """Learn from these examples if there are enough, or buffer them."""
        classifier = self._classifier
        if len(pending) >= minimum:
            if classifier is None:
                classifier = OnlineClassifier(self.settings or ClassifierConfig(), len(features), self.seed)
                classifier.feature_names = [str(name) for name in features]
            x = self._impute(np.array([row for row, _ in pending], dtype=np.float64))
            try:
                classifier.learn(x, _labels([label for _, label in pending]))
            except GmedError:
                self._pending = []  # they would fail again with every further example
                raise
            pending = []
        self._features, self._pending, self._classifier = features, pending, classifier

    def predict_proba_one(self, x: Mapping[Any, Any], **kwargs: Any) -> dict[Any, float]:
        """Return the probability of each class seen so far; before the first step, its share of the buffer."""
        with alone(self._lock):
            if self._classifier is None:
                labels = Counter(label for _, label in self._pending)
                return {label: count / labels.total() for label, count in labels.items()}
            row = self._impute(np.array([self._row(x, self._features)]))
            classes, scores = self._classifier.classes_and_scores(row)
            return dict(zip(classes.tolist(), softmax(scores.astype(np.float64)[0]).tolist(), strict=True))

    def _row(self, x: Mapping[Any, Any], features: list[Any]) -> list[float]:
        if not features:
            raise InputError("the first example has no features")
        standardized = self.settings is None or self.settings.standardize
        largest = LARGEST if standardized else float(np.finfo(np.float32).max)
        return [_number(name, x.get(name), largest) for name in features]

    def _impute(self, x: NDArray[np.float64]) -> NDArray[np.float64]:
        """Replace missing values by the mean of their feature so far."""
        missing = np.isnan(x)
        if not missing.any():
            return x
        if self._classifier is not None and isinstance(self._classifier.units, RunningScaler):
            mean, _ = self._classifier.units.moments()
        else:
            mean = np.where(missing, 0, x).sum(0) / np.maximum(1, (~missing).sum(0))
        return np.where(missing, mean, x)


def _labels(labels: list[Any]) -> NDArray[Any]:
    array = np.empty(len(labels), dtype=object)
    array[:] = labels
    return array


def _number(name: Any, value: Any, largest: float) -> float:
    if value is None:
        return math.nan
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        hint = "encode it first, with river.preprocessing.OneHotEncoder for example"
        raise InputError(f"feature {name!r} is {value!r}, not a number; {hint}") from None
    if math.isinf(number):
        raise InputError(f"feature {name!r} is infinite; leave it out or clip it")
    if abs(number) > largest:
        raise InputError(f"feature {name!r} is {number:g}, which is too large to learn from; scale it down")
    return number
