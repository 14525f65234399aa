"""Experiments: methods on a benchmark over seeds, computed once and kept."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from inspect import Parameter, Signature, signature
from pathlib import Path
from reprlib import repr as short
from typing import Any, NamedTuple, TypeVar

from gmed.callbacks import Callback
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
from gmed.engine.runner import BY_PREDICT
from gmed.errors import GmedError, UsageError, check_float, check_int, unknown
from gmed.io.files import check_regular
from gmed.paper.published import published
from gmed.results import Failure, Results, Store, SweepClaims
from gmed.results.results import sort_runs
from gmed.results.tuning import TUNED_SUFFIX, best_candidate

MAX_SEEDS = 100_000

OutcomeT = TypeVar("OutcomeT", bound=RunResult | str)

POLL_SECONDS = 0.5
"""Seconds between two looks at what another sweep is computing."""


class Option(NamedTuple):
    """What is known of an option of a run, wherever it is given.

    Attributes
    ----------
    help
        For the command line.
    types
        What its value may be, besides what is the same as its default.
    wanted
        The same in words.
    flag
        Its name at the command line, where that is not its own.
    each
        What each entry is, of an option that is a list.
    parsed
        What the command line makes of the text: a type.
    """

    help: str
    types: tuple[type, ...]
    wanted: str
    flag: str | None = None
    each: str | None = None
    parsed: Any = str


def _option(help: str, types: tuple[type, ...], wanted: str, **further: Any) -> dict[str, Option]:
    return {"option": Option(help, types, wanted, **further)}


@dataclass(frozen=True)
class Experiment:
    """What to run and where: the arguments of :func:`run`, the options of ``gmed run`` and the keys of a file.

    Attributes
    ----------
    benchmark, methods
        Names as ``gmed list`` shows them, or the path of your own data
        (:func:`gmed.data.custom.load_custom`); methods may carry parameters, ``"er+gmed(alpha=1.0)"``.
    seeds
        A number n for seeds 0 .. n - 1, or the seeds themselves.
    memory
        Memory size of methods that have one; by default the benchmark's.
    device
        ``auto``, ``cpu`` or ``cuda``.
    workers
        Worker processes; by default one per core (on a GPU at most eight), 0 for none but this one. Results do not
        depend on it.
    cluster
        The address of a Dask scheduler whose workers compute instead (``gmed[cluster]``).
    data_dir
        A folder with the data set's files; by default ``$GMED_DATA``, else the cache. MNIST is in the package.
    store
        The SQLite file of results, by default ``$GMED_STORE``, else ``gmed.db`` in the current folder; ``None`` keeps
        nothing.
    checkpoint_every
        Seconds between checkpoints of a run.
    fuzzy
        Whether tasks fade into each other instead of ending sharply: the benchmark ``<name>-fuzzy``.
    deterministic
        Whether a GPU computes the same bits every time, at some cost; a CPU does in any case.
    label, split, drop
        Of one's own data: which column of a table is the label, how tasks are made, by default ``by-class``, and which
        columns are left out.
    prequential
        Whether every batch is predicted before it is learned from, for one more figure at the cost of a forward pass;
        a stored run without that figure is run again.
    extensions
        Python files that register parts of one's own.
    model
        A model in place of the benchmark's: ``"net.py:small(width=64)"`` or ``"package.module:factory"``; a function or
        class at the top level of a file, called without arguments; or a module, of which every run gets a copy.
    """

    benchmark: str
    methods: Sequence[str] | str
    seeds: int | str | Sequence[int] = field(
        default=5, metadata=_option("5 means seeds 0-4; 3,7,11 means those [5]", (object,), "seeds")
    )
    memory: int | None = field(
        default=None, metadata=_option("Memory size [the benchmark's]", (int,), "a whole number", parsed=int)
    )
    device: str = field(default="auto", metadata=_option("auto, cpu or cuda [auto]", (str,), "auto, cpu or cuda"))
    workers: int | None = field(
        default=None,
        metadata=_option("Worker processes [one per core; GPU: at most 8]", (int,), "a whole number", parsed=int),
    )
    cluster: str | None = field(
        default=None,
        metadata=_option(
            "Address of a Dask scheduler whose workers compute", (str,), "the address of a Dask scheduler"
        ),
    )
    data_dir: str | Path | None = field(
        default=None,
        metadata=_option(
            "Folder of the data set [$GMED_DATA, else the cache; MNIST: the packaged one]", (str, Path), "a folder"
        ),
    )
    store: str | Path | None = field(
        default_factory=lambda: default_store(),
        metadata=_option("SQLite file of results [$GMED_STORE, else gmed.db here]", (str, Path), "a file"),
    )
    checkpoint_every: float = field(
        default=60.0, metadata=_option("Seconds between checkpoints of a run [60]", (object,), "a number", parsed=float)
    )
    fuzzy: bool = field(default=False, metadata=_option("Let tasks fade into each other", (bool,), "true or false"))
    deterministic: bool = field(
        default=False, metadata=_option("On a GPU: the same bits every time, more slowly", (bool,), "true or false")
    )
    label: str | None = field(
        default=None, metadata=_option("Of a table: the column that is the label", (str,), "the name of a column")
    )
    split: str | None = field(
        default=None,
        metadata=_option(
            "Of your own data: by-class, by-time, by-column=NAME, none [by-class]",
            (str,),
            "a way to make tasks, such as by-class",
        ),
    )
    drop: Sequence[str] = field(
        default=(),
        metadata=_option(
            "Of a table: a column to leave out; may be given again",
            (list, tuple),
            "a list of columns",
            each="names of columns",
            parsed=list[str],
        ),
    )
    prequential: bool = field(
        default=False, metadata=_option("Predict each batch before learning from it too", (bool,), "true or false")
    )
    model: ModelLike | None = field(
        default=None,
        metadata=_option("Model of your own: net.py:small or package.module:factory", (object,), "a model"),
    )
    extensions: Sequence[str | Path] = field(
        default=(),
        metadata=_option(
            "Python file that registers parts of your own; may be repeated",
            (list, tuple),
            "a list of Python files",
            flag="--extension",
            each="Python files such as 'my_edit.py'",
            parsed=list[str],
        ),
    )

    def __post_init__(self) -> None:
        if isinstance(self.methods, str):
            object.__setattr__(self, "methods", [self.methods])
        if not isinstance(self.benchmark, str):
            raise UsageError(f"benchmark must be a name, not {short(self.benchmark)}")
        if not isinstance(self.methods, (list, tuple)):
            raise UsageError(f"methods must be a list of names, not {short(self.methods)}")
        for method in self.methods:
            if not isinstance(method, str):
                raise UsageError(f"methods must be names such as 'er+gmed', not {short(method)}")
        for name, option in run_options().items():
            self._check(name, getattr(self, name), option)
        for path in self.extensions:
            load_extension(path)
        check_device(self.device)
        check_float("checkpoint_every", self.checkpoint_every, greater_than=0)
        if self.workers is not None:
            check_int("workers", self.workers, minimum=0)
        if self.store is not None and str(self.store) in ("", ".", ":memory:"):
            raise UsageError(f"store must be a file, not {str(self.store)!r}; in Python, store=None keeps nothing")

    @staticmethod
    def _check(name: str, value: Any, option: Option) -> None:
        empty = value is None and name in _OPTIONAL
        is_bool = isinstance(value, bool) and not {bool, object} & set(option.types)
        if not empty and (is_bool or not isinstance(value, option.types)):
            raise UsageError(f"{name} must be {option.wanted}, not {short(value)}")
        for entry in value if option.each is not None else ():
            if not isinstance(entry, (str, Path) if name == "extensions" else str):
                raise UsageError(f"{name} must be {option.each}, not {short(entry)}")

    @classmethod
    def from_file(cls, path: Path, **overrides: Any) -> Experiment:
        """Read a TOML or YAML file whose keys are this class's attributes; overrides that are None do not count."""
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
        """Return the runs, seed by seed so that methods at one seed share its stream; none twice."""
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
        found, seeds = get_benchmark(str(benchmark)), parse_seeds(self.seeds)
        methods = [resolve(found, self._resolve_tuned(benchmark, text, stored), self.memory) for text in self.methods]
        made = (RunSpec(found, method, seed) for seed in seeds for method in methods)
        return list({spec.key: spec for spec in made}.values())

    @property
    def benchmark_id(self) -> BenchmarkId:
        """The benchmark as it was given; where that was a path, with all that identifies the data."""
        return BenchmarkId(self._custom_data) if self._custom_data else get_benchmark(self.benchmark).id

    @cached_property
    def _custom_data(self) -> CustomDataRef | None:
        """The data, where a path was given instead of the name of a benchmark."""
        if self.benchmark not in BENCHMARKS and is_data_path(self.benchmark):
            if self.data_dir is not None:
                raise UsageError(f"data_dir says where the data of a benchmark are; {self.benchmark} says so itself")
            return CustomDataRef.from_path(self._path, self.label, self.split or DEFAULT_SPLIT, self.drop)
        if Path(self.benchmark).suffix and BenchmarkId.parse(self.benchmark).custom_data is None:
            raise UsageError(
                f"{self.benchmark}: not a benchmark. Experiment files end in .toml or .yaml, "
                "data in .csv, .parquet or .npz"
            )
        if self.label is not None or self.split is not None or self.drop:
            raise UsageError(f"label, split and drop are for data of one's own, not for {self.benchmark}")
        return None

    @property
    def _path(self) -> Path:
        return Path(os.path.abspath(self.benchmark))  # noqa: PTH100 (a link keeps its name)

    @property
    def data_folder(self) -> Path | None:
        """Where the data are, unless where they are by default."""
        if self._custom_data:
            return self._path.parent
        return None if self.data_dir is None else Path(self.data_dir)

    def _resolve_tuned(self, benchmark: BenchmarkId, method: str, stored: _StoreHandle) -> str:
        """Return the method itself, or what was chosen for one that is to be taken as tuned."""
        if not method.endswith(TUNED_SUFFIX):
            return method
        if (store := stored.read()) is None:
            raise UsageError(f"{method}: what was chosen is in the store, and there is none; gmed tune makes one")
        return best_candidate(store, str(replace(benchmark, fuzzy=False)), method.removesuffix(TUNED_SUFFIX))

    def _executor(self) -> Executor:
        if self.cluster is not None:
            return DaskExecutor(self.cluster)
        resolve_device(self.device)
        return partial(execute, workers=self.workers)

    def _checkpoints(self, rerun: bool) -> Checkpoints | None:
        """A folder beside the store; nothing is kept where there is no store, or where results are to be made anew."""
        if self.store is None or rerun:
            return None
        return Checkpoints(checkpoint_dir(self.store), self.checkpoint_every)

    def _has_requested_metrics(self, spec: RunSpec, outcome: OutcomeT | None) -> OutcomeT | None:
        """What became of a run, unless it does not tell what is asked of it.

        Methods of this package predict with their model. For one of somebody's own, prequential accuracy counts only if
        its ``predict`` was asked.
        """
        if not self.prequential or not isinstance(outcome, RunResult):
            return outcome
        by_predict = outcome.environment.get("prequential") == BY_PREDICT or not spec.method.sources()
        return outcome if outcome.prequential is not None and by_predict else None

    def run(
        self, *, rerun: bool = False, callback: Callback | None = None, executor: Executor | None = None
    ) -> Results:
        """Compute what the store does not have yet, keep each run as it finishes, return them all.

        Parameters
        ----------
        rerun
            Compute again what the store has.
        callback
            Told what happens.
        executor
            Who computes: by default worker processes on this machine, or the cluster that was given.
        """
        callback = callback or Callback()
        with ExitStack() as stack:
            opened = _StoreHandle(self.store, stack)
            specs = self._specs(opened)
            executor = executor or self._executor()
            results = Results(store=None if self.store is None else str(self.store), published=published)
            old = None if rerun else opened.read()
            stored = {s.key: run for s in specs if old and (run := self._has_requested_metrics(s, old.find(s)))}
            results.runs.extend(stored.values())
            todo = [spec for spec in specs if spec.key not in stored]
            checkpoints = self._checkpoints(rerun)
            if checkpoints is not None and checkpoints.folder.exists():  # what was left by processes that were killed
                for spec in specs:
                    if spec.key in stored:
                        checkpoints.discard(spec)
                checkpoints.remove_stale()
            if todo:  # bad or missing data are known before anything runs or is written
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
        """What happens to the runs until each has ended: computed here, or by another sweep that was there first."""
        store, began = sweep.store, time.time()
        waiting, elsewhere = list(todo), list[RunSpec]()
        while waiting:
            ended: dict[RunSpec, RunResult | str] = {}
            if not rerun:
                outcomes = {spec: self._has_requested_metrics(spec, store.outcome(spec, began)) for spec in elsewhere}
                ended |= {spec: outcome for spec, outcome in outcomes.items() if outcome}
            ours = sweep.claim([spec for spec in waiting if spec not in ended])
            if not rerun:  # somebody may have finished one of them since the store was looked at
                ended |= {
                    spec: found for spec in ours if (found := self._has_requested_metrics(spec, store.find(spec)))
                }
            for spec, outcome in ended.items():
                yield Failed(spec, outcome) if isinstance(outcome, str) else Finished(spec, outcome)
            ours = [spec for spec in ours if spec not in ended]
            with closing(executor(ours, config)) as events:
                for news in events:
                    store.add_all([(event.spec, _outcome(event)) for event in news if not isinstance(event, Progress)])
                    for event in news:
                        if isinstance(event, Progress):
                            sweep.report_progress(event.spec, event.seen, event.total)
                    if config.checkpoints is not None:
                        for event in news:
                            if isinstance(event, Finished):
                                config.checkpoints.discard(event.spec)
                    yield from news
            settled = {*ended, *ours}
            waiting = elsewhere = [spec for spec in waiting if spec not in settled]
            if waiting and not ours:
                callback.on_wait(len(waiting))
                time.sleep(POLL_SECONDS)


def _outcome(event: Finished | Failed) -> RunResult | str:
    return event.result if isinstance(event, Finished) else event.error


class _StoreHandle:
    """The store of an experiment, opened once: to read if there is one, to write when there is something to write."""

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


def run_options() -> dict[str, Option]:
    """Return the options of a run by their names in Python, in the order in which they are listed."""
    return {f.name: f.metadata["option"] for f in fields(Experiment) if "option" in f.metadata}


_OPTIONAL = frozenset(f.name for f in fields(Experiment) if "None" in str(f.type))


def run(
    benchmark: str,
    methods: str | Sequence[str],
    *,
    rerun: bool = False,
    executor: Executor | None = None,
    **options: Any,
) -> Results:
    """Run methods on a benchmark over seeds, and return the results as data.

    Runs finished before are taken from the store. At one seed every method meets the same weights, data,
    order and replay draws, so differences are paired.

    Parameters
    ----------
    benchmark, methods
        Names as ``gmed list`` shows them, or the path of data of one's own; methods may carry parameters,
        ``"er+gmed(alpha=1.0)"``.
    rerun
        Compute again what the store has.
    executor
        What computes the runs: by default worker processes on this machine, or a
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
    known = run_options()
    for name in options:
        if name not in known:
            raise unknown("option", name, [*known, "rerun", "executor"])
    return Experiment(benchmark, methods, **options).run(rerun=rerun, executor=executor)


def _signature() -> Signature:
    """Return that of :func:`run`, every option by its name: what editors and ``help`` show."""
    own = [p for p in signature(run).parameters.values() if p.kind is not Parameter.VAR_KEYWORD]
    given = [
        p.replace(kind=Parameter.KEYWORD_ONLY)
        for p in signature(Experiment).parameters.values()
        if p.name not in ("benchmark", "methods")
    ]
    return signature(run).replace(parameters=[*own, *given])


run.__signature__ = _signature()  # type: ignore[attr-defined]


def stored_results(store: str | Path, benchmark: str | None = None, methods: Sequence[str] = ()) -> tuple[Results, int]:
    """What a store holds, and how many runs were left out because their parts have changed since."""
    if not Path(store).exists():
        if benchmark is not None and not is_data_path(benchmark):
            get_benchmark(benchmark)  # a name that does not exist is the first thing to know
        raise UsageError(f"{store}: no results there yet; gmed run makes some")
    with Store(store) as opened:
        names = [None] if benchmark is None else opened.matching_benchmarks(benchmark)
        runs = [run for name in names for run in opened.runs(name)]
        failures = [failure for name in names for failure in opened.failures(name)]
        asked = {name: [resolve(get_benchmark(name), method).name for method in methods] for name in names if name}
        outdated = sum(opened.count_outdated(name, asked.get(name or "", [])) for name in names)
    if methods:
        named = {(name, method) for name, found in asked.items() for method in found}
        runs = [r for r in runs if (r.benchmark, r.method) in named]
        failures = [f for f in failures if (f.benchmark, f.method) in named]
    runs.sort(key=_sort_key)
    return Results(runs=runs, failures=failures, store=str(store), published=published), outdated


def extensions_to_load(store: str | Path) -> str:
    """The options that would load what has computed stored results and is not here, if there is any."""
    with Store(store) as opened:
        return " ".join(f"--extension {name}" for name in opened.missing_extensions())


def outdated_note(store: str | Path, outdated: int) -> str:
    """Why so many stored results are not shown, in words; nothing where all are."""
    if not outdated:
        return ""
    lacking = extensions_to_load(store)
    many = "1 stored result is" if outdated == 1 else f"{outdated} stored results are"
    them = "it" if outdated == 1 else "them"
    loaded = f", or is to be loaded: {lacking}" if lacking else ""
    return f"{many} left out: a part that computed {them} has changed since{loaded}"


def unfinished_runs(store: str | Path) -> list[tuple[str, str]]:
    """The benchmark and method of every run that has a checkpoint beside a store."""
    folder = checkpoint_dir(store)
    return [name for path in sorted(folder.glob("*.safetensors")) if (name := read_run_name(path))]


def checkpoint_dir(store: str | Path) -> Path:
    """Where the checkpoints of a store's runs are."""
    return Path(f"{store}.unfinished").resolve()


def _sort_key(run: RunResult) -> tuple[int, str, int, int, str, int]:
    """Where a run stands in a table: by benchmark, base and edit as they are listed, then by name and seed."""
    method = RunSpec.parse(run.benchmark, run.method, run.seed).method
    edit = list(EDITS).index(method.edit.name) + 1 if method.edit else 0
    base = list(METHODS).index(method.base.name)
    known = list(BENCHMARKS).index(run.benchmark) if run.benchmark in BENCHMARKS else len(BENCHMARKS)
    return known, run.benchmark, base, edit, run.method, run.seed


def parse_seeds(seeds: int | str | Sequence[int]) -> list[int]:
    """The seeds that a number, a text or a list means.

    >>> parse_seeds(3), parse_seeds("3"), parse_seeds("3, 7,11"), parse_seeds([5]), parse_seeds("7, ")
    ([0, 1, 2], [0, 1, 2], [3, 7, 11], [5], [7])
    """
    found: list[int] = []
    try:
        if isinstance(seeds, str):
            numbers = [int(part) for part in seeds.rstrip(", ").split(",")]
            seeds = numbers if "," in seeds else numbers[0]
        if isinstance(seeds, int):
            found = list(range(check_int("seeds", seeds))) if seeds <= MAX_SEEDS else []
        else:
            found = [check_int("a seed", seed, minimum=0) for seed in seeds]
    except (TypeError, ValueError):
        found = []
    if not found or len(set(found)) < len(found) or max(found) >= 2**63:
        raise UsageError(
            f"seeds must be a number of seeds (5, at most {MAX_SEEDS}) or different seeds from 0 on (3,7,11), "
            f"not {short(seeds)}"
        )
    return found


def default_store() -> str:
    """Where results go unless told otherwise: $GMED_STORE, else gmed.db in the current folder."""
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
    except (OSError, ValueError, RecursionError) as error:  # not UTF-8 or TOML; dates and numbers that are none
        raise UsageError(f"{path}: cannot be read ({error})") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path}: must hold keys such as benchmark, methods and seeds")
    return content


def _yaml(path: Path, text: str) -> Any:
    try:
        import yaml
    except ImportError:
        raise UsageError(f"{path}: reading YAML needs PyYAML (pip install 'gmed[yaml]'), or use TOML") from None
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, LookupError, TypeError, AttributeError, OverflowError) as error:
        raise UsageError(f"{path}: not sound YAML ({error})") from None
