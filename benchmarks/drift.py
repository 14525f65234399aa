"""The estimator beside online learners of River and scikit-learn, on streams that drift.

    python benchmarks/drift.py [--seeds 5] [--streams NAME ...]

Every model predicts ten rows and then learns from them; where classes come one after the other there is also a test
set of all classes at the end. Each has its defaults. SGDClassifier is given rows standardized by what has been met of
the stream (StandardScaler, updated before it), as the estimator standardizes for itself. Rows, test sets and models
follow the seed; the order of phishing, bananas and shuttle is the one they are shipped in. Results so far are kept,
and not computed again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from river.tree import HoeffdingAdaptiveTreeClassifier
from sklearn.linear_model import SGDClassifier
from sklearn.preprocessing import StandardScaler

from gmed.evaluate import prequential
from gmed.sklearn import GMEDClassifier
from streams import STREAMS, Rows, interval

HERE = Path(__file__).parent


class ScaledSGD:
    """SGDClassifier on standardized rows."""

    def __init__(self, seed: int) -> None:
        self.scaler, self.model = StandardScaler(), SGDClassifier(random_state=seed)

    def partial_fit(self, X: np.ndarray, y: np.ndarray, classes: list[Any]) -> None:
        self.model.partial_fit(self.scaler.partial_fit(X).transform(X), y, classes=classes)

    def predict(self, X: np.ndarray) -> np.ndarray:
        return self.model.predict(self.scaler.transform(X))


MODELS = {
    "replay + GMED": lambda seed: GMEDClassifier(random_state=seed),
    "replay": lambda seed: GMEDClassifier(alpha=0.0, random_state=seed),
    "fine-tuning": lambda seed: GMEDClassifier(memory=0, random_state=seed),
    "SGDClassifier": ScaledSGD,
    "HoeffdingAdaptiveTree": lambda seed: HoeffdingAdaptiveTreeClassifier(seed=seed),
}


def score(model: Any, rows: Rows) -> dict[str, float]:
    """Accuracies in percent, and microseconds of each row."""
    tree = hasattr(model, "learn_one")
    classes = np.unique(rows.y).tolist() if isinstance(model, ScaledSGD) else None
    found = prequential(model, (rows.X, rows.y), batch_size=10, classes=classes)
    result = {
        "prequential": 100 * found.accuracy,
        "last fifth": 100 * float(np.mean([share for _, share in found.curve[-max(1, len(found.curve) // 5) :]])),
        "microseconds": 1e6 * sum(found.seconds.values()) / found.examples,
    }
    if rows.X_test is not None:
        guesses = (
            [model.predict_one(dict(enumerate(row))) for row in rows.X_test.tolist()]
            if tree
            else model.predict(rows.X_test)
        )
        result["test"] = 100 * float(np.mean([a == b for a, b in zip(guesses, rows.y_test, strict=True)]))
    return result


def table(results: dict[str, Any]) -> str:
    """Means and 95 % intervals, a row for each stream."""
    lines = ["| stream | measure | " + " | ".join(MODELS) + " |", "|---|---|" + "---:|" * len(MODELS)]
    for stream, by_model in results.items():
        measures = (
            ["test", "prequential"] if "test" in next(iter(next(iter(by_model.values())).values())) else ["prequential"]
        )
        for measure in measures:
            cells = []
            for model in MODELS:
                values = [run[measure] for run in by_model.get(model, {}).values()]
                mean, half = interval(values) if len(values) > 1 else (values[0], 0.0) if values else (np.nan, 0.0)
                cells.append(f"{mean:.1f} ± {half:.1f}" if values else "-")
            lines.append(f"| {stream} | {measure} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--streams", nargs="*", default=list(STREAMS), choices=list(STREAMS))
    options.add_argument("--out", type=Path, default=HERE / "results")
    chosen = options.parse_args()
    torch.set_num_threads(1)

    file = chosen.out / "drift.json"
    results = json.loads(file.read_text()) if file.exists() else {}
    for seed in range(chosen.seeds):
        for stream in chosen.streams:
            rows = STREAMS[stream](seed)
            for name, make in MODELS.items():
                runs = results.setdefault(stream, {}).setdefault(name, {})
                if name == "HoeffdingAdaptiveTree" and rows.X.shape[1] > 100:
                    continue  # some hours
                if str(seed) not in runs:
                    runs[str(seed)] = {key: round(value, 3) for key, value in score(make(seed), rows).items()}
                    file.write_text(json.dumps(results, indent=1) + "\n")
        print(f"seed {seed}", flush=True)
    shown = {stream: {m: r for m, r in results[stream].items() if r} for stream in STREAMS if stream in results}
    text = f"Accuracy in %, mean and 95 % interval over {chosen.seeds} seeds.\n\n{table(shown)}"
    (chosen.out / "drift.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
