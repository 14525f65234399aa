"""Count the examples passed through a model, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

_recorders: list[Callable[[nn.Module, Tensor], None]] = []
"""Functions of the active counters, called with a model and its output by :func:`record_forward`."""

_counters: list[tuple[nn.Module, PassCounter]] = []
"""The active counters themselves, updated by :func:`record_pass`."""

_times = 1
"""The factor by which passes are counted at the moment."""


@contextmanager
def counted_as(times: int) -> Iterator[None]:
    """Count every pass inside the block ``times`` times: it is captured, and will be replayed that often."""
    global _times
    before, _times = _times, times
    try:
        yield
    finally:
        _times = before


def record_forward(model: nn.Module, output: Tensor) -> None:
    """Record a forward pass with this output that was computed without calling the model."""
    for record in _recorders:
        record(model, output)


def record_pass(model: nn.Module, forward: int, backward: int) -> None:
    """Record passes of this many examples that were computed without calling the model or autograd."""
    for model_of, counter in _counters:
        if model_of is model:
            counter.forward += _times * forward
            counter.backward += _times * backward


@dataclass
class PassCounter:
    """Number of examples in the forward and backward passes of a model.

    The model is observed by hooks, at its own parameters or at others; neither it nor its results are changed. A batch
    counts as one backward pass for every call of autograd that reaches the output of any layer, whether for the
    gradient of parameters or of inputs.

    Examples
    --------
    >>> model, passes = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2)), PassCounter()
    >>> with passes.counting(model):
    ...     loss = model(torch.ones(4, 2)).sum()
    ...     with torch.no_grad():
    ...         scores = model(torch.ones(5, 2))
    ...     loss.backward()
    >>> passes
    PassCounter(forward=9, backward=4)
    """

    forward: int = 0
    backward: int = 0

    def add(self, other: PassCounter, times: int = 1) -> None:
        """Add the counts of another counter, multiplied by ``times``."""
        self.forward += times * other.forward
        self.backward += times * other.backward

    @contextmanager
    def counting(self, model: nn.Module) -> Iterator[None]:
        """Count the passes of the model inside the block."""
        backward_hook: Callable[[Tensor], None] | None = None  # of the current pass

        def before_forward(module: nn.Module, inputs: Any) -> None:
            nonlocal backward_hook
            if module is model:
                self.forward += _times * len(inputs[0])
                backward_hook = self._backward_hook(_times * len(inputs[0]))

        def after_forward(module: nn.Module, inputs: Any, output: Any) -> None:
            nonlocal backward_hook
            if backward_hook is not None and isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(backward_hook)  # type: ignore[no-untyped-call]
            if module is model:
                backward_hook = None

        def record(module: nn.Module, output: Tensor) -> None:
            before_forward(module, (output,))
            after_forward(module, (), output)

        # global hooks: with its own hooks, the model would no longer count as made of known layers
        hooks = register_module_forward_pre_hook(before_forward), register_module_forward_hook(after_forward)
        active = model, self
        _recorders.append(record)
        _counters.append(active)
        try:
            yield
        finally:
            _recorders.remove(record)
            _counters[:] = [entry for entry in _counters if entry is not active]
            for hook in hooks:
                hook.remove()

    def _backward_hook(self, examples: int) -> Callable[[Tensor], None]:
        last_call = None

        def count_once_per_call(grad: Tensor) -> None:
            nonlocal last_call
            if (call := torch._C._current_graph_task_id()) != last_call:
                last_call = call
                self.backward += examples

        return count_once_per_call
