"""Choice of hyper-parameters as in the paper: on held-out training examples of the first three tasks."""

from __future__ import annotations

import shlex
from itertools import product
from typing import NamedTuple

import numpy as np

from gmed.engine import get_benchmark
from gmed.engine.benchmark_id import BenchmarkId, tuning_name
from gmed.engine.methods import parse, read_method
from gmed.errors import DivergedError, UsageError
from gmed.results.formatting import to_cli_args
from gmed.results.store import Store

TUNED_SUFFIX = "(tuned)"
"""Suffix of a method that runs with the chosen hyper-parameters."""

GRIDS: dict[str, dict[str, tuple[float, ...]]] = {
    "gmed": {
        "alpha": (0.01, 0.03, 0.05, 0.07, 0.1, 0.5, 1.0, 5.0, 10.0),
        "beta": (0.0, 0.001, 0.01, 0.1, 1.0),
    },
    "random-edit": {"stride": (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)},
    "adv-edit": {"stride": (0.0003, 0.001, 0.003, 0.01, 0.03)},
    "optimal-edit": {"alpha": (0.0003, 0.001, 0.003, 0.01, 0.03, 0.1, 0.3)},
}
"""The grid of each edit; GMED's is the paper's, the others are not from the paper."""

INHERITS_FROM = {"mir": "er", "gem": "er"}
"""Methods that use the choice for another one unless they were tuned themselves, as in the paper."""


def candidates(benchmark: str, method: str) -> dict[tuple[float, ...], str]:
    """Return every candidate of a method: the point of the grid, and its name on the tuning benchmark.

    >>> names = candidates("split-mnist", "er+gmed")
    >>> len(names), names[0.5, 0.1]
    (45, 'er+gmed(alpha=0.5,beta=0.1)')
    """
    if BenchmarkId.parse(benchmark).model is not None:
        raise UsageError(
            f"{method}: tuning does not support custom models; set the values, as in er+gmed(alpha=1.0,beta=0.01)"
        )
    tuning_benchmark = get_benchmark(tuning_name(benchmark))
    base, *edit = parse(method)
    if len(edit) != 1 or edit[0].name not in GRIDS:
        raise UsageError(f"{method}: only methods with an edit can be tuned ({', '.join(GRIDS)}), such as er+gmed")
    grid = {name: values for name, values in GRIDS[edit[0].name].items() if name not in edit[0].parameters}
    if not grid:
        raise UsageError(f"{method}: nothing can be tuned, as all tunable parameters are set")
    names = {}
    for point in product(*grid.values()):
        values = ",".join(f"{name}={value}" for name, value in zip(grid, point, strict=True))
        fixed = ",".join(f"{name}={str(value).lower()}" for name, value in edit[0].parameters.items())
        names[point] = read_method(
            tuning_benchmark, f"{base}+{edit[0].name}({','.join(filter(None, (fixed, values)))})"
        ).name
    return names


class Scores(NamedTuple):
    """The mean score of every candidate, and the number of seeds."""

    means: dict[tuple[float, ...], float]
    seeds: int


def scores(store: Store, benchmark: str, method: str) -> Scores:
    """Return the held-out accuracy of every candidate, in percent, over their common seeds; 0 where it diverged.

    Raises
    ------
    UsageError
        If one of them has not been run.
    """
    names = candidates(benchmark, method)
    accuracies: dict[str, dict[int, float]] = {name: {} for name in names.values()}
    for run in store.runs(tuning_name(benchmark)):
        if run.method in accuracies:
            accuracies[run.method][run.seed] = 100 * run.final_accuracy
    for failure in store.failures(tuning_name(benchmark)):
        if failure.method in accuracies and failure.error.startswith(DivergedError.__name__):
            accuracies[failure.method].setdefault(failure.seed, 0.0)
    seeds = set.intersection(*(set(by_seed) for by_seed in accuracies.values()))
    if not seeds:
        command = shlex.join(["gmed", "tune", *to_cli_args(benchmark, method)])
        raise UsageError(f"{method} has not been tuned on {benchmark}: {command}")
    means = {point: _mean([accuracies[name][seed] for seed in seeds]) for point, name in names.items()}
    return Scores(means, len(seeds))


def _mean(percent: list[float]) -> float:
    """Return the mean without the last bits, which depend on the order of summation: ties must stay ties.

    >>> from itertools import permutations
    >>> scores = [250 / 3, 254 / 3, 86.0, 256 / 3, 256 / 3]
    >>> len({float(np.mean(order)) for order in permutations(scores)}), len({_mean([*o]) for o in permutations(scores)})
    (2, 1)
    """
    return round(float(np.mean(percent)), 9)


def best_candidate(store: Store, benchmark: str, method: str) -> str:
    """Return the best candidate of a method, or of the method it shares hyper-parameters with if it was not tuned.

    Raises
    ------
    UsageError
        If neither has been tuned.
    """
    names = candidates(benchmark, method)
    try:
        means = scores(store, benchmark, method).means
    except UsageError:
        base, *_ = parse(method)
        if str(base) not in INHERITS_FROM:
            raise
        other = method.replace(str(base), INHERITS_FROM[str(base)], 1)
        try:
            means = scores(store, benchmark, other).means
        except UsageError as error:
            raise UsageError(f"{method} was not tuned and uses the choice for {other}; {error}") from None
    return names[max(means, key=lambda point: means[point])]
