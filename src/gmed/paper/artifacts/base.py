"""Base classes of the reproducible tables and figures of the paper, with their requests and results."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar

from gmed.callbacks import Callback
from gmed.experiment import default_store
from gmed.paper import quantities
from gmed.paper.artifacts.charts import Record, apply_theme, require_folder, require_libraries, write
from gmed.paper.plan import QUICK_WARNING, PlannedRuns, Selection, select_runs
from gmed.paper.tables import Reproduction, reproduce
from gmed.results import Difference, Failure, difference
from gmed.results.stats import Comparison, nan_to_none


@dataclass(frozen=True)
class Request:
    """The options of a reproduction.

    Attributes
    ----------
    benchmarks
        The benchmarks to run; by default all whose data are available.
    seeds
        The number of seeds; by default that of the paper.
    quick
        The quick version: three seeds on one benchmark. It shows that everything works, but says nothing about
        the paper.
    folder
        The folder for figures.
    callback
        Factory of the callback that receives the progress on each benchmark.
    options
        Further options: ``store``, ``device``, ``workers``, ``data_dir`` and so on, as in :func:`gmed.run`.
    """

    benchmarks: Sequence[str] = ()
    seeds: int | None = None
    quick: bool = False
    folder: Path = Path("figures")
    callback: Callable[[], Callback] = Callback
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Measurement:
    """A measured number and, where there is one, the published number.

    Attributes
    ----------
    n, mean, std
        Number of runs, their mean and standard deviation, which is ``nan`` for one run.
    difference
        The difference from the published number, with its confidence interval.
    """

    benchmark: str
    quantity: str
    n: int
    mean: float
    std: float
    published: float | None = None
    published_std: float | None = None
    difference: Difference | None = None

    @classmethod
    def of(
        cls,
        benchmark: str,
        quantity: str,
        values: Sequence[float],
        published: float | None = None,
        published_std: float | None = None,
        published_n: int | None = None,
    ) -> Measurement:
        """Create a number from the values of the runs.

        >>> number = Measurement.of("split-mnist", "rate", [1.0, 2.0, 3.0], published=2.5)
        >>> number.n, number.mean, number.std, number.difference.mean, round(number.difference.high, 2)
        (3, 2.0, 1.0, -0.5, 1.98)
        """
        mean, std = fmean(values), stdev(values) if len(values) > 1 else math.nan
        gap = None if published is None else difference(values, published, published_std, published_n or 0)
        return cls(benchmark, quantity, len(values), mean, std, published, published_std, gap)


@dataclass
class ArtifactResult:
    """A reproduced figure, or a table other than of accuracies, with the published numbers.

    Attributes
    ----------
    numbers
        The measured and the published numbers.
    notes
        Explanations of the numbers.
    files
        The files written.
    table
        The table of accuracies that a figure shows, if it shows one.
    comparisons
        Additional comparisons of methods in a figure, corrected for their number.
    missing
        Benchmarks, or methods, that were left out, and why.
    """

    artifact: Artifact
    quick: bool = False
    numbers: list[Measurement] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    table: Reproduction | None = None
    comparisons: list[Comparison] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """Return JSON-compatible data: the form of a table, with numbers and files."""
        artifact = self.artifact
        return {
            **(self.table.to_dict() if self.table else {"schema": "gmed-reproduction/1"}),
            "target": {"name": artifact.name, "title": artifact.title, "where": artifact.location},
            "quick": self.quick,
            "missing": self.missing,
            "numbers": [nan_to_none(asdict(number)) for number in self.numbers],
            "comparisons": [c.to_dict() for c in (*(self.table.comparisons if self.table else ()), *self.comparisons)],
            "notes": self.notes,
            "files": [str(path) for path in self.files],
            "failures": [asdict(failure) for failure in self.failures],
        }


class Artifact(ABC):
    """A table or a figure of the paper that can be reproduced by name.

    Attributes
    ----------
    name, title
        Its name in this package, and its content.
    location
        Its name in the paper.
    cached
        Whether its runs, or the observations of them, are stored; otherwise they are repeated every time.
    probe_version
        Name and version of the observation that is stored instead of the results of its runs.
    require_all
        Whether a benchmark is only meaningful with all its methods.
    cost_proxy
        The method from which the time of its runs is estimated, if that is not the planned method.
    """

    name: str
    title: str
    location: str
    cached: ClassVar[bool] = True
    probe_version: ClassVar[str] = ""
    require_all: ClassVar[bool] = False
    cost_proxy: ClassVar[str | None] = None

    @abstractmethod
    def plan(self) -> list[PlannedRuns]:
        """Return the runs it needs."""

    @abstractmethod
    def run(self, request: Request) -> ArtifactResult | Reproduction:
        """Do the missing runs, and compare the results with the published numbers."""

    def select_runs(self, request: Request, plan: Sequence[PlannedRuns] | None = None) -> Selection:
        """Return the part of its plan, or of another one, that is requested and possible."""
        return select_runs(
            self.plan() if plan is None else plan,
            self.location,
            benchmarks=request.benchmarks,
            seeds=request.seeds,
            quick=request.quick,
            data_dir=request.options.get("data_dir"),
            store=request.options.get("store", default_store()) if self.cached else None,
            observed=self.probe_version,
            require_all=self.require_all,
        )

    def published(
        self, benchmark: str, quantity: str, row: str | None = None
    ) -> tuple[float, float | None, int | None]:
        """Return a published number, its standard deviation and the number of runs, as far as reported."""
        (reported,) = (
            (number.value, number.std, number.n)
            for number in quantities()
            if (number.location, number.benchmark, number.quantity) == (self.location, benchmark, quantity)
            and row in (None, number.row)
        )
        return reported


def reproduce_table(name: str, request: Request) -> Reproduction:
    """Reproduce a table of accuracies as requested."""
    return reproduce(
        name,
        benchmarks=request.benchmarks,
        seeds=request.seeds,
        quick=request.quick,
        callback=request.callback,
        **request.options,
    )


class Figure(Artifact):
    """A figure: a chart of records."""

    def run(self, request: Request) -> ArtifactResult:
        require_libraries()
        require_folder(request.folder)
        result, records = self.find(request)
        if not records:
            return result
        name = f"{self.name}-quick" if request.quick else self.name
        warnings = [QUICK_WARNING] if request.quick else []
        chart = apply_theme(self.draw(records), f"{self.location}: {self.title}", [*warnings, *self.legend(records)])
        result.files = write(chart, records, request.folder, name)
        return result

    @abstractmethod
    def find(self, request: Request) -> tuple[ArtifactResult, list[Record]]:
        """Return the result and the records to draw, one for each row of its CSV file."""

    @abstractmethod
    def draw(self, records: list[Record]) -> Any:
        """Return the chart of these records."""

    @abstractmethod
    def legend(self, records: list[Record]) -> list[str]:
        """Return the lines of the legend: what is shown, and from how many runs."""
