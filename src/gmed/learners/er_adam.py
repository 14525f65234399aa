"""Experience replay with Adam, for comparison with methods whose models grow."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.editing import Edit
from gmed.errors import check_float
from gmed.learners.adam import ADAM_LR, Adam
from gmed.learners.er import ER
from gmed.memory import Memory, Reservoir
from gmed.models import Loss, trainable
from gmed.models.expert_mixture import expanded_classifier
from gmed.registry import register


@register(
    "er-expanded",
    memory=Reservoir,
    summary="er with Adam, on the network that cn-dpm ends with",
    model=expanded_classifier,
    on_benchmarks=ADAM_LR,
)
class ERAdam(ER):
    """Experience replay with updates by Adam. A look-ahead is still a step of plain SGD.

    Parameters
    ----------
    model, memory, editing, replay_size, criterion, seed
        As in :class:`~gmed.learners.replay.Replay`.
    lr
        τ, the learning rate of the look-ahead.
    adam_lr
        Learning rate of the updates.

    Examples
    --------
    >>> import torch, gmed
    >>> learner = gmed.learners.ERAdam(gmed.models.MLP(), lr=0.05, adam_lr=1e-4, memory=gmed.memory.Reservoir(500))
    >>> learner.observe(torch.rand(10, 1, 28, 28), torch.arange(10))
    >>> int(learner.adam.count)
    1
    """

    id = "ERAdam"
    capturable = True

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        adam_lr: float,
        memory: Memory,
        editing: Edit | None = None,
        replay_size: int = 10,
        criterion: Loss = cross_entropy,
        seed: int = 0,
    ) -> None:
        super().__init__(
            model, lr=lr, memory=memory, editing=editing, replay_size=replay_size, criterion=criterion, seed=seed
        )
        self.adam = Adam(trainable(model).values(), check_float("adam_lr", adam_lr, greater_than=0))

    @torch.no_grad()
    def apply_gradients(self, grads: Mapping[str, Tensor], loss: Tensor) -> None:
        """Take a step of Adam; raise an error if the loss or its gradient is not finite."""
        self.check_finite(loss, grads)
        self.adam.step([grads[name] for name in self.model_info.parameters])

    def add_classes(self, classes: int) -> None:
        super().add_classes(classes)
        self.adam.follow(trainable(self.model).values())

    def get_extra_state(self) -> dict[str, Tensor]:
        return super().get_extra_state() | {f"adam.{name}": t for name, t in self.adam.state().items()}

    def set_extra_state(self, state: dict[str, Tensor]) -> None:
        super().set_extra_state(state)
        self.adam.load({k.removeprefix("adam."): t for k, t in state.items() if k.startswith("adam.")})
