from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

ADAM_LR = {  # as CN-DPM's authors set it for each data set
    "mnist": {"adam_lr": 1e-4},
    "split-cifar10": {"adam_lr": 5e-3},
    "split-cifar100": {"adam_lr": 2e-4},
    "split-mini-imagenet": {"adam_lr": 2e-4},
    "own": {"adam_lr": 1e-4},
}
"""Learning rates of CN-DPM and of what is compared with it."""


class Adam:
    """The Adam optimizer as data: its moments and its count of steps are tensors where the parameters are.

    Parameters
    ----------
    parameters
        What it changes, in an order that stays.
    lr
        Learning rate.

    Examples
    --------
    >>> theta = torch.tensor([1.0, -1.0])
    >>> Adam([theta], lr=0.1).step([torch.tensor([3.0, -0.02])])
    >>> [round(value, 4) for value in theta.tolist()]  # a first step is as long as the learning rate
    [0.9, -0.9]

    References
    ----------
    Kingma and Ba, "Adam: a method for stochastic optimization", ICLR 2015.
    """

    def __init__(self, parameters: Iterable[Tensor], lr: float) -> None:
        self.parameters = [p.detach() for p in parameters]
        self.lr = lr
        self.mean = [torch.zeros_like(p) for p in self.parameters]
        self.square = [torch.zeros_like(p) for p in self.parameters]
        like = self.parameters[0] if self.parameters else torch.zeros(())
        self.dtype = like.dtype
        self.count = torch.zeros((), dtype=torch.float64, device=like.device)

    @torch.no_grad()
    def step(self, grads: list[Tensor] | tuple[Tensor, ...], times: float = 1.0) -> None:
        """Move the parameters against a gradient, at so many times the learning rate."""
        self.count.add_(1)
        torch._foreach_lerp_(self.mean, grads, 1 - BETA_1)
        torch._foreach_mul_(self.square, BETA_2)
        torch._foreach_addcmul_(self.square, grads, grads, 1 - BETA_2)
        width = torch._foreach_sqrt(self.square)
        torch._foreach_div_(width, torch.sqrt(1 - BETA_2**self.count).to(self.dtype))
        torch._foreach_add_(width, EPSILON)
        way = torch._foreach_div(self.mean, width)
        torch._foreach_mul_(way, (times * self.lr / (1 - BETA_1**self.count)).to(self.dtype))
        torch._foreach_sub_(self.parameters, way)

    def follow(self, parameters: Iterable[Tensor]) -> None:
        """Change these from now on: the same parameters, some with further rows, of which nothing is known yet."""
        self.parameters = [p.detach() for p in parameters]
        for kept in (self.mean, self.square):
            for number, p in enumerate(self.parameters):
                kept[number] = torch.cat([kept[number], torch.zeros_like(p[len(kept[number]) :])])

    def state(self) -> dict[str, Tensor]:
        """Everything it has kept, by name."""
        moments = {"mean": self.mean, "square": self.square}
        named = {f"{kind}.{i}": t for kind, kept in moments.items() for i, t in enumerate(kept)}
        return {"count": self.count, **named}

    def load(self, state: dict[str, Tensor]) -> None:
        """Take it back."""
        for name, kept in self.state().items():
            kept.copy_(state[name])


BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
