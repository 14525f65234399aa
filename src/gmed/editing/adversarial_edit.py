"""An edit that increases the current loss (Goodfellow et al., 2015)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from gmed.editing.base import Edit, EditContext
from gmed.errors import check_float
from gmed.memory import where_finite
from gmed.registry import register

TUNED = {  # tuned by benchmarks/tune.py; the paper gives no values
    "split-mnist": {"stride": 0.01},
    "split-mnist-full": {"stride": 0.01},
    "permuted-mnist": {"stride": 0.0003},
    "rotated-mnist": {"stride": 0.003},
    "images": {"stride": 0.0003},
}


@register("adv-edit", on_benchmarks=TUNED)
@dataclass(frozen=True)
class AdversarialEdit(Edit):
    """Move stored examples in the direction of higher current loss, each input by the same amount.

    Parameters
    ----------
    stride
        The change of each input: x_m + stride * sign(∇_x ℓ(x_m; θ)).

    References
    ----------
    Goodfellow, Shlens, Szegedy, "Explaining and harnessing adversarial examples", ICLR 2015.
    """

    stride: float

    def __post_init__(self) -> None:
        check_float("stride", self.stride)

    @property
    def capturable(self) -> bool:
        return True

    def edit(self, x_m: Tensor, y_m: Tensor, edit_count: Tensor, context: EditContext) -> Tensor:
        grads = context.lookahead.input_gradient(x_m, y_m, before=1.0)
        return where_finite(x_m + self.stride * grads.sign(), x_m)
