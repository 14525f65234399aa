"""Interrupts learners and the classifier at random moments and counts those that are torn by it.

    python benchmarks/interrupts.py [--interrupts 2000] [--seed 0]

A timer sends SIGALRM, whose handler raises KeyboardInterrupt as Ctrl-C does, after a random time within a step. What
is there then must be, bit for bit, what was there before the step or what is there after it, and a step that was
interrupted before it took effect must come out as ever when it is made again. Prints a line for each method.
"""

from __future__ import annotations

import argparse
import copy
import random
import signal
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gmed.editing import GMED
from gmed.learners import BGD, ER, GEM, HAL, MIR, FineTune
from gmed.memory import Reservoir, TaskRing
from gmed.sklearn import GMEDClassifier

State = dict[str, Any]


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 30), nn.BatchNorm1d(30), nn.ReLU(), nn.Linear(30, 4))


LEARNERS: dict[str, Callable[[], Any]] = {
    "finetune": lambda: FineTune(network(), lr=0.1),
    "er": lambda: ER(network(), lr=0.1, memory=Reservoir(12)),
    "er+gmed": lambda: ER(network(), lr=0.1, memory=Reservoir(12), editing=GMED(alpha=1.0, beta=0.01)),
    "er, three updates": lambda: ER(network(), lr=0.1, memory=Reservoir(12), updates_per_batch=3),
    "mir": lambda: MIR(network(), lr=0.1, memory=Reservoir(12)),
    "gem": lambda: GEM(network(), lr=0.1, memory=TaskRing(12, tasks=2)),
    "hal": lambda: HAL(network(), lr=0.1, memory=Reservoir(12), anchor_weight=0.1),
    "bgd": lambda: BGD(network(), eta=1.0, samples=2),
}
CLASSIFIERS: dict[str, dict[str, Any]] = {
    "classifier": {},
    "classifier, one update": {"updates_per_batch": 1},
    "classifier without memory": {"memory": 0, "updates_per_batch": 1},
}


def batch(seed: int) -> tuple[Tensor, Tensor]:
    rng = torch.Generator().manual_seed(seed)
    return torch.rand(10, 6, generator=rng), torch.randint(4, (10,), generator=rng)


def observe(learner: Any, seed: int) -> None:
    learner.observe(*batch(seed), *([0] if learner.task_aware else []))


def partial_fit(model: GMEDClassifier, seed: int) -> None:
    """Rows whose classes are as many as have been met, now and then more; a step, or several."""
    rng = np.random.default_rng(seed)
    count = 10 if seed % 3 else 25
    model.partial_fit(rng.normal(size=(count, 6)) * 10, rng.integers(3 + seed // 20, size=count))


def classifier_state(model: GMEDClassifier) -> State:
    if not model.__sklearn_is_fitted__():
        return {"features": getattr(model, "n_features_in_", None)}
    tensors, texts = model._classifier.state()
    return tensors | texts | {"features": model.n_features_in_}


def same(state: State, other: State) -> bool:
    return state.keys() == other.keys() and all(
        torch.equal(value, other[name]) if isinstance(value, Tensor) else value == other[name]
        for name, value in state.items()
    )


def interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt


def trial(
    make: Callable[[], Any], step: Callable[[Any, int], None], state: Callable[[Any], State], count: int, rng: Any
) -> tuple[int, int, int]:
    """Interrupts that arrived, those before the step took effect, and those that tore something."""
    model, arrived, undone, torn, seed = make(), 0, 0, 0, 0
    for seed in range(3):
        step(model, seed)
    before = state(model)
    while arrived < count:
        seed += 1
        expected = copy.deepcopy(model)
        start = time.perf_counter()
        step(expected, seed)
        taken, after, interrupted = time.perf_counter() - start, state(expected), False
        try:
            signal.setitimer(signal.ITIMER_REAL, max(1e-6, rng.uniform(0, taken)))
            step(model, seed)
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            interrupted = True
        found = state(model)
        if interrupted:
            arrived += 1
            if same(found, before) and not same(found, after):
                undone += 1
                step(model, seed)
                found = state(model)
        torn += not same(found, after)
        model, before = expected, after
        if seed > 100:
            model, seed = make(), 0
            before = state(model)
    return arrived, undone, torn


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--interrupts", type=int, default=2000, help="in all")
    options.add_argument("--seed", type=int, default=0)
    chosen = options.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, interrupt)

    trials: dict[str, tuple[Any, ...]] = {
        name: (make, observe, lambda learner: learner.state_dict()) for name, make in LEARNERS.items()
    }
    for name, settings in CLASSIFIERS.items():
        given = {"memory": 30, "hidden": 16, "random_state": 0, **settings}
        trials[name] = (lambda given=given: GMEDClassifier(**given), partial_fit, classifier_state)
    rng = random.Random(chosen.seed)
    share, total = -(-chosen.interrupts // len(trials)), np.zeros(3, dtype=int)
    print(f"{'':26} interrupts  before the step  torn")
    for name, parts in trials.items():
        found = trial(*parts, count=share, rng=rng)
        total += found
        print(f"{name:26} {found[0]:10} {found[1]:16} {found[2]:5}", flush=True)
    print(f"{'in all':26} {total[0]:10} {total[1]:16} {total[2]:5}")
    raise SystemExit(int(total[2] > 0))


if __name__ == "__main__":
    main()
