"""The benchmarks: a data set, a stream made of it, a model, and the published settings."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from inspect import signature
from math import prod
from pathlib import Path
from typing import Any

from torch import nn

from gmed.data import Dataset
from gmed.data.catalogue import get_entry
from gmed.data.own import MOST_LETTERS, OwnData
from gmed.data.progress import Progress, unwatched
from gmed.engine.own_model import OwnModel
from gmed.errors import DataError, UsageError, unknown
from gmed.models import MLP, ResNet18
from gmed.streams import Stream, fuzzy, held_out, permuted, rotated, split, tasked

SMALLEST_PHOTOGRAPH = 25
"""Pixels that the network for photographs needs."""

AT_HAND: dict[str, Dataset] = {}
"""Data sets that this process was handed, by name; they are not looked for in files."""


@dataclass(frozen=True)
class Benchmark:
    """One column of the paper's tables.

    Attributes
    ----------
    data, stream, model
        The name of its data set, how a seed's stream is made of it, and the model that learns it.
    settings
        Defaults of every method here, by the name of the parameter: learning rate, memory size, ...
    edits
        Defaults of each edit here, by its name or by that of base and edit together: GMED's are Table 6 of the paper;
        strides of other edits and augmentations, which it does not give, were chosen by ``benchmarks/tune.py``.
    fuzzy
        Whether tasks fade into each other.
    tuning
        Whether it is what hyper-parameters are chosen on: the first three tasks, tested on held-out training examples.
    version
        Raised whenever a change to its data, stream or model changes results.
    """

    name: str
    summary: str
    data: str
    stream: Callable[[Dataset, int], Stream]
    model: Callable[[], nn.Module]
    settings: Mapping[str, Any]
    edits: Mapping[str, Mapping[str, Any]]
    batch_size: int = 10
    fuzzy: bool = False
    tuning: bool = False
    version: int = 1

    def dataset(self, directory: Path | None = None, progress: Progress = unwatched) -> Dataset:
        """Its data set, from a folder or by default wherever it is."""
        if self.data in AT_HAND:
            return AT_HAND[self.data]
        own = OwnData.named(self.data)
        return own.load(directory) if own else get_entry(self.data).load(directory, progress)

    def make_stream(self, directory: Path | None, seed: int) -> Stream:
        """The stream of one seed."""
        stream = self.stream(self.dataset(directory), seed)
        stream = held_out(stream, seed) if self.tuning else stream
        return fuzzy(stream, seed) if self.fuzzy else stream

    def data_problem(self, directory: Path | None = None) -> str | None:
        """Why the data set cannot be found here, if it cannot."""
        try:
            get_entry(self.data).find(directory)
        except DataError as error:
            return str(error)
        return None

    def config(self) -> dict[str, Any]:
        """What the stream and the model are made of."""
        options = {k: p.default for k, p in signature(self.stream).parameters.items() if p.default is not p.empty}
        stream = {"name": _name(self.stream), **options} | ({"fuzzy": True} if self.fuzzy else {})
        stream |= {"tuning": True} if self.tuning else {}
        model: Any = self.model.config() if isinstance(self.model, OwnModel) else _name(self.model)
        if chosen := getattr(self.model, "keywords", {}):
            model = {"name": model, **chosen}
        return {"stream": stream, "model": model, "batch_size": self.batch_size}


def _name(made_by: Callable[..., Any]) -> str:
    return str(getattr(made_by, "func", made_by).__name__)


def _mnist(examples: int, tasks: int, **others: Any) -> dict[str, Any]:
    """What the MNIST benchmarks share, for a stream of so many examples and tasks."""
    settings = {
        "lr": 0.05,
        "memory": 500,
        "tasks": tasks,
        "lr_decay": (1 / 6) ** (1 / examples),  # ER with tricks: a sixth of the learning rate at the end
        "initial_std": 0.017,  # BGD
        "eta": 1.0,
        "adam_lr": 1e-4,  # CN-DPM and what is compared with it
    }
    return {"data": "mnist", "model": MLP, "settings": {**settings, **others}}


def _images(examples: int, tasks: int, **others: Any) -> dict[str, Any]:
    """What the benchmarks of photographs share."""
    settings = {
        "tasks": tasks,
        "crop": 4,
        "flip": True,
        "lr_decay": (1 / 6) ** (1 / examples),
        "initial_std": 0.011,
        "eta": 8.0,
        "short_term": 1000,  # CN-DPM
        "classifier_steps": 1000,
        "generator_steps": 4000,
        "least_usage": 0.0,
    }
    return {"settings": {**settings, **others}}


_MANY_CLASSES = {"adam_lr": 2e-4, "generator_lr": 1e-4, "awake": 0.2, "log_alpha": -300.0}

_PHOTOGRAPH_STRIDES = {
    "random-edit": {"stride": 0.1},
    "adv-edit": {"stride": 0.0003},
    "optimal-edit": {"alpha": 0.001},
}

_SPLIT_EDITS = {
    "gmed": {"alpha": 5.0, "beta": 0.01},
    "er-aug+gmed": {"alpha": 5.0, "beta": 0.001},
    "random-edit": {"stride": 0.03},
    "adv-edit": {"stride": 0.01},
    "optimal-edit": {"alpha": 0.03},
}

_SHARP = (
    Benchmark(
        name="split-mnist",
        summary="digits 0/1, then 2/3, ... 8/9; 1,000 examples each",
        stream=split,
        edits=_SPLIT_EDITS,
        **_mnist(5_000, 5, rotation=20.0, scaling=0.2, crop=1),
    ),
    Benchmark(
        name="split-mnist-full",
        summary="digits 0/1, then 2/3, ... 8/9; all 60,000 examples",
        stream=partial(split, per_task=None),
        edits=_SPLIT_EDITS,
        **_mnist(60_000, 5, rotation=20.0, scaling=0.2, crop=1),
    ),
    Benchmark(
        name="permuted-mnist",
        summary="10 pixel permutations; 1,000 examples each",
        stream=permuted,
        edits={
            "gmed": {"alpha": 0.05, "beta": 0.001},
            "random-edit": {"stride": 0.1},
            "adv-edit": {"stride": 0.0003},
            "optimal-edit": {"alpha": 0.03},
        },
        **_mnist(10_000, 10, crop=1, initial_std=0.05),
    ),
    Benchmark(
        name="rotated-mnist",
        summary="20 angles from 0 to 180 degrees; 1,000 examples each",
        stream=rotated,
        edits={
            "gmed": {"alpha": 1.0, "beta": 0.01},
            "random-edit": {"stride": 1.0},
            "adv-edit": {"stride": 0.003},
            "optimal-edit": {"alpha": 0.003},
        },
        **_mnist(20_000, 20, crop=1),
    ),
    Benchmark(
        name="split-cifar10",
        summary="10 classes of photographs, 2 at a time; 10,000 examples each",
        data="cifar10",
        stream=partial(split, per_task=None),
        model=ResNet18,
        edits={
            "gmed": {"alpha": 0.05, "beta": 0.001},
            "er-aug+gmed": {"alpha": 0.07, "beta": 0.01},
            **_PHOTOGRAPH_STRIDES,
        },
        **_images(50_000, 5, lr=0.1, memory=500, adam_lr=5e-3, generator_lr=2e-4, awake=0.1, log_alpha=-450.0),
    ),
    Benchmark(
        name="split-cifar100",
        summary="100 classes of photographs, 5 at a time; 2,500 examples each",
        data="cifar100",
        stream=partial(split, tasks=20, per_task=None),
        model=partial(ResNet18, classes=100),
        edits={
            "gmed": {"alpha": 0.01, "beta": 0.001},
            "er-aug+gmed": {"alpha": 0.05, "beta": 0.001},
            **_PHOTOGRAPH_STRIDES,
        },
        **_images(50_000, 20, lr=0.03, memory=10_000, **_MANY_CLASSES),
    ),
    Benchmark(
        name="split-mini-imagenet",
        summary="100 classes of 84 x 84 photographs, 5 at a time; 2,500 each",
        data="mini-imagenet",
        stream=partial(split, tasks=20, per_task=None),
        model=partial(ResNet18, classes=100, size=84),
        edits={
            "gmed": {"alpha": 1.0, "beta": 0.1},
            "er-aug+gmed": {"alpha": 0.5, "beta": 0.0},
            **_PHOTOGRAPH_STRIDES,
        },
        **_images(50_000, 20, lr=0.1, memory=10_000, candidates=25, **_MANY_CLASSES),
    ),
)

FUZZY = "-fuzzy"
"""How the name of a benchmark ends whose tasks fade into each other."""

TUNING = "-tuning"
"""How the name of a benchmark ends that hyper-parameters are chosen on."""

_FADING = (replace(b, name=b.name + FUZZY, fuzzy=True) for b in _SHARP)
_BEFOREHAND = (replace(b, name=b.name + TUNING, tuning=True) for b in _SHARP)

BENCHMARKS = {benchmark.name: benchmark for benchmark in (*_SHARP, *_FADING, *_BEFOREHAND)}
"""The benchmarks of the package, by name."""


def get_benchmark(name: str) -> Benchmark:
    """The benchmark of this name, or an error that names the nearest ones."""
    if name in BENCHMARKS:
        return BENCHMARKS[name]
    if len(name) > MOST_LETTERS or not name.isprintable():
        raise UsageError(f"{name[:50]!r}...: not the name of a benchmark, which has at most {MOST_LETTERS:,} letters")
    if found := OwnModel.named(name):
        if OwnModel.named(found[0]):
            raise UsageError(f"{name[:200]!r}: a benchmark is learned by one model, and this names two")
        return replace(get_benchmark(found[0]), name=name, model=found[1])
    ending = next((ending for ending in (FUZZY, TUNING) if name.endswith(ending)), "")
    own = OwnData.named(name.removesuffix(ending))
    if own is None:
        raise unknown("benchmark", name[:200], (b.name for b in BENCHMARKS.values() if not b.tuning))
    return replace(_of_own(own), name=name, fuzzy=ending == FUZZY, tuning=ending == TUNING)


def _of_own(own: OwnData) -> Benchmark:
    """Photographs are learned by the reduced ResNet-18, all else by the MLP."""
    square = len(own.shape) == 3 and own.shape[0] == 3 and own.shape[1] == own.shape[2]
    if square and own.shape[1] >= SMALLEST_PHOTOGRAPH:
        model: Callable[[], nn.Module] = partial(ResNet18, classes=own.classes, size=own.shape[1])
    else:
        model = partial(MLP, inputs=prod(own.shape), classes=own.classes)
    return Benchmark(
        name=own.name,
        summary=f"{own.tasks} tasks made of {own.file}",
        data=own.name,
        stream=tasked,
        model=model,
        settings={"lr": 0.05, "memory": 500, "tasks": own.tasks, "adam_lr": 1e-4},
        edits={"gmed": {"alpha": 1.0, "beta": 0.01}},
    )
