"""How edits agree with the optimal ones, and how many predictions they change."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from gmed.paper.artifacts.base import Artifact, ArtifactResult, Figure, Number, Request
from gmed.paper.artifacts.charts import CATEGORIES, GREY, Record, data
from gmed.paper.artifacts.probe_runs import watched
from gmed.paper.plan import PlannedRuns
from gmed.paper.probes import prediction_change, similarity_to_optimal_edit

BENCHMARKS = ("split-mnist", "rotated-mnist")
SIMILARITY = "cosine similarity to the optimal edit"
NUM_BINS = 50
"""The curve is smoothed: it shows the mean over each of so many equal stretches of training."""


class Cosine(Figure):
    """How far the edits of GMED point where the optimal edit would, over training."""

    name = "cosine"
    title = "similarity of edits to the optimal edit"
    where = "Figure 3"
    observes: ClassVar[str] = "similarity-1"
    cost_proxy: ClassVar[str | None] = "er+optimal-edit"

    def plan(self) -> list[PlannedRuns]:
        return [PlannedRuns(benchmark, "er+gmed", 10) for benchmark in BENCHMARKS]

    def find(self, asked: Request) -> tuple[ArtifactResult, list[Record]]:
        chosen = self.chosen(asked)
        found, records = ArtifactResult(self, asked.quick, missing=chosen.missing), []
        for one in chosen.planned:
            curves = watched(similarity_to_optimal_edit, one, asked, cache_as=self.observes)
            means = [float(np.mean(curve)) for curve in curves]
            published = self.published(one.benchmark, SIMILARITY)
            found.numbers.append(Number.of(one.benchmark, SIMILARITY, means, *published))
            records += smoothed(one.benchmark, curves, published[0])
        found.notes.append("Means over training of each run; a random edit has similarity 0 on average.")
        return found, records

    def draw(self, records: list[Record]) -> Any:
        import altair as alt

        benchmarks = list(dict.fromkeys(record["benchmark"] for record in records))
        colours = alt.Scale(domain=benchmarks, range=CATEGORIES[: len(benchmarks)])
        colour = alt.Color("benchmark:N", title=None, scale=colours, legend=alt.Legend(symbolOpacity=1))
        across = alt.X("training:Q", title="training done, %", scale=alt.Scale(domain=[0, 100]))
        down = alt.Y("mean:Q", title="cosine similarity")
        curves = alt.Chart(data(records)).encode(across, color=colour)
        band = curves.mark_area(opacity=0.2).encode(alt.Y("low:Q", title="cosine similarity"), alt.Y2("high:Q"))
        line = curves.mark_line(strokeWidth=2).encode(down)
        zero = alt.Chart(data([{"mean": 0.0}])).mark_rule(color=GREY).encode(down)
        theirs = {record["benchmark"]: record["published"] for record in records}
        published = alt.Chart(data([{"benchmark": name, "mean": value} for name, value in theirs.items()]))
        dashes = published.mark_rule(strokeDash=[5, 4], strokeWidth=1.5).encode(down, color=colour)
        return (zero + band + line + dashes).properties(width=460, height=240)

    def legend(self, records: list[Record]) -> list[str]:
        seeds = {record["n"] for record in records}
        return [
            f"ER+GMED, mean over {NUM_BINS} stretches of training; "
            f"band: ± standard deviation over {' or '.join(map(str, seeds))} seeds",
            "dashed: the published means over training",
        ]


def smoothed(benchmark: str, curves: list[list[float]], published: float) -> list[Record]:
    """The mean curve of several runs, stretch by stretch, and a standard deviation to either side of it.

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
            "training": 100 * (place + 0.5) / NUM_BINS,
            "mean": float(mean[place]),
            "low": float(mean[place] - std[place]),
            "high": float(mean[place] + std[place]),
            "n": len(runs),
            "published": published,
        }
        for place in range(NUM_BINS)
    ]


PREDICTION_BENCHMARKS = ("split-mnist", "rotated-mnist", "split-cifar10", "split-mini-imagenet")
RATE = "prediction change in %"


class PredictionChange(Artifact):
    """How many stored examples are classified otherwise than they were before they were edited."""

    name = "prediction-change"
    title = "predictions that the edits change"
    where = "Table 16"
    observes: ClassVar[str] = "prediction-change-1"

    def plan(self) -> list[PlannedRuns]:
        return [PlannedRuns(benchmark, "er+gmed") for benchmark in PREDICTION_BENCHMARKS]

    def run(self, asked: Request) -> ArtifactResult:
        chosen = self.chosen(asked)
        found = ArtifactResult(self, asked.quick, missing=chosen.missing)
        for one in chosen.planned:
            rates = [100 * share for share in watched(prediction_change, one, asked, cache_as=self.observes)]
            found.numbers.append(Number.of(one.benchmark, RATE, rates, *self.published(one.benchmark, RATE)))
        found.notes.append("Of all examples in memory after training; the paper does not say over how many runs.")
        return found
