"""Low-rank gradients of linear layers, stored as factors.

The gradient of a weight for n examples has rank n. With ten examples its two factors are small, and neither the
gradient nor the weights one step ahead need be computed explicitly: x (W - τ δᵀa)ᵀ = x Wᵀ - τ (x aᵀ) δ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from gmed.kernels.pass_counter import record_forward
from gmed.models.introspection import flatten_sequential

Gradient = Mapping[str, Tensor]
"""A gradient, by the names of the parameters."""


class OuterFactors(NamedTuple):
    """The input of a linear layer and the gradient of its output, a row for each example.

    The gradient of the weight is grad_outputᵀ input, that of the bias the sum of grad_output.
    """

    input: Tensor
    grad_output: Tensor

    def cat(self, other: OuterFactors) -> OuterFactors:
        """Return the factors for the sum of both losses."""
        return OuterFactors(torch.cat([self.input, other.input]), torch.cat([self.grad_output, other.grad_output]))


class LinearChain:
    """A model that is a sequence of layers, of which only linear ones have parameters.

    Attributes
    ----------
    layers
        The layers by name, in order.
    linear
        The linear layers by name.
    param_owner
        For every parameter the name of its layer, and whether it is the ``weight`` or the ``bias``.

    Examples
    --------
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> loss, grads = LinearChain.of(model).gradient(torch.ones(5, 2), torch.sum)
    >>> model(torch.ones(5, 2)).sum().backward()
    >>> all(torch.allclose(grads[name], p.grad) for name, p in model.named_parameters())
    True
    >>> LinearChain.of(nn.Conv2d(1, 1, 1)) is None
    True
    """

    def __init__(self, model: nn.Module, layers: Mapping[str, nn.Module]) -> None:
        self.model, self.layers = model, layers
        self.linear = {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear)}
        self.param_owner = {
            f"{name}.{kind}" if name else kind: (name, kind)
            for name, layer in self.linear.items()
            for kind in ("weight", "bias")
            if layer._parameters.get(kind) is not None
        }

    @classmethod
    def of(cls, model: nn.Module) -> LinearChain | None:
        """Return a model as a chain, or ``None`` if it is not one or has hooks on gradients."""
        layers = flatten_sequential(model)
        if layers is None:
            return None
        chain, parameters = cls(model, layers), dict(model.named_parameters())
        no_hooks = all(p.requires_grad and not p._backward_hooks for p in parameters.values())
        in_place = any(getattr(layer, "inplace", False) for layer in layers.values())
        all_linear = bool(parameters) and list(parameters) == list(chain.param_owner)
        return chain if all_linear and no_hooks and not in_place else None

    def is_beneficial(self, x: Tensor) -> bool:
        """Return whether factors save time: they do on a CPU, where memory is slow, if much smaller than the weights.

        >>> large, small = LinearChain.of(nn.Linear(784, 400)), LinearChain.of(nn.Linear(4, 3))
        >>> large.is_beneficial(torch.rand(10, 784)), small.is_beneficial(torch.rand(10, 4))
        (True, False)
        """
        weights = [layer.weight for layer in self.linear.values()]
        small = 4 * len(x) * sum(sum(w.shape) for w in weights) <= sum(w.numel() for w in weights)
        supported = all(w.is_cpu and w.dtype in (torch.float32, torch.float64) for w in weights)
        return small and supported and self._reads_rows(x.ndim) and not torch.is_autocast_enabled("cpu")

    def _reads_rows(self, dimensions: int) -> bool:
        """Return whether the input of every linear layer has a row for each example."""
        for layer in self.layers.values():
            if isinstance(layer, nn.Flatten):
                dimensions -= layer.end_dim % dimensions - layer.start_dim % dimensions
            elif isinstance(layer, nn.Linear) and dimensions != 2:
                return False
        return True

    def output(self, x: Tensor, compute: Callable[[str, nn.Linear, Tensor], Tensor]) -> Tensor:
        """Return the output, with ``compute(name, layer, input)`` in place of each linear layer."""
        h = x
        for name, layer in self.layers.items():
            h = compute(name, layer, h) if isinstance(layer, nn.Linear) else layer(h)
        record_forward(self.model, h)
        return h

    def is_bounded(self, factors: Mapping[str, OuterFactors]) -> bool:
        """Return whether norms of the factors of a gradient alone show that every entry is finite."""
        inputs, grads = zip(*factors.values(), strict=True)
        norms: list[float] = torch.stack(torch._foreach_norm([*inputs, *grads])).tolist()
        rows, maximum = inputs[0].shape[0], torch.finfo(inputs[0].dtype).max
        pairs = zip(norms, norms[len(inputs) :], strict=False)
        return all((input_norm + rows) * grad_norm <= maximum for input_norm, grad_norm in pairs)

    @torch.no_grad()
    def sgd_step(self, factors: Mapping[str, OuterFactors], parameters: Mapping[str, Tensor], step: float) -> None:
        """Take a step of this size against a gradient, in place, with some or all parameters of the model."""
        for name, p in parameters.items():
            layer, kind = self.param_owner[name]
            input, grad_output = factors[layer]
            if kind == "weight":
                p.addmm_(grad_output.t(), input, alpha=-step)
            else:
                p.addmv_(grad_output.t(), _ones(grad_output.shape[0], p.dtype), alpha=-step)

    def gradient(self, x: Tensor, loss_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, LowRankGradient]:
        """Return the loss of the output for x, and its gradient. The loss must depend on the output alone."""
        inputs: list[Tensor] = []
        outputs: list[Tensor] = []

        def record(name: str, layer: nn.Linear, h: Tensor) -> Tensor:
            inputs.append(h.detach())
            outputs.append(linear(h, layer.weight, layer.bias))
            return outputs[-1]

        loss = loss_of(self.output(x, record))
        grad_outputs = torch.autograd.grad(loss, outputs)
        factors = {name: OuterFactors(*pair) for name, *pair in zip(self.linear, inputs, grad_outputs, strict=True)}
        return loss.detach(), LowRankGradient(self, factors)


class LowRankGradient(Gradient):
    """The gradient of a loss with respect to the parameters of a chain; it is multiplied out on access by name.

    Examples
    --------
    >>> chain = LinearChain.of(nn.Linear(2, 1, bias=False))
    >>> grads = LowRankGradient(chain, {"": OuterFactors(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]]))})
    >>> grads["weight"]
    tensor([[3., 6.]])
    >>> (grads + grads)["weight"]
    tensor([[ 6., 12.]])
    """

    def __init__(self, chain: LinearChain, factors: Mapping[str, OuterFactors]) -> None:
        self.chain, self.factors = chain, factors

    def __getitem__(self, name: str) -> Tensor:
        layer, kind = self.chain.param_owner[name]
        input, grad_output = self.factors[layer]
        return grad_output.t() @ input if kind == "weight" else grad_output.sum(0)

    def __iter__(self) -> Iterator[str]:
        return iter(self.chain.param_owner)

    def __len__(self) -> int:
        return len(self.chain.param_owner)

    def __add__(self, other: LowRankGradient) -> LowRankGradient:
        joined = {layer: factors.cat(other.factors[layer]) for layer, factors in self.factors.items()}
        return LowRankGradient(self.chain, joined)

    def outputs(self, x: Tensor, *steps: float) -> tuple[Tensor, ...]:
        """Return the output for x after a step of each of these sizes against the gradient."""
        sizes = x.new_tensor(steps)[:, None, None]

        def compute(name: str, layer: nn.Linear, h: Tensor) -> Tensor:
            input, grad_output = self.factors[name]
            gram = h @ input.t() if layer.bias is None else h @ input.t() + 1
            before, change = linear(h, layer.weight, layer.bias), gram @ grad_output
            shape = (-1, len(x), layer.out_features)  # the input of the first layer is the same for all steps
            return (before.view(shape) - sizes * change.view(shape)).flatten(0, 1)

        return torch.split(self.chain.output(x, compute), len(x))


def add_grads(first: Gradient, second: Gradient) -> Gradient:
    """Return the sum of two gradients; the first must not be used afterwards."""
    if type(first) is LowRankGradient:
        if type(second) is LowRankGradient:
            return first + second
        first = dict(first)
    torch._foreach_add_(list(first.values()), [second[name] for name in first])
    return first


def sgd_step(parameters: Mapping[str, Tensor], grads: Gradient, step: float) -> None:
    """Take a step of this size against a gradient, in place."""
    if type(grads) is LowRankGradient:  # faster than isinstance with an abstract class
        grads.chain.sgd_step(grads.factors, parameters, step)
    else:
        torch._foreach_sub_(list(parameters.values()), [grads[name] for name in parameters], alpha=step)


@cache
def _ones(count: int, dtype: torch.dtype) -> Tensor:
    return torch.ones(count, dtype=dtype)


def finite_checks(grads: Gradient) -> Iterator[Tensor]:
    """Yield tensors that are finite if and only if a gradient is, each computed on demand; none if it has a bound."""
    if type(grads) is not LowRankGradient or not grads.chain.is_bounded(grads.factors):
        yield from grads.values()
