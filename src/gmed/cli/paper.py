"""The command for the paper: gmed reproduce."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from gmed.cli.console import LiveProgress, make_console, print_json, render_table, resumable, show_failure
from gmed.cli.exit import EXIT_OK, EXIT_RUN_FAILED
from gmed.cli.options import Json, with_options
from gmed.engine.benchmarks import tuning_name
from gmed.errors import UsageError
from gmed.experiment import MAX_SEEDS, default_store
from gmed.paper import quantities
from gmed.paper.artifacts import ARTIFACTS, Artifact, ArtifactResult, Request, get_artifact
from gmed.paper.plan import QUICK_WARNING, PlannedRuns
from gmed.paper.status import ArtifactStatus, artifact_status
from gmed.paper.tables import Reproduction
from gmed.results.formatting import format_duration, format_gain, format_mean_std, format_number, format_p
from gmed.results.stats import Comparison, describe_levels
from gmed.results.tables import METHOD, MISSING, Cell, Table, numbers, texts

MANY_RUNS = 20
"""Minimum number of runs whose total time is estimated before they start."""


@with_options("device", "workers", "data_dir", "store")
def reproduce(
    target: Annotated[str | None, typer.Argument(help="A table or figure: main, ablation, cosine, tsne ...")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the targets and the runs each still needs")] = False,
    estimate: Annotated[
        bool | None, typer.Option("--estimate/--no-estimate", help="Measure the speed to estimate times [yes]")
    ] = None,
    benchmarks: Annotated[str | None, typer.Option(help="Only these columns: split-mnist,rotated-mnist")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MAX_SEEDS, help="Number of seeds [as in the paper, 10 or 20]")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start without asking, however long it takes")] = False,
    all_tests: Annotated[
        bool, typer.Option("--all-tests", help="Also show the permutation test and corrected p-values")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Smoke test: three seeds on one column")] = False,
    out: Annotated[str, typer.Option(help="Output folder for figures")] = "figures",
    *,
    options: dict[str, Any],
    as_json: Json = False,
) -> None:
    """Reproduce a table or figure of the paper, next to its numbers."""
    if show_list or target is None:
        _list(options, estimate is not False, as_json)
        return
    run_options = {"store": default_store(), **options}
    columns = [name.strip() for name in (benchmarks or "").split(",") if name.strip()]
    if quick and seeds:
        raise UsageError("--quick uses three seeds and cannot be combined with --seeds")
    artifact = get_artifact(target)
    if not quick:
        _announce(artifact, columns, seeds, options, measure=estimate is not False, ask=not yes)
    kept = f"Progress is stored in {run_options['store']}; run the same command again to resume."
    with resumable(kept if artifact.cached else "Nothing was stored."), ExitStack() as display:

        def watch() -> LiveProgress:
            display.close()  # that of the runs before
            return display.enter_context(LiveProgress(make_console(stderr=True)))

        result = artifact.run(Request(columns, seeds, quick, Path(out), watch, run_options))
    if as_json:
        print_json(result.to_dict())
    else:
        show_artifact(make_console(), result, all_tests=all_tests)
    raise typer.Exit(EXIT_RUN_FAILED if result.failures else EXIT_OK)


def _announce(
    artifact: Artifact, columns: list[str], seeds: int | None, options: dict[str, Any], *, measure: bool, ask: bool
) -> None:
    """Announce the number of runs and their estimated time; in a terminal, ask whether to start them."""
    console, selected = make_console(stderr=True), {*columns, *map(tuning_name, columns)}
    plan = [item for item in artifact.plan() if not columns or item.benchmark in selected]
    plan = [item._replace(seeds=seeds or item.seeds) for item in plan]
    if sum(item.seeds for item in plan) < MANY_RUNS:
        return
    known = _status(artifact, options, plan)
    if (count := known.needed - known.stored - known.elsewhere) < MANY_RUNS:
        return
    if measure and known.unknown:
        console.print(f"{artifact.location}: measuring how long {count} runs take")
        known = _status(artifact, options, plan, measure=lambda benchmark, method: None)
    seconds = f"about {format_duration(known.seconds)}" if known.seconds else "an unknown time"
    more = f", and {known.unknown} of unknown speed" if known.seconds and known.unknown else ""
    stored = f" ({known.stored} more are stored)" if known.stored else ""
    console.print(f"{artifact.location}: {count} runs to do{stored}, {seconds} on this machine{more}")
    if ask and sys.stdin.isatty() and console.is_terminal and not typer.confirm("Start?", default=True, err=True):
        console.print("Nothing was started. Fewer runs: --benchmarks, --seeds or --quick.")
        raise typer.Exit(EXIT_OK)


def _status(artifact: Artifact, options: dict[str, Any], plan: list[PlannedRuns], **measure: Any) -> ArtifactStatus:
    (status,) = artifact_status([artifact], plan=lambda _: plan, **_status_options(options), **measure)
    return status


def _status_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("store", "data_dir", "device") if name in options}


def _list(options: dict[str, Any], estimate: bool, as_json: bool) -> None:
    console = make_console(stderr=True)

    def announce(benchmark: str, method: str) -> None:
        console.print(f"measuring {benchmark} {method}")

    measure = announce if estimate else None
    statuses = artifact_status(ARTIFACTS.values(), measure=measure, **_status_options(options))
    if as_json:
        print_json([status.to_dict() for status in statuses])
    else:
        show_artifact_status(make_console(), statuses)


def show_artifact(console: Console, result: ArtifactResult | Reproduction, *, all_tests: bool = False) -> None:
    """Print a reproduced table or figure: measured and published numbers, and the files that were written."""
    if isinstance(result, Reproduction):
        show_reproduction(console, result, all_tests=all_tests)
        return
    if result.table is not None:
        show_reproduction(console, result.table, all_tests=all_tests)
    else:
        artifact = result.artifact
        console.print(f"{artifact.location}: {artifact.title}.{' ' + QUICK_WARNING if result.quick else ''}")
    if result.numbers:
        _show_numbers(console, result)
    for c in result.comparisons:
        _show_comparison(console, c, len(result.comparisons) if all_tests else None)
    for note in result.notes:
        console.print(note)
    if result.table is None:
        for name, reason in result.missing.items():
            console.print(f"skipped: {name}: {reason}")
    already_shown = result.table.failures if result.table is not None else []
    for failure in result.failures:
        if failure not in already_shown:
            show_failure(console, failure)
    if result.files:
        first, *others = result.files
        console.print(", ".join([f"wrote {first}", *(path.suffix for path in others)]), soft_wrap=True)


SELECTIONS = {"its means": "the paper's means", "ours": "the measured means"}
"""Ways to select the best methods, as shown, by their names in JSON."""


def show_reproduction(console: Console, reproduction: Reproduction, *, all_tests: bool = False) -> None:
    """Print a table of the paper next to the measured results for each benchmark, then its comparisons."""
    target = reproduction.target
    console.print(f"{target.table}: {target.title}.{' ' + QUICK_WARNING if reproduction.quick else ''}")
    for benchmark in dict.fromkeys(row.cell.benchmark for row in reproduction.rows):
        table = Table([METHOD, *numbers("n", "measured", "paper", "difference [95%]")], f"{benchmark}: accuracy %")
        for row in reproduction.rows:
            if row.cell.benchmark == benchmark:
                paper, difference = row.cell.published, row.difference
                interval = "" if math.isnan(difference.low) else f" [{difference.low:+.2f}, {difference.high:+.2f}]"
                published = Cell(format_mean_std(paper.mean, paper.std), paper.mean, marks=paper.marks)
                measured = format_mean_std(row.mean, row.std)
                table.add(row.cell.method, row.n, measured, published, f"{difference.mean:+.2f}{interval}")
        console.print(render_table(table, boxed=True))
    if reproduction.rows:
        console.print(f"({_describe_intervals(reproduction)})")
    for c in reproduction.comparisons:
        _show_comparison(console, c, len(reproduction.comparisons) if all_tests else None)
    if reproduction.comparisons and not reproduction.quick:
        console.print(
            f"(marks as in the paper, by the uncorrected one-tailed paired t-test: {describe_levels(target.levels)})"
        )
    for c in reproduction.best:
        selected = ", ".join(SELECTIONS.get(name, name) for name in c.selected_by.split(", "))
        console.print(f"The best edited method against the previous best, by {selected}:")
        _show_comparison(console, c, len(reproduction.best) if all_tests else None)
    if reproduction.best:
        level = "" if reproduction.quick else f"† p < {max(target.levels):g}; "
        console.print(f"({level}differences are biased upwards where the measured means select the methods)")
    for benchmark, reason in reproduction.missing.items():
        console.print(f"skipped: {benchmark}: {reason}")
    for failure in reproduction.results.failures:
        show_failure(console, failure)


def _describe_intervals(reproduction: Reproduction) -> str:
    """Describe whose variance the confidence intervals of differences from the paper include."""
    published = [row.cell.published for row in reproduction.rows]
    if all(number.std is None for number in published):
        return "the paper gives no standard deviations here: intervals account only for the measured runs"
    if any((number.location, number.quantity) == (reproduction.target.table, "runs") for number in quantities()):
        return "intervals account for the measured runs and those of the paper"
    counts = " or ".join(str(n) for n in sorted({number.n for number in published if number.n}))
    return f"the paper does not state the number of runs for this table; intervals assume {counts}"


def _show_comparison(console: Console, c: Comparison, comparisons: int | None) -> None:
    """Print a gain next to the published one; given the number of comparisons, also the other tests."""
    console.print(f"{c.benchmark}: {c.method} over {c.baseline}: {format_gain(c.gain, c.marks)}")
    if c.published_gain is not None:
        p_text = "" if c.published_p is None else f", p = {c.published_p:g}"
        console.print(f"  paper {c.published_gain:+.2f}{c.published_marks or ''}{p_text}")
    if comparisons is not None and not math.isnan(c.gain.p):
        console.print(
            f"  permutation test p {format_p(c.permutation_p)}; p {format_p(c.corrected_p)} corrected for "
            + (f"the {comparisons} shown" if comparisons > 1 else "1 comparison")
        )


def _show_numbers(console: Console, result: ArtifactResult) -> None:
    table = Table([*texts("benchmark", "quantity"), *numbers("n", "measured", "paper")])
    for number in result.numbers:
        paper = MISSING if number.published is None else format_number(number.published, number.published_std)
        table.add(number.benchmark, number.quantity, number.n, format_number(number.mean, number.std), paper)
    console.print(render_table(table, boxed=True))
    for number in result.numbers:
        if (difference := number.difference) is not None and difference.low < difference.high:
            console.print(
                f"{number.benchmark}: {number.quantity}: {difference.mean:+.3g} vs. the paper,\n"
                f"  95% interval [{difference.low:+.3g}, {difference.high:+.3g}], {number.n} runs"
            )


def show_artifact_status(console: Console, statuses: Sequence[ArtifactStatus]) -> None:
    """Print the artifacts that can be reproduced, with what they show, their data sets and the remaining work."""
    headings = texts("target\n  in the paper", "shows\n  data sets"), numbers("runs stored\nseeds", "time\nleft")
    table = Table([*headings[0], *headings[1]])
    for status in statuses:
        artifact = status.artifact
        datasets = " ".join(name if available else f"{name}*" for name, available in status.data.items())
        stored = f"{status.stored if status.cached else '-'}/{status.needed}"
        stored += f"\n{' to '.join(map(str, sorted(set(status.seeds))))}"
        first, second = f"{artifact.name}\n  {artifact.location.split(',')[0]}", f"{artifact.title}\n  {datasets}"
        table.add(first, second, stored, _time_left(status))
    console.print(render_table(table, gap=1))
    notes = {
        "* missing; run gmed data to see how to get it. Times exclude these.": any(
            not available for status in statuses for available in status.data.values()
        ),
        "- always recomputed, never stored.": not all(status.cached for status in statuses),
        "? unknown, + plus an unknown amount.": any(status.unknown for status in statuses),
        "gmed reproduce TARGET completes the missing runs; --quick is a smoke test.": True,
    }
    for note, applies in notes.items():
        if applies:
            console.print(note)


def _time_left(status: ArtifactStatus) -> str:
    known = format_duration(status.seconds) if status.seconds else ""
    if status.unknown:
        return f"{known}+" if known else "?"
    return known or ("none here" if status.elsewhere else "none")
