"""What a learner accepts: checks of batches, and of a model on its first batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from gmed.errors import InputError
from gmed.learners.draws import all_finite
from gmed.models import eval_mode, forward, preserve_rng, preserves_inputs, trainable, unchanged_inputs


def check_trainable(model: nn.Module) -> None:
    """Refuse to learn where nothing can be learned."""
    if torch.is_inference_mode_enabled():
        raise InputError("learning needs gradients, which torch.inference_mode() rules out; leave it first")
    if not any(p.requires_grad for p in model.parameters()):
        raise InputError("every parameter of the model is frozen; set requires_grad of those it shall learn")


def check_inputs(model: nn.Module, given: Any, shape: tuple[int, ...] | None) -> Tensor:
    """Return inputs as the model takes them, if they are such; ``shape`` is that of earlier examples."""
    x = as_tensor("x", given)
    if not x.is_floating_point():
        raise InputError(
            f"x holds {x.dtype}, floating-point values are needed. Pixels: scale them first, x.float() / 255."
        )
    if x.ndim < 2 or not len(x):
        raise InputError(f"x must be a batch of at least one example, not of shape {tuple(x.shape)}")
    if shape is not None and x.shape[1:] != shape:
        raise InputError(f"examples of shape {tuple(x.shape[1:])} do not fit this stream's {tuple(shape)}")
    like = next(model.parameters())
    if like.is_meta:
        raise InputError("the model is on the meta device, without values; give it some first: model.to_empty(...)")
    x = x.detach().to(device=like.device, dtype=like.dtype)
    if not all_finite([x]):
        where = (~torch.isfinite(x).flatten(1).all(1)).nonzero().flatten().tolist()
        raise InputError(
            f"x holds NaN or infinity (in {like.dtype}) in example(s) {where[:5]} of the batch. "
            "Drop or mend them before observing."
        )
    return x


def check_labels(given: Any, x: Tensor, classes: int) -> Tensor:
    """Return a copy of the labels of these inputs, if a model of so many classes can learn them."""
    y = as_tensor("y", given)
    if y.is_floating_point() or y.is_complex() or y.dtype == torch.bool:
        raise InputError(f"y holds {y.dtype}, integer class labels are needed")
    if y.ndim != 1 or len(y) != len(x):
        raise InputError(f"y must hold one label per example: shape {tuple(y.shape)} for {len(x)} examples")
    y = y.detach().to(device=x.device, dtype=torch.int64, copy=True)
    if int(y.min()) < 0 or int(y.max()) >= classes:
        raise InputError(
            f"labels run from {int(y.min())} to {int(y.max())}; the model has {classes} outputs, "
            f"so they must lie in 0 .. {classes - 1}"
        )
    return y


@torch.enable_grad()
def count_classes(model: nn.Module, x: Tensor) -> int:
    """Try the model on the first batch: do inputs of this shape fit, and how many classes come out?"""
    output = checked_logits(model, x[:1].clone())
    if not output.requires_grad:
        raise InputError("the model's output does not depend on any parameter it could learn; is it detached?")
    if not preserves_inputs(model):
        with unchanged_inputs(x) as (copy,):
            checked_logits(model, copy[:1])
            if model.training:
                with torch.no_grad(), preserve_rng():
                    forward(model, trainable(model), copy)
    return int(output.shape[1])


def checked_logits(model: nn.Module, x: Tensor) -> Tensor:
    """Return the model's output in evaluation mode, or raise the error that says why it is of no use."""
    try:
        with eval_mode(model):
            output = model(x)
    except (RuntimeError, ValueError, TypeError) as error:
        if isinstance(error, torch.OutOfMemoryError):
            raise
        raise InputError(f"the model does not take inputs of shape {tuple(x.shape)}: {error}") from error
    wanted = f"the model must return a ({len(x)}, classes) tensor of logits for {len(x)} inputs"
    if not isinstance(output, Tensor):
        raise InputError(f"{wanted}, not {type(output).__name__}")
    if output.ndim != 2 or len(output) != len(x) or not output.shape[1]:
        raise InputError(f"{wanted}, not one of shape {tuple(output.shape)}")
    if not output.is_floating_point() or output.layout != torch.strided or output.device != x.device:
        kind = f"{output.dtype} ({output.layout}) on {output.device}"
        raise InputError(f"{wanted}: dense and floating-point on {x.device}, not {kind}")
    return output


def as_tensor(name: str, given: Any) -> Tensor:
    """A plain tensor of what a user gave, or the error that says why it is none.

    >>> as_tensor("y", [1, 2])
    tensor([1, 2])
    """
    if isinstance(given, np.ma.MaskedArray) and np.ma.is_masked(given):
        raise InputError(f"{name} has masked values; fill them in or drop their examples first")
    try:
        if hasattr(given, "to_numpy"):  # a frame or a series, of pandas or Polars
            given = given.to_numpy()
        if isinstance(given, np.ndarray):
            given = np.ascontiguousarray(given if given.flags.writeable else given.copy())
        tensor: Tensor = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError, LookupError, OverflowError) as error:
        raise InputError(f"{name} cannot be read as a tensor: {error}") from error
    if tensor.is_meta:
        raise InputError(f"{name} is on the meta device, without values; give a tensor that holds some")
    if tensor.is_nested or tensor.layout != torch.strided:
        kind = "nested" if tensor.is_nested else f"{tensor.layout}"
        raise InputError(f"{name} is a {kind} tensor; give a plain one, such as {name}.to_dense()")
    return tensor
