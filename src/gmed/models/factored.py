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

from gmed.models.known_layers import in_a_row
from gmed.models.passes import went_through

Slope = Mapping[str, Tensor]
"""A gradient by the names of parameters."""


class Factors(NamedTuple):
    """Of a linear layer and a batch: what it read, and what its output received from the loss. A row for each example.

    The gradient of the weight is receivedᵀ read, that of the bias the sum of what was received.
    """

    read: Tensor
    received: Tensor

    def joined(self, other: Factors) -> Factors:
        """Those of the sum of both losses."""
        return Factors(torch.cat([self.read, other.read]), torch.cat([self.received, other.received]))


class Chain:
    """Layers in a row, of which only linear ones learn, and how a batch goes through them.

    Parameters
    ----------
    model
        What the layers are those of.
    layers
        Each with its name, in order.

    Examples
    --------
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> loss, slope = Chain.of(model).gradient(torch.ones(5, 2), torch.sum)
    >>> model(torch.ones(5, 2)).sum().backward()
    >>> all(torch.allclose(slope[name], p.grad) for name, p in model.named_parameters())
    True
    >>> Chain.of(nn.Conv2d(1, 1, 1)) is None
    True
    """

    def __init__(self, model: nn.Module, layers: dict[str, nn.Module]) -> None:
        self.model, self.layers = model, layers
        self.linear = {name: layer for name, layer in layers.items() if isinstance(layer, nn.Linear)}

    @classmethod
    def of(cls, model: nn.Module) -> Chain | None:
        """A model as a chain, if it is one."""
        layers = in_a_row(model)
        if layers is None:
            return None
        made = cls(model, layers)
        learned = [p for layer in made.linear.values() for p in (layer.weight, layer.bias) if p is not None]
        others = [layer for layer in layers.values() if not isinstance(layer, nn.Linear)]
        plain = not any(layer._parameters or getattr(layer, "inplace", False) for layer in others)
        each_once = len({id(p) for p in learned}) == len(learned)
        return made if learned and each_once and plain and all(p.requires_grad for p in learned) else None

    def is_wide(self, examples: int) -> bool:
        """Whether factors with so many rows are thin beside its weights, and on a CPU, where writing is what costs.

        >>> Chain.of(nn.Linear(784, 400)).is_wide(10), Chain.of(nn.Linear(4, 3)).is_wide(10)
        (True, False)
        """
        weights = [layer.weight for layer in self.linear.values()]
        thin = 4 * examples * sum(sum(w.shape) for w in weights) <= sum(w.numel() for w in weights)
        return thin and all(w.is_cpu for w in weights)

    def output(self, x: Tensor, compute: Callable[[str, nn.Linear, Tensor], Tensor]) -> Tensor:
        """What it gives, where a linear layer gives what ``compute`` makes of its name, itself and what it reads."""
        h = x
        for name, layer in self.layers.items():
            h = compute(name, layer, h) if isinstance(layer, nn.Linear) else layer(h)
        went_through(self.model, x, h)
        return h

    def gradient(self, x: Tensor, loss_of: Callable[[Tensor], Tensor]) -> tuple[Tensor, FactoredGradient]:
        """The loss of the output for x, and its gradient."""
        read: list[Tensor] = []
        given: list[Tensor] = []

        def note(name: str, layer: nn.Linear, h: Tensor) -> Tensor:
            read.append(h.detach().flatten(0, -2))
            given.append(linear(h, layer.weight, layer.bias))
            return given[-1]

        loss = loss_of(self.output(x, note))
        received = [slope.flatten(0, -2) for slope in torch.autograd.grad(loss, given)]
        factors = {name: Factors(*pair) for name, *pair in zip(self.linear, read, received, strict=True)}
        return loss.detach(), FactoredGradient(self, factors)


class FactoredGradient(Slope):
    """The gradient of a loss by the parameters of a chain; multiplied out for whoever asks for one by name.

    Examples
    --------
    >>> chain = Chain.of(nn.Linear(2, 1, bias=False))
    >>> slope = FactoredGradient(chain, {"": Factors(torch.tensor([[1.0, 2.0]]), torch.tensor([[3.0]]))})
    >>> slope["weight"]
    tensor([[3., 6.]])
    >>> (slope + slope)["weight"]
    tensor([[ 6., 12.]])
    """

    def __init__(self, chain: Chain, factors: Mapping[str, Factors]) -> None:
        self.chain, self.factors = chain, factors

    def __getitem__(self, name: str) -> Tensor:
        layer, _, kind = name.rpartition(".")
        read, received = self.factors[layer]
        if kind not in ("weight", "bias"):
            raise KeyError(name)
        return received.t() @ read if kind == "weight" else received.sum(0)

    def __iter__(self) -> Iterator[str]:
        for layer, module in self.chain.linear.items():
            for kind, _ in module.named_parameters(layer, recurse=False):
                yield kind

    def __len__(self) -> int:
        return len(list(iter(self)))

    def __add__(self, other: FactoredGradient) -> FactoredGradient:
        joined = {layer: factors.joined(other.factors[layer]) for layer, factors in self.factors.items()}
        return FactoredGradient(self.chain, joined)

    def bounds(self) -> list[Tensor]:
        """For each layer a number that no entry of the gradient of its weight exceeds."""
        norms = torch._foreach_norm([part for factors in self.factors.values() for part in factors])
        return [read * received for read, received in zip(norms[::2], norms[1::2], strict=True)]

    @torch.no_grad()
    def descend(self, step: float) -> None:
        """Move the chain's parameters against it."""
        for name, layer in self.chain.linear.items():
            read, received = self.factors[name]
            layer.weight.addmm_(received.t(), read, alpha=-step)
            if layer.bias is not None:
                layer.bias.sub_(received.sum(0), alpha=step)

    def outputs_around(self, x: Tensor, step: float) -> tuple[Tensor, Tensor]:
        """What the chain gives for x, and what it would give had its parameters been moved against this."""
        moved = x.new_zeros(2, len(x))
        moved[1] = step

        def compute(name: str, layer: nn.Linear, h: Tensor) -> Tensor:
            read, received = self.factors[name]
            likeness = h @ read.t() if layer.bias is None else h @ read.t() + 1
            weighed = likeness * moved.view(-1, *[1] * (h.ndim - 1))
            return linear(h, layer.weight, layer.bias) - weighed @ received

        before, after = self.chain.output(torch.cat([x, x]), compute).chunk(2)
        return before, after


def sum_of(first: Slope, second: Slope) -> Slope:
    """The sum of two gradients; the first must not be used any more."""
    if isinstance(first, FactoredGradient) and isinstance(second, FactoredGradient):
        return first + second
    torch._foreach_add_(list(first.values()), [second[name] for name in first])
    return first


def descend(parameters: Mapping[str, Tensor], slope: Slope, step: float) -> None:
    """Move parameters against their gradient."""
    if isinstance(slope, FactoredGradient):
        slope.descend(step)
    else:
        torch._foreach_sub_(list(parameters.values()), [slope[name] for name in parameters], alpha=step)


def entries_of(slope: Slope) -> Iterator[Tensor]:
    """Numbers that are all finite only if a gradient is, computed as they are asked for."""
    yield from slope.bounds() if isinstance(slope, FactoredGradient) else slope.values()
