"""The base classes of learners whose model grows while they learn, some with a module for every task."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from gmed.errors import InputError, UsageError, check_float
from gmed.learners._locking import consistent_read
from gmed.learners._rollback import Rollback
from gmed.learners.adam import Adam
from gmed.learners.base import Learner, TaskAware
from gmed.learners.stateful import restore
from gmed.models import CompositionalNet, Loss, ProgressiveNet, eval_mode
from gmed.models.functional import Parameters
from gmed.rng import seeded_torch


class ExpandableLearner(Learner):
    """A learner whose model grows while it learns.

    The model consists of modules of the same kind. The initial weights of a module are determined by the learner's seed
    and the module's number.
    """

    @property
    @abstractmethod
    def num_modules(self) -> int:
        """Number of modules of the model."""

    @abstractmethod
    def resize(self, num_modules: int) -> None:
        """Set the number of modules: add new ones with their initial weights, or drop the last ones."""

    @abstractmethod
    def num_modules_in(self, state: dict[str, Tensor]) -> int:
        """Return the number of modules in a state."""

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        before, model, num_modules = self.state_dict(), self.model, self.num_modules
        try:
            saved = self.num_modules_in(state)
        except (LookupError, TypeError, ValueError) as error:
            raise UsageError("this state has no modules; it was saved by another kind of learner") from error
        self.resize(saved)
        try:
            super().load_state_dict(state)
        except UsageError:
            self.model = model
            self.resize(num_modules)
            restore(self, before)
            raise

    def _rollback(self, x: Tensor, y: Tensor) -> Rollback:
        return _ExpandableRollback(self, x, y)


class _ExpandableRollback(Rollback):
    """A rollback for a model that may have grown in the step."""

    learner: ExpandableLearner

    def __init__(self, learner: ExpandableLearner, x: Tensor, y: Tensor) -> None:
        super().__init__(learner, x, y)
        self.num_modules = learner.num_modules

    def restore(self) -> None:
        super().restore()
        self.learner.resize(self.num_modules)


def num_parameters(module: nn.Module) -> int:
    """Return the number of parameters of a module.

    >>> num_parameters(nn.Linear(3, 2))
    8
    """
    return sum(p.numel() for p in module.parameters())


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
