"""Commands that show and manage stored results: gmed table, runs, rm, export, merge."""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from gmed.cli.console import count_runs, make_console, print_json, render_table, show_failure
from gmed.cli.exit import EXIT_OK, EXIT_RUN_FAILED
from gmed.cli.options import Baseline, Extension, ResultsJson, StoreFile
from gmed.engine import BENCHMARKS, BenchmarkId, get_benchmark, resolve
from gmed.engine.methods import parse
from gmed.errors import UsageError
from gmed.experiment import default_store, extensions_to_load, outdated_note, stored_results, unfinished_runs
from gmed.report.grouping import by_benchmark, by_method, titles, without_tuning
from gmed.results import Results, Store
from gmed.results.export import Document, check_exportable, is_document
from gmed.results.export import export as write_export
from gmed.results.formatting import first_line, format_gain
from gmed.results.metrics import Metrics
from gmed.results.store import paused_garbage_collection
from gmed.results.tables import (
    METHOD,
    MISS_LEGEND,
    MISSING,
    Table,
    accuracy_cell,
    difference_cell,
    numbers,
    published_cell,
    texts,
)


def table(
    benchmark: Annotated[str | None, typer.Argument(help="Only this benchmark")] = None,
    methods: Annotated[list[str] | None, typer.Argument(help="Only these methods")] = None,
    metrics: Annotated[bool, typer.Option("--metrics", help="Show forgetting, transfer and other metrics")] = False,
    baseline: Baseline = None,
    extension: Extension = None,
    store: StoreFile = None,
    as_json: ResultsJson = False,
) -> None:
    """Show stored results next to the published ones."""
    with paused_garbage_collection():
        _show_table(benchmark, methods or [], store or default_store(), baseline, metrics=metrics, as_json=as_json)


def _show_table(
    benchmark: str | None, methods: list[str], path: str, baseline: str | None, *, metrics: bool, as_json: bool
) -> None:
    results, outdated = stored_results(path, benchmark, methods)
    notes = [outdated_note(path, outdated)]
    require_results(results, benchmark, methods, notes[0])
    if benchmark is None or not BenchmarkId.parse(benchmark).tuning:
        notes.append(_tuning_note(results))
        results = without_tuning(results)
    for note in filter(None, notes):
        make_console(stderr=True).print(note, soft_wrap=True)
    if metrics and not as_json:  # the JSON document has the metrics of every run
        _show_metrics(make_console(), results)
    else:
        print_results(with_baseline(results, baseline), as_json)


def _tuning_note(results: Results) -> str:
    """Return a note on the tuning runs that are not shown, or an empty text if there are none."""
    names = [*(run.benchmark for run in results.runs), *(failure.benchmark for failure in results.failures)]
    tuning_runs = [name for name in names if BenchmarkId.parse(name).tuning]
    quoted = " or ".join(map(shlex.quote, dict.fromkeys(tuning_runs)))
    return f"tuning runs are not shown ({len(tuning_runs)}); to see them: gmed table {quoted}" if tuning_runs else ""


def print_results(results: Results, as_json: bool) -> None:
    """Print results as a JSON document, or as tables followed by the path of the store."""
    if as_json:
        print_json(results.to_dict())
        return
    console = make_console()
    _show_results(console, results)
    if results.store is not None:
        console.print(f"Results are stored in {Path(results.store).resolve()}", soft_wrap=True)


def _show_results(console: Console, results: Results) -> None:
    """Print a table per benchmark: measured and published accuracy, their difference, and the gains of editing."""
    all_rows = results.rows()
    short = titles([row.benchmark for row in all_rows])
    for benchmark in dict.fromkeys(row.benchmark for row in all_rows):
        rows = [row for row in all_rows if row.benchmark == benchmark]
        compared = any(row.published for row in rows) or benchmark in BENCHMARKS
        difference = " (difference ± s.e.)" if compared else ""
        title = f"{short[benchmark]}: final accuracy %, mean ± standard deviation{difference}"
        paper_headings = ("paper", "difference") if compared else ()
        table = Table([METHOD, *numbers("n", "measured", *paper_headings)], title)
        for row in rows:
            paper_cells = (published_cell(row), difference_cell(row)) if compared else ()
            table.add(row.method, row.n, accuracy_cell(row), *paper_cells)
        console.print(render_table(table, boxed=True))
        if any(row.is_outside_2se for row in rows):
            console.print(MISS_LEGEND)
        gains = [(row, row.gain) for row in rows if row.gain is not None]
        for row, gain in gains:
            console.print(f"{row.method} over {row.gain_over}: {format_gain(gain)}")
        if gains:
            console.print("(paired by seed; p: one-tailed t-test; d: mean / standard deviation)")
    for failure in results.failures:
        show_failure(console, failure)


MATRIX_METRICS = "final", "pooled", "forgetting", "backward_transfer", "forward_transfer", "anytime", "worst_case"
ONLINE_METRICS = "prequential", "forward_passes", "backward_passes", "seconds", "overhead", "overhead_mb"
"""Metrics in display order: those of the accuracy matrix, and those of training."""

IN_PERCENT = {*MATRIX_METRICS, "prequential"}


def _show_metrics(console: Console, results: Results) -> None:
    """Print the mean of each metric over seeds, and how to measure missing ones."""
    short = titles([run.benchmark for run in results.runs])
    for benchmark in short:
        by_method: dict[str, list[Metrics]] = {}
        for run in results.runs:
            if run.benchmark == benchmark:
                by_method.setdefault(run.method, []).append(Metrics.of(run))
        headlines = (
            "means in %",
            "prequential accuracy in %, passes per example of the stream, seconds of training, memory",
        )
        for title, names in zip(headlines, (MATRIX_METRICS, ONLINE_METRICS), strict=True):
            headings = (name.replace("_", "\n") for name in ("n", *names))
            table = Table([METHOD, *numbers(*headings)], f"{short[benchmark]}: {title}")
            for method, runs in by_method.items():
                table.add(method, len(runs), *(_mean(runs, name) for name in names))
            console.print(render_table(table, gap=1))
    older = sum(run.untrained is None or run.passes is None for run in results.runs)
    if older:
        note = "older runs do not record forward transfer and passes"
        console.print(f"{note} ({count_runs(older)});\n  recompute them with gmed run --rerun")
    if any(run.prequential is None for run in results.runs):
        console.print("measure prequential accuracy with gmed run --prequential")


def _mean(runs: Sequence[Metrics], name: str) -> str:
    mean = sum(getattr(run, name) for run in runs) / len(runs)
    return "-" if math.isnan(mean) else f"{100 * mean if name in IN_PERCENT else mean:.2f}"


def runs(
    benchmark: Annotated[str | None, typer.Argument(help="Only this benchmark")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="List each failed run with its error")] = False,
    extension: Extension = None,
    store: StoreFile = None,
) -> None:
    """Count the stored runs: finished, failed and half-finished."""
    path = store or default_store()
    results, outdated = stored_results(path, benchmark)
    console = make_console()
    if failed:
        for failure in results.failures:
            console.print(f"{failure.benchmark} {failure.method} seed {failure.seed}:")
            console.print(f"  {first_line(failure.error)}")
        console.print(f"{len(results.failures)} failed")
        return
    names = {
        "finished": [(run.benchmark, run.method) for run in results.runs],
        "failed": [(failure.benchmark, failure.method) for failure in results.failures],
        "half-finished": [name for name in unfinished_runs(path) if benchmark in (None, name[0])],
    }
    groups = {name: _group(*name) if benchmark is None else name for column in names.values() for name in column}
    counts = {heading: Counter(groups[name] for name in column) for heading, column in names.items()}
    table, short = Table([*texts("benchmark"), METHOD, *numbers(*counts)]), titles([name for name, _ in groups])
    for group in dict.fromkeys(groups.values()):
        members = sum(other == group for other in groups.values())
        method = group[1] if members == 1 else f"{group[1]}: {members} candidates"
        table.add(short[group[0]], method, *(counter[group] or MISSING for counter in counts.values()))
    console.print(render_table(table))
    if together := [name for name, group in groups.items() if name != group]:
        data = BenchmarkId.parse(together[0][0]).custom_data
        one_by_one = shlex.quote(data.file if data else together[0][0])
        console.print(f"to list the tuning candidates one by one: gmed runs {one_by_one}", soft_wrap=True)
    if outdated:
        extensions = extensions_to_load(path)
        hint = f", or from extensions that are not loaded: {extensions}" if extensions else ""
        console.print(f"{outdated} more are from other versions of the code{hint}")


def _group(benchmark: str, method: str) -> tuple[str, str]:
    """Return a benchmark and a method; tuning candidates, which differ in parameters, count as one method.

    >>> _group("split-mnist-tuning", "er+gmed(alpha=0.1)"), _group("split-mnist", "er+gmed(alpha=0.1)")
    (('split-mnist-tuning', 'er+gmed'), ('split-mnist', 'er+gmed(alpha=0.1)'))
    """
    is_tuning = BenchmarkId.parse(benchmark).tuning
    return benchmark, "+".join(part.name for part in parse(method)) if is_tuning else method


def rm(
    benchmark: Annotated[str, typer.Argument(help="Benchmark whose runs to remove")],
    methods: Annotated[list[str] | None, typer.Argument(help="Only these methods")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only failed runs")] = False,
    extension: Extension = None,
    store: StoreFile = None,
) -> None:
    """Remove runs from the store, so that gmed run repeats them."""
    with Store(require_store(store)) as run_store:
        benchmark, *others = run_store.matching_benchmarks(benchmark)
        if others:
            raise UsageError(f"several benchmarks match; choose one of {', '.join(map(repr, (benchmark, *others)))}")
        names = [resolve(get_benchmark(benchmark), method).name for method in methods or []]
        removed = run_store.remove(benchmark, names, failed=failed)
    make_console().print(f"removed {removed} run{'' if removed == 1 else 's'}")


def export(
    file: Annotated[str, typer.Argument(help="Output file: .csv, .json, .json.xz or .parquet")],
    benchmark: Annotated[str | None, typer.Argument(help="Only this benchmark")] = None,
    extension: Extension = None,
    store: StoreFile = None,
) -> None:
    """Write the stored runs to a file, one row per run."""
    check_exportable(Path(file))
    results, _ = stored_results(store or default_store(), benchmark)
    written = write_export(results, Path(file))
    make_console().print(f"{written} runs in {Path(file).resolve()}", soft_wrap=True)


def merge(
    other: Annotated[str, typer.Argument(help="Another store, or a results document (.json, .json.xz)")],
    extension: Extension = None,
    store: StoreFile = None,
) -> None:
    """Import runs from another store or a results document. On conflict, the local result is kept."""
    file = Path(other)
    if not file.exists():
        raise UsageError(f"{other}: no such file")
    if not file.is_file():
        raise UsageError(f"{other}: cannot be read (not a file)")
    document = Document.read(file) if is_document(file) else None
    with document.load_results() if document else Store(other) as source, Store(store or default_store()) as target:
        outdated = len(document.runs) - len(source.keys()) if document else 0
        merged = target.merge(source)
    console = make_console()
    observed = f", {merged.observed} observations added" if merged.observed else ""
    console.print(f"{merged.added} added, {merged.known} already in the store{observed}")
    if outdated:
        console.print(f"{outdated} skipped: the code behind them has changed or is not loaded")
    for conflict in merged.conflicts:
        console.print(f"conflict, kept the local result: {conflict}")
    if merged.damaged:
        console.print(f"{len(merged.damaged)} damaged, skipped: {'; '.join(merged.damaged)}", soft_wrap=True)
    raise typer.Exit(EXIT_RUN_FAILED if merged.conflicts or merged.damaged else EXIT_OK)


def require_results(results: Results, benchmark: str | None, methods: Sequence[str], note: str = "") -> None:
    """Raise an error if no results match; it lists those that exist."""
    if results.runs or results.failures:
        return
    store = results.store or default_store()
    everything, _ = stored_results(store)
    stored = {name: ", ".join(by_method(runs)) for name, runs in by_benchmark(everything.runs).items()}
    if benchmark is None or not stored:
        raise UsageError(f"{store}: nothing to report; {note or 'create results with gmed run'}")
    asked = f"{benchmark} with {', '.join(methods)}" if methods else benchmark
    known = f"it has results for {', '.join(stored)}"
    if benchmark in stored:
        known = f"it has results with {stored[benchmark]}"
    raise UsageError(f"{store}: no results for {asked}; {note or known}")


def with_baseline(results: Results, baseline: str | None) -> Results:
    """Return results whose gains are over a baseline, or raise an error if nothing can be compared with it."""
    results = replace(results, baseline=baseline)
    if baseline is not None and all(row.gain is None for row in results.rows()):
        shown = ", ".join(by_method(results.runs))
        raise UsageError(f"no method has runs at the same seeds as the baseline {baseline}; methods shown: {shown}")
    return results


def require_store(store: str | None) -> str:
    """Return the path of a store, or raise an error if there is none."""
    path = store or default_store()
    if not Path(path).exists():
        raise UsageError(f"{path}: no results yet; create some with gmed run")
    return path
