"""Tuning of hyper-parameters by the paper's protocol."""

from __future__ import annotations

import math
import shlex
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gmed.callbacks import Callback
from gmed.deprecated import old_names
from gmed.engine import EDITS
from gmed.engine.benchmarks import BenchmarkId, tuning_name
from gmed.engine.methods import parse, understand
from gmed.errors import GmedWarning, UsageError
from gmed.experiment import Experiment, default_store
from gmed.results import Failure, Gain, Store
from gmed.results.formatting import to_cli_args
from gmed.results.tuning import (
    TUNED_SUFFIX,
    baselines,
    best_candidate,
    candidates,
    common_seeds,
    gain_of_tuning,
    grid_options,
    held_out,
    mean_score,
    read_grid,
    record_grid,
    scores,
    with_memory,
)

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

TUNING_TASKS = 3
"""Number of tasks on which candidates are evaluated."""


class TuningWarning(GmedWarning):
    """The chosen values need attention before they are used."""


@dataclass(frozen=True)
class TuningResult:
    """The result of tuning: the scores of all candidates, and the choice.

    Attributes
    ----------
    parameters
        The names of the tuned parameters.
    scores
        Held-out accuracy at every point of the grid, in percent.
    chosen
        The best candidate.
    seeds
        Number of seeds that the scores are means over: those that all candidates have in common.
    baselines
        Held-out accuracy, in percent, of the baselines: the method without its edit, at every value of its own
        parameters in the grid; or, for a method without an edit, the method as given.
    gain
        The gain over the best baseline, cross-validated: at each seed, of the candidate that is best at the other
        seeds. On the seeds it was chosen on, the best of many looks better than it is. ``None`` for one seed.
    """

    benchmark: str
    method: str
    parameters: tuple[str, ...]
    scores: dict[tuple[Any, ...], float]
    chosen: str
    seeds: int
    failures: list[Failure]
    baselines: dict[str, float]
    gain: Gain | None

    @property
    def baseline(self) -> str:
        """The best baseline."""
        return max(self.baselines, key=lambda name: self.baselines[name])

    @property
    def recommended(self) -> str:
        """The best candidate if the 95% interval of its gain over the baseline is above 0, else the baseline."""
        return self.chosen if self.gain is not None and self.gain.low > 0 else self.baseline

    @property
    def notes(self) -> list[str]:
        """Notes to read before using the choice."""
        return [*self._notes_on_edges(), *self._notes_on_gain(), *self._notes_on_length()]

    def _notes_on_edges(self) -> Iterator[str]:
        best = max(self.scores.values())
        (point, *tied) = [point for point, score in self.scores.items() if score == best]
        beyond = {name: (value,) for name, value in zip(self.parameters, point, strict=True)}
        edges = []
        for index, name in enumerate(self.parameters):
            if any(other[index] != point[index] for other in tied):
                continue
            values = sorted({other[index] for other in self.scores if type(other[index]) in (int, float)})
            if further := _beyond(values, point[index]):
                beyond[name] = further
                end = "largest" if further[-1] > values[-1] else "smallest"
                edges.append(f"{name} = {point[index]:g} is the {end}")
        if edges:
            options = shlex.join(grid_options(beyond))
            yield f"{' and '.join(edges)} of the grid; the best value may lie beyond it: try {options}."

    def _notes_on_gain(self) -> Iterator[str]:
        if self.gain is None:
            yield (
                f"One seed is not enough to tell whether {self.chosen} is better than {self.baseline}: use several, "
                "such as --seeds 5."
            )
        elif self.recommended == self.baseline:
            g = self.gain
            interval = "" if math.isnan(g.p) else f", 95% interval [{g.low:+.2f}, {g.high:+.2f}]"
            yield (
                f"Not significantly better than {self.baseline}: {g.mean:+.2f} points{interval}, cross-validated over "
                f"{g.n} seeds. Use {self.baseline}, or tune on more seeds."
            )

    def _notes_on_length(self) -> Iterator[str]:
        data = BenchmarkId.parse(self.benchmark).custom_data
        if data is None or data.tasks > TUNING_TASKS:
            *before, last = parse(self.method)
            is_edited = last.name in EDITS
            base = "+".join(map(str, before)) if is_edited else self.method
            command = shlex.join(["gmed", "run", *to_cli_args(self.benchmark, base, self.method + TUNED_SUFFIX)])
            yield (
                "The values were chosen on the first tasks and may not suit the whole stream"
                f"{', where the chosen stride can do harm' if is_edited else ''}. "
                f"Compare them on all tasks first: {command}"
            )


def _beyond(values: list[Any], chosen: Any) -> tuple[Any, ...]:
    """Return values that extend a grid, if the chosen one is at an end that is not 0.

    >>> _beyond([1.0, 5.0, 10.0], 10.0), _beyond([10, 20], 10), _beyond([0.0, 1.0], 0.0), _beyond([1, 2, 3], 2)
    ((10.0, 20.0, 40.0), (2, 5, 10), (), ())
    """
    if len(values) < 2 or chosen not in (values[0], values[-1]) or chosen == 0:
        return ()
    is_top = chosen == values[-1]
    neighbor = values[-2] if is_top else values[1]
    factor = chosen / neighbor if neighbor / chosen > 0 else 2.0
    further = [float(f"{chosen * factor**power:.3g}") for power in range(3)]
    return tuple(sorted({type(chosen)(value) for value in further}))


def tune(
    benchmark: str,
    method: str,
    *,
    grid: Mapping[str, str | Sequence[Any]] | None = None,
    seeds: int = 5,
    store: str | Path | None = None,
    callback: Callback | None = None,
    **options: Any,
) -> TuningResult:
    """Evaluate every candidate of a method on held-out examples of the first three tasks, and choose the best.

    No later task and no test example is used: candidates run on the benchmark ``<name>-tuning``, whose stream and test
    sets consist of training examples of three tasks. The method without its edit is run too, as the baseline. Runs are
    stored, and ``er+gmed(tuned)`` then means the method with the chosen values. Each note on the choice is issued as a
    :class:`TuningWarning`.

    Parameters
    ----------
    benchmark, method
        A benchmark or the path of your own data, and a method; without ``grid``, a method with an edit.
    grid
        The values to try for any parameters of the method, instead of the paper's α and β:
        ``{"alpha": [0.1, 1.0, 10.0], "lr": "0.01:0.1:3"}`` (three values from 0.01 to 0.1, evenly spaced on a
        logarithmic scale). Other parameters keep their values.
    seeds
        Number of seeds of each candidate.
    store, **options
        As in :func:`gmed.run`; tuning needs a store.
    """
    if method.endswith(TUNED_SUFFIX):
        raise UsageError(f"{method}: omit {TUNED_SUFFIX} when tuning: {method.removesuffix(TUNED_SUFFIX)}")
    method, path = understand(method), store or default_store()
    asked = Experiment(benchmark, method, seeds, store=path, **options)
    which = asked.benchmark_id
    benchmark = str(which.variant())
    if which.tuning:
        tuned = shlex.join(["gmed", "tune", *to_cli_args(benchmark, method)])
        raise UsageError(f"{which} is the tuning variant of a benchmark; tune the benchmark itself: {tuned}")
    method = with_memory(method, asked.memory)
    values = read_grid(method, grid)
    named, plain = candidates(benchmark, method, values), baselines(benchmark, method, values)
    beforehand = replace(
        asked,
        benchmark=tuning_name(benchmark),
        methods=[*plain, *named.values()],
        data_dir=asked.data_folder,
        name=None,
        label=None,
        split=None,
        drop=(),
        memory=None,
    )
    results = beforehand.run(callback=callback)
    if not results.runs:
        raise UsageError(f"{benchmark} {method}: every candidate failed, the first with: {results.failures[0].error}")
    with Store(path) as opened:
        found = scores(opened, benchmark, method, values)
        record_grid(opened, benchmark, method, values)
        best = best_candidate(opened, benchmark, method)
        by_seed = held_out(opened, benchmark, [*named.values(), *plain])
    for name in plain:
        if not by_seed[name]:
            errors = [failure.error for failure in results.failures if failure.method == name]
            raise UsageError(f"{benchmark} {name}: the baseline of the candidates failed: {errors[0]}")
    tried = [by_seed[name] for name in named.values()]
    measured = [by_seed[name] for name in plain]
    result = TuningResult(
        benchmark,
        method,
        found.parameters,
        found.means,
        best,
        found.seeds,
        results.failures,
        {name: mean_score(by_seed[name], by_seed[name]) for name in plain},
        gain_of_tuning(tried, measured, common_seeds([*tried, *measured])),
    )
    for note in result.notes:
        warnings.warn(note, TuningWarning, stacklevel=2)
    return result
