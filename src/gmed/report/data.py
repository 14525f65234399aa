"""What a report holds, found in a store."""

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
from gmed.results.comparisons import Comparison
from gmed.results.tables import Table
from gmed.results.tuning import Scores

Watched = tuple[RunSpec, dict[str, Any]]
"""A run, and what was seen of it."""


@dataclass(frozen=True)
class Section:
    """One benchmark.

    Attributes
    ----------
    place, title
        Its name in addresses, and where there is little room.
    best
        The methods with the highest mean.
    classes
        What its classes are called, where the data are at hand and say so.
    watched
        The run whose edits were watched, and what was seen, if there is one.
    hints
        What is missing, and how to get it.
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
    """Everything.

    Attributes
    ----------
    store
        The name of the file, without where it is.
    outdated_note
        Why stored runs are not shown, in words, if any are not.
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
    """What a report shows of results from a store: of all benchmarks and methods, or of these alone.

    Parameters
    ----------
    every, outdated
        What :func:`gmed.experiment.stored_results` found there.
    data_dir
        Where data of one's own are, which say what their classes are called.
    """
    results = replace(without_tuning(every), failures=every.failures)
    rows, runs = results.rows(), by_benchmark(results.runs)
    compared, best = comparisons(results, rows), best_methods(rows)
    known = dict.fromkeys([*runs, *tuned_benchmarks(by_benchmark(every.runs))])
    with Store(store) as opened:
        tuned = {name: found for name in known if (found := tuning_scores(opened, name))}
        watched = {
            name: (spec, seen)
            for name, own in runs.items()
            if (spec := edits.run_to_probe(own)) and (seen := find_probe(opened, spec))
        }
    places = unique_anchors([name for name in known if name in runs or name in tuned])
    titled, file = titles(list(places)), Path(store).name
    sections = [
        _section(
            name,
            titled[name],
            place,
            runs.get(name, []),
            [row for row in rows if row.benchmark == name],
            best.get(name, []),
            [comparison for comparison in compared if comparison.benchmark == name],
            tuned.get(name, {}),
            watched.get(name),
            results,
            data_dir,
        )
        for name, place in places.items()
    ]
    commands = [line for own in runs.values() for line in run_commands(own, file)]
    commands += [line for name, found in tuned.items() for line in tune_commands(name, found, file)]
    commands.append(report_command(every.runs, benchmark, methods, file, gallery=bool(watched)))
    return ReportData(
        file,
        results,
        outdated_note(store, outdated),
        compared,
        gains_at_a_glance(compared, titled),
        sections,
        environments(results.runs),
        commands,
    )


def _section(
    name: str,
    title: str,
    place: str,
    runs: list[RunResult],
    rows: list[Row],
    best: list[str],
    compared: list[Comparison],
    tuned: dict[str, Scores],
    watched: Watched | None,
    results: Results,
    data_dir: Path | None,
) -> Section:
    own = get_benchmark(name).id.custom_data
    classes = own.class_names(data_dir) if own else ()
    found: list[Chart | None] = []
    if runs:
        found += [
            curves.curves(runs, place),
            paired_differences(compared, place),
            seed_distribution.final_accuracies(runs, results.published, place),
            seed_distribution.forgettings(runs, place),
            seed_distribution.backward_transfers(runs, place),
            task_matrices.task_matrices(runs, place),
            task_matrices.task_differences(runs, compared, place),
            cost.seconds(runs, place),
            cost.passes(runs, place),
            memory_over_time.memory_over_time(runs, classes, place),
        ]
    found.append(tuning_grid(tuned, place))
    if watched is not None:
        found.append(edits.loss_increases(watched[1], watched[0], place))
    charts = [chart for chart in found if chart is not None]
    summary = f"{own.tasks} tasks, {own.classes} classes" if own else get_benchmark(name).summary
    return Section(
        place,
        name,
        title,
        f"{summary[:1].upper()}{summary[1:]}.",
        runs,
        rows,
        best,
        compared,
        classes,
        result_table(rows, best, {comparison.method: comparison for comparison in compared}, place),
        metric_table(runs, place),
        charts,
        watched,
        list(_hints(runs, charts, watched)),
        [(method, settings(name, method)) for method in by_method(runs)],
    )


def _hints(runs: list[RunResult], charts: list[Chart], watched: Watched | None) -> Sequence[str]:
    there = {chart.name.rsplit("-", 1)[-1] for chart in charts}
    hints = []
    if "memory" not in there and any(has_memory(method) for method in by_method(runs)):
        hints.append(
            "What was in memory is not known of these runs, which are older than the count; gmed run --rerun counts."
        )
    if runs and watched is None and edits.run_to_probe(runs) is not None:
        hints.append("Edited examples and losses: gmed report --gallery watches one run of each benchmark.")
    return hints


def unique_anchors(names: Sequence[str]) -> dict[str, str]:
    """A name for each benchmark that can stand in an address and in a file's name.

    >>> unique_anchors(["split-mnist", "a.csv[by-time]", "a.csv[by-time!]"])
    {'split-mnist': 'split-mnist', 'a.csv[by-time]': 'a-csv-by-time', 'a.csv[by-time!]': 'a-csv-by-time-2'}
    """
    found: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:60] or "benchmark"
        place, number = plain, 1
        while place in found.values():
            number += 1
            place = f"{plain}-{number}"
        found[name] = place
    return found


def watch_edits(
    results: Results,
    store: str | Path,
    *,
    device: str = "cpu",
    data_dir: Path | None = None,
    shown: Callable[[str], AbstractContextManager[Progress]] = lambda what: nullcontext(no_progress),
) -> dict[RunSpec, GmedError]:
    """Watch one run of each benchmark that has not been watched yet, and keep what was seen in the store.

    Parameters
    ----------
    shown
        Told which run is watched, and of how many, before each; inside, its progress is shown.

    Returns
    -------
    dict
        The runs that could not be watched, as where data are missing, and why.
    """
    failed = {}
    with Store(store) as opened:
        wanted = [edits.run_to_probe(runs) for runs in by_benchmark(without_tuning(results).runs).values()]
        todo = [spec for spec in wanted if spec is not None and find_probe(opened, spec) is None]
        for number, spec in enumerate(todo, 1):
            with shown(f"{spec} ({number} of {len(todo)})") as progress:
                try:
                    _check_may_run(spec)
                    seen = edits.watch(spec, device, data_dir, progress)
                except GmedError as error:
                    failed[spec] = error
                else:
                    opened.put_probe(spec, edits.WHAT, seen)
    return failed


def _check_may_run(spec: RunSpec) -> None:
    """Make sure that this process was given what a run needs of somebody's own: a name in a store is not enough.

    Text in a name, such as a path, is never handed to an extension.
    """
    method = spec.method
    parts = [part for part in (method.base, method.memory, method.retrieval, method.edit) if part is not None]
    if method.sources() and any(isinstance(value, str) for part in parts for value in part.parameters.values()):
        raise UsageError(f"{spec.method.name}: text is handed to a method of your own only by gmed run")
    model = spec.benchmark.model
    if isinstance(model, ModelRef) and not model.is_here:
        raise UsageError(
            f"its model {model.reference} has not been given, or has changed since the run; "
            f"if it is yours: --model {shlex.quote(model.reference)}"
            if model.has_import_path
            else "its model was handed over in Python, as a module, and is not here"
        )
