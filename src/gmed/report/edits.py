"""The edits of one run: observed, stored, and shown as a gallery of examples and a chart of losses."""

from __future__ import annotations

import shlex
import warnings
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any, NamedTuple, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.data.dataset import Progress, no_progress
from gmed.engine import RunResult, RunSpec
from gmed.engine.custom_model import ModelRef
from gmed.errors import GmedError, UsageError
from gmed.io.records import GREATEST, Count, Range, RecordError, decode
from gmed.paper.artifacts.charts import IMAGE_PREFIX, Record, image_url
from gmed.paper.artifacts.edited_examples import blue_to_red, gray
from gmed.paper.probes import EditHistory, edit_history
from gmed.report.charts.chart import ACCENT, SECOND, Chart, Choice, rows, tooltip
from gmed.report.grouping import by_benchmark, by_method, edits_with_gmed, without_tuning
from gmed.results import Results, Store
from gmed.results.store import DamagedRunWarning

WHAT = "edits-1"
"""The name of these observations in a store."""

EXAMPLES, PER_CLASS = 12, 2
"""Maximum number of examples in the gallery, in total and per class."""

BINS = 48


class LossHistogram(TypedDict):
    """How much the incoming batch would increase the loss of replayed examples, before and after their edits.

    Attributes
    ----------
    edges
        The edges of the bins, one more than there are bins.
    before, after
        For each segment of the stream between points of evaluation, the number of examples in each bin.
    mean_before, mean_after
        The means, ``None`` if nothing was edited.
    """

    edges: list[float]
    before: list[list[Count]]
    after: list[list[Count]]
    mean_before: float | None
    mean_after: float | None


class Gallery(TypedDict):
    """Examples in memory over time, a row for each, and a column for each snapshot after one of the originals.

    Attributes
    ----------
    slots
        Number of slots of memory that were observed.
    seen
        Number of examples of the stream that had been learned at each snapshot.
    label, since
        The label of each example, and its index in the stream.
    edits
        How often each example had been edited at each snapshot; -1 where it was not stored.
    size
        Height and width of an example.
    largest_change
        The change of a pixel that has the full color.
    pictures, changes
        Images of the examples and of their changes, as data URLs.
    """

    slots: Count
    seen: list[Count]
    label: list[Count]
    since: list[Count]
    edits: list[list[Annotated[int, Range(-1, GREATEST)]]]
    size: list[Count]
    largest_change: float
    pictures: str
    changes: str


class Observations(TypedDict):
    """What a report shows about one run; there is only a gallery if examples are images.

    Attributes
    ----------
    total
        Number of examples in the stream.
    """

    total: Count
    histogram: LossHistogram
    gallery: Gallery | None


def run_to_probe(runs: Sequence[RunResult]) -> RunSpec | None:
    """Return the run whose edits are shown: of ER+GMED, or else of the first method that edits with GMED."""
    edited = [method for method in by_method(runs) if edits_with_gmed(method)]
    if not edited:
        return None
    method = "er+gmed" if "er+gmed" in edited else edited[0]
    seed = min(run.seed for run in runs if run.method == method)
    return RunSpec.parse(runs[0].benchmark, method, seed)


def watch_edits(
    results: Results,
    store: str | Path,
    *,
    device: str = "cpu",
    data_dir: Path | None = None,
    shown: Callable[[str], AbstractContextManager[Progress]] = lambda what: nullcontext(no_progress),
) -> dict[RunSpec, GmedError]:
    """Observe one run of each benchmark that was not observed yet, and store the observations.

    Parameters
    ----------
    shown
        Called before each run with its description; returns a context manager that shows its progress.

    Returns
    -------
    dict
        The runs that could not be observed, for example for lack of data, with the errors.
    """
    failed = {}
    with Store(store) as results_store:
        specs = [run_to_probe(runs) for runs in by_benchmark(without_tuning(results).runs).values()]
        remaining = [spec for spec in specs if spec is not None and find_probe(results_store, spec) is None]
        for number, spec in enumerate(remaining, 1):
            with shown(f"{spec} ({number} of {len(remaining)})") as progress:
                try:
                    _check_may_run(spec)
                    observed = watch(spec, device, data_dir, progress)
                except GmedError as error:
                    failed[spec] = error
                else:
                    results_store.put_probe(spec, WHAT, observed)
    return failed


def _check_may_run(spec: RunSpec) -> None:
    """Check that the user passed the custom code of a run to this process: a name in a store is not enough.

    Text parameters in a name, such as paths, are never passed to an extension.
    """
    method = spec.method
    parts = [part for part in (method.base, method.memory, method.retrieval, method.edit) if part is not None]
    if method.sources() and any(isinstance(value, str) for part in parts for value in part.parameters.values()):
        raise UsageError(f"{spec.method.name}: custom methods with string parameters can only be run by gmed run")
    model = spec.benchmark.model
    if isinstance(model, ModelRef) and not model.is_here:
        raise UsageError(
            f"its model {model.reference} is not loaded, or has changed since the run; "
            f"if you trust it: --model {shlex.quote(model.reference)}"
            if model.has_import_path
            else "its model was passed in Python, as a module, and is not available"
        )


def find_probe(store: Store, spec: RunSpec) -> Observations | None:
    """Return the observations of a run, or ``None``; damaged observations are skipped with a warning.

    A store may come from anywhere, so everything that enters the page is checked.

    >>> with Store(":memory:") as store:
    ...     find_probe(store, RunSpec.make("split-mnist", "er+gmed", 0)) is None
    True
    """
    observed = store.get_probe(spec, WHAT)
    if observed is None:
        return None
    try:
        found = decode(Observations, observed)
        _check(found)
    except RecordError as error:
        warnings.warn(
            f"{store.path}: the observations of {spec} are damaged and skipped ({error}); "
            "gmed report --gallery records them again",
            DamagedRunWarning,
            stacklevel=2,
        )
        return None
    return found


def _check(observed: Observations) -> None:
    """Check what the types do not guarantee: that the parts are consistent, and that images are valid."""
    bins, shown = observed["histogram"], observed["gallery"]
    if len(bins["before"]) != len(bins["after"]) or not bins["before"]:
        raise RecordError("has different numbers of parts before and after edits", ".histogram")
    if any(len(counts) != len(bins["edges"]) - 1 for counts in (*bins["before"], *bins["after"])):
        raise RecordError("has a number of bars that does not match the edges", ".histogram")
    if (bins["mean_before"] is None) != (bins["mean_after"] is None):
        raise RecordError("has only one of the two means", ".histogram")
    if shown is None:
        return
    if not shown["seen"] or len(shown["label"]) != len(shown["edits"]):
        raise RecordError("has examples without edits", ".gallery")
    if any(len(edits) != len(shown["seen"]) for edits in shown["edits"]):
        raise RecordError("has a number of edits that does not match the snapshots", ".gallery")
    for image in (shown["pictures"], shown["changes"]):
        encoded = image.removeprefix(IMAGE_PREFIX)
        if image and (encoded == image or not all(c.isalnum() or c in "+/=" for c in encoded)):
            raise RecordError("has an invalid picture", ".gallery")


def watch(
    spec: RunSpec, device: str = "cpu", data_dir: Path | None = None, progress: Progress = no_progress
) -> Observations:
    """Execute a run and return the observations of its edits that a report shows, as JSON-compatible data."""
    history = edit_history(spec, device, data_dir, progress)
    is_image = history.originals.ndim == 4 and history.originals.shape[1] in (1, 3)
    return {
        "total": history.total,
        "histogram": histogram(history.increases),
        "gallery": gallery(history) if is_image else None,
    }


def histogram(increases: Sequence[Tensor]) -> LossHistogram:
    """Return histograms of the loss increase of replayed examples by the incoming batch, before and after edits.

    The outermost bins include the values beyond the first and the last percentile.

    >>> counts = histogram([torch.tensor([[0.0, 1.0], [1.0, 1.0]])])
    >>> sum(counts["before"][0]), sum(counts["after"][0]), counts["mean_before"], counts["mean_after"]
    (2, 2, 0.5, 1.0)
    """
    all_increases = torch.cat(list(increases), dim=1).numpy()
    low, high = np.quantile(all_increases, [0.01, 0.99]) if all_increases.size else (0.0, 1.0)
    edges = np.linspace(low, max(high, low + 1e-6), BINS + 1)

    def counts(values: NDArray[Any]) -> list[int]:
        return [int(count) for count in np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0]]

    return {
        "edges": [float(f"{edge:.5g}") for edge in edges],
        "before": [counts(part[0].numpy()) for part in increases],
        "after": [counts(part[1].numpy()) for part in increases],
        "mean_before": float(all_increases[0].mean()) if all_increases.size else None,
        "mean_after": float(all_increases[1].mean()) if all_increases.size else None,
    }


def gallery(history: EditHistory) -> Gallery:
    """Return one image of the examples that were stored longest: a row for each example, a column for each snapshot.

    The first column shows the original examples. A second image shows the changes since.
    """
    slots, last = stored_longest(history), history.snapshots[-1]
    states = {slot: _states(history, slot) for slot in slots}
    changes_of_pixels = (
        float((state.x - history.originals[slot]).abs().max()) for slot in slots for state in states[slot] if state
    )
    scale = max(changes_of_pixels, default=0.0) or 1.0
    images, changes = [], []
    for slot in slots:
        original = history.originals[slot]
        image, no_change = _to_image(original), _change_image(torch.zeros_like(original), scale)
        stored = [_to_image(state.x) if state else np.full_like(image, 255) for state in states[slot]]
        since = [_change_image(state.x - original, scale) if state else no_change for state in states[slot]]
        images.append(np.concatenate([image, *stored], axis=1))
        changes.append(np.concatenate([no_change, *since], axis=1))
    return {
        "slots": len(last.stream_index),
        "seen": [snapshot.seen for snapshot in history.snapshots],
        "label": [int(last.label[slot]) for slot in slots],
        "since": [int(last.stream_index[slot]) for slot in slots],
        "edits": [[state.edit_count if state else -1 for state in states[slot]] for slot in slots],
        "size": list(history.originals.shape[-2:]),
        "largest_change": scale,
        "pictures": _quantized_url(np.concatenate(images)) if images else "",
        "changes": _quantized_url(np.concatenate(changes)) if changes else "",
    }


class ExampleState(NamedTuple):
    """An example as it was stored at one time, and how often it had been edited."""

    x: Tensor
    edit_count: int


def _states(history: EditHistory, slot: int) -> list[ExampleState | None]:
    """Return the example that is in a slot at the end as it was at each snapshot, ``None`` before it was stored."""
    final = history.snapshots[-1].stream_index[slot]
    return [
        ExampleState(snapshot.x[slot], int(snapshot.edit_count[slot])) if snapshot.stream_index[slot] == final else None
        for snapshot in history.snapshots
    ]


def stored_longest(history: EditHistory) -> list[int]:
    """Return the slots of the snapshots whose final examples have been stored longest, at most two of a class."""
    last = history.snapshots[-1]
    per_class: dict[int, int] = {}
    slots = []
    for slot in torch.argsort(last.stream_index, stable=True).tolist():
        label = int(last.label[slot])
        if int(last.stream_index[slot]) >= 0 and int(last.edit_count[slot]) > 0 and per_class.get(label, 0) < PER_CLASS:
            per_class[label] = per_class.get(label, 0) + 1
            slots.append(slot)
    return slots[:EXAMPLES]


def loss_increases(spec: RunSpec, observed: Observations) -> Chart | None:
    """Return the chart of the histogram, over all tasks or for one."""
    bins = observed["histogram"]
    if bins["mean_before"] is None:
        return None
    import altair as alt

    colors = alt.Scale(domain=["before the edit", "after the edit"], range=[SECOND, ACCENT])
    base = alt.Chart(rows()).encode(
        alt.X("rise:Q", title="loss increase by the incoming batch", scale=alt.Scale(zero=False, nice=False)),
        alt.Y("count:Q", title="replayed examples (square-root scale)", stack=None, scale=alt.Scale(type="sqrt")),
        alt.Color("when:N", title=None, scale=colors, sort=None, legend=alt.Legend(symbolOpacity=1)),
    )
    tooltips = tooltip([("when:N", "loss increase"), ("rise:Q", "from"), ("count:Q", "examples")])
    chart = base.mark_area(interpolate="step-after", opacity=0.15) + base.mark_line(
        interpolate="step-after", strokeWidth=1.5
    ).encode(tooltip=tooltips)
    chart = chart.properties(width="container", height=260)
    records = histogram_records(bins)
    options = list(dict.fromkeys(record["part"] for record in records))
    return Chart(
        "loss-rise",
        "Effect of edits on losses",
        "How much one step on the incoming batch would increase the loss of each replayed example, before and after "
        f"its edit: {bins['mean_before']:.3f} and {bins['mean_after']:.3f} on average. From one run "
        f"({spec.method.name}, seed {spec.seed}); the outermost bars include all values beyond them.",
        chart,
        records,
        Choice("part", options, options[:1]),
    )


def histogram_records(bins: LossHistogram) -> list[Record]:
    """Return a record for each bin edge, over all tasks and for each task."""
    before, after = np.array(bins["before"]), np.array(bins["after"])
    parts = {"all tasks": (before.sum(axis=0), after.sum(axis=0))}
    parts |= {f"task {number + 1}": (before[number], after[number]) for number in range(len(before))}
    return [
        {"part": part, "when": when, "rise": edge, "count": int(count)}
        for part, both in parts.items()
        for when, counts in zip(("before the edit", "after the edit"), both, strict=True)
        for edge, count in zip(bins["edges"], [*counts, counts[-1]], strict=True)
    ]


def _to_image(x: Tensor) -> NDArray[np.uint8]:
    """Return a grayscale image as ink on paper and colors as they are; values are clipped to 0 .. 1."""
    if x.shape[0] == 1:
        return gray(x[0].double().numpy())
    return (255 * x.clamp(0, 1)).round().to(torch.uint8).permute(1, 2, 0).numpy()


def _change_image(change: Tensor, scale: float) -> NDArray[np.uint8]:
    return blue_to_red(np.clip(change.double().mean(dim=0).numpy() / scale, -1, 1))


def _quantized_url(image: NDArray[np.uint8]) -> str:
    from PIL import Image

    return image_url(Image.fromarray(image).quantize(256, dither=Image.Dither.NONE))
