"""Prequential (test-then-train) evaluation: every example is predicted before it is learned from."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np

from gmed.data.dataset import Progress, no_progress
from gmed.errors import UsageError, check_int

Example = tuple[Any, Any]
"""Features (a mapping or a row) and label."""


@dataclass(frozen=True)
class Prequential:
    """The result of a prequential evaluation.

    Attributes
    ----------
    examples
        Number of examples.
    accuracy
        Share of all examples that were predicted correctly, with equal weights.
    curve
        For each window of the stream: the number of examples up to its end, and the accuracy within it.
    seconds
        Time spent in ``predict`` and in ``learn``.
    """

    examples: int
    accuracy: float
    curve: list[tuple[int, float]]
    seconds: dict[str, float] = field(compare=False)


def prequential(
    model: Any,
    stream: Iterable[Example] | tuple[Any, Any],
    *,
    batch_size: int | None = None,
    classes: Iterable[Any] | None = None,
    window: int = 1000,
    progress: Progress = no_progress,
) -> Prequential:
    """Predict each batch of a stream, then learn from it.

    Parameters
    ----------
    model
        A model with ``partial_fit`` and ``predict``, as in scikit-learn, or ``learn_one`` and ``predict_one``, as in
        River. Predictions of a model that is not fitted yet count as wrong.
    stream
        Arrays or data frames ``(X, y)``, or any iterable of examples ``(x, y)``, with x a mapping (as in River) or a
        row.
    batch_size
        Number of examples that are predicted, then learned from, at once: by default 10, and 1 for River's models.
    classes
        All classes of the stream, for models that require them in the first ``partial_fit``.
    window
        Number of examples per point of the curve.
    progress
        Called with the number of examples that are done and, if known, the total number.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from gmed.sklearn import GMEDClassifier
    >>> result = prequential(GMEDClassifier(random_state=0), load_digits(return_X_y=True))
    >>> result.examples, result.accuracy > 0.7, len(result.curve)
    (1797, True, 2)

    References
    ----------
    Gama, Sebastião, Rodrigues, "On evaluating stream learning algorithms", Machine Learning 90(3), 2013.
    """
    one_by_one = _is_river(model)
    size = check_int("batch_size", (1 if one_by_one else 10) if batch_size is None else batch_size)
    check_int("window", window)
    step = _RiverStep(model) if one_by_one else _SklearnStep(model, None if classes is None else list(classes))
    seconds = {"predict": 0.0, "learn": 0.0}
    total = _length(stream)
    correct: list[bool] = []
    for x, y in _batches(stream, size):
        start = time.perf_counter()
        predictions = step.predict(x)
        middle = time.perf_counter()
        step.learn(x, y)
        seconds["predict"] += middle - start
        seconds["learn"] += time.perf_counter() - middle
        correct += [p is not None and bool(p == label) for p, label in zip(predictions, y, strict=True)]
        progress(len(correct), total)
    if not correct:
        raise UsageError("the stream is empty")
    ends = [*range(window, len(correct), window), len(correct)]
    curve = [(end, float(np.mean(correct[start:end]))) for start, end in zip([0, *ends], ends, strict=False)]
    return Prequential(len(correct), float(np.mean(correct)), curve, seconds)


class _SklearnStep:
    """Predicts and learns batches with a model that has ``partial_fit`` and ``predict``."""

    def __init__(self, model: Any, classes: list[Any] | None) -> None:
        self.model, self.classes = model, classes
        self.names: list[Any] | None = None

    def predict(self, x: Any) -> list[Any]:
        try:
            return list(self.model.predict(self._matrix(x)))
        except Exception as error:
            if type(error).__name__ != "NotFittedError":  # of scikit-learn, which need not be installed
                raise
            return [None] * len(x)

    def learn(self, x: Any, y: Any) -> None:
        self.model.partial_fit(self._matrix(x), y, **({} if self.classes is None else {"classes": self.classes}))

    def _matrix(self, x: Any) -> Any:
        if not isinstance(x, list):
            return x
        if not isinstance(x[0], Mapping):
            return np.array(x, dtype=np.float64)
        self.names = self.names or list(x[0])
        return np.array([[row[name] for name in self.names] for row in x], dtype=np.float64)


class _RiverStep:
    """Predicts and learns batches, example by example, with a model that has ``learn_one`` and ``predict_one``."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def predict(self, x: Any) -> list[Any]:
        return [self.model.predict_one(row) for row in self._rows(x)]

    def learn(self, x: Any, y: Any) -> None:
        for row, label in zip(self._rows(x), y, strict=True):
            self.model.learn_one(row, label.item() if isinstance(label, np.generic) else label)

    def _rows(self, x: Any) -> Iterator[Mapping[Any, Any]]:
        names = getattr(x, "columns", None)
        for row in x if isinstance(x, list) else np.asarray(x).tolist():
            yield (
                row
                if isinstance(row, Mapping)
                else dict(zip(range(len(row)) if names is None else names, row, strict=True))
            )


def _is_river(model: Any) -> bool:
    for methods in (("learn_one", "predict_one"), ("partial_fit", "predict")):
        if all(callable(getattr(model, name, None)) for name in methods):
            return methods[0] == "learn_one"
    kind = type(model).__name__
    raise UsageError(f"{kind} has neither partial_fit and predict nor learn_one and predict_one")


def _is_arrays(stream: Any) -> bool:
    return isinstance(stream, tuple) and len(stream) == 2 and len(getattr(stream[0], "shape", ())) == 2


def _length(stream: Any) -> int | None:
    if _is_arrays(stream):
        return len(stream[0])
    count = getattr(stream, "n_samples", None)  # an attribute of River's data sets
    return len(stream) if isinstance(stream, (list, tuple)) else count if isinstance(count, int) else None


def _batches(stream: Any, size: int) -> Iterator[tuple[Any, Any]]:
    if _is_arrays(stream):
        X, y = stream[0], np.asarray(stream[1])
        if len(X) != len(y):
            raise UsageError(f"the stream has {len(X)} rows but {len(y)} labels")
        for start in range(0, len(X), size):
            yield getattr(X, "iloc", X)[start : start + size], y[start : start + size]
        return
    examples = iter(stream)
    while batch := list(islice(examples, size)):
        yield [x for x, _ in batch], [y for _, y in batch]
