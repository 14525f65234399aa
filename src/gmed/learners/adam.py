"""The Adam optimizer with its state as tensors, and the learning rates of methods that use it."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

ADAM_LR = {  # as set by CN-DPM's authors for each data set
    "mnist": {"adam_lr": 1e-4},
    "split-cifar10": {"adam_lr": 5e-3},
    "split-cifar100": {"adam_lr": 2e-4},
    "split-mini-imagenet": {"adam_lr": 2e-4},
    "own": {"adam_lr": 1e-4},
}
"""Learning rates of CN-DPM and of the methods compared with it."""


class Adam:
    """The Adam optimizer; its whole state, moments and step count, consists of tensors on the parameters' device.

    Parameters
    ----------
    parameters
        The parameters to update; their order must not change.
    lr
        Learning rate.

    Examples
    --------
    >>> theta = torch.tensor([1.0, -1.0])
    >>> Adam([theta], lr=0.1).step([torch.tensor([3.0, -0.02])])
    >>> [round(value, 4) for value in theta.tolist()]  # the size of a first step is the learning rate
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
        """Take a step against a gradient, at ``times`` the learning rate."""
        self.count.add_(1)
        torch._foreach_lerp_(self.mean, grads, 1 - BETA_1)
        torch._foreach_mul_(self.square, BETA_2)
        torch._foreach_addcmul_(self.square, grads, grads, 1 - BETA_2)
        denominators = torch._foreach_sqrt(self.square)
        torch._foreach_div_(denominators, torch.sqrt(1 - BETA_2**self.count).to(self.dtype))
        torch._foreach_add_(denominators, EPSILON)
        updates = torch._foreach_div(self.mean, denominators)
        torch._foreach_mul_(updates, (times * self.lr / (1 - BETA_1**self.count)).to(self.dtype))
        torch._foreach_sub_(self.parameters, updates)

    def follow(self, parameters: Iterable[Tensor]) -> None:
        """Replace the parameters by the same ones, some with new rows; the moments of new rows are zero."""
        self.parameters = [p.detach() for p in parameters]
        for moments in (self.mean, self.square):
            for i, p in enumerate(self.parameters):
                moments[i] = torch.cat([moments[i], torch.zeros_like(p[len(moments[i]) :])])

    def state(self) -> dict[str, Tensor]:
        """Return the state by name; the tensors are not copied."""
        moments = {"mean": self.mean, "square": self.square}
        named = {f"{kind}.{i}": t for kind, tensors in moments.items() for i, t in enumerate(tensors)}
        return {"count": self.count, **named}

    def load(self, state: dict[str, Tensor]) -> None:
        """Restore the state returned by :meth:`state`."""
        for name, t in self.state().items():
            t.copy_(state[name])


BETA_1, BETA_2, EPSILON = 0.9, 0.999, 1e-8
