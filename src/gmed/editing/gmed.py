"""The edit of the paper: gradient-based memory editing (Jin et al., 2021)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from gmed.deprecated import old_parameters
from gmed.editing.base import Edit, EditContext
from gmed.errors import GmedError, InputError, UsageError, check_float, check_int
from gmed.memory import where_finite
from gmed.models import LookAhead, Loss, unchanged_inputs
from gmed.registry import register

TUNED = {  # Table 6 of the paper
    "split-mnist": {"alpha": 5.0, "beta": 0.01},
    "split-mnist-full": {"alpha": 5.0, "beta": 0.01},
    "permuted-mnist": {"alpha": 0.05, "beta": 0.001},
    "rotated-mnist": {"alpha": 1.0, "beta": 0.01},
    "split-cifar10": {"alpha": 0.05, "beta": 0.001},
    "split-cifar100": {"alpha": 0.01, "beta": 0.001},
    "split-mini-imagenet": {"alpha": 1.0, "beta": 0.1},
    "own": {"alpha": 1.0, "beta": 0.01},
}


@register("gmed", on_benchmarks=TUNED)
@dataclass(frozen=True)
class GMED(Edit):
    """Gradient-based Memory EDiting: move stored examples so that the next update makes the model forget them more.

    An example x_m that was edited k times before moves by

        x_m + γ^k α ∇_x [ d(x_m) - β ℓ(x_m; θ) ],    d(x_m) = ℓ(x_m; θ') - ℓ(x_m; θ),

    where θ' is one SGD step ahead on the incoming batch (Eq. 1-3 of the paper). An example whose edit would not
    be finite is not changed.

    Parameters
    ----------
    alpha
        α, the stride. Its scale: the gradient is that of the summed objective divided by the learner's replay
        batch size (10 in the paper), as if the objective were averaged over a full batch. The paper's tuned
        values (5.0 on Split MNIST, 0.05 on Split CIFAR-10) are on this scale.
    beta
        β, the weight of the penalty on the current loss. A negative value makes it a reward, as in the authors'
        released code.
    gamma
        γ, the decay of the stride with every edit of an example; 1 is no decay.
    steps
        Number of gradient steps per edit; the direction is recomputed for each, with the same θ'.
    clamp
        A range (low, high) to which edited values are clamped; by default none.
    extra
        Number of further examples that are edited and written back, but not replayed.
    write_back
        Whether edited examples replace the stored ones; if not, they are replayed once and discarded.

    Examples
    --------
    >>> import gmed
    >>> learner = gmed.learners.ER(
    ...     gmed.models.MLP(),
    ...     lr=0.05,
    ...     memory=gmed.memory.Reservoir(500),
    ...     editing=gmed.editing.GMED(alpha=5.0, beta=0.01),
    ... )

    References
    ----------
    Jin, Sadhu, Du, Ren, "Gradient-based editing of memory examples for online task-free continual learning",
    NeurIPS 2021.
    """

    id: ClassVar[str] = "GMED"
    version: ClassVar[int] = 1

    alpha: float
    beta: float
    gamma: float = 1.0
    steps: int = 1
    clamp: tuple[float, float] | None = None
    extra: int = 0
    write_back: bool = True

    def __post_init__(self) -> None:
        if check_float("alpha", self.alpha) < 0:
            raise UsageError(f"alpha must not be negative, not {self.alpha!r}")
        check_float("beta", self.beta)
        if check_float("gamma", self.gamma, greater_than=0) > 1:
            raise UsageError(f"gamma must be above 0 and at most 1, not {self.gamma!r}")
        check_int("steps", self.steps)
        check_int("extra", self.extra, minimum=0)
        if self.clamp is not None:
            if not isinstance(self.clamp, (tuple, list)) or len(self.clamp) != 2:
                raise UsageError(f"clamp must be a range (low, high), not {self.clamp!r}")
            low, high = (check_float("each end of clamp", end) for end in self.clamp)
            if low >= high:
                raise UsageError(f"clamp must be a range (low, high) with low < high, not {self.clamp!r}")
            object.__setattr__(self, "clamp", (low, high))

    @property
    def capturable(self) -> bool:
        return True

    def edit(self, x_m: Tensor, y_m: Tensor, edit_count: Tensor, context: EditContext) -> Tensor:
        original, ahead = x_m, context.lookahead
        stride = self._stride(edit_count, x_m)
        scale = len(x_m) / context.batch_size  # turns the mean over these examples into their sum / batch_size
        for _ in range(self.steps):
            direction = ahead.input_gradient(x_m, y_m, before=-scale * (1 + self.beta), after=scale)
            x_m = x_m + stride * direction
        x_m = x_m if self.clamp is None else x_m.clamp(*self.clamp)
        return where_finite(x_m, original)

    def _stride(self, edit_count: Tensor, x_m: Tensor) -> float | Tensor:
        """Return γ^k α for each example."""
        if self.gamma == 1:
            return self.alpha
        return self.alpha * self.gamma ** edit_count.to(x_m.dtype).reshape(-1, *[1] * (x_m.ndim - 1))


@old_parameters(age="edit_count")
def edit_examples(
    model: nn.Module,
    x_mem: Tensor,
    y_mem: Tensor,
    x_stream: Tensor,
    y_stream: Tensor,
    *,
    lr: float,
    alpha: float,
    beta: float,
    gamma: float = 1.0,
    edit_count: Tensor | None = None,
    steps: int = 1,
    loss: Loss = cross_entropy,
    clamp: tuple[float, float] | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """Edit replayed examples with GMED, in any replay loop.

    Pure: neither the model (parameters, gradients, batch-norm statistics, mode) nor the inputs are changed. It works
    with any module except TorchScript, any floating-point dtype and any device. The model's mode is respected: in
    training mode, batch-norm uses batch statistics, as it does in the update that follows.

    Parameters
    ----------
    model
        The model about to be updated, at its current parameters θ.
    x_mem, y_mem
        Examples drawn from memory.
    x_stream, y_stream
        The incoming batch.
    lr
        The step size of the look-ahead; with plain SGD, the learning rate.
    alpha, beta, gamma, steps, clamp
        As in :class:`GMED`.
    edit_count
        Number of earlier edits of each example; needed only with gamma < 1. By default 0 for all.
    loss
        Mean loss of a batch, a function of ``(output, target)``.
    batch_size
        Divisor of the summed objective; by default ``len(x_mem)``. If the number of examples varies, set it to your
        usual replay batch size, so that the stride does not vary.

    Returns
    -------
    Tensor
        The edited ``x_mem``: replay it, and write it back to memory. An example whose edit would not be
        finite is returned unchanged.

    Examples
    --------
    >>> import torch, gmed
    >>> _ = torch.manual_seed(0)
    >>> model = torch.nn.Linear(4, 3)
    >>> x_mem, y_mem = torch.rand(5, 4), torch.tensor([0, 1, 2, 0, 1])
    >>> x_new, y_new = torch.rand(5, 4), torch.tensor([2, 2, 2, 2, 2])
    >>> edited = gmed.edit_examples(model, x_mem, y_mem, x_new, y_new, lr=0.1, alpha=1.0, beta=0.01)
    >>> edited.shape == x_mem.shape, bool((edited != x_mem).any())
    (True, True)
    """
    if torch.is_inference_mode_enabled():
        raise InputError("an edit needs gradients, which torch.inference_mode() disables; leave it first")
    editing = GMED(alpha=alpha, beta=beta, gamma=gamma, steps=steps, clamp=clamp)
    for name, x, y in (("mem", x_mem, y_mem), ("stream", x_stream, y_stream)):
        if not isinstance(x, Tensor) or not x.is_floating_point():
            kind = x.dtype if isinstance(x, Tensor) else type(x).__name__
            hint = "; scale pixels first, x.float() / 255" if kind == torch.uint8 else ""
            raise InputError(f"x_{name} must be a floating-point tensor, not {kind}{hint}")
        if not isinstance(y, Tensor):
            raise InputError(f"y_{name} must be a tensor, not {type(y).__name__}")
        if x.ndim == 0 or len(x) == 0 or y.ndim == 0 or len(y) != len(x):
            shapes = f"shapes {tuple(x.shape)} and {tuple(y.shape)}"
            raise InputError(f"x_{name} and y_{name} must have the same number of examples, at least one: {shapes}")
    if edit_count is None:
        edit_count = torch.zeros(len(x_mem), dtype=torch.int64, device=x_mem.device)
    elif not isinstance(edit_count, Tensor) or edit_count.shape != (len(x_mem),) or (edit_count < 0).any():
        actual = tuple(edit_count.shape) if isinstance(edit_count, Tensor) else type(edit_count).__name__
        raise InputError(f"edit_count must be a tensor of one number >= 0 per example: {actual} for {len(x_mem)}")
    size = len(x_mem) if batch_size is None else check_int("batch_size", batch_size)
    if not isinstance(model, nn.Module):
        raise UsageError(f"the model must be a torch.nn.Module, not {type(model).__name__}")
    lr = check_float("lr", lr, greater_than=0)
    try:
        with unchanged_inputs(x_mem.detach(), x_stream.detach()) as (x_m, x_n):
            return editing.edit(
                x_m, y_mem, edit_count, EditContext(LookAhead(model, x_n, y_stream, lr=lr, loss=loss), size)
            )
    except (torch.OutOfMemoryError, GmedError):
        raise
    except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise InputError(
            f"the model and loss cannot compute an edit of x_mem {tuple(x_mem.shape)}, y_mem {y_mem.dtype} "
            f"{tuple(y_mem.shape)} for x_stream {tuple(x_stream.shape)}, y_stream {y_stream.dtype} "
            f"{tuple(y_stream.shape)}: {error}"
        ) from error
