"""A table whose classes arrive one after the other: what replay is for.

The digits that scikit-learn ships, 1,797 rows of 64 numbers, come in the order of their classes: first all zeros, then
all ones. Ten rows are predicted, then learned from, as in a service that gets the truth a little later. At the end the
model is asked about rows of all classes that it has never seen.

What it shows: without a memory the last class is all that is left, whatever the running accuracy says. What it does not
show: a gain of editing. On rows like these replay with and without GMED come out alike; compare them on your own.

    python examples/drifting_rows.py      # under a minute on a CPU; needs gmed[sklearn]
"""

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from gmed.evaluate import prequential
from gmed.sklearn import GMEDClassifier

SEEDS = 3
MODELS = {
    "no memory": {"memory": 0},
    "replay": {"alpha": 0.0},
    "replay + GMED": {},
}


def rows_by_class(seed: int) -> tuple[np.ndarray, ...]:
    """Rows in the order of their classes, and a fifth of them held out."""
    X, y = load_digits(return_X_y=True)
    X, X_test, y, y_test = train_test_split(X, y, test_size=0.2, stratify=y, random_state=seed)
    order = np.argsort(y, kind="stable")
    return X[order], y[order], X_test, y_test


def accuracies(settings: dict[str, float], seed: int) -> tuple[float, float, float]:
    """In percent: before learning from each row, at the end on all classes, at the end on the first class."""
    X, y, X_test, y_test = rows_by_class(seed)
    model = GMEDClassifier(random_state=seed, **settings)
    running = prequential(model, (X, y)).accuracy
    right = model.predict(X_test) == y_test
    return 100 * running, 100 * float(right.mean()), 100 * float(right[y_test == 0].mean())


def main() -> None:
    torch.set_num_threads(1)
    print(f"{'':14} {'running':>8} {'at the end':>11} {'of class 0':>11}   ({SEEDS} seeds, %)")
    for name, settings in MODELS.items():
        running, end, first = np.mean([accuracies(settings, seed) for seed in range(SEEDS)], axis=0)
        print(f"{name:14} {running:8.1f} {end:11.1f} {first:11.1f}")


if __name__ == "__main__":
    main()
