"""The reduced ResNet-18 of the CIFAR and mini-ImageNet benchmarks."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d

from gmed.deprecated import old_attributes
from gmed.errors import UsageError
from gmed.kernels.conv_bn_relu import conv_bn_relu
from gmed.models.batch_norm import BatchNorm
from gmed.models.introspection import deterministic, is_unmodified


@old_attributes(first="conv1", norm="bn1")
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
        self.conv1 = nn.Conv2d(3, width, 3, padding=1, bias=False)
        self.bn1 = BatchNorm(width)
        widths = [width, width, 2 * width, 4 * width, 8 * width]
        blocks = []
        for before, after in pairwise(widths):
            blocks += [Block(before, after, stride=1 if before == after else 2), Block(after, after)]
        self.blocks = nn.Sequential(*blocks)
        pooled = -(-size // 8) // 4  # three stages halve the size, rounding up
        if pooled == 0:
            raise UsageError(f"images of {size} x {size} are too small for a ResNet18, which needs at least 25 x 25")
        self.classifier = nn.Linear(8 * width * pooled**2, classes)
        self.register_load_state_dict_pre_hook(_rename_old_keys)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor) -> Tensor:
        x = conv_bn_relu(self.conv1, self.bn1, x)
        x = avg_pool2d(self.blocks(x), 4).flatten(1)
        logits: Tensor = self.classifier(x)
        return logits


def to_channels_last(model: nn.Module) -> nn.Module:
    """Convert the weights of a ResNet to channels-last, its fastest memory format (benchmarks/speed.md)."""
    if isinstance(model, ResNet18):
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return model


@old_attributes(norm1="bn1", norm2="bn2", around="shortcut")
@deterministic
class Block(nn.Module):
    """A residual block: two convolutions and a shortcut, which may be a convolution too."""

    def __init__(self, before: int, after: int, stride: int = 1, norm: Callable[[int], nn.Module] = BatchNorm) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride=stride, padding=1, bias=False)
        self.bn1 = norm(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.bn2 = norm(after)
        self.shortcut = nn.Sequential()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride=stride, bias=False), norm(after))

    def forward(self, x: Tensor) -> Tensor:
        hidden = conv_bn_relu(self.conv1, self.bn1, x)
        return conv_bn_relu(self.conv2, self.bn2, hidden, self._shortcut(x))

    def _shortcut(self, x: Tensor) -> Tensor:
        if type(self.shortcut) is nn.Sequential and len(self.shortcut) == 2 and is_unmodified(self.shortcut):
            conv, bn = self.shortcut
            return conv_bn_relu(conv, bn, x, apply_relu=False)
        shortcut: Tensor = self.shortcut(x)
        return shortcut


def rename_old_keys(state: dict[str, Any], expected: Iterable[str]) -> None:
    """Give the tensors of a state saved by an older version the names that a model expects now.

    >>> state = {"model.blocks.2.around.0.weight": 1, "model.norm.bias": 2}
    >>> rename_old_keys(state, ["model.blocks.2.shortcut.0.weight", "model.bn1.bias"])
    >>> state
    {'model.blocks.2.shortcut.0.weight': 1, 'model.bn1.bias': 2}
    """
    for name in expected:
        if name not in state and (old := _old_key(name)) in state:
            state[name] = state.pop(old)


def _old_key(name: str) -> str:
    """Return the name that a tensor of a ResNet-18 had in older versions."""
    name = re.sub(r"\bshortcut\.", "around.", name)
    in_block = re.search(r"\b\d+\.(conv|bn)[12]\.", name)
    if in_block:
        return re.sub(r"\bbn([12])\.", r"norm\1.", name)
    return re.sub(r"\bbn1\.", "norm.", re.sub(r"\bconv1\.", "first.", name))


def _rename_old_keys(module: nn.Module, state: dict[str, Any], prefix: str, *others: Any) -> None:
    rename_old_keys(state, [prefix + name for name in module.state_dict()])
