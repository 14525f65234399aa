"""Learners with a module of the network for every task."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from gmed.errors import InputError, check_float
from gmed.learners._locking import consistent_read
from gmed.learners.adam import Adam
from gmed.learners.base import TaskAware
from gmed.learners.expandable import ExpandableLearner, num_parameters
from gmed.models import CompositionalNet, Loss, ProgressiveNet, eval_mode
from gmed.models.functional import Parameters
from gmed.rng import seeded_torch


class TaskModularLearner(ExpandableLearner, TaskAware):
    """What learners share that have a part of the model for every task.

    Parameters
    ----------
    model
        The network that every part is like. What learns is :attr:`model`, which begins as this one and grows.
    adam_lr
        Learning rate of Adam.
    task_at_test
        Whether predictions for a test are told its task; all classes compete either way. Without, they are made by
        the mean of what all parts predict.
    criterion, seed
        As in :class:`~gmed.learners.Learner`.
    """

    model: ProgressiveNet | CompositionalNet

    def __init__(
        self,
        model: ProgressiveNet | CompositionalNet,
        base: nn.Module,
        *,
        adam_lr: float,
        task_at_test: bool,
        criterion: Loss,
        seed: int,
    ) -> None:
        super().__init__(model, lr=check_float("adam_lr", adam_lr, greater_than=0), criterion=criterion, seed=seed)
        self.task_at_test = task_at_test
        self.tasks: tuple[int, ...] = ()
        self._plain = num_parameters(base)
        self.adam = self._make_optimizer()

    @abstractmethod
    def trainable_parameters(self) -> Parameters:
        """The parameters that Adam changes in the task under way."""

    def start_task(self, task: int) -> None:
        """Have a part for this task."""
        if task not in self.tasks:
            self.tasks = (*self.tasks, task)
            self.resize(len(self.tasks))
            self.adam = self._make_optimizer()
        elif task != self.tasks[-1]:
            raise InputError(f"task {task} had ended when task {self.tasks[-1]} began; tasks must come one by one")

    @torch.no_grad()
    def predict(self, x: Any, task: int | None = None) -> Tensor:
        """The class of each input, with the model in evaluation mode; a task that is known chooses the part."""
        return self.logits(x, task).argmax(1)

    @consistent_read
    @torch.no_grad()
    def logits(self, x: Any, task: int | None = None) -> Tensor:
        """The model's output for each input; that of the latest part for a task that has not come yet."""
        if task is None:
            return super().logits(x)
        part = self.tasks.index(task) if task in self.tasks else self.num_modules - 1
        x = self._checked_inputs(x)
        with eval_mode(self.model):
            output: Tensor = self.model(x, part)
        return output

    def _make_optimizer(self) -> Adam:
        return Adam(self.trainable_parameters().values(), self.lr)

    # ------------------------------------------------------------------ parts and state

    def resize(self, num_modules: int) -> None:
        self._model_info = None  # the model becomes another one
        if num_modules < self.num_modules:
            self.model.truncate(num_modules)
        while self.num_modules < num_modules:
            with seeded_torch(self.seed, "part", self.num_modules):
                self.model.add()

    def extra_parameters(self) -> int:
        return num_parameters(self.model) - self._plain

    def get_extra_state(self) -> dict[str, Tensor]:
        state = {"tasks": torch.tensor(self.tasks, dtype=torch.int64)}
        return state | {f"adam.{name}": t for name, t in self.adam.state().items()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self.tasks = tuple(state["tasks"].tolist())
        self.adam = self._make_optimizer()
        self.adam.load({k.removeprefix("adam."): t for k, t in state.items() if k.startswith("adam.")})
