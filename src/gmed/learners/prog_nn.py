from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.learners.adam import ADAM_LR
from gmed.learners.task_modular import TaskModularLearner
from gmed.models import Loss, ProgressiveNet, gradient, trainable
from gmed.models.functional import Parameters
from gmed.registry import register


@register("prog-nn", summary="task-aware: a column for every task, earlier ones fixed", on_benchmarks=ADAM_LR)
class ProgNN(TaskModularLearner):
    """Progressive neural networks (task-aware): a column of the network for every task, which reads the earlier
    ones; those never change again.

    Parameters
    ----------
    model, adam_lr, told, criterion, seed
        As in :class:`~gmed.learners.task_modular.TaskModularLearner`.

    Examples
    --------
    >>> import torch, gmed
    >>> learner = gmed.learners.ProgNN(gmed.models.MLP(), adam_lr=1e-4)
    >>> for task in range(3):
    ...     learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10), task)
    >>> learner.parts
    3

    References
    ----------
    Rusu et al., "Progressive neural networks", 2016.
    """

    id = "ProgNN"
    capturable = True
    model: ProgressiveNet

    def __init__(
        self,
        model: nn.Module,
        *,
        adam_lr: float = 1e-4,
        told: bool = False,
        criterion: Loss = cross_entropy,
        seed: int = 0,
    ) -> None:
        super().__init__(ProgressiveNet(model), model, adam_lr=adam_lr, told=told, criterion=criterion, seed=seed)

    def step(self, x: Tensor, y: Tensor, task: int) -> None:  # type: ignore[override]
        tasks, optimiser = self.tasks, self.optimiser
        try:
            self.begin(task)
            loss = self.criterion(self.model(x, self.parts - 1), y)
            grads = gradient(loss, self.learned())
            self.check_finite(loss.detach(), grads)
        except BaseException:
            self.resize(max(1, len(tasks)))
            self.tasks, self.optimiser = tasks, optimiser
            raise
        self.optimiser.step(list(grads.values()))

    def learned(self) -> Parameters:
        return trainable(self.model)

    @property
    def parts(self) -> int:
        return len(self.model.columns)

    def num_modules_in(self, state: dict[str, Tensor]) -> int:
        return max(int(name.split(".")[2]) for name in state if name.startswith("model.columns.")) + 1
