from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.editing import Edit
from gmed.errors import UsageError, finite_number
from gmed.learners.er_aug import ERAug
from gmed.memory import LossAwareReservoir
from gmed.retrieval import Retrieval


class ERTricks(ERAug):
    """ER with the tricks of Buzzega et al. that need no task ids: augmentation, a loss-aware balanced
    reservoir, and a learning rate that decays with every example.

    Parameters
    ----------
    model, lr, editing, replay_size, retrieval, rotation, scaling, crop, flip, seed
        As in :class:`~gmed.learners.er_aug.ERAug`.
    memory
        A :class:`~gmed.memory.LossAwareReservoir`.
    lr_decay
        What the learning rate is multiplied by for every example seen.

    References
    ----------
    Buzzega, Boschini, Porrello, Calderara, "Rethinking experience replay: a bag of tricks for continual
    learning", ICPR 2020.
    """

    memory: LossAwareReservoir

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        memory: LossAwareReservoir,
        editing: Edit | None = None,
        replay_size: int = 10,
        retrieval: Retrieval | None = None,
        rotation: float = 0.0,
        scaling: float = 0.0,
        crop: int = 0,
        flip: bool = False,
        lr_decay: float = 1.0,
        seed: int = 0,
    ) -> None:
        if not isinstance(memory, LossAwareReservoir):
            raise UsageError(f"ER with tricks needs a LossAwareReservoir, not {memory!r}")
        super().__init__(
            model, lr=lr, memory=memory, editing=editing, replay_size=replay_size, retrieval=retrieval,
            rotation=rotation, scaling=scaling, crop=crop, flip=flip, seed=seed,
        )  # fmt: skip
        if finite_number("lr_decay", lr_decay, above=0) > 1:
            raise UsageError(f"lr_decay must be above 0 and at most 1, not {lr_decay!r}")
        self.lr_decay = lr_decay

    @property
    def step_size(self) -> float:
        return self.lr * self.lr_decay**self.memory.seen

    def step(self, x: Tensor, y: Tensor) -> None:
        ahead = self.look_ahead(x, y)
        drawn = self.retrieved(ahead)
        x_a, y_m = self.augmented(self.memory.x[drawn]), self.memory.y[drawn]
        edited = self.edit(drawn, ahead)
        x_m = edited.x[: len(drawn)]
        with torch.no_grad():
            loss = cross_entropy(ahead.output_before(torch.cat([x, x_m])), torch.cat([y, y_m]), reduction="none")

        self.descend(ahead, torch.cat([x_m, x_a]), torch.cat([y_m, y_m]))
        self.write_back(edited)
        self.memory.write(drawn, loss=loss[len(y) :])
        self.remember(x, y, loss=loss[: len(y)])
