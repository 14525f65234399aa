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
from gmed.models.introspection import is_unmodified

_use_triton = False


@contextmanager
def use_triton() -> Iterator[None]:
    """Use the Triton kernels inside the block wherever possible.

    The kernels are fast, but launching them one by one is slow: this is for steps that are launched as a CUDA graph.
    """
    global _use_triton
    before, _use_triton = _use_triton, True
    try:
        yield
    finally:
        _use_triton = before


def conv_bn_relu(
    conv: nn.Module, norm: nn.Module, x: Tensor, residual: Tensor | None = None, *, apply_relu: bool = True
) -> Tensor:
    """Return relu(bn(conv(x)) + residual).

    On a GPU, inside :func:`use_triton`, it is computed by a few kernels for layers with few channels
    (:mod:`gmed.kernels.conv_bn_relu_autograd`).

    >>> conv, norm = nn.Conv2d(3, 4, 3, padding=1, bias=False), BatchNorm(4)
    >>> x = torch.rand(2, 3, 5, 5)
    >>> torch.equal(conv_bn_relu(conv, norm, x), relu(norm(conv(x))))
    True
    """
    if _use_triton and type(conv) is nn.Conv2d and type(norm) is BatchNorm and _can_fuse(conv, norm, x, residual):
        from gmed.kernels.conv_bn_relu_autograd import fused_conv_bn_relu

        return fused_conv_bn_relu(conv, norm, x, residual, apply_relu)
    out: Tensor = norm(conv(x))
    out = out if residual is None else out + residual
    return relu(out) if apply_relu else out


def _can_fuse(conv: nn.Conv2d, norm: BatchNorm, x: Tensor, residual: Tensor | None) -> bool:
    tensors = [x, residual, *conv.parameters(), *norm.parameters(), norm.running_mean]
    return (
        _triton_runs_on(x)
        and norm.training
        and norm.affine
        and is_unmodified(conv)
        and is_unmodified(norm)
        and _is_supported_conv(conv)
        and all(t is None or (t.dtype is torch.float32 and t.device == x.device) for t in tensors)
        and not torch.is_autocast_enabled(x.device.type)
        and _shapes_match(conv, x, residual)
    )


def _shapes_match(conv: nn.Conv2d, x: Tensor, residual: Tensor | None) -> bool:
    """Return whether the shapes match; otherwise torch computes the result or raises an error."""
    if x.dim() != 4 or x.shape[1] != conv.in_channels:
        return False
    out = len(x), conv.out_channels, *(-(-side // conv.stride[0]) for side in x.shape[2:])
    has_variance = out[0] * out[2] * out[3] > 1  # a single value has none
    return has_variance and (residual is None or tuple(residual.shape) == out)


def _is_supported_conv(conv: nn.Conv2d) -> bool:
    """Return whether a convolution is square and same-padded, without bias, dilation or groups."""
    size, stride = conv.kernel_size[0], conv.stride[0]
    return (
        size % 2 == 1
        and (conv.kernel_size, conv.stride) == ((size, size), (stride, stride))
        and (conv.padding, conv.padding_mode) == ((size // 2, size // 2), "zeros")
        and (conv.dilation, conv.groups, conv.bias) == ((1, 1), 1, None)
    )


def _triton_runs_on(x: Tensor) -> bool:
    """Return whether the kernels run on the device of x: the current GPU, of compute capability 8.0 or later."""
    return x.is_cuda and x.device.index == torch.cuda.current_device() and _triton_available(x.device)


@cache
def _triton_available(device: torch.device) -> bool:
    if find_spec("triton") is None or torch.cuda.get_device_capability(device) < (8, 0):
        return False
    try:
        from gmed.kernels.conv_bn_relu_autograd import fused_conv_bn_relu

        with torch.random.fork_rng(devices=[]):
            conv, norm = nn.Conv2d(1, 1, 1, bias=False).to(device), BatchNorm(1).to(device)
        fused_conv_bn_relu(conv, norm, torch.zeros(1, 1, 1, 2, device=device), None, True)
    except Exception as error:  # no compiler, no headers, another version of Triton
        reason = str(error).strip().partition("\n")[0] or type(error).__name__
        warnings.warn(
            f"Triton cannot compile kernels on this machine ({reason}); using the slower kernels of torch", stacklevel=2
        )
        return False
    return True
