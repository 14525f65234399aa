"""The hyper-parameters of an online classifier."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn

from gmed.deprecated import old_hyperparameters
from gmed.editing import GMED
from gmed.errors import UsageError, check_float, check_int
from gmed.io.files import memory_limit
from gmed.learners import ER, FineTune, Learner
from gmed.memory import Reservoir
from gmed.models import MLP, eval_mode, expand_outputs
from gmed.rng import seeded_torch

Model = nn.Module | Callable[[int, int], nn.Module]
"""A model, or a function that builds one from the number of inputs and the number of classes."""


SAVED_NAMES = {"standardize": "standardise"}
"""Names of renamed settings in saved files, by their current names."""


@old_hyperparameters(standardise="standardize")
@dataclass(frozen=True)
class ClassifierConfig:
    """The hyper-parameters of a classifier.

    Parameters
    ----------
    memory
        Number of stored examples (reservoir sampling); 0 for none, which is fine-tuning.
    replay_size
        Number of stored examples that are replayed in each step.
    alpha, beta, gamma, edit_steps
        Parameters of :class:`gmed.editing.GMED`; ``alpha=0`` disables editing, which is plain experience replay.
    learning_rate
        Learning rate of plain SGD.
    updates_per_batch
        Updates in each step; each draws new replayed examples, and the first one edits them.
    batch_size
        Maximum number of rows of a step; more rows are learned in several steps.
    hidden
        Width of the two hidden layers of the model.
    model
        A custom model instead: a module, or a function that builds one from the numbers of inputs and classes.
    standardize
        Whether features are standardized with running statistics of the stream.
    """

    memory: int = 1000
    replay_size: int = 10
    alpha: float = 1.0
    beta: float = 0.01
    gamma: float = 1.0
    edit_steps: int = 1
    learning_rate: float = 0.1
    updates_per_batch: int = 3
    batch_size: int = 10
    hidden: int = 64
    standardize: bool = True
    model: Model | None = None

    def __post_init__(self) -> None:
        check_int("memory", self.memory, minimum=0)
        for name in ("replay_size", "updates_per_batch", "batch_size", "hidden"):
            check_int(name, getattr(self, name))
        check_float("learning_rate", self.learning_rate, greater_than=0)
        self._edit()
        if not isinstance(self.standardize, bool | np.bool_):
            raise UsageError(f"standardize must be True or False, not {self.standardize!r}")
        if self.model is not None and not callable(self.model):
            raise UsageError(f"model must be a module or a function that builds one, not {self.model!r}")

    def make_learner(self, inputs: int, classes: int, seed: int) -> Learner:
        """Create an untrained learner."""
        with seeded_torch(seed, "weights"):
            model = self._model(inputs, classes)
        if self.memory == 0:
            learner = FineTune(model, lr=self.learning_rate, seed=seed)
            learner.updates_per_batch = self.updates_per_batch
            learner.restores_parameters = self.updates_per_batch > 1
            return learner
        return ER(
            model,
            lr=self.learning_rate,
            memory=Reservoir(self.memory),
            editing=self._edit() if self.alpha else None,
            replay_size=self.replay_size,
            updates_per_batch=self.updates_per_batch,
            seed=seed,
        )

    def _edit(self) -> GMED:
        return GMED(alpha=self.alpha, beta=self.beta, gamma=self.gamma, steps=self.edit_steps)

    def _model(self, inputs: int, classes: int) -> nn.Module:
        if self.model is None:
            size, limit = 4 * self.hidden * (inputs + self.hidden + classes), memory_limit()  # float32
            if limit is not None and size > limit:
                raise UsageError(
                    f"a model with hidden={self.hidden} needs {size / 1e9:.3g} GB of memory, more than is available; "
                    "choose a smaller one"
                )
            return MLP(inputs, self.hidden, classes)
        if not isinstance(self.model, nn.Module):
            return self.model(inputs, classes)
        model = deepcopy(self.model)
        try:
            with torch.no_grad(), eval_mode(model):
                outputs = model(next(model.parameters()).new_zeros((1, inputs))).shape[1]
        except (RuntimeError, ValueError, TypeError, LookupError, AttributeError, StopIteration) as error:
            raise UsageError(
                f"the model must map (rows, {inputs}) to (rows, classes), but failed on zeros: {error}"
            ) from error
        if outputs < classes:
            expand_outputs(model, classes)
        return model

    def to_json(self) -> str:
        """Return the settings as JSON; a custom model is only recorded as such."""
        values = {SAVED_NAMES.get(field.name, field.name): getattr(self, field.name) for field in fields(self)}
        return json.dumps(
            values | {"model": None if self.model is None else "own"}, default=lambda number: number.item()
        )

    @classmethod
    def from_json(cls, text: str, model: Model | None = None) -> ClassifierConfig:
        """Read what :meth:`to_json` wrote; pass ``model`` if it was a custom one."""
        try:
            values: dict[str, Any] = json.loads(text)
            custom = values.pop("model")
            current = {saved: name for name, saved in SAVED_NAMES.items()}
            settings = cls(**{current.get(name, name): value for name, value in values.items()}, model=model)
        except (KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
            raise UsageError(f"its settings are damaged ({error})") from None
        if (custom is None) != (model is None):
            raise UsageError(
                "it was saved with the built-in model; omit the parameter model"
                if custom is None
                else "it was saved with a custom model; pass the same model as the parameter model"
            )
        return settings
