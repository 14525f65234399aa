"""Stored observations of runs, validated before a report shows them, as a store may come from anywhere."""

from __future__ import annotations

import math
import warnings
from typing import Any

from gmed.engine import RunSpec
from gmed.io.records import GREATEST
from gmed.report.charts.edits import WHAT
from gmed.results import Store
from gmed.results.store import DamagedRunWarning

IMAGE_PREFIX = "data:image/png;base64,"


def find_probe(store: Store, spec: RunSpec) -> dict[str, Any] | None:
    """Return the observations of a run, or ``None``; damaged observations are skipped with a warning.

    >>> with Store(":memory:") as store:
    ...     find_probe(store, RunSpec.make("split-mnist", "er+gmed", 0)) is None
    True
    """
    observed = store.get_probe(spec, WHAT)
    if observed is None:
        return None
    try:
        _check(observed)
    except (ValueError, TypeError, LookupError, AttributeError) as error:
        warnings.warn(
            f"{store.path}: the observations of {spec} are damaged and skipped ({error}); "
            "gmed report --gallery records them again",
            DamagedRunWarning,
            stacklevel=2,
        )
        return None
    return dict(observed)


def _check(observed: dict[str, Any]) -> None:
    histogram, gallery = observed["histogram"], observed["gallery"]
    _check_numbers(observed["total"], *histogram["edges"])
    parts = [*histogram["before"], *histogram["after"]]
    if len(histogram["before"]) != len(histogram["after"]) or not histogram["before"]:
        raise ValueError("its parts before and after edits differ in number")
    for counts in parts:
        if len(counts) != len(histogram["edges"]) - 1:
            raise ValueError("it has another number of bars than edges")
        _check_counts(*counts)
    if histogram["mean_before"] is not None:
        _check_numbers(histogram["mean_before"], histogram["mean_after"])
    if gallery is None:
        return
    _check_counts(gallery["slots"], *gallery["seen"], *gallery["label"], *gallery["since"], *gallery["size"])
    _check_numbers(gallery["largest_change"])
    if not gallery["seen"] or len(gallery["label"]) != len(gallery["edits"]):
        raise ValueError("its gallery has examples without edits")
    for edits in gallery["edits"]:
        if len(edits) != len(gallery["seen"]):
            raise ValueError("its gallery has another number of edits than moments")
        _check_counts(*(count + 1 for count in edits))  # -1 where the example was not stored
    for image in (gallery["pictures"], gallery["changes"]):
        encoded = image.removeprefix(IMAGE_PREFIX)
        if image and (encoded == image or not all(c.isalnum() or c in "+/=" for c in encoded)):
            raise ValueError("a picture of its gallery is none")


def _check_numbers(*numbers: object) -> None:
    if not all(type(number) in (int, float) and math.isfinite(number) for number in numbers):  # type: ignore[arg-type]
        raise ValueError("it has something else where there should be a number")


def _check_counts(*counts: object) -> None:
    if not all(type(count) is int and 0 <= count <= GREATEST for count in counts):
        raise ValueError("it has something else where there should be a count")
