"""The command-line program: the main commands, and the registration of the others."""

from __future__ import annotations

import gc
import json
import shlex
import signal
import sys
import warnings
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
from gmed.cli.results import register_results, require_results, with_baseline
from gmed.cli.tune import register_tune
from gmed.cli.watch import register_watch
from gmed.engine import BenchmarkId
from gmed.engine.bench import bench as measure
from gmed.engine.bench import environment_of
from gmed.engine.benchmarks import BENCHMARKS, Benchmark, get_benchmark
from gmed.engine.custom_model import ModelRef
from gmed.errors import GmedWarning, UsageError, check_int
from gmed.experiment import Experiment, default_store, outdated_note, stored_results
from gmed.integrations.tensorboard import TensorBoardCallback
from gmed.io.user_code import load_entry_points
from gmed.registry import EDITS, MEMORIES, METHODS, RETRIEVALS, defaults_for
from gmed.report.grouping import without_tuning
from gmed.results import Results
from gmed.results.store import paused_garbage_collection
from gmed.results.tables import Table, texts

OLD_OPTIONS = {"over": "baseline"}
"""New names of options by their old ones, which still work for a release."""


def _current_option(name: str) -> str:
    """Return the current name of an option, with a warning if this is an old one."""
    if name in OLD_OPTIONS:
        warnings.warn(f"--{name} is now --{OLD_OPTIONS[name]}; the old name goes with the next release", GmedWarning, 2)
    return OLD_OPTIONS.get(name, name)


app = typer.Typer(
    cls=OrderedGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "token_normalize_func": _current_option,
    },
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

Json = Annotated[bool, typer.Option("--json", help="Print only a JSON document to standard output")]


def _print_version(requested: bool) -> None:
    if requested:
        print(f"gmed {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Online, task-free continual learning with an editable replay memory."""


@app.command()
@with_options()
def run(
    benchmark: Annotated[
        str,
        typer.Argument(
            help="A benchmark; your own data (.csv, .parquet, .npz, folder); or an experiment (.toml, .yaml)"
        ),
    ],
    methods: Annotated[list[str] | None, typer.Argument(help="Methods: er, er+gmed, 'er+gmed(alpha=1.0)'")] = None,
    *,
    options: dict[str, Any],
    seed: Annotated[int | None, typer.Option(min=0, help="A single seed: --seed 3 is --seeds 3,")] = None,
    tensorboard: Annotated[str | None, typer.Option(help="Folder for live learning curves")] = None,
    rerun: Annotated[bool, typer.Option("--rerun", help="Recompute runs already in the store")] = False,
    as_json: Json = False,
) -> None:
    """Run methods on a benchmark over several seeds. Finished runs are stored and not recomputed."""
    if seed is not None:
        if "seeds" in options:
            raise UsageError("--seed and --seeds cannot be combined; --seeds 3,7,11 takes several")
        options["seeds"] = [seed]
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
            f"Stopped. Finished runs and checkpoints are stored in {experiment.store}; "
            "run the same command again to resume.",
        )
        raise typer.Exit(EXIT_INTERRUPTED) from None
    _print(results, as_json)
    raise typer.Exit(EXIT_RUN_FAILED if results.failures else EXIT_OK)


@app.command()
def table(
    benchmark: Annotated[str | None, typer.Argument(help="Only this benchmark")] = None,
    methods: Annotated[list[str] | None, typer.Argument(help="Only these methods")] = None,
    metrics: Annotated[bool, typer.Option("--metrics", help="Show forgetting, transfer and other metrics")] = False,
    baseline: Baseline = None,
    extension: Extension = None,
    store: StoreFile = None,
    as_json: Json = False,
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
        show_metrics(make_console(), results)
    else:
        _print(with_baseline(results, baseline), as_json)


@app.command()
def bench(
    benchmark: Annotated[str, typer.Argument(help="A benchmark; random images of its shape are used")],
    methods: Annotated[list[str], typer.Argument(help="Methods: er, er+gmed")],
    replicas: Annotated[str | None, typer.Option(help="Numbers of learners that train together on a GPU: 1,20")] = None,
    steps: Annotated[int, typer.Option(help="Number of measured steps, after 200 for warm-up")] = 400,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    model: Model = None,
    extension: Extension = None,
    as_json: Json = False,
) -> None:
    """Measure the training speed of methods on this machine. On a GPU also of several learners together."""
    counts = None if replicas is None else [_parse_count("replicas", part.strip()) for part in replicas.split(",")]
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


def _parse_count(name: str, text: str) -> int:
    return check_int(name, int(text) if text.isdecimal() else text)


@app.command("list")
def list_(
    benchmark: Annotated[str | None, typer.Argument(help="Show the defaults of this benchmark instead")] = None,
    data_dir: DataDir = None,
    extension: Extension = None,
) -> None:
    """List the benchmarks, and the methods with their parameters."""
    console = make_console()
    load_entry_points()
    if benchmark is not None:
        _list_defaults(get_benchmark(benchmark))
        return
    folder = Path(data_dir) if data_dir else None
    table = Table(texts("name", "data", "stream"), "Benchmarks")
    benchmarks = [b for b in BENCHMARKS.values() if not b.fuzzy and not b.tuning]
    missing = {b.name: b.missing_data(folder) for b in benchmarks}
    for b in benchmarks:
        table.add(b.name, "missing" if missing[b.name] else "present", b.summary)
    console.print(render_table(table))
    console.print("Each is also available with --fuzzy, where tasks fade into each other.")
    if any(missing.values()):
        console.print("Run gmed data to see how to get missing data sets.")

    table = Table(texts("name", "parameters", "description"), "\nMethods")
    for name, entry in METHODS.items():
        table.add(name, _defaults(entry.parameters()), entry.summary)
    for name, entry in {**MEMORIES, **RETRIEVALS, **EDITS}.items():
        table.add(f"...+{name}", _defaults(entry.parameters()), entry.summary)
    console.print(render_table(table))
    console.print("\nA method with parameters: 'er(memory=200)+gmed(alpha=1.0,steps=3)'")
    console.print("Their defaults on a benchmark: gmed list split-mnist")


register_epilogs(app)


def _list_defaults(benchmark: Benchmark) -> None:
    table = Table(texts("name", "defaults"), f"{benchmark.name}: {benchmark.summary}")
    table.add("all methods", _pairs(benchmark.settings))
    for name, values in _defaults_on(benchmark):
        table.add(name, _pairs(values))
    make_console().print(render_table(table))


def _defaults_on(benchmark: Benchmark) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the methods and edits for which a benchmark sets parameters, with these parameters."""
    keys = benchmark.defaults_key, benchmark.family
    for name, entry in {**METHODS, **EDITS}.items():
        if values := entry.defaults_on(*keys):
            yield name if name in METHODS else f"...+{name}", values
        for edit, declared in entry.edits_on_benchmarks.items():
            if values := defaults_for(declared, *keys):
                yield f"{name}+{edit}", values


def _pairs(settings: Any) -> str:
    return ", ".join(f"{k}={str(v).lower() if isinstance(v, bool) else f'{v:g}'}" for k, v in settings.items())


def _defaults(parameters: dict[str, Parameter]) -> str:
    return ", ".join(k if p.default is p.empty else f"{k}={p.default}".lower() for k, p in parameters.items())


def _tuning_note(results: Results) -> str:
    """Return a note on the tuning runs that are not shown, or an empty text if there are none."""
    names = [*(run.benchmark for run in results.runs), *(failure.benchmark for failure in results.failures)]
    tuning_runs = [name for name in names if BenchmarkId.parse(name).tuning]
    quoted = " or ".join(map(shlex.quote, dict.fromkeys(tuning_runs)))
    return f"tuning runs are not shown ({len(tuning_runs)}); to see them: gmed table {quoted}" if tuning_runs else ""


def _print(results: Results, as_json: bool) -> None:
    if as_json:
        print(json.dumps(results.to_dict(), indent=2))
        return
    console = make_console()
    show_results(console, results)
    if results.store is not None:
        console.print(f"Results are stored in {Path(results.store).resolve()}", soft_wrap=True)


def main() -> None:
    """Run the program."""
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # like Ctrl-C, so that checkpoints are written
    if gc.get_freeze_count() == 0:
        gc.freeze()  # modules are never freed, so the garbage collector need not traverse them
    gc.enable()
    run_program(_run_app)


def _run_app() -> None:
    """Run the command line; what the parser refuses is reported like any other error."""
    try:
        status = app(standalone_mode=False)
    except typer.Abort:
        status = EXIT_INTERRUPTED
    except Exception as error:
        if not hasattr(error, "format_message"):  # neither Click's exception nor that of a Typer that contains Click
            raise
        raise UsageError(_describe_refusal(error)) from None
    sys.exit(status or EXIT_OK)


def _describe_refusal(error: Any) -> str:
    """Return the message of the parser in the style of this package, with the command whose help lists what is valid.

    >>> _describe_refusal(typer.BadParameter("No such option: --sed (Possible options: --seed, --seeds)."))
    'no such option: --sed; did you mean --seed or --seeds?'
    """
    message = str(error.format_message()).removeprefix("Invalid value: ").rstrip(".")
    message = f"{message[:1].lower()}{message[1:]}"
    message, _, options = message.partition(" (Possible options: ")
    if options:
        return f"{message}; did you mean {options.rstrip(')').replace(', ', ' or ')}?"
    message, _, command = message.replace("'. Did", "' Did").partition(" Did you mean ")
    if command:
        return f"{message}; did you mean {command}"
    context = getattr(error, "ctx", None)
    return message if context is None else f"{message}; see {context.command_path} --help"


if __name__ == "__main__":
    main()
