"""The look-ahead: a trial step on the incoming batch that is not applied to the model."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.deprecated import old_attributes
from gmed.kernels.low_rank import Gradient, LinearChain, LowRankGradient
from gmed.kernels.relu_chain import MAX_ROWS, ReLUChain
from gmed.kernels.relu_chain_compiled import fused_chain
from gmed.models.functional import Parameters, forward, gradient, preserve_rng
from gmed.models.introspection import ModelInfo, inspect_model

Loss = Callable[[Tensor, Tensor], Tensor]
"""Mean loss of a batch, from the model's output and the targets, as torch's losses compute it."""


@old_attributes(taken="is_computed", current="theta", parameters="theta_ahead")
class LookAhead:
    """A trial step of plain SGD on the incoming batch, not applied to the model: θ' = θ - τ ∇ℓ(x_D, y_D; θ).

    Everything is computed when it is first needed, and only once: all parts of a step that look ahead (retrieval,
    editing) and the update itself share one stream gradient. The model is not changed; a look-ahead belongs to the
    current step, and must be used before the model is updated. With dropout, all passes of a look-ahead have the same
    masks, and the state of torch's generators is preserved.

    Parameters
    ----------
    model
        The model, with its current trainable parameters θ.
    x, y
        The incoming batch (x_D, y_D).
    lr
        τ.
    loss
        Mean loss of a batch.
    stream_loss
        The loss of the step on the incoming batch, if it differs from ``loss``.
    info
        The information about the model, if it was collected already.

    Examples
    --------
    >>> import torch
    >>> model = nn.Linear(1, 1, bias=False)
    >>> squared = lambda output, y: ((output - y) ** 2).mean()
    >>> with torch.no_grad():
    ...     _ = model.weight.fill_(1.0)
    >>> ahead = LookAhead(model, torch.tensor([[2.0]]), torch.tensor([[0.0]]), lr=0.1, loss=squared)
    >>> round(ahead.theta_ahead["weight"].item(), 4)  # 1 - 0.1 * 2 * 2 * 2
    0.2
    >>> model.weight.item()
    1.0
    """

    def __init__(
        self,
        model: nn.Module,
        x: Tensor,
        y: Tensor,
        *,
        lr: float,
        loss: Loss = cross_entropy,
        stream_loss: Loss | None = None,
        info: ModelInfo | None = None,
    ) -> None:
        self.model = model
        self.x, self.y = x, y
        self.lr = lr
        self.loss = loss
        self._stream_loss = stream_loss
        self.info = info or inspect_model(model)

    @property
    def theta(self) -> Parameters:
        """θ, the model's current parameters."""
        return self.info.parameters

    @property
    def stream_loss(self) -> Tensor:
        """ℓ_stream, the loss of the incoming batch at θ."""
        return self._stream[0]

    @cached_property
    def stream_gradient(self) -> Gradient:
        """∇ℓ_stream, the gradient of that loss at θ."""
        return self._stream[1]

    @cached_property
    def _stream(self) -> tuple[Tensor, Gradient]:
        if self._stream_loss is None:
            return self.loss_and_gradient(self.x, self.y)
        with torch.enable_grad():
            loss = self._stream_loss(self.output_before(self.x), self.y)
            return loss.detach(), gradient(loss, self.theta)

    @cached_property
    def theta_ahead(self) -> Parameters:
        """θ', the parameters after the step. No gradient flows through it back to θ."""
        theta = [p.detach() for p in self.theta.values()]
        grads = [self.stream_gradient[name] for name in self.theta]
        return dict(zip(self.theta, torch._foreach_sub(theta, grads, alpha=self.lr), strict=True))

    @property
    def is_computed(self) -> bool:
        """Whether the stream's loss and gradient have been computed in this step."""
        return "_stream" in self.__dict__

    @torch.enable_grad()  # the first caller may have disabled gradients
    def loss_and_gradient(self, x: Tensor, y: Tensor) -> tuple[Tensor, Gradient]:
        """Return ℓ(x, y; θ) and its gradient, as low-rank factors where that is faster."""
        if (fused := self._fused(x, y)) is not None:
            return fused.loss_and_gradient(x, y)
        if self._chain is not None:
            return self._chain.gradient(x, lambda output: self.loss(output, y))
        loss = self.loss_before(x, y)
        return loss.detach(), gradient(loss, self.theta)

    def joint_loss_and_gradient(self, x: Tensor | None, y: Tensor | None) -> tuple[Tensor, Gradient] | None:
        """Return ℓ_stream + ℓ(x, y; θ) and its gradient if derived by hand, in one pass over both batches.

        Without x, return ℓ_stream and its gradient.
        """
        if self._stream_loss is not None or self._fused(self.x, self.y) is None:
            return None
        if x is None or y is None:
            return self._stream
        if (fused := self._fused(x, y)) is None or x.shape[1:] != self.x.shape[1:]:
            return None
        return fused.loss_and_gradient(torch.cat([self.x, x]), torch.cat([self.y, y]), (len(self.y), len(y)))

    def input_gradient(self, x: Tensor, y: Tensor, *, before: float, after: float = 0.0) -> Tensor:
        """Return the gradient with respect to x of ``before`` ℓ(x, y; θ) + ``after`` ℓ(x, y; θ')."""
        ahead = self.stream_gradient if after else None
        if (fused := self._fused(x, y)) is not None and (ahead is None or type(ahead) is LowRankGradient):
            return fused.input_gradient(x, y, ahead, self.lr, before, after)
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            if ahead is None:
                total = before * self.loss_before(x, y)
            else:
                loss_before, loss_after = self.losses(x, y)
                total = after * loss_after + before * loss_before
            (grad,) = torch.autograd.grad(total, x)
        return grad

    def outputs(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the model's output at θ and at θ', for gradients with respect to x."""
        if type(self.stream_gradient) is LowRankGradient:
            if not torch.is_grad_enabled() and (fused := self._fused(x)) is not None:
                return fused.outputs_ahead(x, self.stream_gradient, self.lr)
            before, after = self.stream_gradient.outputs(x, 0.0, self.lr)
            return before, after
        theta = {name: p.detach() for name, p in self.theta.items()}
        return self._output_at(theta, x), self.output_after(x)

    def output_before(self, x: Tensor) -> Tensor:
        """Return the model's output at θ."""
        return self._output_at(self.theta, x)

    def output_after(self, x: Tensor) -> Tensor:
        """Return the model's output at θ'."""
        if type(self.stream_gradient) is LowRankGradient:
            return self.stream_gradient.outputs(x, self.lr)[0]
        return self._output_at(self.theta_ahead, x)

    def losses(self, x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        """Return ℓ(x, y; θ) and ℓ(x, y; θ'), for gradients with respect to x."""
        before, after = self.outputs(x)
        return self.loss(before, y), self.loss(after, y)

    def loss_before(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ℓ(x, y; θ)."""
        return self.loss(self.output_before(x), y)

    def loss_after(self, x: Tensor, y: Tensor) -> Tensor:
        """Return ℓ(x, y; θ')."""
        return self.loss(self.output_after(x), y)

    def _output_at(self, parameters: Parameters, x: Tensor) -> Tensor:
        with nullcontext() if self.info.deterministic else preserve_rng():
            return forward(self.model, parameters, x)

    def _fused(self, x: Tensor, y: Tensor | None = None) -> ReLUChain | None:
        """Return the model as a hand-differentiated chain for these examples, if possible."""
        chain = self._relu_chain
        return chain if chain is not None and x.shape[0] <= MAX_ROWS and chain.accepts(x, y) else None

    @cached_property
    def _relu_chain(self) -> ReLUChain | None:
        return fused_chain(self.model) if self.loss is cross_entropy and self._stream_loss is None else None

    @cached_property
    def _chain(self) -> LinearChain | None:
        """The model's layers, if low-rank gradients are faster and the loss is known to depend on the output alone."""
        has_default_loss = self.loss is cross_entropy and self._stream_loss is None
        chain = LinearChain.of(self.model) if has_default_loss else None
        return chain if chain is not None and chain.is_beneficial(self.x) else None
