"""Images of edited examples."""

from __future__ import annotations

import base64
import io
from abc import abstractmethod
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from gmed.errors import UsageError
from gmed.paper.artifacts.base import ArtifactResult, Figure, Measurement, Request
from gmed.paper.artifacts.charts import Record, data
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
        return result, records_of(drawn(memory))

    def draw(self, records: list[Record]) -> Any:
        import altair as alt

        limit = largest_change(records)
        images, captions = [], []
        for number, pixels in enumerate(_examples(records), start=1):
            before, after = (_pixel_grid(pixels, name) for name in ("before", "after"))
            for row_name, image in zip(
                ROWS, (gray(before), gray(after), blue_to_red((after - before) / limit)), strict=True
            ):
                images.append({"example": number, "row": row_name, "image": _data_url(image)})
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


def records_of(memory: EditedMemory) -> list[Record]:
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


def _examples(records: list[Record]) -> list[list[Record]]:
    examples: dict[int, list[Record]] = {}
    for record in records:
        examples.setdefault(record["example"], []).append(record)
    return list(examples.values())


def _pixel_grid(pixels: list[Record], name: str) -> NDArray[np.float64]:
    image = np.zeros((pixels[-1]["row"] + 1, pixels[-1]["column"] + 1))
    for pixel in pixels:
        image[pixel["row"], pixel["column"]] = pixel[name]
    return image


def gray(image: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return a grayscale image of ink on paper: 0 is white, 1 is black, other values are clipped."""
    shade = (255 * (1 - np.clip(image, 0, 1))).round().astype(np.uint8)
    return np.repeat(shade[..., None], 3, axis=2)


def blue_to_red(change: NDArray[np.float64]) -> NDArray[np.uint8]:
    """Return an image of a change: white at 0, full color at -1 and 1."""
    full = np.where(change[..., None] < 0, NEGATIVE, POSITIVE)
    return np.asarray((255 + (full - 255) * np.abs(change)[..., None]).round().astype(np.uint8))


def _data_url(image: NDArray[np.uint8]) -> str:
    """Return a PNG image as a data URL, enlarged because viewers would blur its pixels."""
    from PIL import Image

    picture, file = Image.fromarray(image), io.BytesIO()
    picture.resize((4 * picture.width, 4 * picture.height), Image.Resampling.NEAREST).save(file, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
