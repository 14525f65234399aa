"""A batch in a step: what a loss is computed from."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from gmed.errors import UsageError


class Batch:
    """Examples in a step: inputs, labels and the model's output for them.

    Attributes
    ----------
    x, y
        The examples.
    output
        The model's logits for them; gradients flow through.

    Examples
    --------
    >>> import torch
    >>> stream = Batch(torch.rand(2, 4), torch.tensor([0, 1]), output=torch.zeros(2, 3))
    >>> stream.store(logits=stream.output)
    >>> len(stream), list(stream.new_columns)
    (2, ['logits'])
    """

    def __init__(self, x: Tensor, y: Tensor, output: Tensor, column: Callable[[str], Tensor] | None = None) -> None:
        self.x, self.y, self.output = x, y, output
        self.new_columns: dict[str, Tensor] = {}
        self._column = column

    def __len__(self) -> int:
        return len(self.y)

    def store(self, **columns: Tensor) -> None:
        """Store further values with those of these examples that enter memory: ``store(logits=stream.output)``."""
        for name, values in columns.items():
            if not isinstance(values, Tensor) or not values.ndim or len(values) != len(self):
                raise UsageError(f"store({name}=...) takes a tensor with a row for each of the {len(self)} examples")
            self.new_columns[name] = values.detach()

    def __getitem__(self, name: str) -> Tensor:
        """Return the values stored with these examples under a name: ``replay["logits"]``."""
        if self._column is None:
            raise UsageError(f"incoming examples have no stored {name!r}; only replayed examples have")
        return self._column(name)
