from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from gmed.engine import RunResult, RunSpec, get_benchmark, resolve
from gmed.errors import unknown
from gmed.results.metrics import Metrics
from gmed.results.statistics import Difference, Gain, difference, paired_gain
from gmed.results.wording import spread

SCHEMA = "gmed-results/1"


@dataclass(frozen=True)
class Failure:
    """A run that did not finish, and why."""

    benchmark: str
    method: str
    seed: int
    error: str


@dataclass(frozen=True)
class Published:
    """A number of the paper, in percent, with where it stands.

    Attributes
    ----------
    std
        Its standard deviation, if it is given.
    n
        Over how many runs, 0 where that is not given.
    marks
        The paper's marks of significance.
    """

    mean: float
    std: float | None
    n: int
    table: str
    marks: str = ""


@dataclass(frozen=True)
class Row:
    """One method on one benchmark over its seeds; accuracies in percent."""

    benchmark: str
    method: str
    n: int
    mean: float
    std: float
    published: Published | None
    difference: Difference | None
    gain_over: str | None
    gain: Gain | None

    @property
    def missed(self) -> bool:
        """Whether at least five seeds lie further from the published mean than two standard errors."""
        return self.n >= 5 and self.difference is not None and self.difference.within is False


@dataclass(repr=False)
class Results:
    """Finished and failed runs, as data.

    Attributes
    ----------
    over
        The method that rows show every other one's gain over. By default each is compared with itself without its last
        part (``er+gmed`` with ``er``) or, where that was not run, without any.

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
    over: str | None = None

    def __repr__(self) -> str:
        rows = (f"{r.benchmark} {r.method} {spread(r.mean, r.std)} (n = {r.n})" for r in self.rows())
        failed = f", {len(self.failures)} failed" if self.failures else ""
        return f"<Results: {len(self.runs)} runs{failed}; {'; '.join(rows)}>"

    def accuracies(self, benchmark: str, method: str) -> dict[int, float]:
        """Final accuracy by seed, in 0 .. 1."""
        found = (r for r in self.runs if (r.benchmark, r.method) == (benchmark, method))
        return {r.seed: r.final_accuracy for r in sorted(found, key=lambda r: r.seed)}

    def gain(self, benchmark: str, method: str, over: str) -> Gain | None:
        """The paired gain of one method over another at the seeds both have, in percentage points."""
        differences = self.differences(benchmark, method, over)
        if not differences:
            return None
        gain = paired_gain(list(differences.values()), [0.0] * len(differences))
        here, there = self._surroundings(benchmark, method), self._surroundings(benchmark, over)
        return replace(gain, mixed=sum(here[s] != there[s] for s in differences))

    def differences(self, benchmark: str, method: str, over: str) -> dict[int, float]:
        """Return the differences of two methods by seed, at the seeds both have, in percentage points."""
        ours, base = self.accuracies(benchmark, method), self.accuracies(benchmark, over)
        for name, found in ((method, ours), (over, base)):
            if not found:
                raise unknown(
                    f"result on {benchmark}:", name, {r.method for r in self.runs if r.benchmark == benchmark}
                )
        return {seed: 100 * ours[seed] - 100 * base[seed] for seed in sorted(ours.keys() & base.keys())}

    def _surroundings(self, benchmark: str, method: str) -> dict[int, tuple[str | None, str | None]]:
        """The device and the version of torch that every seed was computed on and with."""
        found = (r for r in self.runs if (r.benchmark, r.method) == (benchmark, method))
        return {r.seed: (r.environment.get("device"), r.environment.get("torch", "").partition("+")[0]) for r in found}

    def rows(self) -> list[Row]:
        """One row per benchmark and method, in the order they came."""
        return [self._row(b, m) for b, m in dict.fromkeys((r.benchmark, r.method) for r in self.runs)]

    def _row(self, benchmark: str, method: str) -> Row:
        percent = [100 * a for a in self.accuracies(benchmark, method).values()]
        published = self.published(benchmark, method)
        apart = difference(percent, published.mean, published.std, published.n) if published else None
        base = self._compared_with(benchmark, method)
        gain = self.gain(benchmark, method, base) if base else None
        std = float(np.std(percent, ddof=1)) if len(percent) > 1 else math.nan
        return Row(
            benchmark=benchmark,
            method=method,
            n=len(percent),
            mean=float(np.mean(percent)),
            std=std,
            published=published,
            difference=apart,
            gain_over=base if gain else None,
            gain=gain,
        )

    def _compared_with(self, benchmark: str, method: str) -> str | None:
        """The method whose results a row's gain is over, if there are any."""
        if self.over is not None:
            candidates = [resolve(get_benchmark(benchmark), self.over).name]
        else:
            candidates = [RunSpec.named(benchmark, method, 0).method.base_name or method, method.partition("+")[0]]
        return next((name for name in candidates if name != method and self.accuracies(benchmark, name)), None)

    def to_dict(self) -> dict[str, Any]:
        """The documented machine-readable form; undefined numbers are ``None``.

        Its keys are those that runs have today, as runs just computed and those of a store have.
        """
        return {
            "schema": SCHEMA,
            "store": self.store,
            "runs": [{**run.to_dict(), "metrics": finite(asdict(Metrics.of(run)))} for run in self.runs],
            "failures": [asdict(failure) for failure in self.failures],
            "summary": [finite(asdict(row)) for row in self.rows()],
            "keys": [RunSpec.named(run.benchmark, run.method, run.seed).key for run in self.runs],
        }


def finite(value: Any) -> Any:
    """NaN has no place in JSON."""
    if isinstance(value, dict):
        return {k: finite(v) for k, v in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def in_order(runs: Iterable[RunResult], methods: list[str]) -> list[RunResult]:
    """Runs by method as asked for, then by seed."""
    place = {method: i for i, method in enumerate(methods)}
    return sorted(runs, key=lambda r: (place.get(r.method, len(place)), r.seed))
