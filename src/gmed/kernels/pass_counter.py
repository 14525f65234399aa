"""Count the examples that go through a model, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

_counting: list[Callable[[nn.Module, Tensor], None]] = []
"""Those who count what goes through models just now."""


_times = 1
"""For how many passes one stands just now."""


@contextmanager
def counted_as(times: int) -> Iterator[None]:
    """Inside, every pass counts so many times: it is captured, and will be launched as often."""
    global _times
    before, _times = _times, times
    try:
        yield
    finally:
        _times = before


def record_forward(model: nn.Module, output: Tensor) -> None:
    """Say that a batch with this output went through a model, though the model itself was not called."""
    for noted in _counting:
        noted(model, output)


@dataclass
class PassCounter:
    """How many examples have gone through a model: forward, and back as gradients.

    A model is watched from outside, at its own parameters or at others; neither it nor what it computes is changed.
    A batch counts as gone back once for every call of autograd that reaches the output of any of its layers, be it
    for the gradient of parameters or of inputs.

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
        """Count so many times what another has counted."""
        self.forward += times * other.forward
        self.backward += times * other.backward

    @contextmanager
    def counting(self, model: nn.Module) -> Iterator[None]:
        """Inside, what goes through the model is counted."""
        on_way_back: Callable[[Tensor], None] | None = None  # of the pass under way

        def begins(module: nn.Module, inputs: Any) -> None:
            nonlocal on_way_back
            if module is model:
                self.forward += _times * len(inputs[0])
                on_way_back = self._backward_hook(_times * len(inputs[0]))

        def ends(module: nn.Module, inputs: Any, output: Any) -> None:
            nonlocal on_way_back
            if on_way_back is not None and isinstance(output, Tensor) and output.requires_grad:
                output.register_hook(on_way_back)  # type: ignore[no-untyped-call]
            if module is model:
                on_way_back = None

        def noted(module: nn.Module, output: Tensor) -> None:
            begins(module, (output,))
            ends(module, (), output)

        # hooks of all modules: those of a model's own would make it one of unknown layers
        hooks = register_module_forward_pre_hook(begins), register_module_forward_hook(ends)
        _counting.append(noted)
        try:
            yield
        finally:
            _counting.remove(noted)
            for hook in hooks:
                hook.remove()

    def _backward_hook(self, examples: int) -> Callable[[Tensor], None]:
        latest = None

        def gradient_arrived(grads: Tensor) -> None:
            nonlocal latest
            if (call := torch._C._current_graph_task_id()) != latest:
                latest = call
                self.backward += examples

        return gradient_arrived
