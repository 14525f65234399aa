"""The command for tuning: gmed tune."""

from __future__ import annotations

import json
import warnings
from dataclasses import asdict
from typing import Annotated, Any

import typer

from gmed.cli.console import LiveProgress, make_console, show_tuning
from gmed.cli.exit import EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED
from gmed.cli.options import with_options
from gmed.errors import UsageError
from gmed.experiment import default_store
from gmed.results.results import nan_to_none
from gmed.results.tuning import EXAMPLES
from gmed.tuning import TuningWarning, tune


def register_tune(app: typer.Typer) -> None:
    """Add ``tune`` to the program."""
    app.command("tune")(_tune)


@with_options(
    "memory", "device", "workers", "cluster", "data_dir", "name", "label", "split", "drop", "extensions", "store"
)
def _tune(
    benchmark: Annotated[str, typer.Argument(help="A benchmark, or your own data: .csv, .parquet, .npz, folder")],
    method: Annotated[
        str, typer.Argument(help="A method with an edit: er+gmed, mir+adv-edit; with --grid also another")
    ],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="Values of a parameter in place of the paper's: alpha=0.1,1,10; a range and the number of its "
            "values: lr=0.01:0.1:3; may be repeated"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per candidate")] = 5,
    *,
    options: dict[str, Any],
    as_json: Annotated[bool, typer.Option("--json", help="Print only a JSON document")] = False,
) -> None:
    """Tune hyper-parameters on held-out examples of the first tasks."""
    path = options.pop("store", None) or default_store()
    progress = LiveProgress(make_console(stderr=True))
    try:
        with progress, warnings.catch_warnings():
            warnings.simplefilter("ignore", TuningWarning)  # shown below the scores
            values = _parse_grid(grid) if grid else None
            tuned = tune(benchmark, method, grid=values, seeds=seeds, store=path, callback=progress, **options)
    except KeyboardInterrupt:
        progress.console.print(f"Stopped. Finished runs are stored in {path}; run the same command again to resume.")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    if as_json:
        tried = [{**dict(zip(tuned.parameters, p, strict=True)), "score": s} for p, s in tuned.scores.items()]
        document = {
            "benchmark": tuned.benchmark,
            "method": tuned.method,
            "chosen": tuned.chosen,
            "recommended": tuned.recommended,
            "tried": tried,
            "baselines": [{"method": name, "score": score} for name, score in tuned.baselines.items()],
            "gain": nan_to_none(asdict(tuned.gain)) if tuned.gain else None,
            "notes": tuned.notes,
        }
        print(json.dumps(document, indent=2))
    else:
        show_tuning(make_console(), tuned)
    raise typer.Exit(EXIT_RUN_FAILED if tuned.failures else EXIT_OK)


def _parse_grid(words: list[str]) -> dict[str, str]:
    """Return the values of each parameter as they were typed, by its name."""
    grid: dict[str, str] = {}
    for word in words:
        name, equals, values = (part.strip() for part in word.partition("="))
        if not (name and equals):
            raise UsageError(f"--grid {word}: write it as NAME=VALUES: {EXAMPLES}")
        if name in grid:
            raise UsageError(f"--grid {word}: {name} is given twice")
        grid[name] = values
    return grid
