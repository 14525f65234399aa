"""Requests to forget stored examples: which of them are meant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gmed.errors import UsageError
from gmed.learners._validation import as_tensor


class StoredExamples(NamedTuple):
    """Examples that a learner keeps, and which of the stream each was, where that is known."""

    x: Tensor
    y: Tensor
    stream_index: Tensor | None

    @classmethod
    def none(cls) -> StoredExamples:
        """Where nothing is kept."""
        return cls(torch.zeros(0), torch.zeros(0, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


def select_examples(
    kept: StoredExamples,
    *,
    stream_index: int | Sequence[int] | None = None,
    label: int | Sequence[int] | None = None,
    where: Callable[[Tensor, Tensor], Tensor] | None = None,
) -> NDArray[np.bool_]:
    """Which examples a request means (see :meth:`gmed.learners.Learner.remove_examples`).

    >>> select_examples(StoredExamples(torch.zeros(3, 2), torch.tensor([4, 5, 4]), None), label=4).tolist()
    [True, False, True]
    """
    if sum(given is not None for given in (stream_index, label, where)) != 1:
        raise UsageError("say what to forget by one of stream_index, label and where")
    if where is not None:
        return _mask(where(kept.x, kept.y), len(kept.y)) if len(kept.y) else np.zeros(0, dtype=np.bool_)
    if label is not None:
        return np.isin(kept.y.cpu().numpy(), _numbers("label", label))
    numbers = _numbers("stream_index", stream_index)
    if kept.stream_index is None:
        raise UsageError("which examples of the stream it keeps is not known; forget them by label or where")
    return np.isin(kept.stream_index.cpu().numpy(), numbers)


def _numbers(name: str, given: Any) -> NDArray[np.int64]:
    numbers = np.atleast_1d(as_tensor(name, given).cpu().numpy())
    if numbers.size and not (np.issubdtype(numbers.dtype, np.integer) and numbers.ndim == 1):
        raise UsageError(f"{name} must be a whole number or several, not {given!r}")
    return numbers.astype(np.int64)


def _mask(given: Any, count: int) -> NDArray[np.bool_]:
    mask = as_tensor("what where returns", given)
    if mask.dtype != torch.bool or mask.shape != (count,):
        raise UsageError(
            f"where must say true or false of each of the {count} stored examples, not {mask.dtype} {tuple(mask.shape)}"
        )
    return np.asarray(mask.cpu().numpy(), dtype=np.bool_)
