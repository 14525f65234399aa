from __future__ import annotations

import torch
from torch import Tensor, nn

from gmed.editing import Edit
from gmed.learners.replay import Replay
from gmed.memory import Memory
from gmed.replay import Augmentation
from gmed.retrieval import Retrieval


class ERAug(Replay):
    """Experience replay of the drawn examples and an augmented copy of each; with ``editing`` Algorithm 2.

    The copy is made of the examples as they were drawn, before this step's edit.

    Parameters
    ----------
    model, lr, memory, editing, replay_size, retrieval, seed
        As in :class:`~gmed.learners.replay.Replay`.
    rotation, scaling, crop, flip
        As in :class:`~gmed.replay.Augmentation`.

    References
    ----------
    Buzzega, Boschini, Porrello, Calderara, "Rethinking experience replay: a bag of tricks for continual
    learning", ICPR 2020.
    """

    foreseeable = True

    def __init__(
        self,
        model: nn.Module,
        *,
        lr: float,
        memory: Memory,
        editing: Edit | None = None,
        replay_size: int = 10,
        retrieval: Retrieval | None = None,
        rotation: float = 0.0,
        scaling: float = 0.0,
        crop: int = 0,
        flip: bool = False,
        seed: int = 0,
    ) -> None:
        super().__init__(
            model, lr=lr, memory=memory, editing=editing, replay_size=replay_size, retrieval=retrieval, seed=seed
        )
        self.augment = Augmentation(rotation, scaling, crop, flip)

    def augmented(self, x: Tensor) -> Tensor:
        """A random view of each image."""
        maps = self.planned("augmentation", lambda: self.augment.maps(x.shape, self.random("augmentation")))
        return self.augment(x, maps)

    def step(self, x: Tensor, y: Tensor) -> None:
        ahead = self.look_ahead(x, y)
        drawn = self.retrieved(ahead)  # (x_e, y_e) ~ M
        x_a, y_m = self.augmented(self.memory.x[drawn]), self.memory.y[drawn]
        edited = self.edit(drawn, ahead)

        self.descend(ahead, torch.cat([edited.x[: len(drawn)], x_a]), torch.cat([y_m, y_m]))
        self.write_back(edited)
        self.remember(x, y)
