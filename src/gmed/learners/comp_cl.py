from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.errors import check_float, check_int
from gmed.learners.adam import ADAM_LR, Adam
from gmed.learners.task_modular import TaskModularLearner
from gmed.models import CompositionalNet, Loss, gradient, trainable
from gmed.models.functional import Parameters, frozen_bn_stats
from gmed.registry import register


@register("comp-cl", summary="task-aware: components in every layer, weighted by task", on_benchmarks=ADAM_LR)
class CompCL(TaskModularLearner):
    """Lifelong learning of compositional structures (task-aware): every layer has components that tasks share, and one
    more for every task.

    A new task first learns its structure, the weights of all components in each layer, and nothing else; then the
    parameters of the components, its structure being fixed.

    Parameters
    ----------
    model, adam_lr, told, criterion, seed
        As in :class:`~gmed.learners.task_modular.TaskModularLearner`.
    structure_steps
        Batches of a new task from which its structure is learned.
    structure_lr
        Learning rate of Adam there.
    keep_old
        Whether the components of earlier tasks stay as they are, and the new ones alone learn.

    Examples
    --------
    >>> import torch, gmed
    >>> learner = gmed.learners.CompCL(gmed.models.MLP(), structure_steps=1)
    >>> for task in (0, 1, 1):
    ...     learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10), task)
    >>> learner.parts, learner.structuring
    (2, False)

    References
    ----------
    Mendez and Eaton, "Lifelong learning of compositional structures", ICLR 2021.
    """

    id = "CompCL"
    capturable = True
    model: CompositionalNet

    def __init__(
        self,
        model: nn.Module,
        *,
        adam_lr: float = 1e-4,
        structure_steps: int = 5,
        structure_lr: float = 1.0,
        keep_old: bool = True,
        told: bool = False,
        criterion: Loss = cross_entropy,
        seed: int = 0,
    ) -> None:
        self.structure_steps = check_int("structure_steps", structure_steps, minimum=0)
        self.structure_lr = check_float("structure_lr", structure_lr, greater_than=0)
        self.began = 0  # the step at which the task under way began
        super().__init__(
            CompositionalNet(model, keep_old), model, adam_lr=adam_lr, told=told, criterion=criterion, seed=seed
        )

    @property
    def seen(self) -> int:
        """Batches of the task under way."""
        return self.steps - self.began

    @property
    def structuring(self) -> bool:
        """Whether the task under way learns its structure yet; with one component in each layer there is none."""
        return self.parts > 1 and self.seen < self.structure_steps

    def step(self, x: Tensor, y: Tensor, task: int) -> None:  # type: ignore[override]
        before = self.tasks, self.optimiser, self.began
        try:
            self.began = self.began if task in self.tasks else self.steps
            self.begin(task)
            with frozen_bn_stats(self.model) if self.structuring else nullcontext():
                loss = self.criterion(self.model(x, self.parts - 1), y)
            grads = gradient(loss, self.learned())
            self.check_finite(loss.detach(), grads)
        except BaseException:
            self.resize(max(1, len(before[0])))
            self.tasks, self.optimiser, self.began = before
            raise
        self.optimiser.step(list(grads.values()))
        if self.structuring and self.seen + 1 == self.structure_steps:
            self.optimiser = Adam(self._trainable("layers.").values(), self.lr)  # from the next step on

    def has_static_graph(self) -> bool:
        return not self.structuring

    def learned(self) -> Parameters:
        return self._trainable("structure." if self.structuring else "layers.")

    def _trainable(self, kind: str) -> Parameters:
        return {name: p for name, p in trainable(self.model).items() if name.startswith(kind)}

    def get_extra_state(self) -> dict[str, Tensor]:
        return {**super().get_extra_state(), "seen": torch.tensor(self.seen)}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        self.began = self.steps - int(state["seen"])
        super().set_extra_state(state)

    def _fresh(self) -> Adam:
        return Adam(self.learned().values(), self.structure_lr if self.structuring else self.lr)

    @property
    def parts(self) -> int:
        return len(self.model.structure)

    def num_modules_in(self, state: dict[str, Tensor]) -> int:
        return max(int(name.split(".")[2]) for name in state if name.startswith("model.structure.")) + 1
