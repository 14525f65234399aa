"""The command for the paper: gmed reproduce."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gmed.cli.console import LiveProgress, make_console, show_artifact, show_artifact_status
from gmed.cli.exit import EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED
from gmed.cli.options import with_options
from gmed.engine.benchmarks import tuning_name
from gmed.errors import UsageError
from gmed.experiment import MAX_SEEDS, default_store
from gmed.paper.artifacts import ARTIFACTS, Artifact, Request, get_artifact
from gmed.paper.plan import PlannedRuns
from gmed.paper.status import ArtifactStatus, artifact_status
from gmed.results.formatting import format_duration

MANY_RUNS = 20
"""Number of runs from which the time they take is estimated before they start."""


def register_reproduce(app: typer.Typer) -> None:
    """Add ``reproduce`` to the program."""
    app.command("reproduce")(_reproduce)


@with_options("device", "workers", "data_dir", "store")
def _reproduce(
    target: Annotated[str | None, typer.Argument(help="A table or figure: main, ablation, cosine, tsne ...")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the targets and the runs each still needs")] = False,
    estimate: Annotated[
        bool | None, typer.Option("--estimate/--no-estimate", help="Measure speed to estimate times [yes]")
    ] = None,
    benchmarks: Annotated[str | None, typer.Option(help="Only these columns: split-mnist,rotated-mnist")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MAX_SEEDS, help="Number of seeds [as in the paper, 10 or 20]")
    ] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Start without a question, however long it takes")] = False,
    all_tests: Annotated[
        bool, typer.Option("--all-tests", help="Also show the permutation test and corrected p-values")
    ] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Smoke test: three seeds on one column")] = False,
    out: Annotated[str, typer.Option(help="Output folder for figures")] = "figures",
    *,
    options: dict[str, Any],
    as_json: Annotated[bool, typer.Option("--json", help="Print only a JSON document")] = False,
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
    console, displays = make_console(stderr=True), list[LiveProgress]()

    def watch() -> LiveProgress:
        _close_all(displays)
        displays.append(LiveProgress(console))
        return displays[-1]

    try:
        result = artifact.run(Request(columns, seeds, quick, Path(out), watch, run_options))
    except KeyboardInterrupt:
        _close_all(displays)
        resume_hint = f"Progress is stored in {run_options['store']}; run the same command again to resume."
        console.print(f"Stopped. {resume_hint if artifact.cached else 'Nothing was stored.'}")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    finally:
        _close_all(displays)
    if as_json:
        print(json.dumps(result.to_dict(), indent=2))
    else:
        show_artifact(make_console(), result, all_tests=all_tests)
    raise typer.Exit(EXIT_RUN_FAILED if result.failures else EXIT_OK)


def _announce(
    artifact: Artifact, columns: list[str], seeds: int | None, options: dict[str, Any], *, measure: bool, ask: bool
) -> None:
    """Say how many runs are about to start and how long they take and, in a terminal, ask whether to start them."""
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
    console.print(f"{artifact.location}: {count} runs to compute{stored}, {seconds} here{more}")
    if ask and sys.stdin.isatty() and console.is_terminal and not typer.confirm("Start?", default=True, err=True):
        console.print("Nothing was started. Fewer runs: --benchmarks, --seeds or --quick.")
        raise typer.Exit(EXIT_OK)


def _status(artifact: Artifact, options: dict[str, Any], plan: list[PlannedRuns], **measure: Any) -> ArtifactStatus:
    (status,) = artifact_status([artifact], plan=lambda _: plan, **_status_options(options), **measure)
    return status


def _status_options(options: dict[str, Any]) -> dict[str, Any]:
    return {name: options[name] for name in ("store", "data_dir", "device") if name in options}


def _close_all(displays: list[LiveProgress]) -> None:
    for display in displays:
        display.__exit__(None, None, None)
    displays.clear()


def _list(options: dict[str, Any], estimate: bool, as_json: bool) -> None:
    console = make_console(stderr=True)

    def announce(benchmark: str, method: str) -> None:
        console.print(f"measuring {benchmark} {method}")

    measure = announce if estimate else None
    statuses = artifact_status(ARTIFACTS.values(), measure=measure, **_status_options(options))
    if as_json:
        print(json.dumps([status.to_dict() for status in statuses], indent=2))
    else:
        show_artifact_status(make_console(), statuses)
