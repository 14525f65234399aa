"""Charts of accuracy against cost."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import fmean
from typing import Any

from gmed.paper.artifacts.charts import Record
from gmed.report.charts.chart import ACCENT, INK, MUTED, Chart, rows, tooltip
from gmed.report.grouping import MethodRuns, edits_with_gmed, is_iid_baseline
from gmed.results.metrics import Metrics


def seconds(runs: MethodRuns) -> Chart | None:
    """Return the chart of accuracy against seconds of training."""
    devices = sorted({run.environment.get("device", "?") for method_runs in runs.values() for run in method_runs})
    on_devices = f"on {', '.join(devices)}" + (": compare only within one device" if len(devices) > 1 else "")
    return _cost_chart(
        runs,
        lambda metrics: metrics.seconds,
        "seconds",
        "Accuracy against time",
        f"Means over seeds; seconds of training of one run, {on_devices}. Runs on a busy machine took longer.",
        "seconds of training",
    )


def passes(runs: MethodRuns) -> Chart | None:
    """Return the chart of accuracy against passes through the model."""
    return _cost_chart(
        runs,
        lambda metrics: metrics.forward_passes + metrics.backward_passes,
        "passes",
        "Accuracy against passes",
        "Means over seeds; number of examples passed through the model, forward and backward, per example of the "
        "stream. It does not depend on the machine.",
        "passes per example of the stream",
    )


def _cost_chart(
    runs: MethodRuns, cost_of: Callable[[Metrics], float], name: str, title: str, caption: str, axis: str
) -> Chart | None:
    records = records_of(runs, cost_of)
    if not records:
        return None
    import altair as alt

    scale = alt.Scale(type="log", nice=False, padding=24)
    x = alt.X(
        "cost:Q",
        title=f"{axis} (log)",
        scale=scale,
        axis=alt.Axis(tickCount=5, format="~r", grid=False, labelFlush=True),
    )
    y = alt.Y("accuracy:Q", title="final accuracy, %", scale=alt.Scale(zero=False, nice=True))
    base = alt.Chart(rows()).encode(x, y)
    front = base.transform_filter("datum.label != ''").mark_line(
        interpolate="step-after", color=MUTED, strokeDash=[4, 3], strokeWidth=1
    )
    points = base.mark_point(filled=True, size=64, opacity=0.85).encode(
        color=alt.condition("datum.edited", alt.value(ACCENT), alt.value(MUTED)),
        shape=alt.condition("datum.edited", alt.value("diamond"), alt.value("circle")),
        tooltip=tooltip([("method:N", "method"), ("cost:Q", axis), ("accuracy:Q", "accuracy, %"), ("n:O", "seeds")]),
    )
    names = base.mark_text(align="left", dx=6, dy=-8, fontSize=11, color=INK).encode(text="label:N")
    chart: Any = (front + points + names).properties(width="container", height=320)
    explanation = (
        "Diamonds: methods with GMED. Line and labels: Pareto front, excluding methods that shuffle the stream."
    )
    return Chart(name, title, f"{caption} {explanation}", chart, records)


def records_of(runs: MethodRuns, cost_of: Callable[[Metrics], float]) -> list[Record]:
    """Return a record for each method of known cost; those on the Pareto front carry their name as a label.

    >>> from gmed.engine import RunResult
    >>> runs = {"er": [RunResult("b", "er", 0, [[0.8]], 0.8, 0.8, 1, {"train": 2.0}, {})]}
    >>> [(r["method"], r["cost"], r["accuracy"]) for r in records_of(runs, lambda metrics: metrics.seconds)]
    [('er', 2.0, 80.0)]
    """
    records: list[Record] = []
    for method, method_runs in runs.items():
        metrics = [Metrics.of(run) for run in method_runs]
        cost, accuracy = fmean(map(cost_of, metrics)), 100 * fmean(m.final for m in metrics)
        if not math.isnan(cost) and cost > 0:
            about = {"method": method, "label": "", "edited": edits_with_gmed(method)}
            records.append({**about, "cost": cost, "accuracy": accuracy, "n": len(method_runs)})
    for record in pareto_front([record for record in records if not is_iid_baseline(record["method"])]):
        record["label"] = record["method"]
    return records


def pareto_front(records: list[Record]) -> list[Record]:
    """Return the records that are more accurate than all others at the same or a lower cost, the cheapest first.

    >>> records = [{"cost": c, "accuracy": a} for c, a in ((1, 50), (2, 40), (3, 70), (3, 60))]
    >>> [record["accuracy"] for record in pareto_front(records)]
    [50, 70]
    """
    front: list[Record] = []
    for record in sorted(records, key=lambda record: (record["cost"], -record["accuracy"])):
        if not front or record["accuracy"] > front[-1]["accuracy"]:
            front.append(record)
    return front
