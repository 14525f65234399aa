"""A multilayer perceptron, the classifier of the MNIST benchmarks."""

from __future__ import annotations

from torch import nn


class MLP(nn.Sequential):
    """The classifier of the three MNIST benchmarks: 784-400-400-10 with ReLU.

    >>> import torch
    >>> MLP()(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """

    def __init__(self, inputs: int = 784, hidden: int = 400, classes: int = 10) -> None:
        super().__init__(
            nn.Flatten(),
            nn.Linear(inputs, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, classes),
        )
