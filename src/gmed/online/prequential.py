"""Test-then-train: every example is predicted before it is learned from."""

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
    """What came out.

    Attributes
    ----------
    examples
        How many there were.
    accuracy
        The share that was predicted rightly, every example counting alike, from the first on.
    curve
        For each window of the stream: how many examples it ended after, and the share of its own that was right.
    seconds
        Time spent, by ``predict`` and ``learn``.
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
        With ``partial_fit`` and ``predict``, as in scikit-learn, or ``learn_one`` and ``predict_one``, as in River. A
        model that cannot predict yet, having learned nothing, is wrong.
    stream
        Arrays or frames ``(X, y)``, or any iterable of examples ``(x, y)``, x being a mapping (as River's) or a row.
    batch_size
        How many examples are predicted, then learned from, at once: by default 10, with River's models 1.
    classes
        All there will be, for models whose first ``partial_fit`` must be told.
    window
        How many examples a point of the curve is made from.
    progress
        Told how many examples are done and, where that is known, of how many.

    Examples
    --------
    >>> from sklearn.datasets import load_digits
    >>> from gmed.sklearn import GMEDClassifier
    >>> found = prequential(GMEDClassifier(random_state=0), load_digits(return_X_y=True))
    >>> found.examples, found.accuracy > 0.7, len(found.curve)
    (1797, True, 2)

    References
    ----------
    Gama, Sebastião, Rodrigues, "On evaluating stream learning algorithms", Machine Learning 90(3), 2013.
    """
    one_by_one = _is_river(model)
    size = check_int("batch_size", (1 if one_by_one else 10) if batch_size is None else batch_size)
    check_int("window", window)
    known = None if classes is None else list(classes)
    step = _RiverStep(model) if one_by_one else _SklearnStep(model, known)
    seconds = {"predict": 0.0, "learn": 0.0}
    total = _length(stream)
    right: list[bool] = []
    for x, y in _batches(stream, size):
        start = time.perf_counter()
        guesses = step.predict(x)
        middle = time.perf_counter()
        step.learn(x, y)
        seconds["predict"] += middle - start
        seconds["learn"] += time.perf_counter() - middle
        right += [guess is not None and bool(guess == label) for guess, label in zip(guesses, y, strict=True)]
        progress(len(right), total)
    if not right:
        raise UsageError("the stream is empty")
    ends = [*range(window, len(right), window), len(right)]
    curve = [(end, float(np.mean(right[start:end]))) for start, end in zip([0, *ends], ends, strict=False)]
    return Prequential(len(right), float(np.mean(right)), curve, seconds)


class _SklearnStep:
    """A batch to a model with ``partial_fit`` and ``predict``."""

    def __init__(self, model: Any, classes: list[Any] | None) -> None:
        self.model, self.classes = model, classes
        self.names: list[Any] | None = None

    def predict(self, x: Any) -> list[Any]:
        try:
            return list(self.model.predict(self._matrix(x)))
        except Exception as error:
            if type(error).__name__ != "NotFittedError":  # scikit-learn's; it need not be installed
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
    """A batch, one example after the other, to a model with ``learn_one`` and ``predict_one``."""

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
            named = isinstance(row, Mapping)
            yield row if named else dict(zip(range(len(row)) if names is None else names, row, strict=True))


def _is_river(model: Any) -> bool:
    for methods in (("learn_one", "predict_one"), ("partial_fit", "predict")):
        if all(callable(getattr(model, name, None)) for name in methods):
            return methods[0] == "learn_one"
    kind = type(model).__name__
    raise UsageError(f"a {kind} has neither partial_fit and predict nor learn_one and predict_one")


def _is_arrays(stream: Any) -> bool:
    return isinstance(stream, tuple) and len(stream) == 2 and len(getattr(stream[0], "shape", ())) == 2


def _length(stream: Any) -> int | None:
    if _is_arrays(stream):
        return len(stream[0])
    count = getattr(stream, "n_samples", None)  # River's data sets know
    return len(stream) if isinstance(stream, (list, tuple)) else count if isinstance(count, int) else None


def _batches(stream: Any, size: int) -> Iterator[tuple[Any, Any]]:
    if _is_arrays(stream):
        X, y = stream[0], np.asarray(stream[1])
        if len(X) != len(y):
            raise UsageError(f"{len(X)} rows and {len(y)} labels do not go together")
        for start in range(0, len(X), size):
            yield getattr(X, "iloc", X)[start : start + size], y[start : start + size]
        return
    examples = iter(stream)
    while batch := list(islice(examples, size)):
        yield [x for x, _ in batch], [y for _, y in batch]
