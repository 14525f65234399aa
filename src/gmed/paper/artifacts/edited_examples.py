"""The figures of edited examples in memory: a gallery of images, and t-SNE of the edits."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from gmed.errors import UsageError
from gmed.paper.artifacts.base import ArtifactResult, Figure, Measurement, Request
from gmed.paper.artifacts.charts import CATEGORIES, SHAPES, Record, data, image_url, split_by
from gmed.paper.artifacts.probe_runs import run_probe
from gmed.paper.plan import PlannedRuns
from gmed.paper.probes import EditedMemory, edited_memory
from gmed.rng import make_rng

LABELS = (0, 1, 2, 3)
"""The classes of the first two tasks of Split MNIST."""


class EditedMemoryFigure(Figure):
    """A figure of the memory of ER+GMED after one run, first two tasks only; there is no quick version."""

    cached: ClassVar[bool] = False

    def plan(self) -> list[PlannedRuns]:
        return [PlannedRuns("split-mnist", "er+gmed", seeds=1)]

    def run(self, request: Request) -> ArtifactResult:
        if request.seeds not in (None, 1):
            raise UsageError(f"{self.location} shows the memory of one run; omit --seeds")
        return super().run(replace(request, seeds=1, quick=False))

    def find(self, request: Request) -> tuple[ArtifactResult, list[Record]]:
        (item,) = self.select_runs(request).planned
        (memory,) = run_probe(edited_memory, item, request)
        return self.analyze(edited_examples(memory, LABELS))

    @abstractmethod
    def analyze(self, memory: EditedMemory) -> tuple[ArtifactResult, list[Record]]:
        """Return the result and the records to draw for these examples."""


def edited_examples(memory: EditedMemory, labels: tuple[int, ...]) -> EditedMemory:
    """Return the examples with these labels that were edited at least once.

    >>> label, edit_count = torch.tensor([0, 7, 1, 0]), torch.tensor([1, 5, 2, 0])
    >>> memory = EditedMemory(torch.zeros(4, 1), torch.ones(4, 1), label, edit_count, torch.arange(4))
    >>> edited_examples(memory, (0, 1)).stream_index
    tensor([0, 2])
    """
    mask = torch.isin(memory.label, torch.tensor(labels)) & (memory.edit_count > 0)
    return EditedMemory(*(column[mask] for column in memory))


PER_CLASS = 3
"""Number of examples of each digit."""

ROWS = ("before", "after", "difference")
NEGATIVE, POSITIVE = (33, 102, 172), (178, 24, 43)
"""Colors of negative and positive differences; both fade to white at zero."""


class Gallery(EditedMemoryFigure):
    """Stored examples before and after their edits, and the change."""

    name = "gallery"
    title = "edited examples in memory"
    location = "Figure 4"

    def analyze(self, memory: EditedMemory) -> tuple[ArtifactResult, list[Record]]:
        result = ArtifactResult(self)
        change = (memory.after - memory.before).flatten(1)
        for quantity, values in (
            ("mean change of a pixel", change.abs().mean(dim=1)),
            ("largest change of a pixel", change.abs().amax(dim=1)),
            ("edits of an example", memory.edit_count.double()),
        ):
            result.numbers.append(Measurement.of("split-mnist", quantity, values.tolist()))
        result.notes.append("Over the edited examples of the first two tasks in one memory; the paper gives no number.")
        return result, pixel_records(drawn(memory))

    def draw(self, records: list[Record]) -> Any:
        import altair as alt

        limit = largest_change(records)
        images, captions = [], []
        for number, pixels in split_by(records, "example").items():
            before, after = (_pixel_grid(pixels, name) for name in ("before", "after"))
            for row_name, image in zip(
                ROWS, (gray(before), gray(after), blue_to_red((after - before) / limit)), strict=True
            ):
                images.append({"example": number, "row": row_name, "image": _enlarged_url(image)})
            captions.append({"example": number, "row": "edits", "edits": pixels[0]["edits"]})
        numbers = alt.Axis(orient="top", labelAngle=0, ticks=False, domain=False)
        bare = alt.Axis(ticks=False, domain=False, grid=False)
        image_chart = (
            alt.Chart(data(images))
            .mark_image(width=52, height=52)
            .encode(
                alt.X("example:O", title=None, axis=numbers),
                alt.Y("row:N", title=None, sort=ROWS, axis=bare),
                url="image:N",
            )
            .properties(width=alt.Step(56), height=alt.Step(56))
        )
        caption_chart = (
            alt.Chart(data(captions))
            .mark_text(fontSize=11)
            .encode(alt.X("example:O", axis=None), alt.Y("row:N", title=None, axis=bare), text="edits:Q")
            .properties(width=alt.Step(56), height=14)
        )
        return alt.vconcat(image_chart, caption_chart, spacing=2)

    def legend(self, records: list[Record]) -> list[str]:
        return [
            f"{PER_CLASS} of each digit of the first two tasks, drawn at random from the memory after training",
            f"Split MNIST, ER+GMED, one run (seed 0); difference: red increase, blue decrease, "
            f"full color at ±{largest_change(records):.2f}",
        ]


def drawn(memory: EditedMemory) -> EditedMemory:
    """Return a random sample of examples of each digit."""
    rng, slots = make_rng(0, "gallery"), []
    for label in LABELS:
        candidates = np.flatnonzero(memory.label.numpy() == label)
        slots += sorted(rng.permutation(candidates)[:PER_CLASS].tolist())
    return EditedMemory(*(column[torch.tensor(slots, dtype=torch.int64)] for column in memory))


def pixel_records(memory: EditedMemory) -> list[Record]:
    """Return a record for each pixel of each example."""
    records = []
    for number, (before, after, label, edit_count, stream_index) in enumerate(zip(*memory, strict=True), start=1):
        common = {"example": number, "origin": int(stream_index), "label": int(label), "edits": int(edit_count)}
        for row, column in np.ndindex(*before.shape[-2:]):
            pair = {"before": float(before[0, row, column]), "after": float(after[0, row, column])}
            records.append({**common, "row": row, "column": column, **pair})
    return records


def largest_change(records: list[Record]) -> float:
    """Return the largest absolute change of a pixel."""
    return max(abs(float(record["after"] - record["before"])) for record in records)


def _pixel_grid(pixels: list[Record], name: str) -> NDArray[np.float64]:
    return np.array([pixel[name] for pixel in pixels]).reshape(pixels[-1]["row"] + 1, pixels[-1]["column"] + 1)


def gray(image: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return a grayscale image of ink on paper: 0 is white, 1 is black, other values are clipped."""
    shade = (255 * (1 - np.clip(image, 0, 1))).round().astype(np.uint8)
    return np.repeat(shade[..., None], 3, axis=2)


def blue_to_red(change: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return an image of a change: white at 0, full color at -1 and 1."""
    full = np.where(change[..., None] < 0, NEGATIVE, POSITIVE)
    return np.asarray((255 + (full - 255) * np.abs(change)[..., None]).round().astype(np.uint8))


def _enlarged_url(image: NDArray[np.uint8]) -> str:
    """Return an image as a data URL, enlarged because viewers would blur its pixels."""
    from PIL import Image

    picture = Image.fromarray(image)
    return image_url(picture.resize((4 * picture.width, 4 * picture.height), Image.Resampling.NEAREST))


PERPLEXITY = 30.0


class TSNE(EditedMemoryFigure):
    """The edits of stored examples as points, which are close to each other if the edits are similar."""

    name = "tsne"
    title = "t-SNE of the edits of stored examples"
    location = "Figure 6"

    def analyze(self, memory: EditedMemory) -> tuple[ArtifactResult, list[Record]]:
        vectors, labels = edit_vectors(memory), memory.label.numpy()
        result = ArtifactResult(self)
        same, chance = 100 * neighbor_agreement(vectors, labels), 100 * chance_agreement(labels)
        result.numbers.append(Measurement.of("split-mnist", "nearest edits with the same label, %", [same]))
        result.numbers.append(Measurement.of("split-mnist", "the same if labels were shuffled, %", [chance]))
        result.notes.append("The nearest edit of each example is by distance before t-SNE; the paper gives no number.")
        return result, tsne_records(memory, embedded(vectors))

    def draw(self, records: list[Record]) -> Any:
        import altair as alt

        labels = sorted({record["label"] for record in records})
        bare = alt.Axis(labels=False, ticks=False, grid=False, domain=False)
        return (
            alt.Chart(data(records))
            .mark_point(filled=True, size=40, opacity=0.85)
            .encode(
                alt.X("x:Q", title="t-SNE, first dimension", axis=bare, scale=alt.Scale(zero=False)),
                alt.Y("y:Q", title="t-SNE, second dimension", axis=bare, scale=alt.Scale(zero=False)),
                color=alt.Color(
                    "label:N", title="digit", scale=alt.Scale(domain=labels, range=CATEGORIES[: len(labels)])
                ),
                shape=alt.Shape("label:N", title="digit", scale=alt.Scale(domain=labels, range=SHAPES[: len(labels)])),
            )
            .properties(width=400, height=340)
        )

    def legend(self, records: list[Record]) -> list[str]:
        return [
            f"the {len(records)} edited examples of the first two tasks in memory after training;",
            f"Split MNIST, ER+GMED, one run (seed 0); perplexity {PERPLEXITY:g}",
        ]


def edit_vectors(memory: EditedMemory) -> NDArray[np.float32]:
    """Return the total edit of each example, after minus before, as a row."""
    return np.asarray((memory.after - memory.before).flatten(1).numpy(), dtype=np.float32)


def embedded(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return a deterministic embedding of the vectors in two dimensions (van der Maaten and Hinton 2008)."""
    from sklearn import manifold

    perplexity = min(PERPLEXITY, (len(vectors) - 1) / 3)
    return np.asarray(manifold.TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(vectors))


def neighbor_agreement(vectors: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the share of vectors whose nearest neighbor has the same label.

    >>> neighbor_agreement(np.array([[0.0], [1.0], [5.0]], np.float32), np.array([3, 3, 4]))
    0.6666666666666666
    """
    distances = np.square(vectors[:, None].astype(float) - vectors[None]).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    return float(np.mean(labels[distances.argmin(axis=1)] == labels))


def chance_agreement(labels: NDArray[np.int64]) -> float:
    """Return the share of pairs of different examples that have the same label.

    >>> chance_agreement(np.array([3, 3, 4]))
    0.3333333333333333
    """
    counts = np.unique(labels, return_counts=True)[1]
    return float((counts * (counts - 1)).sum() / (len(labels) * (len(labels) - 1)))


def tsne_records(memory: EditedMemory, points: NDArray[np.float32]) -> list[Record]:
    """Return a record for each example."""
    columns = (memory.stream_index.tolist(), memory.label.tolist(), memory.edit_count.tolist(), points.tolist())
    return [
        {"origin": stream_index, "label": label, "edits": edit_count, "x": x, "y": y}
        for stream_index, label, edit_count, (x, y) in zip(*columns, strict=True)
    ]
