"""The command for tuning: gmed tune."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer

from gmed.cli.console import LiveProgress, make_console, show_tuning
from gmed.cli.exit import EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED
from gmed.cli.options import with_options
from gmed.experiment import default_store
from gmed.tuning import tune


def register_tune(app: typer.Typer) -> None:
    """Add ``tune`` to the program."""
    app.command("tune")(_tune)


@with_options("device", "workers", "cluster", "data_dir", "name", "label", "split", "drop", "extensions", "store")
def _tune(
    benchmark: Annotated[str, typer.Argument(help="A benchmark, or your own data: .csv, .parquet, .npz, folder")],
    method: Annotated[str, typer.Argument(help="A method with an edit: er+gmed, mir+adv-edit")],
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per candidate")] = 5,
    *,
    options: dict[str, Any],
    as_json: Annotated[bool, typer.Option("--json", help="Print only a JSON document")] = False,
) -> None:
    """Tune the hyper-parameters of an edit as in the paper. Held-out examples of the first three tasks decide."""
    path = options.pop("store", None) or default_store()
    progress = LiveProgress(make_console(stderr=True))
    try:
        with progress:
            tuned = tune(benchmark, method, seeds=seeds, store=path, callback=progress, **options)
    except KeyboardInterrupt:
        progress.console.print(f"Stopped. Finished runs are stored in {path}; run the same command again to resume.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        tried = [{**dict(zip(tuned.parameters, p, strict=True)), "score": s} for p, s in tuned.scores.items()]
        print(
            json.dumps(
                {"benchmark": tuned.benchmark, "method": method, "chosen": tuned.chosen, "tried": tried},
                indent=2,
            )
        )
    else:
        show_tuning(make_console(), tuned)
    raise typer.Exit(EXIT_RUN_FAILED if tuned.failures else EXIT_OK)
