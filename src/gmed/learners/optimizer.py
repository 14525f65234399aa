"""Any optimizer of torch as part of a learner: its state is saved as tensors, and it grows with the model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from gmed.errors import UsageError

MakeOptimizer = Callable[..., torch.optim.Optimizer]
"""A class of ``torch.optim``, or a ``functools.partial`` of one with its options."""


class OptimizerStep:
    """Update parameters with an optimizer of torch, from gradients passed as arguments.

    Parameters
    ----------
    make
        Called with the parameters and ``lr``; a partial that sets ``lr`` itself keeps that value.
    parameters
        The parameters to update.
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
        self.optimizer = self._create(self.parameters)
        self._device_and_dtype = self._current_device_and_dtype()
        self._try_step()

    def _create(self, parameters: list[Tensor]) -> torch.optim.Optimizer:
        sets_lr = isinstance(self.make, partial) and "lr" in self.make.keywords
        try:
            optimizer = self.make(parameters, **({} if sets_lr else {"lr": self.lr}))
        except (TypeError, ValueError) as error:
            raise UsageError(f"the optimizer cannot be created: {error}") from error
        if not isinstance(optimizer, torch.optim.Optimizer):
            raise UsageError(f"optimizer must create a torch.optim.Optimizer, not {type(optimizer).__name__}")
        self._lr = [float(group["lr"]) for group in optimizer.param_groups]
        return optimizer

    def _try_step(self) -> None:
        """Raise an error if the optimizer cannot step from gradients alone, after a trial on copies of zeros."""
        copies = [torch.zeros_like(p, requires_grad=True) for p in self.parameters]
        trial = self._create([*copies])
        for p in copies:
            p.grad = torch.zeros_like(p)
        try:
            trial.step()
        except (TypeError, RuntimeError, ValueError, NotImplementedError) as error:
            raise UsageError(
                f"{type(trial).__name__} cannot be the optimizer of a learner, which passes it dense gradients and "
                f"nothing else: {error}"
            ) from error

    def _current_device_and_dtype(self) -> tuple[torch.device, torch.dtype]:
        return self.parameters[0].device, self.parameters[0].dtype

    @torch.no_grad()
    def __call__(self, grads: Iterable[Tensor | None], scale: float = 1.0) -> None:
        """Take one step with these gradients, at ``scale`` times the learning rate; ``.grad`` is not changed."""
        saved = [p.grad for p in self.parameters]
        try:
            for p, grad in zip(self.parameters, grads, strict=True):
                p.grad = grad
            for group, lr in zip(self.optimizer.param_groups, self._lr, strict=True):
                group["lr"] = lr * scale
            self.optimizer.step()
        finally:
            for p, grad in zip(self.parameters, saved, strict=True):
                p.grad = grad

    def to_parameters(self) -> None:
        """Move the optimizer's state to the device and dtype of the parameters."""
        if self._device_and_dtype != (current := self._current_device_and_dtype()):
            self._device_and_dtype = current
            self.load_state_dict(self.state_dict())

    def tensors(self) -> list[Tensor]:
        """Return the tensors of the state, not copied; they are copied before a step that may fail."""
        states = self.optimizer.state.values()
        return [value for state in states for value in state.values() if isinstance(value, Tensor)]

    def state_keys(self) -> set[tuple[int, str]]:
        """Return the index of a parameter and the name of every value in the state."""
        state = self.optimizer.state
        return {(number, name) for number, p in enumerate(self.parameters) if p in state for name in state[p]}

    def drop_all_but(self, keys: set[tuple[int, str]]) -> None:
        """Drop all values of the state except those with these keys."""
        for number, name in self.state_keys() - keys:
            p = self.parameters[number]
            del self.optimizer.state[p][name]
            if not self.optimizer.state[p]:
                del self.optimizer.state[p]

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state by the index of the parameter and by name."""
        states = self.optimizer.state_dict()["state"]
        return {
            f"{number}.{name}": torch.as_tensor(value)
            for number, state in states.items()
            for name, value in state.items()
            if value is not None
        }

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Restore the state returned by :meth:`state_dict`."""
        states: dict[int, dict[str, Tensor]] = {}
        for name, value in state.items():
            number, _, key = name.partition(".")
            states.setdefault(int(number), {})[key] = value
        if any(not 0 <= number < len(self.parameters) for number in states):
            raise UsageError("the optimizer in this state has other parameters; it was saved by another learner")
        groups = self.optimizer.state_dict()["param_groups"]
        self.optimizer.load_state_dict({"state": states, "param_groups": groups})

    def follow(self, parameters: Iterable[Tensor]) -> None:
        """Replace the parameters by the same ones, some with new rows; the state of new rows is zero."""
        before, state = self.parameters, self.state_dict()
        self.parameters = list(parameters)
        self.optimizer = self._create(self.parameters)
        shapes = {str(n): (old.shape, new) for n, (old, new) in enumerate(zip(before, self.parameters, strict=True))}
        for name, value in state.items():
            old, new = shapes[name.partition(".")[0]]
            if value.ndim == new.ndim and new.shape != old and len(value) == old[0]:  # the value has a row per row
                state[name] = torch.cat([value, value.new_zeros((len(new) - len(value), *value.shape[1:]))])
        self.load_state_dict(state)
