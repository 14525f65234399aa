"""The content of a report, collected from a store."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from gmed.engine import RunResult, RunSpec, get_benchmark
from gmed.experiment import outdated_note
from gmed.report.charts import cost, seeds, tasks
from gmed.report.charts.chart import Chart
from gmed.report.charts.tuning import tuned_benchmarks, tuning_grid, tuning_scores
from gmed.report.edits import Observations, find_probe, loss_increases, run_to_probe
from gmed.report.grouping import MethodRuns, by_benchmark, by_method, has_memory, titles, without_tuning
from gmed.report.provenance import environments, report_command, run_commands, settings, tune_commands
from gmed.report.tables import best_methods, comparisons, metric_table, result_table
from gmed.results import Published, Results, Row, Store
from gmed.results.stats import Comparison
from gmed.results.tables import Table
from gmed.results.tuning import Scores


@dataclass(frozen=True)
class Section:
    """The part of a report about one benchmark.

    Attributes
    ----------
    place, title
        Its anchor in URLs, and its short title.
    published
        Returns the published number of a method on a benchmark.
    compared
        The comparisons of methods on this benchmark.
    scores
        The scores of the methods that were tuned on it.
    watched
        The run whose edits were observed, with the observations, if there is one.
    data_dir
        The folder of custom data.
    """

    place: str
    benchmark: str
    title: str
    published: Callable[[str, str], Published | None]
    runs: list[RunResult]
    rows: list[Row]
    compared: list[Comparison]
    scores: dict[str, Scores]
    watched: tuple[RunSpec, Observations] | None
    data_dir: Path | None

    @cached_property
    def methods(self) -> MethodRuns:
        """The runs of each method."""
        return by_method(self.runs)

    @property
    def best(self) -> list[str]:
        """The online methods with the highest mean."""
        return best_methods(self.rows).get(self.benchmark, [])

    @property
    def summary(self) -> str:
        """The description of the benchmark, as a sentence."""
        benchmark = get_benchmark(self.benchmark)
        custom = benchmark.id.custom_data
        text = f"{custom.tasks} tasks, {custom.classes} classes" if custom else benchmark.summary
        return f"{text[:1].upper()}{text[1:]}."

    @cached_property
    def classes(self) -> tuple[str, ...]:
        """The names of its classes, if the data are available and have names."""
        custom = get_benchmark(self.benchmark).id.custom_data
        return custom.class_names(self.data_dir) if custom else ()

    @cached_property
    def results(self) -> Table:
        """Every method with its published number and its gain."""
        return result_table(self.rows, self.best, {c.method: c for c in self.compared}, self.place)

    @cached_property
    def metrics(self) -> Table:
        """The other metrics of every method."""
        return metric_table(self.methods, self.place)

    @cached_property
    def charts(self) -> list[Chart]:
        """The charts for which there are data."""
        charts = (
            tasks.curves(self.methods),
            seeds.paired_differences(self.compared),
            seeds.final_accuracies(self.methods, lambda method: self.published(self.benchmark, method)),
            seeds.forgettings(self.methods),
            seeds.backward_transfers(self.methods),
            tasks.task_matrices(self.methods),
            tasks.task_differences(self.methods, self.compared),
            cost.seconds(self.methods),
            cost.passes(self.methods),
            tasks.memory_over_time(self.methods, self.classes),
            tuning_grid(self.scores),
            loss_increases(*self.watched) if self.watched else None,
        )
        return [replace(chart, name=f"{self.place}-{chart.name}") for chart in charts if chart is not None]

    @property
    def hints(self) -> list[str]:
        """Missing content, and how to create it."""
        hints, has_memory_chart = [], f"{self.place}-memory" in (chart.name for chart in self.charts)
        if not has_memory_chart and any(map(has_memory, self.methods)):
            hints.append("These older runs did not record the content of memory; recompute them with gmed run --rerun.")
        if self.watched is None and self.runs and run_to_probe(self.runs) is not None:
            rerun = "use gmed report --gallery: it reruns one seed per benchmark."
            hints.append(f"To show edited examples and losses, {rerun}")
        return hints

    @property
    def settings(self) -> list[tuple[str, str]]:
        """The configuration of every method."""
        return [(method, settings(self.benchmark, method)) for method in self.methods]


@dataclass(frozen=True)
class ReportData:
    """The content of a report.

    Attributes
    ----------
    store
        The name of the store's file, without its folder.
    outdated_note
        Explanation of why some stored runs are not shown, if there are any.
    """

    store: str
    results: Results
    outdated_note: str
    compared: list[Comparison]
    sections: list[Section]
    commands: list[str]

    @cached_property
    def gains(self) -> Chart | None:
        """The chart of the gains on every benchmark."""
        short_titles = {section.benchmark: section.title for section in self.sections}
        return seeds.gains_at_a_glance(self.compared, short_titles, self.results.baseline)

    @property
    def environments(self) -> list[tuple[dict[str, str], int]]:
        """The environments of the runs, each with its number of runs."""
        return environments(self.results.runs)


def collect(
    every: Results,
    outdated: int,
    store: str | Path,
    benchmark: str | None = None,
    methods: Sequence[str] = (),
    *,
    data_dir: Path | None = None,
) -> ReportData:
    """Collect the content of a report from stored results: of all benchmarks and methods, or of a selection.

    Parameters
    ----------
    every, outdated
        The return values of :func:`gmed.experiment.stored_results`.
    data_dir
        The folder of custom data, which define the names of their classes.
    """
    results = replace(without_tuning(every), failures=every.failures)
    rows, runs = results.rows(), by_benchmark(results.runs)
    compared = comparisons(results, rows)
    names = dict.fromkeys([*runs, *tuned_benchmarks(by_benchmark(every.runs))])
    with Store(store) as results_store:
        tuned = {name: scores for name in names if (scores := tuning_scores(results_store, name))}
        watched = {
            name: (spec, observed)
            for name, benchmark_runs in runs.items()
            if (spec := run_to_probe(benchmark_runs)) and (observed := find_probe(results_store, spec))
        }
    anchors = unique_anchors([name for name in names if name in runs or name in tuned])
    short_titles, file = titles(list(anchors)), Path(store).name
    sections = [
        Section(
            place=anchor,
            benchmark=name,
            title=short_titles[name],
            published=results.published,
            runs=runs.get(name, []),
            rows=[row for row in rows if row.benchmark == name],
            compared=[comparison for comparison in compared if comparison.benchmark == name],
            scores=tuned.get(name, {}),
            watched=watched.get(name),
            data_dir=data_dir,
        )
        for name, anchor in anchors.items()
    ]
    commands = [command for benchmark_runs in runs.values() for command in run_commands(benchmark_runs, file)]
    commands += [command for name, scores in tuned.items() for command in tune_commands(name, scores, file)]
    commands.append(report_command(every, benchmark, methods, file, gallery=bool(watched)))
    return ReportData(file, results, outdated_note(store, outdated), compared, sections, commands)


def unique_anchors(names: Sequence[str]) -> dict[str, str]:
    """Return an anchor for each benchmark that is valid in URLs and file names.

    >>> unique_anchors(["split-mnist", "a.csv[by-time]", "a.csv[by-time!]"])
    {'split-mnist': 'split-mnist', 'a.csv[by-time]': 'a-csv-by-time', 'a.csv[by-time!]': 'a-csv-by-time-2'}
    """
    anchors: dict[str, str] = {}
    for name in names:
        base = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "benchmark"
        anchor, number = base, 1
        while anchor in anchors.values():
            number += 1
            anchor = f"{base}-{number}"
        anchors[name] = anchor
    return anchors
