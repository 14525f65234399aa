from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from math import ceil
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from gmed.errors import InputError, UsageError, whole_number
from gmed.learners import Learner
from gmed.learners.state import read_state, write_state
from gmed.online.labels import Labels, plain
from gmed.online.settings import Model, Settings
from gmed.online.units import AsTheyAre, Floats, Standardiser, Units
from gmed.randomness import generator

KIND = "gmed-classifier/1"
BLOCK = 10_000
"""The most rows that are predicted at once, however many there are."""


class OnlineClassifier:
    """A classifier of rows of numbers that goes on learning: new rows, new classes, at any time.

    It is an :class:`~gmed.learners.ER` learner (:class:`~gmed.learners.FineTune` without a memory) that sees features
    in units of their own (:class:`Standardiser`) and classes by their names (:class:`Labels`). Where units are
    renewed, stored examples are expressed in the new ones. A call that fails changes nothing.

    Parameters
    ----------
    settings
        How it learns.
    inputs
        How many features a row has.
    seed
        Every random choice follows from it.

    Attributes
    ----------
    rows
        How many rows it has learned from.

    Examples
    --------
    >>> model = OnlineClassifier(Settings(), inputs=1)
    >>> rows, sizes = np.array([[1.0], [2.0], [8.0], [9.0]]), np.array(["low", "low", "high", "high"])
    >>> for _ in range(100):
    ...     model.learn(rows, sizes)
    >>> model.predict(np.array([[0.0], [10.0]])).tolist()
    ['low', 'high']
    """

    labels: Labels
    units: Units
    learner: Learner

    def __init__(self, settings: Settings, inputs: int, seed: int = 0) -> None:
        self.settings = settings
        self.inputs = whole_number("inputs", inputs)
        self.seed = whole_number("seed", seed, least=0)
        self.rows = 0

    # ------------------------------------------------------------------ learning

    def learn(self, x: Floats, y: NDArray[Any], classes: NDArray[Any] | None = None) -> None:
        """Learn from rows in their order, at most ``batch_size`` of them in a step.

        Parameters
        ----------
        x
            (n, inputs) finite numbers.
        y
            (n,) labels: words, numbers or truth values.
        classes
            Classes to tell apart from now on, besides those of ``y`` and those known already.
        """
        self._check(x, y)
        y = plain(y)
        labels = self.labels if self.rows else None
        for named in ([] if classes is None or not len(classes) else [classes]) + [y]:
            labels = Labels.of(named) if labels is None else labels.with_also(named)
        assert labels is not None
        units = self.units.after(x) if self.rows else self._first_units(x)
        with self._ready(labels, units, steps=ceil(len(x) / self.settings.batch_size)) as learner:
            self._observe(learner, units.standardised(x), labels.outputs(y))
        self.rows += len(x)

    def fit(self, x: Floats, y: NDArray[Any], passes: int, shuffle: bool) -> None:
        """Learn from rows that are all there at once, several times over, before anything else is learned."""
        self._check(x, y)
        y = plain(y)
        if self.rows:
            raise UsageError("this classifier has learned already; make a new one")
        labels, units = Labels.of(y), self._first_units(x)
        z, numbers = units.standardised(x), labels.outputs(y)
        with self._ready(labels, units) as learner:
            for number in range(passes):
                order = generator(self.seed, "order", number).permutation(len(x)) if shuffle else np.arange(len(x))
                self._observe(learner, z[order], numbers[order])
        self.rows += len(x)

    def _first_units(self, x: Floats) -> Units:
        return Standardiser.of(x) if self.settings.standardise else AsTheyAre()

    @contextmanager
    def _ready(self, labels: Labels, units: Units, steps: int = 1) -> Iterator[Learner]:
        """A learner for these classes and units, which is this classifier's if all goes well inside.

        It is a copy of the present one unless a single step is all that can fail, for that leaves no trace by itself.
        """
        if not self.rows:
            learner = self.settings.make_learner(self.inputs, len(labels.met), self.seed)
        elif steps == 1 and units.same_as(self.units) and len(labels.met) <= self.learner.classes:
            learner = self.learner
        else:
            learner = deepcopy(self.learner)
            if len(labels.met) > learner.classes:
                learner.grow(len(labels.met))
            if learner.memory is not None:
                self.units.convert(learner.memory.x, to=units)
        yield learner
        self.labels, self.units, self.learner = labels, units, learner

    def _observe(self, learner: Learner, z: NDArray[np.float32], numbers: NDArray[np.int64]) -> None:
        size = self.settings.batch_size
        for start in range(0, len(z), size):
            learner.observe(z[start : start + size], numbers[start : start + size])

    def forget(
        self,
        *,
        row: int | Sequence[int] | None = None,
        label: Any = None,
        where: Callable[[Floats, NDArray[Any]], NDArray[np.bool_]] | None = None,
    ) -> int:
        """Remove stored rows on request, and tell how many. What was learned from them stays learned.

        Parameters
        ----------
        row
            By their numbers: 0 is the first row ever learned from. Not where :meth:`fit` passed over rows repeatedly.
        label
            By their class or classes.
        where
            Called with all stored rows, in the features' own units and edited as they are, and their labels; says of
            each whether it goes.

        Examples
        --------
        >>> model = OnlineClassifier(Settings(), inputs=1)
        >>> model.learn(np.array([[1.0], [2.0], [8.0]]), np.array(["low", "low", "high"]))
        >>> model.forget(label="low"), model.forget(label="low"), model.forget(where=lambda x, y: x[:, 0] > 5)
        (2, 0, 1)
        """
        if not self.rows:
            return 0
        learner = self.learner
        if row is not None and learner.memory is not None and learner.memory.seen != self.rows:
            raise UsageError("rows were passed over repeatedly and have no numbers; forget them by label or where")
        outputs = None
        if label is not None:
            names = np.unique(plain(np.atleast_1d(np.asarray(label))))
            outputs = np.flatnonzero(np.isin(self.labels.met, names)).tolist()

        def goes(z: Tensor, numbers: Tensor) -> Any:
            assert where is not None
            return where(self.units.restored(z.cpu().numpy()), self.labels.met[numbers.cpu().numpy()])

        return learner.forget(origin=row, label=outputs, where=goes if where is not None else None)

    # ------------------------------------------------------------------ predicting

    def scores(self, x: Floats) -> NDArray[np.float32]:
        """(n, classes) logits, the classes being in order."""
        if not self.rows:
            raise UsageError("this classifier has learned nothing yet")
        self._check(x)
        blocks = (x[start : start + BLOCK] for start in range(0, len(x), BLOCK))
        logits = np.concatenate([self.learner.logits(self.units.standardised(rows)).cpu().numpy() for rows in blocks])
        return logits[:, self.labels.places]

    def predict(self, x: Floats) -> NDArray[Any]:
        """The class of each row."""
        found: NDArray[Any] = self.labels.classes[self.scores(x).argmax(1)]
        return found

    def _check(self, x: Floats, y: NDArray[Any] | None = None) -> None:
        if x.ndim != 2 or x.shape[1] != self.inputs or not len(x):
            raise InputError(f"rows of {self.inputs} features are needed, not an array of shape {x.shape}")
        if y is not None and y.shape != (len(x),):
            raise InputError(f"y must hold one label per row: shape {y.shape} for {len(x)} rows")
        if not np.isfinite(x).all():
            row = int(np.flatnonzero(~np.isfinite(x).all(1))[0])
            raise InputError(f"row {row} holds NaN or infinity; drop or mend it")

    # ------------------------------------------------------------------ state is data

    def state(self) -> tuple[dict[str, Tensor], dict[str, str]]:
        """Everything it is: named tensors, and what else is to be known as text."""
        counts = {"inputs": self.inputs, "seed": self.seed, "rows": self.rows}
        texts = {"settings": self.settings.to_json(), "counts": json.dumps(counts)}
        if not self.rows:
            return {}, texts
        tensors = {f"learner.{name}": t for name, t in self.learner.state_dict().items()}
        tensors |= {f"units.{name}": t for name, t in self.units.state_dict().items()}
        return tensors, texts | {"labels": self.labels.to_json()}

    @classmethod
    def from_state(cls, tensors: Mapping[str, Tensor], texts: Mapping[str, str], model: Model | None = None) -> Self:
        """The classifier whose state this is, with the model if it was one of one's own."""
        try:
            counts = json.loads(texts["counts"])
            new = cls(Settings.from_json(texts["settings"], model), counts["inputs"], counts["seed"])
            rows = whole_number("rows", counts["rows"], least=0)
            if rows:
                new.labels = Labels.from_json(texts["labels"])
                parts = {
                    kind: {name.removeprefix(kind): t for name, t in tensors.items() if name.startswith(kind)}
                    for kind in ("units.", "learner.")
                }
                new.units = Standardiser.from_state(parts["units."], new.inputs) if parts["units."] else AsTheyAre()
                outputs = max(len(new.labels.met), int(parts["learner."]["classes"]))
                new.learner = new.settings.make_learner(new.inputs, outputs, new.seed)
                new.learner.load_state_dict(parts["learner."])
                new.rows = rows
        except (LookupError, TypeError, ValueError, RuntimeError, MemoryError, RecursionError) as error:
            if isinstance(error, UsageError):
                raise
            raise UsageError(f"it is not the state of a classifier ({error})") from None
        return new

    def save(self, path: str | Path, **texts: str) -> None:
        """Write it to a file, whole or not at all."""
        tensors, own = self.state()
        write_state(Path(path), tensors, {"classifier": KIND, **own, **texts})

    @classmethod
    def load(cls, path: str | Path, model: Model | None = None) -> tuple[Self, dict[str, str]]:
        """The classifier in a file, and the texts that were saved with it. Reading runs no code."""
        tensors, texts = read_state(Path(path), {"classifier": KIND})
        try:
            return cls.from_state(tensors, texts, model), texts
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
