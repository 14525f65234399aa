"""Batch normalization without a counter of batches."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import batch_norm


class BatchNorm(nn.BatchNorm2d):
    """Batch normalization of images that does not count batches.

    :class:`torch.nn.BatchNorm2d` needs its counter only for cumulative averages, but spends a kernel on it in every
    layer of every step. The exponential averages used here never read it.

    >>> import torch
    >>> norm = BatchNorm(3)
    >>> norm(torch.rand(2, 3, 4, 4)).shape, int(norm.num_batches_tracked)
    (torch.Size([2, 3, 4, 4]), 0)
    """

    def __init__(self, channels: int) -> None:
        super().__init__(channels)

    def forward(self, x: Tensor) -> Tensor:
        uses_running = self.track_running_stats or not self.training
        running = (self.running_mean, self.running_var) if uses_running else (None, None)
        return batch_norm(x, *running, self.weight, self.bias, self.training, self.momentum or 0.0, self.eps)
