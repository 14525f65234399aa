"""Choice of hyper-parameters as in the paper: on held-out training examples of the first three tasks."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import product
from reprlib import repr as short
from typing import Any, NamedTuple

import numpy as np

from gmed.engine import EDITS, RunSpec, get_benchmark
from gmed.engine.benchmarks import BenchmarkId, tuning_name
from gmed.engine.grammar import Component, format_value, parse_component
from gmed.engine.methods import entry_of, parse, read_method
from gmed.errors import DivergedError, UsageError, check_int, unknown
from gmed.results.formatting import to_cli_args
from gmed.results.stats import Gain, paired_gain
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
"""Methods that use the values chosen for another one unless they were tuned themselves, as in the paper."""


Grid = Mapping[str, Sequence[Any]]
"""The values to try of each parameter."""

MAX_CANDIDATES = 10_000


def with_memory(method: str, memory: int | None) -> str:
    """Return a method with this memory size, if it has a memory and does not set its size.

    >>> with_memory("er+gmed", 200), with_memory("er(memory=50)+gmed", 200), with_memory("er+gmed", None)
    ('er(memory=200)+gmed', 'er(memory=50)+gmed', 'er+gmed')
    """
    base, *others = parse(method)
    if memory is not None and "memory" in entry_of(base.name).parameters():
        base = Component(base.name, {"memory": memory, **base.parameters})
    return "+".join(map(str, (base, *others)))


def read_grid(method: str, grid: Mapping[str, str | Sequence[Any]] | None) -> dict[str, tuple[Any, ...]]:
    """Return the values to try for each parameter: the given ones, or by default those of the paper.

    Parameters
    ----------
    grid
        Values by the name of a parameter of any component (``"alpha"``, ``"gmed.alpha"``): a list, the same list as
        text, ``"0.1,1,10"``, or a range and the number of its values, ``"0.1:10:3"``. These are evenly spaced on a
        logarithmic scale, or on a linear one from 0. Other parameters keep their values.

    Examples
    --------
    >>> read_grid("er+gmed", {"alpha": "0.1:10:3", "memory": "100:500:3", "beta": [0.0, 0.1]})
    {'alpha': (0.1, 1.0, 10.0), 'memory': (100, 224, 500), 'beta': (0.0, 0.1)}
    >>> read_grid("er+random-edit", None)
    {'stride': (0.01, 0.03, 0.1, 0.3, 1.0, 3.0)}
    """
    parts = parse(method)
    if grid is None:
        edit = parts[-1]
        if edit.name not in GRIDS:
            raise UsageError(
                f"{method}: only methods with an edit ({', '.join(GRIDS)}) have a default grid, such as er+gmed; "
                "for others give one, such as --grid lr=0.01,0.1"
            )
        grid = {name: values for name, values in GRIDS[edit.name].items() if name not in edit.parameters}
    if not isinstance(grid, Mapping):
        raise UsageError(f"a grid is a dictionary of values by parameter, not {short(grid)}")
    if not grid:
        raise UsageError(f"{method}: nothing to tune: all parameters of the grid are already set")
    read = {name: _read_values(parts, name, values) for name, values in grid.items()}
    if (number := math.prod(map(len, read.values()))) > MAX_CANDIDATES:
        raise UsageError(f"{method}: a grid has at most {MAX_CANDIDATES:,} candidates, not {number:,}")
    return read


def _read_values(parts: Sequence[Component], name: str, values: str | Sequence[Any]) -> tuple[Any, ...]:
    part, parameter = _owner(parts, name)
    if parameter in parts[part].parameters:
        raise UsageError(f"{parts[part]}: {parameter} is already set, so it cannot be tuned")
    found: list[Any]
    if isinstance(values, str) and ":" in values:
        is_int = entry_of(parts[part].name).parameters()[parameter].annotation is int
        found = [round(value) if is_int else float(f"{value:.3g}") for value in _read_range(name, values)]
    elif isinstance(values, str):
        found = parse_component(f"{parameter}(values=[{values}])", f"{name}={values}").parameters["values"]
    else:
        found = list(values) if isinstance(values, Iterable) else []
    if not found:
        raise UsageError(f"{name}: {short(values)} contains no values; write them as {EXAMPLES}")
    try:
        return tuple(dict.fromkeys(tuple(value) if isinstance(value, list) else value for value in found))
    except TypeError:
        raise UsageError(f"{name}: values must be numbers, strings or lists of numbers, not {short(values)}") from None


EXAMPLES = "alpha=0.1,1,10, or as LOW:HIGH:COUNT, alpha=0.1:10:3"


def _read_range(name: str, text: str) -> list[float]:
    try:
        low, high, count = text.split(":")
        ends, number = (float(low), float(high)), check_int(name, int(count), 2, MAX_CANDIDATES)
        if not (math.isfinite(ends[0]) and math.isfinite(ends[1]) and ends[0] < ends[1]):
            raise ValueError
    except ValueError:
        raise UsageError(f"cannot read {name}={text}; write values as {EXAMPLES}") from None
    spaced = np.geomspace if ends[0] > 0 else np.linspace
    return [float(value) for value in spaced(*ends, number)]


def _owner(parts: Sequence[Component], name: str) -> tuple[int, str]:
    """Return the index of the component that has a parameter, and its name there."""
    component, _, parameter = name.rpartition(".")
    named = [(index, part.name) for index, part in enumerate(parts) if component in ("", part.name)]
    owners = [(index, part) for index, part in named if parameter in entry_of(part).parameters()]
    if len(owners) == 1:
        return owners[0][0], parameter
    method = "+".join(part.name for part in parts)
    if owners:
        raise UsageError(f"{name} is ambiguous: write {' or '.join(f'{part}.{name}' for _, part in owners)}")
    raise unknown(f"parameter of {method}:", name, {p for part in parts for p in entry_of(part.name).parameters()})


def grid_options(grid: Grid) -> list[str]:
    """Return the options of ``gmed tune`` that specify a grid.

    >>> grid_options({"alpha": (0.1, 1.0), "write_back": (True, False)})
    ['--grid', 'alpha=0.1,1.0', '--grid', 'write_back=true,false']
    """
    lists = {name: ",".join(map(format_value, values)) for name, values in grid.items()}
    return [word for name, values in lists.items() for word in ("--grid", f"{name}={values}")]


def candidates(benchmark: str, method: str, grid: Grid | None = None) -> dict[tuple[Any, ...], str]:
    """Return every candidate of a method: the point of the grid, and its name on the tuning benchmark.

    >>> names = candidates("split-mnist", "er+gmed")
    >>> len(names), names[0.5, 0.1]
    (45, 'er+gmed(alpha=0.5,beta=0.1)')
    >>> candidates("split-mnist", "er+gmed", {"lr": (0.01, 0.1)})
    {(0.01,): 'er(lr=0.01)+gmed', (0.1,): 'er(lr=0.1)+gmed'}
    """
    if BenchmarkId.parse(benchmark).model is not None:
        raise UsageError(
            f"{method}: tuning does not support custom models; set the values, as in er+gmed(alpha=1.0,beta=0.01)"
        )
    tuning_benchmark, parts = get_benchmark(tuning_name(benchmark)), parse(method)
    grid = read_grid(method, None) if grid is None else grid
    owners = [_owner(parts, name) for name in grid]
    names = {}
    for point in product(*grid.values()):
        settings = [dict(part.parameters) for part in parts]
        for (part, parameter), value in zip(owners, point, strict=True):
            settings[part][parameter] = value
        text = "+".join(str(Component(part.name, values)) for part, values in zip(parts, settings, strict=True))
        names[point] = read_method(tuning_benchmark, text).name
    return names


def baselines(benchmark: str, method: str, grid: Grid) -> list[str]:
    """Return the baselines: the method without its edit over the grid, or the method as given.

    >>> baselines("split-mnist", "er+gmed", {"alpha": (0.1, 1.0), "lr": (0.01, 0.1)})
    ['er(lr=0.01)', 'er(lr=0.1)']
    >>> baselines("split-mnist", "er", {"lr": (0.01, 0.1)})
    ['er']
    """
    *others, last = parse(method)
    if last.name not in EDITS:
        return list(candidates(benchmark, method, {}).values())
    base = "+".join(map(str, others))
    base_grid = {name: values for name, values in grid.items() if _owner([*others, last], name)[0] < len(others)}
    return list(candidates(benchmark, base, base_grid).values())


def record_grid(store: Store, benchmark: str, method: str, grid: Grid) -> None:
    """Store the grid over which a method was tuned."""
    store.put_probe(*_record_of(benchmark, method), {name: list(values) for name, values in grid.items()})


def recorded_grid(store: Store, benchmark: str, method: str) -> dict[str, tuple[Any, ...]]:
    """Return the grid over which a method was last tuned, by default that of the paper."""
    recorded = store.get_probe(*_record_of(benchmark, method))
    with suppress(UsageError):  # a store may come from anywhere
        return read_grid(method, recorded)
    return read_grid(method, None)


def _record_of(benchmark: str, method: str) -> tuple[RunSpec, str]:
    """Return where a grid is stored: with a run of the base, as an edit may have no value for a parameter."""
    base, *others = parse(method)
    return RunSpec.parse(tuning_name(benchmark), str(base), 0), f"grid of {'+'.join(map(str, (base, *others)))}"


class Scores(NamedTuple):
    """The mean score of every candidate, the number of seeds, and the parameters."""

    means: dict[tuple[Any, ...], float]
    seeds: int
    parameters: tuple[str, ...]


def scores(store: Store, benchmark: str, method: str, grid: Grid | None = None) -> Scores:
    """Return the held-out accuracy of every candidate, in percent, over their common seeds; 0 where it diverged.

    Raises
    ------
    UsageError
        If one of them has not been run.
    """
    grid = recorded_grid(store, benchmark, method) if grid is None else grid
    names = candidates(benchmark, method, grid)
    by_seed = held_out(store, benchmark, names.values())
    seeds = common_seeds(by_seed.values())
    if not seeds:
        command = shlex.join(["gmed", "tune", *to_cli_args(benchmark, method)])
        raise UsageError(f"{method} has not been tuned on {benchmark}: {command}")
    means = {point: mean_score(by_seed[name], seeds) for point, name in names.items()}
    return Scores(means, len(seeds), tuple(grid))


def held_out(store: Store, benchmark: str, names: Iterable[str]) -> dict[str, dict[int, float]]:
    """Return the held-out accuracy of methods by seed, in percent; 0 where they diverged."""
    accuracies: dict[str, dict[int, float]] = {name: {} for name in names}
    for run in store.runs(tuning_name(benchmark)):
        if run.method in accuracies:
            accuracies[run.method][run.seed] = 100 * run.final_accuracy
    for failure in store.failures(tuning_name(benchmark)):
        if failure.method in accuracies and failure.error.startswith(DivergedError.__name__):
            accuracies[failure.method].setdefault(failure.seed, 0.0)
    return accuracies


def common_seeds(by_seed: Iterable[Mapping[int, float]]) -> list[int]:
    """Return the seeds that all methods have."""
    return sorted(set.intersection(*map(set, by_seed)))


def mean_score(by_seed: Mapping[int, float], seeds: Iterable[int]) -> float:
    """Return the mean score of a candidate at some seeds."""
    return _mean([by_seed[seed] for seed in seeds])


def gain_of_tuning(
    tried: Sequence[Mapping[int, float]], plain: Sequence[Mapping[int, float]], seeds: Sequence[int]
) -> Gain | None:
    """Return the gain of the best candidate over the best baseline, each chosen at the other seeds.

    At the seeds it was chosen on, the best of many candidates looks better than it is. ``None`` for one seed.

    >>> gain_of_tuning([{0: 8.0, 1: 5.0}, {0: 5.0, 1: 9.0}], [{0: 6.0, 1: 6.0}], [0, 1]).mean
    -1.0
    """
    differences = []
    for seed in seeds if len(seeds) > 1 else ():
        others = [other for other in seeds if other != seed]
        tuned, base = (max(scores, key=lambda one: mean_score(one, others)) for scores in (tried, plain))
        differences.append(tuned[seed] - base[seed])
    return paired_gain(differences, [0.0] * len(differences)) if differences else None


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
    tuned = method
    try:
        means = scores(store, benchmark, method).means
    except UsageError:
        base, *edit = parse(method)
        if not edit or str(base) not in INHERITS_FROM:
            raise
        tuned = method.replace(str(base), INHERITS_FROM[str(base)], 1)
        try:
            means = scores(store, benchmark, tuned).means
        except UsageError as error:
            raise UsageError(f"{method} was not tuned and would use the values chosen for {tuned}; {error}") from None
    names = candidates(benchmark, method, recorded_grid(store, benchmark, tuned))
    return names[max(means, key=lambda point: means[point])]
