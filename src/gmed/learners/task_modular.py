"""The base class of learners whose network has a module for every task."""

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
    """The base class of learners whose model has a module for every task.

    Parameters
    ----------
    model
        The network that is trained, :attr:`model`, with the module of the first task; it grows with every task.
    base
        The network that every module is a copy of.
    adam_lr
        Learning rate of Adam.
    task_at_test
        Whether predictions in a test are given its task id; all classes compete in any case. Without it, the
        prediction is the mean of all modules' predictions.
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
        self._base_parameters = num_parameters(base)
        self.adam = self._make_optimizer()

    @abstractmethod
    def trainable_parameters(self) -> Parameters:
        """Return the parameters that Adam updates in the current task."""

    def start_task(self, task: int) -> None:
        """Add a module for this task, unless it has one."""
        if task not in self.tasks:
            self.tasks = (*self.tasks, task)
            self.resize(len(self.tasks))
            self.adam = self._make_optimizer()
        elif task != self.tasks[-1]:
            raise InputError(f"task {task} ended when task {self.tasks[-1]} began; tasks must come one after the other")

    @torch.no_grad()
    def predict(self, x: Any, task: int | None = None) -> Tensor:
        """Return the predicted class of each input, with the model in evaluation mode.

        Given a task id, the module of that task predicts.
        """
        return self.logits(x, task).argmax(1)

    @consistent_read
    @torch.no_grad()
    def logits(self, x: Any, task: int | None = None) -> Tensor:
        """Return the model's output for each input: that of a task's module, or of the latest one for a new task."""
        if task is None:
            return super().logits(x)
        module = self.tasks.index(task) if task in self.tasks else self.num_modules - 1
        x = self._checked_inputs(x)
        with eval_mode(self.model):
            output: Tensor = self.model(x, module)
        return output

    def _make_optimizer(self) -> Adam:
        return Adam(self.trainable_parameters().values(), self.lr)

    # ------------------------------------------------------------------ modules and state

    def resize(self, num_modules: int) -> None:
        self._model_info = None  # outdated: the model changes
        if num_modules < self.num_modules:
            self.model.truncate(num_modules)
        while self.num_modules < num_modules:
            with seeded_torch(self.seed, "part", self.num_modules):
                self.model.add()

    def extra_parameters(self) -> int:
        return num_parameters(self.model) - self._base_parameters

    def get_extra_state(self) -> dict[str, Tensor]:
        state = {"tasks": torch.tensor(self.tasks, dtype=torch.int64)}
        return state | {f"adam.{name}": t for name, t in self.adam.state().items()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self.tasks = tuple(state["tasks"].tolist())
        self.adam = self._make_optimizer()
        self.adam.load({k.removeprefix("adam."): t for k, t in state.items() if k.startswith("adam.")})
