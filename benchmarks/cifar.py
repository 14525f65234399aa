"""The CIFAR columns of the paper: every method, 20 seeds, beside the published numbers.

    GMED_DATA=FOLDER python benchmarks/cifar.py [--parts first ...] [--seeds 20] [--workers 8] [--device cuda]

Finished runs are kept in the store, so it can be stopped and started again. Writes cifar.json (every run, in the
documented form of ``gmed run --json``) and cifar.md (the tables) to benchmarks/results.
"""

from __future__ import annotations

from kept import main

COLUMNS = ("split-cifar10", "split-cifar100")
MAIN = ["finetune", "er", "mir", "iid-online", "er+gmed", "mir+gmed", "er-aug", "er-aug+gmed", "er-t", "er-t+gmed"]
OTHERS = ["er+random-edit", "er+adv-edit", "agem", "gss", "bgd", "gem", "gem+gmed", "hal"]
PLAN = {
    "first": {"split-cifar10": ["er", "mir", "iid-online", "finetune"], "split-cifar100": ["er"]},
    "main": dict.fromkeys(COLUMNS, MAIN),
    "others": dict.fromkeys(COLUMNS, OTHERS),
}

if __name__ == "__main__":
    main("cifar", __doc__, PLAN, device="cuda")
