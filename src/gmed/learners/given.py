"""What users give: tensors, arrays, lists."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from gmed.errors import InputError


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
