"""The reduced ResNet-18 of the CIFAR and mini-ImageNet benchmarks."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from gmed.errors import UsageError
from gmed.kernels.conv_bn_relu import conv_bn_relu
from gmed.models.batch_norm import BatchNorm
from gmed.models.introspection import deterministic, is_unmodified


@deterministic
class ResNet18(nn.Module):
    """The reduced ResNet-18 of the CIFAR and mini-ImageNet benchmarks: few channels, a 3 x 3 first convolution, no
    max-pooling, and 4 x 4 average pooling before the classifier.

    Parameters
    ----------
    classes
        Number of classes.
    size
        Height and width of the images.
    width
        Channels of the first stage; the others have twice, four and eight times as many.

    Examples
    --------
    >>> import torch
    >>> ResNet18(classes=100)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 100])
    >>> ResNet18(classes=100, size=84).classifier.in_features
    640

    References
    ----------
    He, Zhang, Ren, Sun, "Deep residual learning for image recognition", CVPR 2016. Reduced as in Lopez-Paz and
    Ranzato, "Gradient episodic memory for continual learning", NeurIPS 2017.
    """

    def __init__(self, classes: int = 10, size: int = 32, width: int = 20) -> None:
        super().__init__()
        self.size = size
        self.first = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.norm = BatchNorm(width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        blocks = []
        for before, after in pairwise(widths):
            blocks += [Block(before, after, stride=1 if before == after else 2), Block(after, after)]
        self.blocks = nn.Sequential(*blocks)
        pooled = -(-size // 8) // 4  # three stages halve the size, rounding up
        if pooled == 0:
            raise UsageError(f"images of {size} x {size} are too small for a ResNet18, which needs at least 25 x 25")
        self.classifier = nn.Linear(8 * width * pooled**2, classes)

    def forward(self, x: Tensor) -> Tensor:
        x = conv_bn_relu(self.first, self.norm, x)
        x = avg_pool2d(self.blocks(x), 4).flatten(1)
        logits: Tensor = self.classifier(x)
        return logits


def to_channels_last(model: nn.Module) -> nn.Module:
    """Convert the weights of a ResNet to channels-last, its fastest memory format (benchmarks/speed.md)."""
    if isinstance(model, ResNet18):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


@deterministic
class Block(nn.Module):
    """A residual block: two convolutions and a shortcut, which may be a convolution too."""

    def __init__(self, before: int, after: int, stride: int = 1, norm: Callable[[int], nn.Module] = BatchNorm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.norm1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = norm(after)
        self.around = nn.Sequential()
        if stride != 1 or before != after:
            self.around = nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), norm(after))

    def forward(self, x: Tensor) -> Tensor:
        hidden = conv_bn_relu(self.conv1, self.norm1, x)
        return conv_bn_relu(self.conv2, self.norm2, hidden, self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if type(self.around) is nn.Sequential and len(self.around) == 2 and is_unmodified(self.around):
            conv, norm = self.around
            return conv_bn_relu(conv, norm, x, apply_relu=False)
        shortcut: Tensor = self.around(x)
        return shortcut
