from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from torch import nn

from gmed.editing import GMED
from gmed.errors import UsageError, check_float, check_int
from gmed.io.memory_limit import memory_limit
from gmed.learners import ER, FineTune, Learner
from gmed.memory import Reservoir
from gmed.models import MLP, eval_mode, expand_outputs
from gmed.rng import seeded_torch

Model = nn.Module | Callable[[int, int], nn.Module]
"""A model, or what makes one from the number of inputs and of classes."""


@dataclass(frozen=True)
class ClassifierConfig:
    """How a classifier learns.

    Parameters
    ----------
    memory
        How many examples are stored (reservoir sampling); 0 for none, which is fine-tuning.
    replay_size
        How many stored examples are replayed in each step.
    alpha, beta, gamma, edit_steps
        Of the edit, as in :class:`gmed.editing.GMED`; with ``alpha=0`` there is none, which is plain experience replay.
    learning_rate
        Of plain SGD.
    updates_per_batch
        Updates in each step; replayed examples are drawn anew for each, and edited for the first.
    batch_size
        The most rows that one step learns from. More rows at once are taken in several steps.
    hidden
        Width of the two hidden layers of the model.
    model
        A model of your own instead: a module, or a function of the number of inputs and of classes that makes one.
    standardise
        Whether features are standardised by what has been met of the stream.
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
    standardise: bool = True
    model: Model | None = None

    def __post_init__(self) -> None:
        check_int("memory", self.memory, minimum=0)
        for name in ("replay_size", "updates_per_batch", "batch_size", "hidden"):
            check_int(name, getattr(self, name))
        check_float("learning_rate", self.learning_rate, greater_than=0)
        self._edit()
        if not isinstance(self.standardise, bool | np.bool_):
            raise UsageError(f"standardise must be True or False, not {self.standardise!r}")
        if self.model is not None and not callable(self.model):
            raise UsageError(f"model must be a module or a function that makes one, not {self.model!r}")

    def make_learner(self, inputs: int, classes: int, seed: int) -> Learner:
        """A learner that has learned nothing yet."""
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
                    f"a model with hidden={self.hidden} takes {size / 1e9:.3g} GB of memory, more than there is; "
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
                f"the model does not give (rows, classes) for rows of {inputs} features: {error}"
            ) from error
        if outputs < classes:
            expand_outputs(model, classes)
        return model

    def to_json(self) -> str:
        """As text. Of a model of one's own it says no more than that there is one."""
        written = {field.name: getattr(self, field.name) for field in fields(self)}
        return json.dumps(
            written | {"model": None if self.model is None else "own"}, default=lambda number: number.item()
        )

    @classmethod
    def from_json(cls, text: str, model: Model | None = None) -> ClassifierConfig:
        """What :meth:`to_json` wrote, with the model if it was one's own."""
        try:
            written: dict[str, Any] = json.loads(text)
            own = written.pop("model")
            settings = cls(**written, model=model)
        except (KeyError, TypeError, ValueError, RecursionError, AttributeError) as error:
            raise UsageError(f"what it says of settings is damaged ({error})") from None
        if (own is None) != (model is None):
            raise UsageError(
                "it holds the package's own model, so none can be given"
                if own is None
                else "its model is one of your own: give it again, as the parameter model"
            )
        return settings
