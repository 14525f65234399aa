"""Experience replay with augmentation (Buzzega et al., 2020)."""

from __future__ import annotations

from typing import Unpack

import torch
from torch import Tensor, nn

from gmed.augmentation import Augmentation
from gmed.learners.replay import Replay, ReplayOptions
from gmed.memory import Reservoir
from gmed.registry import register


@register(
    "er-aug",
    memory=Reservoir,
    summary="replays augmented copies too",
    on_benchmarks={
        "split-mnist": {"rotation": 20.0, "scaling": 0.2, "crop": 1},
        "split-mnist-full": {"rotation": 20.0, "scaling": 0.2, "crop": 1},
        "permuted-mnist": {"crop": 1},
        "rotated-mnist": {"crop": 1},
        "images": {"crop": 4, "flip": True},
    },
    edits_on_benchmarks={
        "gmed": {
            "split-mnist": {"alpha": 5.0, "beta": 0.001},
            "split-mnist-full": {"alpha": 5.0, "beta": 0.001},
            "split-cifar10": {"alpha": 0.07, "beta": 0.01},
            "split-cifar100": {"alpha": 0.05, "beta": 0.001},
            "split-mini-imagenet": {"alpha": 0.5, "beta": 0.0},
        }
    },
)
class ERAug(Replay):
    """Experience replay of the drawn examples and an augmented copy of each; with ``editing`` Algorithm 2 of the paper.

    The examples are copied as they were drawn, before the edit of this step.

    Parameters
    ----------
    model
        As in :class:`~gmed.learners.replay.Replay`.
    rotation, scaling, crop, flip
        As in :class:`~gmed.augmentation.Augmentation`.
    **replay
        All other options of :class:`~gmed.learners.replay.Replay`.

    References
    ----------
    Buzzega, Boschini, Porrello, Calderara, "Rethinking experience replay: a bag of tricks for continual
    learning", ICPR 2020.
    """

    id = "ERAug"
    capturable = True

    def __init__(
        self,
        model: nn.Module,
        *,
        rotation: float = 0.0,
        scaling: float = 0.0,
        crop: int = 0,
        flip: bool = False,
        **replay: Unpack[ReplayOptions],
    ) -> None:
        super().__init__(model, **replay)
        self.augment = Augmentation(rotation, scaling, crop, flip)

    def augmented(self, x: Tensor) -> Tensor:
        """Return a random view of each image."""
        maps = self.draw("augmentation", lambda: self.augment.maps(x.shape, self.random("augmentation")))
        return self.augment(x, maps)

    def step(self, x: Tensor, y: Tensor) -> None:
        ahead = self.look_ahead(x, y)
        drawn = self.retrieve(ahead)  # (x_e, y_e) ~ M
        x_a, y_m = self.augmented(self.memory.x[drawn]), self.memory.y[drawn]
        edited = self.edit(drawn, ahead)

        x_m, slots = torch.cat([edited.x[: len(drawn)], x_a]), torch.cat([drawn, drawn])
        self.sgd_step(ahead, x_m, torch.cat([y_m, y_m]), slots)
        self.write_back(edited)
        self.update_memory(x, y)
