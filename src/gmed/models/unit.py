from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from gmed.models.as_built import as_built
from gmed.models.batch_norm import BatchNorm

_in_kernels = False


@contextmanager
def in_kernels() -> Iterator[None]:
    """Inside, units are made of kernels of their own wherever they can be.

    The kernels are fast and launching them one by one is not: this is for steps that are launched as a CUDA graph.
    """
    global _in_kernels
    before, _in_kernels = _in_kernels, True
    try:
        yield
    finally:
        _in_kernels = before


def unit(
    conv: nn.Module, norm: nn.Module, x: Tensor, around: Tensor | None = None, *, rectified: bool = True
) -> Tensor:
    """A convolution, its normalisation, what comes around them, and what of the sum is above zero.

    On a GPU, :func:`in_kernels`, all of it and its way back is a few kernels made for thin layers
    (:mod:`gmed.models.fused_unit`).

    >>> conv, norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), BatchNorm(4)
    >>> x = torch.rand(2, 3, 5, 5)
    >>> torch.equal(unit(conv, norm, x), relu(norm(conv(x))))
    True
    """
    if _in_kernels and type(conv) is nn.Conv2d and type(norm) is BatchNorm and _suits_kernels(conv, norm, x, around):
        from gmed.models.fused_unit import fused_unit

        return fused_unit(conv, norm, x, around, rectified)
    out: Tensor = norm(conv(x))
    out = out if around is None else out + around
    return relu(out) if rectified else out


def _suits_kernels(conv: nn.Conv2d, norm: BatchNorm, x: Tensor, around: Tensor | None) -> bool:
    tensors = [x, conv.weight, norm.weight] + ([] if around is None else [around])
    return (
        _run_on(x)
        and norm.training
        and as_built(conv)
        and as_built(norm)
        and _is_plain(conv)
        and all(t.dtype is torch.float32 and t.device == x.device for t in tensors)
        and not torch.is_autocast_enabled(x.device.type)
        and (len(x) > 1 or max(x.shape[2:]) > conv.stride[0])  # no variance of one number; torch says so
    )


def _is_plain(conv: nn.Conv2d) -> bool:
    """Whether it is square, without bias or groups, and leaves the size of images but for a stride."""
    size, stride = conv.kernel_size[0], conv.stride[0]
    return (
        size % 2 == 1
        and (conv.kernel_size, conv.stride) == ((size, size), (stride, stride))
        and (conv.padding, conv.padding_mode) == ((size // 2, size // 2), "zeros")
        and (conv.dilation, conv.groups, conv.bias) == ((1, 1), 1, None)
    )


def _run_on(x: Tensor) -> bool:
    """Whether kernels run where x is: on a GPU of 2020 or later, the current one."""
    return x.is_cuda and x.device.index == torch.cuda.current_device() and _has_kernels(x.device.index)


@cache
def _has_kernels(device: int) -> bool:
    return find_spec("triton") is not None and torch.cuda.get_device_capability(device) >= (8, 0)
