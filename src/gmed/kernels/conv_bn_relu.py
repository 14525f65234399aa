"""A convolution, batch-norm, residual and ReLU as one operation."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from gmed.models.batch_norm import BatchNorm
from gmed.models.introspection import as_built

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
    (:mod:`gmed.kernels.conv_bn_relu_autograd`).

    >>> conv, norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), BatchNorm(4)
    >>> x = torch.rand(2, 3, 5, 5)
    >>> torch.equal(unit(conv, norm, x), relu(norm(conv(x))))
    True
    """
    if _in_kernels and type(conv) is nn.Conv2d and type(norm) is BatchNorm and _suits_kernels(conv, norm, x, around):
        from gmed.kernels.conv_bn_relu_autograd import fused_unit

        return fused_unit(conv, norm, x, around, rectified)
    out: Tensor = norm(conv(x))
    out = out if around is None else out + around
    return relu(out) if rectified else out


def _suits_kernels(conv: nn.Conv2d, norm: BatchNorm, x: Tensor, around: Tensor | None) -> bool:
    tensors = [x, around, *conv.parameters(), *norm.parameters(), norm.running_mean]
    return (
        _run_on(x)
        and norm.training
        and norm.affine
        and as_built(conv)
        and as_built(norm)
        and _is_plain(conv)
        and all(t is None or (t.dtype is torch.float32 and t.device == x.device) for t in tensors)
        and not torch.is_autocast_enabled(x.device.type)
        and _fit_together(conv, x, around)
    )


def _fit_together(conv: nn.Conv2d, x: Tensor, around: Tensor | None) -> bool:
    """Whether shapes are as they are in a network; what else there may be is for torch to compute or to refuse."""
    if x.dim() != 4 or x.shape[1] != conv.in_channels:
        return False
    out = len(x), conv.out_channels, *(-(-side // conv.stride[0]) for side in x.shape[2:])
    several = out[0] * out[2] * out[3] > 1  # one number has no variance
    return several and (around is None or tuple(around.shape) == out)


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
    return x.is_cuda and x.device.index == torch.cuda.current_device() and _has_kernels(x.device)


@cache
def _has_kernels(device: torch.device) -> bool:
    if find_spec("triton") is None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from gmed.kernels.conv_bn_relu_autograd import fused_unit

        with torch.random.fork_rng(devices=[]):
            conv, norm = nn.Conv2d(1, 1, 1, bias=False).to(device), BatchNorm(1).to(device)
        fused_unit(conv, norm, torch.zeros(1, 1, 1, 2, device=device), None, True)
    except Exception as error:  # whatever keeps Triton from building them: no compiler, no headers, another version
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        warnings.warn(f"Triton cannot build kernels here ({reason}); torch's are used, which are slower", stacklevel=2)
        return False
    return True
