"""Choosing hyper-parameters by the paper's protocol."""

from __future__ import annotations

import shlex
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmed.callbacks import Callback
from gmed.deprecated import old_names
from gmed.engine.benchmark_id import tuning_name
from gmed.engine.methods import parse, understand
from gmed.errors import UsageError
from gmed.experiment import Experiment, default_store
from gmed.results import Failure, Store
from gmed.results.formatting import to_cli_args
from gmed.results.tuning import GRIDS, TUNED_SUFFIX, best_candidate, candidates, scores

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)


@dataclass(frozen=True)
class TuningResult:
    """What was tried and chosen.

    Attributes
    ----------
    parameters
        The names of what was tuned.
    scores
        Held-out accuracy of every point of the grid, in percent.
    chosen
        The best candidate.
    seeds
        How many the scores are means over: those that all candidates have.
    """

    benchmark: str
    method: str
    parameters: tuple[str, ...]
    scores: dict[tuple[float, ...], float]
    chosen: str
    seeds: int
    failures: list[Failure]


def tune(
    benchmark: str,
    method: str,
    *,
    seeds: int = 5,
    store: str | Path | None = None,
    callback: Callback | None = None,
    **options: Any,
) -> TuningResult:
    """Try every candidate of a method on held-out examples of the first three tasks, and choose the best.

    No later task and no test example is seen: candidates are run on the benchmark ``<name>-tuning``, whose stream and
    test sets are made of the training examples of three tasks. Runs are kept in the store, and
    ``er+gmed(tuned)`` then stands for what was chosen.

    Parameters
    ----------
    benchmark, method
        A benchmark or the path of data of one's own, and a method with an edit.
    seeds
        How many each candidate is tried at.
    store, **options
        As in :func:`gmed.run`; tuning needs a store.
    """
    if method.endswith(TUNED_SUFFIX):
        raise UsageError(f"{method}: tune it by its name without {TUNED_SUFFIX}, {method.removesuffix(TUNED_SUFFIX)}")
    method, path = understand(method), store or default_store()
    asked = Experiment(benchmark, method, seeds, store=path, **options)
    which = asked.benchmark_id
    benchmark = str(which.variant())
    if which.tuning:
        tuned = shlex.join(["gmed", "tune", *to_cli_args(benchmark, method)])
        raise UsageError(f"{which}: what another benchmark is tuned on; tune that one: {tuned}")
    named = candidates(benchmark, method)
    beforehand = replace(
        asked, benchmark=tuning_name(benchmark), data_dir=asked.data_folder, name=None, label=None, split=None, drop=()
    )
    results = replace(beforehand, methods=list(named.values())).run(callback=callback)
    if not results.runs:
        raise UsageError(f"{benchmark} {method}: every candidate failed; the first: {results.failures[0].error}")
    with Store(path) as opened:
        found = scores(opened, benchmark, method)
        best = best_candidate(opened, benchmark, method)
    edit = parse(method)[-1]
    names = tuple(name for name in GRIDS[edit.name] if name not in edit.parameters)
    return TuningResult(benchmark, method, names, found.means, best, found.seeds, results.failures)
