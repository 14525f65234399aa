"""Gradients of linear layers, kept as the factors they are products of.

Of n examples the gradient of a weight has rank n. With ten examples its two factors are thin, and neither the gradient
nor the weights a step ahead need ever be written out: x (W - τ δᵀa)ᵀ = x Wᵀ - τ (x aᵀ) δ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from gmed.kernels.pass_counter import record_forward
from gmed.models.introspection import flatten_sequential

Gradient = Mapping[str, Tensor]
"""A gradient by the names of parameters."""


class OuterFactors(NamedTuple):
    """Of a linear layer and a batch: what it read, and what its output received from the loss. A row for each example.

    The gradient of the weight is receivedᵀ read, that of the bias the sum of what was received.
    """

    read: Tensor
    received: Tensor

    def cat(self, other: OuterFactors) -> OuterFactors:
        """Those of the sum of both losses."""
        return OuterFactors(torch.cat([self.read, other.read]), torch.cat([self.received, other.received]))

    def norm_bound(self) -> Tensor:
        """A number that no entry of the gradients exceeds."""
        read, received = torch._foreach_norm(list(self))
        return (read + len(self.read)) * received


class LinearChain:
    """Layers in a row, of which only linear ones learn, and how a batch goes through them.

    Attributes
    ----------
    layers
        Each with its name, in order.
    linear
        Those that are linear.
    owners
        For every parameter its layer's name, and whether it is the ``weight`` or the ``bias``.

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
        """A model as a chain, if it is one and nobody listens to its gradients."""
        layers = flatten_sequential(model)
        if layers is None:
            return None
        made, parameters = cls(model, layers), dict(model.named_parameters())
        quiet = all(p.requires_grad and not p._backward_hooks for p in parameters.values())
        in_place = any(getattr(layer, "inplace", False) for layer in layers.values())
        return made if parameters and list(parameters) == list(made.param_owner) and quiet and not in_place else None

    def is_beneficial(self, x: Tensor) -> bool:
        """Whether factors are thin beside its weights for such a batch, and on a CPU, where writing is what costs.

        >>> large, small = LinearChain.of(nn.Linear(784, 400)), LinearChain.of(nn.Linear(4, 3))
        >>> large.is_beneficial(torch.rand(10, 784)), small.is_beneficial(torch.rand(10, 4))
        (True, False)
        """
        weights = [layer.weight for layer in self.linear.values()]
        thin = 4 * len(x) * sum(sum(w.shape) for w in weights) <= sum(w.numel() for w in weights)
        exact = all(w.is_cpu and w.dtype in (torch.float32, torch.float64) for w in weights)
        return thin and exact and self._reads_rows(x.ndim) and not torch.is_autocast_enabled("cpu")

    def _reads_rows(self, dimensions: int) -> bool:
        """Whether every linear layer reads a row for each example."""
        for layer in self.layers.values():
            if isinstance(layer, nn.Flatten):
                dimensions -= layer.end_dim % dimensions - layer.start_dim % dimensions
            elif isinstance(layer, nn.Linear) and dimensions != 2:
                return False
        return True

    def output(self, x: Tensor, compute: Callable[[str, nn.Linear, Tensor], Tensor]) -> Tensor:
        """What it gives, where a linear layer gives what ``compute`` makes of its name, itself and what it reads."""
        h = x
        for name, layer in self.layers.items():
            h = compute(name, layer, h) if isinstance(layer, nn.Linear) else layer(h)
        record_forward(self.model, h)
        return h

    def gradient(self, x: Tensor, loss_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, LowRankGradient]:
        """The loss of the output for x, and its gradient. The loss must depend on the output alone and leave it be."""
        read: list[Tensor] = []
        given: list[Tensor] = []

        def note(name: str, layer: nn.Linear, h: Tensor) -> Tensor:
            read.append(h.detach())
            given.append(linear(h, layer.weight, layer.bias))
            return given[-1]

        loss = loss_of(self.output(x, note))
        received = torch.autograd.grad(loss, given)
        factors = {name: OuterFactors(*pair) for name, *pair in zip(self.linear, read, received, strict=True)}
        return loss.detach(), LowRankGradient(self, factors)


class LowRankGradient(Gradient):
    """The gradient of a loss by the parameters of a chain; multiplied out for whoever asks for one by name.

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
        read, received = self.factors[layer]
        return received.t() @ read if kind == "weight" else received.sum(0)

    def __iter__(self) -> Iterator[str]:
        return iter(self.chain.param_owner)

    def __len__(self) -> int:
        return len(self.chain.param_owner)

    def __add__(self, other: LowRankGradient) -> LowRankGradient:
        joined = {layer: factors.cat(other.factors[layer]) for layer, factors in self.factors.items()}
        return LowRankGradient(self.chain, joined)

    @torch.no_grad()
    def sgd_step(self, parameters: Mapping[str, Tensor], step: float) -> None:
        """Move parameters against it."""
        for name, p in parameters.items():
            layer, kind = self.chain.param_owner[name]
            read, received = self.factors[layer]
            if kind == "weight":
                p.addmm_(received.t(), read, alpha=-step)
            else:
                p.sub_(received.sum(0), alpha=step)

    def outputs(self, x: Tensor, *steps: float) -> tuple[Tensor, ...]:
        """What the chain would give for x, had its parameters been moved against this by each of these step sizes."""
        sizes = x.new_tensor(steps)[:, None, None]

        def compute(name: str, layer: nn.Linear, h: Tensor) -> Tensor:
            read, received = self.factors[name]
            gram = h @ read.t() if layer.bias is None else h @ read.t() + 1
            given, moves = linear(h, layer.weight, layer.bias), gram @ received
            shape = (-1, len(x), layer.out_features)  # what the first layer gives is one for all steps
            return (given.view(shape) - sizes * moves.view(shape)).flatten(0, 1)

        return torch.split(self.chain.output(x, compute), len(x))


def add_grads(first: Gradient, second: Gradient) -> Gradient:
    """The sum of two gradients; the first must not be used any more."""
    if type(first) is LowRankGradient:
        if type(second) is LowRankGradient:
            return first + second
        first = dict(first)
    torch._foreach_add_(list(first.values()), [second[name] for name in first])
    return first


def sgd_step(parameters: Mapping[str, Tensor], grads: Gradient, step: float) -> None:
    """Move parameters against their gradient."""
    if type(grads) is LowRankGradient:  # quicker than isinstance, which asks an abstract class
        grads.sgd_step(parameters, step)
    else:
        torch._foreach_sub_(list(parameters.values()), [grads[name] for name in parameters], alpha=step)


def finite_checks(grads: Gradient) -> Iterator[Tensor]:
    """Tensors that are finite if and only if a gradient is, computed as they are asked for."""
    if type(grads) is LowRankGradient:
        bounds = [factors.norm_bound() for factors in grads.factors.values()]
        if torch.isfinite(torch.stack(bounds)).all():
            yield from bounds
            return
    yield from grads.values()
