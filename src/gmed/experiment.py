"""Experiments: run methods on a benchmark over seeds, and store the results."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing, nullcontext, suppress
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from reprlib import repr as short
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any, NamedTuple, TypeVar
from weakref import finalize

from torch.utils.data import Dataset

from gmed.callbacks import Callback
from gmed.data.arrays import InMemory, save_arrays
from gmed.data.custom import DEFAULT_SPLIT, CustomDataRef, is_data_path
from gmed.engine import (
    BENCHMARKS,
    EDITS,
    METHODS,
    BenchmarkId,
    Event,
    Failed,
    Finished,
    RunResult,
    RunSpec,
    execute,
    get_benchmark,
    load_extension,
    resolve,
)
from gmed.engine.checkpoint import Checkpoints, read_run_name
from gmed.engine.config import ExecutionConfig, check_device, resolve_device
from gmed.engine.custom_model import ModelLike, ModelRef, check_model_compatible
from gmed.engine.executors.dask import DaskExecutor
from gmed.engine.executors.local import Executor, Progress
from gmed.engine.methods import understand
from gmed.engine.runner import BY_PREDICT
from gmed.errors import GmedError, UsageError, check_float, check_int, named, unknown
from gmed.io.files import check_regular
from gmed.paper.published import published
from gmed.results import Failure, Results, Store, SweepClaims
from gmed.results.results import sort_runs
from gmed.results.tuning import TUNED_SUFFIX, best_candidate, with_memory

MAX_SEEDS = 100_000

OutcomeT = TypeVar("OutcomeT", bound=RunResult | str)

POLL_SECONDS = 0.5
"""Seconds between two checks for results of another sweep."""


class Option(NamedTuple):
    """The description of an option of a run, for Python, the command line and experiment files.

    Attributes
    ----------
    help
        The help text on the command line.
    types
        The valid types of its value, besides the default.
    expected
        A description of the valid types.
    flag
        Its name on the command line, if that differs.
    each
        For an option that is a list: a description of its entries.
    parsed
        The type to which the command line converts its text.
    """

    help: str
    types: tuple[type, ...]
    expected: str
    flag: str | None = None
    each: str | None = None
    parsed: Any = str


WHOLE, SWITCH = ((int,), "an integer"), ((bool,), "true or false")

OPTIONS = {
    "seeds": Option("Number of seeds (5: seeds 0-4) or a list (3,7,11 or 1-5) [5]", (object,), "seeds"),
    "memory": Option("Number of stored examples [the benchmark's default]", *WHOLE, parsed=int),
    "device": Option("auto, cpu or cuda [auto]", (str,), "auto, cpu or cuda"),
    "workers": Option("Worker processes [one per core; GPU: at most 8]", *WHOLE, parsed=int),
    "cluster": Option("Run on a Dask cluster: address of its scheduler", (str,), "the address of a Dask scheduler"),
    "data_dir": Option(
        "Folder of the data set [$GMED_DATA, else the cache; MNIST: the packaged one]", (str, Path), "a folder"
    ),
    "store": Option("SQLite file of results [$GMED_STORE, else gmed.db here]", (str, Path), "a file"),
    "checkpoint_every": Option("Seconds between checkpoints of a run [60]", (object,), "a number", parsed=float),
    "fuzzy": Option("Fuzzy task boundaries: each task fades into the next", *SWITCH),
    "deterministic": Option("Bit-identical results on a GPU (slower)", *SWITCH),
    "name": Option("Name of your own data in tables and reports", (str,), "a name"),
    "label": Option("Label column (tables only)", (str,), "the name of a column"),
    "split": Option(
        "How to split your own data into tasks: by-class, by-time, by-column=NAME, none [by-class]",
        (str,),
        "a way to split data into tasks, such as by-class",
    ),
    "drop": Option(
        "Column to exclude (tables only); may be repeated",
        (list, tuple),
        "a list of columns",
        each="names of columns",
        parsed=list[str],
    ),
    "baseline": Option(
        "Baseline for gains [the same method without its last component]", (str,), "the name of a method"
    ),
    "prequential": Option("Also measure prequential (test-then-train) accuracy", *SWITCH),
    "model": Option("Your own model: net.py:small or package.module:factory", (object,), "a model"),
    "extensions": Option(
        "Python file that registers your own components; may be repeated",
        (list, tuple),
        "a list of Python files",
        flag="--extension",
        each="Python files such as 'my_edit.py'",
        parsed=list[str],
    ),
}
"""The options of a run by their names in Python, in the order in which they are listed."""


@dataclass(frozen=True)
class Experiment:
    """What to run and where: arguments of :func:`run`, options of ``gmed run`` and keys of an experiment file.

    Attributes
    ----------
    benchmark
        A name as ``gmed list`` shows it; or your own data: a path (:func:`gmed.data.custom.load_custom`), arrays
        ``(x, y)`` or ``(x, y, x_test, y_test)``, a torch data set, or two as ``(train, test)``.
    methods
        Names as ``gmed list`` shows them; they may carry parameters, ``"er+gmed(alpha=1.0)"``.
    seeds
        A number n for seeds 0 .. n - 1, or a list of seeds.
    memory
        Memory size of methods that have one; by default the benchmark's.
    device
        ``auto``, ``cpu`` or ``cuda``.
    workers
        Number of worker processes; by default one per core (on a GPU at most eight), 0 to run in this process.
        Results do not depend on it.
    cluster
        The address of a Dask scheduler, to run on its workers instead (``gmed[cluster]``).
    data_dir
        A folder with the data set's files; by default ``$GMED_DATA``, else the cache. MNIST is in the package.
    store
        The SQLite file of results, by default ``$GMED_STORE``, else ``gmed.db`` in the current folder; ``None``
        stores nothing.
    checkpoint_every
        Seconds between checkpoints of a run.
    fuzzy
        Whether tasks fade into each other instead of ending sharply: the benchmark ``<name>-fuzzy``.
    deterministic
        Whether results on a GPU are bit-identical every time, which is slower; on a CPU they always are.
    name
        For custom data: what tables and reports call them; by default the name that they have in the store, else that
        of their file. Results do not depend on it.
    label, split, drop
        For custom data: the label column of a table, how the data are divided into tasks (by default ``by-class``), and
        the columns to leave out.
    baseline
        The method that all others are compared with; by default each method is compared with itself without its
        last component.
    prequential
        Whether each batch is predicted before the learner trains on it, to measure prequential accuracy at the cost of
        a forward pass; stored runs without it are repeated.
    extensions
        Python files that register custom components.
    model
        A model in place of the benchmark's: ``"net.py:small(width=64)"`` or ``"package.module:factory"``; a function or
        class at the top level of a file, called without arguments; or a module, which is copied for every run.
    """

    benchmark: str | Path | InMemory
    methods: Sequence[str] | str
    seeds: int | str | Sequence[int] = 5
    memory: int | None = None
    device: str = "auto"
    workers: int | None = None
    cluster: str | None = None
    data_dir: str | Path | None = None
    store: str | Path | None = field(default_factory=lambda: default_store())
    checkpoint_every: float = 60.0
    fuzzy: bool = False
    deterministic: bool = False
    name: str | None = None
    label: str | None = None
    split: str | None = None
    drop: Sequence[str] = ()
    baseline: str | None = None
    prequential: bool = False
    model: ModelLike | None = None
    extensions: Sequence[str | Path] = ()

    def __post_init__(self) -> None:
        if isinstance(self.methods, str):
            object.__setattr__(self, "methods", [self.methods])
        if not isinstance(self.benchmark, (str, Path, tuple, Dataset)):
            raise UsageError(
                f"benchmark must be a name, a path, arrays (x, y) or a torch data set, not {short(self.benchmark)}"
            )
        if not isinstance(self.methods, (list, tuple)):
            raise UsageError(f"methods must be a list of names, not {short(self.methods)}")
        for method in self.methods:
            if not isinstance(method, str):
                raise UsageError(f"methods must be names such as 'er+gmed', not {short(method)}")
        for name, option in OPTIONS.items():
            self._check(name, getattr(self, name), option)
        for path in self.extensions:
            load_extension(path)
        check_device(self.device)
        check_float("checkpoint_every", self.checkpoint_every, greater_than=0)
        if self.workers is not None:
            check_int("workers", self.workers, minimum=0)
        if self.store is not None and str(self.store) in ("", ".", ":memory:"):
            raise UsageError(f"store must be a file, not {str(self.store)!r}; in Python, store=None stores nothing")

    @staticmethod
    def _check(name: str, value: Any, option: Option) -> None:
        is_unset = value is None and name in _OPTIONAL
        is_bool = isinstance(value, bool) and not {bool, object} & set(option.types)
        if not is_unset and (is_bool or not isinstance(value, option.types)):
            raise UsageError(f"{name} must be {option.expected}, not {short(value)}")
        for entry in value if option.each is not None else ():
            if not isinstance(entry, (str, Path) if name == "extensions" else str):
                raise UsageError(f"{name} must be {option.each}, not {short(entry)}")

    @classmethod
    def from_file(cls, path: Path, **overrides: Any) -> Experiment:
        """Read a TOML or YAML file whose keys are this class's attributes; overrides that are None are ignored."""
        content = {**_read(path), **{k: v for k, v in overrides.items() if v is not None}}
        known = {f.name for f in fields(cls)}
        for name in content:
            if name not in known:
                raise unknown(f"key in {path}:", str(name), known)
        for name in ("benchmark", "methods"):
            if name not in content:
                raise UsageError(f"{path}: the key {name!r} is missing")
        return cls(**content)

    def specs(self) -> list[RunSpec]:
        """Return the runs without duplicates, seed by seed, so that methods at one seed share its stream."""
        with ExitStack() as stack:
            return self._specs(_StoreHandle(self.store, stack))

    def _specs(self, stored: _StoreHandle) -> list[RunSpec]:
        benchmark = self.benchmark_id
        if self.fuzzy:
            benchmark = replace(benchmark, fuzzy=True)
        if self.model is not None:
            benchmark = replace(benchmark, model=ModelRef.from_user(self.model))
        if not self.methods:
            raise UsageError("no method given; try: gmed run split-mnist er er+gmed")
        resolved, seeds = get_benchmark(str(benchmark)), parse_seeds(self.seeds)
        methods = [
            resolve(resolved, self._resolve_tuned(benchmark, text, stored), self.memory) for text in self.methods
        ]
        specs = (RunSpec(resolved, method, seed) for seed in seeds for method in methods)
        return list({spec.key: spec for spec in specs}.values())

    def _resolve_baseline(self, specs: Sequence[RunSpec], stored: _StoreHandle) -> str | None:
        """Return the full name of the baseline, with its memory."""
        if self.baseline is None:
            return None
        benchmark, methods = specs[0].benchmark, dict.fromkeys(spec.method.name for spec in specs)
        name = resolve(benchmark, self._resolve_tuned(benchmark.id, self.baseline, stored), self.memory).name
        if name not in methods:
            raise UsageError(f"the baseline {name} is not one of the methods ({', '.join(methods)}); add it to them")
        return name

    @property
    def benchmark_id(self) -> BenchmarkId:
        """The requested benchmark; for a path, with everything that identifies the data."""
        data = self._custom_data
        if data is None:
            return get_benchmark(self._name_or_path).id
        if self.name is None and self.store is not None and Path(self.store).exists():
            with Store(self.store) as store:
                data = replace(data, title=store.title_of(data))
        return BenchmarkId(data)

    @cached_property
    def _name_or_path(self) -> str:
        """The name of the benchmark or the path of the data; data in memory get a file for as long as this exists."""
        if isinstance(self.benchmark, (str, Path)):
            return str(self.benchmark)
        folder = mkdtemp(prefix="gmed-")
        finalize(self, rmtree, folder, ignore_errors=True)
        return str(save_arrays(self.benchmark, Path(folder)))

    @cached_property
    def _custom_data(self) -> CustomDataRef | None:
        """The custom data, if ``benchmark`` is a path or data in memory."""
        name = self._name_or_path
        if name not in BENCHMARKS and is_data_path(name):
            if self.data_dir is not None:
                raise UsageError(f"data_dir applies to the data of a benchmark; {name} is already a path to data")
            with nullcontext() if isinstance(self.benchmark, (str, Path)) else named(self._path, "the data in memory"):
                return CustomDataRef.from_path(
                    self._path, self.label, self.split or DEFAULT_SPLIT, self.drop, self.name
                )
        if Path(name).suffix and BenchmarkId.parse(name).custom_data is None:
            raise UsageError(
                f"{name}: not a benchmark. Experiment files end in .toml or .yaml, "
                "data in .csv, .csv.gz, .parquet or .npz, or are a folder"
            )
        if self.name is not None or self.label is not None or self.split is not None or self.drop:
            raise UsageError(f"name, label, split and drop apply to your own data, not to {name}")
        return None

    @property
    def _path(self) -> Path:
        return Path(os.path.abspath(self._name_or_path))  # noqa: PTH100 (keeps the name of a link)

    @property
    def data_folder(self) -> Path | None:
        """The folder of the data; ``None`` for the usual folders."""
        if self._custom_data:
            return self._path.parent
        return None if self.data_dir is None else Path(self.data_dir)

    def _resolve_tuned(self, benchmark: BenchmarkId, method: str, stored: _StoreHandle) -> str:
        """Return the method itself, or the best candidate of the tuning for a method that ends in ``(tuned)``."""
        if not method.endswith(TUNED_SUFFIX):
            return method
        method = understand(method.removesuffix(TUNED_SUFFIX)) + TUNED_SUFFIX
        if (store := stored.read()) is None:
            raise UsageError(
                f"{method}: the results of tuning are in the store, but no store is set; run gmed tune first"
            )
        tuned, name = str(replace(benchmark, fuzzy=False)), method.removesuffix(TUNED_SUFFIX)
        with suppress(UsageError):  # tuned with this memory, or else with the benchmark's
            return best_candidate(store, tuned, with_memory(name, self.memory))
        return best_candidate(store, tuned, name)

    def _executor(self) -> Executor:
        if self.cluster is not None:
            return DaskExecutor(self.cluster)
        resolve_device(self.device)
        return partial(execute, workers=self.workers)

    def _checkpoints(self, rerun: bool) -> Checkpoints | None:
        """Return the checkpoint folder next to the store; ``None`` without a store or if stored runs are recomputed."""
        if self.store is None or rerun:
            return None
        return Checkpoints(checkpoint_dir(self.store), self.checkpoint_every)

    def _has_requested_metrics(self, spec: RunSpec, outcome: OutcomeT | None) -> OutcomeT | None:
        """Return the outcome of a run, or ``None`` if it lacks a requested metric.

        Built-in methods predict with their model. For a custom method, prequential accuracy counts only if it was
        measured with the method's ``predict``.
        """
        if not self.prequential or not isinstance(outcome, RunResult):
            return outcome
        by_predict = outcome.environment.get("prequential") == BY_PREDICT or not spec.method.sources()
        return outcome if outcome.prequential is not None and by_predict else None

    def run(
        self, *, rerun: bool = False, callback: Callback | None = None, executor: Executor | None = None
    ) -> Results:
        """Do the runs that the store lacks, store each as it finishes, and return all of them.

        Parameters
        ----------
        rerun
            Recompute runs that are already in the store.
        callback
            Called on progress and events.
        executor
            Where to run: by default worker processes on this machine, or ``cluster`` if set.
        """
        callback = callback or Callback()
        with ExitStack() as stack:
            opened = _StoreHandle(self.store, stack)
            if self.name is not None and self._custom_data is not None and (existing := opened.read()) is not None:
                existing.set_title(self._custom_data)
            specs = self._specs(opened)
            executor = executor or self._executor()
            results = Results(
                store=None if self.store is None else str(self.store),
                published=published,
                baseline=self._resolve_baseline(specs, opened),
            )
            store = None if rerun else opened.read()
            stored = {s.key: run for s in specs if store and (run := self._has_requested_metrics(s, store.find(s)))}
            results.runs.extend(stored.values())
            todo = [spec for spec in specs if spec.key not in stored]
            checkpoints = self._checkpoints(rerun)
            if checkpoints is not None and checkpoints.folder.exists():  # leftovers of killed processes
                for spec in specs:
                    if spec.key in stored:
                        checkpoints.discard(spec)
                checkpoints.remove_stale()
            if todo:  # fail on bad or missing data before anything runs or is written
                data = todo[0].benchmark.dataset(self.data_folder, callback.on_data_progress)
                if self.model is not None:
                    check_model_compatible(todo[0].benchmark, data)
                opened.write()
            callback.on_start(todo, len(stored))
            if todo:
                config = ExecutionConfig(
                    self.device, self.data_folder, checkpoints, self.deterministic, self.prequential
                )
                sweep = stack.enter_context(SweepClaims(opened.write()))
                events = stack.enter_context(closing(self._events(todo, sweep, config, executor, rerun, callback)))
                for event in events:
                    if isinstance(event, Finished):
                        results.runs.append(event.result)
                    elif isinstance(event, Failed):
                        spec = event.spec
                        failure = Failure(spec.benchmark.name, spec.method.name, spec.seed, event.error)
                        results.failures.append(failure)
                    callback.on_event(event)
        results.runs = sort_runs(results.runs, [spec.method.name for spec in specs])
        return results

    def _events(
        self,
        todo: Sequence[RunSpec],
        sweep: SweepClaims,
        config: ExecutionConfig,
        executor: Executor,
        rerun: bool,
        callback: Callback,
    ) -> Generator[Event, None, None]:
        """Yield events until all runs have ended, here or in another sweep that claimed them first."""
        store, start = sweep.store, time.time()
        waiting, elsewhere = list(todo), list[RunSpec]()
        while waiting:
            ended: dict[RunSpec, RunResult | str] = {}
            if not rerun:
                outcomes = {spec: self._has_requested_metrics(spec, store.outcome(spec, start)) for spec in elsewhere}
                ended |= {spec: outcome for spec, outcome in outcomes.items() if outcome}
            claimed = sweep.claim([spec for spec in waiting if spec not in ended])
            if not rerun:  # another sweep may have finished one of them since the store was read
                ended |= {
                    spec: result for spec in claimed if (result := self._has_requested_metrics(spec, store.find(spec)))
                }
            for spec, outcome in ended.items():
                yield Failed(spec, outcome) if isinstance(outcome, str) else Finished(spec, outcome)
            claimed = [spec for spec in claimed if spec not in ended]
            with closing(executor(claimed, config)) as batches:
                for events in batches:
                    store.add_all(
                        [(event.spec, _outcome(event)) for event in events if not isinstance(event, Progress)]
                    )
                    for event in events:
                        if isinstance(event, Progress):
                            sweep.report_progress(event.spec, event.seen, event.total)
                    if config.checkpoints is not None:
                        for event in events:
                            if isinstance(event, Finished):
                                config.checkpoints.discard(event.spec)
                    yield from events
            done = {*ended, *claimed}
            waiting = elsewhere = [spec for spec in waiting if spec not in done]
            if waiting and not claimed:
                callback.on_wait(len(waiting))
                time.sleep(POLL_SECONDS)


def _outcome(event: Finished | Failed) -> RunResult | str:
    return event.result if isinstance(event, Finished) else event.error


class _StoreHandle:
    """The store of an experiment, opened once: for reading if it exists, created when there is something to write."""

    def __init__(self, path: str | Path | None, stack: ExitStack) -> None:
        self.path, self.stack = path, stack
        self.opened: Store | None = None

    def read(self) -> Store | None:
        if self.opened is None and self.path is not None and Path(self.path).exists():
            self.opened = self.stack.enter_context(Store(self.path))
        return self.opened

    def write(self) -> Store:
        self.opened = self.read() or self.stack.enter_context(Store(":memory:" if self.path is None else self.path))
        return self.opened


_OPTIONAL = frozenset(f.name for f in fields(Experiment) if "None" in str(f.type))


def run(
    benchmark: str | Path | InMemory,
    methods: str | Sequence[str],
    *,
    rerun: bool = False,
    executor: Executor | None = None,
    **options: Any,
) -> Results:
    """Run methods on a benchmark over seeds, and return the results as data.

    Runs that are already in the store are not repeated. At one seed all methods share initial weights, data,
    order and replay draws, so differences are paired.

    Parameters
    ----------
    benchmark
        A name as ``gmed list`` shows it; or your own data: a path, arrays ``(x, y)`` or ``(x, y, x_test, y_test)``, a
        torch data set, or two as ``(train, test)``.
    methods
        Names as ``gmed list`` shows them; they may carry parameters, ``"er+gmed(alpha=1.0)"``.
    rerun
        Recompute runs that are already in the store.
    executor
        Where to run: by default worker processes on this machine, or a
        :class:`gmed.engine.executors.dask.DaskExecutor`.
    **options
        The options of ``gmed run``: :class:`Experiment` describes each.

    Examples
    --------
    >>> import gmed
    >>> results = gmed.run("split-mnist", ["finetune", "er"], seeds=1, store=None, workers=0)
    >>> [run.method for run in results.runs]
    ['finetune', 'er']
    >>> er, finetune = results.rows()[1].mean, results.rows()[0].mean
    >>> er > 70 > 25 > finetune
    True
    """
    for name in options:
        if name not in OPTIONS:
            raise unknown("option", name, [*OPTIONS, "rerun", "executor"])
    return Experiment(benchmark, methods, **options).run(rerun=rerun, executor=executor)


def _signature() -> Signature:
    """Return the signature of :func:`run` with every option by name, for editors and ``help``."""
    explicit = [p for p in signature(run).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    options = [
        p.replace(kind=Parameter.KEYWORD_ONLY)
        for p in signature(Experiment).parameters.values()
        if p.name not in ("benchmark", "methods")
    ]
    return signature(run).replace(parameters=[*explicit, *options])


run.__signature__ = _signature()  # type: ignore[attr-defined]


def stored_results(store: str | Path, benchmark: str | None = None, methods: Sequence[str] = ()) -> tuple[Results, int]:
    """Return the results in a store, and the number of runs left out because their components have changed since."""
    if not Path(store).exists():
        if benchmark is not None and not is_data_path(benchmark):
            get_benchmark(benchmark)  # report a wrong name before a missing store
        raise UsageError(f"{store}: no results yet; create some with gmed run")
    runs, failures, outdated = list[RunResult](), list[Failure](), 0
    with Store(store) as opened:
        for name in [None] if benchmark is None else opened.matching_benchmarks(benchmark):
            shown = [resolve(get_benchmark(name), method).name for method in methods] if name else []
            found = opened.read(name)
            runs += [run for run in found.runs if not shown or run.method in shown]
            failures += [failure for failure in found.failures if not shown or failure.method in shown]
            outdated += sum(not shown or method in shown for method in found.outdated)
    rank = {names: _rank(*names) for names in {(run.benchmark, run.method) for run in runs}}
    runs.sort(key=lambda run: (rank[run.benchmark, run.method], run.seed))
    return Results(runs=runs, failures=failures, store=str(store), published=published), outdated


def extensions_to_load(store: str | Path) -> str:
    """Return the options that load the extensions behind stored results that are not loaded now, if any."""
    with Store(store) as opened:
        return " ".join(f"--extension {name}" for name in opened.missing_extensions())


def outdated_note(store: str | Path, outdated: int) -> str:
    """Return a note on why stored results are not shown; empty if all are."""
    if not outdated:
        return ""
    missing = extensions_to_load(store)
    count = "1 stored result is" if outdated == 1 else f"{outdated} stored results are"
    them = "it" if outdated == 1 else "them"
    advice = f", or is not loaded: {missing}" if missing else ""
    return f"{count} left out: the code behind {them} has changed{advice}"


def unfinished_runs(store: str | Path) -> list[tuple[str, str]]:
    """Return the benchmark and method of every run that has a checkpoint next to a store."""
    folder = checkpoint_dir(store)
    return [name for path in sorted(folder.glob("*.safetensors")) if (name := read_run_name(path))]


def checkpoint_dir(store: str | Path) -> Path:
    """Return the folder with the checkpoints of a store's runs."""
    return Path(f"{store}.unfinished").resolve()


def _rank(benchmark: str, name: str) -> tuple[int, str, int, int, str]:
    """Return the sort key of a method on a benchmark: benchmark, base and edit as in the registries, then the name."""
    method = RunSpec.parse(benchmark, name, 0).method
    edit = list(EDITS).index(method.edit.name) + 1 if method.edit else 0
    base = list(METHODS).index(method.base.name)
    position = list(BENCHMARKS).index(benchmark) if benchmark in BENCHMARKS else len(BENCHMARKS)
    return position, benchmark, base, edit, name


def parse_seeds(seeds: int | str | Sequence[int]) -> list[int]:
    """Return the seeds that a number, a string or a list stands for.

    >>> parse_seeds(3), parse_seeds("3"), parse_seeds("3, 7,11"), parse_seeds([5]), parse_seeds("7, ")
    ([0, 1, 2], [0, 1, 2], [3, 7, 11], [5], [7])
    >>> parse_seeds("1-5"), parse_seeds("3-3"), parse_seeds("0-2,7")
    ([1, 2, 3, 4, 5], [3], [0, 1, 2, 7])
    """
    parsed: list[int] = []
    try:
        if isinstance(seeds, str):
            seeds = _read_seeds(seeds)
        if isinstance(seeds, int):
            parsed = list(range(check_int("seeds", seeds))) if seeds <= MAX_SEEDS else []
        else:
            parsed = [check_int("a seed", seed, minimum=0) for seed in seeds]
    except (TypeError, ValueError):
        parsed = []
    if not parsed or len(set(parsed)) < len(parsed) or max(parsed) >= 2**63:
        raise UsageError(
            f"seeds must be a count (5, at most {MAX_SEEDS}) or distinct non-negative seeds (3,7,11 or 1-5), "
            f"not {short(seeds)}"
        )
    return parsed


def _read_seeds(text: str) -> int | list[int]:
    """Return the number of seeds in a text, or the seeds where it is a list or a range, or both: 0-2,7."""
    seeds: list[int] = []
    for part in text.rstrip(", ").split(","):
        first, dash, last = part.partition("-")
        start, stop = int(first), int(last if dash else first)
        if not 0 <= stop - start < MAX_SEEDS:
            raise ValueError
        seeds += range(start, stop + 1)
    return seeds if "," in text or "-" in text else seeds[0]


def default_store() -> str:
    """Return the default path of the store: $GMED_STORE, else gmed.db in the current folder."""
    return os.environ.get("GMED_STORE") or "gmed.db"


def _read(path: Path) -> Mapping[str, Any]:
    try:
        check_regular(path)
        text = path.read_text(encoding="utf-8")
        content = tomllib.loads(text) if path.suffix == ".toml" else _yaml(path, text)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such file") from None
    except GmedError:
        raise
    except (OSError, ValueError, RecursionError) as error:  # not UTF-8 or TOML, or an invalid date or number in it
        raise UsageError(f"{path}: cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path}: must contain keys such as benchmark, methods and seeds")
    return content


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError(f"{path}: reading YAML needs PyYAML (pip install 'gmed[yaml]'), or use TOML") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(f"{path}: not valid YAML ({error})") from None
