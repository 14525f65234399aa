"""Choose hyper-parameters the paper does not give, by its own protocol.

    python benchmarks/tune.py [--seeds 10] [--workers 2] [--benchmarks split-mnist ...] [--families er-aug ...]
                              [--device cuda] [--out FOLDER]

5 % of the training examples of the first three tasks are held out; a candidate is trained on the rest of those three
tasks and scored by its mean accuracy over them on what was held out. No later task and no test example is seen.
The best mean over seeds wins. (``gmed tune`` does the same for the edits' own grids; here are the augmentations and the
variants as well.) Runs are kept in the store, so it can be stopped and started again; candidates whose means
results/tuning.json has already are not run anew.
"""

from __future__ import annotations

import argparse
import json
from itertools import product
from pathlib import Path

import gmed
from gmed.engine import get_benchmark, resolve
from gmed.engine.benchmarks import tuning_name
from gmed.results.tuning import GRIDS

ALPHAS, BETAS = GRIDS["gmed"]["alpha"], GRIDS["gmed"]["beta"]
CHOICES = tuple(product((0.05, 0.1, 0.5, 1.0, 5.0, 10.0), (0.0, 0.01)))
FAMILIES = {
    "er-aug": [
        f"er-aug(rotation={r},scaling={s},crop={c})"
        for r, s, c in product((0, 10, 20), (0, 0.1, 0.2), (0, 1, 2))
        if r or s or c
    ],
    "er-aug of photographs": [
        f"er-aug(rotation={r},scaling={s},crop={c},flip=true)"
        for r, s, c in ((0, 0, 2), (0, 0, 4), (0, 0.2, 4), (10, 0, 4), (10, 0.2, 4), (20, 0.2, 4), (15, 0.3, 6))
    ],
    "er+random-edit": [f"er+random-edit(stride={s})" for s in (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)],
    "er+adv-edit": [f"er+adv-edit(stride={s})" for s in (0.0003, 0.001, 0.003, 0.01, 0.03)],
    "er+optimal-edit": [f"er+optimal-edit(alpha={a})" for a in (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)],
    "er+gmed(steps=3)": [f"er+gmed(steps=3,alpha={a})" for a in ALPHAS],
    "er+gmed(steps=5)": [f"er+gmed(steps=5,alpha={a})" for a in ALPHAS],
    "er+gmed(write_back=false)": [f"er+gmed(write_back=false,alpha={a},beta={b})" for a, b in product(ALPHAS, BETAS)],
    "comp-cl": [
        f"comp-cl(task_at_test=true,structure_steps={n},structure_lr={lr},freeze_old={keep})"
        for n, lr, keep in product((5, 20, 50), (0.001, 0.01, 0.1, 1.0), ("true", "false"))
    ],
    "er-t+gmed": [f"er-t+gmed(alpha={a},beta={b})" for a, b in CHOICES],
    "gss+gmed": [f"gss+gmed(alpha={a},beta={b})" for a, b in CHOICES],
}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--seeds", type=int, default=10)
    options.add_argument("--workers", type=int, default=None)
    options.add_argument("--benchmarks", nargs="+", default=["split-mnist", "rotated-mnist", "permuted-mnist"])
    options.add_argument("--families", nargs="+", default=[f for f in FAMILIES if "photographs" not in f])
    options.add_argument("--device", default="cpu")
    options.add_argument("--store", type=Path, default=Path(__file__).parent / "tuning.db")
    options.add_argument("--out", type=Path, default=Path(__file__).parent / "results")
    chosen = options.parse_args()

    file = chosen.out / "tuning.json"
    found = json.loads(file.read_text()) if file.exists() else {}
    for benchmark, family in product(chosen.benchmarks, chosen.families):
        made = get_benchmark(tuning_name(benchmark))
        means = found.setdefault(f"{benchmark} {family}", {})
        names = {candidate: resolve(made, candidate).name for candidate in FAMILIES[family] if candidate not in means}
        results = gmed.run(
            made.name,
            list(names.values()),
            seeds=chosen.seeds,
            workers=chosen.workers,
            device=chosen.device,
            store=chosen.store,
        )
        for candidate, name in names.items():  # 0 where it diverged
            means[candidate] = round(100 * sum(results.accuracies(made.name, name).values()) / chosen.seeds, 3)
        best = max(means, key=lambda candidate: means[candidate])
        print(f"{benchmark:15} {family:26} {best}  {means[best]:.2f}", flush=True)
        chosen.out.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
