"""What was seen of one watched run: a gallery of stored examples over time, and what edits do to losses."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.data.dataset import Progress, no_progress
from gmed.engine import RunResult, RunSpec
from gmed.paper.artifacts.charts import Record
from gmed.paper.artifacts.edited_examples import blue_to_red, grey
from gmed.paper.probes import EditHistory, edit_history
from gmed.report.charts.chart import ACCENT, SECOND, Chart, Choice, rows, tooltip
from gmed.report.grouping import by_method, edits_with_gmed

WHAT = "edits-1"
"""What it is called in a store."""

EXAMPLES, PER_CLASS = 12, 2
"""How many examples the gallery shows, and at most how many of one class."""

BINS = 48


def run_to_probe(runs: Sequence[RunResult]) -> RunSpec | None:
    """The run whose edits are shown: ER+GMED if there is one, else the first method that edits with GMED."""
    edited = [method for method in by_method(runs) if edits_with_gmed(method)]
    if not edited:
        return None
    method = "er+gmed" if "er+gmed" in edited else edited[0]
    seed = min(run.seed for run in runs if run.method == method)
    return RunSpec.parse(runs[0].benchmark, method, seed)


def watch(
    spec: RunSpec, device: str = "cpu", data_dir: Path | None = None, progress: Progress = no_progress
) -> dict[str, Any]:
    """Watch a run; all that a report shows of it, as JSON can carry it."""
    history = edit_history(spec, device, data_dir, progress)
    is_picture = history.originals.ndim == 4 and history.originals.shape[1] in (1, 3)
    return {
        "total": history.total,
        "histogram": histogram(history.increases),
        "gallery": gallery(history) if is_picture else None,
    }


def histogram(increases: Sequence[Tensor]) -> dict[str, Any]:
    """How often the incoming batch would raise the loss of a replayed example by how much, before and after its edit.

    The outermost bars hold what lies beyond the first and the last hundredth.

    >>> found = histogram([torch.tensor([[0.0, 1.0], [1.0, 1.0]])])
    >>> sum(found["before"][0]), sum(found["after"][0]), found["mean_before"], found["mean_after"]
    (2, 2, 0.5, 1.0)
    """
    every = torch.cat(list(increases), dim=1).numpy()
    low, high = np.quantile(every, [0.01, 0.99]) if every.size else (0.0, 1.0)
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)

    def counts(values: NDArray[Any]) -> list[int]:
        return [int(count) for count in np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]]

    return {
        "edges": [float(f"{edge:.5g}") for edge in edges],
        "before": [counts(part[0].numpy()) for part in increases],
        "after": [counts(part[1].numpy()) for part in increases],
        "mean_before": float(every[0].mean()) if every.size else None,
        "mean_after": float(every[1].mean()) if every.size else None,
    }


def gallery(history: EditHistory) -> dict[str, Any]:
    """Pictures of the examples that were stored longest, moment by moment, as one image: a row for each example.

    Its first column is each example as it came. A second image shows what has changed since.
    """
    shown = stored_longest(history)
    last = history.snapshots[-1]
    pictures, changes = [], []
    scale = largest_change(history, shown)
    for slot in shown:
        original = history.originals[slot]
        row, changed = [_picture(original)], [_change(original - original, scale)]
        for look in history.snapshots:
            there = int(look.stream_index[slot]) == int(last.stream_index[slot])
            now = look.x[slot] if there else original
            row.append(_picture(now) if there else np.full_like(row[0], 255))
            changed.append(_change(now - original, scale))
        pictures.append(np.concatenate(row, axis=1))
        changes.append(np.concatenate(changed, axis=1))
    return {
        "slots": len(last.stream_index),
        "seen": [look.seen for look in history.snapshots],
        "label": [int(last.label[slot]) for slot in shown],
        "since": [int(last.stream_index[slot]) for slot in shown],
        "edits": [
            [
                int(look.edit_count[slot]) if int(look.stream_index[slot]) == int(last.stream_index[slot]) else -1
                for look in history.snapshots
            ]
            for slot in shown
        ],
        "size": list(history.originals.shape[-2:]),
        "largest_change": scale,
        "pictures": _address(np.concatenate(pictures)) if pictures else "",
        "changes": _address(np.concatenate(changes)) if changes else "",
    }


def largest_change(history: EditHistory, slots: Sequence[int]) -> float:
    """The most that any pixel of the examples stored there at the end was moved; 1 if none was."""
    last = history.snapshots[-1].stream_index
    moved = [
        float((look.x[slot] - history.originals[slot]).abs().max())
        for look in history.snapshots
        for slot in slots
        if look.stream_index[slot] == last[slot]
    ]
    return max(moved, default=0.0) or 1.0


def stored_longest(history: EditHistory) -> list[int]:
    """The slots, of those looked at, whose examples have been stored longest at the end; at most two of a class."""
    last = history.snapshots[-1]
    taken: dict[int, int] = {}
    found = []
    for slot in torch.argsort(last.stream_index, stable=True).tolist():
        label = int(last.label[slot])
        if int(last.stream_index[slot]) >= 0 and int(last.edit_count[slot]) > 0 and taken.get(label, 0) < PER_CLASS:
            taken[label] = taken.get(label, 0) + 1
            found.append(slot)
    return found[:EXAMPLES]


def loss_increases(observed: dict[str, Any], spec: RunSpec, place: str) -> Chart | None:
    """The histogram, of all tasks or of one."""
    found = observed["histogram"]
    if found["mean_before"] is None:
        return None
    import altair as alt

    colours = alt.Scale(domain=["before the edit", "after the edit"], range=[SECOND, ACCENT])
    base = alt.Chart(rows()).encode(
        alt.X("rise:Q", title="rise of the loss by the incoming batch", scale=alt.Scale(zero=False, nice=False)),
        alt.Y("count:Q", title="replayed examples (square-root scale)", stack=None, scale=alt.Scale(type="sqrt")),
        alt.Color("when:N", title=None, scale=colours, sort=None, legend=alt.Legend(symbolOpacity=1)),
    )
    about = tooltip([("when:N", "loss rise"), ("rise:Q", "from"), ("count:Q", "examples")])
    drawn = base.mark_area(interpolate="step-after", opacity=0.15) + base.mark_line(
        interpolate="step-after", strokeWidth=1.5
    ).encode(tooltip=about)
    drawn = drawn.properties(width="container", height=260)
    records = histogram_records(found)
    options = list(dict.fromkeys(record["part"] for record in records))
    return Chart(
        f"{place}-loss-rise",
        "What edits do to losses",
        "By how much one step on the incoming batch would raise the loss of each replayed example, before and after "
        f"its edit: {found['mean_before']:.3f} and {found['mean_after']:.3f} on average. One watched run "
        f"({spec.method.name}, seed {spec.seed}); the outermost bars hold what lies beyond.",
        drawn,
        records,
        Choice("part", options, options[:1]),
    )


def histogram_records(found: dict[str, Any]) -> list[Record]:
    """A record for the left edge of each bar and one for the end, over all tasks and for each."""
    before, after = np.array(found["before"]), np.array(found["after"])
    parts = {"all tasks": (before.sum(axis=0), after.sum(axis=0))}
    parts |= {f"task {number + 1}": (before[number], after[number]) for number in range(len(before))}
    return [
        {"part": part, "when": when, "rise": edge, "count": int(count)}
        for part, both in parts.items()
        for when, counts in zip(("before the edit", "after the edit"), both, strict=True)
        for edge, count in zip(found["edges"], [*counts, counts[-1]], strict=True)
    ]


def _picture(x: Tensor) -> NDArray[np.uint8]:
    """Greys as ink on paper, colours as they are; what lies outside 0 .. 1 is shown as the nearer end."""
    if x.shape[0] == 1:
        return grey(x[0].double().numpy())
    return (255 * x.clamp(0, 1)).round().to(torch.uint8).permute(1, 2, 0).numpy()


def _change(apart: Tensor, scale: float) -> NDArray[np.uint8]:
    return blue_to_red(np.clip(apart.double().mean(dim=0).numpy() / scale, -1, 1))


def _address(image: NDArray[np.uint8]) -> str:
    from PIL import Image

    file = io.BytesIO()
    colours = Image.fromarray(image).quantize(256, dither=Image.Dither.NONE)
    colours.save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
