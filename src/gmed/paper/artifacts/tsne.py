"""The t-SNE figure of the edits of stored examples."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gmed.paper.artifacts.base import ArtifactResult, Measurement
from gmed.paper.artifacts.charts import CATEGORIES, SHAPES, Record, data
from gmed.paper.artifacts.edited_examples import EditedMemoryFigure
from gmed.paper.probes import EditedMemory

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
        return result, records_of(memory, embedded(vectors))

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


def records_of(memory: EditedMemory, points: NDArray[np.float32]) -> list[Record]:
    """Return a record for each example."""
    columns = zip(
        memory.stream_index.tolist(), memory.label.tolist(), memory.edit_count.tolist(), points.tolist(), strict=True
    )
    return [
        {"origin": stream_index, "label": label, "edits": edit_count, "x": x, "y": y}
        for stream_index, label, edit_count, (x, y) in columns
    ]
