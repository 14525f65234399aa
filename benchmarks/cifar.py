"""The CIFAR columns of the paper, 20 seeds, beside the published numbers.

    GMED_DATA=FOLDER python benchmarks/cifar.py [--parts main ...] [--seeds 20] [--workers 8] [--device cuda]

Finished runs are kept in the store, so it can be stopped and started again. Writes cifar.json (every run, in the
documented form of ``gmed run --json``) and cifar.md (the tables) to benchmarks/results.
"""

from __future__ import annotations

from gmed.paper.artifacts.accuracy_figures import grid
from kept import main

COLUMNS = ("split-cifar10", "split-cifar100")
MAIN = ["er", "er+gmed", "mir", "mir+gmed", "er-aug", "er-aug+gmed"]
BOUNDS = ["finetune", "iid-online"]
OTHERS = ["er-t", "er-t+gmed", "agem", "gss", "bgd", "gem", "gem+gmed", "hal"]
ABLATION = [
    "er+adv-edit",
    "er+random-edit",
    "mir+adv-edit",
    "mir+random-edit",
    "mir(extra_batches=1)",
    "mir(extra_batches=2)",
]
VARIANTS = [
    *(f"{base}+gmed(gamma={gamma})" for base in ("er", "mir") for gamma in (0.9, 0.99)),
    "er+gmed(write_back=false)",
]
STEPS = ["er+gmed(steps=3)", "er+gmed(steps=5)"]


def sizes(*slots: int) -> list[str]:
    return [f"{base}(memory={size}){edit}" for base in ("er", "mir") for size in slots for edit in ("", "+gmed")]


PLAN = {
    "main": dict.fromkeys(COLUMNS, MAIN),
    "bounds": dict.fromkeys(COLUMNS, BOUNDS),
    "fuzzy": dict.fromkeys((f"{column}-fuzzy" for column in COLUMNS), MAIN),
    "ablation": {"split-cifar10": ABLATION},
    "variants": {
        "split-cifar10": [*VARIANTS, *(f"er+gmed(extra={n})" for n in (3, 5, 10, 50)), *STEPS, "er+optimal-edit"],
        "split-cifar100": VARIANTS,
    },
    "sizes": {"split-cifar10": sizes(100, 200), "split-cifar100": sizes(2000, 5000)},
    "others": dict.fromkeys(COLUMNS, OTHERS),
    "sensitivity": {"split-cifar10": list(dict.fromkeys(method for _, _, method in grid("split-cifar10")))},
}

if __name__ == "__main__":
    main("cifar", __doc__, PLAN, device="cuda")
