"""What the estimator's defaults were chosen by: each of its settings changed alone, on streams of several kinds.

    python benchmarks/estimator_defaults.py [--seeds 5]

The score of a stream is the accuracy on its test set at the end, where it has one, else the prequential accuracy. Seeds
are from 100 on, so that those of benchmarks/drift.py have had no part in the choice; they had one in the search before
it, so that what is found here is not independent of the defaults. Differences from the defaults are
paired by seed. Results so far are kept, and not computed again.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from gmed.evaluate import prequential
from gmed.sklearn import GMEDClassifier
from streams import STREAMS, interval

HERE = Path(__file__).parent
CHOSEN = ["digits by class", "image segments by class", "MNIST by class", "phishing"]
CHANGES = [
    {},
    {"alpha": 0.0},
    {"alpha": 10.0},
    {"learning_rate": 0.05},
    {"learning_rate": 0.2},
    {"updates_per_batch": 1},
    {"replay_size": 32},
]


def score(stream: str, seed: int, change: dict[str, object]) -> float:
    """Percent."""
    rows, model = STREAMS[stream](seed), GMEDClassifier(random_state=seed, **change)
    try:
        found = prequential(model, (rows.X, rows.y), batch_size=10).accuracy
    except ArithmeticError:  # it diverged
        return 0.0
    return 100 * (found if rows.X_test is None else model.score(rows.X_test, rows.y_test))


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--out", type=Path, default=HERE / "results")
    chosen = options.parse_args()
    torch.set_num_threads(1)

    file = chosen.out / "estimator_defaults.json"
    results: dict[str, dict[str, dict[str, float]]] = json.loads(file.read_text()) if file.exists() else {}
    for seed in map(str, range(100, 100 + chosen.seeds)):
        for change in CHANGES:
            name = ", ".join(f"{key}={value}" for key, value in change.items()) or "defaults"
            for stream in CHOSEN:
                runs = results.setdefault(name, {}).setdefault(stream, {})
                if seed not in runs:
                    runs[seed] = round(score(stream, int(seed), change), 3)
                    file.write_text(json.dumps(results, indent=1) + "\n")
        print(f"seed {seed}", flush=True)

    lines = ["| | " + " | ".join(CHOSEN) + " |", "|---|" + "---:|" * len(CHOSEN)]
    for name, by_stream in results.items():
        cells = []
        for stream in CHOSEN:
            ours = np.array(list(by_stream[stream].values()))
            if name != "defaults":
                ours = ours - np.array([results["defaults"][stream][seed] for seed in by_stream[stream]])
            mean, half = interval(ours)
            cells.append(f"{mean:.1f} ± {half:.1f}" if name == "defaults" else f"{mean:+.1f} ± {half:.1f}")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    text = "\n".join(lines) + "\n"
    (chosen.out / "estimator_defaults.md").write_text(text)
    print(text)


if __name__ == "__main__":
    main()
