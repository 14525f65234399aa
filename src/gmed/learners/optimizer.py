"""Any optimizer of torch as part of a learner: its state is data, and it grows with the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from gmed.errors import UsageError

MakeOptimizer = Callable[..., torch.optim.Optimizer]
"""A class of ``torch.optim``, or a ``functools.partial`` of one with its options."""


class OptimizerStep:
    """Move parameters by an optimizer of torch, along gradients that are handed over.

    Parameters
    ----------
    make
        Called with the parameters and ``lr``; a partial that sets its own ``lr`` keeps it.
    parameters
        What it changes.
    lr
        The learner's learning rate.

    Examples
    --------
    >>> theta = torch.nn.Parameter(torch.tensor([1.0]))
    >>> step = OptimizerStep(partial(torch.optim.SGD, momentum=0.9), [theta], lr=0.1)
    >>> for _ in range(2):
    ...     step([torch.tensor([1.0])])
    >>> round(theta.item(), 4)  # 1 - 0.1 - 0.19
    0.71
    """

    def __init__(self, make: MakeOptimizer, parameters: Iterable[Tensor], lr: float) -> None:
        self.make, self.lr = make, lr
        self.parameters = list(parameters)
        self.optimizer = self._made(self.parameters)
        self._place = self._current_place()
        self._try_step()

    def _made(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        own_lr = isinstance(self.make, partial) and "lr" in self.make.keywords
        try:
            made = self.make(parameters, **({} if own_lr else {"lr": self.lr}))
        except (TypeError, ValueError) as error:
            raise UsageError(f"the optimizer cannot be made: {error}") from error
        if not isinstance(made, torch.optim.Optimizer):
            raise UsageError(f"optimizer must make a torch.optim.Optimizer, not {type(made).__name__}")
        self._lr = [float(group["lr"]) for group in made.param_groups]
        return made

    def _try_step(self) -> None:
        """Refuse an optimizer that cannot step along a gradient alone, by a step on parameters of the same shapes."""
        others = [torch.zeros_like(p, requires_grad=True) for p in self.parameters]
        trial = self._made([*others])
        for p in others:
            p.grad = torch.zeros_like(p)
        try:
            trial.step()
        except (TypeError, RuntimeError, ValueError, NotImplementedError) as error:
            raise UsageError(
                f"{type(trial).__name__} cannot make the updates of a learner, which hands over dense gradients and "
                f"nothing else: {error}"
            ) from error

    def _current_place(self) -> tuple[torch.device, torch.dtype]:
        return self.parameters[0].device, self.parameters[0].dtype

    @torch.no_grad()
    def __call__(self, grads: Iterable[Tensor | None], scale: float = 1.0) -> None:
        """Take one step along these gradients, at ``scale`` times the learning rate; ``.grad`` is left as it was."""
        own = [p.grad for p in self.parameters]
        try:
            for p, grad in zip(self.parameters, grads, strict=True):
                p.grad = grad
            for group, lr in zip(self.optimizer.param_groups, self._lr, strict=True):
                group["lr"] = lr * scale
            self.optimizer.step()
        finally:
            for p, grad in zip(self.parameters, own, strict=True):
                p.grad = grad

    def to_parameters(self) -> None:
        """Move what it remembers to where the parameters are, in their type."""
        if self._place != (place := self._current_place()):
            self._place = place
            self.load_state_dict(self.state_dict())

    def tensors(self) -> list[Tensor]:
        """What it remembers, as it is: to be copied before a step that may fail."""
        return [value for kept in self.optimizer.state.values() for value in kept.values() if isinstance(value, Tensor)]

    def remembered(self) -> set[tuple[int, str]]:
        """What there is for which parameter, to be compared with later."""
        kept = self.optimizer.state
        return {(number, name) for number, p in enumerate(self.parameters) if p in kept for name in kept[p]}

    def drop_all_but(self, remembered: set[tuple[int, str]]) -> None:
        """Remember nothing that came later than this."""
        for number, name in self.remembered() - remembered:
            p = self.parameters[number]
            del self.optimizer.state[p][name]
            if not self.optimizer.state[p]:
                del self.optimizer.state[p]

    def state_dict(self) -> dict[str, Tensor]:
        """What it remembers, by the number of the parameter and by name."""
        state = self.optimizer.state_dict()["state"]
        return {
            f"{number}.{name}": torch.as_tensor(value)
            for number, kept in state.items()
            for name, value in kept.items()
            if value is not None
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Remember this instead."""
        kept: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            number, _, key = name.partition(".")
            kept.setdefault(int(number), {})[key] = value
        if any(not 0 <= number < len(self.parameters) for number in kept):
            raise UsageError("the optimizer in this state has other parameters: it is another learner's")
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": kept, "param_groups": groups})

    def follow(self, parameters: Iterable[Tensor]) -> None:
        """Change these from now on: the same parameters, some with more rows, of which nothing is remembered yet."""
        before, state = self.parameters, self.state_dict()
        self.parameters = list(parameters)
        self.optimizer = self._made(self.parameters)
        shapes = {str(n): (old.shape, new) for n, (old, new) in enumerate(zip(before, self.parameters, strict=True))}
        for name, value in state.items():
            old, new = shapes[name.partition(".")[0]]
            if value.ndim == new.ndim and new.shape != old and len(value) == old[0]:  # else it is not kept by row
                state[name] = torch.cat([value, value.new_zeros((len(new) - len(value), *value.shape[1:]))])
        self.load_state_dict(state)
