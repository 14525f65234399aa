"""What of the paper can be reproduced by name: the one form that its tables and figures have here."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, ClassVar

from gmed.callbacks import Watcher
from gmed.experiment import default_store
from gmed.paper import quantities
from gmed.paper.artifacts.charts import Record, apply_theme, require_folder, require_libraries, write
from gmed.paper.plan import QUICK_WARNING, PlannedRuns, Selection, choose
from gmed.paper.tables import Reproduction
from gmed.results import Difference, Failure, difference
from gmed.results.comparisons import Comparison
from gmed.results.results import finite


@dataclass(frozen=True)
class Request:
    """What somebody wants of a study.

    Attributes
    ----------
    benchmarks
        Only these; by default all whose data are here.
    seeds
        How many; by default as many as the paper's.
    quick
        The small version: three seeds on one benchmark. It shows that all runs, and says nothing about the paper.
    folder
        Where figures are written.
    watcher
        Makes what is told of the progress on each benchmark.
    how
        ``store``, ``device``, ``workers``, ``data_dir`` and so on, as in :func:`gmed.run`.
    """

    benchmarks: Sequence[str] = ()
    seeds: int | None = None
    quick: bool = False
    folder: Path = Path("figures")
    watcher: Callable[[], Watcher] = Watcher
    how: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Number:
    """A number of ours and, where there is one, the paper's.

    Attributes
    ----------
    n, mean, std
        Over so many runs; the standard deviation of one is ``nan``.
    difference
        Of ours and the paper's, with its interval.
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
    ) -> Number:
        """From the values of the runs.

        >>> found = Number.of("split-mnist", "rate", [1.0, 2.0, 3.0], published=2.5)
        >>> found.n, found.mean, found.std, found.difference.mean, round(found.difference.high, 2)
        (3, 2.0, 1.0, -0.5, 1.98)
        """
        mean, std = fmean(values), stdev(values) if len(values) > 1 else math.nan
        apart = None if published is None else difference(values, published, published_std, published_n or 0)
        return cls(benchmark, quantity, len(values), mean, std, published, published_std, apart)


@dataclass
class ArtifactResult:
    """A figure, or a table that is not one of accuracies, beside what was published.

    Attributes
    ----------
    numbers
        Ours beside the paper's.
    notes
        What a reader of them must know.
    files
        What was written.
    table
        The table of accuracies that a figure shows, if it is one.
    comparisons
        Methods that a figure compares besides, corrected for their number.
    missing
        Benchmarks, or methods, that were left out, and why.
    """

    study: Artifact
    quick: bool = False
    numbers: list[Number] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    files: list[Path] = field(default_factory=list)
    table: Reproduction | None = None
    comparisons: list[Comparison] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    failures: list[Failure] = field(default_factory=list)

    def to_dict(self) -> dict[str, Any]:
        """As JSON can carry it: as that of a table, with numbers and files."""
        study = self.study
        return {
            **(self.table.to_dict() if self.table else {"schema": "gmed-reproduction/1"}),
            "target": {"name": study.name, "title": study.title, "where": study.where},
            "quick": self.quick,
            "missing": self.missing,
            "numbers": [finite(asdict(number)) for number in self.numbers],
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
        What it is called here, and what it shows.
    where
        What it is called in the paper.
    stored
        Whether its runs, or what it observes of them, are kept in the store; what is not is run anew.
    observes
        What it watches its runs for, and the version of that; the store keeps it, and not their results.
    whole
        Whether a benchmark of it is of use only with all its methods.
    cost_proxy
        A method that a run of it costs as much as, if not the one it runs.
    """

    name: str
    title: str
    where: str
    stored: ClassVar[bool] = True
    observes: ClassVar[str] = ""
    whole: ClassVar[bool] = False
    cost_proxy: ClassVar[str | None] = None

    @abstractmethod
    def plan(self) -> list[PlannedRuns]:
        """The runs it needs."""

    @abstractmethod
    def run(self, asked: Request) -> ArtifactResult | Reproduction:
        """Compute what is missing, and set it beside what was published."""

    def chosen(self, asked: Request) -> Selection:
        """What of its plan is asked for and can be computed here."""
        return choose(
            self.plan(),
            self.where,
            benchmarks=asked.benchmarks,
            seeds=asked.seeds,
            quick=asked.quick,
            data_dir=asked.how.get("data_dir"),
            store=asked.how.get("store", default_store()) if self.stored else None,
            observed=self.observes,
            whole=self.whole,
        )

    def published(
        self, benchmark: str, quantity: str, row: str | None = None
    ) -> tuple[float, float | None, int | None]:
        """A number that it shows in the paper, its standard deviation and the number of runs, as far as given."""
        (found,) = (
            (number.value, number.std, number.n)
            for number in quantities()
            if (number.where, number.benchmark, number.quantity) == (self.where, benchmark, quantity)
            and row in (None, number.row)
        )
        return found


class Figure(Artifact):
    """A figure: records are found, and drawn."""

    def run(self, asked: Request) -> ArtifactResult:
        require_libraries()
        require_folder(asked.folder)
        found, records = self.find(asked)
        if not records:
            return found
        name = f"{self.name}-quick" if asked.quick else self.name
        small = [QUICK_WARNING] if asked.quick else []
        chart = apply_theme(self.draw(records), f"{self.where}: {self.title}", [*small, *self.legend(records)])
        found.files = write(chart, records, asked.folder, name)
        return found

    @abstractmethod
    def find(self, asked: Request) -> tuple[ArtifactResult, list[Record]]:
        """What was found, and all that is drawn of it, a record for each row of its CSV file."""

    @abstractmethod
    def draw(self, records: list[Record]) -> Any:
        """The chart of these records."""

    @abstractmethod
    def legend(self, records: list[Record]) -> list[str]:
        """What a reader of the chart must know, line by line: what is shown, and of how many runs."""
