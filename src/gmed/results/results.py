"""Results of runs as data: finished and failed runs, summary rows and the documented JSON form."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any, Final, Literal

import numpy as np

from gmed.deprecated import old_attributes, old_parameters
from gmed.engine import RunResult, RunSpec, get_benchmark, resolve
from gmed.errors import unknown
from gmed.io.records import GREATEST, Count, Measure, Range, encode, schema
from gmed.results.formatting import format_mean_std
from gmed.results.metrics import Metrics
from gmed.results.stats import Difference, Gain, difference, paired_gain

SCHEMA: Final = "gmed-results/1"

MIN_SEEDS_TO_JUDGE = 5
"""Minimum number of seeds to judge a difference from the published mean; fewer give an uncertain standard error."""


@dataclass(frozen=True)
class Failure:
    """A run that did not finish, and why."""

    benchmark: str
    method: str
    seed: Count
    error: str


@dataclass(frozen=True)
class Published:
    """A published number, in percent, with its table in the paper.

    Attributes
    ----------
    std
        Its standard deviation, if it is given.
    n
        Number of runs, 0 if it is not given.
    marks
        The paper's marks of significance.
    """

    mean: float
    std: float | None
    n: Count
    table: str
    marks: str = ""


@dataclass(frozen=True)
class Row:
    """One method on one benchmark over its seeds; accuracies in percent.

    Attributes
    ----------
    n
        Number of seeds.
    std
        Sample standard deviation; null for one seed.
    published
        The paper's number for the same method with the same settings, if there is one.
    difference
        How far the mean is from the published one.
    gain_over
        The same method without its edit, if that was run.
    gain
        The paired gain over it.
    """

    benchmark: str
    method: str
    n: Annotated[int, Range(1, GREATEST)]
    mean: float
    std: Measure
    published: Published | None
    difference: Difference | None
    gain_over: str | None
    gain: Gain | None

    @property
    def is_outside_2se(self) -> bool:
        """Whether the mean, of enough seeds to judge, is more than two standard errors from the published one."""
        return self.n >= MIN_SEEDS_TO_JUDGE and self.difference is not None and self.difference.within is False


@dataclass(frozen=True)
class ReportedRun(RunResult):
    """A run with its metrics.

    Attributes
    ----------
    metrics
        As defined in docs/results.md, accuracies in 0 .. 1; null if undefined or not measured.
    """

    metrics: Metrics | None = None


@dataclass(frozen=True)
class ResultsDocument:
    """The output of gmed run --json and gmed table --json, and the file of gmed export. Accuracies of
    runs are in 0 .. 1; the summary is in percent, like tables.

    Attributes
    ----------
    store
        The SQLite file that contains the runs.
    keys
        For each run, in the same order: a hash of its configuration, its seed and the versions of its components. Not
        in documents of older versions.
    """

    schema: Literal["gmed-results/1"]
    store: str | None
    runs: list[ReportedRun]
    failures: list[Failure]
    summary: list[Row]
    keys: list[str] | None = None


def document_schema() -> dict[str, Any]:
    """Return the JSON Schema of a results document, ``results.schema.json`` in this package."""
    return {"title": SCHEMA, **schema(ResultsDocument)}


@old_attributes(over="baseline")
@dataclass(repr=False)
class Results:
    """Finished and failed runs, as data.

    Attributes
    ----------
    baseline
        The baseline of all gains. If it does not set its memory size, a method is compared with the baseline of the
        same memory size, if that was run. By default each method is compared with itself without its last component
        (``er+gmed`` with ``er``) or, if that was not run, with its base alone.

    Examples
    --------
    >>> import gmed
    >>> results = gmed.run("split-mnist", ["finetune"], seeds=2, store=None, workers=0)
    >>> sorted(results.accuracies("split-mnist", "finetune"))
    [0, 1]
    >>> [(row.method, row.n) for row in results.rows()]
    [('finetune', 2)]
    """

    runs: list[RunResult] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    store: str | None = None
    published: Callable[[str, str], Published | None] = field(default=lambda benchmark, method: None, repr=False)
    baseline: str | None = None

    def __repr__(self) -> str:
        rows = (f"{r.benchmark} {r.method} {format_mean_std(r.mean, r.std)} (n = {r.n})" for r in self.rows())
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<Results: {len(self.runs)} runs{failed}; {'; '.join(rows)}>"

    def accuracies(self, benchmark: str, method: str) -> dict[int, float]:
        """Return the final accuracy by seed, in 0 .. 1."""
        return _accuracies(r for r in self.runs if (r.benchmark, r.method) == (benchmark, method))

    @old_parameters(over="baseline")
    def gain(self, benchmark: str, method: str, baseline: str) -> Gain | None:
        """Return the paired gain of one method over another at the seeds both have, in percentage points."""
        runs, base = self._runs_of(benchmark, method, baseline)
        return _gain(runs, base)

    @old_parameters(over="baseline")
    def differences(self, benchmark: str, method: str, baseline: str) -> dict[int, float]:
        """Return the differences of two methods by seed, at the seeds both have, in percentage points."""
        runs, base = self._runs_of(benchmark, method, baseline)
        return _differences(runs, base)

    def _runs_of(self, benchmark: str, *methods: str) -> list[list[RunResult]]:
        """Return the runs of methods, or raise the error that names one without results."""
        groups = self._groups()
        for name in methods:
            if (benchmark, name) not in groups:
                raise unknown(f"result on {benchmark}:", name, {m for b, m in groups if b == benchmark})
        return [groups[benchmark, name] for name in methods]

    def rows(self) -> list[Row]:
        """Return one row per benchmark and method, in order of first appearance."""
        groups = self._groups()
        return [self._row(groups, *names) for names in groups]

    def _groups(self) -> dict[tuple[str, str], list[RunResult]]:
        """Return the runs of every method on every benchmark."""
        groups: dict[tuple[str, str], list[RunResult]] = {}
        for run in self.runs:
            groups.setdefault((run.benchmark, run.method), []).append(run)
        return groups

    def _row(self, groups: Mapping[tuple[str, str], list[RunResult]], benchmark: str, method: str) -> Row:
        percent = [100 * a for a in _accuracies(groups[benchmark, method]).values()]
        published = self.published(benchmark, method)
        gap = difference(percent, published.mean, published.std, published.n) if published else None
        base = self._baseline_of(groups, benchmark, method)
        gain = _gain(groups[benchmark, method], groups[benchmark, base]) if base else None
        std = float(np.std(percent, ddof=1)) if len(percent) > 1 else math.nan
        return Row(
            benchmark=benchmark,
            method=method,
            n=len(percent),
            mean=float(np.mean(percent)),
            std=std,
            published=published,
            difference=gap,
            gain_over=base if gain else None,
            gain=gain,
        )

    def _baseline_of(self, groups: Collection[tuple[str, str]], benchmark: str, method: str) -> str | None:
        """Return the method with which a row is compared, if it has results."""
        row = RunSpec.parse(benchmark, method, 0).method
        if self.baseline is None:
            candidates = [row.baseline_name or method, method.partition("+")[0]]
        else:
            candidates = [resolve(get_benchmark(benchmark), self.baseline, m).name for m in (row.memory_size, None)]
            if row.memory_size is None and len(found := self._baselines(groups, benchmark)) == 1:
                candidates += found
        return next((name for name in candidates if name != method and (benchmark, name) in groups), None)

    def _baselines(self, groups: Collection[tuple[str, str]], benchmark: str) -> list[str]:
        """Return the methods with results that are the baseline, of any memory size if the baseline sets none."""
        baseline = self.baseline or ""
        methods = [RunSpec.parse(benchmark, name, 0).method for other, name in groups if other == benchmark]
        return [m.name for m in methods if resolve(get_benchmark(benchmark), baseline, m.memory_size).name == m.name]

    def to_dict(self) -> dict[str, Any]:
        """Return the documented machine-readable form; undefined numbers are ``None``.

        Its keys are those of the current versions, like the keys of new runs and of runs read from a store.
        """
        runs = [ReportedRun(**vars(run), metrics=Metrics.of(run)) for run in self.runs]
        keys = [RunSpec.parse(run.benchmark, run.method, run.seed).key for run in self.runs]
        return encode(ResultsDocument(SCHEMA, self.store, runs, self.failures, self.rows(), keys))


Results.__init__ = old_parameters(over="baseline")(Results.__init__)  # type: ignore[method-assign]


def _accuracies(runs: Iterable[RunResult]) -> dict[int, float]:
    """Return the final accuracy by seed."""
    return {run.seed: run.final_accuracy for run in sorted(runs, key=lambda run: run.seed)}


def _gain(runs: Sequence[RunResult], base: Sequence[RunResult]) -> Gain | None:
    """Return the paired gain of runs over others at the seeds that both have, in percentage points."""
    differences = _differences(runs, base)
    if not differences:
        return None
    gain = paired_gain(list(differences.values()), [0.0] * len(differences))
    platforms, base_platforms = _platforms(runs), _platforms(base)
    return replace(gain, mixed=sum(platforms[seed] != base_platforms[seed] for seed in differences))


def _differences(runs: Iterable[RunResult], base: Iterable[RunResult]) -> dict[int, float]:
    """Return the differences by seed, at the seeds that both have, in percentage points."""
    accuracies, base_accuracies = _accuracies(runs), _accuracies(base)
    return {
        seed: 100 * accuracies[seed] - 100 * base_accuracies[seed]
        for seed in sorted(accuracies.keys() & base_accuracies.keys())
    }


def _platforms(runs: Iterable[RunResult]) -> dict[int, tuple[str | None, str]]:
    """Return the device and the torch version of the run of every seed."""
    return {r.seed: (r.environment.get("device"), r.environment.get("torch", "").partition("+")[0]) for r in runs}


def sort_runs(runs: Iterable[RunResult], methods: list[str]) -> list[RunResult]:
    """Return runs in the order of the given methods, then by seed."""
    rank = {method: i for i, method in enumerate(methods)}
    return sorted(runs, key=lambda r: (rank.get(r.method, len(rank)), r.seed))
