"""Commands that run methods, and the list of methods: gmed run, tune, bench, list."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from inspect import Parameter
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console

from gmed import tuning
from gmed.callbacks import Callback
from gmed.cli.console import LiveProgress, count_runs, make_console, print_json, render_table, resumable
from gmed.cli.exit import EXIT_OK, EXIT_RUN_FAILED
from gmed.cli.options import DataDir, Extension, Json, Model, ResultsJson, with_options
from gmed.cli.results import print_results
from gmed.engine import BenchmarkId
from gmed.engine.bench import Speed, environment_of
from gmed.engine.bench import bench as measure
from gmed.engine.benchmarks import BENCHMARKS, Benchmark, get_benchmark
from gmed.engine.custom_model import ModelRef
from gmed.engine.grammar import format_value
from gmed.errors import UsageError, check_int
from gmed.experiment import Experiment, default_store
from gmed.integrations.tensorboard import TensorBoardCallback
from gmed.io.user_code import load_entry_points
from gmed.registry import EDITS, MEMORIES, METHODS, RETRIEVALS, defaults_for
from gmed.results.stats import nan_to_none
from gmed.results.tables import METHOD, MISSING, Cell, Table, numbers, texts
from gmed.results.tuning import EXAMPLES
from gmed.tuning import TuningResult, TuningWarning


@with_options()
def run(
    benchmark: Annotated[
        str,
        typer.Argument(
            help="A benchmark, your own data (.csv, .parquet, .npz, folder), or an experiment file (.toml, .yaml)"
        ),
    ],
    methods: Annotated[list[str] | None, typer.Argument(help="Methods: er, er+gmed, 'er+gmed(alpha=1.0)'")] = None,
    *,
    options: dict[str, Any],
    seed: Annotated[int | None, typer.Option(min=0, help="A single seed: --seed 3 is --seeds 3,")] = None,
    tensorboard: Annotated[str | None, typer.Option(help="TensorBoard log folder for live learning curves")] = None,
    rerun: Annotated[bool, typer.Option("--rerun", help="Repeat runs already in the store")] = False,
    as_json: ResultsJson = False,
) -> None:
    """Run methods on a benchmark over several seeds. Finished runs are stored and not repeated."""
    if seed is not None:
        if "seeds" in options:
            raise UsageError("--seed and --seeds cannot be combined; --seeds 3,7,11 takes several")
        options["seeds"] = [seed]
    if benchmark.endswith((".toml", ".yaml", ".yml")):
        experiment = Experiment.from_file(Path(benchmark), methods=methods or None, **options)
    else:
        experiment = Experiment(benchmark, methods or [], **options)

    progress = LiveProgress(make_console(stderr=True))
    kept = f"Finished runs and checkpoints are stored in {experiment.store}; run the same command again to resume."
    with resumable(kept), progress, ExitStack() as stack:
        callback: Callback = progress
        if tensorboard is not None:
            callback = stack.enter_context(TensorBoardCallback(Path(tensorboard), progress))
        results = experiment.run(rerun=rerun, callback=callback)
    print_results(results, as_json)
    raise typer.Exit(EXIT_RUN_FAILED if results.failures else EXIT_OK)


@with_options(
    "memory", "device", "workers", "cluster", "data_dir", "name", "label", "split", "drop", "extensions", "store"
)
def tune(
    benchmark: Annotated[str, typer.Argument(help="A benchmark, or your own data: .csv, .parquet, .npz, folder")],
    method: Annotated[str, typer.Argument(help="A method with an edit: er+gmed, mir+adv-edit; with --grid any method")],
    grid: Annotated[
        list[str] | None,
        typer.Option(
            help="Values to try for a parameter, instead of the paper's: alpha=0.1,1,10, or LOW:HIGH:COUNT, "
            "lr=0.01:0.1:3; may be repeated"
        ),
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Number of seeds per candidate")] = 5,
    *,
    options: dict[str, Any],
    as_json: Json = False,
) -> None:
    """Tune hyper-parameters on held-out examples of the first tasks."""
    path = options.pop("store", None) or default_store()
    progress = LiveProgress(make_console(stderr=True))
    kept = f"Finished runs are stored in {path}; run the same command again to resume."
    with resumable(kept), progress, warnings.catch_warnings():
        warnings.simplefilter("ignore", TuningWarning)  # shown below the scores
        values = _parse_grid(grid) if grid else None
        tuned = tuning.tune(benchmark, method, grid=values, seeds=seeds, store=path, callback=progress, **options)
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
        print_json(document)
    else:
        _show_tuning(make_console(), tuned)
    raise typer.Exit(EXIT_RUN_FAILED if tuned.failures else EXIT_OK)


def _parse_grid(words: list[str]) -> dict[str, str]:
    """Return the values of each parameter as typed, by the name of the parameter."""
    grid: dict[str, str] = {}
    for word in words:
        name, equals, values = (part.strip() for part in word.partition("="))
        if not (name and equals):
            raise UsageError(f"--grid {word}: write it as NAME=VALUES: {EXAMPLES}")
        if name in grid:
            raise UsageError(f"--grid {word}: {name} is given twice")
        grid[name] = values
    return grid


MAX_TUNING_COLUMNS = 7
"""Number of values of the second parameter up to which two parameters are shown as a matrix."""


def _show_tuning(console: Console, tuned: TuningResult) -> None:
    """Print the held-out accuracy of the grid and of the baselines, and the notes on the choice.

    Two parameters with a single baseline are shown as a matrix, anything else as a list.
    """
    best = max(tuned.scores.values())
    title = f"{tuned.benchmark} {tuned.method}: held-out accuracy % of the first tasks, seeds: {tuned.seeds}"
    cells = {point: Cell(f"{score:.2f}", score, marks="*" * (score == best)) for point, score in tuned.scores.items()}
    plain = {name: f"{score:.2f}" for name, score in tuned.baselines.items()}
    first, others = (list(dict.fromkeys(part)) for part in zip(*((p[0], p[1:]) for p in cells), strict=True))
    rows: list[list[Cell | str]]
    if len(tuned.parameters) == 2 and len(others) <= MAX_TUNING_COLUMNS and len(plain) == 1:
        headings = [" \\ ".join(tuned.parameters), *(_value(second) for (second,) in others)]
        rows = [[name, score, *[MISSING] * (len(others) - 1)] for name, score in plain.items()]
        rows += [[_value(value), *(cells[value, *other] for other in others)] for value in first]
    else:
        headings = [*tuned.parameters, "accuracy"]
        rows = [[name, *[MISSING] * (len(tuned.parameters) - 1), score] for name, score in plain.items()]
        rows += [[*map(_value, point), cell] for point, cell in cells.items()]
    table = Table(numbers(*headings), title)
    for row in rows:
        table.add(*row)
    console.print(render_table(table))
    point = max(tuned.scores, key=lambda point: tuned.scores[point])
    best_values = ", ".join(f"{name} = {_value(value)}" for name, value in zip(tuned.parameters, point, strict=True))
    tied = sum(score == best for score in tuned.scores.values())
    if tied == len(tuned.scores) > 1:
        console.print("All candidates have the same score: there are too few held-out examples to choose one.")
    chosen = "chosen" if tied == 1 else f"best; the first of these {tied} is chosen"
    use = f" Use it as '{tuned.method}(tuned)'." if tuned.recommended == tuned.chosen else ""
    console.print(f"* {chosen}: {best_values}.{use}")
    for note in tuned.notes:
        console.print(f"! {note}")
    if tuned.failures:
        console.print(
            f"{count_runs(len(tuned.failures))} failed; diverged runs count as 0, other failures must be run again"
        )


def _value(value: object) -> str:
    """Return the value of a parameter as briefly as possible."""
    return f"{value:g}" if type(value) in (int, float) else format_value(value)


def bench(
    benchmark: Annotated[str, typer.Argument(help="A benchmark; random images of its shape are used")],
    methods: Annotated[list[str], typer.Argument(help="Methods: er, er+gmed")],
    replicas: Annotated[str | None, typer.Option(help="Numbers of learners to train together on a GPU: 1,20")] = None,
    steps: Annotated[int, typer.Option(help="Number of timed steps, after 200 warm-up steps")] = 400,
    device: Annotated[str, typer.Option(help="auto, cpu or cuda")] = "auto",
    model: Model = None,
    extension: Extension = None,
    as_json: ResultsJson = False,
) -> None:
    """Measure the training speed of methods on this machine. On a GPU, also of several learners together."""
    counts = None if replicas is None else [_parse_count("replicas", part.strip()) for part in replicas.split(",")]
    console, speeds = make_console(), []
    torch.set_num_threads(1)
    if model is not None:
        benchmark = str(replace(BenchmarkId.parse(benchmark), model=ModelRef.from_user(model)))
    for method in methods:
        speeds += measure(benchmark, method, replicas=counts, steps=check_int("steps", steps), device=device)
    environment = environment_of(device)
    if as_json:
        print_json({"environment": environment, "speeds": [speed.to_dict() for speed in speeds]})
    else:
        _show_speeds(console, speeds, environment)


def _parse_count(name: str, text: str) -> int:
    return check_int(name, int(text) if text.isdecimal() else text)


def _show_speeds(console: Console, speeds: Sequence[Speed], environment: Mapping[str, str]) -> None:
    """Print the measured speeds, one row per method and number of learners."""
    headings = "learners", "ms", "steps/s", "times as fast", "memory"
    table = Table([METHOD, *numbers(*headings)], f"{speeds[0].benchmark}: milliseconds per step of one learner")
    for speed in speeds:
        learners = f"{speed.replicas} together" if speed.replicas else "plain loop"
        memory = f"{speed.peak_bytes / 2**30:.1f} GiB" if speed.peak_bytes else MISSING
        cells = f"{speed.milliseconds:.3f}", f"{1000 / speed.milliseconds:,.0f}", f"{speed.ratio:.1f}"
        table.add(speed.method, learners, *cells, memory)
    console.print(render_table(table, boxed=True))
    by_stage = [speed for speed in speeds if speed.stages]
    names = list(dict.fromkeys(stage for speed in by_stage for stage in speed.stages or ()))
    table = Table([METHOD, *numbers(*names)], "milliseconds per step by stage, measured in a separate loop")
    for speed in by_stage:
        stages = speed.stages or {}
        table.add(speed.method, *(f"{stages[name]:.3f}" if name in stages else MISSING for name in names))
    console.print(render_table(table, boxed=True))
    console.print(", ".join(f"{name} {value}" for name, value in environment.items()))


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
