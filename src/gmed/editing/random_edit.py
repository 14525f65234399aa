"""An edit in a random direction, as a control."""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

import numpy as np
import torch
from torch import Tensor

from gmed.editing.base import Edit, EditContext
from gmed.errors import check_float
from gmed.memory import where_finite
from gmed.registry import register

TUNED = {  # tuned by benchmarks/tune.py; the paper gives no values
    "split-mnist": {"stride": 0.03},
    "split-mnist-full": {"stride": 0.03},
    "permuted-mnist": {"stride": 0.1},
    "rotated-mnist": {"stride": 1.0},
    "images": {"stride": 0.1},
}


@register("random-edit", on_benchmarks=TUNED)
@dataclass(frozen=True)
class RandomEdit(Edit):
    """Move stored examples in a random direction: the control for edits with a chosen direction.

    An example whose edit would not be finite is not changed.

    Parameters
    ----------
    stride
        The Euclidean length of the move, over all inputs of an example.
    """

    stride: float

    def __post_init__(self) -> None:
        check_float("stride", self.stride)

    @property
    def capturable(self) -> bool:
        return True

    def edit(self, x_m: Tensor, y_m: Tensor, edit_count: Tensor, context: EditContext) -> Tensor:
        shape, dtype = x_m.shape, np.float64 if x_m.dtype is torch.float64 else np.float32
        random = context.random
        direction = context.draw(lambda: random().standard_normal(shape).astype(dtype)).to(x_m)
        norm = direction.flatten(1).norm(dim=1).reshape(-1, *[1] * (x_m.ndim - 1))
        stride = self.stride if abs(self.stride) <= torch.finfo(x_m.dtype).max else inf
        return where_finite(torch.add(x_m, direction / norm, alpha=stride), x_m)
