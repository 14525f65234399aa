"""Networks that grow against replay with as much memory (Table 2 of the paper), on both readings of its MNIST column.

    python benchmarks/expansion.py [--parts replay tasks-apart cn-dpm] [--seeds 10] [--workers N] [--device cpu]
    GMED_DATA=FOLDER python benchmarks/expansion.py --parts cifar10 cifar100 --device cuda

Finished runs are kept in the store, so it can be stopped and started again. Writes expansion.json.xz (every run, in the
documented form of ``gmed run --json``) and expansion.md (the tables) to benchmarks/results.
"""

from __future__ import annotations

from kept import main

TASKS_APART = ["prog-nn", "prog-nn(task_at_test=true)", "comp-cl", "comp-cl(task_at_test=true)"]
MNIST = ("split-mnist-full", "split-mnist")


def replay(memory: int) -> list[str]:
    """ER and ER+GMED with so many slots: on the usual network, and on the one that CN-DPM ends with."""
    return [f"{base}(memory={memory}){edit}" for base in ("er-expanded", "er") for edit in ("", "+gmed")]


PLAN = {
    "replay": dict.fromkeys(MNIST, replay(2581)),
    "tasks-apart": dict.fromkeys(MNIST, TASKS_APART),
    "cn-dpm": {benchmark: ["cn-dpm"] for benchmark in MNIST},
    "cifar10": {"split-cifar10": [*replay(6024), *TASKS_APART, "cn-dpm"]},
    "cifar100": {"split-cifar100": [*replay(21295), *TASKS_APART, "cn-dpm"]},
}

if __name__ == "__main__":
    main("expansion", __doc__, PLAN, device="cpu")
