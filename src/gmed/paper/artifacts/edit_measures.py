"""Similarity of edits to the optimal ones, and the share of predictions that edits change."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from gmed.paper.artifacts.base import Artifact, ArtifactResult, Figure, Measurement, Request
from gmed.paper.artifacts.charts import CATEGORIES, GRAY, Record, data, seed_counts, spread_columns
from gmed.paper.artifacts.probe_runs import run_probe
from gmed.paper.plan import PlannedRuns
from gmed.paper.probes import prediction_change, similarity_to_optimal_edit

BENCHMARKS = ("split-mnist", "rotated-mnist")
SIMILARITY = "cosine similarity to the optimal edit"
NUM_BINS = 50
"""Number of equal segments of training; the smoothed curve shows the mean over each."""


class Cosine(Figure):
    """The cosine similarity of the edits of GMED to the optimal edits, over training."""

    name = "cosine"
    title = "similarity of edits to the optimal edit"
    location = "Figure 3"
    probe_version: ClassVar[str] = "similarity-1"
    cost_proxy: ClassVar[str | None] = "er+optimal-edit"

    def plan(self) -> list[PlannedRuns]:
        return [PlannedRuns(benchmark, "er+gmed", 10) for benchmark in BENCHMARKS]

    def find(self, request: Request) -> tuple[ArtifactResult, list[Record]]:
        selection = self.select_runs(request)
        result, records = ArtifactResult(self, request.quick, missing=selection.missing), []
        for item in selection.planned:
            curves = run_probe(similarity_to_optimal_edit, item, request, cache_as=self.probe_version)
            means = [float(np.mean(curve)) for curve in curves]
            published = self.published(item.benchmark, SIMILARITY)
            result.numbers.append(Measurement.of(item.benchmark, SIMILARITY, means, *published))
            records += smoothed(item.benchmark, curves, published[0])
        result.notes.append("Means over training of each run; a random edit has similarity 0 on average.")
        return result, records

    def draw(self, records: list[Record]) -> Any:
        import altair as alt

        benchmarks = list(dict.fromkeys(record["benchmark"] for record in records))
        scale = alt.Scale(domain=benchmarks, range=CATEGORIES[: len(benchmarks)])
        color = alt.Color("benchmark:N", title=None, scale=scale, legend=alt.Legend(symbolOpacity=1))
        x = alt.X("training:Q", title="training progress, %", scale=alt.Scale(domain=[0, 100]))
        y = alt.Y("mean:Q", title="cosine similarity")
        curves = alt.Chart(data(records)).encode(x, color=color)
        band = curves.mark_area(opacity=0.2).encode(alt.Y("low:Q", title="cosine similarity"), alt.Y2("high:Q"))
        line = curves.mark_line(strokeWidth=2).encode(y)
        zero = alt.Chart(data([{"mean": 0.0}])).mark_rule(color=GRAY).encode(y)
        published = {record["benchmark"]: record["published"] for record in records}
        lines = alt.Chart(data([{"benchmark": name, "mean": value} for name, value in published.items()]))
        dashes = lines.mark_rule(strokeDash=[5, 4], strokeWidth=1.5).encode(y, color=color)
        return (zero + band + line + dashes).properties(width=460, height=240)

    def legend(self, records: list[Record]) -> list[str]:
        return [
            f"ER+GMED, mean over {NUM_BINS} segments of training; "
            f"band: ± standard deviation over {seed_counts(records)} seeds",
            "dashed: the published means over training",
        ]


def smoothed(benchmark: str, curves: list[list[float]], published: float) -> list[Record]:
    """Return the mean curve of several runs over segments of training, with a band of one standard deviation.

    >>> first, *_, last = smoothed("split-mnist", [[0.0] * 50 + [1.0] * 50, [1.0] * 100], published=0.5)
    >>> first["training"], first["mean"], round(first["high"] - first["mean"], 4), last["mean"], last["n"]
    (1.0, 0.5, 0.7071, 1.0, 2)
    """
    shortest = min(map(len, curves))
    runs = np.array([[part.mean() for part in np.array_split(np.array(c[:shortest]), NUM_BINS)] for c in curves])
    mean = runs.mean(axis=0)
    std = runs.std(axis=0, ddof=1) if len(runs) > 1 else np.zeros(len(mean))
    return [
        {
            "benchmark": benchmark,
            "training": 100 * (segment + 0.5) / NUM_BINS,
            **spread_columns(float(mean[segment]), float(std[segment])),
            "n": len(runs),
            "published": published,
        }
        for segment in range(NUM_BINS)
    ]


PREDICTION_BENCHMARKS = ("split-mnist", "rotated-mnist", "split-cifar10", "split-mini-imagenet")
RATE = "prediction change in %"


class PredictionChange(Artifact):
    """The share of stored examples whose predicted class the edits have changed."""

    name = "prediction-change"
    title = "predictions that the edits change"
    location = "Table 16"
    probe_version: ClassVar[str] = "prediction-change-1"

    def plan(self) -> list[PlannedRuns]:
        return [PlannedRuns(benchmark, "er+gmed") for benchmark in PREDICTION_BENCHMARKS]

    def run(self, request: Request) -> ArtifactResult:
        selection = self.select_runs(request)
        result = ArtifactResult(self, request.quick, missing=selection.missing)
        for item in selection.planned:
            rates = [100 * share for share in run_probe(prediction_change, item, request, cache_as=self.probe_version)]
            result.numbers.append(Measurement.of(item.benchmark, RATE, rates, *self.published(item.benchmark, RATE)))
        result.notes.append("Of all examples in memory after training; the paper does not state the number of runs.")
        return result
