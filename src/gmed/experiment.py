"""Experiments: methods on a benchmark over seeds, computed once and kept."""

from __future__ import annotations

import os
import time
import tomllib
from collections.abc import Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, fields
from functools import cached_property, partial
from pathlib import Path
from reprlib import repr as short
from typing import Any, TypeVar

from gmed.data.own import DEFAULT_SPLIT, OwnData, is_own
from gmed.engine import (
    BENCHMARKS,
    EDITS,
    FUZZY,
    METHODS,
    TUNING,
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
from gmed.engine.checkpoint import Checkpoints, checkpointed
from gmed.engine.cluster import Cluster
from gmed.engine.executor import Executor, Progress
from gmed.engine.fitting import check_fits
from gmed.engine.own_model import Given, OwnModel
from gmed.engine.run import BY_PREDICT
from gmed.engine.terms import Terms, check_device, pick_device
from gmed.errors import GmedError, UsageError, finite_number, unknown, whole_number
from gmed.io.files import check_regular
from gmed.paper import published
from gmed.results import Failure, Results, Store, Sweep
from gmed.results.results import in_order
from gmed.results.tuning import TUNED, chosen

MOST_SEEDS = 100_000

Ended = TypeVar("Ended", bound=RunResult | str)

LOOK_AGAIN = 0.5
"""Seconds between two looks at what another sweep is computing."""


class Watcher:
    """Told what an experiment does while it does it; does nothing with it."""

    def preparing(self, done: int, total: int | None) -> None:
        """While data are decoded: how much of how much."""

    def start(self, todo: Sequence[RunSpec], kept: int) -> None:
        """Before the first run: the runs to compute, and how many were in the store already."""

    def event(self, event: Event) -> None:
        """Whenever something happened."""

    def watched(self, spec: RunSpec) -> None:
        """Whenever a run has ended that was made to be watched, and leaves no result."""

    def waiting(self, runs: int) -> None:
        """While nothing is left to do but wait for runs that another sweep is computing."""


@dataclass(frozen=True)
class Experiment:
    """What to compute and where, as one value: the arguments of :func:`run`, or a file."""

    benchmark: str
    methods: Sequence[str]
    seeds: int | str | Sequence[int] = 5
    memory: int | None = None
    device: str = "auto"
    workers: int | None = None
    data_dir: str | Path | None = None
    store: str | Path | None = field(default_factory=lambda: default_store())
    fuzzy: bool = False
    checkpoint_every: float = 60.0
    deterministic: bool = False
    cluster: str | None = None
    label: str | None = None
    split: str | None = None
    drop: Sequence[str] = ()
    prequential: bool = False
    extensions: Sequence[str | Path] = ()
    model: Given | None = None

    def __post_init__(self) -> None:
        kinds: dict[str, tuple[Any, str]] = {
            "benchmark": (str, "a name"),
            "methods": ((list, tuple), "a list of names"),
            "memory": ((int, type(None)), "a whole number"),
            "device": (str, "auto, cpu or cuda"),
            "workers": ((int, type(None)), "a whole number"),
            "data_dir": ((str, Path, type(None)), "a folder"),
            "store": ((str, Path, type(None)), "a file"),
            "cluster": ((str, type(None)), "the address of a Dask scheduler"),
            "label": ((str, type(None)), "the name of a column"),
            "split": ((str, type(None)), "a way to make tasks, such as by-class"),
            "drop": ((list, tuple), "a list of columns"),
            "extensions": ((list, tuple), "a list of Python files"),
        }
        for name, (kind, wanted) in kinds.items():
            if not isinstance(getattr(self, name), kind) or isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} must be {wanted}, not {short(getattr(self, name))}")
        for method in self.methods:
            if not isinstance(method, str):
                raise UsageError(f"methods must be names such as 'er+gmed', not {short(method)}")
        for column in self.drop:
            if not isinstance(column, str):
                raise UsageError(f"drop must be names of columns, not {short(column)}")
        for name in ("fuzzy", "deterministic", "prequential"):
            if not isinstance(getattr(self, name), bool):
                raise UsageError(f"{name} must be true or false, not {short(getattr(self, name))}")
        for path in self.extensions:
            if not isinstance(path, (str, Path)):
                raise UsageError(f"extensions must be Python files such as 'my_edit.py', not {short(path)}")
            load_extension(path)
        check_device(self.device)
        finite_number("checkpoint_every", self.checkpoint_every, above=0)
        if self.workers is not None:
            whole_number("workers", self.workers, least=0)
        if self.store is not None and str(self.store) in ("", ".", ":memory:"):
            raise UsageError(f"store must be a file, not {str(self.store)!r}; in Python, store=None keeps nothing")

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
        if isinstance(content["methods"], str):
            content["methods"] = [content["methods"]]
        return cls(**content)

    def specs(self) -> list[RunSpec]:
        """The runs, seed by seed so that methods at one seed share its stream; none twice."""
        benchmark = self.benchmark_name
        if self.fuzzy and not benchmark.endswith(FUZZY):
            benchmark += FUZZY
        if self.model is not None:
            benchmark = OwnModel.given(self.model).on(benchmark)
        if not self.methods:
            raise UsageError("no method given; try: gmed run split-mnist er er+gmed")
        methods = [self._settled(benchmark, method) for method in self.methods]
        made = (
            RunSpec.make(benchmark, method, seed, self.memory) for seed in seed_list(self.seeds) for method in methods
        )
        return list({spec.key: spec for spec in made}.values())

    @property
    def benchmark_name(self) -> str:
        """The benchmark; where a path was given, the name that says all that identifies the data."""
        return self._own.name if self._own else get_benchmark(self.benchmark).name

    @cached_property
    def _own(self) -> OwnData | None:
        """The data, where a path was given instead of the name of a benchmark."""
        if self.benchmark not in BENCHMARKS and is_own(self.benchmark):
            if self.data_dir is not None:
                raise UsageError(f"data_dir says where the data of a benchmark are; {self.benchmark} says so itself")
            return OwnData.at(self._path, self.label, self.split or DEFAULT_SPLIT, self.drop)
        plain = self.benchmark.removesuffix(FUZZY).removesuffix(TUNING)
        if Path(self.benchmark).suffix and OwnData.named(plain) is None:
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
        if self._own:
            return self._path.parent
        return None if self.data_dir is None else Path(self.data_dir)

    def _settled(self, benchmark: str, method: str) -> str:
        """The method itself, or what was chosen for one that is to be taken as tuned."""
        if not method.endswith(TUNED):
            return method
        if self.store is None or not Path(self.store).exists():
            raise UsageError(f"{method}: what was chosen is in the store, and there is none; gmed tune makes one")
        with Store(self.store) as store:
            return chosen(store, benchmark.removesuffix(FUZZY), method.removesuffix(TUNED))

    def _executor(self) -> Executor:
        if self.cluster is not None:
            return Cluster(self.cluster)
        pick_device(self.device)
        return partial(execute, workers=self.workers)

    def _checkpoints(self, rerun: bool) -> Checkpoints | None:
        """A folder beside the store; nothing is kept where there is no store, or where results are to be made anew."""
        if self.store is None or rerun:
            return None
        return Checkpoints(unfinished_folder(self.store), self.checkpoint_every)

    def _stored(self, specs: Sequence[RunSpec]) -> dict[str, RunResult]:
        if self.store is None or not Path(self.store).exists():
            return {}
        with Store(self.store) as store:
            return {spec.key: run for spec in specs if (run := self._if_enough(spec, store.find(spec)))}

    def _if_enough(self, spec: RunSpec, outcome: Ended | None) -> Ended | None:
        """What became of a run, unless it does not tell what is asked of it.

        Methods of this package predict with their model. For one of somebody's own, prequential accuracy counts only if
        its ``predict`` was asked.
        """
        if not self.prequential or not isinstance(outcome, RunResult):
            return outcome
        by_predict = outcome.environment.get("prequential") == BY_PREDICT or not spec.method.sources()
        return outcome if outcome.prequential is not None and by_predict else None

    def run(self, *, rerun: bool = False, watcher: Watcher | None = None, executor: Executor | None = None) -> Results:
        """Compute what the store does not have yet, keep each run as it finishes, return them all."""
        watcher = watcher or Watcher()
        specs = self.specs()
        executor = executor or self._executor()
        data_dir = self.data_folder
        results = Results(store=None if self.store is None else str(self.store), published=published)
        stored = {} if rerun else self._stored(specs)
        results.runs.extend(stored.values())
        todo = [spec for spec in specs if spec.key not in stored]
        checkpoints = self._checkpoints(rerun)
        if checkpoints is not None and checkpoints.folder.exists():  # what was left by processes that were killed
            for spec in specs:
                if spec.key in stored:
                    checkpoints.discard(spec)
            checkpoints.remove_stale()
        if todo:  # bad or missing data are known before anything runs or is written
            data = todo[0].benchmark.dataset(data_dir, watcher.preparing)
            if self.model is not None:
                check_fits(todo[0].benchmark, data)
        with Store(self.store if self.store is not None else ":memory:") as store:
            watcher.start(todo, len(stored))
            if todo:
                terms = Terms(self.device, data_dir, checkpoints, self.deterministic, self.prequential)
                with (
                    Sweep(store) as sweep,
                    closing(self._events(todo, sweep, terms, executor, rerun, watcher)) as events,
                ):
                    for event in events:
                        if isinstance(event, Finished):
                            results.runs.append(event.result)
                        elif isinstance(event, Failed):
                            spec = event.spec
                            failure = Failure(spec.benchmark.name, spec.method.name, spec.seed, event.error)
                            results.failures.append(failure)
                        watcher.event(event)
        results.runs = in_order(results.runs, [spec.method.name for spec in specs])
        return results

    def _events(
        self,
        todo: Sequence[RunSpec],
        sweep: Sweep,
        terms: Terms,
        executor: Executor,
        rerun: bool,
        watcher: Watcher,
    ) -> Generator[Event, None, None]:
        """What happens to the runs until each has ended: computed here, or by another sweep that was there first."""
        store, began = sweep.store, time.time()
        waiting, theirs = list(todo), list[RunSpec]()
        while waiting:
            ended: dict[RunSpec, RunResult | str] = {}
            if not rerun:
                outcomes = {spec: self._if_enough(spec, store.outcome(spec, began)) for spec in theirs}
                ended |= {spec: outcome for spec, outcome in outcomes.items() if outcome}
            ours = sweep.claim([spec for spec in waiting if spec not in ended])
            if not rerun:  # somebody may have finished one of them since the store was looked at
                ended |= {spec: found for spec in ours if (found := self._if_enough(spec, store.find(spec)))}
            for spec, outcome in ended.items():
                yield Failed(spec, outcome) if isinstance(outcome, str) else Finished(spec, outcome)
            ours = [spec for spec in ours if spec not in ended]
            with closing(executor(ours, terms)) as events:
                for news in events:
                    store.add_all([(event.spec, _outcome(event)) for event in news if not isinstance(event, Progress)])
                    for event in news:
                        if isinstance(event, Progress):
                            sweep.tell(event.spec, event.seen, event.total)
                    if terms.checkpoints is not None:
                        for event in news:
                            if isinstance(event, Finished):
                                terms.checkpoints.discard(event.spec)
                    yield from news
            settled = {*ended, *ours}
            waiting = theirs = [spec for spec in waiting if spec not in settled]
            if waiting and not ours:
                watcher.waiting(len(waiting))
                time.sleep(LOOK_AGAIN)


def _outcome(event: Finished | Failed) -> RunResult | str:
    return event.result if isinstance(event, Finished) else event.error


def run(
    benchmark: str,
    methods: str | Sequence[str],
    *,
    seeds: int | Sequence[int] = 5,
    memory: int | None = None,
    device: str = "auto",
    workers: int | None = None,
    data_dir: str | Path | None = None,
    store: str | Path | None = "",
    fuzzy: bool = False,
    deterministic: bool = False,
    label: str | None = None,
    split: str | None = None,
    drop: Sequence[str] = (),
    prequential: bool = False,
    model: Given | None = None,
    rerun: bool = False,
    executor: Executor | None = None,
) -> Results:
    """Run methods on a benchmark over seeds, and return the results as data.

    Runs finished before are taken from the store. At one seed every method meets the same weights, data,
    order and replay draws, so differences are paired.

    Parameters
    ----------
    benchmark, methods
        Names as ``gmed list`` shows them, or the path of data of one's own (:func:`gmed.data.own.read_own`); methods
        may carry parameters, ``"er+gmed(alpha=1.0)"``.
    seeds
        A number n for seeds 0 .. n - 1, or the seeds themselves.
    memory
        Memory size of methods that have one; by default the benchmark's.
    device
        ``auto``, ``cpu`` or ``cuda``.
    workers
        Worker processes; by default one per core (on a GPU at most eight), 0 for none but this one. Results do not
        depend on it.
    data_dir
        A folder with the data set's files; by default ``$GMED_DATA``, else the cache. MNIST is in the package.
    store
        The SQLite file of results, by default ``$GMED_STORE``, else ``gmed.db`` in the current folder;
        ``None`` keeps nothing.
    fuzzy
        Whether tasks fade into each other instead of ending sharply: the benchmark ``<name>-fuzzy``.
    deterministic
        Whether a GPU computes the same bits every time, at some cost; a CPU does in any case.
    label, split, drop
        Of one's own data: which column of a table is the label, how tasks are made, by default ``by-class``, and which
        columns are left out.
    prequential
        Whether every batch is predicted before it is learned from, for one more figure at the cost of a forward pass;
        a stored run without that figure is computed again.
    model
        A model in place of the benchmark's: ``"net.py:small(width=64)"`` or ``"package.module:factory"``; a function or
        class at the top level of a file, called without arguments; or a module, of which every run gets a copy.
    rerun
        Compute anew what the store already has.
    executor
        Who computes: by default worker processes on this machine, or a :class:`gmed.engine.cluster.Cluster`.

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
    methods = [methods] if isinstance(methods, str) else list(methods)
    store = default_store() if store == "" else store
    experiment = Experiment(
        benchmark,
        methods,
        seeds,
        memory,
        device,
        workers,
        data_dir,
        store,
        fuzzy,
        deterministic=deterministic,
        label=label,
        split=split,
        drop=drop,
        prequential=prequential,
        model=model,
    )
    return experiment.run(rerun=rerun, executor=executor)


def stored_results(store: str | Path, benchmark: str | None = None, methods: Sequence[str] = ()) -> tuple[Results, int]:
    """What a store holds, and how many runs were left out because their parts have changed since."""
    if not Path(store).exists():
        if benchmark is not None and not is_own(benchmark):
            get_benchmark(benchmark)  # a name that does not exist is the first thing to know
        raise UsageError(f"{store}: no results there yet; gmed run makes some")
    with Store(store) as opened:
        names = [None] if benchmark is None else opened.benchmarks_named(benchmark)
        runs = [run for name in names for run in opened.runs(name)]
        failures = [failure for name in names for failure in opened.failures(name)]
        asked = {name: [resolve(get_benchmark(name), method).name for method in methods] for name in names if name}
        outdated = sum(opened.outdated(name, asked.get(name or "", [])) for name in names)
    if methods:
        named = {(name, method) for name, found in asked.items() for method in found}
        runs = [r for r in runs if (r.benchmark, r.method) in named]
        failures = [f for f in failures if (f.benchmark, f.method) in named]
    runs.sort(key=_place)
    return Results(runs=runs, failures=failures, store=str(store), published=published), outdated


def extensions_to_load(store: str | Path) -> str:
    """The options that would load what has computed stored results and is not here, if there is any."""
    with Store(store) as opened:
        return " ".join(f"--extension {name}" for name in opened.extensions_lacking())


def left_out(store: str | Path, outdated: int) -> str:
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
    folder = unfinished_folder(store)
    return [name for path in sorted(folder.glob("*.safetensors")) if (name := checkpointed(path))]


def unfinished_folder(store: str | Path) -> Path:
    """Where the checkpoints of a store's runs are."""
    return Path(f"{store}.unfinished").resolve()


def _place(run: RunResult) -> tuple[int, str, int, int, str, int]:
    """Where a run stands in a table: by benchmark, base and edit as they are listed, then by name and seed."""
    method = RunSpec.named(run.benchmark, run.method, run.seed).method
    edit = list(EDITS).index(method.edit.name) + 1 if method.edit else 0
    base = list(METHODS).index(method.base.name)
    known = list(BENCHMARKS).index(run.benchmark) if run.benchmark in BENCHMARKS else len(BENCHMARKS)
    return known, run.benchmark, base, edit, run.method, run.seed


def seed_list(seeds: int | str | Sequence[int]) -> list[int]:
    """The seeds that a number, a text or a list means.

    >>> seed_list(3), seed_list("3"), seed_list("3, 7,11"), seed_list([5]), seed_list("7, ")
    ([0, 1, 2], [0, 1, 2], [3, 7, 11], [5], [7])
    """
    found: list[int] = []
    try:
        if isinstance(seeds, str):
            numbers = [int(part) for part in seeds.rstrip(", ").split(",")]
            seeds = numbers if "," in seeds else numbers[0]
        if isinstance(seeds, int):
            found = list(range(whole_number("seeds", seeds))) if seeds <= MOST_SEEDS else []
        else:
            found = [whole_number("a seed", seed, least=0) for seed in seeds]
    except (TypeError, ValueError):
        found = []
    if not found or len(set(found)) < len(found) or max(found) >= 2**63:
        raise UsageError(
            f"seeds must be a number of seeds (5, at most {MOST_SEEDS}) or different seeds from 0 on (3,7,11), "
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
