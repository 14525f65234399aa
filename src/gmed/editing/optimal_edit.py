"""An edit that protects all earlier examples: an oracle, for analysis."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from gmed.editing.base import Edit, EditContext, History
from gmed.errors import UsageError, check_float, check_int
from gmed.memory import where_finite
from gmed.models import LookAhead, forward
from gmed.registry import register

TUNED = {  # tuned by benchmarks/tune.py; the paper gives no values
    "split-mnist": {"alpha": 0.03},
    "split-mnist-full": {"alpha": 0.03},
    "permuted-mnist": {"alpha": 0.03},
    "rotated-mnist": {"alpha": 0.003},
    "images": {"alpha": 0.001},
}


@register("optimal-edit", on_benchmarks=TUNED)
@dataclass(frozen=True)
class OptimalEdit(Edit):
    """Move stored examples so that replaying them protects earlier examples best: an oracle, for analysis.

    The real update on the incoming batch and the replayed examples, θ_{t+1} = θ - τ ∇[ℓ(x_D) + ℓ(x_m)], is
    differentiated with respect to x_m, and x_m descends the summed loss increase of earlier examples:

        x_m - α ∇_{x_m} Σ_i [ ℓ(x_i; θ_{t+1}) - ℓ(x_i; θ) ].

    Parameters
    ----------
    alpha
        α, the stride.
    examples
        Number of earlier examples in the sum, drawn again at every step; the sum is scaled up to all of them.

    References
    ----------
    Section 4.4 and Appendix of the GMED paper. Its text calls this gradient ascent, which would increase forgetting;
    its experiments suggest descent.
    """

    needs_history: ClassVar[bool] = True

    alpha: float
    examples: int = 500

    def __post_init__(self) -> None:
        check_float("alpha", self.alpha)
        check_int("examples", self.examples)

    def edit(self, x_m: Tensor, y_m: Tensor, edit_count: Tensor, context: EditContext) -> Tensor:
        if context.history is None:
            raise UsageError("the optimal edit needs a history of earlier examples; use a learner with replay")
        count = len(context.history.y)
        if count == 0:
            return x_m
        drawn = context.random().choice(count, min(self.examples, count), replace=False)
        indices = torch.from_numpy(drawn).to(y_m.device)
        earlier = History(context.history.x[indices], context.history.y[indices])
        grads = forgetting_gradient(context.lookahead, x_m, y_m, earlier) * count
        return where_finite(x_m - self.alpha * grads, x_m)


@torch.enable_grad()
def forgetting_gradient(ahead: LookAhead, x_m: Tensor, y_m: Tensor, earlier: History) -> Tensor:
    """Return ∇_{x_m} of the mean loss of ``earlier`` after the real update on the incoming batch and (x_m, y_m)."""
    x = x_m.detach().requires_grad_()
    names = list(ahead.theta)
    theta = {name: p.detach().requires_grad_() for name, p in ahead.theta.items()}
    replay_loss = ahead.loss(forward(ahead.model, theta, x), y_m)
    replay_grads = torch.autograd.grad(replay_loss, [theta[name] for name in names], create_graph=True)
    updated = {
        name: theta[name] - ahead.lr * (ahead.stream_gradient[name] + grad)
        for name, grad in zip(names, replay_grads, strict=True)
    }
    loss = ahead.loss(forward(ahead.model, updated, earlier.x), earlier.y)
    (grad,) = torch.autograd.grad(loss, x)
    return grad
