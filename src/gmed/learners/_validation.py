"""Checks of the batches that a learner is given, and of a model on its first batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gmed.errors import InputError
from gmed.kernels.relu_chain_compiled import fused_chain
from gmed.learners.draws import all_finite
from gmed.models import eval_mode, forward, preserve_rng, preserves_inputs, trainable, unchanged_inputs


def check_trainable(model: nn.Module) -> None:
    """Raise an error if nothing can be learned: gradients are disabled, or all parameters are frozen."""
    if torch.is_inference_mode_enabled():
        raise InputError("learning needs gradients, which torch.inference_mode() disables; leave it first")
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("all parameters of the model are frozen; set requires_grad=True on those to train")


def check_inputs(model: nn.Module, given: Any, shape: tuple[int, ...] | None) -> Tensor:
    """Return valid inputs on the model's device, in its dtype; ``shape`` is that of earlier examples."""
    x = as_tensor("x", given)
    if not x.is_floating_point():
        raise InputError(
            f"x contains {x.dtype}, floating-point values are needed. Pixels: scale them first, x.float() / 255."
        )
    if x.ndim < 2 or not len(x):
        raise InputError(f"x must be a batch of at least one example, not a tensor of shape {tuple(x.shape)}")
    if shape is not None and x.shape[1:] != shape:
        raise InputError(f"examples have shape {tuple(x.shape[1:])}, earlier ones of this stream {tuple(shape)}")
    like = next(model.parameters())
    if like.is_meta:
        raise InputError("the model is on the meta device, without values; initialize it first: model.to_empty(...)")
    x = x.detach().to(device=like.device, dtype=like.dtype)
    if not all_finite([x]):
        invalid = (~torch.isfinite(x).flatten(1).all(1)).nonzero().flatten().tolist()
        raise InputError(
            f"x contains NaN or infinity (in {like.dtype}) in example(s) {invalid[:5]} of the batch; "
            "drop or impute them."
        )
    return x


def check_labels(given: Any, x: Tensor, classes: int) -> Tensor:
    """Return a copy of the labels of these inputs, which must be valid for a model with this number of classes."""
    y = as_tensor("y", given)
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(f"y contains {y.dtype}, integer class labels are needed")
    if y.ndim != 1 or len(y) != len(x):
        raise InputError(f"y must contain one label per example: shape {tuple(y.shape)} for {len(x)} examples")
    y = y.detach().to(device=x.device, dtype=torch.int64, copy=True)
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise InputError(
            f"labels range from {int(y.min())} to {int(y.max())}; the model has {classes} outputs, "
            f"so they must be in 0 .. {classes - 1}"
        )
    return y


@torch.enable_grad()
def count_classes(model: nn.Module, x: Tensor) -> int:
    """Return the number of classes of the model, after checking on the first batch that it accepts such inputs."""
    output = checked_logits(model, x[:1].clone())
    if not output.requires_grad:
        raise InputError("the model's output does not depend on any trainable parameter; is it detached?")
    if not preserves_inputs(model):
        with unchanged_inputs(x) as (copy,):
            checked_logits(model, copy[:1])
            if model.training:
                with torch.no_grad(), preserve_rng():
                    forward(model, trainable(model), copy)
    return int(output.shape[1])


def checked_logits(model: nn.Module, x: Tensor) -> Tensor:
    """Return the model's output in evaluation mode, or raise an error that says why it is invalid."""
    if not torch.is_grad_enabled() and (chain := fused_chain(model)) is not None and chain.accepts(x):
        return chain.logits(x)
    try:
        with eval_mode(model):
            output = model(x)
    except (RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(f"the model does not accept inputs of shape {tuple(x.shape)}: {error}") from error
    expected = f"the model must return a ({len(x)}, classes) tensor of logits for {len(x)} inputs"
    if not isinstance(output, Tensor):
        raise InputError(f"{expected}, not {type(output).__name__}")
    if output.ndim != 2 or len(output) != len(x) or not output.shape[1]:
        raise InputError(f"{expected}, not one of shape {tuple(output.shape)}")
    if not output.is_floating_point() or output.layout != torch.strided or output.device != x.device:
        actual = f"{output.dtype} ({output.layout}) on {output.device}"
        raise InputError(f"{expected}: dense and floating-point on {x.device}, not {actual}")
    return output


def as_tensor(name: str, given: Any) -> Tensor:
    """Convert an argument of the user to a plain tensor, or raise an error that says why it cannot be.

    >>> as_tensor("y", [1, 2])
    tensor([1, 2])
    """
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise InputError(f"{name} has masked values; fill them in or drop their examples first")
    try:
        if hasattr(given, "to_numpy"):  # a data frame or a series of pandas or Polars
            given = given.to_numpy()
        if isinstance(given, np.ndarray):
            given = np.ascontiguousarray(given if given.flags.writeable else given.copy())
        tensor: Tensor = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, LookupError, OverflowError) as error:
        raise InputError(f"{name} cannot be read as a tensor: {error}") from error
    if tensor.is_meta:
        raise InputError(f"{name} is on the meta device, without values; pass a tensor with values")
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested" if tensor.is_nested else f"{tensor.layout}"
        raise InputError(f"{name} is a {kind} tensor; pass a dense one, such as {name}.to_dense()")
    return tensor
