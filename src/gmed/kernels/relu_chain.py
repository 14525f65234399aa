"""Linear layers and ReLU under cross-entropy, differentiated by hand.

A step of a small network is matrix products and many small operations; autograd and the calls of modules are a third
of it. For this one kind of model both passes are written out: the same mathematics in fewer operations, with oneDNN's
products where they are faster than those of the BLAS that torch uses.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Self

import torch
from torch import Tensor, nn

from gmed.kernels.low_rank import LinearChain, LowRankGradient, OuterFactors
from gmed.kernels.pass_counter import record_pass
from gmed.models.introspection import is_unmodified

MAX_ROWS = 64
"""Maximum number of rows of a factored gradient: with more, explicit look-ahead weights are cheaper."""

MIN_PRODUCT = 10**6
"""Number of multiplications above which oneDNN is faster for a product, despite its overhead per call."""

_aten = torch.ops.aten


class ReLUChain(LinearChain):
    """A chain of linear layers with ReLU between them, on a CPU, whose loss is the mean cross-entropy.

    Examples
    --------
    >>> from torch.nn.functional import cross_entropy
    >>> model = nn.Sequential(nn.Flatten(), nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 2))
    >>> x, y = torch.rand(5, 2), torch.tensor([0, 1, 1, 0, 1])
    >>> loss, grads = ReLUChain.of(model).loss_and_gradient(x, y)
    >>> cross_entropy(model(x), y).backward()
    >>> all(torch.allclose(grads[name], p.grad) for name, p in model.named_parameters())
    True
    >>> ReLUChain.of(nn.Sequential(nn.Linear(2, 3), nn.Tanh())) is None
    True
    """

    weights: list[Tensor]
    biases: list[Tensor | None]
    rectified: list[bool]

    @classmethod
    def of(cls, model: nn.Module) -> Self | None:
        """Return a model as a chain, or ``None`` if it is anything else, or if hooks observe its passes."""
        layers = {"": model} if type(model) is nn.Linear else _layers(model)
        if layers is None or torch.is_autocast_enabled("cpu"):
            return None
        weights: list[Tensor] = []
        biases: list[Tensor | None] = []
        rectified: list[bool] = []
        for layer in layers.values():
            kind, tensors = type(layer), layer._parameters
            if kind is nn.Linear:
                weights.append(tensors["weight"])  # type: ignore[arg-type]
                biases.append(tensors["bias"])
                rectified.append(False)
                if len(tensors) != 2:
                    return None
            elif kind is nn.ReLU and rectified and not layer.inplace:
                rectified[-1] = True
            elif kind is not nn.Flatten or rectified or layer.start_dim != 1 or layer.end_dim != -1:
                return None
            if not is_unmodified(layer) or layer._buffers:
                return None
        if not weights or not _plain(weights[0], [*weights[1:], *(b for b in biases if b is not None)]):
            return None
        chain = cls(model, layers)
        chain.weights, chain.rectified = [weight.detach() for weight in weights], rectified
        chain.biases = [None if bias is None else bias.detach() for bias in biases]
        return chain

    @property
    def arithmetic(self) -> str:
        """What computes the products: oneDNN the large ones, or torch's BLAS all of them."""
        onednn = self.weights[0].dtype is torch.float32 and _has_onednn()
        return "fused (oneDNN)" if onednn else "fused"

    def accepts(self, x: Tensor, y: Tensor | None = None) -> bool:
        """Return whether inputs are rows of this chain, or become rows when flattened, and targets are labels."""
        weight, flattens = self.weights[0], type(next(iter(self.layers.values()))) is nn.Flatten
        rows = x.ndim == 2 or (x.ndim > 2 and flattens)
        fits = rows and x.numel() == x.shape[0] * weight.shape[1] > 0 and x.dtype is weight.dtype and x.is_cpu
        return fits and (y is None or (y.dtype is torch.int64 and y.shape == x.shape[:1]))

    def logits(self, x: Tensor) -> Tensor:
        """Return the output for x."""
        h = self._forward(x)[-1]
        record_pass(self.model, x.shape[0], 0)
        return h

    def loss_and_gradient(self, x: Tensor, y: Tensor, sizes: Sequence[int] = ()) -> tuple[Tensor, LowRankGradient]:
        """Return the mean loss and its gradient; with ``sizes``, the sum of the mean losses of parts of these sizes."""
        *inputs, output = self._forward(x)
        loss, grad = _cross_entropy(output, y, sizes)
        grads = [self._rectify(-1, grad, output)]
        for layer in range(len(self.weights) - 1, 0, -1):
            grads.append(self._rectify(layer - 1, _product(grads[-1], self.weights[layer].t()), inputs[layer]))
        record_pass(self.model, x.shape[0], x.shape[0])
        factors = {name: OuterFactors(*pair) for name, *pair in zip(self.linear, inputs, reversed(grads), strict=True)}
        return loss, LowRankGradient(self, factors)

    def outputs_ahead(self, x: Tensor, gradient: LowRankGradient, step: float) -> tuple[Tensor, Tensor]:
        """Return the output for x at the parameters and after a step of this size against a gradient."""
        before, after = self._forward_ahead(x, gradient, step)[-1].tensor_split(2)
        record_pass(self.model, 2 * x.shape[0], 0)
        return before, after

    def input_gradient(
        self, x: Tensor, y: Tensor, gradient: LowRankGradient | None, step: float, before: float, after: float
    ) -> Tensor:
        """Return ∇_x of ``before`` ℓ(x; θ) + ``after`` ℓ(x; θ - step gradient); without a gradient, of ``before`` ℓ."""
        n = x.shape[0]
        if gradient is None:
            *inputs, output = self._forward(x)
            _, grad = _cross_entropy(output, y)
            grad.mul_(before)
        else:
            *inputs, output = self._forward_ahead(x, gradient, step)
            _, grad = _cross_entropy(output, torch.cat([y, y]))  # a mean over twice as many
            grad[:n].mul_(2 * before)
            grad[n:].mul_(2 * after)
        grad = self._rectify(-1, grad, output)
        record_pass(self.model, output.shape[0], output.shape[0])
        factors = [] if gradient is None else list(gradient.factors.values())
        for layer in range(len(self.weights) - 1, -1, -1):
            rows = grad
            if layer == 0 and gradient is not None:  # both have the same input
                rows = grad[:n] + grad[n:]
            result = _product(rows, self.weights[layer].t())
            if gradient is not None:
                a, d = factors[layer]
                shifted = result[n:] if layer else result
                shifted.addmm_(grad[n:] @ d.t(), a, alpha=-step)
            grad = result if layer == 0 else self._rectify(layer - 1, result, inputs[layer])
        return grad.view(x.shape)

    def _forward(self, x: Tensor) -> list[Tensor]:
        """Return the input of every linear layer, and the output."""
        results = [x.detach().flatten(1)]
        for weight, bias, relu in zip(self.weights, self.biases, self.rectified, strict=True):
            results.append(_product(results[-1], weight, bias, relu))
        return results

    def _forward_ahead(self, x: Tensor, gradient: LowRankGradient, step: float) -> list[Tensor]:
        """Return the same at the parameters and after a step: first the rows at the parameters, then the others."""
        n, results = x.shape[0], [x.detach().flatten(1)]
        for layer, (a, d) in enumerate(gradient.factors.values()):
            h = results[-1]
            z = _product(h, self.weights[layer], self.biases[layer])
            gram = (h if layer == 0 else h[n:]) @ a.t()
            if self.biases[layer] is not None:
                gram.add_(1)
            if layer == 0:
                z = torch.cat([z, torch.addmm(z, gram, d, alpha=-step)])
            else:
                z[n:].addmm_(gram, d, alpha=-step)
            results.append(z.relu_() if self.rectified[layer] else z)
        return results

    def _rectify(self, layer: int, grad: Tensor, output: Tensor) -> Tensor:
        """Return the gradient before a layer's ReLU, if it has one, from that after it."""
        return _aten.threshold_backward(grad, output, 0) if self.rectified[layer] else grad


def _layers(model: nn.Module) -> dict[str, nn.Module] | None:
    """Return the layers of a sequential model by name, those of nested ones too; each may occur once."""
    layers: dict[str, nn.Module] = {}
    stack: list[tuple[str, nn.Module | None]] = [("", model)]
    while stack:
        name, module = stack.pop()
        if module is None or (module._modules and type(module).forward is not nn.Sequential.forward):
            return None
        if type(module).forward is nn.Sequential.forward:
            if not is_unmodified(module) or module._parameters or module._buffers:
                return None
            prefix = f"{name}." if name else ""
            stack.extend((prefix + key, child) for key, child in reversed(module._modules.items()))
        else:
            layers[name] = module
    return layers if len(set(map(id, layers.values()))) == len(layers) else None


def _plain(first: Tensor, others: Sequence[Tensor]) -> bool:
    """Return whether all parameters are trainable, dense, of one type and without hooks."""
    dtype = first.dtype
    if dtype is not torch.float32 and dtype is not torch.float64:
        return False
    return (
        all(
            type(p) is nn.Parameter and p.is_cpu and p.dtype is dtype and p.requires_grad and not p._backward_hooks
            for p in (first, *others)
        )
        and len({id(p) for p in others} | {id(first)}) == len(others) + 1
    )


def _cross_entropy(output: Tensor, y: Tensor, sizes: Sequence[int] = ()) -> tuple[Tensor, Tensor]:
    """Return the mean cross-entropy, or the sum of that of parts of these sizes, and its gradient."""
    log_p = _aten._log_softmax(output, 1, False)
    if not sizes:
        loss, total = _aten.nll_loss_forward(log_p, y, None, 1, -100)
        grad = _aten.nll_loss_backward(_one(output.dtype), log_p, y, None, 1, -100, total)
    else:
        weights = _row_weights(tuple(sizes), output.dtype)
        losses, total = _aten.nll_loss_forward(log_p, y, None, 0, -100)
        loss = losses @ weights
        grad = _aten.nll_loss_backward(weights, log_p, y, None, 0, -100, total)
    return loss, _aten._log_softmax_backward_data(grad, log_p, 1, output.dtype)


@cache
def _one(dtype: torch.dtype) -> Tensor:
    return torch.ones((), dtype=dtype)


@cache
def _row_weights(sizes: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return 1 / size for every row of a part of that size."""
    return torch.cat([torch.full((size,), 1 / size, dtype=dtype) for size in sizes])


def _product(x: Tensor, weight: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """Return x weightᵀ + bias, rectified if requested."""
    if x.dtype is torch.float32 and x.shape[0] * weight.numel() >= MIN_PRODUCT and _has_onednn():
        fused: Tensor = torch.ops.mkldnn._linear_pointwise(x, weight, bias, "relu" if relu else "none", [], "")
        return fused
    result = x @ weight.t() if bias is None else torch.addmm(bias, x, weight.t())
    return result.relu_() if relu else result


@cache
def _has_onednn() -> bool:
    """Return whether this build of torch has oneDNN's linear layer."""
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return False
    try:
        x = torch.ones(2, 3)
        result = torch.ops.mkldnn._linear_pointwise(x, x, torch.ones(2), "relu", [], "")
        return bool(torch.equal(result, torch.full((2, 2), 4.0)))
    except (AttributeError, RuntimeError, NotImplementedError):
        return False
