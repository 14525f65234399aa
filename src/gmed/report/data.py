"""The content of a report, collected from a store."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from gmed.data.dataset import Progress, no_progress
from gmed.engine import RunResult, RunSpec, get_benchmark
from gmed.engine.custom_model import ModelRef
from gmed.errors import GmedError, UsageError
from gmed.experiment import outdated_note
from gmed.report.charts import cost, curves, edits, memory_over_time, seed_distribution, task_matrices
from gmed.report.charts.chart import Chart
from gmed.report.charts.paired_differences import gains_at_a_glance, paired_differences
from gmed.report.charts.tuning_grid import tuned_benchmarks, tuning_grid, tuning_scores
from gmed.report.commands import report_command, run_commands, tune_commands
from gmed.report.comparisons import best_methods, comparisons
from gmed.report.grouping import by_benchmark, by_method, has_memory, titles, without_tuning
from gmed.report.probe_cache import find_probe
from gmed.report.provenance import environments, settings
from gmed.report.tables import metric_table, result_table
from gmed.results import Results, Row, Store
from gmed.results.stats import Comparison
from gmed.results.tables import Table
from gmed.results.tuning import Scores

Watched = tuple[RunSpec, dict[str, Any]]
"""A run and its observations."""


@dataclass(frozen=True)
class Section:
    """The part of a report about one benchmark.

    Attributes
    ----------
    place, title
        Its anchor in URLs, and its short title.
    best
        The methods with the highest mean.
    classes
        The names of its classes, if the data are available and have names.
    watched
        The run whose edits were observed, with the observations, if there is one.
    hints
        Missing content, and how to compute it.
    """

    place: str
    benchmark: str
    title: str
    summary: str
    runs: list[RunResult]
    rows: list[Row]
    best: list[str]
    compared: list[Comparison]
    classes: tuple[str, ...]
    results: Table
    metrics: Table
    charts: list[Chart]
    watched: Watched | None
    hints: list[str]
    settings: list[tuple[str, str]]


@dataclass(frozen=True)
class ReportData:
    """The content of a report.

    Attributes
    ----------
    store
        The name of the store's file, without its folder.
    outdated_note
        Explanation why stored runs are not shown, if any are not.
    """

    store: str
    results: Results
    outdated_note: str
    compared: list[Comparison]
    gains: Chart | None
    sections: list[Section]
    environments: list[tuple[dict[str, str], int]]
    commands: list[str]


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
    compared, best = comparisons(results, rows), best_methods(rows)
    names = dict.fromkeys([*runs, *tuned_benchmarks(by_benchmark(every.runs))])
    with Store(store) as results_store:
        tuned = {name: scores for name in names if (scores := tuning_scores(results_store, name))}
        watched = {
            name: (spec, observed)
            for name, benchmark_runs in runs.items()
            if (spec := edits.run_to_probe(benchmark_runs)) and (observed := find_probe(results_store, spec))
        }
    anchors = unique_anchors([name for name in names if name in runs or name in tuned])
    short_titles, file = titles(list(anchors)), Path(store).name
    sections = [
        _section(
            name,
            short_titles[name],
            anchor,
            runs.get(name, []),
            [row for row in rows if row.benchmark == name],
            best.get(name, []),
            [comparison for comparison in compared if comparison.benchmark == name],
            tuned.get(name, {}),
            watched.get(name),
            results,
            data_dir,
        )
        for name, anchor in anchors.items()
    ]
    commands = [command for benchmark_runs in runs.values() for command in run_commands(benchmark_runs, file)]
    commands += [command for name, scores in tuned.items() for command in tune_commands(name, scores, file)]
    commands.append(report_command(every, benchmark, methods, file, gallery=bool(watched)))
    return ReportData(
        file,
        results,
        outdated_note(store, outdated),
        compared,
        gains_at_a_glance(compared, short_titles, results.baseline),
        sections,
        environments(results.runs),
        commands,
    )


def _section(
    name: str,
    title: str,
    anchor: str,
    runs: list[RunResult],
    rows: list[Row],
    best: list[str],
    compared: list[Comparison],
    tuned: dict[str, Scores],
    probe: Watched | None,
    results: Results,
    data_dir: Path | None,
) -> Section:
    custom_data = get_benchmark(name).id.custom_data
    classes = custom_data.class_names(data_dir) if custom_data else ()
    candidates: list[Chart | None] = []
    if runs:
        candidates += [
            curves.curves(runs, anchor),
            paired_differences(compared, anchor),
            seed_distribution.final_accuracies(runs, results.published, anchor),
            seed_distribution.forgettings(runs, anchor),
            seed_distribution.backward_transfers(runs, anchor),
            task_matrices.task_matrices(runs, anchor),
            task_matrices.task_differences(runs, compared, anchor),
            cost.seconds(runs, anchor),
            cost.passes(runs, anchor),
            memory_over_time.memory_over_time(runs, classes, anchor),
        ]
    candidates.append(tuning_grid(tuned, anchor))
    if probe is not None:
        candidates.append(edits.loss_increases(probe[1], probe[0], anchor))
    charts = [chart for chart in candidates if chart is not None]
    summary = (
        f"{custom_data.tasks} tasks, {custom_data.classes} classes" if custom_data else get_benchmark(name).summary
    )
    return Section(
        anchor,
        name,
        title,
        f"{summary[:1].upper()}{summary[1:]}.",
        runs,
        rows,
        best,
        compared,
        classes,
        result_table(rows, best, {comparison.method: comparison for comparison in compared}, anchor),
        metric_table(runs, anchor),
        charts,
        probe,
        list(_hints(runs, charts, probe)),
        [(method, settings(name, method)) for method in by_method(runs)],
    )


def _hints(runs: list[RunResult], charts: list[Chart], probe: Watched | None) -> Sequence[str]:
    chart_kinds = {chart.name.rsplit("-", 1)[-1] for chart in charts}
    hints = []
    if "memory" not in chart_kinds and any(has_memory(method) for method in by_method(runs)):
        hints.append("These older runs did not record the content of memory; recompute them with gmed run --rerun.")
    if runs and probe is None and edits.run_to_probe(runs) is not None:
        hints.append("To show edited examples and losses, use gmed report --gallery: it reruns one seed per benchmark.")
    return hints


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


def watch_edits(
    results: Results,
    store: str | Path,
    *,
    device: str = "cpu",
    data_dir: Path | None = None,
    shown: Callable[[str], AbstractContextManager[Progress]] = lambda what: nullcontext(no_progress),
) -> dict[RunSpec, GmedError]:
    """Observe one run of each benchmark that was not observed yet, and store the observations.

    Parameters
    ----------
    shown
        Called before each run with its description; returns a context manager that shows its progress.

    Returns
    -------
    dict
        The runs that could not be observed, for example for lack of data, with the errors.
    """
    failed = {}
    with Store(store) as results_store:
        specs = [edits.run_to_probe(runs) for runs in by_benchmark(without_tuning(results).runs).values()]
        remaining = [spec for spec in specs if spec is not None and find_probe(results_store, spec) is None]
        for number, spec in enumerate(remaining, 1):
            with shown(f"{spec} ({number} of {len(remaining)})") as progress:
                try:
                    _check_may_run(spec)
                    observed = edits.watch(spec, device, data_dir, progress)
                except GmedError as error:
                    failed[spec] = error
                else:
                    results_store.put_probe(spec, edits.WHAT, observed)
    return failed


def _check_may_run(spec: RunSpec) -> None:
    """Check that the custom code of a run was given to this process: a name in a store is not enough.

    Text parameters in a name, such as paths, are never passed to an extension.
    """
    method = spec.method
    parts = [part for part in (method.base, method.memory, method.retrieval, method.edit) if part is not None]
    if method.sources() and any(isinstance(value, str) for part in parts for value in part.parameters.values()):
        raise UsageError(f"{spec.method.name}: text parameters of a custom method are only passed by gmed run")
    model = spec.benchmark.model
    if isinstance(model, ModelRef) and not model.is_here:
        raise UsageError(
            f"its model {model.reference} is not loaded, or has changed since the run; "
            f"if you trust it: --model {shlex.quote(model.reference)}"
            if model.has_import_path
            else "its model was passed in Python, as a module, and is not available"
        )
