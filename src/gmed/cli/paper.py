"""The command for the paper: gmed reproduce."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gmed.cli.console import LiveProgress, make_console, show_artifact, show_artifact_status
from gmed.cli.exit import EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED
from gmed.cli.options import with_options
from gmed.errors import UsageError
from gmed.experiment import MAX_SEEDS, default_store
from gmed.paper.artifacts import ARTIFACTS, Request, get_artifact
from gmed.paper.status import artifact_status


def register_reproduce(app: typer.Typer) -> None:
    """Add ``reproduce`` to the program."""
    app.command("reproduce")(_reproduce)


@with_options("device", "workers", "data_dir", "store")
def _reproduce(
    target: Annotated[str | None, typer.Argument(help="A table or figure: main, ablation, cosine, tsne ...")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List the targets and the runs each still needs")] = False,
    estimate: Annotated[
        bool | None, typer.Option("--estimate/--no-estimate", help="With --list: measure speed to estimate times [yes]")
    ] = None,
    benchmarks: Annotated[str | None, typer.Option(help="Only these columns: split-mnist,rotated-mnist")] = None,
    seeds: Annotated[
        int | None, typer.Option(min=1, max=MAX_SEEDS, help="Number of seeds [as in the paper, 10 or 20]")
    ] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Smoke test: three seeds on one column")] = False,
    out: Annotated[str, typer.Option(help="Output folder for figures")] = "figures",
    *,
    options: dict[str, Any],
    as_json: Annotated[bool, typer.Option("--json", help="Print only a JSON document")] = False,
) -> None:
    """Reproduce a table or figure of the paper and compare it with the published numbers."""
    if show_list or target is None:
        _list(options, estimate is not False, as_json)
        return
    if estimate is not None:
        raise UsageError("--estimate and --no-estimate require --list")
    run_options = {"store": default_store(), **options}
    columns = [name.strip() for name in (benchmarks or "").split(",") if name.strip()]
    if quick and seeds:
        raise UsageError("--quick uses three seeds and cannot be combined with --seeds")
    artifact = get_artifact(target)
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
        show_artifact(make_console(), result)
    raise typer.Exit(EXIT_RUN_FAILED if result.failures else EXIT_OK)


def _close_all(displays: list[LiveProgress]) -> None:
    for display in displays:
        display.__exit__(None, None, None)
    displays.clear()


def _list(options: dict[str, Any], estimate: bool, as_json: bool) -> None:
    console = make_console(stderr=True)

    def announce(benchmark: str, method: str) -> None:
        console.print(f"measuring {benchmark} {method}")

    measure = announce if estimate else None
    status_options = {name: options[name] for name in ("store", "data_dir", "device") if name in options}
    statuses = artifact_status(ARTIFACTS.values(), measure=measure, **status_options)
    if as_json:
        print(json.dumps([status.to_dict() for status in statuses], indent=2))
    else:
        show_artifact_status(make_console(), statuses)
