"""Experience replay with tricks (Buzzega et al., 2020)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.errors import UsageError, check_float
from gmed.learners.er_aug import ERAug
from gmed.learners.replay import ReplayOptions
from gmed.memory import LossAwareReservoir
from gmed.registry import register


def _decay_to_a_sixth(examples: int) -> dict[str, float]:
    """Return the decay that reduces the learning rate to a sixth by the end of a stream of this length."""
    return {"lr_decay": (1 / 6) ** (1 / examples)}


@register(
    "er-t",
    memory=LossAwareReservoir,
    summary="er-aug, loss-aware balanced reservoir, decaying lr",
    on_benchmarks={
        "split-mnist": _decay_to_a_sixth(5_000),
        "split-mnist-full": _decay_to_a_sixth(60_000),
        "permuted-mnist": _decay_to_a_sixth(10_000),
        "rotated-mnist": _decay_to_a_sixth(20_000),
        "images": _decay_to_a_sixth(50_000),
    },
)
class ERTricks(ERAug):
    """ER with the tricks of Buzzega et al. that need no task ids: augmentation, a loss-aware balanced
    reservoir, and a learning rate that decays with every example.

    Parameters
    ----------
    model, rotation, scaling, crop, flip
        As in :class:`~gmed.learners.er_aug.ERAug`.
    lr_decay
        Factor by which the learning rate is multiplied for every example seen.
    **replay
        All other options of :class:`~gmed.learners.replay.Replay`; the memory must be a
        :class:`~gmed.memory.LossAwareReservoir`.

    References
    ----------
    Buzzega, Boschini, Porrello, Calderara, "Rethinking experience replay: a bag of tricks for continual
    learning", ICPR 2020.
    """

    id = "ERTricks"
    memory: LossAwareReservoir

    def __init__(
        self,
        model: nn.Module,
        *,
        rotation: float = 0.0,
        scaling: float = 0.0,
        crop: int = 0,
        flip: bool = False,
        lr_decay: float = 1.0,
        **replay: Unpack[ReplayOptions],
    ) -> None:
        if not isinstance(replay.get("memory"), LossAwareReservoir):
            raise UsageError(f"ER with tricks needs a LossAwareReservoir memory, not {replay.get('memory')!r}")
        super().__init__(model, rotation=rotation, scaling=scaling, crop=crop, flip=flip, **replay)
        if check_float("lr_decay", lr_decay, greater_than=0) > 1:
            raise UsageError(f"lr_decay must be above 0 and at most 1, not {lr_decay!r}")
        self.lr_decay = lr_decay

    @property
    def lr_now(self) -> float:
        return self.lr * self.lr_decay**self.memory.num_seen

    def step(self, x: Tensor, y: Tensor) -> None:
        ahead = self.look_ahead(x, y)
        drawn = self.retrieve(ahead)
        x_a, y_m = self.augmented(self.memory.x[drawn]), self.memory.y[drawn]
        edited = self.edit(drawn, ahead)
        x_m = edited.x[: len(drawn)]
        with torch.no_grad():
            loss = cross_entropy(ahead.output_before(torch.cat([x, x_m])), torch.cat([y, y_m]), reduction="none")

        self.sgd_step(ahead, torch.cat([x_m, x_a]), torch.cat([y_m, y_m]), torch.cat([drawn, drawn]))
        self.write_back(edited)
        self.memory.write(drawn, loss=loss[len(y) :])
        self.update_memory(x, y, loss=loss[: len(y)])
