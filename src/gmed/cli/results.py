"""Commands for stored runs: gmed runs, rm, export, merge."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from gmed.cli.console import make_console, render_table
from gmed.cli.exit import EXIT_OK, EXIT_RUN_FAILED
from gmed.cli.options import Extension, StoreFile
from gmed.engine import BenchmarkId, get_benchmark, resolve
from gmed.engine.methods import parse
from gmed.errors import UsageError
from gmed.experiment import default_store, extensions_to_load, stored_results, unfinished_runs
from gmed.report.grouping import by_benchmark, by_method, titles
from gmed.results import Results, Store
from gmed.results.export import check_exportable
from gmed.results.export import export as write_export
from gmed.results.formatting import first_line
from gmed.results.results_json import Document
from gmed.results.tables import METHOD, MISSING, Table, numbers, texts


def register_results(app: typer.Typer) -> None:
    """Add ``runs``, ``rm``, ``export`` and ``merge`` to the program."""
    for command in (runs, rm, export, merge):
        app.command()(command)


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
        console.print(f"candidates of a tuning one by one: gmed runs {one_by_one}", soft_wrap=True)
    if outdated:
        extensions = extensions_to_load(path)
        hint = f", or by extensions that are not loaded: {extensions}" if extensions else ""
        console.print(f"{outdated} more were computed by other versions of the code{hint}")


def _group(benchmark: str, method: str) -> tuple[str, str]:
    """Return a benchmark and a method; the candidates of a tuning, which differ in parameters, are one method.

    >>> _group("split-mnist-tuning", "er+gmed(alpha=0.1)"), _group("split-mnist", "er+gmed(alpha=0.1)")
    (('split-mnist-tuning', 'er+gmed'), ('split-mnist', 'er+gmed(alpha=0.1)'))
    """
    is_tuning = BenchmarkId.parse(benchmark).tuning
    return benchmark, "+".join(part.name for part in parse(method)) if is_tuning else method


def rm(
    benchmark: Annotated[str, typer.Argument(help="The benchmark whose runs are removed")],
    methods: Annotated[list[str] | None, typer.Argument(help="Only these methods")] = None,
    failed: Annotated[bool, typer.Option("--failed", help="Only failed runs")] = False,
    extension: Extension = None,
    store: StoreFile = None,
) -> None:
    """Remove runs from the store. Requesting them again recomputes them."""
    with Store(_require_store(store)) as run_store:
        benchmark, *others = run_store.matching_benchmarks(benchmark)
        if others:
            raise UsageError(f"several benchmarks match; choose one of {', '.join(map(repr, (benchmark, *others)))}")
        names = [resolve(get_benchmark(benchmark), method).name for method in methods or []]
        removed = run_store.remove(benchmark, names, failed=failed)
    make_console().print(f"removed {removed} run{'' if removed == 1 else 's'}")


def export(
    file: Annotated[str, typer.Argument(help="Output file: .csv, .json or .parquet")],
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
    other: Annotated[str, typer.Argument(help="Another store, or a results document (.json)")],
    extension: Extension = None,
    store: StoreFile = None,
) -> None:
    """Import runs from another store or a results document. On conflict, the local result is kept."""
    file = Path(other)
    if not file.exists():
        raise UsageError(f"{other}: no such file")
    if not file.is_file():
        raise UsageError(f"{other}: cannot be read (not a file)")
    document = Document.read(file) if file.suffix == ".json" else None
    with document.load_results() if document else Store(other) as source, Store(store or default_store()) as target:
        outdated = len(document.runs) - len(source.keys()) if document else 0
        merged = target.merge(source)
    console = make_console()
    observed = f", {merged.observed} observations added" if merged.observed else ""
    console.print(f"{merged.added} added, {merged.known} already in the store{observed}")
    if outdated:
        console.print(f"{outdated} skipped: they were computed by code that has changed or is not loaded")
    for conflict in merged.conflicts:
        console.print(f"conflict, kept the local result: {conflict}")
    if merged.damaged:
        console.print(f"{len(merged.damaged)} damaged, skipped: {'; '.join(merged.damaged)}", soft_wrap=True)
    raise typer.Exit(EXIT_RUN_FAILED if merged.conflicts or merged.damaged else EXIT_OK)


def require_results(results: Results, benchmark: str | None, methods: Sequence[str], note: str = "") -> None:
    """Raise an error if there are no results of what was asked for; it says of what there are."""
    if results.runs or results.failures:
        return
    store = results.store or default_store()
    everything, _ = stored_results(store)
    stored = {name: ", ".join(by_method(runs)) for name, runs in by_benchmark(everything.runs).items()}
    if benchmark is None or not stored:
        raise UsageError(f"{store}: nothing to report; {note or 'create results with gmed run'}")
    asked = f"{benchmark} with {', '.join(methods)}" if methods else benchmark
    known = f"it has results of {', '.join(stored)}"
    if benchmark in stored:
        known = f"there are results with {stored[benchmark]}"
    raise UsageError(f"{store}: no results of {asked}; {note or known}")


def with_baseline(results: Results, baseline: str | None) -> Results:
    """Return results whose gains are over a baseline, or raise an error if nothing can be compared with it."""
    results = replace(results, baseline=baseline)
    if baseline is not None and all(row.gain is None for row in results.rows()):
        shown = ", ".join(by_method(results.runs))
        raise UsageError(f"no method has runs at the same seeds as the baseline {baseline}; methods shown: {shown}")
    return results


def _require_store(store: str | None) -> str:
    path = store or default_store()
    if not Path(path).exists():
        raise UsageError(f"{path}: no results yet; create some with gmed run")
    return path
