"""Tables and figures of the paper that can be reproduced by name."""

from typing import TYPE_CHECKING

from gmed.deprecated import old_names
from gmed.errors import unknown
from gmed.paper.artifacts.accuracy_figures import MemoryFigure, Sensitivity
from gmed.paper.artifacts.base import Artifact, ArtifactResult, Measurement, Request
from gmed.paper.artifacts.edit_measures import Cosine, PredictionChange
from gmed.paper.artifacts.edited_examples import TSNE, Gallery
from gmed.paper.artifacts.tables import AccuracyTable, EqualMemory, TrainingTime
from gmed.paper.artifacts.tuned import Tuned
from gmed.paper.catalog import TARGETS

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)

_ACCURACIES = {name: AccuracyTable(target) for name, target in TARGETS.items()}
_ACCURACIES["equal-memory"] = EqualMemory(TARGETS["equal-memory"])
_TABLES: tuple[Artifact, ...] = (*_ACCURACIES.values(), Tuned(), PredictionChange(), TrainingTime())
_FIGURES: tuple[Artifact, ...] = (MemoryFigure(), Cosine(), Gallery(), Sensitivity(), TSNE())

ARTIFACTS = {artifact.name: artifact for artifact in (*_TABLES, *_FIGURES)}


def get_artifact(name: str) -> Artifact:
    """Return the table or figure of this name, in this package or in the paper.

    >>> get_artifact("cosine").location, get_artifact("gamma").location
    ('Figure 3', 'Table 7')
    >>> get_artifact("Table 1").name, get_artifact("figure-3").name
    ('main', 'cosine')
    """
    if name in ARTIFACTS:
        return ARTIFACTS[name]
    labeled = {
        artifact.location: artifact
        for artifact in ARTIFACTS.values()
        if artifact.location.startswith(("Table", "Figure"))
    }
    for location, artifact in labeled.items():
        if _normalize(location) == _normalize(name):
            return artifact
    raise unknown("target", name, [*ARTIFACTS, *(location.lower().replace(" ", "-") for location in labeled)])


def _normalize(name: str) -> str:
    return "".join(filter(str.isalnum, name.lower()))


__all__ = ["ARTIFACTS", "Artifact", "ArtifactResult", "Measurement", "Request", "get_artifact"]
