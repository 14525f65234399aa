"""The streams of rows that the estimator is measured on: what River and scikit-learn ship, and the packaged MNIST."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from river import datasets
from river.datasets import synth
from sklearn.datasets import load_digits

from gmed.data import load_mnist

ROWS = 4000
"""Of a generated stream."""


@dataclass(frozen=True)
class Rows:
    """A stream, and where there is one a test set for what was learned from it."""

    X: np.ndarray
    y: np.ndarray
    X_test: np.ndarray | None = None
    y_test: np.ndarray | None = None


def _read(examples: Iterable[tuple[dict[Any, Any], Any]]) -> Rows:
    rows, labels = zip(*((list(x.values()), y) for x, y in examples), strict=True)
    return Rows(np.array(rows, dtype=np.float64), np.array(labels))


def _by_class(X: np.ndarray, y: np.ndarray, seed: int, rows: int | None = None) -> Rows:
    """Hold out a fifth for testing, and order the others by class."""
    order = np.random.default_rng(seed).permutation(len(y))[:rows]
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    train = train[np.argsort(y[train], kind="stable")]
    return Rows(X[train], y[train], X[test], y[test])


def _mnist(seed: int) -> Rows:
    data = load_mnist()
    return _by_class(data.x_train.reshape(len(data.y_train), -1).astype(np.float64), data.y_train, seed, 3000)


def _segments(seed: int) -> Rows:
    rows = _read(datasets.ImageSegments())
    return _by_class(rows.X, rows.y, seed)


def _changing(before: Any, after: Any, seed: int) -> Rows:
    changing = synth.ConceptDriftStream(before, after, position=ROWS // 2, width=ROWS // 20, seed=seed)
    return _read(changing.take(ROWS))


STREAMS: dict[str, Callable[[int], Rows]] = {
    "digits by class": lambda seed: _by_class(*load_digits(return_X_y=True), seed),
    "image segments by class": _segments,
    "MNIST by class": _mnist,
    "phishing": lambda seed: _read(datasets.Phishing()),
    "bananas": lambda seed: _read(datasets.Bananas()),
    "shuttle": lambda seed: _read(islice(datasets.Shuttle(), 5000)),
    "SEA, changing": lambda seed: _changing(synth.SEA(0, seed=seed), synth.SEA(3, seed=seed + 100), seed),
    "Agrawal, changing": lambda seed: _changing(synth.Agrawal(0, seed=seed), synth.Agrawal(4, seed=seed + 100), seed),
    "moving clusters": lambda seed: _read(
        synth.RandomRBFDrift(
            seed_model=seed, seed_sample=seed, n_classes=5, n_centroids=20, change_speed=5e-4, n_drift_centroids=10
        ).take(ROWS)
    ),
}
"""By name, each a function of the seed. The first three have a test set; the order of the next three is as shipped."""


def interval(values: Iterable[float]) -> tuple[float, float]:
    """Mean, and half the width of its 95 % interval (Student's t)."""
    from scipy.stats import t

    found = np.array(list(values))
    spread = found.std(ddof=1) / np.sqrt(len(found))
    return float(found.mean()), float(t.ppf(0.975, len(found) - 1) * spread)
