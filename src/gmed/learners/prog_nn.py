"""Progressive neural networks (Rusu et al., 2016)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.deprecated import old_hyperparameters
from gmed.learners.adam import ADAM_LR
from gmed.learners.expandable import TaskModularLearner
from gmed.models import Loss, ProgressiveNet, gradient
from gmed.models.functional import Parameters
from gmed.registry import register


@register("prog-nn", summary="task-aware: a column for every task, earlier ones frozen", on_benchmarks=ADAM_LR)
@old_hyperparameters(told="task_at_test")
class ProgNN(TaskModularLearner):
    """Progressive neural networks (task-aware): a column of the network for every task, which reads the features of
    the earlier ones; those are frozen.

    Parameters
    ----------
    model, adam_lr, task_at_test, criterion, seed
        As in :class:`~gmed.learners.expandable.TaskModularLearner`.

    Examples
    --------
    >>> import torch, gmed
    >>> learner = gmed.learners.ProgNN(gmed.models.MLP(), adam_lr=1e-4)
    >>> for task in range(3):
    ...     learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10), task)
    >>> learner.num_modules
    3

    References
    ----------
    Rusu et al., "Progressive neural networks", 2016.
    """

    id = "ProgNN"
    parameter_ids: ClassVar = {"task_at_test": "told"}
    capturable = True
    model: ProgressiveNet

    def __init__(
        self,
        model: nn.Module,
        *,
        adam_lr: float = 1e-4,
        task_at_test: bool = False,
        criterion: Loss = cross_entropy,
        seed: int = 0,
    ) -> None:
        super().__init__(
            ProgressiveNet(model), model, adam_lr=adam_lr, task_at_test=task_at_test, criterion=criterion, seed=seed
        )

    def step(self, x: Tensor, y: Tensor, task: int) -> None:  # type: ignore[override]
        tasks, optimizer = self.tasks, self.adam
        try:
            self.start_task(task)
            loss = self.criterion(self.model(x, self.num_modules - 1), y)
            grads = gradient(loss, self.trainable_parameters())
            self.check_finite(loss.detach(), grads)
        except BaseException:
            self.resize(max(1, len(tasks)))
            self.tasks, self.adam = tasks, optimizer
            raise
        self.adam.step(list(grads.values()))

    def trainable_parameters(self) -> Parameters:
        return self.model_info.parameters

    @property
    def num_modules(self) -> int:
        return len(self.model.columns)

    def num_modules_in(self, state: dict[str, Tensor]) -> int:
        return max(int(name.split(".")[2]) for name in state if name.startswith("model.columns.")) + 1
