"""Lifelong learning of compositional structures (Mendez and Eaton, 2021)."""

from __future__ import annotations

from contextlib import nullcontext
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.deprecated import old_hyperparameters
from gmed.errors import check_float, check_int
from gmed.learners.adam import ADAM_LR, Adam
from gmed.learners.expandable import TaskModularLearner
from gmed.models import CompositionalNet, Loss, gradient
from gmed.models.functional import Parameters, frozen_bn_stats
from gmed.registry import register


@register("comp-cl", summary="task-aware: components in every layer, weighted by task", on_benchmarks=ADAM_LR)
@old_hyperparameters(told="task_at_test", keep_old="freeze_old")
class CompCL(TaskModularLearner):
    """Lifelong learning of compositional structures (task-aware): tasks share the components of every layer, and each
    task adds one.

    A new task first learns only its structure, the weights of all components in each layer; then the structure is
    fixed, and the parameters of the components are trained.

    Parameters
    ----------
    model, adam_lr, task_at_test, criterion, seed
        As in :class:`~gmed.learners.expandable.TaskModularLearner`.
    structure_steps
        Number of batches of a new task on which its structure is learned.
    structure_lr
        Learning rate of Adam for the structure.
    freeze_old
        Whether the components of earlier tasks are frozen, so that only the new ones are trained.

    Examples
    --------
    >>> import torch, gmed
    >>> learner = gmed.learners.CompCL(gmed.models.MLP(), structure_steps=1)
    >>> for task in (0, 1, 1):
    ...     learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10), task)
    >>> learner.num_modules, learner.learning_structure
    (2, False)

    References
    ----------
    Mendez and Eaton, "Lifelong learning of compositional structures", ICLR 2021.
    """

    id = "CompCL"
    parameter_ids: ClassVar = {"task_at_test": "told", "freeze_old": "keep_old"}
    capturable = True
    model: CompositionalNet

    def __init__(
        self,
        model: nn.Module,
        *,
        adam_lr: float = 1e-4,
        structure_steps: int = 5,
        structure_lr: float = 1.0,
        freeze_old: bool = True,
        task_at_test: bool = False,
        criterion: Loss = cross_entropy,
        seed: int = 0,
    ) -> None:
        self.structure_steps = check_int("structure_steps", structure_steps, minimum=0)
        self.structure_lr = check_float("structure_lr", structure_lr, greater_than=0)
        self.task_start_step = 0  # the step at which the current task began
        super().__init__(
            CompositionalNet(model, freeze_old),
            model,
            adam_lr=adam_lr,
            task_at_test=task_at_test,
            criterion=criterion,
            seed=seed,
        )

    @property
    def task_steps(self) -> int:
        """Number of batches of the current task so far."""
        return self.steps - self.task_start_step

    @property
    def learning_structure(self) -> bool:
        """Whether the current task is learning its structure; with one component in each layer there is none."""
        return self.num_modules > 1 and self.task_steps < self.structure_steps

    def step(self, x: Tensor, y: Tensor, task: int) -> None:  # type: ignore[override]
        before = self.tasks, self.adam, self.task_start_step
        try:
            self.task_start_step = self.task_start_step if task in self.tasks else self.steps
            self.start_task(task)
            with frozen_bn_stats(self.model) if self.learning_structure else nullcontext():
                loss = self.criterion(self.model(x, self.num_modules - 1), y)
            grads = gradient(loss, self.trainable_parameters())
            self.check_finite(loss.detach(), grads)
        except BaseException:
            self.resize(max(1, len(before[0])))
            self.tasks, self.adam, self.task_start_step = before
            raise
        self.adam.step(list(grads.values()))
        if self.learning_structure and self.task_steps + 1 == self.structure_steps:
            self.adam = Adam(self._trainable("layers.").values(), self.lr)  # used from the next step on

    def has_static_graph(self) -> bool:
        return not self.learning_structure

    def trainable_parameters(self) -> Parameters:
        return self._trainable("structure." if self.learning_structure else "layers.")

    def _trainable(self, prefix: str) -> Parameters:
        return {name: p for name, p in self.model_info.parameters.items() if name.startswith(prefix)}

    def get_extra_state(self) -> dict[str, Tensor]:
        return {**super().get_extra_state(), "seen": torch.tensor(self.task_steps)}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self.task_start_step = self.steps - int(state["seen"])
        super().set_extra_state(state)

    def _make_optimizer(self) -> Adam:
        return Adam(self.trainable_parameters().values(), self.structure_lr if self.learning_structure else self.lr)

    @property
    def num_modules(self) -> int:
        return len(self.model.structure)

    def num_modules_in(self, state: dict[str, Tensor]) -> int:
        return max(int(name.split(".")[2]) for name in state if name.startswith("model.structure.")) + 1
