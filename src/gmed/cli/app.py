"""The command line."""

from __future__ import annotations

import gc
import json
import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import torch
import typer

from gmed._version import __version__
from gmed.callbacks import Callback
from gmed.cli.completion import register_completion
from gmed.cli.console import LiveProgress, make_console, render_table, show_metrics, show_results, show_speeds
from gmed.cli.data import data_app
from gmed.cli.doctor import register_doctor
from gmed.cli.epilogs import OrderedGroup, register_epilogs
from gmed.cli.exit import EXIT_INTERRUPTED, EXIT_OK, EXIT_RUN_FAILED, run_program
from gmed.cli.fit import register_fit
from gmed.cli.options import Baseline, DataDir, Extension, Model, StoreFile, with_options
from gmed.cli.paper import register_reproduce
from gmed.cli.report import register_report
from gmed.cli.results import register_results
from gmed.cli.tune import register_tune
from gmed.cli.watch import register_watch
from gmed.engine import BenchmarkId
from gmed.engine.bench import bench as measure
from gmed.engine.bench import environment_of
from gmed.engine.benchmarks import BENCHMARKS, Benchmark
from gmed.engine.custom_model import ModelRef
from gmed.errors import check_int
from gmed.experiment import Experiment, default_store, outdated_note, stored_results
from gmed.integrations.tensorboard import TensorBoardCallback
from gmed.io.user_code import load_entry_points
from gmed.registry import EDITS, MEMORIES, METHODS, RETRIEVALS, defaults_for
from gmed.report.grouping import without_tuning
from gmed.results import Results
from gmed.results.tables import Table, texts

app = typer.Typer(
    cls=OrderedGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

app.add_typer(data_app, name="data")
register_results(app)
register_report(app)
register_reproduce(app)
register_tune(app)
register_doctor(app)
register_watch(app)
register_fit(app)
register_completion(app)

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, nothing else")]


def _version(wanted: bool) -> None:
    if wanted:
        print(f"gmed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Online, task-free continual learning with an editable replay memory."""


@app.command()
@with_options()
def run(
    benchmark: Annotated[
        str,
        typer.Argument(
            help="A benchmark; data of your own (.csv, .parquet, .npz, folder); an experiment (.toml, .yaml)"
        ),
    ],
    methods: Annotated[list[str] | None, typer.Argument(help="Methods: er, er+gmed, 'er+gmed(alpha=1.0)'")] = None,
    *,
    options: dict[str, Any],
    tensorboard: Annotated[str | None, typer.Option(help="Folder that curves are written into, live")] = None,
    rerun: Annotated[bool, typer.Option("--rerun", help="Compute anew what the store has")] = False,
    baseline: Baseline = None,
    as_json: Json = False,
) -> None:
    """Run methods on a benchmark over seeds; finished runs are kept and never computed again."""
    if benchmark.endswith((".toml", ".yaml", ".yml")):
        experiment = Experiment.from_file(Path(benchmark), methods=methods or None, **options)
    else:
        experiment = Experiment(benchmark, methods or [], **options)

    progress = LiveProgress(make_console(stderr=True))
    try:
        with ExitStack() as stack:
            callback: Callback = stack.enter_context(progress)
            if tensorboard is not None:
                callback = stack.enter_context(TensorBoardCallback(Path(tensorboard), progress))
            results = experiment.run(rerun=rerun, callback=callback)
    except KeyboardInterrupt:
        progress.console.print(
            f"Stopped. Finished runs are kept in {experiment.store}, others from their last checkpoint on; "
            "the same command goes on from there.",
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _print(replace(results, baseline=baseline), as_json)
    raise typer.Exit(EXIT_RUN_FAILED if results.failures else EXIT_OK)


@app.command()
def table(
    benchmark: Annotated[str | None, typer.Argument(help="Only this benchmark")] = None,
    methods: Annotated[list[str] | None, typer.Argument(help="Only these methods")] = None,
    metrics: Annotated[bool, typer.Option("--metrics", help="Forgetting, transfer and the like instead")] = False,
    baseline: Baseline = None,
    extension: Extension = None,
    store: StoreFile = None,
    as_json: Json = False,
) -> None:
    """Show stored results beside the published ones."""
    results, outdated = stored_results(store or default_store(), benchmark, methods or [])
    notes = [outdated_note(store or default_store(), outdated)]
    if benchmark is None or not BenchmarkId.parse(benchmark).tuning:
        notes.append(_tuning_left_out(results))
        results = without_tuning(results)
    for note in filter(None, notes):
        make_console(stderr=True).print(note, soft_wrap=True)
    if metrics and not as_json:  # the JSON document holds the metrics of every run
        show_metrics(make_console(), results)
    else:
        _print(replace(results, baseline=baseline), as_json)


@app.command()
def bench(
    benchmark: Annotated[str, typer.Argument(help="A benchmark; random images in its shape are used")],
    methods: Annotated[list[str], typer.Argument(help="Methods: er, er+gmed")],
    replicas: Annotated[str | None, typer.Option(help="Learners that advance together, on a GPU: 1,20")] = None,
    steps: Annotated[int, typer.Option(help="Steps measured, after 200 to warm up")] = 400,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    model: Model = None,
    extension: Extension = None,
    as_json: Json = False,
) -> None:
    """Measure how fast methods step here, and on a GPU several together."""
    counts = None if replicas is None else [_count("replicas", part.strip()) for part in replicas.split(",")]
    console, speeds = make_console(), []
    torch.set_num_threads(1)
    if model is not None:
        benchmark = str(replace(BenchmarkId.parse(benchmark), model=ModelRef.from_user(model)))
    for method in methods:
        speeds += measure(benchmark, method, replicas=counts, steps=check_int("steps", steps), device=device)
    environment = environment_of(device)
    if as_json:
        print(json.dumps({"environment": environment, "speeds": [speed.to_dict() for speed in speeds]}, indent=2))
    else:
        show_speeds(console, speeds, environment)


def _count(name: str, text: str) -> int:
    return check_int(name, int(text) if text.isdecimal() else text)


@app.command("list")
def list_(
    data_dir: DataDir = None,
    extension: Extension = None,
) -> None:
    """List benchmarks, and methods with their parameters."""
    console = make_console()
    load_entry_points()
    folder = Path(data_dir) if data_dir else None
    shown = Table(texts("name", "data", "stream"), "Benchmarks")
    sharp = [b for b in BENCHMARKS.values() if not b.fuzzy and not b.tuning]
    problems = {b.name: b.missing_data(folder) for b in sharp}
    for b in sharp:
        shown.add(b.name, "missing" if problems[b.name] else "present", b.summary)
    console.print(render_table(shown))
    console.print("Each also with --fuzzy, where tasks fade into each other.")
    if any(problems.values()):
        console.print("gmed data says how to get what is missing.")

    shown = Table(texts("name", "parameters", "what it is"), "\nMethods")
    for name, entry in METHODS.items():
        shown.add(name, _defaults(entry.parameters()), entry.summary)
    for name, entry in {**MEMORIES, **RETRIEVALS, **EDITS}.items():
        shown.add(f"...+{name}", _defaults(entry.parameters()), entry.summary)
    console.print(render_table(shown))
    console.print("\nDefaults of each benchmark")
    for b in sharp:
        console.print(f"{b.name}: {_pairs(b.settings)}; {', '.join(_defaults_on(b))}")
    console.print("\nA method with parameters: 'er(memory=200)+gmed(alpha=1.0,steps=3)'")


register_epilogs(app)


def _defaults_on(benchmark: Benchmark) -> Iterator[str]:
    """What methods and edits take there, where a benchmark says so."""
    where = benchmark.defaults_key, benchmark.family
    for name, entry in {**METHODS, **EDITS}.items():
        if values := entry.defaults_on(*where):
            yield f"{name}({_pairs(values)})"
        for edit, declared in entry.edits_on_benchmarks.items():
            if values := defaults_for(declared, *where):
                yield f"{name}+{edit}({_pairs(values)})"


def _pairs(settings: Any) -> str:
    return ", ".join(f"{k}={str(v).lower() if isinstance(v, bool) else f'{v:g}'}" for k, v in settings.items())


def _defaults(parameters: dict[str, Parameter]) -> str:
    return ", ".join(k if p.default is p.empty else f"{k}={p.default}".lower() for k, p in parameters.items())


def _tuning_left_out(results: Results) -> str:
    """How many runs of tuning there are, and how to see them, in words; nothing where there are none."""
    ended = [*(run.benchmark for run in results.runs), *(failure.benchmark for failure in results.failures)]
    tuning_runs = [name for name in ended if BenchmarkId.parse(name).tuning]
    names = " or ".join(map(shlex.quote, dict.fromkeys(tuning_runs)))
    return f"runs of tuning are left out ({len(tuning_runs)}); to see them: gmed table {names}" if tuning_runs else ""


def _print(results: Results, as_json: bool) -> None:
    if as_json:
        print(json.dumps(results.to_dict(), indent=2))
        return
    console = make_console()
    show_results(console, results)
    if results.store is not None:
        console.print(f"Results are stored in {Path(results.store).resolve()}", soft_wrap=True)


def main() -> None:
    """Entry point."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: what is under way is kept
    if gc.get_freeze_count() == 0:
        gc.freeze()  # modules stay to the end; the collector need not go through them again and again
    run_program(app)


if __name__ == "__main__":
    main()
