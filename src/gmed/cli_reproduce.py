"""The command line of the paper: gmed reproduce."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.table import Table

from gmed.errors import UsageError
from gmed.experiment import default_store
from gmed.paper.targets import TARGETS
from gmed.reproduce import in_store, reproduce
from gmed.terminal import DONE, INTERRUPTED, RUN_FAILED, LiveProgress, make_console, show_reproduction


def add_reproduce(app: typer.Typer) -> None:
    """Make it a command of the program."""
    app.command("reproduce")(_reproduce)


def _reproduce(
    target: Annotated[str | None, typer.Argument(help="A table of the paper: main, ablation, gamma ...")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="What there is, and what the store has of it")] = False,
    benchmarks: Annotated[str | None, typer.Option(help="Only these columns: split-mnist,rotated-mnist")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="How many [the paper's, 10 or 20]")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Three seeds on one column: a try, not a result")] = False,
    device: Annotated[str | None, typer.Option(help="auto, cpu or cuda [auto]")] = None,
    workers: Annotated[int | None, typer.Option(help="Worker processes [one per core]")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder of the data set [the packaged one]")] = None,
    store: Annotated[str | None, typer.Option(help="SQLite file of results [$GMED_STORE, else gmed.db here]")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON document and nothing else")] = False,
) -> None:
    """Compute a table of the paper anew and set ours beside the published one."""
    if show_list or target is None:
        _list(store)
        return
    given = {"device": device, "workers": workers, "data_dir": data_dir, "store": store or default_store()}
    how: dict[str, Any] = {k: v for k, v in given.items() if v is not None}
    columns = [name for name in (benchmarks or "").split(",") if name]
    if quick and seeds:
        raise UsageError("--quick has three seeds; leave out one of --quick and --seeds")
    console, opened = make_console(stderr=True), list[LiveProgress]()

    def watch() -> LiveProgress:
        _close(opened)
        opened.append(LiveProgress(console))
        return opened[-1]

    try:
        found = reproduce(target, benchmarks=columns, seeds=seeds, quick=quick, watcher=watch, **how)
    except KeyboardInterrupt:
        _close(opened)
        console.print(f"Stopped. What is finished is kept in {how['store']}; the same command goes on from there.")
        raise typer.Exit(INTERRUPTED) from None
    finally:
        _close(opened)
    if as_json:
        print(json.dumps(found.to_dict(), indent=2))
    else:
        show_reproduction(make_console(), found)
    raise typer.Exit(RUN_FAILED if found.results.failures else DONE)


def _close(opened: list[LiveProgress]) -> None:
    for progress in opened:
        progress.__exit__(None, None, None)
    opened.clear()


def _list(store: str | None) -> None:
    console = make_console()
    shown = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("target", "in the paper", "shows", "runs stored"):
        shown.add_column(heading, justify="right" if heading == "runs stored" else "left")
    for name, target in TARGETS.items():
        kept, needed = in_store(target, store)
        shown.add_row(name, target.table, target.title, f"{kept}/{needed}")
    console.print(shown)
    console.print("gmed reproduce TARGET --quick tries one; gmed data says which data sets are here.")
